/* arrays WAY array|array3d|mipmap: 64 MiB and more a piece. */
#include "fill.h"

static CUresult take_array(uint64_t bytes, void **piece)
{
    CUarrayDesc shape = {4096, bytes / 4096 / 4, 0x20, 1}; /* one float a texel */
    return cu.ArrayCreate((CUarray *)piece, &shape);
}

static CUresult take_array3d(uint64_t bytes, void **piece)
{
    CUarray3DDesc shape = {256, 256, bytes / 256 / 256 / 4, 0x20, 1, 0};
    return cu.Array3DCreate((CUarray *)piece, &shape);
}

static CUresult give_array(void *piece)
{
    return cu.ArrayDestroy(piece);
}

static CUresult take_mipmap(uint64_t bytes, void **piece)
{
    CUarray3DDesc shape = {4096, bytes / 4096 / 4, 0, 0x20, 1, 0};
    return cu.MipmapCreate((CUmipmappedArray *)piece, &shape, 4);
}

static CUresult give_mipmap(void *piece)
{
    return cu.MipmapDestroy(piece);
}

int run(int argc, char **argv)
{
    const char *kind = argc > 0 ? argv[0] : "array";
    uint64_t bytes = number(argc > 1 ? argv[1] : "64M");
    start();
    if (!strcmp(kind, "mipmap"))
        fill(take_mipmap, give_mipmap, bytes);
    else if (!strcmp(kind, "array3d"))
        fill(take_array3d, give_array, bytes);
    else
        fill(take_array, give_array, bytes);
    return 0;
}

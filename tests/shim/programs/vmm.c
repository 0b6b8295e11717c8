/* vmm WAY create|mapped|fabric: physical handles, alone and under mappings that outlive them. */
#include "fill.h"

static CUmemAllocationProp properties = {.type = 1, .handle_types = HANDLE_FD, .location = {LOCATION_DEVICE, 0}};
static uint64_t piece_bytes;

static CUresult take_handle(uint64_t bytes, void **piece)
{
    return cu.Create((CUhandle *)piece, bytes, &properties, 0);
}

static CUresult give_handle(void *piece)
{
    return cu.Release((CUhandle)(uintptr_t)piece);
}

/* As an expandable segment does it: reserve, create, map, release the handle; unmapping gives the memory back. */
static CUresult take_mapped(uint64_t bytes, void **piece)
{
    CUhandle handle = 0;
    CUresult result = cu.Reserve((CUdeviceptr *)piece, bytes, 0, 0, 0);
    if (!result)
        result = cu.Create(&handle, bytes, &properties, 0);
    if (!result)
        result = cu.Map((CUdeviceptr)(uintptr_t)*piece, bytes, 0, handle, 0);
    return result ? result : cu.Release(handle);
}

static CUresult give_mapped(void *piece)
{
    CUhandle again = 0;
    CUresult result = cu.Retain(&again, piece);
    if (!result)
        result = cu.Unmap((CUdeviceptr)(uintptr_t)piece, piece_bytes);
    return result ? result : cu.Release(again);
}

/* Imported memory is charged to whoever made it. */
static void import(void)
{
    CUhandle handle = 0, imported = 0;
    int fd = -1;
    MUST(cu.Create(&handle, (size_t)2 << 30, &properties, 0));
    MUST(cu.Export(&fd, handle, HANDLE_FD, 0));
    for (int i = 0; i < 8; i++)
        MUST(cu.Import(&imported, (void *)(intptr_t)fd, HANDLE_FD));
    say("imported", 1);
    MUST(cu.Release(imported));
    MUST(cu.Release(handle));
    CUresult error = cu.Create(&handle, (size_t)3 << 30, &properties, 0);
    say("after_release", error);
}

int run(int argc, char **argv)
{
    const char *kind = argc > 0 ? argv[0] : "create";
    piece_bytes = number(argc > 1 ? argv[1] : "64M");
    start();
    if (!strcmp(kind, "fabric"))
        properties.handle_types = HANDLE_FABRIC;
    if (!strcmp(kind, "import"))
        import();
    else if (!strcmp(kind, "mapped"))
        fill(take_mapped, give_mapped, piece_bytes);
    else
        fill(take_handle, give_handle, piece_bytes);
    return 0;
}

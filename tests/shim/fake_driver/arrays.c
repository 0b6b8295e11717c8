/* Arrays and mipmaps: rows of 64 bytes' multiples, eight rows a tile, then granules like any other memory. */
#define _GNU_SOURCE
#include "driver.h"

#define ARRAY_MAGIC UINT64_C(0xa44a0001)

struct CUarray_st {
    uint64_t magic, size;
    CUarray3DDesc shape;
    struct allocation *behind; /* NULL: nothing is taken, or it belongs to a mipmap or an external memory */
    CUdeviceptr address;
};
struct CUmip_st {
    uint64_t magic;
    unsigned levels;
    CUdeviceptr address;
    struct CUarray_st level[16];
};

static unsigned format_bytes(int format)
{
    switch (format) {
    case 0x01: case 0x08: /* 8 bits */
        return 1;
    case 0x02: case 0x09: case 0x10: /* 16 bits, half */
        return 2;
    default:
        return 4;
    }
}

static uint64_t at_least_one(uint64_t value)
{
    return value ? value : 1;
}

static uint64_t array_bytes(const CUarray3DDesc *shape)
{
    uint64_t row = round_up(shape->width * format_bytes(shape->format) * shape->channels, 64);
    uint64_t rows = shape->height ? round_up(shape->height, 8) : 1;
    return row * rows * at_least_one(shape->depth);
}

static CUresult backed(const CUarray3DDesc *shape, uint64_t size, CUdeviceptr *address)
{
    *address = 0;
    if (!shape->width || !shape->channels || shape->channels > 4)
        return CUDA_ERROR_INVALID_VALUE;
    if (shape->flags & (ARRAY_SPARSE | ARRAY_DEFERRED))
        return CUDA_SUCCESS;
    return memory_take(size, PLAIN, address);
}

static CUresult array_new(CUarray *array, const CUarray3DDesc *shape)
{
    GUARD_CONTEXT;
    (void)context;
    CUresult result = capture_forbids();
    if (result)
        return result;
    CUdeviceptr address = 0;
    result = backed(shape, array_bytes(shape), &address);
    if (result)
        return result;
    CUarray made = calloc(1, sizeof *made);
    made->magic = ARRAY_MAGIC;
    made->shape = *shape;
    made->size = array_bytes(shape);
    made->address = address;
    *array = made;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUarrayDesc *of)
{
    CUarray3DDesc shape = {of->width, of->height, 0, of->format, of->channels, 0};
    return array_new(array, &shape);
}

EXPORT CUresult cuArrayCreate(CUarray *array, const CUarrayDescV1 *of)
{
    CUarray3DDesc shape = {of->width, of->height, 0, of->format, of->channels, 0};
    return array_new(array, &shape);
}

EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUarray3DDesc *of)
{
    return array_new(array, of);
}

EXPORT CUresult cuArray3DCreate(CUarray *array, const CUarray3DDescV1 *of)
{
    CUarray3DDesc shape = {of->width, of->height, of->depth, of->format, of->channels, of->flags};
    return array_new(array, &shape);
}

EXPORT CUresult cuArrayDestroy(CUarray array)
{
    GUARD_CONTEXT;
    (void)context;
    if (!array || array->magic != ARRAY_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    struct allocation *behind = array->address ? allocation_find(array->address) : NULL;
    if (behind)
        memory_give(behind);
    array->magic = 0;
    free(array);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuArray3DGetDescriptor_v2(CUarray3DDesc *of, CUarray array)
{
    GUARD;
    *of = array->shape;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuArrayGetDescriptor_v2(CUarrayDesc *of, CUarray array)
{
    GUARD;
    *of = (CUarrayDesc){array->shape.width, array->shape.height, array->shape.format, array->shape.channels};
    return CUDA_SUCCESS;
}

typedef struct {
    size_t size, alignment;
    unsigned reserved[4];
} memory_requirements;

EXPORT CUresult cuArrayGetMemoryRequirements(memory_requirements *out, CUarray array, CUdevice device)
{
    (void)device;
    GUARD;
    *out = (memory_requirements){.size = array->size, .alignment = GRANULE_BYTES};
    return CUDA_SUCCESS;
}

static uint64_t halved(uint64_t value)
{
    return value > 1 ? value / 2 : value;
}

EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *mipmap, const CUarray3DDesc *of, unsigned levels)
{
    GUARD_CONTEXT;
    (void)context;
    CUresult result = capture_forbids();
    if (result)
        return result;
    if (!levels || levels > 16)
        return CUDA_ERROR_INVALID_VALUE;
    CUmipmappedArray made = calloc(1, sizeof *made);
    CUarray3DDesc shape = *of;
    uint64_t sum = 0;
    for (unsigned i = 0; i < levels; i++) {
        made->level[i] = (struct CUarray_st){.magic = ARRAY_MAGIC, .shape = shape, .size = array_bytes(&shape)};
        sum += made->level[i].size;
        shape.width = halved(shape.width);
        shape.height = halved(shape.height);
        if (!(shape.flags & ARRAY_LAYERED))
            shape.depth = halved(shape.depth);
    }
    made->magic = ARRAY_MAGIC;
    made->levels = levels;
    result = backed(of, sum, &made->address);
    if (result) {
        free(made);
        return result;
    }
    *mipmap = made;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMipmappedArrayGetLevel(CUarray *array, CUmipmappedArray mipmap, unsigned level)
{
    GUARD;
    if (!mipmap || mipmap->magic != ARRAY_MAGIC || level >= mipmap->levels)
        return CUDA_ERROR_INVALID_VALUE;
    *array = &mipmap->level[level];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray mipmap)
{
    GUARD_CONTEXT;
    (void)context;
    if (!mipmap || mipmap->magic != ARRAY_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    struct allocation *behind = mipmap->address ? allocation_find(mipmap->address) : NULL;
    if (behind)
        memory_give(behind);
    mipmap->magic = 0;
    free(mipmap);
    return CUDA_SUCCESS;
}

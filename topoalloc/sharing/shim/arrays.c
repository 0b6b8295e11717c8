/* Arrays and mipmaps: the driver lays them out in tiles, so their size is bounded before and measured after. */
#include "driver.h"
#include "memory.h"
#include "process.h"

#define MEASURED_FROM (8 * MIB) /* below it the padding of tiles is less than one page */

static uint64_t format_bytes(int format)
{
    switch (format) {
    case 0x01: /* 8 bits */
    case 0x08:
    case 0xc0: /* normalised 8 bits, one to four channels in the format itself */
    case 0xc3:
        return 1;
    case 0x02: /* 16 bits */
    case 0x09:
    case 0x10:
        return 2;
    case 0x03: /* 32 bits */
    case 0x0a:
    case 0x20:
        return 4;
    default:
        return 8; /* packed, planar and block formats: none takes more for a texel and channel */
    }
}

static uint64_t product(uint64_t a, uint64_t b)
{
    return b && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

static uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    uint64_t channels = shape->channels ? shape->channels : 1;
    uint64_t row = product(product(shape->width ? shape->width : 1, channels), format_bytes(shape->format));
    uint64_t texels = product(shape->height ? shape->height : 1, shape->depth ? shape->depth : 1);
    return product(row, texels);
}

static uint64_t shape_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels)
{
    CUDA_ARRAY3D_DESCRIPTOR level = *shape;
    uint64_t sum = 0;
    if (shape->flags & (ARRAY_SPARSE | ARRAY_DEFERRED))
        return 0; /* what is mapped into it comes from cuMemCreate */
    for (unsigned int i = 0; i < (levels ? levels : 1) && i < 64; i++) {
        uint64_t bytes = level_bytes(&level);
        sum = sum > UINT64_MAX - bytes ? UINT64_MAX : sum + bytes;
        level.width = level.width > 1 ? level.width / 2 : 1;
        level.height = level.height > 1 ? level.height / 2 : level.height;
        if (!(shape->flags & (ARRAY_LAYERED | ARRAY_CUBEMAP)))
            level.depth = level.depth > 1 ? level.depth / 2 : level.depth;
    }
    return memory_taken(sum);
}

/* After the driver made it: written down, and undone where it turned out larger than there is room for. */
static int keep(enum pointer_space space, uint64_t handle, uint64_t taken, enum pointer_kind kind)
{
    struct pointer pointer = {handle, taken, memory_context(), kind};
    if (!pointers_put(space, pointer))
        return 0;
    if (taken < MEASURED_FROM || !memory_overdrawn())
        return 1;
    pointers_take(space, handle, &pointer);
    return 0;
}

static CUresult array_made(CUresult result, CUarray *array, uint64_t taken)
{
    if (result == CUDA_SUCCESS && keep(SPACE_ARRAY, (uint64_t)(uintptr_t)*array, taken, POINTER_ARRAY))
        return result;
    if (result == CUDA_SUCCESS && driver_hooked[HOOK_cuArrayDestroy])
        REAL(cuArrayDestroy)(*array);
    memory_discharge(taken, USAGE_DEVICE);
    return result == CUDA_SUCCESS ? memory_refused() : result;
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    NEED(cuArray3DCreate_v2);
    if (!shape || !process_limits_memory())
        return REAL(cuArray3DCreate_v2)(array, shape);
    uint64_t taken = shape_bytes(shape, 1);
    if (!memory_charge(taken, USAGE_DEVICE))
        return memory_refused();
    return array_made(REAL(cuArray3DCreate_v2)(array, shape), array, taken);
}

CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *shape)
{
    NEED(cuArray3DCreate);
    if (!shape || !process_limits_memory())
        return REAL(cuArray3DCreate)(array, shape);
    CUDA_ARRAY3D_DESCRIPTOR wide = {shape->width,  shape->height,   shape->depth,
                                    shape->format, shape->channels, shape->flags};
    uint64_t taken = shape_bytes(&wide, 1);
    if (!memory_charge(taken, USAGE_DEVICE))
        return memory_refused();
    return array_made(REAL(cuArray3DCreate)(array, shape), array, taken);
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *shape)
{
    NEED(cuArrayCreate_v2);
    if (!shape || !process_limits_memory())
        return REAL(cuArrayCreate_v2)(array, shape);
    CUDA_ARRAY3D_DESCRIPTOR wide = {shape->width, shape->height, 0, shape->format, shape->channels, 0};
    uint64_t taken = shape_bytes(&wide, 1);
    if (!memory_charge(taken, USAGE_DEVICE))
        return memory_refused();
    return array_made(REAL(cuArrayCreate_v2)(array, shape), array, taken);
}

CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *shape)
{
    NEED(cuArrayCreate);
    if (!shape || !process_limits_memory())
        return REAL(cuArrayCreate)(array, shape);
    CUDA_ARRAY3D_DESCRIPTOR wide = {shape->width, shape->height, 0, shape->format, shape->channels, 0};
    uint64_t taken = shape_bytes(&wide, 1);
    if (!memory_charge(taken, USAGE_DEVICE))
        return memory_refused();
    return array_made(REAL(cuArrayCreate)(array, shape), array, taken);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels)
{
    NEED(cuMipmappedArrayCreate);
    if (!shape || !process_limits_memory())
        return REAL(cuMipmappedArrayCreate)(array, shape, levels);
    uint64_t taken = shape_bytes(shape, levels);
    if (!memory_charge(taken, USAGE_DEVICE))
        return memory_refused();
    CUresult result = REAL(cuMipmappedArrayCreate)(array, shape, levels);
    if (result == CUDA_SUCCESS && keep(SPACE_MIPMAP, (uint64_t)(uintptr_t)*array, taken, POINTER_MIPMAP))
        return result;
    if (result == CUDA_SUCCESS && driver_hooked[HOOK_cuMipmappedArrayDestroy])
        REAL(cuMipmappedArrayDestroy)(*array);
    memory_discharge(taken, USAGE_DEVICE);
    return result == CUDA_SUCCESS ? memory_refused() : result;
}

static CUresult destroyed(CUresult result, enum pointer_space space, int known, const struct pointer *pointer)
{
    if (known && result == CUDA_SUCCESS)
        memory_discharge(pointer->bytes, USAGE_DEVICE);
    else if (known)
        pointers_put(space, *pointer);
    return result;
}

CUresult cuArrayDestroy(CUarray array)
{
    NEED(cuArrayDestroy);
    struct pointer pointer;
    int known = pointers_take(SPACE_ARRAY, (uint64_t)(uintptr_t)array, &pointer);
    return destroyed(REAL(cuArrayDestroy)(array), SPACE_ARRAY, known, &pointer);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    NEED(cuMipmappedArrayDestroy);
    struct pointer pointer;
    int known = pointers_take(SPACE_MIPMAP, (uint64_t)(uintptr_t)array, &pointer);
    return destroyed(REAL(cuMipmappedArrayDestroy)(array), SPACE_MIPMAP, known, &pointer);
}

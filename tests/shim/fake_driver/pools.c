/* Stream-ordered memory: pools that grow in steps of 32 MiB, and give back what lies above their threshold when the host
 * next waits for the device.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <string.h>

#define POOL_MAGIC UINT64_C(0x90010001)
#define STEP_BYTES ((uint64_t)32 << 20)

struct CUpool_st {
    uint64_t magic;
    CUmemoryPool next;
    uint64_t threshold, reserved, reserved_high, used, used_high;
    bool of_device_memory, doomed;
    unsigned live;
    int flags[4];
};

static CUmemoryPool pools;
static CUmemoryPool default_pool, current_pool;

static CUmemoryPool pool_new(bool of_device_memory)
{
    CUmemoryPool pool = calloc(1, sizeof *pool);
    pool->magic = POOL_MAGIC;
    pool->of_device_memory = of_device_memory;
    pool->flags[1] = pool->flags[2] = pool->flags[3] = 1;
    pool->next = pools;
    pools = pool;
    return pool;
}

CUmemoryPool pool_current(void)
{
    if (!default_pool)
        default_pool = pool_new(true);
    return current_pool ? current_pool : default_pool;
}

static void pool_shrink(CUmemoryPool pool, uint64_t keep)
{
    uint64_t floor = round_up(pool->used > keep ? pool->used : keep, STEP_BYTES);
    if (pool->reserved <= floor)
        return;
    if (pool->of_device_memory)
        gpu_give(pool->reserved - floor);
    pool->reserved = floor;
}

static void pool_end(CUmemoryPool pool)
{
    pool->used = 0;
    pool_shrink(pool, 0);
    for (CUmemoryPool *link = &pools; *link; link = &(*link)->next)
        if (*link == pool) {
            *link = pool->next;
            break;
        }
    pool->magic = 0;
    free(pool);
}

void pools_trim(void)
{
    for (CUmemoryPool pool = pools; pool; pool = pool->next)
        pool_shrink(pool, pool->threshold < pool->reserved ? pool->threshold : pool->reserved);
}

CUresult pool_allocate(CUmemoryPool pool, uint64_t size, CUdeviceptr *address)
{
    if (!size)
        return CUDA_ERROR_INVALID_VALUE;
    if (size > (UINT64_C(1) << 48))
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t taken = round_up(size, 512);
    uint64_t wanted = round_up(pool->used + taken, STEP_BYTES);
    if (wanted > pool->reserved) {
        if (pool->of_device_memory && !gpu_take(wanted - pool->reserved))
            return CUDA_ERROR_OUT_OF_MEMORY;
        pool->reserved = wanted;
    }
    pool->used += taken;
    pool->live++;
    if (pool->reserved > pool->reserved_high)
        pool->reserved_high = pool->reserved;
    if (pool->used > pool->used_high)
        pool->used_high = pool->used;
    *address = address_new(round_up(size, GRANULE_BYTES), GRANULE_BYTES);
    struct allocation *made = allocation_add(*address, size, POOLED);
    made->pool = pool;
    made->taken = taken;
    return CUDA_SUCCESS;
}

void pool_free(struct allocation *allocation)
{
    CUmemoryPool pool = allocation->pool;
    pool->used -= allocation->taken;
    pool->live--;
    address_gone(allocation->address, round_up(allocation->size, GRANULE_BYTES));
    if (pool->doomed && !pool->live)
        pool_end(pool);
}

/* --- allocation in the order of a stream ---------------------------------------------------------------------------- */

static CUresult allocate(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream handle)
{
    GUARD_CONTEXT;
    (void)context;
    CUstream stream = stream_of(handle);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    if (pool && pool->magic != POOL_MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture) {
        CUgraphNode node = graph_add(stream->capture, NODE_ALLOC, &stream->capture_last, stream->capture_last != NULL);
        stream->capture_last = node;
        return node_set_allocation(node, size, address);
    }
    CUresult result = stream_work(stream, 0);
    return result ? result : pool_allocate(pool ? pool : pool_current(), size, address);
}

static CUresult free_in_order(CUdeviceptr address, CUstream handle)
{
    GUARD_CONTEXT;
    (void)context;
    CUstream stream = stream_of(handle);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture) {
        CUgraphNode node = graph_add(stream->capture, NODE_FREE, &stream->capture_last, stream->capture_last != NULL);
        node_set_free(node, address);
        stream->capture_last = node;
        return CUDA_SUCCESS;
    }
    struct allocation *allocation = allocation_find(address);
    if (!allocation || allocation->kind == PITCHED)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = stream_work(stream, 0);
    return result ? result : memory_give(allocation);
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *address, size_t size, CUstream stream)
{
    return allocate(address, size, NULL, stream);
}

EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t size, CUstream stream)
{
    return allocate(address, size, NULL, per_thread(stream));
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream)
{
    return allocate(address, size, pool, stream);
}

EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream)
{
    return allocate(address, size, pool, per_thread(stream));
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    return free_in_order(address, stream);
}

EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
    return free_in_order(address, per_thread(stream));
}

/* --- pools ------------------------------------------------------------------------------------------------------- */

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    GUARD_CONTEXT;
    (void)context;
    *pool = pool_new(properties->location.type == LOCATION_DEVICE);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    GUARD;
    if (!pool || pool->magic != POOL_MAGIC || pool == default_pool)
        return CUDA_ERROR_INVALID_VALUE;
    if (pool == current_pool)
        current_pool = NULL;
    pool->doomed = true;
    if (!pool->live)
        pool_end(pool);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    GUARD;
    if (!pool || pool->magic != POOL_MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    pool_shrink(pool, keep);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count)
{
    (void)pool, (void)access, (void)count;
    GUARD;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    GUARD;
    if (!pool || pool->magic != POOL_MAGIC || attribute < 1 || attribute > POOL_USED_HIGH)
        return CUDA_ERROR_INVALID_VALUE;
    const uint64_t values[] = {pool->threshold, pool->reserved, pool->reserved_high, pool->used, pool->used_high};
    if (attribute < POOL_RELEASE_THRESHOLD)
        *(int *)value = pool->flags[attribute];
    else
        memcpy(value, &values[attribute - POOL_RELEASE_THRESHOLD], sizeof *values);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    GUARD;
    if (!pool || pool->magic != POOL_MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute >= 1 && attribute < POOL_RELEASE_THRESHOLD)
        pool->flags[attribute] = *(int *)value;
    else if (attribute == POOL_RELEASE_THRESHOLD)
        memcpy(&pool->threshold, value, sizeof pool->threshold);
    else if (attribute == POOL_RESERVED_HIGH)
        pool->reserved_high = pool->reserved;
    else if (attribute == POOL_USED_HIGH)
        pool->used_high = pool->used;
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    GUARD;
    pool_current();
    *pool = default_pool;
    return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    GUARD;
    *pool = pool_current();
    return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    GUARD;
    if (!pool || pool->magic != POOL_MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    current_pool = pool;
    return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, const CUmemLocation *location, int type)
{
    (void)type;
    return location->type == LOCATION_DEVICE ? cuDeviceGetDefaultMemPool(pool, location->id) : CUDA_ERROR_NOT_SUPPORTED;
}

EXPORT CUresult cuMemGetMemPool(CUmemoryPool *pool, const CUmemLocation *location, int type)
{
    (void)type;
    return location->type == LOCATION_DEVICE ? cuDeviceGetMemPool(pool, location->id) : CUDA_ERROR_NOT_SUPPORTED;
}

EXPORT CUresult cuMemSetMemPool(const CUmemLocation *location, int type, CUmemoryPool pool)
{
    (void)type;
    return location->type == LOCATION_DEVICE ? cuDeviceSetMemPool(location->id, pool) : CUDA_ERROR_NOT_SUPPORTED;
}

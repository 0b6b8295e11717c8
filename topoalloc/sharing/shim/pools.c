/* Stream-ordered allocation. A pool takes memory from the device in large steps and hands pieces out, so a pool is
 * charged what it holds: at the call as far as the call can make it grow, and anew from its own figure. */
#include "capture.h"
#include "driver.h"
#include "local_lock.h"
#include "measure.h"
#include "memory.h"
#include "process.h"

#define POOLS_MAX 1024u /* of one process; the pointers of further ones are charged one by one */
#define GROWTH_STEP (32 * MIB) /* the step in which the driver's pools grow */
#define GROWTH_SPARE GROWTH_STEP /* their free pieces may not fit together, and then they grow by more than is missing */
#define LOOK_EVERY 16u         /* small allocations after which a pool is asked for its figure although they fit */
#define NO_POOL UINT64_MAX

struct pool {
    CUmemoryPool handle; /* NULL: free */
    uint64_t used_bytes;    /* of pointers not freed yet */
    uint64_t charged_bytes; /* at least what it holds */
    unsigned int calls;
    int extended;           /* charged for more than it was known to hold */
    int on_host;            /* it takes nothing of the device */
    int destroyed; /* its figure cannot be asked any more; it ends with its last pointer */
    int closing;   /* the driver is destroying it: the same, and what it held is not free yet */
};

static struct local_lock lock;
static struct pool pools[POOLS_MAX];
static unsigned int pools_known;
static _Atomic uintptr_t default_pool; /* of the only device; 0: ask */

static uint64_t reserved(const struct pool *pool)
{
    uint64_t bytes = 0;
    if (pool->on_host)
        return 0;
    if (pool->closing)
        return pool->charged_bytes;
    if (pool->destroyed || !DRIVER_HAS(cuMemPoolGetAttribute) ||
        DRIVER(cuMemPoolGetAttribute)(pool->handle, POOL_RESERVED_BYTES, &bytes) != CUDA_SUCCESS)
        return pool->used_bytes;
    return bytes;
}

static uint64_t position_of(CUmemoryPool handle)
{
    uint64_t empty = NO_POOL;
    for (unsigned int i = 0; i < pools_known; i++) {
        if (pools[i].handle == handle && !pools[i].destroyed && !pools[i].closing)
            return i;
        if (!pools[i].handle)
            empty = i;
    }
    if (empty == NO_POOL && pools_known < POOLS_MAX)
        empty = pools_known++;
    if (empty != NO_POOL)
        pools[empty] = (struct pool){.handle = handle};
    return empty;
}

/* Under `lock`: what was charged beyond what it holds is given back. */
static int settle(struct pool *pool)
{
    uint64_t holds = reserved(pool);
    if (holds < pool->used_bytes && pool->destroyed)
        holds = pool->used_bytes;
    uint64_t before = pool->charged_bytes;
    if (holds < before)
        memory_discharge(before - holds, USAGE_DEVICE);
    else if (holds > before && !usage_reserve(holds - before, UINT64_MAX, USAGE_DEVICE))
        holds = before; /* the ledger is not to be had now: what is not charged must not be given back later */
    pool->charged_bytes = holds; /* perhaps more than is allowed: it is taken, and the next call is refused */
    if (pool->destroyed && pool->used_bytes == 0)
        pool->handle = NULL;
    return holds != before;
}

int pools_refresh(void)
{
    int changed = 0;
    local_lock_take(&lock);
    for (unsigned int i = 0; i < pools_known; i++)
        if (pools[i].handle)
            changed |= settle(&pools[i]);
    local_lock_drop(&lock);
    return changed;
}

/* Under `lock`: 1 where the pool may grow by this allocation. Others' pools can have shrunk by now, so all are asked
 * before it is refused; `memory_charge` would come back here and wait for `lock`. */
static int charge_growth(struct pool *pool, uint64_t bytes)
{
    uint64_t limit = atomic_load(&process_limits.memory_bytes);
    if (bytes > UINT64_MAX - GROWTH_STEP - pool->used_bytes)
        return 0; /* no pool is that large, and the sums below would begin again at zero */
    uint64_t wanted = pool->used_bytes + bytes;
    if (wanted <= pool->charged_bytes || pool->on_host)
        return 1;
    uint64_t step = wanted - pool->charged_bytes;
    uint64_t generous = (step + GROWTH_STEP - 1) / GROWTH_STEP * GROWTH_STEP + GROWTH_SPARE;
    for (int asked = 0; asked < 2; asked++) {
        if (usage_reserve(generous, limit, USAGE_DEVICE)) {
            pool->charged_bytes += generous;
            pool->extended = 1;
            return 1;
        }
        for (unsigned int i = 0; i < pools_known && !asked; i++)
            if (pools[i].handle)
                settle(&pools[i]);
        if (wanted <= pool->charged_bytes)
            return 1;
        step = wanted - pool->charged_bytes;
        generous = (step + GROWTH_STEP - 1) / GROWTH_STEP * GROWTH_STEP + GROWTH_SPARE;
    }
    return 0;
}

/* `used_bytes` is raised before the driver is called and lowered again if it fails. NO_POOL: charged by itself. */
static int try_admit(CUmemoryPool handle, uint64_t bytes, uint64_t *position)
{
    local_lock_take(&lock);
    *position = position_of(handle);
    int admitted = 0;
    if (*position != NO_POOL) {
        admitted = charge_growth(&pools[*position], bytes);
        if (admitted)
            pools[*position].used_bytes += bytes;
    }
    local_lock_drop(&lock);
    return *position == NO_POOL ? memory_charge(bytes, USAGE_DEVICE) : admitted;
}

static int admit(CUmemoryPool handle, uint64_t bytes, uint64_t *position)
{
    measure_if_nearly_full(bytes > UINT64_MAX / 2 ? bytes : bytes + GROWTH_STEP + GROWTH_SPARE);
    return try_admit(handle, bytes, position) || (measure_now() && try_admit(handle, bytes, position)) ||
           (measure_again() && try_admit(handle, bytes, position));
}

/* 1: settled, and the container is now over its limit: the pool grew by more than was foreseen. */
static int settle_after(uint64_t position, uint64_t bytes, CUresult result)
{
    if (position == NO_POOL) {
        if (result != CUDA_SUCCESS)
            memory_discharge(bytes, USAGE_DEVICE);
        return 0;
    }
    int over = 0;
    local_lock_take(&lock);
    struct pool *pool = &pools[position];
    int grew = pool->extended && result == CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        pool->used_bytes -= bytes;
    /* Its free pieces may be too small for a large one, and then it grows although there was room by count. */
    if (pool->extended || result != CUDA_SUCCESS || bytes > MIB || ++pool->calls % LOOK_EVERY == 0) {
        pool->extended = 0;
        settle(pool);
        over = usage_total() > atomic_load(&process_limits.memory_bytes);
    }
    local_lock_drop(&lock);
    /* The driver can take more for a pool than the pool's own figure says. */
    return over || (grew && measure_is_nearly_full() && memory_overdrawn());
}

void pools_forget(void)
{
    local_lock_forget(&lock);
    pools_known = 0;
    atomic_store(&default_pool, 0);
}

int pools_give_back(const struct pointer *pointer)
{
    if (pointer->kind != POINTER_POOL)
        return 0;
    if (pointer->owner == NO_POOL)
        return memory_discharge(pointer->bytes, USAGE_DEVICE), 1;
    local_lock_take(&lock);
    struct pool *pool = &pools[pointer->owner];
    pool->used_bytes -= pointer->bytes < pool->used_bytes ? pointer->bytes : pool->used_bytes;
    if (pool->destroyed)
        settle(pool);
    local_lock_drop(&lock);
    return 1;
}

static CUmemoryPool pool_of_device(void)
{
    uintptr_t known = atomic_load_explicit(&default_pool, memory_order_relaxed);
    CUmemoryPool pool = (CUmemoryPool)known;
    CUdevice device = 0;
    int devices = 0;
    if (known)
        return pool;
    if (!DRIVER_HAS(cuDeviceGetMemPool) || !DRIVER_HAS(cuCtxGetDevice) || DRIVER(cuCtxGetDevice)(&device) != CUDA_SUCCESS ||
        DRIVER(cuDeviceGetMemPool)(&pool, device) != CUDA_SUCCESS)
        return NULL;
    if (DRIVER_HAS(cuDeviceGetCount) && DRIVER(cuDeviceGetCount)(&devices) == CUDA_SUCCESS && devices == 1)
        atomic_store_explicit(&default_pool, (uintptr_t)pool, memory_order_relaxed);
    return pool;
}

typedef CUresult (*take_function)(CUdeviceptr *, size_t, CUmemoryPool, CUstream, int);

static CUresult take(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream, take_function driver,
                     int named)
{
    uint64_t taken = memory_taken(bytes), position;
    /* In a capture it becomes a node of the graph, whose memory is charged when that is instantiated. */
    if (!pool || capture_has(stream))
        return driver(pointer, bytes, pool, stream, named);
    if (!admit(pool, taken, &position))
        return memory_refused();
    CUresult result = driver(pointer, bytes, pool, stream, named);
    int over = settle_after(position, taken, result);
    struct pointer entry = {result == CUDA_SUCCESS ? *pointer : 0, taken, position, POINTER_POOL};
    if (result != CUDA_SUCCESS || (!over && pointers_put(SPACE_ADDRESS, entry)))
        return result;
    if (driver_hooked[HOOK_cuMemFreeAsync])
        REAL(cuMemFreeAsync)(*pointer, stream);
    pools_give_back(&entry);
    /* A pool that keeps what it has would keep what it grew by as well. */
    if (DRIVER_HAS(cuStreamSynchronize) && driver_hooked[HOOK_cuMemPoolTrimTo] &&
        DRIVER(cuStreamSynchronize)(stream) == CUDA_SUCCESS)
        REAL(cuMemPoolTrimTo)(pool, 0);
    pools_refresh();
    return memory_refused();
}

static CUresult take_legacy(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream, int named)
{
    return named ? REAL(cuMemAllocFromPoolAsync)(pointer, bytes, pool, stream)
                 : REAL(cuMemAllocAsync)(pointer, bytes, stream);
}

static CUresult take_per_thread(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream, int named)
{
    CUstream given = stream == STREAM_PER_THREAD ? NULL : stream;
    return named ? REAL(cuMemAllocFromPoolAsync_ptsz)(pointer, bytes, pool, given)
                 : REAL(cuMemAllocAsync_ptsz)(pointer, bytes, given);
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    NEED(cuMemAllocAsync);
    if (!process_limits_memory())
        return REAL(cuMemAllocAsync)(pointer, bytes, stream);
    return take(pointer, bytes, pool_of_device(), stream, take_legacy, 0);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    NEED(cuMemAllocAsync_ptsz);
    if (!process_limits_memory())
        return REAL(cuMemAllocAsync_ptsz)(pointer, bytes, stream);
    return take(pointer, bytes, pool_of_device(), stream ? stream : STREAM_PER_THREAD, take_per_thread, 0);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    NEED(cuMemAllocFromPoolAsync);
    if (!process_limits_memory())
        return REAL(cuMemAllocFromPoolAsync)(pointer, bytes, pool, stream);
    return take(pointer, bytes, pool, stream, take_legacy, 1);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    NEED(cuMemAllocFromPoolAsync_ptsz);
    if (!process_limits_memory())
        return REAL(cuMemAllocFromPoolAsync_ptsz)(pointer, bytes, pool, stream);
    return take(pointer, bytes, pool, stream ? stream : STREAM_PER_THREAD, take_per_thread, 1);
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    NEED(cuMemPoolCreate);
    CUresult result = REAL(cuMemPoolCreate)(pool, properties);
    if (result == CUDA_SUCCESS && properties && properties->location.type != LOCATION_DEVICE) {
        local_lock_take(&lock);
        uint64_t position = position_of(*pool);
        if (position != NO_POOL)
            pools[position].on_host = 1;
        local_lock_drop(&lock);
    }
    return result;
}

static uint64_t begin_closing(CUmemoryPool handle)
{
    uint64_t position = NO_POOL;
    local_lock_take(&lock);
    for (unsigned int i = 0; handle && i < pools_known && position == NO_POOL; i++)
        if (pools[i].handle == handle && !pools[i].destroyed && !pools[i].closing)
            position = i;
    if (position != NO_POOL)
        pools[position].closing = 1;
    local_lock_drop(&lock);
    return position;
}

CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
    NEED(cuMemPoolDestroy);
    /* Another thread, short of memory, asks all pools for their figures; and the next pool may get this one's address. */
    uint64_t position = begin_closing(handle);
    CUresult result = REAL(cuMemPoolDestroy)(handle);
    local_lock_take(&lock);
    if (position != NO_POOL) {
        pools[position].closing = 0;
        pools[position].destroyed = result == CUDA_SUCCESS;
        settle(&pools[position]);
    }
    local_lock_drop(&lock);
    return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t kept_bytes)
{
    NEED(cuMemPoolTrimTo);
    CUresult result = REAL(cuMemPoolTrimTo)(pool, kept_bytes);
    if (result == CUDA_SUCCESS)
        pools_refresh();
    return result;
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    NEED(cuDeviceSetMemPool);
    CUresult result = REAL(cuDeviceSetMemPool)(device, pool);
    atomic_store(&default_pool, 0);
    return result;
}

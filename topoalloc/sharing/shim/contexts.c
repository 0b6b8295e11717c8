/* What the driver takes by itself: contexts, modules, and the stacks and heaps of kernels. */
#include "driver.h"
#include "local_lock.h"
#include "measure.h"
#include "memory.h"
#include "process.h"
#include "timing.h"

/* ---- contexts ---- */

/* Whoever finds the primary context inactive makes it, and others wait as they would in the driver. */
static struct local_lock making_primary;

void contexts_forget(void)
{
    local_lock_forget(&making_primary);
}

static CUresult made(CUresult result)
{
    if (result != CUDA_SUCCESS)
        measure_context_gone();
    else
        process_watch();
    return result;
}

#define CREATE(name, parameters, ...)            \
    CUresult name parameters                     \
    {                                            \
        NEED(name);                              \
        process_ensure();                        \
        if (!measure_context_made())             \
            return memory_refused();             \
        return made(REAL(name)(__VA_ARGS__));    \
    }

CREATE(cuCtxCreate, (CUcontext * context, unsigned int flags, CUdevice device), context, flags, device)
CREATE(cuCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice device), context, flags, device)
CREATE(cuCtxCreate_v3, (CUcontext * context, void *affinity, int count, unsigned int flags, CUdevice device), context,
       affinity, count, flags, device)
CREATE(cuCtxCreate_v4, (CUcontext * context, void *parameters, unsigned int flags, CUdevice device), context,
       parameters, flags, device)
CREATE(cuGreenCtxCreate, (CUgreenCtx * context, CUdevResourceDesc resources, CUdevice device, unsigned int flags),
       context, resources, device, flags)

static int primary_is_active(CUdevice device)
{
    unsigned int flags;
    int active = 0;
    return DRIVER_HAS(cuDevicePrimaryCtxGetState) &&
           DRIVER(cuDevicePrimaryCtxGetState)(device, &flags, &active) == CUDA_SUCCESS && active;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    NEED(cuDevicePrimaryCtxRetain);
    process_ensure();
    if (primary_is_active(device))
        return REAL(cuDevicePrimaryCtxRetain)(context, device);
    local_lock_take(&making_primary);
    CUresult result;
    if (primary_is_active(device))
        result = REAL(cuDevicePrimaryCtxRetain)(context, device);
    else if (measure_context_made())
        result = made(REAL(cuDevicePrimaryCtxRetain)(context, device));
    else
        result = memory_refused();
    local_lock_drop(&making_primary);
    return result;
}

static enum pointer_space space_of(int limit)
{
    return (enum pointer_space)(SPACE_LIMITS + limit);
}

/* What stacks and heaps of a context were charged: each context has its own. */
static uint64_t limits_taken_back(uint64_t context)
{
    struct pointer charged;
    uint64_t sum = 0;
    for (int limit = LIMIT_STACK_BYTES; limit <= LIMIT_HEAP_BYTES; limit++)
        if (pointers_take(space_of(limit), context, &charged))
            sum += charged.bytes;
    return sum;
}

/* Allocations of a context end with it, without a free. */
static void context_gone(uint64_t context)
{
    uint64_t managed = 0;
    uint64_t bytes = pointers_take_owned(context, &managed);
    memory_discharge(bytes, USAGE_DEVICE);
    memory_discharge(managed, USAGE_MANAGED);
    measure_promised(limits_taken_back(context), 0);
    measure_context_gone();
    measure_now();
}

CUresult cuGreenCtxDestroy(CUgreenCtx context)
{
    NEED(cuGreenCtxDestroy);
    CUresult result = REAL(cuGreenCtxDestroy)(context);
    if (result == CUDA_SUCCESS)
        measure_context_gone();
    return result;
}

static uint64_t primary_context(CUdevice device)
{
    CUcontext context = NULL;
    if (!primary_is_active(device) || REAL(cuDevicePrimaryCtxRetain)(&context, device) != CUDA_SUCCESS)
        return 0;
    if (driver_hooked[HOOK_cuDevicePrimaryCtxRelease_v2])
        REAL(cuDevicePrimaryCtxRelease_v2)(device);
    else
        REAL(cuDevicePrimaryCtxRelease)(device);
    return (uint64_t)(uintptr_t)context;
}

/* The next primary context often has the same address, so the old one's events are forgotten before it can be made. */
#define END_PRIMARY(name)                                                    \
    CUresult name(CUdevice device)                                           \
    {                                                                        \
        NEED(name);                                                          \
        local_lock_take(&making_primary);                                    \
        uint64_t context = primary_context(device);                          \
        CUresult result = REAL(name)(device);                                \
        if (context && result == CUDA_SUCCESS && !primary_is_active(device)) { \
            timing_context_gone(context);                                    \
            context_gone(context);                                           \
        }                                                                    \
        local_lock_drop(&making_primary);                                    \
        return result;                                                       \
    }

END_PRIMARY(cuDevicePrimaryCtxRelease)
END_PRIMARY(cuDevicePrimaryCtxRelease_v2)
END_PRIMARY(cuDevicePrimaryCtxReset)
END_PRIMARY(cuDevicePrimaryCtxReset_v2)

CUresult cuCtxDestroy_v2(CUcontext context)
{
    NEED(cuCtxDestroy_v2);
    timing_context_gone((uint64_t)(uintptr_t)context); /* before another context can have its address */
    CUresult result = REAL(cuCtxDestroy_v2)(context);
    if (result == CUDA_SUCCESS)
        context_gone((uint64_t)(uintptr_t)context);
    return result;
}

CUresult cuCtxDestroy(CUcontext context)
{
    NEED(cuCtxDestroy);
    timing_context_gone((uint64_t)(uintptr_t)context);
    CUresult result = REAL(cuCtxDestroy)(context);
    if (result == CUDA_SUCCESS)
        context_gone((uint64_t)(uintptr_t)context);
    return result;
}

/* ---- stacks and heaps: taken at a later launch, so charged when they are asked for ---- */

#define HEAP_TABLES 20 /* one part in so many is the heap's own: 3.9 % on an H200 */
#define STACK_USUAL_BYTES UINT64_C(1024) /* part of what a context takes */

static uint64_t limit_bytes(int limit, size_t value)
{
    CUdevice device = 0;
    int processors = 0, threads = 0;
    if (limit != LIMIT_STACK_BYTES) {
        uint64_t kept = value / HEAP_TABLES; /* eight MiB are part of what a context takes */
        return value <= 8 * MIB ? 0 : value > UINT64_MAX - kept ? UINT64_MAX : value - 8 * MIB + kept;
    }
    if (value <= STACK_USUAL_BYTES || !DRIVER_HAS(cuCtxGetDevice) || !DRIVER_HAS(cuDeviceGetAttribute) ||
        DRIVER(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
        return 0;
    DRIVER(cuDeviceGetAttribute)(&processors, ATTRIBUTE_PROCESSORS, device);
    DRIVER(cuDeviceGetAttribute)(&threads, ATTRIBUTE_THREADS_PER_PROCESSOR, device);
    uint64_t resident = (uint64_t)(processors > 0 ? processors : 0) * (uint64_t)(threads > 0 ? threads : 0);
    uint64_t more = value - STACK_USUAL_BYTES;
    return resident && more > UINT64_MAX / resident ? UINT64_MAX : more * resident;
}

CUresult cuCtxSetLimit(int limit, size_t value)
{
    NEED(cuCtxSetLimit);
    if (limit < LIMIT_STACK_BYTES || limit > LIMIT_HEAP_BYTES || !process_limits_memory())
        return REAL(cuCtxSetLimit)(limit, value);
    struct pointer charged = {memory_context(), 0, 0, POINTER_LIMIT};
    (void)pointers_get(space_of(limit), charged.key, &charged);
    uint64_t wanted = limit_bytes(limit, value), had = charged.bytes;
    if (wanted > had && !memory_charge(wanted - had, USAGE_IMPLICIT))
        return memory_refused();
    CUresult result = REAL(cuCtxSetLimit)(limit, value);
    if (result != CUDA_SUCCESS) {
        memory_discharge(wanted > had ? wanted - had : 0, USAGE_IMPLICIT);
        return result;
    }
    measure_promised(had, wanted);
    charged.bytes = wanted;
    (void)pointers_put(space_of(limit), charged); /* unnoted it stays charged to the end of the process */
    return result;
}

/* ---- modules: looked at right after, and unloaded where they do not fit ---- */

#define LARGE_MODULE_BYTES (8 * MIB) /* of one, or of several smaller ones since the process was measured */

/* What the whole card has free: cheap, and enough to see whether a module may be large. 0: cannot be told. */
static uint64_t free_on_card(void)
{
    size_t free = 0, total = 0;
    if (!process_limits_memory() || !driver_hooked[HOOK_cuMemGetInfo_v2] ||
        REAL(cuMemGetInfo_v2)(&free, &total) != CUDA_SUCCESS)
        return 0;
    return free;
}

static _Atomic uint64_t unmeasured_bytes; /* what smaller modules took, one after the other */

static int too_large(uint64_t free_before)
{
    uint64_t limit = atomic_load(&process_limits.memory_bytes), total = usage_total();
    int nearly_full = total > limit || limit - total < LARGE_MODULE_BYTES;
    uint64_t free_after = free_on_card(), took = free_before > free_after ? free_before - free_after : 0;
    if (process_limits_memory())
        measure_saw(took);
    if (!process_limits_memory() ||
        (atomic_fetch_add(&unmeasured_bytes, took) + took < LARGE_MODULE_BYTES && !nearly_full))
        return 0;
    atomic_store(&unmeasured_bytes, 0);
    return memory_overdrawn();
}

static CUresult loaded(CUresult result, CUmodule *module, uint64_t free_before)
{
    if (result != CUDA_SUCCESS || !too_large(free_before))
        return result;
    if (DRIVER_HAS(cuModuleUnload))
        DRIVER(cuModuleUnload)(*module);
    measure_now();
    return memory_refused();
}

#define LOAD_MODULE(name, parameters, ...)                           \
    CUresult name parameters                                         \
    {                                                                \
        NEED(name);                                                  \
        uint64_t free_before = free_on_card();                       \
        return loaded(REAL(name)(__VA_ARGS__), module, free_before); \
    }

LOAD_MODULE(cuModuleLoad, (CUmodule * module, const char *file), module, file)
LOAD_MODULE(cuModuleLoadData, (CUmodule * module, const void *image), module, image)
LOAD_MODULE(cuModuleLoadDataEx,
            (CUmodule * module, const void *image, unsigned int count, int *options, void **values), module, image,
            count, options, values)
LOAD_MODULE(cuModuleLoadFatBinary, (CUmodule * module, const void *image), module, image)

static CUresult library_loaded(CUresult result, CUlibrary *library, uint64_t free_before)
{
    if (result != CUDA_SUCCESS || !too_large(free_before))
        return result;
    if (DRIVER_HAS(cuLibraryUnload))
        DRIVER(cuLibraryUnload)(*library);
    measure_now();
    return memory_refused();
}

#define LOAD_LIBRARY(name, parameters, ...)                                   \
    CUresult name parameters                                                  \
    {                                                                         \
        NEED(name);                                                           \
        uint64_t free_before = free_on_card();                                \
        return library_loaded(REAL(name)(__VA_ARGS__), library, free_before); \
    }

LOAD_LIBRARY(cuLibraryLoadData,
             (CUlibrary * library, const void *code, int *jit, void **jit_values, unsigned int jit_count, int *options,
              void **values, unsigned int count),
             library, code, jit, jit_values, jit_count, options, values, count)
LOAD_LIBRARY(cuLibraryLoadFromFile,
             (CUlibrary * library, const char *file, int *jit, void **jit_values, unsigned int jit_count, int *options,
              void **values, unsigned int count),
             library, file, jit, jit_values, jit_count, options, values, count)

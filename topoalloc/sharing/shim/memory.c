/* Explicit allocations: the calls that name the bytes they want. */
#include "memory.h"

#include "driver.h"
#include "measure.h"
#include "process.h"

#include <errno.h>

#define PAGE (2 * MIB)
#define SMALL_STEP UINT64_C(512)
#define MEASURE_TRIES 5

uint64_t memory_taken(uint64_t bytes)
{
    uint64_t step = bytes > MIB ? PAGE : SMALL_STEP;
    uint64_t taken = bytes > UINT64_MAX - step ? UINT64_MAX : (bytes + step - 1) / step * step;
    /* What is left of a page when no further one of the same size fits is charged to those in it. */
    return taken && taken <= MIB ? PAGE / (PAGE / taken) : taken;
}

CUresult memory_refused(void)
{
    struct usage_slot *own = atomic_load(&usage_own);
    if (own)
        atomic_fetch_add_explicit(&own->refused, 1, memory_order_relaxed);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

int memory_charge(uint64_t bytes, enum usage_kind kind)
{
    uint64_t limit = atomic_load_explicit(&process_limits.memory_bytes, memory_order_relaxed);
    measure_if_nearly_full(bytes);
    if (usage_reserve(bytes, limit, kind))
        return 1;
    struct usage_slot *own = atomic_load(&usage_own);
    int fresher = pools_refresh();
    fresher |= graphs_refresh();
    fresher |= measure_now();
    if (bytes <= limit && fresher && usage_reserve(bytes, limit, kind))
        return 1;
    if (bytes <= limit && measure_again() && usage_reserve(bytes, limit, kind))
        return 1;
    if (own)
        atomic_store_explicit(&own->refused_bytes, bytes, memory_order_relaxed);
    return 0;
}

void memory_discharge(uint64_t bytes, enum usage_kind kind)
{
    usage_release(bytes, kind);
}

uint64_t memory_context(void)
{
    CUcontext context = NULL;
    if (!DRIVER_HAS(cuCtxGetCurrent) || DRIVER(cuCtxGetCurrent)(&context) != CUDA_SUCCESS)
        return 0;
    return (uint64_t)(uintptr_t)context;
}

int memory_overdrawn(void)
{
    uint64_t limit = atomic_load(&process_limits.memory_bytes);
    int measured = 0; /* the agent may be late, and other threads may allocate while it is asked */
    for (int tried = 0; tried < MEASURE_TRIES && !measured; tried++)
        measured = measure_now();
    return measured && usage_total() > limit && !(measure_again() && usage_total() <= limit);
}

/* Writes a charged allocation down; 0 where it cannot be, and then it must not stay. */
static int noted(CUdeviceptr address, uint64_t taken, enum pointer_kind kind)
{
    struct pointer pointer = {address, taken, memory_context(), kind};
    return pointers_put(SPACE_ADDRESS, pointer);
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    NEED(cuMemAlloc_v2);
    if (!process_limits_memory())
        return REAL(cuMemAlloc_v2)(pointer, bytes);
    uint64_t taken = memory_taken(bytes);
    if (!memory_charge(taken, USAGE_DEVICE))
        return memory_refused();
    CUresult result = REAL(cuMemAlloc_v2)(pointer, bytes);
    if (result == CUDA_SUCCESS && noted(*pointer, taken, POINTER_DEVICE))
        return result;
    if (result == CUDA_SUCCESS && driver_hooked[HOOK_cuMemFree_v2])
        REAL(cuMemFree_v2)(*pointer);
    memory_discharge(taken, USAGE_DEVICE);
    return result == CUDA_SUCCESS ? memory_refused() : result;
}

CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned int bytes)
{
    NEED(cuMemAlloc);
    if (!process_limits_memory())
        return REAL(cuMemAlloc)(pointer, bytes);
    uint64_t taken = memory_taken(bytes);
    if (!memory_charge(taken, USAGE_DEVICE))
        return memory_refused();
    CUresult result = REAL(cuMemAlloc)(pointer, bytes);
    if (result != CUDA_SUCCESS || !noted(*pointer, taken, POINTER_DEVICE))
        memory_discharge(taken, USAGE_DEVICE);
    return result;
}

/* Rows are padded to what the hardware wants; no documented step is larger than this. */
#define PITCH_STEP UINT64_C(512)

static uint64_t pitched_bytes(uint64_t width, uint64_t height)
{
    if (width > UINT64_MAX - PITCH_STEP)
        return UINT64_MAX;
    uint64_t pitch = (width + PITCH_STEP - 1) / PITCH_STEP * PITCH_STEP;
    return height && pitch > UINT64_MAX / height ? UINT64_MAX : pitch * height;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned int element)
{
    NEED(cuMemAllocPitch_v2);
    if (!process_limits_memory())
        return REAL(cuMemAllocPitch_v2)(pointer, pitch, width, height, element);
    uint64_t taken = memory_taken(pitched_bytes(width, height));
    if (!memory_charge(taken, USAGE_DEVICE))
        return memory_refused();
    CUresult result = REAL(cuMemAllocPitch_v2)(pointer, pitch, width, height, element);
    uint64_t truly = result == CUDA_SUCCESS ? memory_taken((uint64_t)*pitch * height) : 0;
    if (truly < taken)
        memory_discharge(taken - truly, USAGE_DEVICE);
    if (truly > taken && memory_charge(truly - taken, USAGE_DEVICE))
        taken = truly;
    if (result == CUDA_SUCCESS && truly <= taken && noted(*pointer, truly, POINTER_DEVICE))
        return result;
    if (result == CUDA_SUCCESS && driver_hooked[HOOK_cuMemFree_v2])
        REAL(cuMemFree_v2)(*pointer);
    memory_discharge(truly < taken ? truly : taken, USAGE_DEVICE);
    return result == CUDA_SUCCESS ? memory_refused() : result;
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned int *pitch, unsigned int width, unsigned int height,
                         unsigned int element)
{
    NEED(cuMemAllocPitch);
    if (!process_limits_memory())
        return REAL(cuMemAllocPitch)(pointer, pitch, width, height, element);
    uint64_t taken = memory_taken(pitched_bytes(width, height));
    if (!memory_charge(taken, USAGE_DEVICE))
        return memory_refused();
    CUresult result = REAL(cuMemAllocPitch)(pointer, pitch, width, height, element);
    if (result != CUDA_SUCCESS || !noted(*pointer, taken, POINTER_DEVICE))
        memory_discharge(taken, USAGE_DEVICE);
    return result;
}

#define MANAGED_TABLES UINT64_C(40) /* one part in so many: page tables and what is kept per block, 2.1 % on an H200 */

/* Charged whole although pages may lie in the host: they come to the device as they are touched. */
CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags)
{
    NEED(cuMemAllocManaged);
    if (!process_limits_memory())
        return REAL(cuMemAllocManaged)(pointer, bytes, flags);
    uint64_t taken = memory_taken(bytes);
    taken = taken > UINT64_MAX / 2 ? UINT64_MAX : taken + taken / MANAGED_TABLES;
    if (!memory_charge(taken, USAGE_MANAGED))
        return memory_refused();
    CUresult result = REAL(cuMemAllocManaged)(pointer, bytes, flags);
    if (result == CUDA_SUCCESS && noted(*pointer, taken, POINTER_MANAGED))
        return result;
    if (result == CUDA_SUCCESS && driver_hooked[HOOK_cuMemFree_v2])
        REAL(cuMemFree_v2)(*pointer);
    memory_discharge(taken, USAGE_MANAGED);
    return result == CUDA_SUCCESS ? memory_refused() : result;
}

/* Whatever call made the pointer, this one may free it. An unknown one is the driver's to judge. */
static CUresult freed(CUresult result, int known, const struct pointer *pointer)
{
    if (!known)
        return result;
    if (result != CUDA_SUCCESS) {
        pointers_put(SPACE_ADDRESS, *pointer);
        return result;
    }
    if (!pools_give_back(pointer))
        memory_discharge(pointer->bytes, pointer->kind == POINTER_MANAGED ? USAGE_MANAGED : USAGE_DEVICE);
    return result;
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
    NEED(cuMemFree_v2);
    struct pointer pointer;
    /* Taken out first: once the driver has freed it, another thread may be given the same address. */
    int known = pointers_take(SPACE_ADDRESS, address, &pointer);
    return freed(REAL(cuMemFree_v2)(address), known, &pointer);
}

CUresult cuMemFree(CUdeviceptr_v1 address)
{
    NEED(cuMemFree);
    struct pointer pointer;
    int known = pointers_take(SPACE_ADDRESS, address, &pointer);
    return freed(REAL(cuMemFree)(address), known, &pointer);
}

static CUresult free_in_stream(CUdeviceptr address, CUstream stream, cuMemFreeAsync_function real)
{
    struct pointer pointer;
    int known = pointers_take(SPACE_ADDRESS, address, &pointer);
    return freed(real(address, stream), known, &pointer);
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    NEED(cuMemFreeAsync);
    return free_in_stream(address, stream, REAL(cuMemFreeAsync));
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
    NEED(cuMemFreeAsync_ptsz);
    return free_in_stream(address, stream, REAL(cuMemFreeAsync_ptsz));
}

/* What programs are told of the memory: the container's share, and what is left of it. */
#include "driver.h"
#include "memory.h"
#include "process.h"

static uint64_t limit_now(void)
{
    return atomic_load(&process_limits.memory_bytes);
}

static uint64_t left(uint64_t limit)
{
    uint64_t total = usage_total();
    return total < limit ? limit - total : 0;
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    NEED(cuMemGetInfo_v2);
    /* The ledger answers, but for whatever the driver would refuse. */
    if (!process_limits_memory() || !free || !total || !memory_context())
        return REAL(cuMemGetInfo_v2)(free, total);
    *total = limit_now();
    *free = left(*total);
    return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(unsigned int *free, unsigned int *total)
{
    NEED(cuMemGetInfo);
    CUresult result = REAL(cuMemGetInfo)(free, total);
    if (result != CUDA_SUCCESS || !process_limits_memory())
        return result;
    uint64_t limit = limit_now(), rest = left(limit);
    *total = limit < *total ? (unsigned int)limit : *total;
    *free = rest < *free ? (unsigned int)rest : *free;
    return result;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    NEED(cuDeviceTotalMem_v2);
    CUresult result = REAL(cuDeviceTotalMem_v2)(bytes, device);
    if (result == CUDA_SUCCESS && process_limits_memory() && limit_now() < *bytes)
        *bytes = limit_now();
    return result;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice device)
{
    NEED(cuDeviceTotalMem);
    CUresult result = REAL(cuDeviceTotalMem)(bytes, device);
    if (result == CUDA_SUCCESS && process_limits_memory() && limit_now() < *bytes)
        *bytes = (unsigned int)limit_now();
    return result;
}

/* Programs that only look, like nvidia-smi, have no watcher of their own to bury the dead. */
static uint64_t left_now(uint64_t limit)
{
    usage_reap();
    return left(limit);
}

static int nvml_has(int hook)
{
    return nvml_ready() && nvml_hooked[hook];
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    if (!nvml_has(NVML_HOOK_nvmlDeviceGetMemoryInfo))
        return NVML_NO_FUNCTION;
    nvmlReturn_t result =
        ((nvmlDeviceGetMemoryInfo_function)nvml_hooked[NVML_HOOK_nvmlDeviceGetMemoryInfo])(device, memory);
    if (result == 0 && process_limits_memory() && limit_now() < memory->total) {
        memory->total = limit_now();
        memory->free = left_now(memory->total);
        memory->used = memory->total - memory->free;
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    if (!nvml_has(NVML_HOOK_nvmlDeviceGetMemoryInfo_v2))
        return NVML_NO_FUNCTION;
    nvmlReturn_t result =
        ((nvmlDeviceGetMemoryInfo_v2_function)nvml_hooked[NVML_HOOK_nvmlDeviceGetMemoryInfo_v2])(device, memory);
    if (result == 0 && process_limits_memory() && limit_now() < memory->total) {
        memory->total = limit_now();
        memory->reserved = 0; /* the card's own, no part of a share */
        memory->free = left_now(memory->total);
        memory->used = memory->total - memory->free;
    }
    return result;
}

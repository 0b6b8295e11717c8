/* The management library: the same device as seen from outside, with the real process ids of those that hold memory. */
#define _GNU_SOURCE
#include "nvml_facts.h"
#include "state.h"

#include <stdio.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define UUID_TEXT "GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff"
#define LISTED_MAX PROCESSES_MAX

static int initialised;
static int device_memory; /* its address is the handle */

static int begin(void)
{
    initialised++;
    return NVML_SUCCESS;
}

EXPORT int nvmlInit(void)
{
    return begin();
}

EXPORT int nvmlInit_v2(void)
{
    return begin();
}

EXPORT int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return begin();
}

EXPORT int nvmlShutdown(void)
{
    return initialised ? initialised--, NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

EXPORT const char *nvmlErrorString(int result)
{
    return result == NVML_SUCCESS ? "Success" : "Error";
}

EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned room)
{
    snprintf(text, room, "580.00.fake");
    return NVML_SUCCESS;
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    *version = (int)environment_number("FAKE_DRIVER_VERSION", 13000);
    return NVML_SUCCESS;
}

#define CHECK(device)                                    \
    if (!initialised)                                    \
        return NVML_ERROR_UNINITIALIZED;                 \
    if ((device) != (nvmlDevice_t)(void *)&device_memory) \
    return NVML_ERROR_INVALID_ARGUMENT

EXPORT int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = 1;
    return initialised ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    *device = (nvmlDevice_t)(void *)&device_memory;
    return !initialised ? NVML_ERROR_UNINITIALIZED : index ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    *device = (nvmlDevice_t)(void *)&device_memory;
    return !initialised ? NVML_ERROR_UNINITIALIZED : strcmp(uuid, UUID_TEXT) ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS;
}

/* Its only GPU answers to every address: it has to be that of whatever machine the test made up. */
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *address, nvmlDevice_t *device)
{
    (void)address;
    return nvmlDeviceGetHandleByIndex_v2(0, device);
}

/* Events that never come. */
EXPORT int nvmlEventSetCreate(void **set)
{
    *set = &device_memory;
    return initialised ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

EXPORT int nvmlEventSetFree(void *set)
{
    (void)set;
    return NVML_SUCCESS;
}

EXPORT int nvmlEventSetWait_v2(void *set, void *event, unsigned timeout_ms)
{
    (void)set, (void)event, (void)timeout_ms;
    return NVML_ERROR_TIMEOUT;
}

EXPORT int nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index)
{
    CHECK(device);
    *index = 0;
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetName(nvmlDevice_t device, char *text, unsigned room)
{
    CHECK(device);
    snprintf(text, room, "Fake GPU 16 GiB");
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetUUID(nvmlDevice_t device, char *text, unsigned room)
{
    CHECK(device);
    snprintf(text, room, "%s", UUID_TEXT);
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    CHECK(device);
    memory->total = gpu_capacity_bytes();
    memory->used = gpu_taken_bytes(0);
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    CHECK(device);
    if (memory->version != nvmlMemory_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memory->total = gpu_capacity_bytes();
    memory->reserved = 0;
    memory->used = gpu_taken_bytes(0);
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

/* `put` writes entry i of the caller's array. */
static int list(unsigned *count, void *entries, void (*put)(void *entries, unsigned i, unsigned pid, uint64_t bytes))
{
    static _Thread_local uint32_t pids[LISTED_MAX];
    static _Thread_local uint64_t bytes[LISTED_MAX];
    unsigned found = gpu_processes(pids, bytes, LISTED_MAX), room = *count;
    *count = found;
    if (found > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < found; i++)
        put(entries, i, pids[i], bytes[i]);
    return NVML_SUCCESS;
}

static void put_v1(void *entries, unsigned i, unsigned pid, uint64_t bytes)
{
    ((nvmlProcessInfo_v1_t *)entries)[i] = (nvmlProcessInfo_v1_t){pid, bytes};
}

static void put_v2(void *entries, unsigned i, unsigned pid, uint64_t bytes)
{
    ((nvmlProcessInfo_v2_t *)entries)[i] = (nvmlProcessInfo_v2_t){pid, bytes, 0xffffffffu, 0xffffffffu};
}

static void put_long(void *entries, unsigned i, unsigned pid, uint64_t bytes)
{
    ((long_process_info *)entries)[i] = (long_process_info){pid, bytes, 0xffffffffu, 0xffffffffu, 0};
}

EXPORT int nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *entries)
{
    CHECK(device);
    return list(count, entries, put_v1);
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v2_t *entries)
{
    CHECK(device);
    return list(count, entries, put_v2);
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, void *entries)
{
    CHECK(device);
    return list(count, entries, environment_number("FAKE_LONG_PROCESSES", 0) ? put_long : put_v2);
}

EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v2_t *entries)
{
    (void)entries;
    CHECK(device);
    *count = 0;
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count, void *entries)
{
    return nvmlDeviceGetGraphicsRunningProcesses_v2(device, count, entries);
}

EXPORT int nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    CHECK(device);
    *rates = (nvmlUtilization_t){50, 10};
    return NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples, unsigned *count,
                                           unsigned long long since_us)
{
    static _Thread_local uint32_t pids[LISTED_MAX];
    static _Thread_local uint64_t bytes[LISTED_MAX];
    CHECK(device);
    unsigned found = gpu_processes(pids, bytes, LISTED_MAX), room = *count;
    *count = found;
    if (!samples || found > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < found; i++)
        samples[i] = (nvmlProcessUtilizationSample_t){.pid = pids[i], .timeStamp = since_us + 1, .smUtil = 50 / found};
    return NVML_SUCCESS;
}

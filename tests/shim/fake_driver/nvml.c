/* The management library: the same device as seen from outside, with the real process ids of those that hold memory. */
#define _GNU_SOURCE
#include "state.h"

#include <stdio.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define UUID_TEXT "GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff"
enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10 };
#define LISTED_MAX PROCESSES_MAX

typedef struct {
    unsigned long long total, free, used;
} memory_v1;
typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} memory_v2;
typedef struct {
    unsigned pid;
    unsigned long long bytes;
} process_v1;
typedef struct {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
} process_v2; /* also what the v3 call answers with */
typedef struct {
    unsigned pid;
    unsigned long long at_us;
    unsigned sm, memory, encoder, decoder;
} utilization_sample;
typedef struct {
    unsigned gpu, memory;
} utilization;
typedef struct device *nvml_device;

static int initialised;
static int device_memory; /* its address is the handle */

static int begin(void)
{
    initialised++;
    return OK;
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
    return initialised ? initialised--, OK : UNINITIALIZED;
}

EXPORT const char *nvmlErrorString(int result)
{
    return result == OK ? "Success" : "Error";
}

EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned room)
{
    snprintf(text, room, "580.00.fake");
    return OK;
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    *version = (int)environment_number("FAKE_DRIVER_VERSION", 13000);
    return OK;
}

#define CHECK(device)                                     \
    if (!initialised)                                     \
        return UNINITIALIZED;                             \
    if ((device) != (nvml_device)(void *)&device_memory)  \
    return INVALID_ARGUMENT

EXPORT int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = 1;
    return initialised ? OK : UNINITIALIZED;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvml_device *device)
{
    *device = (nvml_device)(void *)&device_memory;
    return !initialised ? UNINITIALIZED : index ? INVALID_ARGUMENT : OK;
}

EXPORT int nvmlDeviceGetHandleByIndex(unsigned index, nvml_device *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, nvml_device *device)
{
    *device = (nvml_device)(void *)&device_memory;
    return !initialised ? UNINITIALIZED : strcmp(uuid, UUID_TEXT) ? NOT_FOUND : OK;
}

/* Its only GPU answers to every address: it has to be that of whatever machine the test made up. */
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *address, nvml_device *device)
{
    (void)address;
    return nvmlDeviceGetHandleByIndex_v2(0, device);
}

/* Events that never come. */
EXPORT int nvmlEventSetCreate(void **set)
{
    *set = &device_memory;
    return initialised ? OK : UNINITIALIZED;
}

EXPORT int nvmlEventSetFree(void *set)
{
    (void)set;
    return OK;
}

EXPORT int nvmlEventSetWait_v2(void *set, void *event, unsigned timeout_ms)
{
    (void)set, (void)event, (void)timeout_ms;
    return TIMEOUT;
}

EXPORT int nvmlDeviceGetIndex(nvml_device device, unsigned *index)
{
    CHECK(device);
    *index = 0;
    return OK;
}

EXPORT int nvmlDeviceGetName(nvml_device device, char *text, unsigned room)
{
    CHECK(device);
    snprintf(text, room, "Fake GPU 16 GiB");
    return OK;
}

EXPORT int nvmlDeviceGetUUID(nvml_device device, char *text, unsigned room)
{
    CHECK(device);
    snprintf(text, room, "%s", UUID_TEXT);
    return OK;
}

EXPORT int nvmlDeviceGetMemoryInfo(nvml_device device, memory_v1 *memory)
{
    CHECK(device);
    memory->total = gpu_capacity_bytes();
    memory->used = gpu_taken_bytes(0);
    memory->free = memory->total - memory->used;
    return OK;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(nvml_device device, memory_v2 *memory)
{
    CHECK(device);
    if (memory->version != (sizeof *memory | 2u << 24))
        return 25; /* argument version mismatch */
    memory->total = gpu_capacity_bytes();
    memory->reserved = 0;
    memory->used = gpu_taken_bytes(0);
    memory->free = memory->total - memory->used;
    return OK;
}

/* `put` writes entry i of the caller's array. */
static int list(unsigned *count, void *entries, void (*put)(void *entries, unsigned i, unsigned pid, uint64_t bytes))
{
    static _Thread_local uint32_t pids[LISTED_MAX];
    static _Thread_local uint64_t bytes[LISTED_MAX];
    unsigned found = gpu_processes(pids, bytes, LISTED_MAX), room = *count;
    *count = found;
    if (found > room)
        return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < found; i++)
        put(entries, i, pids[i], bytes[i]);
    return OK;
}

static void put_v1(void *entries, unsigned i, unsigned pid, uint64_t bytes)
{
    ((process_v1 *)entries)[i] = (process_v1){pid, bytes};
}

static void put_v2(void *entries, unsigned i, unsigned pid, uint64_t bytes)
{
    ((process_v2 *)entries)[i] = (process_v2){pid, bytes, 0xffffffffu, 0xffffffffu};
}

EXPORT int nvmlDeviceGetComputeRunningProcesses(nvml_device device, unsigned *count, process_v1 *entries)
{
    CHECK(device);
    return list(count, entries, put_v1);
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(nvml_device device, unsigned *count, process_v2 *entries)
{
    CHECK(device);
    return list(count, entries, put_v2);
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(nvml_device device, unsigned *count, process_v2 *entries)
{
    CHECK(device);
    return list(count, entries, put_v2);
}

EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(nvml_device device, unsigned *count, process_v2 *entries)
{
    (void)entries;
    CHECK(device);
    *count = 0;
    return OK;
}

EXPORT int nvmlDeviceGetUtilizationRates(nvml_device device, utilization *rates)
{
    CHECK(device);
    *rates = (utilization){50, 10};
    return OK;
}

EXPORT int nvmlDeviceGetProcessUtilization(nvml_device device, utilization_sample *samples, unsigned *count,
                                           unsigned long long since_us)
{
    static _Thread_local uint32_t pids[LISTED_MAX];
    static _Thread_local uint64_t bytes[LISTED_MAX];
    CHECK(device);
    unsigned found = gpu_processes(pids, bytes, LISTED_MAX), room = *count;
    *count = found;
    if (!samples || found > room)
        return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < found; i++)
        samples[i] = (utilization_sample){.pid = pids[i], .at_us = since_us + 1, .sm = 50 / found};
    return OK;
}

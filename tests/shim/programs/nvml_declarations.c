/* Sizes, offsets and values of NVML that are relied on: compiled with -DSHIM from the shim's own declarations, with -DFAKE
 * from the fake library's, else from NVIDIA's nvml.h. All must print the same of what they have. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#if defined SHIM
#include "driver_api.h"
#define PICK(shim, theirs) shim
#elif defined FAKE
#include "nvml_facts.h"
#define PICK(shim, theirs) theirs
#else
#include <nvml.h>
#define PICK(shim, theirs) theirs
#endif

#define VALUE(shim, theirs) printf(#theirs " = %lld\n", (long long)PICK(shim, theirs))
#define SIZE(type) printf("sizeof " #type " = %zu\n", sizeof(type))
#define FIELD(type, shim, theirs)                                     \
    printf(#type "." #theirs " = %zu + %zu\n", offsetof(type, PICK(shim, theirs)), \
           sizeof(((type *)0)->PICK(shim, theirs)))

#ifndef FAKE
static void print_what_the_shim_relies_on(void)
{
    SIZE(nvmlReturn_t);
    VALUE(NVML_NO_FUNCTION, NVML_ERROR_FUNCTION_NOT_FOUND);
    VALUE(NVML_UNKNOWN_BYTES, NVML_VALUE_NOT_AVAILABLE);
}
#endif

#ifndef SHIM
static void print_what_the_fake_relies_on(void)
{
    VALUE(, NVML_SUCCESS);
    VALUE(, NVML_ERROR_UNINITIALIZED);
    VALUE(, NVML_ERROR_INVALID_ARGUMENT);
    VALUE(, NVML_ERROR_NOT_FOUND);
    VALUE(, NVML_ERROR_INSUFFICIENT_SIZE);
    VALUE(, NVML_ERROR_TIMEOUT);
    VALUE(, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    VALUE(, nvmlMemory_v2);
    SIZE(nvmlProcessInfo_v1_t);
    FIELD(nvmlProcessInfo_v1_t, , pid);
    FIELD(nvmlProcessInfo_v1_t, , usedGpuMemory);
    SIZE(nvmlProcessUtilizationSample_t);
    FIELD(nvmlProcessUtilizationSample_t, , pid);
    FIELD(nvmlProcessUtilizationSample_t, , timeStamp);
    FIELD(nvmlProcessUtilizationSample_t, , smUtil);
    SIZE(nvmlUtilization_t);
    FIELD(nvmlUtilization_t, , gpu);
    FIELD(nvmlUtilization_t, , memory);
}
#endif

int main(void)
{
    SIZE(nvmlDevice_t);
    SIZE(nvmlMemory_t);
    FIELD(nvmlMemory_t, total, total);
    FIELD(nvmlMemory_t, free, free);
    FIELD(nvmlMemory_t, used, used);
    SIZE(nvmlMemory_v2_t);
    FIELD(nvmlMemory_v2_t, version, version);
    FIELD(nvmlMemory_v2_t, total, total);
    FIELD(nvmlMemory_v2_t, reserved, reserved);
    FIELD(nvmlMemory_v2_t, free, free);
    FIELD(nvmlMemory_v2_t, used, used);
    SIZE(nvmlProcessInfo_v2_t);
    FIELD(nvmlProcessInfo_v2_t, pid, pid);
    FIELD(nvmlProcessInfo_v2_t, used_bytes, usedGpuMemory);
    FIELD(nvmlProcessInfo_v2_t, gpu_instance, gpuInstanceId);
    FIELD(nvmlProcessInfo_v2_t, compute_instance, computeInstanceId);
#ifndef FAKE
    print_what_the_shim_relies_on();
#endif
#ifndef SHIM
    print_what_the_fake_relies_on();
#endif
    return 0;
}

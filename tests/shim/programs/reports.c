/* reports WAY: what the program is told of its memory, by the driver and by the management library. */
#include "nvml_facts.h"
#include "reach.h"

#include <dlfcn.h>

static void *library;

static void *symbol(const char *name)
{
    void *found = dlsym(library, name);
    if (!found) {
        printf("missing=%s\n", name);
        exit(4);
    }
    return found;
}

static void ask_nvml(void)
{
    void *device = NULL;
    nvmlMemory_t first = {0};
    nvmlMemory_v2_t second = {.version = nvmlMemory_v2};
    nvmlProcessInfo_v2_t processes[64];
    unsigned count = 64;
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library)
        exit(4);
    int (*init)(void), (*handle)(unsigned, void **), (*memory)(void *, void *), (*list)(void *, unsigned *, void *);
    *(void **)(void *)&init = symbol("nvmlInit_v2");
    *(void **)(void *)&handle = symbol("nvmlDeviceGetHandleByIndex_v2");
    say("nvml_init", init());
    say("nvml_handle", handle(0, &device));
    *(void **)(void *)&memory = symbol("nvmlDeviceGetMemoryInfo");
    say("nvml_memory", memory(device, &first));
    say("nvml_total", (long long)first.total);
    say("nvml_used", (long long)first.used);
    *(void **)(void *)&memory = symbol("nvmlDeviceGetMemoryInfo_v2");
    say("nvml_memory_v2", memory(device, &second));
    say("nvml_total_v2", (long long)second.total);
    say("nvml_free_v2", (long long)second.free);
    *(void **)(void *)&list = symbol("nvmlDeviceGetComputeRunningProcesses_v2");
    say("nvml_list", list(device, &count, processes));
    say("nvml_processes", count);
}

int run(int argc, char **argv)
{
    size_t left = 0, total = 0, device_total = 0;
    CUdeviceptr address;
    (void)argc, (void)argv;
    start();
    MUST(cu.GetInfo(&left, &total));
    MUST(cu.TotalMem(&device_total, 0));
    say("total", (long long)total);
    say("device_total", (long long)device_total);
    say("free", (long long)left);
    MUST(cu.Alloc(&address, (size_t)512 << 20));
    MUST(cu.GetInfo(&left, &total));
    say("free_after", (long long)left);
    ask_nvml();
    return 0;
}

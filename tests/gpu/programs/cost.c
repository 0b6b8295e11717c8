/* What a preloaded library adds to a call.
 * probe cost PAIRS: for each call prints `cost <name> <pairs> <hooked ns> <direct ns> <added ns> <quartiles of added>`
 * and `noise`, the same with direct calls on both sides. Batches of hooked calls (as dlsym answers them) and direct ones
 * (as the driver's symbol table names them) take turns in one process, since processes differ by more than a hook costs.
 * probe start: prints `start <cuInit ns> <context ns> <first launch ns>`.
 * probe reported: what cuMemGetInfo and cuDeviceTotalMem say, `reported <free> <total> <device total>`.
 */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAIRS_MAX 1000

static struct driver hooked, direct;
static CUfunction empty;
static CUstream stream;

static const char EMPTY_PTX[] =
    "// module kernel=empty:2000\n.version 6.4\n.target sm_50\n.address_size 64\n.visible .entry empty()\n{\nret;\n}\n";

static void launch_calls(struct driver *cu, int calls) {
    for (int i = 0; i < calls; i++) cu->launch(empty, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
}

static void launch_ex_calls(struct driver *cu, int calls) {
    struct launch_configuration configuration = {{1, 1, 1}, {32, 1, 1}, 0, stream, NULL, 0};
    for (int i = 0; i < calls; i++) cu->launch_ex(&configuration, empty, NULL, NULL);
}

static void alloc_calls(struct driver *cu, int calls) {
    CUdeviceptr at;
    for (int i = 0; i < calls; i++)
        if (cu->mem_alloc(&at, 65536) == CU_SUCCESS) cu->mem_free(at);
}

static void async_calls(struct driver *cu, int calls) {
    CUdeviceptr at;
    for (int i = 0; i < calls; i++)
        if (cu->mem_async(&at, 1 << 20, stream) == CU_SUCCESS) cu->free_async(at, stream);
}

static void info_calls(struct driver *cu, int calls) {
    size_t free_bytes, total;
    for (int i = 0; i < calls; i++) cu->mem_info(&free_bytes, &total);
}

static const struct measured {
    const char *name;
    void (*run)(struct driver *, int);
    int calls;
} MEASURED[] = {
    {"launch", launch_calls, 200}, {"launch-ex", launch_ex_calls, 200}, {"alloc-pair", alloc_calls, 20},
    {"async-pair", async_calls, 200}, {"mem-info", info_calls, 200},
};

static double batch_ns(const struct measured *what, struct driver *cu) {
    direct.stream_sync(stream);
    uint64_t began = now_ns();
    what->run(cu, what->calls);
    return (double)(now_ns() - began) / what->calls;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double quantile(double *values, int count, double part) {
    qsort(values, (size_t)count, sizeof *values, by_value);
    return values[(int)(part * (count - 1))];
}

static void measure(const char *label, const struct measured *what, struct driver *a, struct driver *b, int pairs) {
    static double first[PAIRS_MAX], second[PAIRS_MAX], added[PAIRS_MAX];
    for (int i = 0; i < 3; i++) batch_ns(what, a), batch_ns(what, b);
    for (int i = 0; i < pairs; i++) {
        if (i % 2) first[i] = batch_ns(what, a), second[i] = batch_ns(what, b);
        else second[i] = batch_ns(what, b), first[i] = batch_ns(what, a);
        added[i] = first[i] - second[i];
    }
    double low = quantile(added, pairs, 0.25), middle = quantile(added, pairs, 0.5), high = quantile(added, pairs, 0.75);
    printf("%s %s %d %.1f %.1f %.1f %.1f %.1f\n", label, what->name, pairs, quantile(first, pairs, 0.5),
           quantile(second, pairs, 0.5), middle, low, high);
    fflush(stdout);
}

int cost_main(int count, char **words) {
    int pairs = count > 1 ? atoi(words[1]) : 300;
    if (pairs < 4 || pairs > PAIRS_MAX) return 2;
    CUmodule module;
    check(driver_open(&hooked, "dlsym"), "start");
    driver_find(&direct, "elf");
    if (!direct.launch) check(999, "no symbol table");
    check(hooked.module_load(&module, EMPTY_PTX), "cuModuleLoadData");
    check(hooked.module_function(&empty, module, "empty"), "cuModuleGetFunction");
    check(hooked.stream_create(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    printf("hooked %d\n", hooked.launch != direct.launch);
    for (size_t i = 0; i < sizeof MEASURED / sizeof *MEASURED; i++) {
        measure("cost", &MEASURED[i], &hooked, &direct, pairs);
        measure("noise", &MEASURED[i], &direct, &direct, pairs / 2);
    }
    return 0;
}

int start_main(int count, char **words) {
    struct driver cu;
    CUdevice device;
    CUcontext context;
    CUmodule module;
    (void)count, (void)words;
    uint64_t at = now_ns(), then;
    driver_find(&cu, "dlsym");
    check(cu.init(0), "cuInit");
    printf("start %llu", (unsigned long long)((then = now_ns()) - at));
    check(cu.device_get(&device, 0), "cuDeviceGet");
    check(cu.primary_retain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cu.ctx_set(context), "cuCtxSetCurrent");
    at = now_ns();
    printf(" %llu", (unsigned long long)(at - then));
    check(cu.module_load(&module, EMPTY_PTX), "cuModuleLoadData");
    check(cu.module_function(&empty, module, "empty"), "cuModuleGetFunction");
    check(cu.launch(empty, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
    check(cu.ctx_sync(), "cuCtxSynchronize");
    printf(" %llu\n", (unsigned long long)(now_ns() - at));
    return 0;
}

int reported_main(int count, char **words) {
    struct driver cu;
    size_t free_bytes, total, device_total;
    (void)count, (void)words;
    check(driver_open(&cu, "dlsym"), "start");
    check(cu.mem_info(&free_bytes, &total), "cuMemGetInfo");
    check(cu.total_mem(&device_total, 0), "cuDeviceTotalMem");
    printf("reported %zu %zu %zu\n", free_bytes, total, device_total);
    return 0;
}

/* The made-up driver with GPUs that fall ill: what they have is told by files in the folder $FAKE_NVML.
 *
 *   lost-N       GPU N has fallen off the bus; events that wait still come
 *   absent-N     the driver has no GPU N
 *   rows-N       a row of its memory could not be replaced
 *   recovery-N   the action that the driver asks for, a number
 *   reset-N      GPU N answers nothing before it was reset
 *   event-N      one event for each line `TYPE DATA`, taken away as it is read; only after GPU N was registered
 *   silent-N     GPU N answers every question with an error that says nothing
 *   nameless-N   its events come with a handle that nobody knows
 *   plain        no answer to the questions about rows, events and recovery: an old driver or a small GPU
 */

#define nvmlDeviceGetMemoryInfo memory_of_a_healthy_gpu
#include "fake_nvml.c"
#undef nvmlDeviceGetMemoryInfo

#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

enum { TIMEOUT = 10, RESET_REQUIRED = 16, UNKNOWN = 999, PATH_BYTES = 4096 };

typedef struct event {
    device *gpu;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} event;

typedef struct field_value {
    unsigned id, scope;
    long long timestamp, latency_us;
    unsigned type, result;
    union {
        unsigned number;
        unsigned long long bits;
    } value;
} field_value;

static int registered[GPUS];

static FILE *told(const char *name, int index, const char *mode) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, index < 0 ? "%s/%s" : "%s/%s-%d", getenv("FAKE_NVML"), name, index);
    return fopen(path, mode);
}

static int has(const char *name, int index) {
    FILE *file = told(name, index, "r");
    if (file) fclose(file);
    return file != NULL;
}

static int trouble(const device *gpu) {
    if (has("lost", gpu->index)) return GPU_IS_LOST;
    if (has("silent", gpu->index)) return UNKNOWN;
    return has("reset", gpu->index) ? RESET_REQUIRED : SUCCESS;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, device **handle) {
    for (int i = 0; i < GPUS; i++) {
        pci_info info;
        describe(i, &info);
        if (strcasecmp(bus_id, info.bus_id + 4) != 0) continue; /* asked for with four domain digits */
        if (has("absent", i)) return NOT_FOUND;
        *handle = &gpus[i];
        return has("lost", i) ? GPU_IS_LOST : SUCCESS;
    }
    return NOT_FOUND;
}

int nvmlDeviceGetMemoryInfo(device *gpu, memory *memory_info) {
    int result = trouble(gpu);
    return result == SUCCESS ? memory_of_a_healthy_gpu(gpu, memory_info) : result;
}

int nvmlDeviceGetRemappedRows(device *gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    if (has("plain", -1)) return NOT_SUPPORTED;
    *corrected = 1;
    *uncorrected = 0;
    *pending = 1;
    *failed = (unsigned)has("rows", gpu->index);
    return trouble(gpu);
}

int nvmlDeviceGetFieldValues(device *gpu, int count, field_value *values) {
    for (int i = 0; i < count; i++) {
        FILE *file = told("recovery", gpu->index, "r");
        values[i].result = values[i].id == 230 && !has("plain", -1) ? SUCCESS : NOT_SUPPORTED;
        values[i].value.bits = 0;
        if (file && fscanf(file, "%u", &values[i].value.number) != 1) values[i].result = NOT_FOUND;
        if (file) fclose(file);
    }
    return trouble(gpu);
}

int nvmlEventSetCreate(void **set) {
    *set = registered;
    return SUCCESS;
}

int nvmlEventSetFree(void *set) {
    (void)set;
    memset(registered, 0, sizeof registered);
    return SUCCESS;
}

int nvmlDeviceGetSupportedEventTypes(device *gpu, unsigned long long *types) {
    (void)gpu;
    *types = 8 | 2 | 1;
    return has("plain", -1) ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceRegisterEvents(device *gpu, unsigned long long types, void *set) {
    (void)set;
    registered[gpu->index] = types == (8 | 2);
    return SUCCESS;
}

/* Takes the first line off a GPU's events. */
static int next_event(int index, event *data) {
    char rest[PATH_BYTES];
    FILE *file = told("event", index, "r");
    if (!file) return 0;
    int found = fscanf(file, "%llu %llu\n", &data->type, &data->data) == 2;
    size_t left = fread(rest, 1, sizeof rest, file);
    fclose(file);
    file = told("event", index, "w");
    fwrite(rest, 1, left, file);
    fclose(file);
    return found;
}

int nvmlEventSetWait_v2(void *set, event *data, unsigned timeout_ms) {
    (void)set;
    if (timeout_ms > 0) sleep(timeout_ms / 1000);
    for (int i = 0; i < GPUS; i++) {
        if (!registered[i] || !next_event(i, data)) continue;
        data->gpu = has("nameless", i) ? (device *)set : &gpus[i];
        return SUCCESS;
    }
    for (int i = 0; i < GPUS; i++)
        if (registered[i] && has("lost", i)) return GPU_IS_LOST;
    return TIMEOUT;
}

/* A libnvidia-ml.so.1 that describes made-up GPUs, to run the real Python bindings without a driver.
 *
 * Compiled once per case; the macros say what the driver is like:
 *   GPUS          how many GPUs (default 2)
 *   REMOTE        what their links end at: 0 GPU, 1 POWER CPU, 2 NVSwitch, 255 unknown (default 2)
 *   HIDDEN        the far end's address is all F, as in a guest that does not own the switch
 *   LINKS         links of each GPU (default 18)
 *   OLD           a driver before remote device types, peer-to-peer status and MIG: those symbols are missing
 *   NO_NVLINK     every question about NVLink is answered "not supported"
 *   MIG           GPU 0 is cut into two MIG devices at the indexes 0 and 2
 *   LOST          GPU 1 has fallen off the bus
 *   INIT_RESULT   what initialising returns (default success)
 */

#include <stdio.h>
#include <string.h>

#ifndef GPUS
#define GPUS 2
#endif
#ifndef REMOTE
#define REMOTE 2
#endif
#ifndef LINKS
#define LINKS 18
#endif
#ifndef INIT_RESULT
#define INIT_RESULT SUCCESS
#endif

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15 };
enum { MIG_MAX = 3 };

typedef struct device {
    int index;
    int mig; /* -1: the GPU itself */
} device;

typedef struct pci_info {
    char bus_id_legacy[16];
    unsigned domain, bus, slot, device_id, subsystem_id;
    char bus_id[32];
} pci_info;

typedef struct memory {
    unsigned long long total, free, used;
} memory;

static device gpus[GPUS];
static device migs[MIG_MAX];

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    for (int i = 0; i < GPUS; i++) gpus[i] = (device){i, -1};
    for (int i = 0; i < MIG_MAX; i++) migs[i] = (device){0, i};
    return INIT_RESULT;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) { return code == 999 ? "Unknown Error" : "error"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = GPUS;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **handle) {
    if (index >= GPUS) return INVALID_ARGUMENT;
#ifdef LOST
    if (index == 1) return GPU_IS_LOST;
#endif
    *handle = &gpus[index];
    return SUCCESS;
}

static void describe(int index, pci_info *info) {
    memset(info, 0, sizeof *info);
    info->bus = 0x0F + (unsigned)index;
    info->device_id = 0x233510DE;
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", info->bus);
}

int nvmlDeviceGetPciInfo_v3(device *gpu, pci_info *info) {
    describe(gpu->index, info);
    return SUCCESS;
}

int nvmlDeviceGetUUID(device *gpu, char *text, unsigned length) {
    if (gpu->mig < 0) snprintf(text, length, "GPU-fake-%d", gpu->index);
    else snprintf(text, length, "MIG-fake-%d-%d", gpu->index, gpu->mig);
    return SUCCESS;
}

int nvmlDeviceGetName(device *gpu, char *text, unsigned length) {
    snprintf(text, length, gpu->mig < 0 ? "NVIDIA H200" : "NVIDIA H200 MIG 1g.18gb");
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(device *gpu, memory *memory_info) {
    (void)gpu;
    *memory_info = (memory){143771ull << 20, 0, 0};
    return SUCCESS;
}

int nvmlDeviceGetMinorNumber(device *gpu, unsigned *minor) {
    *minor = (unsigned)gpu->index + 4;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkState(device *gpu, unsigned link, unsigned *active) {
    (void)gpu;
#ifdef NO_NVLINK
    (void)link;
    (void)active;
    return NOT_SUPPORTED;
#else
    if (link > LINKS) return INVALID_ARGUMENT;
    *active = link < LINKS; /* one more link exists and is down */
    return SUCCESS;
#endif
}

#ifdef OLD
/* Drivers before the current structure offered the question under its first name only. */
int nvmlDeviceGetNvLinkRemotePciInfo(device *gpu, unsigned link, pci_info *info) {
    (void)gpu;
    (void)link;
    (void)info;
    return NOT_SUPPORTED;
}
#endif

#if !defined(OLD) || defined(OLD_WITH_FAR_ENDS)
int nvmlDeviceGetNvLinkRemotePciInfo_v2(device *gpu, unsigned link, pci_info *info) {
#ifdef HIDDEN
    (void)gpu;
    (void)link;
    memset(info, 0xFF, sizeof *info);
    snprintf(info->bus_id, sizeof info->bus_id, "FFFFFFFF:FF:FF.0");
#elif REMOTE == 2
    (void)gpu;
    describe(0xE0 - 0x0F + (int)link % 4, info);
#else
    (void)link;
    describe(1 - gpu->index, info);
#endif
    return SUCCESS;
}
#endif

#ifndef OLD
int nvmlDeviceGetNvLinkRemoteDeviceType(device *gpu, unsigned link, unsigned *type) {
    (void)gpu;
    (void)link;
    *type = REMOTE;
    return SUCCESS;
}

int nvmlDeviceGetTopologyCommonAncestor(device *a, device *b, unsigned *level) {
    (void)a;
    (void)b;
    *level = 30;
    return SUCCESS;
}

int nvmlDeviceGetP2PStatus(device *a, device *b, unsigned index, unsigned *status) {
    (void)a;
    (void)b;
    *status = index == 0 ? 0 : 6;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(device *gpu, unsigned *count) {
    (void)gpu;
#ifdef MIG
    *count = MIG_MAX;
    return SUCCESS;
#else
    (void)count;
    return NOT_SUPPORTED;
#endif
}

int nvmlDeviceGetMigDeviceHandleByIndex(device *gpu, unsigned index, device **handle) {
    if (gpu->index != 0 || index == 1 || index >= MIG_MAX) return NOT_FOUND;
    *handle = &migs[index];
    return SUCCESS;
}
#endif

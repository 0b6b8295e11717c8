/* The driver's start, the device and its contexts: what each costs, which is current, and that none outlives a fork. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdio.h>
#include <string.h>

#define CONTEXT_MAGIC UINT64_C(0xc0de0001)
#define STACK_MAX 64
#define DEFAULT_STACK_BYTES 1024
#define DEFAULT_HEAP_BYTES ((uint64_t)8 << 20)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool initialised, forked, watching_forks;
static CUcontext contexts;
static CUcontext primary;
static unsigned primary_uses, primary_flags;
static uint64_t serials;
static _Thread_local CUcontext stack[STACK_MAX];
static _Thread_local uint64_t stack_serials[STACK_MAX];
static _Thread_local unsigned depth;

static void after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    forked = initialised;
    gpu_forget_after_fork();
}

struct guard guard_enter(void)
{
    pthread_mutex_lock(&lock);
    struct guard guard = {.error = initialised && !forked ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED};
    if (guard.error)
        pthread_mutex_unlock(&lock);
    return guard;
}

void guard_leave(struct guard *guard)
{
    if (!guard->error)
        pthread_mutex_unlock(&lock);
}

EXPORT CUresult cuInit(unsigned flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    CUresult result = forked ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
    if (!result && !watching_forks) {
        pthread_atfork(NULL, NULL, after_fork);
        watching_forks = true;
    }
    if (!result)
        initialised = true;
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
    *version = (int)environment_number("FAKE_DRIVER_VERSION", 13000);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
    GUARD;
    *count = 1;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    GUARD;
    *device = 0;
    return ordinal ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int room, CUdevice device)
{
    GUARD;
    snprintf(name, (size_t)room, "%s", "Fake GPU 16 GiB");
    return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

static CUresult device_uuid(CUuuid *uuid)
{
    for (int i = 0; i < 16; i++)
        uuid->bytes[i] = (unsigned char)(0xf0 + i);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    GUARD;
    return device ? CUDA_ERROR_INVALID_DEVICE : device_uuid(uuid);
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    GUARD;
    return device ? CUDA_ERROR_INVALID_DEVICE : device_uuid(uuid);
}

EXPORT CUresult cuDeviceGetPCIBusId(char *text, int room, CUdevice device)
{
    GUARD;
    snprintf(text, (size_t)room, "0000:3B:00.0");
    return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    GUARD;
    *bytes = gpu_capacity_bytes();
    return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device)
{
    GUARD;
    uint64_t all = gpu_capacity_bytes();
    *bytes = all > UINT32_MAX ? UINT32_MAX : (unsigned)all;
    return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    GUARD;
    static const struct {
        int attribute, value;
    } known[] = {
        {1, 1024}, {2, 1024}, {3, 1024}, {4, 64},  {5, 2147483647}, {6, 65535},   {7, 65535}, {8, 49152}, {10, 32},
        {12, 65536}, {13, 1980000}, {14, 512}, {15, 1}, {16, (int)SM_COUNT}, {31, 1}, {33, 0x3b}, {34, 0}, {39, (int)THREADS_PER_SM},
        {40, 2}, {41, 1}, {50, 0}, {75, 9}, {76, 0}, {78, 1}, {79, 1}, {80, 1}, {81, 233472}, {82, 65536}, {83, 1},
        {89, 1}, {95, 1}, {97, 232448}, {102, 1}, {103, 1}, {106, 32}, {115, 1}, {116, 1}, {119, 9}, {128, 1},
    };
    *value = 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].attribute == attribute)
            *value = known[i].value;
    return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
    GUARD;
    *major = 9;
    *minor = 0;
    return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

/* --- contexts ---------------------------------------------------------------------------------------------------- */

bool context_known(CUcontext context)
{
    for (CUcontext each = contexts; each; each = each->next)
        if (each == context)
            return true;
    return false;
}

CUcontext context_current(void)
{
    if (!depth || !context_known(stack[depth - 1]) || stack[depth - 1]->serial != stack_serials[depth - 1])
        return NULL;
    return stack[depth - 1];
}

CUcontext context_of_device(void)
{
    return primary;
}

static void push(CUcontext context)
{
    while (depth && !context_known(stack[depth - 1])) /* destroyed while it lay below another */
        depth--;
    if (depth == STACK_MAX)
        abort();
    stack[depth] = context;
    stack_serials[depth++] = context ? context->serial : 0;
}

static uint64_t context_bytes(void)
{
    return round_up(environment_number("FAKE_CONTEXT_BYTES", CONTEXT_BYTES), GRANULE_BYTES);
}

static CUresult context_new(CUcontext *made, unsigned flags)
{
    if (!gpu_take(context_bytes()))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUcontext context = calloc(1, sizeof *context);
    context->magic = CONTEXT_MAGIC;
    context->serial = ++serials;
    context->flags = flags;
    context->stack_bytes = DEFAULT_STACK_BYTES;
    context->heap_bytes = DEFAULT_HEAP_BYTES;
    context->printf_bytes = 1 << 20;
    context->next = contexts;
    contexts = context;
    streams_begin(context);
    *made = context;
    return CUDA_SUCCESS;
}

static void context_end_all(CUcontext context)
{
    modules_end(context);
    allocations_end(context);
    streams_end(context);
    gpu_give(context_bytes() + context->limits_taken);
    for (CUcontext *link = &contexts; *link; link = &(*link)->next)
        if (*link == context) {
            *link = context->next;
            break;
        }
    if (context == primary) {
        primary = NULL;
        primary_uses = 0;
    }
    context->magic = 0;
    free(context);
}

static CUresult create(CUcontext *made, unsigned flags, CUdevice device)
{
    GUARD;
    if (device)
        return CUDA_ERROR_INVALID_DEVICE;
    CUresult result = context_new(made, flags);
    if (!result)
        push(*made);
    return result;
}

EXPORT CUresult cuCtxCreate(CUcontext *made, unsigned flags, CUdevice device)
{
    return create(made, flags, device);
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *made, unsigned flags, CUdevice device)
{
    return create(made, flags, device);
}

EXPORT CUresult cuCtxCreate_v3(CUcontext *made, void *affinities, int count, unsigned flags, CUdevice device)
{
    (void)affinities, (void)count;
    return create(made, flags, device);
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *made, void *parameters, unsigned flags, CUdevice device)
{
    (void)parameters;
    return create(made, flags, device);
}

static CUresult destroy(CUcontext context)
{
    GUARD;
    if (!context_known(context) || context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (depth && stack[depth - 1] == context)
        depth--;
    context_end_all(context);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxDestroy(CUcontext context)
{
    return destroy(context);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
    return destroy(context);
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    GUARD;
    if (device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!primary) {
        CUresult result = context_new(&primary, primary_flags);
        if (result)
            return result;
        primary->primary = true;
    }
    primary_uses++;
    *context = primary;
    return CUDA_SUCCESS;
}

static CUresult primary_release(CUdevice device)
{
    GUARD;
    if (device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!primary || !primary_uses)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!--primary_uses)
        context_end_all(primary);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    return primary_release(device);
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    return primary_release(device);
}

static CUresult primary_reset(CUdevice device)
{
    GUARD;
    if (device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (primary)
        context_end_all(primary);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    return primary_reset(device);
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    return primary_reset(device);
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    GUARD;
    *flags = primary_flags;
    *active = primary != NULL;
    return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

static CUresult primary_set_flags(unsigned flags)
{
    GUARD;
    primary_flags = flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags)
{
    (void)device;
    return primary_set_flags(flags);
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags)
{
    (void)device;
    return primary_set_flags(flags);
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
    GUARD;
    *context = context_current();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
    GUARD;
    if (context && !context_known(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (depth)
        depth--;
    if (context)
        push(context);
    return CUDA_SUCCESS;
}

static CUresult push_current(CUcontext context)
{
    GUARD;
    if (!context_known(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    push(context);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent(CUcontext context)
{
    return push_current(context);
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    return push_current(context);
}

static CUresult pop_current(CUcontext *popped)
{
    GUARD;
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (popped)
        *popped = stack[depth];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent(CUcontext *popped)
{
    return pop_current(popped);
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *popped)
{
    return pop_current(popped);
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    GUARD_CONTEXT;
    *device = 0;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext asked)
{
    GUARD;
    *device = 0;
    return asked && !context_known(asked) ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetFlags(unsigned *flags)
{
    GUARD_CONTEXT;
    *flags = context->flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetId(CUcontext asked, unsigned long long *id)
{
    GUARD;
    CUcontext context = asked ? asked : context_current();
    if (!context_known(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    *id = context->serial;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetApiVersion(CUcontext asked, unsigned *version)
{
    (void)asked;
    GUARD;
    *version = 3020;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *lowest, int *highest)
{
    GUARD_CONTEXT;
    if (lowest)
        *lowest = 0;
    if (highest)
        *highest = -5;
    return CUDA_SUCCESS;
}

/* What a limit of the context takes beyond what the context came with: the stack for every thread the device can hold. */
static uint64_t limits_bytes(uint64_t stack_bytes, uint64_t heap_bytes)
{
    uint64_t taken = 0;
    if (stack_bytes > DEFAULT_STACK_BYTES)
        taken += round_up((stack_bytes - DEFAULT_STACK_BYTES) * SM_COUNT * THREADS_PER_SM, GRANULE_BYTES);
    if (heap_bytes > DEFAULT_HEAP_BYTES)
        taken += round_up(heap_bytes - DEFAULT_HEAP_BYTES, GRANULE_BYTES);
    return taken;
}

EXPORT CUresult cuCtxSetLimit(int which, size_t value)
{
    GUARD_CONTEXT;
    if (which < LIMIT_STACK || which > 6)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t stack_bytes = which == LIMIT_STACK ? value : context->stack_bytes;
    uint64_t heap_bytes = which == LIMIT_HEAP ? value : context->heap_bytes;
    uint64_t wanted = limits_bytes(stack_bytes, heap_bytes);
    if (wanted > context->limits_taken && !gpu_take(wanted - context->limits_taken))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (wanted < context->limits_taken)
        gpu_give(context->limits_taken - wanted);
    context->limits_taken = wanted;
    context->stack_bytes = stack_bytes;
    context->heap_bytes = heap_bytes;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetLimit(size_t *value, int which)
{
    GUARD_CONTEXT;
    *value = which == LIMIT_STACK ? context->stack_bytes : which == LIMIT_HEAP ? context->heap_bytes : context->printf_bytes;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *left, size_t *total)
{
    GUARD_CONTEXT;
    uint64_t taken = gpu_taken_bytes(0);
    *total = gpu_capacity_bytes();
    *left = *total - taken;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetInfo(unsigned *left, unsigned *total)
{
    GUARD_CONTEXT;
    uint64_t all = gpu_capacity_bytes(), rest = all - gpu_taken_bytes(0);
    *total = all > UINT32_MAX ? UINT32_MAX : (unsigned)all;
    *left = rest > UINT32_MAX ? UINT32_MAX : (unsigned)rest;
    return CUDA_SUCCESS;
}

static CUresult wait_for(CUcontext asked)
{
    uint64_t end;
    {
        GUARD;
        CUcontext context = asked ? asked : context_current();
        if (!context_known(context))
            return CUDA_ERROR_INVALID_CONTEXT;
        CUresult forbidden = capture_forbids();
        if (forbidden)
            return forbidden;
        end = context_end(context);
    }
    gpu_wait(end);
    GUARD;
    pools_trim();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void)
{
    return wait_for(NULL);
}

EXPORT CUresult cuCtxSynchronize_v2(CUcontext asked)
{
    return wait_for(asked);
}

/* What the tests read past any limiter. */
EXPORT uint64_t fakeBytesTaken(uint32_t pid)
{
    return gpu_taken_bytes(pid) + gpu_managed_bytes(pid);
}

EXPORT uint64_t fakeBytesManaged(uint32_t pid)
{
    return gpu_managed_bytes(pid);
}

EXPORT uint64_t fakeBusyNs(uint32_t pid)
{
    return gpu_busy_ns(pid);
}

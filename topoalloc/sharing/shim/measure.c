#include "measure.h"

#include "driver.h"
#include "file_facts.h"
#include "local_lock.h"
#include "memory.h"
#include "process.h"
#include "usage.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define AGENT_WAIT_MS 20
#define QUIET_TRIES 3 /* the ledger must not change while the driver is asked */
#define GPUS_MAX 16u
#define PROCESSES_MAX 512u
#define FIRST_PID_NAMESPACE UINT64_C(0xEFFFFFFC) /* include/linux/proc_ns.h: PROC_PID_INIT_INO */
#define UNKNOWN_BYTES UINT64_MAX
#define SETTLING_NS UINT64_C(2000000000) /* a new context grows for a while, and the driver's figure comes after it */
#define APART_NS UINT64_C(100000000)
#define AGREED_BYTES (UINT64_C(2) << 20)
#define NEARLY_FULL_BYTES (UINT64_C(256) << 20) /* what the driver takes unasked decides there */
#define RECENT_NS UINT64_C(50000000)
#define MARGIN_BYTES (UINT64_C(16) << 20) /* what the driver takes between two measurements: buffers, small modules */

static struct local_lock measuring;
static _Atomic int busy;
static _Atomic int contexts;
static _Atomic uint64_t context_made_at_ns;
static uint64_t believed_bytes, candidate_bytes, candidate_at_ns; /* under `measuring` */
static _Atomic uint64_t measured_at_ns;
static _Atomic int given_back; /* the latest measurement was lower than what counts */
static _Atomic uint64_t floor_bytes; /* until the driver takes what was promised, its figure says too little */
static int agent = -1;
static dev_t agent_device;
static ino_t agent_inode;

static struct {
    _Atomic int tried; /* 1 under way, 2 done */
    nvmlDeviceGetCount_v2_function count;
    nvmlDeviceGetHandleByIndex_v2_function by_index;
    nvmlDeviceGetComputeRunningProcesses_v2_function processes;
} nvml;

static int connect_agent(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (!process_share_path("agent.sock", address.sun_path, sizeof address.sun_path))
        return -1;
    int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (descriptor >= 0 && connect(descriptor, (struct sockaddr *)&address, sizeof address) != 0) {
        close(descriptor);
        return -1;
    }
    struct stat seen;
    if (descriptor >= 0 && facts_of_descriptor(descriptor, &seen) == 0) {
        agent_device = seen.st_dev;
        agent_inode = seen.st_ino;
    }
    return descriptor;
}

/* Programs close descriptors that they do not know, and the number then belongs to something of theirs: neither may our
 * question be written into it nor may it be closed. */
static void forget_lost_agent(void)
{
    struct stat seen;
    if (agent >= 0 &&
        (facts_of_descriptor(agent, &seen) != 0 || seen.st_dev != agent_device || seen.st_ino != agent_inode))
        agent = -1;
}

static uint64_t parse_answer(const char *text)
{
    uint64_t bytes = 0;
    if (strncmp(text, "bytes ", 6) != 0)
        return UNKNOWN_BYTES;
    for (text += 6; *text >= '0' && *text <= '9' && bytes < UINT64_MAX / 20; text++)
        bytes = bytes * 10 + (uint64_t)(*text - '0');
    return *text == '\n' ? bytes : UNKNOWN_BYTES;
}

/* The agent knows us by the socket we came through and by our credentials, so nothing is told it. */
static uint64_t ask_agent(void)
{
    static const char question[] = "measure\n";
    char answer[128];
    forget_lost_agent();
    if (agent < 0)
        agent = connect_agent();
    if (agent < 0)
        return UNKNOWN_BYTES;
    struct pollfd ready = {.fd = agent, .events = POLLIN};
    ssize_t got = -1;
    if (send(agent, question, sizeof question - 1, MSG_NOSIGNAL) == (ssize_t)(sizeof question - 1) &&
        poll(&ready, 1, AGENT_WAIT_MS) == 1)
        got = recv(agent, answer, sizeof answer - 1, 0);
    if (got <= 0 || answer[got - 1] != '\n') { /* a late answer must not be taken for the next one's */
        close(agent);
        agent = -1;
        return UNKNOWN_BYTES;
    }
    answer[got] = '\0';
    return parse_answer(answer);
}

/* Elsewhere our PID is not the one that the driver lists, and may be somebody else's there. */
static int in_first_pid_namespace(void)
{
    struct stat seen;
    return facts_of_path("/proc/self/ns/pid", &seen) == 0 && seen.st_ino == FIRST_PID_NAMESPACE;
}

static void look_for_nvml(void)
{
    if (!in_first_pid_namespace())
        return;
    void *handle = libc_dlopen("libnvidia-ml.so.1", RTLD_LAZY);
    if (!handle)
        return;
    dlsym_function look = libc_dlsym_function();
    nvmlInit_v2_function init = (nvmlInit_v2_function)(uintptr_t)look(handle, "nvmlInit_v2");
    nvml.count = (nvmlDeviceGetCount_v2_function)(uintptr_t)look(handle, "nvmlDeviceGetCount_v2");
    nvml.by_index =
        (nvmlDeviceGetHandleByIndex_v2_function)(uintptr_t)look(handle, "nvmlDeviceGetHandleByIndex_v2");
    /* Not the third version: drivers 535.43 to 535.86 answer it with longer entries (nvml.h of CUDA 12.2.0). */
    void *processes = look(handle, "nvmlDeviceGetComputeRunningProcesses_v2");
    if (init && nvml.count && nvml.by_index && processes && init() == 0)
        nvml.processes = (nvmlDeviceGetComputeRunningProcesses_v2_function)(uintptr_t)processes;
}

/* Without `measuring` held: the dynamic linker may be held by a library whose constructor waits for us. */
static void find_nvml(void)
{
    int untried = 0;
    if (!atomic_compare_exchange_strong(&nvml.tried, &untried, 1))
        return;
    look_for_nvml();
    atomic_store_explicit(&nvml.tried, 2, memory_order_release);
}

static uint64_t ask_nvml(void)
{
    static nvmlProcessInfo_v2_t processes[PROCESSES_MAX]; /* under `measuring` */
    unsigned int gpus = 0, pid = (unsigned int)getpid();
    uint64_t bytes = 0;
    int listed = 0;
    if (atomic_load_explicit(&nvml.tried, memory_order_acquire) != 2 || !nvml.processes || nvml.count(&gpus) != 0)
        return UNKNOWN_BYTES;
    for (unsigned int gpu = 0; gpu < gpus && gpu < GPUS_MAX; gpu++) {
        nvmlDevice_t device;
        unsigned int count = PROCESSES_MAX;
        if (nvml.by_index(gpu, &device) != 0 || nvml.processes(device, &count, processes) != 0)
            return UNKNOWN_BYTES;
        for (unsigned int i = 0; i < count && i < PROCESSES_MAX; i++) {
            if (processes[i].pid != pid || processes[i].used_bytes == NVML_UNKNOWN_BYTES)
                continue;
            bytes += processes[i].used_bytes;
            listed = 1;
        }
    }
    return listed ? bytes : UNKNOWN_BYTES;
}

static uint64_t explicit_device_bytes(void)
{
    struct usage_slot *own = atomic_load(&usage_own);
    if (!own)
        return 0;
    uint64_t unseen = atomic_load(&own->managed_bytes) + graphs_promised(), all = atomic_load(&own->explicit_bytes);
    return all > unseen ? all - unseen : 0;
}

static uint64_t implicit_bytes(uint64_t measured, uint64_t explicit)
{
    uint64_t bytes = (measured > explicit ? measured - explicit : 0) + MARGIN_BYTES;
    uint64_t guess = atomic_load(&process_limits.context_bytes) * (uint64_t)atomic_load(&contexts);
    uint64_t floor = atomic_load(&floor_bytes);
    if (bytes < floor)
        bytes = floor;
    int settling = process_now_ns() - atomic_load(&context_made_at_ns) < SETTLING_NS;
    return settling && bytes < guess ? guess : bytes;
}

/* A reservation whose driver call is still under way, or that the driver's figure does not show yet, makes a measurement
 * too low. So the account rises with any measurement, and falls only where two that are some time apart agree. */
static uint64_t believed(uint64_t bytes)
{
    uint64_t now_ns = process_now_ns();
    uint64_t apart = bytes > candidate_bytes ? bytes - candidate_bytes : candidate_bytes - bytes;
    if (bytes >= believed_bytes) {
        believed_bytes = bytes;
    } else if (apart > AGREED_BYTES) {
        candidate_bytes = bytes;
        candidate_at_ns = now_ns;
    } else if (now_ns - candidate_at_ns >= APART_NS) {
        believed_bytes = bytes > candidate_bytes ? bytes : candidate_bytes;
    }
    atomic_store(&given_back, believed_bytes > bytes);
    return believed_bytes;
}

static int measure_quietly(void)
{
    for (int i = 0; i < QUIET_TRIES; i++) {
        uint64_t before = explicit_device_bytes();
        uint64_t bytes = ask_agent();
        if (bytes == UNKNOWN_BYTES)
            bytes = ask_nvml();
        if (bytes == UNKNOWN_BYTES)
            return 0;
        if (before != explicit_device_bytes())
            continue;
        usage_set_implicit(believed(implicit_bytes(bytes, before)), 1);
        atomic_store(&measured_at_ns, process_now_ns());
        return 1;
    }
    return 0;
}

static int measure_once(void)
{
    local_lock_take(&measuring);
    int measured = measure_quietly();
    local_lock_drop(&measuring);
    return measured;
}

int measure_now(void)
{
    int kept = errno, cancelled;
    if (!atomic_load(&contexts) || !process_limits_memory())
        return 0;
    /* A thread that is cancelled while it waits for an answer would keep the lock for ever. */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelled);
    atomic_fetch_add(&busy, 1);
    int measured = measure_once();
    if (!measured && !atomic_load(&nvml.tried)) {
        find_nvml();
        measured = measure_once();
    }
    atomic_fetch_sub(&busy, 1);
    pthread_setcancelstate(cancelled, NULL);
    errno = kept;
    return measured;
}

static int has_no_room_for(uint64_t bytes)
{
    uint64_t limit = atomic_load_explicit(&process_limits.memory_bytes, memory_order_relaxed), total = usage_total();
    return (total < limit ? limit - total : 0) < NEARLY_FULL_BYTES + bytes;
}

void measure_saw(uint64_t bytes)
{
    local_lock_take(&measuring);
    if (believed_bytes && bytes < UINT64_MAX / 2 - believed_bytes) {
        believed_bytes += bytes;
        usage_set_implicit(believed_bytes, 1);
        atomic_store(&given_back, 1); /* a part of it may be somebody else's: measured again before it refuses anything */
    }
    local_lock_drop(&measuring);
}

int measure_is_nearly_full(void)
{
    return has_no_room_for(0);
}

void measure_if_nearly_full(uint64_t bytes)
{
    uint64_t limit = atomic_load_explicit(&process_limits.memory_bytes, memory_order_relaxed);
    if (bytes <= limit && has_no_room_for(bytes) &&
        process_now_ns() - atomic_load_explicit(&measured_at_ns, memory_order_relaxed) > RECENT_NS)
        (void)measure_now();
}

int measure_again(void)
{
    struct timespec apart = {0, (long)APART_NS};
    int kept = errno, measured = 0;
    for (int i = 0; i < 2 && atomic_load(&given_back); i++) {
        clock_nanosleep(CLOCK_MONOTONIC, 0, &apart, NULL);
        measured |= measure_now();
    }
    errno = kept;
    return measured;
}

int measure_context_made(void)
{
    uint64_t limit = atomic_load(&process_limits.memory_bytes), guess = atomic_load(&process_limits.context_bytes);
    atomic_store(&context_made_at_ns, process_now_ns());
    atomic_fetch_add(&contexts, 1);
    if (!process_limits_memory())
        return 1;
    if (!usage_reserve(guess, limit, USAGE_IMPLICIT) &&
        !(measure_again() && usage_reserve(guess, limit, USAGE_IMPLICIT))) {
        atomic_fetch_sub(&contexts, 1);
        return 0;
    }
    return 1;
}

void measure_promised(uint64_t had_bytes, uint64_t wanted_bytes)
{
    struct usage_slot *own = atomic_load(&usage_own);
    uint64_t floor = atomic_load(&floor_bytes), lowered = had_bytes > wanted_bytes ? had_bytes - wanted_bytes : 0;
    if (!floor && own && wanted_bytes > had_bytes)
        floor = atomic_load(&own->implicit_bytes); /* the promise is in it already */
    else if (floor)
        floor = floor + wanted_bytes > had_bytes ? floor + wanted_bytes - had_bytes : 0;
    atomic_store(&floor_bytes, floor);
    usage_release(lowered, USAGE_IMPLICIT);
}

void measure_context_gone(void)
{
    int left = atomic_fetch_sub(&contexts, 1) - 1;
    struct usage_slot *own = atomic_load(&usage_own);
    if (left <= 0) {
        atomic_store(&contexts, 0);
        atomic_store(&floor_bytes, 0);
        local_lock_take(&measuring);
        believed_bytes = candidate_bytes = 0;
        local_lock_drop(&measuring);
        usage_set_implicit(0, 0);
    } else if (own && !atomic_load(&own->overheads)) { /* nobody measures: its guess goes with it */
        usage_release(atomic_load(&process_limits.context_bytes), USAGE_IMPLICIT);
    }
}

int measure_busy(void)
{
    return atomic_load(&busy);
}

void measure_forget(void)
{
    local_lock_forget(&measuring);
    believed_bytes = candidate_bytes = candidate_at_ns = 0;
    atomic_store(&measured_at_ns, 0);
    forget_lost_agent();
    if (agent >= 0)
        close(agent); /* the agent knows this connection as the parent's */
    agent = -1;
    int under_way = 1; /* in a thread that the child does not have */
    atomic_compare_exchange_strong(&nvml.tried, &under_way, 0);
    atomic_store(&given_back, 0);
    atomic_store(&busy, 0);
    atomic_store(&contexts, 0);
    atomic_store(&floor_bytes, 0);
}

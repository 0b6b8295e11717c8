/* The shared state of the device: a file named by FAKE_GPU_STATE (or memory of its own), one robust lock, a slot per
 * process held by an open file description lock, so that a killed process gives back what it held, as the real one does.
 */
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MAGIC UINT64_C(0x31555047454b4146) /* "FAKEGPU1" */
#define STALLS_KEPT 1024
#define LOCKS_AT 0x40000000L
#define PIDS_AT 0x50000000L /* locks of the other kind, whose holder's pid the kernel tells in the asker's namespace */
#define REAP_EVERY_NS 2000000
#define SPIN_NS 60000 /* a sleep is late by about that much */

struct stall {
    uint64_t at;         /* on the process's clock */
    uint64_t stalled_ns; /* its sum, this one included */
};
struct gpu_process {
    uint32_t used, pid;
    uint64_t taken_bytes, managed_bytes;
    uint64_t busy_until, busy_ns;
    uint64_t stalled_ns; /* clock = wall - stalled_ns */
    uint64_t stalls;
    struct stall ring[STALLS_KEPT];
};
struct gpu_state {
    _Atomic uint64_t magic;
    pthread_mutex_t lock;
    uint64_t capacity_bytes, slice_ns, switch_ns;
    uint64_t wall_ns; /* the time line is played up to here */
    uint64_t slice_from, slice_end, reaped_at;
    uint32_t owner, high;
    struct gpu_process processes[PROCESSES_MAX];
};

static struct gpu_state *state;
static int state_fd = -1;
static struct gpu_process *self;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

uint64_t environment_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

static uint64_t wall_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void fill_new(struct gpu_state *fresh)
{
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&fresh->lock, &kind);
    fresh->capacity_bytes = environment_number("FAKE_GPU_MEMORY", (uint64_t)16 << 30);
    fresh->slice_ns = environment_number("FAKE_GPU_SLICE_NS", 2000000);
    fresh->switch_ns = environment_number("FAKE_GPU_SWITCH_NS", 100000);
    fresh->wall_ns = wall_now();
    atomic_store(&fresh->magic, MAGIC);
}

static void open_state(void)
{
    const char *path = getenv("FAKE_GPU_STATE");
    int fd = path && *path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : memfd_create("fake-gpu", MFD_CLOEXEC);
    if (fd < 0)
        abort();
    flock(fd, LOCK_EX);
    if (ftruncate(fd, sizeof(struct gpu_state)))
        abort();
    struct gpu_state *mapped = mmap(NULL, sizeof *mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        abort();
    if (atomic_load(&mapped->magic) != MAGIC)
        fill_new(mapped);
    flock(fd, LOCK_UN);
    state_fd = fd;
    state = mapped;
}

static bool slot_lock(uint32_t slot, bool take)
{
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCKS_AT + slot, .l_len = 1};
    if (take)
        return fcntl(state_fd, F_OFD_SETLK, &range) == 0;
    fcntl(state_fd, F_OFD_GETLK, &range);
    return range.l_type == F_UNLCK; /* nobody else holds it */
}

static void show_pid(uint32_t slot)
{
    struct flock byte = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = PIDS_AT + slot, .l_len = 1};
    fcntl(state_fd, F_SETLK, &byte);
}

/* As this process's PID namespace numbers it, like the real driver; 0: it has no number there. */
static uint32_t pid_of(uint32_t slot)
{
    struct flock byte = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = PIDS_AT + slot, .l_len = 1};
    fcntl(state_fd, F_GETLK, &byte); /* one's own lock is not told */
    return byte.l_type == F_UNLCK ? state->processes[slot].pid : (uint32_t)byte.l_pid;
}

static void reap(void)
{
    for (uint32_t slot = 0; slot < state->high; slot++) {
        struct gpu_process *process = &state->processes[slot];
        if (process->used && process != self && slot_lock(slot, false))
            memset(process, 0, sizeof *process);
    }
    while (state->high && !state->processes[state->high - 1].used)
        state->high--;
    state->reaped_at = wall_now();
}

static void claim_slot(void)
{
    reap();
    for (uint32_t slot = 0; slot < PROCESSES_MAX; slot++) {
        struct gpu_process *process = &state->processes[slot];
        if (process->used || !slot_lock(slot, true))
            continue;
        memset(process, 0, sizeof *process);
        process->used = 1;
        process->pid = (uint32_t)getpid();
        self = process;
        show_pid(slot);
        if (slot >= state->high)
            state->high = slot + 1;
        return;
    }
    abort();
}

static void lock_state(void)
{
    pthread_mutex_lock(&opening);
    if (!state)
        open_state();
    pthread_mutex_unlock(&opening);
    if (pthread_mutex_lock(&state->lock) == EOWNERDEAD)
        pthread_mutex_consistent(&state->lock);
}

static void lock_own(void)
{
    lock_state();
    if (!self)
        claim_slot();
}

static void unlock(void)
{
    pthread_mutex_unlock(&state->lock);
}

void gpu_forget_after_fork(void)
{
    pthread_mutex_init(&opening, NULL);
    self = NULL;
    if (!state)
        return;
    munmap(state, sizeof *state);
    close(state_fd); /* the parent's slot must not live on in this process */
    state = NULL;
    state_fd = -1;
}

static uint64_t sum_taken(void)
{
    uint64_t sum = 0;
    for (uint32_t slot = 0; slot < state->high; slot++)
        sum += state->processes[slot].taken_bytes;
    return sum;
}

bool gpu_take(uint64_t bytes)
{
    lock_own();
    bool fits = bytes <= state->capacity_bytes && sum_taken() <= state->capacity_bytes - bytes;
    if (!fits) {
        reap();
        fits = bytes <= state->capacity_bytes && sum_taken() <= state->capacity_bytes - bytes;
    }
    if (fits)
        self->taken_bytes += bytes;
    unlock();
    return fits;
}

void gpu_give(uint64_t bytes)
{
    lock_own();
    if (bytes > self->taken_bytes)
        abort();
    self->taken_bytes -= bytes;
    unlock();
}

void gpu_take_managed(uint64_t bytes)
{
    lock_own();
    self->managed_bytes += bytes;
    unlock();
}

void gpu_give_managed(uint64_t bytes)
{
    lock_own();
    self->managed_bytes -= bytes;
    unlock();
}

uint64_t gpu_capacity_bytes(void)
{
    lock_state();
    uint64_t bytes = state->capacity_bytes;
    unlock();
    return bytes;
}

enum figure { TAKEN, MANAGED, BUSY };

static void play(uint64_t now);

static uint64_t figure_of(uint32_t pid, enum figure which)
{
    uint64_t sum = 0;
    lock_state();
    reap();
    play(wall_now());
    for (uint32_t slot = 0; slot < state->high; slot++) {
        struct gpu_process *process = &state->processes[slot];
        if (process->used && (!pid || pid_of(slot) == pid))
            sum += which == TAKEN ? process->taken_bytes : which == MANAGED ? process->managed_bytes : process->busy_ns;
    }
    unlock();
    return sum;
}

uint64_t gpu_taken_bytes(uint32_t pid)
{
    return figure_of(pid, TAKEN);
}

uint64_t gpu_managed_bytes(uint32_t pid)
{
    return figure_of(pid, MANAGED);
}

/* In two containers processes may have one number, so whoever asks for his own is told of himself. */
uint64_t gpu_busy_ns(uint32_t pid)
{
    if (pid != (uint32_t)getpid())
        return figure_of(pid, BUSY);
    lock_own();
    play(wall_now());
    uint64_t busy_ns = self->busy_ns;
    unlock();
    return busy_ns;
}

uint32_t gpu_processes(uint32_t *pids, uint64_t *bytes, uint32_t most)
{
    uint32_t count = 0;
    lock_state();
    reap();
    for (uint32_t slot = 0; slot < state->high; slot++) {
        struct gpu_process *process = &state->processes[slot];
        if (!process->used || !process->taken_bytes)
            continue;
        if (count < most) {
            pids[count] = pid_of(slot);
            bytes[count] = process->taken_bytes;
        }
        count++;
    }
    unlock();
    return count;
}

/* --- the time line --------------------------------------------------------------------------------------------- */

static uint64_t clock_of(const struct gpu_process *process)
{
    return state->wall_ns - process->stalled_ns;
}

static uint64_t work_left(const struct gpu_process *process)
{
    uint64_t at = clock_of(process);
    return process->used && process->busy_until > at ? process->busy_until - at : 0;
}

static void stand_still(struct gpu_process *process, uint64_t ns)
{
    uint64_t at = clock_of(process);
    struct stall *last = process->stalls ? &process->ring[(process->stalls - 1) % STALLS_KEPT] : NULL;
    process->stalled_ns += ns;
    if (!last || last->at != at) {
        last = &process->ring[process->stalls++ % STALLS_KEPT];
        last->at = at;
    }
    last->stalled_ns = process->stalled_ns;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint32_t next_busy(uint32_t after)
{
    for (uint32_t step = 1; step <= state->high; step++) {
        uint32_t slot = (after + step) % state->high;
        if (work_left(&state->processes[slot]))
            return slot;
    }
    return after;
}

/* One step in which nothing changes: everybody idle, one process busy, or one slice (or switch) of several. */
static void play_step(uint64_t now, uint32_t busy, uint32_t any)
{
    uint64_t step = now - state->wall_ns;
    struct gpu_process *runs = busy ? &state->processes[any] : NULL;
    if (busy > 1) {
        if (state->owner >= state->high || !work_left(&state->processes[state->owner]) ||
            state->wall_ns >= state->slice_end) {
            state->owner = next_busy(state->owner);
            state->slice_from = state->wall_ns + state->switch_ns;
            state->slice_end = state->slice_from + state->slice_ns;
        }
        runs = state->wall_ns < state->slice_from ? NULL : &state->processes[state->owner];
        step = least(step, (runs ? state->slice_end : state->slice_from) - state->wall_ns);
    }
    if (runs)
        step = least(step, work_left(runs));
    for (uint32_t slot = 0; busy > 1 && slot < state->high; slot++)
        if (&state->processes[slot] != runs && work_left(&state->processes[slot]))
            stand_still(&state->processes[slot], step);
    if (runs)
        runs->busy_ns += step;
    state->wall_ns += step;
}

static void play(uint64_t now)
{
    bool contended = false;
    while (state->wall_ns < now) {
        uint32_t busy = 0, any = 0;
        for (uint32_t slot = 0; slot < state->high; slot++)
            if (work_left(&state->processes[slot])) {
                busy++;
                any = slot;
            }
        contended |= busy > 1;
        play_step(now, busy, any);
    }
    if (contended && now > state->reaped_at + REAP_EVERY_NS)
        reap();
}

uint64_t gpu_clock(void)
{
    lock_own();
    play(wall_now());
    uint64_t at = clock_of(self);
    unlock();
    return at;
}

uint64_t gpu_submit(uint64_t not_before, uint64_t duration_ns)
{
    lock_own();
    play(wall_now());
    uint64_t at = clock_of(self);
    uint64_t end = (at > not_before ? at : not_before) + duration_ns;
    if (end > self->busy_until)
        self->busy_until = end;
    unlock();
    return end;
}

bool gpu_reached(uint64_t moment)
{
    return gpu_clock() >= moment;
}

void gpu_wait(uint64_t moment)
{
    for (uint64_t at = gpu_clock(); at < moment; at = gpu_clock()) {
        uint64_t left = least(moment - at, 50000000);
        if (left <= SPIN_NS)
            continue;
        left -= SPIN_NS;
        struct timespec nap = {.tv_sec = 0, .tv_nsec = (long)left};
        int kept = errno;
        clock_nanosleep(CLOCK_MONOTONIC, 0, &nap, NULL);
        errno = kept;
    }
}

uint64_t gpu_wall_ns(uint64_t moment)
{
    lock_own();
    uint64_t first = self->stalls > STALLS_KEPT ? self->stalls - STALLS_KEPT : 0;
    uint64_t stalled = first ? self->ring[first % STALLS_KEPT].stalled_ns : 0;
    for (uint64_t i = self->stalls; i > first; i--) {
        const struct stall *stall = &self->ring[(i - 1) % STALLS_KEPT];
        if (stall->at < moment) {
            stalled = stall->stalled_ns;
            break;
        }
    }
    unlock();
    return moment + stalled;
}

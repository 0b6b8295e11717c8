#include "timing.h"

#include "audit.h"
#include "capture.h"
#include "driver.h"
#include "estimate.h"
#include "local_lock.h"
#include "memory.h"
#include "pace.h"
#include "process.h"
#include "usage.h"

#include <string.h>
#include <time.h>

#define ENTRIES 8192u /* kernels and grids told apart; further ones share the last place that was looked at */
#define PROBES_MAX 32u
#define BURSTS_MAX 64
#define BURST_LAUNCHES_MAX 16u
#define BURST_NS UINT64_C(300000)
#define HOST_PAUSE_NS UINT64_C(200000) /* between two launches of a burst: the GPU was idle, and that is not the kernel's */
#define BURST_LOST_NS UINT64_C(2000000000) /* its thread is gone */
#define OPEN_MAX 8                         /* streams of one thread that are timed at once */
#define SAMPLE_APART 131u /* launches, where the kernel is well known; a prime, so that no loop hides behind it */
#define BRACKET_FIRST_NS UINT64_C(3000)    /* what two events read around one launch beyond its own time */
#define BRACKET_NS UINT64_C(1500)          /* and around a burst: recording them took the host that long */
#define FIRST_WAIT_NS UINT64_C(10000000000)
#define ASSUMED_NS UINT64_C(100000) /* where nothing can be timed: during captures */
#define REBASE_NS UINT64_C(2000000000)
#define SWITCHES_LOOK 128u /* launches after which it is judged whether several streams work at once */
#define SWITCHES_MANY 8u
#define WINDOW_NS UINT64_C(20000000) /* GPU time over which overlap is averaged */
#define BUSY_TIMES 2u
#define SCALE_ONE 1024u
#define SCALE_MAX 1054u /* 3 %: beyond it is a neighbour's time, not ours */
#define SCALE_MIN_ALONE 994u /* one stream overlaps with nothing: what it misses was mispredicted */

/* BUSY: a thread is in the middle of a call with it, and nobody else touches it, however long that call takes. OPEN: it
 * waits for its thread's next launch, and may be taken away: by whoever destroys its stream, or when it seems lost. */
enum burst_state { BURST_FREE, BURST_BUSY, BURST_OPEN, BURST_PENDING };

struct burst {
    _Atomic int state;
    uint64_t context;
    CUstream stream;
    CUevent begin, end;
    uint64_t first_at_ns, last_at_ns;
    uint64_t predicted_ns, charged_ns;
    uint64_t sequence;
    unsigned int launches, unsteady;
    int ahead; /* its last launch went while the GPU had not come to its first */
    int first_of_entry; /* one launch of something unknown */
    uint32_t entries[BURST_LAUNCHES_MAX];
    uint64_t predictions_ns[BURST_LAUNCHES_MAX];
};

static struct estimate entries[ENTRIES];
static struct burst bursts[BURSTS_MAX];
static struct local_lock settling;
static _Atomic uint64_t sequence;

/* The GPU's time line, under `settling`: covered up to here by bursts already counted, relative to `base`. */
static struct {
    uint64_t context;
    CUevent base;
    double covered_ns;
    uint64_t busy_ns, predicted_ns;
} line;
static _Atomic uint32_t scale = SCALE_ONE;
static _Atomic int crowded; /* several streams at once: every burst has to be seen to know how they overlap */
static _Atomic uintptr_t latest_stream;
static _Atomic uint32_t switches, launches_seen;

static __thread struct {
    uint32_t generation;
    uint32_t tick;
    int open[OPEN_MAX]; /* -1: none; else a burst, this thread's as long as it has the sequence it had */
    uint64_t sequence[OPEN_MAX];
    uint64_t last_at_ns[OPEN_MAX];
    CUstream stream[OPEN_MAX];
} mine;

uint64_t timing_key(const void *function, const unsigned int shape[6])
{
    uint64_t key = (uint64_t)(uintptr_t)function * UINT64_C(0x9E3779B97F4A7C15);
    for (int i = 0; i < 6; i++)
        key = (key ^ shape[i]) * UINT64_C(0xD6E8FEB86659FD93);
    key ^= key >> 32;
    return key ? key : 1;
}

static uint32_t entry_of(uint64_t key)
{
    uint32_t at = (uint32_t)key % ENTRIES;
    for (uint32_t tried = 0; tried < PROBES_MAX; tried++, at = (at + 1) % ENTRIES) {
        uint64_t seen = atomic_load_explicit(&entries[at].key, memory_order_relaxed);
        if (seen == key)
            return at;
        if (!seen && atomic_compare_exchange_strong(&entries[at].key, &seen, key))
            return at;
        if (seen == key)
            return at;
    }
    return at;
}

static void renew_mine(void)
{
    uint32_t generation = atomic_load_explicit(&process_generation, memory_order_relaxed);
    if (mine.generation == generation)
        return;
    mine.generation = generation;
    mine.tick = 0;
    for (int i = 0; i < OPEN_MAX; i++)
        mine.open[i] = -1;
}

/* ---- settling: what completed bursts tell ---- */

static uint64_t nanoseconds(float milliseconds)
{
    return milliseconds > 0 ? (uint64_t)((double)milliseconds * 1e6) : 0;
}

/* Where on the time line the burst began; starts the line anew where it is another context's or has grown long. */
static double begin_on_line(struct burst *burst)
{
    float since = 0;
    if (line.context == burst->context && line.base &&
        DRIVER(cuEventElapsedTime)(&since, line.base, burst->begin) == CUDA_SUCCESS) {
        double at_ns = (double)since * 1e6;
        if (at_ns < (double)REBASE_NS)
            return at_ns;
        line.covered_ns = line.covered_ns > at_ns ? line.covered_ns - at_ns : 0;
    } else {
        line.covered_ns = 0;
    }
    CUevent old = line.context == burst->context ? line.base : NULL;
    line.context = burst->context;
    line.base = burst->begin;
    burst->begin = old; /* NULL: another is made when the place is used again */
    return 0;
}

/* What the burst adds to the time that is covered already. */
static uint64_t cover(double began_ns, uint64_t took_ns)
{
    double ended_ns = began_ns + (double)took_ns;
    double from_ns = began_ns > line.covered_ns ? began_ns : line.covered_ns;
    if (ended_ns <= from_ns)
        return 0;
    line.covered_ns = ended_ns;
    return (uint64_t)(ended_ns - from_ns);
}

static void count_overlap(uint64_t added_ns, const struct burst *burst)
{
    line.busy_ns += added_ns;
    line.predicted_ns += burst->predicted_ns;
    if (line.predicted_ns < WINDOW_NS && line.busy_ns < WINDOW_NS)
        return;
    uint64_t ratio = line.predicted_ns ? line.busy_ns * SCALE_ONE / line.predicted_ns : SCALE_ONE;
    if (ratio > SCALE_MAX)
        ratio = SCALE_MAX;
    if (ratio < SCALE_MIN_ALONE && !atomic_load_explicit(&crowded, memory_order_relaxed))
        ratio = SCALE_MIN_ALONE;
    uint32_t before = atomic_load_explicit(&scale, memory_order_relaxed);
    atomic_store_explicit(&scale, (uint32_t)((before + ratio + 1) / 2), memory_order_relaxed);
    line.busy_ns = line.predicted_ns = 0;
}

static int is_first_of_its_kind(const struct burst *burst, unsigned int position)
{
    for (unsigned int i = 0; i < position; i++)
        if (burst->entries[i] == burst->entries[position])
            return 0;
    return 1;
}

static uint64_t without_bracket(uint64_t took_ns, uint64_t bracket_ns)
{
    return took_ns > 2 * bracket_ns ? took_ns - bracket_ns : took_ns / 2;
}

static void learn_first(const struct burst *burst, uint64_t took_ns)
{
    struct estimate *entry = &entries[burst->entries[0]];
    uint64_t now_ns = process_now_ns();
    estimate_add(entry, took_ns, pace_is_alone(now_ns));
    pace_charge(took_ns, now_ns);
    atomic_store(&entry->pending, 0);
}

static void learn(const struct burst *burst, uint64_t took_ns)
{
    int alone = pace_is_alone(process_now_ns());
    /* The burst's time is divided as it was predicted: right in sum, and exact where all launches are of one kind. */
    for (unsigned int i = 0; i < burst->launches && burst->predicted_ns; i++) {
        if (!is_first_of_its_kind(burst, i))
            continue;
        double share = (double)burst->predictions_ns[i] / (double)burst->predicted_ns;
        estimate_add(&entries[burst->entries[i]], (uint64_t)((double)took_ns * share), alone);
    }
}

/* Where launches came no faster than they were carried out, the GPU may have been idle between them. (They also come no
 * faster while the driver's queue is full, but then it is far behind.) */
static int kept_the_gpu_busy(const struct burst *burst, uint64_t took_ns)
{
    return burst->ahead || took_ns > BUSY_TIMES * (burst->last_at_ns - burst->first_at_ns);
}

static void audit(const struct burst *burst, uint64_t took_ns, uint64_t added_ns)
{
    if (!burst->unsteady || !kept_the_gpu_busy(burst, took_ns))
        return;
    struct audit_window launches = {added_ns, burst->predicted_ns, burst->charged_ns};
    audit_timed(&launches, process_now_ns());
}

static void abandon(struct burst *burst)
{
    if (burst->first_of_entry)
        atomic_store(&entries[burst->entries[0]].pending, 0);
    atomic_store_explicit(&burst->state, BURST_FREE, memory_order_release);
}

/* Under `settling`. 0: the GPU has not come to its end yet. */
static int settle(struct burst *burst)
{
    float took = 0;
    CUresult done = DRIVER(cuEventQuery)(burst->end);
    if (done == CUDA_ERROR_NOT_READY)
        return 0;
    if (done == CUDA_SUCCESS && DRIVER(cuEventElapsedTime)(&took, burst->begin, burst->end) == CUDA_SUCCESS) {
        uint64_t took_ns = nanoseconds(took);
        if (burst->first_of_entry) {
            learn_first(burst, without_bracket(took_ns, BRACKET_FIRST_NS));
        } else {
            uint64_t alone_ns = without_bracket(took_ns, BRACKET_NS);
            learn(burst, alone_ns);
            uint64_t added_ns = cover(begin_on_line(burst), alone_ns);
            count_overlap(added_ns, burst);
            audit(burst, alone_ns, added_ns);
        }
    }
    abandon(burst);
    return 1;
}

/* In the order in which they began, so that the time line is walked forward. */
static void settle_some(uint64_t context, int most)
{
    if (atomic_load_explicit(&captures_open, memory_order_relaxed) > 0 || !local_lock_try(&settling))
        return;
    for (int done = 0; done < most; done++) {
        struct burst *oldest = NULL;
        for (int i = 0; i < BURSTS_MAX; i++) {
            struct burst *burst = &bursts[i];
            if (atomic_load_explicit(&burst->state, memory_order_acquire) == BURST_PENDING &&
                burst->context == context && (!oldest || burst->sequence < oldest->sequence))
                oldest = burst;
        }
        if (!oldest || !settle(oldest))
            break;
    }
    local_lock_drop(&settling);
}

/* ---- bursts ---- */

static int claim(uint64_t now_ns)
{
    for (int i = 0; i < BURSTS_MAX; i++) {
        int state = atomic_load_explicit(&bursts[i].state, memory_order_relaxed);
        int lost = state == BURST_OPEN && bursts[i].last_at_ns + BURST_LOST_NS < now_ns;
        if ((state == BURST_FREE || lost) && atomic_compare_exchange_strong(&bursts[i].state, &state, BURST_BUSY))
            return i;
    }
    return -1;
}

static int events_ready(struct burst *burst, uint64_t context)
{
    if (burst->context != context) {
        burst->begin = burst->end = NULL; /* they belong to the other context */
        burst->context = context;
    }
    if (!burst->begin && DRIVER(cuEventCreate)(&burst->begin, 0) != CUDA_SUCCESS)
        burst->begin = NULL;
    if (!burst->end && DRIVER(cuEventCreate)(&burst->end, 0) != CUDA_SUCCESS)
        burst->end = NULL;
    return burst->begin && burst->end;
}

/* Stays BUSY, and so this thread's, until the launch has gone. */
static int open_burst(CUstream stream, uint64_t now_ns)
{
    int at = claim(now_ns);
    if (at < 0)
        return -1;
    struct burst *burst = &bursts[at];
    burst->last_at_ns = now_ns;
    burst->launches = burst->unsteady = 0;
    burst->first_of_entry = burst->ahead = 0;
    if (!events_ready(burst, memory_context()) || DRIVER(cuEventRecord)(burst->begin, stream) != CUDA_SUCCESS) {
        atomic_store(&burst->state, BURST_FREE);
        return -1;
    }
    burst->stream = stream;
    burst->first_at_ns = now_ns;
    burst->predicted_ns = burst->charged_ns = 0;
    burst->sequence = atomic_fetch_add_explicit(&sequence, 1, memory_order_relaxed);
    return at;
}

/* BUSY and this thread's again, or NULL where it was taken away meanwhile. */
static struct burst *hold(int slot)
{
    struct burst *burst = &bursts[mine.open[slot]];
    int state = BURST_OPEN;
    if (atomic_compare_exchange_strong(&burst->state, &state, BURST_BUSY)) {
        if (burst->sequence == mine.sequence[slot])
            return burst;
        atomic_store_explicit(&burst->state, BURST_OPEN, memory_order_release);
    }
    mine.open[slot] = -1;
    return NULL;
}

static void finish(struct burst *burst)
{
    if (burst->unsteady)
        burst->ahead = DRIVER(cuEventQuery)(burst->begin) == CUDA_ERROR_NOT_READY;
    if (burst->launches == 0 || DRIVER(cuEventRecord)(burst->end, burst->stream) != CUDA_SUCCESS)
        abandon(burst);
    else
        atomic_store_explicit(&burst->state, BURST_PENDING, memory_order_release);
}

static void close_burst(int slot)
{
    struct burst *burst = hold(slot);
    mine.open[slot] = -1;
    if (burst)
        finish(burst);
}

static int may_time(void)
{
    return atomic_load_explicit(&captures_open, memory_order_relaxed) <= 0 && DRIVER_HAS(cuEventElapsedTime) &&
           DRIVER_HAS(cuEventCreate) && DRIVER_HAS(cuEventRecord) && DRIVER_HAS(cuEventQuery);
}

static void close_all(void)
{
    if (!may_time())
        return;
    for (int i = 0; i < OPEN_MAX; i++)
        if (mine.open[i] >= 0)
            close_burst(i);
}

/* This thread's open burst on the stream, if its last launch was just now; -1: none. `slot`: where one may be put. */
static int find_open(CUstream stream, uint64_t now_ns, int *slot)
{
    int found = -1;
    *slot = -1;
    for (int i = 0; i < OPEN_MAX; i++) {
        if (mine.open[i] < 0) {
            *slot = *slot < 0 ? i : *slot;
            continue;
        }
        if (now_ns - mine.last_at_ns[i] > HOST_PAUSE_NS) {
            struct burst *burst = hold(i);
            if (burst)
                abandon(burst);
            mine.open[i] = -1;
            *slot = *slot < 0 ? i : *slot;
        } else if (mine.stream[i] == stream) {
            found = i;
        }
    }
    return found;
}

/* Work that goes to several streams in turn may run on them at once. */
static void watch_streams(CUstream stream)
{
    uintptr_t latest = atomic_load_explicit(&latest_stream, memory_order_relaxed);
    if (latest != (uintptr_t)stream) {
        atomic_store_explicit(&latest_stream, (uintptr_t)stream, memory_order_relaxed);
        atomic_fetch_add_explicit(&switches, 1, memory_order_relaxed);
    }
    if (atomic_fetch_add_explicit(&launches_seen, 1, memory_order_relaxed) % SWITCHES_LOOK != SWITCHES_LOOK - 1)
        return;
    int many = atomic_exchange_explicit(&switches, 0, memory_order_relaxed) >= SWITCHES_MANY;
    if (atomic_exchange_explicit(&crowded, many, memory_order_relaxed) && !many)
        atomic_store_explicit(&scale, SCALE_ONE, memory_order_relaxed);
}

static int is_unsteady(const struct estimate *entry)
{
    return atomic_load_explicit(&entry->unsteady, memory_order_relaxed) != 0;
}

static int is_sampled(const struct estimate *entry, uint64_t now_ns)
{
    if (entry->count < ESTIMATE_SAMPLES || atomic_load_explicit(&crowded, memory_order_relaxed))
        return 1;
    if (is_unsteady(entry) && pace_is_alone(now_ns))
        return 1;
    return mine.tick++ % SAMPLE_APART == 0;
}

/* Something launched for the first time is timed alone, and whoever launches it again waits for that. */
static void wait_for_first(struct estimate *entry, uint64_t now_ns)
{
    struct timespec step = {0, 20000};
    uint64_t context = memory_context();
    while (atomic_load(&entry->pending) && process_now_ns() - now_ns < FIRST_WAIT_NS) {
        settle_some(context, BURSTS_MAX);
        if (!atomic_load(&entry->pending))
            break;
        clock_nanosleep(CLOCK_MONOTONIC, 0, &step, NULL);
        if (step.tv_nsec < 1000000)
            step.tv_nsec *= 2;
    }
    /* It may run for ever, or until this very launch: nobody waits for it again. */
    uint32_t unknown = 0;
    if (atomic_load(&entry->pending))
        atomic_compare_exchange_strong(&entry->ns_believed, &unknown, (uint32_t)ASSUMED_NS);
}

static int time_first(struct estimate *entry, CUstream stream, uint64_t now_ns)
{
    uint32_t free = 0;
    if (!atomic_compare_exchange_strong(&entry->pending, &free, 1))
        return -1;
    close_all();
    int at = open_burst(stream, now_ns);
    if (at < 0)
        atomic_store(&entry->pending, 0);
    else
        bursts[at].first_of_entry = 1;
    return at;
}

static uint64_t credit_at(void)
{
    uint64_t now_ns = process_now_ns();
    if (!pace_must_wait(now_ns))
        return now_ns;
    close_all();
    settle_some(memory_context(), BURSTS_MAX);
    pace_wait(atomic_load_explicit(&crowded, memory_order_relaxed));
    return process_now_ns();
}

static int begin_in(int slot, CUstream stream, uint64_t now_ns)
{
    int at = open_burst(stream, now_ns);
    mine.open[slot] = at;
    if (at < 0)
        return at;
    mine.sequence[slot] = bursts[at].sequence;
    mine.last_at_ns[slot] = now_ns;
    mine.stream[slot] = stream;
    return at;
}

void timing_before(uint64_t key, CUstream stream, struct timing_ticket *ticket)
{
    int slot;
    renew_mine();
    watch_streams(stream);
    ticket->burst = -1;
    ticket->entry = entry_of(key);
    struct estimate *entry = &entries[ticket->entry];
    int unknown = !atomic_load_explicit(&entry->ns_believed, memory_order_relaxed) && may_time();
    /* Its first timing is charged when it is known, so credit is looked at after that. */
    if (unknown && atomic_load(&entry->pending))
        wait_for_first(entry, process_now_ns());
    ticket->now_ns = credit_at();
    if (unknown && !atomic_load(&entry->ns_believed))
        ticket->burst = time_first(entry, stream, ticket->now_ns);
    ticket->predicted_ns = atomic_load_explicit(&entry->ns_believed, memory_order_relaxed);
    if (!ticket->predicted_ns || ticket->burst >= 0 || !may_time())
        return;
    int open = find_open(stream, ticket->now_ns, &slot);
    if (open >= 0)
        ticket->burst = hold(open) ? mine.open[open] : -1;
    else if (slot >= 0 && is_sampled(entry, ticket->now_ns))
        ticket->burst = begin_in(slot, stream, ticket->now_ns);
}

/* -1 where a signal handler that launched, too, found it busy and forgot it. */
static int slot_of(int burst)
{
    for (int i = 0; i < OPEN_MAX; i++)
        if (mine.open[i] == burst)
            return i;
    return -1;
}

static void launched_in_burst(const struct timing_ticket *ticket, uint64_t charged_ns)
{
    struct burst *burst = &bursts[ticket->burst];
    int slot = slot_of(ticket->burst);
    burst->predictions_ns[burst->launches] = ticket->predicted_ns;
    burst->entries[burst->launches++] = ticket->entry;
    burst->predicted_ns += ticket->predicted_ns;
    burst->charged_ns += charged_ns;
    burst->unsteady |= (unsigned int)is_unsteady(&entries[ticket->entry]);
    burst->last_at_ns = ticket->now_ns;
    if (burst->first_of_entry) {
        if (DRIVER(cuEventRecord)(burst->end, burst->stream) == CUDA_SUCCESS)
            atomic_store_explicit(&burst->state, BURST_PENDING, memory_order_release);
        else
            abandon(burst);
    } else if (slot < 0 || burst->launches == BURST_LAUNCHES_MAX || burst->predicted_ns >= BURST_NS) {
        uint64_t context = burst->context;
        if (slot >= 0)
            mine.open[slot] = -1;
        finish(burst);
        settle_some(context, 2);
    } else {
        mine.last_at_ns[slot] = ticket->now_ns;
        atomic_store_explicit(&burst->state, BURST_OPEN, memory_order_release);
    }
}

static void not_launched(const struct timing_ticket *ticket)
{
    struct burst *burst = &bursts[ticket->burst];
    if (burst->first_of_entry) {
        burst->entries[0] = ticket->entry;
        abandon(burst);
    } else {
        atomic_store_explicit(&burst->state, BURST_OPEN, memory_order_release);
    }
}

static uint64_t price_of(const struct timing_ticket *ticket)
{
    uint64_t predicted_ns = ticket->predicted_ns ? ticket->predicted_ns : ASSUMED_NS;
    uint64_t price_ns = predicted_ns * atomic_load_explicit(&scale, memory_order_relaxed) / SCALE_ONE;
    return is_unsteady(&entries[ticket->entry]) ? price_ns * audit_factor() / AUDIT_ONE : price_ns;
}

void timing_after(const struct timing_ticket *ticket, CUstream stream, int launched)
{
    struct usage_slot *own = atomic_load_explicit(&usage_own, memory_order_relaxed);
    (void)stream;
    if (!launched) {
        if (ticket->burst >= 0)
            not_launched(ticket);
        return;
    }
    if (own)
        atomic_fetch_add_explicit(&own->launches, 1, memory_order_relaxed);
    int first = ticket->burst >= 0 && bursts[ticket->burst].first_of_entry;
    uint64_t charged_ns = first ? 0 : price_of(ticket); /* a first one is charged when its timing is known */
    if (ticket->burst >= 0)
        launched_in_burst(ticket, charged_ns);
    if (!first)
        pace_charge(charged_ns, ticket->now_ns);
}

/* Its events end with the context. A busy one is in a call of another thread, which no program makes in a context that
 * it destroys. */
static void forget_events(struct burst *burst, uint64_t context)
{
    int state = atomic_load(&burst->state), taken = state;
    if (state == BURST_BUSY || !atomic_compare_exchange_strong(&burst->state, &taken, BURST_BUSY))
        return;
    if (burst->context != context) {
        atomic_store_explicit(&burst->state, state, memory_order_release);
        return;
    }
    burst->begin = burst->end = NULL;
    burst->context = 0;
    if (state == BURST_PENDING)
        abandon(burst);
    else
        atomic_store_explicit(&burst->state, BURST_FREE, memory_order_release);
}

/* An open burst would be ended with an event on a stream that is no more. Called before the driver destroys it. */
void timing_stream_gone(CUstream stream)
{
    for (int i = 0; i < BURSTS_MAX; i++) {
        int state = BURST_OPEN;
        if (!atomic_compare_exchange_strong(&bursts[i].state, &state, BURST_BUSY))
            continue;
        state = bursts[i].stream == stream ? BURST_FREE : BURST_OPEN;
        atomic_store_explicit(&bursts[i].state, state, memory_order_release);
    }
}

void timing_context_gone(uint64_t context)
{
    local_lock_take(&settling);
    for (int i = 0; i < BURSTS_MAX; i++)
        forget_events(&bursts[i], context);
    if (line.context == context)
        memset(&line, 0, sizeof line);
    local_lock_drop(&settling);
}

void timing_forget(void)
{
    local_lock_forget(&settling);
    memset(bursts, 0, sizeof bursts);
    memset(&line, 0, sizeof line);
    for (uint32_t i = 0; i < ENTRIES; i++)
        if (atomic_load_explicit(&entries[i].pending, memory_order_relaxed)) /* writing would copy every page */
            atomic_store_explicit(&entries[i].pending, 0, memory_order_relaxed);
    atomic_store(&scale, SCALE_ONE);
    atomic_store(&crowded, 0);
    audit_forget();
}

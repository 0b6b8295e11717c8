#include "bursts.h"

#include "capture.h"
#include "driver.h"
#include "kernels.h"
#include "memory.h"
#include "process.h"

#define BURST_LOST_NS UINT64_C(2000000000) /* its thread is gone */

struct burst bursts[BURSTS_MAX];
__thread struct own_bursts bursts_mine;

static _Atomic uint64_t sequence;

void bursts_abandon(struct burst *burst)
{
    if (burst->first_of_entry)
        atomic_store(&kernels[burst->entries[0]].pending, 0);
    atomic_store_explicit(&burst->state, BURST_FREE, memory_order_release);
}

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
int bursts_open(CUstream stream, uint64_t now_ns)
{
    int at = claim(now_ns);
    if (at < 0)
        return -1;
    struct burst *burst = &bursts[at];
    burst->last_at_ns = now_ns;
    burst->launches = burst->unsteady = 0;
    burst->first_of_entry = burst->ahead = burst->single = burst->is_forsaken = 0;
    burst->is_marker = 0;
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

void bursts_finish(struct burst *burst)
{
    if ((burst->unsteady || burst->is_marker) && atomic_load_explicit(&captures_open, memory_order_relaxed) <= 0)
        burst->ahead = DRIVER(cuEventQuery)(burst->begin) == CUDA_ERROR_NOT_READY;
    if (burst->launches == 0 || DRIVER(cuEventRecord)(burst->end, burst->stream) != CUDA_SUCCESS)
        bursts_abandon(burst);
    else
        atomic_store_explicit(&burst->state, BURST_PENDING, memory_order_release);
}

/* Its events end with the context. A busy one is in a call of another thread, which no program makes in a context that
 * it destroys. */
void bursts_forget_events(struct burst *burst, uint64_t context)
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
        bursts_abandon(burst);
    else
        atomic_store_explicit(&burst->state, BURST_FREE, memory_order_release);
}

/* ---- this thread's open ones ---- */

void bursts_renew_mine(void)
{
    uint32_t generation = atomic_load_explicit(&process_generation, memory_order_relaxed);
    if (bursts_mine.generation == generation)
        return;
    bursts_mine.generation = generation;
    bursts_mine.tick = 0;
    bursts_mine.sparse = 0;
    bursts_mine.is_marking = 0;
    bursts_mine.latest_at_ns = 0;
    for (int i = 0; i < OPEN_MAX; i++)
        bursts_mine.open[i] = -1;
}

/* BUSY and this thread's again, or NULL where it was taken away meanwhile. */
struct burst *bursts_hold(int slot)
{
    struct burst *burst = &bursts[bursts_mine.open[slot]];
    int state = BURST_OPEN;
    if (atomic_compare_exchange_strong(&burst->state, &state, BURST_BUSY)) {
        if (burst->sequence == bursts_mine.sequence[slot])
            return burst;
        atomic_store_explicit(&burst->state, BURST_OPEN, memory_order_release);
    }
    bursts_mine.open[slot] = -1;
    return NULL;
}

static void close_burst(int slot)
{
    struct burst *burst = bursts_hold(slot);
    bursts_mine.open[slot] = -1;
    if (burst)
        bursts_finish(burst);
}

int bursts_may_time(void)
{
    return atomic_load_explicit(&captures_open, memory_order_relaxed) <= 0 && DRIVER_HAS(cuEventElapsedTime) &&
           DRIVER_HAS(cuEventCreate) && DRIVER_HAS(cuEventRecord) && DRIVER_HAS(cuEventQuery);
}

void bursts_close_all(void)
{
    if (!bursts_may_time())
        return;
    for (int i = 0; i < OPEN_MAX; i++)
        if (bursts_mine.open[i] >= 0)
            close_burst(i);
}

/* This thread's open burst on the stream, if its last launch was just now; -1: none. `slot`: where one may be put. */
int bursts_find_open(CUstream stream, uint64_t now_ns, int *slot)
{
    int found = -1;
    *slot = -1;
    for (int i = 0; i < OPEN_MAX; i++) {
        if (bursts_mine.open[i] < 0) {
            *slot = *slot < 0 ? i : *slot;
            continue;
        }
        if (now_ns - bursts_mine.last_at_ns[i] > HOST_PAUSE_NS) {
            struct burst *burst = bursts_hold(i);
            if (burst)
                bursts_abandon(burst);
            bursts_mine.open[i] = -1;
            *slot = *slot < 0 ? i : *slot;
        } else if (bursts_mine.stream[i] == stream) {
            found = i;
        }
    }
    return found;
}

int bursts_begin_in(int slot, CUstream stream, uint64_t now_ns, int is_marker)
{
    int at = bursts_open(stream, now_ns);
    bursts_mine.open[slot] = at;
    if (at < 0)
        return at;
    bursts[at].is_marker = is_marker;
    bursts_mine.is_marking = 0;
    bursts_mine.sequence[slot] = bursts[at].sequence;
    bursts_mine.last_at_ns[slot] = now_ns;
    bursts_mine.stream[slot] = stream;
    return at;
}

/* -1 where a signal handler that launched, too, found it busy and forgot it. */
int bursts_slot_of(int burst)
{
    for (int i = 0; i < OPEN_MAX; i++)
        if (bursts_mine.open[i] == burst)
            return i;
    return -1;
}

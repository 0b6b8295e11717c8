#include "timing.h"

#include "bursts.h"
#include "credit.h"
#include "driver.h"
#include "kernels.h"
#include "memory.h"
#include "overlap.h"
#include "pace.h"
#include "process.h"
#include "samples.h"
#include "usage.h"

#include <string.h>
#include <time.h>

#define SAMPLE_APART 131u /* launches, where the kernel is well known; a prime, so that no loop hides behind it */
#define SAMPLE_APART_LONG 13u /* of those that fill a burst by themselves: they are few, and timing them costs little */
#define FIRST_WAIT_NS UINT64_C(10000000000)
#define LATE_NS (CREDIT_AHEAD_NS + UINT64_C(1000000))
#define LATE_LOOK_NS 100000
#define LATE_WAIT_NS UINT64_C(25000000)
#define ASSUMED_NS UINT64_C(100000) /* where nothing can be timed: during captures */

uint64_t timing_key(const void *function, const unsigned int shape[6])
{
    uint64_t key = (uint64_t)(uintptr_t)function * UINT64_C(0x9E3779B97F4A7C15);
    for (int i = 0; i < 6; i++)
        key = (key ^ shape[i]) * UINT64_C(0xD6E8FEB86659FD93);
    key ^= key >> 32;
    return key ? key : 1;
}

static int is_unsteady(const struct estimate *entry)
{
    return atomic_load_explicit(&entry->unsteady, memory_order_relaxed) != 0;
}

static uint64_t predicted_ns(const struct estimate *entry)
{
    uint32_t audited_ns = is_unsteady(entry) ? estimate_audited(entry) : 0;
    return audited_ns ? audited_ns : atomic_load_explicit(&entry->ns_believed, memory_order_relaxed);
}

static int is_sampled(const struct estimate *entry, uint64_t now_ns)
{
    if (entry->count < ESTIMATE_SAMPLES || atomic_load_explicit(&overlap_crowded, memory_order_relaxed))
        return 1;
    if (atomic_load_explicit(&entry->doubted, memory_order_relaxed))
        return 1;
    if (is_unsteady(entry) && pace_is_alone(now_ns))
        return 1;
    int is_long = atomic_load_explicit(&entry->ns_believed, memory_order_relaxed) >= BURST_NS;
    return bursts_mine.tick++ % (is_long ? SAMPLE_APART_LONG : SAMPLE_APART) == 0;
}

/* Something launched for the first time is timed alone, and whoever launches it again waits for that. */
static void wait_for_first(struct estimate *entry, uint64_t now_ns)
{
    struct timespec step = {0, 20000};
    uint64_t context = memory_context();
    while (atomic_load(&entry->pending) && process_now_ns() - now_ns < FIRST_WAIT_NS) {
        samples_settle(context, BURSTS_MAX);
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
    bursts_close_all();
    int at = bursts_open(stream, now_ns);
    if (at < 0)
        atomic_store(&entry->pending, 0);
    else
        bursts[at].first_of_entry = 1;
    return at;
}

/* A program that waits for each of its launches would never end a burst in time: its bursts are of one. What it waits
 * for credit is no pause of its own. */
static void look_for_pause(uint64_t now_ns)
{
    bursts_mine.sparse = bursts_mine.latest_at_ns && now_ns - bursts_mine.latest_at_ns > HOST_PAUSE_NS;
}

/* What a turn leaves undone runs into the next owner's, whose launches are late then, too, and so on for ever. So what is
 * late is waited for, at the cost of the turn. */
static void wait_for_late(void)
{
    uint64_t context = memory_context(), began_ns = process_now_ns(), now_ns = began_ns;
    struct timespec step = {0, LATE_LOOK_NS};
    bursts_mine.is_marking = 1;
    while (now_ns - began_ns < LATE_WAIT_NS && samples_are_late(context, now_ns, LATE_NS)) {
        clock_nanosleep(CLOCK_MONOTONIC, 0, &step, NULL);
        samples_settle(context, BURSTS_MAX);
        now_ns = process_now_ns();
    }
    if (now_ns - began_ns >= LATE_WAIT_NS)
        samples_forsake_late(context, now_ns, LATE_NS);
}

static uint64_t credit_at(struct credit_terms *terms)
{
    uint64_t now_ns = process_now_ns();
    look_for_pause(now_ns);
    *terms = pace_terms(now_ns);
    if (!pace_must_wait(now_ns, terms))
        return now_ns;
    bursts_close_all();
    samples_settle(memory_context(), BURSTS_MAX);
    pace_wait(atomic_load_explicit(&overlap_crowded, memory_order_relaxed));
    *terms = pace_terms(process_now_ns());
    if (terms->turn_ns && bursts_may_time())
        wait_for_late();
    return process_now_ns();
}

void timing_before(uint64_t key, CUstream stream, struct timing_ticket *ticket)
{
    int slot;
    bursts_renew_mine();
    overlap_watch_streams(stream);
    ticket->burst = -1;
    ticket->entry = kernels_entry_of(key);
    struct estimate *entry = &kernels[ticket->entry];
    int unknown = !atomic_load_explicit(&entry->ns_believed, memory_order_relaxed) && bursts_may_time();
    /* Its first timing is charged when it is known, so credit is looked at after that. */
    if (unknown && atomic_load(&entry->pending))
        wait_for_first(entry, process_now_ns());
    ticket->now_ns = credit_at(&ticket->terms);
    if (unknown && !atomic_load(&entry->ns_believed))
        ticket->burst = time_first(entry, stream, ticket->now_ns);
    ticket->predicted_ns = predicted_ns(entry);
    if (!ticket->predicted_ns || ticket->burst >= 0 || !bursts_may_time())
        return;
    int open = bursts_find_open(stream, ticket->now_ns, &slot);
    if (open >= 0) {
        ticket->burst = bursts_hold(open) ? bursts_mine.open[open] : -1;
    } else if (slot >= 0) {
        /* Counted before it is asked whether it is a marker: where each launch waits for credit, each is one. */
        int sampled = is_sampled(entry, ticket->now_ns);
        if (sampled || bursts_mine.is_marking)
            ticket->burst = bursts_begin_in(slot, stream, ticket->now_ns, !sampled);
    }
}

static void launched_in_burst(const struct timing_ticket *ticket, uint64_t charged_ns)
{
    struct burst *burst = &bursts[ticket->burst];
    int slot = bursts_slot_of(ticket->burst);
    burst->predictions_ns[burst->launches] = ticket->predicted_ns;
    burst->entries[burst->launches++] = ticket->entry;
    burst->predicted_ns += ticket->predicted_ns;
    burst->charged_ns += charged_ns;
    burst->unsteady |= (unsigned int)is_unsteady(&kernels[ticket->entry]);
    burst->last_at_ns = ticket->now_ns;
    if (burst->first_of_entry) {
        if (DRIVER(cuEventRecord)(burst->end, burst->stream) == CUDA_SUCCESS)
            atomic_store_explicit(&burst->state, BURST_PENDING, memory_order_release);
        else
            bursts_abandon(burst);
    } else if (slot < 0 || burst->launches == BURST_LAUNCHES_MAX || burst->predicted_ns >= BURST_NS ||
               bursts_mine.sparse) {
        burst->single = burst->launches == 1 && bursts_mine.sparse;
        uint64_t context = burst->context;
        if (slot >= 0)
            bursts_mine.open[slot] = -1;
        bursts_finish(burst);
        samples_settle(context, 2);
    } else {
        bursts_mine.last_at_ns[slot] = ticket->now_ns;
        atomic_store_explicit(&burst->state, BURST_OPEN, memory_order_release);
    }
}

static void not_launched(const struct timing_ticket *ticket)
{
    struct burst *burst = &bursts[ticket->burst];
    if (burst->first_of_entry) {
        burst->entries[0] = ticket->entry;
        bursts_abandon(burst);
    } else {
        atomic_store_explicit(&burst->state, BURST_OPEN, memory_order_release);
    }
}

static uint64_t price_of(const struct timing_ticket *ticket)
{
    uint64_t expected_ns = ticket->predicted_ns ? ticket->predicted_ns : ASSUMED_NS;
    return expected_ns * atomic_load_explicit(&overlap_scale, memory_order_relaxed) / SCALE_ONE;
}

/* Pauses of the program are asked for where launches are timed. Where this one was not and the next will hardly be, the
 * time before it is near enough: the clock is what costs most here. (Long ones are timed singly, paused or not.) */
static uint64_t latest_at(const struct timing_ticket *ticket)
{
    int is_timed = ticket->burst >= 0 || bursts_mine.tick % SAMPLE_APART == 0;
    return is_timed ? process_now_ns() : ticket->now_ns;
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
        pace_charge(charged_ns, ticket->now_ns, &ticket->terms);
    bursts_mine.latest_at_ns = latest_at(ticket);
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
    samples_context_gone(context);
}

void timing_forget(void)
{
    samples_forget();
    memset(bursts, 0, sizeof bursts);
    overlap_forget();
    kernels_forget();
}

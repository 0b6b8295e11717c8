#include "turn.h"

#include "file_facts.h"
#include "process.h"
#include "usage.h"

#include <errno.h>
#include <sys/mman.h>
#include <time.h>

#define TICK_SHIFT 6u
#define WHEN_BITS 48u
#define WHEN_MASK ((UINT64_C(1) << WHEN_BITS) - 1)

static struct turn_file *_Atomic turn;

uint64_t turn_word(uint16_t who, uint64_t at_ns)
{
    return ((uint64_t)who << WHEN_BITS) | ((at_ns >> TICK_SHIFT) & WHEN_MASK);
}

static uint16_t who(uint64_t word)
{
    return (uint16_t)(word >> WHEN_BITS);
}

/* How long after `now_ns` the word's time lies; negative: before. */
static int64_t ahead_ns(uint64_t word, uint64_t now_ns)
{
    uint64_t difference = (word - (now_ns >> TICK_SHIFT)) & WHEN_MASK;
    int64_t ticks = (int64_t)difference;
    if (difference >> (WHEN_BITS - 1))
        ticks -= (int64_t)1 << WHEN_BITS;
    return ticks * (1 << TICK_SHIFT);
}

static int others_want(const struct turn_view *view)
{
    int64_t age_ns = -ahead_ns(view->wanted, view->now_ns);
    return view->wanted && who(view->wanted) != view->own && age_ns >= 0 && age_ns < (int64_t)TURN_FRESH_NS;
}

enum turn_answer turn_decide(const struct turn_view *view, uint64_t gpu_ns, uint64_t *next, uint64_t *until_ns)
{
    int64_t queued_ns = view->queue ? ahead_ns(view->queue, view->now_ns) : 0;
    int ours = view->queue && who(view->queue) == view->own;
    uint64_t end_ns = view->now_ns + (queued_ns > 0 ? (uint64_t)queued_ns : 0);
    *next = turn_word(view->own, end_ns + gpu_ns);
    if (!ours) {
        if (queued_ns <= (int64_t)TURN_EARLY_NS)
            return TURN_GO_FIRST;
        *until_ns = end_ns - TURN_EARLY_NS;
        return TURN_WAIT;
    }
    if (view->now_ns - view->since_ns < TURN_NS || !others_want(view))
        return TURN_GO;
    if (queued_ns < -(int64_t)TURN_HANDOVER_NS)
        return TURN_GO_FIRST; /* nobody came */
    *until_ns = end_ns + TURN_HANDOVER_NS;
    return TURN_WAIT;
}

void turn_open(void)
{
    char path[256];
    struct stat seen;
    if (atomic_load(&turn) || !process_share_path("turn", path, sizeof path))
        return;
    int kept = errno;
    int descriptor = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (descriptor >= 0) {
        if (facts_of_descriptor(descriptor, &seen) == 0 && seen.st_size >= (off_t)TURN_FILE_BYTES) {
            void *place = mmap(NULL, TURN_FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
            if (place != MAP_FAILED && ((struct turn_file *)place)->magic == TURN_MAGIC)
                atomic_store(&turn, (struct turn_file *)place);
            else if (place != MAP_FAILED)
                munmap(place, TURN_FILE_BYTES);
        }
        close(descriptor);
    }
    errno = kept;
}

static void sleep_until(uint64_t at_ns)
{
    struct timespec time = {(time_t)(at_ns / UINT64_C(1000000000)), (long)(at_ns % UINT64_C(1000000000))};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL);
}

/* One look: TURN_WAIT, or queued. A queue that another launch changed meanwhile is looked at again by the caller. */
static enum turn_answer look(struct turn_file *file, struct usage_file *usage, uint64_t gpu_ns, uint64_t now_ns,
                             uint64_t *until_ns)
{
    uint64_t next;
    struct turn_view view = {
        .queue = atomic_load_explicit(&file->queue, memory_order_relaxed),
        .wanted = atomic_load_explicit(&file->wanted, memory_order_relaxed),
        .own = usage_number(),
        .now_ns = now_ns,
        .since_ns = atomic_load_explicit(&usage->header.turn_since_ns, memory_order_relaxed),
    };
    enum turn_answer answer = turn_decide(&view, gpu_ns, &next, until_ns);
    if (answer == TURN_WAIT) {
        if (who(view.queue) != view.own)
            atomic_store_explicit(&file->wanted, turn_word(view.own, now_ns), memory_order_relaxed);
        return answer;
    }
    if (!atomic_compare_exchange_strong(&file->queue, &view.queue, next)) {
        *until_ns = now_ns;
        return TURN_WAIT;
    }
    if (answer == TURN_GO_FIRST)
        atomic_store_explicit(&usage->header.turn_since_ns, now_ns, memory_order_relaxed);
    return answer;
}

int turn_must_wait(uint64_t gpu_ns, uint64_t now_ns)
{
    struct turn_file *file = atomic_load_explicit(&turn, memory_order_acquire);
    struct usage_file *usage = atomic_load_explicit(&usage_mapped, memory_order_acquire);
    uint64_t until_ns;
    return file && usage && usage_number() && look(file, usage, gpu_ns, now_ns, &until_ns) == TURN_WAIT;
}

void turn_take(uint64_t gpu_ns)
{
    struct turn_file *file = atomic_load_explicit(&turn, memory_order_acquire);
    struct usage_file *usage = atomic_load_explicit(&usage_mapped, memory_order_acquire);
    struct usage_slot *slot = atomic_load(&usage_own);
    uint64_t began_ns = process_now_ns(), now_ns = began_ns, until_ns = 0, last_ns = began_ns + TURN_WAIT_MAX_NS;
    while (file && usage && now_ns < last_ns && look(file, usage, gpu_ns, now_ns, &until_ns) == TURN_WAIT) {
        if (until_ns > now_ns)
            sleep_until(until_ns < last_ns ? until_ns : last_ns);
        now_ns = process_now_ns();
    }
    if (slot)
        atomic_fetch_add_explicit(&slot->waited_ns, now_ns - began_ns, memory_order_relaxed);
}

int turn_is_contended(uint64_t now_ns)
{
    struct turn_file *file = atomic_load_explicit(&turn, memory_order_relaxed);
    if (!file)
        return 0;
    uint64_t queue = atomic_load_explicit(&file->queue, memory_order_relaxed);
    return queue && who(queue) != usage_number() && -ahead_ns(queue, now_ns) < (int64_t)TURN_FRESH_NS;
}

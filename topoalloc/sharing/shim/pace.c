#include "pace.h"

#include "file_facts.h"
#include "process.h"
#include "share.h"
#include "usage.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define WAIT_LOOK_NS UINT64_C(100000000) /* a raised limit is seen this soon */

static struct pace_file *_Atomic pace;
static struct neighbours_file *_Atomic neighbours;
static struct turn_file *_Atomic turn;

/* A file of the agent's in the share's directory, mapped; NULL where it is not there (yet). */
static void *mapped(const char *name, size_t bytes)
{
    char path[256];
    struct stat seen;
    void *place = MAP_FAILED;
    if (!process_share_path(name, path, sizeof path))
        return NULL;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (descriptor < 0)
        return NULL;
    if (facts_of_descriptor(descriptor, &seen) == 0 && seen.st_size >= (off_t)bytes)
        place = mmap(NULL, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
    close(descriptor);
    return place == MAP_FAILED ? NULL : place;
}

void pace_open(void)
{
    int kept = errno;
    if (!atomic_load(&pace))
        atomic_store(&pace, (struct pace_file *)mapped("pace", sizeof(struct pace_file)));
    if (!atomic_load(&neighbours))
        atomic_store(&neighbours, (struct neighbours_file *)mapped("neighbours", sizeof(struct neighbours_file)));
    if (!atomic_load(&turn))
        atomic_store(&turn, (struct turn_file *)mapped("turn", sizeof(struct turn_file)));
    errno = kept;
}

/* An elastic share's limit of this moment; without a fresh word from the agent what it is always granted. */
uint32_t pace_cores(uint64_t now_ns)
{
    uint32_t granted = atomic_load_explicit(&process_limits.cores, memory_order_relaxed);
    uint32_t most = atomic_load_explicit(&process_limits.cores_max, memory_order_relaxed);
    struct pace_file *file = atomic_load_explicit(&pace, memory_order_relaxed);
    if (most == granted || !file || file->magic != PACE_MAGIC)
        return granted;
    uint64_t written = atomic_load_explicit(&file->written_at_ns, memory_order_relaxed);
    uint64_t cores = atomic_load_explicit(&file->cores_now, memory_order_relaxed);
    if (written + PACE_STALE_NS < now_ns || cores < granted)
        return granted;
    return cores > most ? most : (uint32_t)cores;
}

int pace_neighbours(uint64_t since_ns, uint32_t *cores)
{
    struct neighbours_file *file = atomic_load_explicit(&neighbours, memory_order_relaxed);
    if (!file || file->magic != NEIGHBOURS_MAGIC)
        return 0;
    uint64_t at = atomic_load_explicit(&file->seen_at_ns, memory_order_acquire);
    uint64_t took = atomic_load_explicit(&file->cores, memory_order_relaxed);
    if (!at || at < since_ns)
        return 0;
    *cores = took > SHARE_CORES_ALL ? SHARE_CORES_ALL : (uint32_t)took;
    return 1;
}

int pace_is_alone(uint64_t now_ns)
{
    uint32_t cores;
    return pace_neighbours(now_ns > NEIGHBOURS_STALE_NS ? now_ns - NEIGHBOURS_STALE_NS : 1, &cores) &&
           cores < PACE_ALONE_CORES;
}

static _Atomic uint64_t *paid(void)
{
    struct usage_file *usage = atomic_load_explicit(&usage_mapped, memory_order_acquire);
    return usage ? &usage->header.paid_until_ns : NULL;
}

struct credit_terms pace_terms(uint64_t now_ns)
{
    struct credit_terms terms = {pace_cores(now_ns), 0, 0};
    struct turn_file *file = atomic_load_explicit(&turn, memory_order_relaxed);
    if (!file || file->magic != TURN_MAGIC)
        return terms;
    uint64_t word = atomic_load_explicit(&file->turn, memory_order_relaxed);
    uint64_t written_ns = atomic_load_explicit(&file->written_at_ns, memory_order_relaxed);
    uint64_t from_ns = (word >> 32) * 1000, turn_ns = (word & UINT32_MAX) * 1000;
    if (turn_ns && from_ns + turn_ns <= TURN_PERIOD_NS && written_ns + PACE_STALE_NS >= now_ns) {
        terms.from_ns = from_ns;
        terms.turn_ns = turn_ns;
    }
    return terms;
}

int pace_must_wait(uint64_t now_ns, const struct credit_terms *terms)
{
    _Atomic uint64_t *until = paid();
    return until && !credit_may_go(atomic_load_explicit(until, memory_order_relaxed), now_ns, terms);
}

void pace_wait(int crowded)
{
    uint64_t began = process_now_ns(), now = began;
    _Atomic uint64_t *until = paid();
    struct usage_file *usage = atomic_load(&usage_mapped);
    struct usage_slot *own = atomic_load(&usage_own);
    while (until && now - began < CREDIT_DEBT_MAX_NS) {
        struct credit_terms terms = pace_terms(now);
        uint64_t at = credit_wait_until(atomic_load(until), now, now != began, crowded, &terms);
        if (!at)
            break;
        atomic_store_explicit(&usage->header.wanting_at_ns, now, memory_order_relaxed);
        uint64_t wake = at > now + WAIT_LOOK_NS ? now + WAIT_LOOK_NS : at;
        struct timespec time = {(time_t)(wake / UINT64_C(1000000000)), (long)(wake % UINT64_C(1000000000))};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL); /* a signal wakes it early: asked again */
        now = process_now_ns();
    }
    if (own)
        atomic_fetch_add_explicit(&own->waited_ns, now - began, memory_order_relaxed);
}

void pace_charge(uint64_t gpu_ns, uint64_t now_ns, const struct credit_terms *terms)
{
    _Atomic uint64_t *until = paid();
    struct usage_slot *own = atomic_load_explicit(&usage_own, memory_order_relaxed);
    if (!until || !own)
        return;
    uint64_t had = atomic_load_explicit(until, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(until, &had, credit_paid_after(had, now_ns, gpu_ns, terms),
                                                  memory_order_relaxed, memory_order_relaxed))
        continue;
    atomic_fetch_add_explicit(&own->gpu_time_ns, gpu_ns, memory_order_relaxed);
}

#include "overlap.h"

#include "driver.h"

#include <string.h>

#define REBASE_NS UINT64_C(2000000000)
#define SWITCHES_LOOK 128u /* launches after which it is judged whether several streams work at once */
#define COUNTED_TOGETHER 16u /* of one thread: what threads share is written seldom */
#define SWITCHES_MANY 8u
#define WINDOW_NS UINT64_C(20000000) /* GPU time over which overlap is averaged */
#define SCALE_MAX 1054u /* 3 %: beyond it is a neighbour's time, not ours */
#define SCALE_MIN_ALONE 994u /* one stream overlaps with nothing: what it misses was mispredicted */

_Atomic uint32_t overlap_scale = SCALE_ONE;
_Atomic int overlap_crowded;

static _Atomic uintptr_t latest_stream;
static _Atomic uint32_t switches, launches_seen;

/* The GPU's time line, under the lock of samples.c: covered up to here by bursts already counted, relative to `base`. */
static struct {
    uint64_t context;
    CUevent base;
    double covered_ns;
    uint64_t busy_ns, predicted_ns;
} line;

/* Where on the time line the burst began; starts the line anew where it is another context's or has grown long. */
double overlap_begin_on_line(struct burst *burst)
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

uint64_t overlap_cover(double began_ns, uint64_t took_ns)
{
    double ended_ns = began_ns + (double)took_ns;
    double from_ns = began_ns > line.covered_ns ? began_ns : line.covered_ns;
    if (ended_ns <= from_ns)
        return 0;
    line.covered_ns = ended_ns;
    return (uint64_t)(ended_ns - from_ns);
}

void overlap_count(uint64_t added_ns, const struct burst *burst)
{
    line.busy_ns += added_ns;
    line.predicted_ns += burst->predicted_ns;
    if (line.predicted_ns < WINDOW_NS && line.busy_ns < WINDOW_NS)
        return;
    uint64_t ratio = line.predicted_ns ? line.busy_ns * SCALE_ONE / line.predicted_ns : SCALE_ONE;
    if (ratio > SCALE_MAX)
        ratio = SCALE_MAX;
    if (ratio < SCALE_MIN_ALONE && !atomic_load_explicit(&overlap_crowded, memory_order_relaxed))
        ratio = SCALE_MIN_ALONE;
    uint32_t before = atomic_load_explicit(&overlap_scale, memory_order_relaxed);
    atomic_store_explicit(&overlap_scale, (uint32_t)((before + ratio + 1) / 2), memory_order_relaxed);
    line.busy_ns = line.predicted_ns = 0;
}

/* Work that goes to several streams in turn may run on them at once. */
void overlap_watch_streams(CUstream stream)
{
    uintptr_t latest = atomic_load_explicit(&latest_stream, memory_order_relaxed);
    if (latest != (uintptr_t)stream) {
        atomic_store_explicit(&latest_stream, (uintptr_t)stream, memory_order_relaxed);
        atomic_fetch_add_explicit(&switches, 1, memory_order_relaxed);
    }
    if (++bursts_mine.launches % COUNTED_TOGETHER)
        return;
    uint32_t seen = atomic_fetch_add_explicit(&launches_seen, COUNTED_TOGETHER, memory_order_relaxed);
    if (seen % SWITCHES_LOOK != SWITCHES_LOOK - COUNTED_TOGETHER)
        return;
    int many = atomic_exchange_explicit(&switches, 0, memory_order_relaxed) >= SWITCHES_MANY;
    if (atomic_exchange_explicit(&overlap_crowded, many, memory_order_relaxed) && !many)
        atomic_store_explicit(&overlap_scale, SCALE_ONE, memory_order_relaxed);
}

void overlap_context_gone(uint64_t context)
{
    if (line.context == context)
        memset(&line, 0, sizeof line);
}

void overlap_forget(void)
{
    memset(&line, 0, sizeof line);
    atomic_store(&overlap_scale, SCALE_ONE);
    atomic_store(&overlap_crowded, 0);
}

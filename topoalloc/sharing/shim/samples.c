#include "samples.h"

#include "audit.h"
#include "capture.h"
#include "driver.h"
#include "kernels.h"
#include "local_lock.h"
#include "overlap.h"
#include "pace.h"
#include "process.h"

#define BRACKET_FIRST_NS UINT64_C(3000) /* what two events read around one launch beyond its own time */
#define BRACKET_NS UINT64_C(1500)       /* and around a burst: recording them took the host that long */
#define BUSY_TIMES 2u
/* What a neighbour's turn on the GPU takes at least, where it has more to do than a kernel or two: a millisecond is what
 * a share that was held back launches at once, and the driver's slices were seen to be 2.3 ms and more on an H200. */
#define SLICE_NS UINT64_C(800000)
#define SHORT_BURST_NS UINT64_C(500000) /* against a slice: of longer ones more than a few have a neighbour's work in them */

static struct local_lock settling;

static uint64_t nanoseconds(float milliseconds)
{
    return milliseconds > 0 ? (uint64_t)((double)milliseconds * 1e6) : 0;
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
    struct estimate *entry = &kernels[burst->entries[0]];
    uint64_t now_ns = process_now_ns();
    estimate_add(entry, took_ns, 1, pace_is_alone(now_ns)); /* there may be a slice in it: nothing is known yet */
    struct credit_terms terms = pace_terms(now_ns);
    pace_charge(took_ns, now_ns, &terms);
    atomic_store(&entry->pending, 0);
}

static void learn(const struct burst *burst, uint64_t took_ns, int is_sliced)
{
    int alone = pace_is_alone(process_now_ns());
    /* The burst's time is divided as it was predicted: right in sum, and exact where all launches are of one kind. */
    for (unsigned int i = 0; i < burst->launches && burst->predicted_ns; i++) {
        if (!is_first_of_its_kind(burst, i))
            continue;
        double part = (double)burst->predictions_ns[i] / (double)burst->predicted_ns;
        estimate_add(&kernels[burst->entries[i]], (uint64_t)((double)took_ns * part), is_sliced, alone);
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
    if (!burst->unsteady || !burst->predicted_ns || !kept_the_gpu_busy(burst, took_ns))
        return;
    struct audit_sums all = {added_ns, burst->charged_ns};
    for (unsigned int i = 0; i < burst->launches; i++) {
        double part = (double)burst->predictions_ns[i] / (double)burst->predicted_ns;
        audit_timed(burst->entries[i], (uint64_t)((double)took_ns * part));
    }
    audit_add(&all, process_now_ns());
}

static void take_sample(struct burst *burst, uint64_t took_ns)
{
    uint64_t alone_ns = without_bracket(took_ns, burst->single ? BRACKET_FIRST_NS : BRACKET_NS);
    int is_sliced = alone_ns > burst->predicted_ns + SLICE_NS;
    int is_told = burst->ahead || !burst->is_marker;
    if (is_told)
        learn(burst, alone_ns, is_sliced || burst->predicted_ns > SHORT_BURST_NS);
    uint64_t added_ns = overlap_cover(overlap_begin_on_line(burst), alone_ns);
    if ((is_told && !is_sliced) || atomic_load_explicit(&overlap_crowded, memory_order_relaxed))
        overlap_count(added_ns, burst);
    audit(burst, alone_ns, added_ns);
}

/* Under `settling`. 0: the GPU has not come to its end yet. */
static int settle(struct burst *burst)
{
    float took = 0;
    CUresult done = DRIVER(cuEventQuery)(burst->end);
    if (done == CUDA_ERROR_NOT_READY)
        return 0;
    if (done == CUDA_SUCCESS && DRIVER(cuEventElapsedTime)(&took, burst->begin, burst->end) == CUDA_SUCCESS) {
        if (burst->first_of_entry)
            learn_first(burst, without_bracket(nanoseconds(took), BRACKET_FIRST_NS));
        else
            take_sample(burst, nanoseconds(took));
    }
    bursts_abandon(burst);
    return 1;
}

/* In the order in which they began, so that the time line is walked forward. */
void samples_settle(uint64_t context, int most)
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

/* Under `settling`. Those before it may wait for something else, so its own end is what counts. */
static int is_late(const struct burst *burst, uint64_t context, uint64_t now_ns, uint64_t late_ns)
{
    return atomic_load_explicit(&burst->state, memory_order_acquire) == BURST_PENDING && burst->context == context &&
           !burst->is_forsaken && burst->last_at_ns + burst->predicted_ns + late_ns < now_ns &&
           DRIVER(cuEventQuery)(burst->end) == CUDA_ERROR_NOT_READY;
}

int samples_are_late(uint64_t context, uint64_t now_ns, uint64_t late_ns)
{
    int late = 0;
    if (atomic_load_explicit(&captures_open, memory_order_relaxed) > 0 || !local_lock_try(&settling))
        return 0;
    for (int i = 0; i < BURSTS_MAX && !late; i++)
        late = is_late(&bursts[i], context, now_ns, late_ns);
    local_lock_drop(&settling);
    return late;
}

void samples_forsake_late(uint64_t context, uint64_t now_ns, uint64_t late_ns)
{
    if (atomic_load_explicit(&captures_open, memory_order_relaxed) > 0 || !local_lock_try(&settling))
        return;
    for (int i = 0; i < BURSTS_MAX; i++)
        if (is_late(&bursts[i], context, now_ns, late_ns))
            bursts[i].is_forsaken = 1;
    local_lock_drop(&settling);
}

void samples_context_gone(uint64_t context)
{
    local_lock_take(&settling);
    for (int i = 0; i < BURSTS_MAX; i++)
        bursts_forget_events(&bursts[i], context);
    overlap_context_gone(context);
    local_lock_drop(&settling);
}

void samples_forget(void)
{
    local_lock_forget(&settling);
    audit_forget();
}

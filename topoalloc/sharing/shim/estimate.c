#include "estimate.h"

#include <stdatomic.h>

/* Longer than the slices in which contexts take turns: nearly every sample of such a kernel has some of a neighbour's in
 * it, and the shortest has the least. */
#define SLICED_NS 2000000u
#define DISTURBED_NUMERATOR 8u
#define DISTURBED_DENOMINATOR 5u
#define UNSTEADY_SAMPLES 64u /* a kernel counts as unsteady for so many samples after two that lay far apart */
#define SAMPLE_MAX_NS UINT64_C(4000000000)

/* A neighbour's slice adds more than the burst itself takes, so what it disturbed lies far above the lower quartile.
 * The rest differ by themselves, as launches of one kernel on different data do, and count alike. */
static uint64_t most_undisturbed(const uint32_t *sorted, uint32_t known)
{
    return (uint64_t)sorted[known / 4] * DISTURBED_NUMERATOR / DISTURBED_DENOMINATOR;
}

static uint32_t mean_of_undisturbed(const uint32_t *sorted, uint32_t known)
{
    uint64_t most = most_undisturbed(sorted, known), sum = 0;
    uint32_t counted = 0;
    for (; counted < known && sorted[counted] <= most; counted++)
        sum += sorted[counted];
    return (uint32_t)(sum / counted);
}

static void look_for_spread(struct estimate *estimate, const uint32_t *sorted, uint32_t known)
{
    uint32_t calm_after = atomic_load_explicit(&estimate->unsteady, memory_order_relaxed);
    if (sorted[known - 1] > most_undisturbed(sorted, known))
        calm_after = UNSTEADY_SAMPLES;
    else if (calm_after)
        calm_after--;
    atomic_store_explicit(&estimate->unsteady, calm_after, memory_order_relaxed);
}

uint32_t estimate_add(struct estimate *estimate, uint64_t sample_ns, int alone)
{
    uint32_t sorted[ESTIMATE_SAMPLES] = {0};
    if (sample_ns < 1)
        sample_ns = 1;
    estimate->samples_ns[estimate->count++ % ESTIMATE_SAMPLES] =
        (uint32_t)(sample_ns < SAMPLE_MAX_NS ? sample_ns : SAMPLE_MAX_NS);
    uint32_t known = estimate->count < ESTIMATE_SAMPLES ? estimate->count : ESTIMATE_SAMPLES;
    for (uint32_t i = 0; i < known; i++) {
        uint32_t sample = estimate->samples_ns[i], at = i;
        for (; at > 0 && sorted[at - 1] > sample; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = sample;
    }
    if (alone)
        look_for_spread(estimate, sorted, known);
    if (estimate->count % ESTIMATE_SAMPLES == 0)
        estimate->shortest_before_ns = sorted[0];
    uint32_t believed = mean_of_undisturbed(sorted, known), before = estimate->shortest_before_ns;
    if (believed > SLICED_NS)
        believed = before && before < sorted[0] ? before : sorted[0];
    atomic_store_explicit(&estimate->ns_believed, believed, memory_order_relaxed);
    return believed;
}

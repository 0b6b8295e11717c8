#include "estimate.h"

#include <stdatomic.h>

/* Longer than the slices in which contexts take turns: nearly every sample of such a kernel has some of a neighbour's in
 * it, and the shortest has the least. */
#define SLICED_NS 2000000u
#define ALIKE_NUMERATOR 8u
#define ALIKE_DENOMINATOR 5u
#define DIFFERING_PART 4u
#define DIFFERING_FROM 8u /* samples */
#define UNSTEADY_SAMPLES 64u /* a kernel counts as unsteady for so many samples after two that lay far apart */
#define DOUBT_TIMES 4u
#define SAMPLE_MAX_NS UINT64_C(4000000000)

struct sample {
    uint32_t ns;
    uint32_t is_sliced;
};

/* Samples up to it are alike: a neighbour's slice in a short burst lies far above. */
static uint64_t most_alike(const struct sample *sorted, uint32_t known)
{
    return (uint64_t)sorted[known / 4].ns * ALIKE_NUMERATOR / ALIKE_DENOMINATOR;
}

/* How many samples that are longer than alike are so by less than a slice. A neighbour's short work does that to few,
 * since it comes to the GPU at most once in a slice; where they are many the kernel itself differs, as launches on
 * different data do, and all count. */
static int differs_by_itself(const struct sample *sorted, uint32_t known, uint64_t most)
{
    uint32_t longer = 0, alike = 0;
    for (uint32_t i = 0; i < known; i++) {
        if (sorted[i].ns <= most)
            alike++;
        else if (!sorted[i].is_sliced)
            longer++;
    }
    return alike + longer >= DIFFERING_FROM && longer * DIFFERING_PART >= alike + longer;
}

static uint32_t mean_of_undisturbed(const struct sample *sorted, uint32_t known)
{
    uint64_t most = most_alike(sorted, known), sum = 0;
    uint32_t counted = 0;
    int differs = differs_by_itself(sorted, known, most);
    for (uint32_t i = 0; i < known; i++) {
        if (sorted[i].ns > most && (!differs || sorted[i].is_sliced))
            continue;
        sum += sorted[i].ns;
        counted++;
    }
    return (uint32_t)(sum / counted);
}

static void look_for_spread(struct estimate *estimate, const struct sample *sorted, uint32_t known)
{
    uint32_t calm_after = atomic_load_explicit(&estimate->unsteady, memory_order_relaxed);
    if (sorted[known - 1].ns > most_alike(sorted, known))
        calm_after = UNSTEADY_SAMPLES;
    else if (calm_after && !--calm_after)
        atomic_store_explicit(&estimate->audited_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&estimate->unsteady, calm_after, memory_order_relaxed);
}

/* What was found while nobody else had the GPU is looked at again only then; samples are there always, and what lies
 * outside of them was another phase of the program. */
uint32_t estimate_audited(const struct estimate *estimate)
{
    uint32_t audited_ns = atomic_load_explicit(&estimate->audited_ns, memory_order_relaxed);
    uint32_t shortest_ns = atomic_load_explicit(&estimate->shortest_ns, memory_order_relaxed);
    uint32_t longest_ns = atomic_load_explicit(&estimate->longest_ns, memory_order_relaxed);
    if (!audited_ns || audited_ns < shortest_ns)
        return audited_ns ? shortest_ns : 0;
    return audited_ns > longest_ns ? longest_ns : audited_ns;
}

/* Launches that are charged far too much come seldom, and samples of them more seldom still. */
static void look_for_doubt(struct estimate *estimate, uint64_t sample_ns)
{
    uint32_t doubted = atomic_load_explicit(&estimate->doubted, memory_order_relaxed);
    if (sample_ns * DOUBT_TIMES < atomic_load_explicit(&estimate->ns_believed, memory_order_relaxed))
        doubted = ESTIMATE_SAMPLES;
    else if (doubted)
        doubted--;
    atomic_store_explicit(&estimate->doubted, doubted, memory_order_relaxed);
}

static uint32_t sort_samples(const struct estimate *estimate, struct sample *sorted)
{
    uint32_t known = estimate->count < ESTIMATE_SAMPLES ? estimate->count : ESTIMATE_SAMPLES;
    for (uint32_t i = 0; i < known; i++) {
        struct sample sample = {estimate->samples_ns[i], estimate->sliced >> i & 1};
        uint32_t at = i;
        for (; at > 0 && sorted[at - 1].ns > sample.ns; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = sample;
    }
    return known;
}

uint32_t estimate_add(struct estimate *estimate, uint64_t sample_ns, int is_sliced, int alone)
{
    struct sample sorted[ESTIMATE_SAMPLES] = {{0, 0}};
    uint32_t at = estimate->count++ % ESTIMATE_SAMPLES;
    if (sample_ns < 1)
        sample_ns = 1;
    look_for_doubt(estimate, sample_ns);
    estimate->samples_ns[at] = (uint32_t)(sample_ns < SAMPLE_MAX_NS ? sample_ns : SAMPLE_MAX_NS);
    estimate->sliced = (estimate->sliced & ~(1u << at)) | (uint32_t)(is_sliced != 0) << at;
    uint32_t known = sort_samples(estimate, sorted);
    if (alone)
        look_for_spread(estimate, sorted, known);
    atomic_store_explicit(&estimate->shortest_ns, sorted[0].ns, memory_order_relaxed);
    atomic_store_explicit(&estimate->longest_ns, sorted[known - 1].ns, memory_order_relaxed);
    if (estimate->count % ESTIMATE_SAMPLES == 0)
        estimate->shortest_before_ns = sorted[0].ns;
    uint32_t believed = mean_of_undisturbed(sorted, known), before = estimate->shortest_before_ns;
    if (believed > SLICED_NS)
        believed = before && before < sorted[0].ns ? before : sorted[0].ns;
    atomic_store_explicit(&estimate->ns_believed, believed, memory_order_relaxed);
    return believed;
}

/* By halves, since one window may be no measure; far down at once: nobody is held back for what he did before. */
uint32_t estimate_mean_after(uint32_t before_ns, uint64_t took_ns, uint32_t launches)
{
    uint64_t mean_ns = took_ns / launches;
    if (mean_ns > UINT32_MAX)
        mean_ns = UINT32_MAX;
    return mean_ns < before_ns / 2 ? (uint32_t)mean_ns : (uint32_t)((before_ns + mean_ns + 1) / 2);
}

/* What is believed of one kernel and grid, from its latest samples. Pure. */
#ifndef TOPOALLOC_ESTIMATE_H
#define TOPOALLOC_ESTIMATE_H

#include <stdint.h>

#define ESTIMATE_SAMPLES 16u

struct estimate {
    _Alignas(64) _Atomic uint64_t key; /* 0: free; a launch reads what follows up to `count`, one cache line */
    _Atomic uint32_t ns_believed; /* 0: unknown */
    _Atomic uint32_t pending; /* a first timing is under way */
    /* Not 0: samples lay far apart lately although nobody else had the GPU: what is believed may be far from the mean. */
    _Atomic uint32_t unsteady;
    _Atomic uint32_t audited_ns; /* what an unsteady one took on average while nobody else had the GPU; 0: not known */
    _Atomic uint32_t doubted; /* so many samples more are wanted soon: one was far shorter than what is believed */
    _Atomic uint32_t shortest_ns, longest_ns; /* of its samples */
    uint32_t count;
    uint32_t shortest_before_ns; /* of the sixteen samples before these; 0: none */
    uint32_t sliced; /* a bit for each sample */
    uint32_t samples_ns[ESTIMATE_SAMPLES];
};

/* The mean of the latest samples that no neighbour disturbed, of long kernels the shortest of the last 16 to 32: a
 * neighbour's time slices make samples longer, never shorter. `is_sliced`: the sample comes from a burst that is
 * long, or was so much longer than predicted that a slice may lie in it. */
uint32_t estimate_add(struct estimate *estimate, uint64_t sample_ns, int is_sliced, int alone);

uint32_t estimate_audited(const struct estimate *estimate); /* `audited_ns` as far as the samples bear it out */
/* What a launch of an unsteady kernel is taken to last, after a window in which so many launches took so long. */
uint32_t estimate_mean_after(uint32_t before_ns, uint64_t took_ns, uint32_t launches);

#endif

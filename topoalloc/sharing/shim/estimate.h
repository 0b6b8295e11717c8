/* What is believed of one kernel and grid, from its latest samples. Pure. */
#ifndef TOPOALLOC_ESTIMATE_H
#define TOPOALLOC_ESTIMATE_H

#include <stdint.h>

#define ESTIMATE_SAMPLES 16u

struct estimate {
    _Atomic uint64_t key;     /* 0: free */
    _Atomic uint32_t ns_believed; /* 0: unknown */
    _Atomic uint32_t pending; /* a first timing is under way */
    /* Not 0: samples lay far apart lately although nobody else had the GPU: what is believed may be far from the mean. */
    _Atomic uint32_t unsteady;
    _Atomic uint32_t factor; /* of what is believed, what an unsteady one takes on average; in AUDIT_ONE, 0: not known */
    uint32_t count;
    uint32_t shortest_before_ns; /* of the sixteen samples before these; 0: none */
    uint32_t samples_ns[ESTIMATE_SAMPLES];
};

/* The mean of the latest samples that no neighbour disturbed, of long kernels the shortest of the last 16 to 32: a
 * neighbour's time slices make samples longer, never shorter. */
uint32_t estimate_add(struct estimate *estimate, uint64_t sample_ns, int alone);

#endif

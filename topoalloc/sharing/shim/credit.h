/* What a container's bucket of GPU time allows. Pure: neither clock nor memory.
 *
 * The bucket is one time: up to there the container's launches are paid. It fills with the container's cores, evenly or,
 * where containers take turns on a GPU that they want more of than there is, during the container's turn alone, and then
 * so much faster that it comes to the same. */
#ifndef TOPOALLOC_CREDIT_H
#define TOPOALLOC_CREDIT_H

#include <stdint.h>

#define CREDIT_SAVED_NS UINT64_C(5000000)  /* GPU time an idle container keeps at most; makes good for late wake-ups */
#define CREDIT_RESUME_NS UINT64_C(1000000) /* GPU time that must be there before a launch that had to wait goes */
/* The same as a pause, where several streams work at once: together only while all have something to run. */
#define CREDIT_PAUSE_NS UINT64_C(10000000)
/* In its turn a container has to keep the GPU busy by itself, so its launches go this long before the turn has paid them;
 * what it has saved pays launches after the turn. */
#define CREDIT_AHEAD_NS UINT64_C(2000000)
#define CREDIT_EARLY_NS UINT64_C(1000000) /* and the first this long before the turn, for the GPU to be at it in time */
/* Whatever stands in the file, no launch is held longer: an hour-long debt comes from a broken file, not from kernels. */
#define CREDIT_DEBT_MAX_NS UINT64_C(3600000000000)

struct credit_terms {
    uint32_t cores;   /* hundredths of a percent of GPU time, 1..10000 */
    uint64_t from_ns; /* where in each period (TURN_PERIOD_NS of usage_layout.h) the turn begins */
    uint64_t turn_ns; /* how long it is; 0: nobody takes turns */
};

uint64_t credit_paid_after(uint64_t paid_until_ns, uint64_t now_ns, uint64_t gpu_ns, const struct credit_terms *terms);
int credit_may_go(uint64_t paid_until_ns, uint64_t now_ns, const struct credit_terms *terms);
/* Of one that may not, or was held back already (`waited`): 0: go; else the time at which it may be asked again.
 * `crowded`: several streams work at once. */
uint64_t credit_wait_until(uint64_t paid_until_ns, uint64_t now_ns, int waited, int crowded,
                           const struct credit_terms *terms);

#endif

/* How long launches take on the GPU: predicted at the launch, learned from timed events around bursts of them.
 *
 * Nothing here takes a lock that another thread can hold for long: what is busy is skipped, and a sample is lost. */
#ifndef TOPOALLOC_TIMING_H
#define TOPOALLOC_TIMING_H

#include "credit.h"
#include "driver_api.h"

struct timing_ticket {
    uint32_t entry;
    int burst; /* -1: this launch is not timed */
    uint64_t predicted_ns;
    uint64_t now_ns;
    struct credit_terms terms; /* of that moment */
};

uint64_t timing_key(const void *function, const unsigned int shape[6]);

/* Before a launch: waits for credit if the container has none, and predicts. */
void timing_before(uint64_t key, CUstream stream, struct timing_ticket *ticket);
/* After it: charges the prediction. */
void timing_after(const struct timing_ticket *ticket, CUstream stream, int launched);

void timing_stream_gone(CUstream stream); /* before it is destroyed, as the next */
void timing_context_gone(uint64_t context);
void timing_forget(void);

#endif

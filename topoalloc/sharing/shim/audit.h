/* What launches of unsteady kernels were charged, compared with what they took.
 *
 * One kernel and grid can run 20 us or 50 ms, as its arguments say, and a timed launch can be longer because a
 * neighbour's time slices lie in it: a launch alone does not tell which. So windows of launches are judged a moment
 * later, when the agent has said that nobody else had the GPU in them, and what is learned of a kernel then holds
 * beside neighbours too. */
#ifndef TOPOALLOC_AUDIT_H
#define TOPOALLOC_AUDIT_H

#include <stdint.h>

struct audit_sums {
    uint64_t took_ns, charged_ns;
};

/* Launches that were timed, by one thread at a time: each of a burst, then the burst. Charges what turns out to be
 * missing. */
void audit_timed(uint32_t kernel, uint64_t took_ns);
void audit_add(const struct audit_sums *burst, uint64_t now_ns);
void audit_forget(void);

#endif

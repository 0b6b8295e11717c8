/* Whether streams work at once, and how much shorter they take together than the sum of what is predicted of each. */
#ifndef TOPOALLOC_OVERLAP_H
#define TOPOALLOC_OVERLAP_H

#include "bursts.h"

#include <stdatomic.h>

#define SCALE_ONE 1024u

extern _Atomic uint32_t overlap_scale; /* of a prediction, what is charged */
extern _Atomic int overlap_crowded; /* several streams at once: every burst has to be seen to know how they overlap */

void overlap_watch_streams(CUstream stream);

/* Under the lock of samples.c. */
double overlap_begin_on_line(struct burst *burst);
uint64_t overlap_cover(double began_ns, uint64_t took_ns); /* what it adds to the time that is covered already */
void overlap_count(uint64_t added_ns, const struct burst *burst);
void overlap_context_gone(uint64_t context);

void overlap_forget(void);

#endif

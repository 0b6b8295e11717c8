/* The container's bucket of GPU time: how far its launches are paid, and when the next may go. */
#ifndef TOPOALLOC_PACE_H
#define TOPOALLOC_PACE_H

#include "credit.h"

#include <stdint.h>

void pace_open(void); /* maps the files of the agent once they are there */
uint32_t pace_cores(uint64_t now_ns);
/* What the neighbours took at most in the NEIGHBOURS_SEEN_NS before a word of the agent that is no older than `since_ns`,
 * in hundredths of a percent. 0: there is no such word (yet). */
int pace_neighbours(uint64_t since_ns, uint32_t *cores);
#define PACE_ALONE_CORES 100u /* less than that is nobody */
int pace_is_alone(uint64_t now_ns); /* whether nobody else had the GPU lately, for all that is known by now */
struct credit_terms pace_terms(uint64_t now_ns); /* of this moment; turns only with a fresh word of the agent */
int pace_must_wait(uint64_t now_ns, const struct credit_terms *terms);
void pace_wait(int crowded); /* until the container has credit */
void pace_charge(uint64_t gpu_ns, uint64_t now_ns, const struct credit_terms *terms);

#endif

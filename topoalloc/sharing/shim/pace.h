/* The container's bucket of GPU time: how far its launches are paid, and when the next may go. */
#ifndef TOPOALLOC_PACE_H
#define TOPOALLOC_PACE_H

#include <stdint.h>

#define PACE_SAVED_NS UINT64_C(5000000)  /* GPU time an idle container keeps at most; makes good for late wake-ups */
#define PACE_RESUME_NS UINT64_C(1000000) /* GPU time that must be there before a launch that had to wait goes */
/* The same as a pause, where several streams work at once: together only while all have something to run. */
#define PACE_PAUSE_NS UINT64_C(10000000)

/* The rule, without clock or memory: launches go while what is paid lies in the past. */
uint64_t pace_paid_after(uint64_t paid_until_ns, uint64_t now_ns, uint64_t gpu_ns, uint32_t cores);
/* 0: go. Else the time at which it may be asked again. */
uint64_t pace_wait_until(uint64_t paid_until_ns, uint64_t now_ns, int waited, uint64_t pause_ns);
uint64_t pace_pause_ns(uint32_t cores, int crowded);

void pace_open(void); /* maps the files of the agent once they are there */
uint32_t pace_cores(uint64_t now_ns);
/* What the neighbours took at most in the NEIGHBOURS_SEEN_NS before a word of the agent that is no older than `since_ns`,
 * in hundredths of a percent. 0: there is no such word (yet). */
int pace_neighbours(uint64_t since_ns, uint32_t *cores);
#define PACE_ALONE_CORES 100u /* less than that is nobody */
int pace_is_alone(uint64_t now_ns); /* whether nobody else had the GPU lately, for all that is known by now */
int pace_must_wait(uint64_t now_ns);
void pace_wait(int crowded); /* until the container has credit */
void pace_charge(uint64_t gpu_ns, uint64_t now_ns);

#endif

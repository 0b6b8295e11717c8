/* What the driver itself says this process holds, to charge contexts, modules, stacks: whatever no call asks for. */
#ifndef TOPOALLOC_MEASURE_H
#define TOPOALLOC_MEASURE_H

#include <stdint.h>

/* Brings implicit_bytes of the ledger up to date. 1: measured, 0: nobody could tell and the guess stays. */
int measure_now(void);
void measure_saw(uint64_t bytes); /* so much less is free on the card: counted until measurements agree on less */
int measure_is_nearly_full(void); /* what the driver takes unasked decides */
void measure_if_nearly_full(uint64_t bytes); /* before so much is charged where little is left */
/* Before something is refused: what was given back in the last moments counts only when it was measured twice, so that
 * is waited for, a fifth of a second at most. 1: measured anew. */
int measure_again(void);
int measure_context_made(void); /* charges the guess before the first context; 0: it does not fit */
void measure_context_gone(void);
void measure_promised(uint64_t had_bytes, uint64_t wanted_bytes); /* charged now, taken by the driver at a launch */
int measure_busy(void);
void measure_forget(void);

#endif

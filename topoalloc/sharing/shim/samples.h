/* What completed bursts tell of their kernels. */
#ifndef TOPOALLOC_SAMPLES_H
#define TOPOALLOC_SAMPLES_H

#include <stdint.h>

void samples_settle(uint64_t context, int most); /* bursts of a context that the GPU is done with */
/* Whether the GPU has not done yet what was launched `late_ns` ago and more, beyond the time that it takes. */
int samples_are_late(uint64_t context, uint64_t now_ns, uint64_t late_ns);
void samples_forsake_late(uint64_t context, uint64_t now_ns, uint64_t late_ns);
void samples_context_gone(uint64_t context);
void samples_forget(void);

#endif

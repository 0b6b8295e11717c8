/* What completed bursts tell of their kernels. */
#ifndef TOPOALLOC_SAMPLES_H
#define TOPOALLOC_SAMPLES_H

#include <stdint.h>

void samples_settle(uint64_t context, int most); /* bursts of a context that the GPU is done with */
void samples_context_gone(uint64_t context);
void samples_forget(void);

#endif

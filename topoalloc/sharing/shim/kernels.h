/* Kernels and grids told apart, and what is believed of each. */
#ifndef TOPOALLOC_KERNELS_H
#define TOPOALLOC_KERNELS_H

#include "estimate.h"

#define KERNELS 8192u /* further ones share the last place that was looked at */

extern struct estimate kernels[KERNELS];

uint32_t kernels_entry_of(uint64_t key);
void kernels_forget(void);

#endif

/* Whether work given to a stream is recorded into a graph instead of being run. */
#ifndef TOPOALLOC_CAPTURE_H
#define TOPOALLOC_CAPTURE_H

#include "driver_api.h"

#include <stdatomic.h>

extern _Atomic int captures_open; /* begun and not ended, in this process */

int capture_asks(CUstream stream); /* asks the driver */
void capture_forget(void);

/* The driver is asked only while any capture is open at all. */
static inline int capture_has(CUstream stream)
{
    return atomic_load_explicit(&captures_open, memory_order_relaxed) > 0 && capture_asks(stream);
}

#endif

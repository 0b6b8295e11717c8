#include "kernels.h"

#include <stdatomic.h>

#define PROBES_MAX 32u

struct estimate kernels[KERNELS];

uint32_t kernels_entry_of(uint64_t key)
{
    uint32_t at = (uint32_t)key % KERNELS;
    for (uint32_t tried = 0; tried < PROBES_MAX; tried++, at = (at + 1) % KERNELS) {
        uint64_t seen = atomic_load_explicit(&kernels[at].key, memory_order_relaxed);
        if (seen == key)
            return at;
        if (!seen && atomic_compare_exchange_strong(&kernels[at].key, &seen, key))
            return at;
        if (seen == key)
            return at;
    }
    return at;
}

void kernels_forget(void)
{
    for (uint32_t i = 0; i < KERNELS; i++)
        if (atomic_load_explicit(&kernels[i].pending, memory_order_relaxed)) /* writing would copy every page */
            atomic_store_explicit(&kernels[i].pending, 0, memory_order_relaxed);
}

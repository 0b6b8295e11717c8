/* The table of all entry points, and a plain answer for each that no other file gives. */
#define _GNU_SOURCE
#include "driver.h"

#include <string.h>

/* What nobody wrote is here, weak: told apart by address, of course, as in the real library. */
#define S(name)                                      \
    EXPORT __attribute__((weak)) CUresult name(void); \
    __attribute__((weak)) CUresult name(void)        \
    {                                                \
        return CUDA_SUCCESS;                         \
    }
#define N(name)                                      \
    EXPORT __attribute__((weak)) CUresult name(void); \
    __attribute__((weak)) CUresult name(void)        \
    {                                                \
        return CUDA_ERROR_NOT_SUPPORTED;             \
    }
#include "entry_points.h"
#undef S
#undef N

static const struct entry {
    const char *base;
    int version;
    CUresult (*function)(void);
    int per_thread;
} entries[] = {
#define E(base, version, symbol, per_thread) {#base, version, symbol, per_thread},
#include "entry_points.h"
#undef E
};
#define ENTRIES (sizeof entries / sizeof *entries)

CUresult entry_point(const char *base, void **function, int version, int per_thread, int *status)
{
    int newest = (int)environment_number("FAKE_DRIVER_VERSION", 13000);
    const struct entry *best = NULL;
    bool known = false;
    if (version < newest)
        newest = version;
    for (size_t i = 0; i < ENTRIES; i++) {
        const struct entry *entry = &entries[i];
        if (strcmp(entry->base, base))
            continue;
        known = true;
        if (entry->version > newest || (entry->per_thread && !per_thread))
            continue;
        if (!best || entry->per_thread > best->per_thread ||
            (entry->per_thread == best->per_thread && entry->version > best->version))
            best = entry;
    }
    *function = best ? (void *)best->function : NULL;
    *status = best ? PROC_FOUND : known ? PROC_VERSION_NOT_SUFFICIENT : PROC_SYMBOL_NOT_FOUND;
    return best ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

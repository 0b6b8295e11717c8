/* The driver behind the shim: its functions, and which of ours stands in front of which of its addresses. */
#ifndef TOPOALLOC_DRIVER_H
#define TOPOALLOC_DRIVER_H

#include "driver_api.h"

#include <stdatomic.h>

typedef void (*function_pointer)(void);

enum hook_index {
#define HOOK(name, parameters, base, version, per_thread) HOOK_##name,
#include "hooks.def"
#undef HOOK
    HOOKS
};

enum call_index {
#define CALL(name, parameters) CALL_##name,
#include "calls.def"
#undef CALL
    CALLS
};

enum nvml_hook_index {
#define HOOK(name, parameters) NVML_HOOK_##name,
#include "nvml_hooks.def"
#undef HOOK
    NVML_HOOKS
};

#pragma GCC visibility push(default) /* what programs are to find first */
#define HOOK(name, parameters, base, version, per_thread) \
    typedef CUresult(*name##_function) parameters;         \
    CUresult name parameters;
#include "hooks.def"
#undef HOOK

#pragma GCC visibility pop

#define CALL(name, parameters) typedef CUresult(*name##_function) parameters;
#include "calls.def"
#undef CALL

#define CALL(name, parameters) typedef nvmlReturn_t(*name##_function) parameters;
#include "nvml_calls.def"
#undef CALL

#pragma GCC visibility push(default)
#define HOOK(name, parameters)                    \
    typedef nvmlReturn_t(*name##_function) parameters; \
    nvmlReturn_t name parameters;
#include "nvml_hooks.def"
#undef HOOK
#pragma GCC visibility pop

extern function_pointer driver_hooked[HOOKS]; /* the driver's own; NULL: this driver has none */
extern function_pointer driver_called[CALLS];
extern function_pointer nvml_hooked[NVML_HOOKS];
extern _Atomic int driver_found; /* 0 not found so far, 1 found */
extern _Atomic int nvml_found;

int driver_find(void); /* slow path: fills the tables once; 1 found */
int nvml_find(void);
void driver_forget(void); /* in a forked child */
function_pointer driver_own_hook(const char *name); /* ours of an exported name; NULL: not hooked */
int driver_has_hooked(const char *name);

/* Substitutes ours for an address of the driver's; others come back as they are. */
void *driver_substitute(void *address);
int driver_is_hooked_name(const char *base);
_Atomic uint32_t *driver_unknown_variants(void);

/* libc's own, past whatever is exported here. */
typedef void *(*dlsym_function)(void *, const char *);
typedef void *(*dlvsym_function)(void *, const char *, const char *);
dlsym_function libc_dlsym_function(void);
dlvsym_function libc_dlvsym_function(void);
void *libc_dlopen(const char *file, int flags);

static inline int driver_ready(void)
{
    return atomic_load_explicit(&driver_found, memory_order_acquire) || driver_find();
}

static inline int nvml_ready(void)
{
    return atomic_load_explicit(&nvml_found, memory_order_acquire) || nvml_find();
}

#define REAL(name) ((name##_function)driver_hooked[HOOK_##name])
#define DRIVER(name) ((name##_function)driver_called[CALL_##name])
#define DRIVER_HAS(name) (driver_called[CALL_##name] != NULL)

/* First statement of every hook: without the driver's function there is nothing to stand in front of. */
#define NEED(name)                                     \
    do {                                               \
        if (!driver_ready() || !driver_hooked[HOOK_##name]) \
            return CUDA_ERROR_NOT_SUPPORTED;           \
    } while (0)

#endif

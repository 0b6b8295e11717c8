#include "driver.h"

#include "elf_symbol.h"
#include "local_lock.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

function_pointer driver_hooked[HOOKS];
function_pointer driver_called[CALLS];
function_pointer nvml_hooked[NVML_HOOKS];
_Atomic int driver_found;
_Atomic int nvml_found;

static struct local_lock finding;

struct hook {
    const char *name;
    const char *base;
    int version;
    int per_thread;
    function_pointer ours;
};

static const struct hook hooks[HOOKS] = {
#define HOOK(name, parameters, base, version, per_thread) {#name, base, version, per_thread, (function_pointer)name},
#include "hooks.def"
#undef HOOK
};

static const struct {
    const char *name;
} calls[CALLS] = {
#define CALL(name, parameters) {#name},
#include "calls.def"
#undef CALL
};

static const struct {
    const char *name;
    function_pointer ours;
} nvml_hooks[NVML_HOOKS] = {
#define HOOK(name, parameters) {#name, (function_pointer)name},
#include "nvml_hooks.def"
#undef HOOK
};

/* Address of the driver's -> ours. The driver can hand out other addresses by cuGetProcAddress than it exports, so
 * both are entered: at most three for each hook, in a table at most half full. */
#define PLACES 2048u
_Static_assert(PLACES >= 2 * 3 * (HOOKS + NVML_HOOKS), "the table stays half empty");
static struct {
    _Atomic uintptr_t real;
    _Atomic uintptr_t ours;
} places[PLACES];

static unsigned int place_of(uintptr_t address)
{
    return (unsigned int)((address * UINT64_C(0x9E3779B97F4A7C15)) >> 40) % PLACES;
}

static void enter(function_pointer real, function_pointer ours)
{
    uintptr_t key = (uintptr_t)real;
    if (!key || real == ours)
        return;
    for (unsigned int at = place_of(key), tried = 0; tried < PLACES; at = (at + 1) % PLACES, tried++) {
        uintptr_t seen = atomic_load_explicit(&places[at].real, memory_order_relaxed);
        if (seen == key)
            return; /* two names of one function: the first in hooks.def has it */
        if (!seen) {
            atomic_store_explicit(&places[at].ours, (uintptr_t)ours, memory_order_relaxed);
            atomic_store_explicit(&places[at].real, key, memory_order_release);
            return;
        }
    }
}

void *driver_substitute(void *address)
{
    uintptr_t key = (uintptr_t)address;
    for (unsigned int at = place_of(key), tried = 0; key && tried < PLACES; at = (at + 1) % PLACES, tried++) {
        uintptr_t seen = atomic_load_explicit(&places[at].real, memory_order_acquire);
        if (seen == key)
            return (void *)atomic_load_explicit(&places[at].ours, memory_order_relaxed);
        if (!seen)
            break;
    }
    return address;
}

int driver_is_hooked_name(const char *base)
{
    for (unsigned int i = 0; i < HOOKS; i++)
        if (strcmp(hooks[i].base, base) == 0)
            return 1;
    return 0;
}

_Atomic uint32_t *driver_unknown_variants(void)
{
    static _Atomic uint32_t count;
    return &count;
}

/* Before glibc 2.34 these lived in libdl. */
static uintptr_t linker_function(const char *name, _Atomic uintptr_t *known)
{
    uintptr_t found = atomic_load_explicit(known, memory_order_relaxed);
    if (!found) {
        found = (uintptr_t)elf_symbol("libc.so.6", name);
        if (!found)
            found = (uintptr_t)elf_symbol("libdl.so.2", name);
        atomic_store_explicit(known, found, memory_order_relaxed);
    }
    return found;
}

dlsym_function libc_dlsym_function(void)
{
    static _Atomic uintptr_t known;
    return (dlsym_function)linker_function("dlsym", &known);
}

dlvsym_function libc_dlvsym_function(void)
{
    static _Atomic uintptr_t known;
    return (dlvsym_function)linker_function("dlvsym", &known);
}

void *libc_dlopen(const char *file, int flags)
{
    static _Atomic uintptr_t known;
    uintptr_t found = linker_function("dlopen", &known);
    return found ? ((void *(*)(const char *, int))found)(file, flags) : NULL;
}

static void *loaded(const char *name)
{
    void *handle = libc_dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    return handle ? handle : libc_dlopen(name, RTLD_LAZY);
}

static function_pointer symbol(void *handle, const char *name)
{
    return (function_pointer)(uintptr_t)libc_dlsym_function()(handle, name);
}

/* What a search found. It is written down in one go afterwards: the dynamic linker and the driver are asked without a
 * lock of ours held, since a library's constructor may come to us while the linker is held for it. */
struct driver_functions {
    function_pointer hooked[HOOKS];
    function_pointer variants[HOOKS]; /* the driver's own answer for the ABI that a hook belongs to */
    function_pointer called[CALLS];
};

static void ask_variants(struct driver_functions *found)
{
    cuGetProcAddress_v2_function ask_v2 = (cuGetProcAddress_v2_function)found->hooked[HOOK_cuGetProcAddress_v2];
    cuGetProcAddress_function ask = (cuGetProcAddress_function)found->hooked[HOOK_cuGetProcAddress];
    for (unsigned int i = 0; i < HOOKS; i++) {
        uint64_t flags = hooks[i].per_thread ? PROC_ADDRESS_PER_THREAD : PROC_ADDRESS_LEGACY;
        void *variant = NULL;
        int status = 0;
        CUresult result = CUDA_ERROR_NOT_SUPPORTED;
        if (ask_v2)
            result = ask_v2(hooks[i].base, &variant, hooks[i].version, flags, &status);
        else if (ask)
            result = ask(hooks[i].base, &variant, hooks[i].version, flags);
        found->variants[i] = result == CUDA_SUCCESS ? (function_pointer)(uintptr_t)variant : NULL;
    }
}

static int look_for_driver(struct driver_functions *found)
{
    void *handle = loaded("libcuda.so.1");
    if (!handle)
        return 0;
    for (unsigned int i = 0; i < HOOKS; i++)
        found->hooked[i] = symbol(handle, hooks[i].name);
    for (unsigned int i = 0; i < CALLS; i++)
        found->called[i] = symbol(handle, calls[i].name);
    ask_variants(found);
    return 1;
}

static void write_down(const struct driver_functions *found)
{
    for (unsigned int i = 0; i < HOOKS; i++) {
        driver_hooked[i] = found->hooked[i];
        enter(found->hooked[i], hooks[i].ours);
    }
    for (unsigned int i = 0; i < CALLS; i++)
        driver_called[i] = found->called[i];
    /* An address that belongs to another hook already is that other ABI's: the driver knows no older one. */
    for (unsigned int i = 0; i < HOOKS; i++)
        enter(found->variants[i], hooks[i].ours);
}

/* A driver that is not there now may be loaded later, from wherever the program finds it: looked for again. */
int driver_find(void)
{
    int kept = errno;
    struct driver_functions found;
    if (look_for_driver(&found)) {
        local_lock_take(&finding);
        if (!atomic_load_explicit(&driver_found, memory_order_relaxed)) {
            write_down(&found);
            atomic_store_explicit(&driver_found, 1, memory_order_release);
        }
        local_lock_drop(&finding);
    }
    errno = kept;
    return atomic_load_explicit(&driver_found, memory_order_acquire);
}

int nvml_find(void)
{
    int kept = errno;
    function_pointer found[NVML_HOOKS];
    void *handle = loaded("libnvidia-ml.so.1");
    for (unsigned int i = 0; handle && i < NVML_HOOKS; i++)
        found[i] = symbol(handle, nvml_hooks[i].name);
    local_lock_take(&finding);
    for (unsigned int i = 0; handle && !atomic_load(&nvml_found) && i < NVML_HOOKS; i++) {
        nvml_hooked[i] = found[i];
        enter(found[i], nvml_hooks[i].ours);
    }
    if (handle)
        atomic_store_explicit(&nvml_found, 1, memory_order_release);
    local_lock_drop(&finding);
    errno = kept;
    return atomic_load_explicit(&nvml_found, memory_order_acquire);
}

void driver_forget(void)
{
    local_lock_forget(&finding);
}

/* By name, for programs that ask the dynamic linker. */
function_pointer driver_own_hook(const char *name)
{
    for (unsigned int i = 0; i < HOOKS; i++)
        if (strcmp(hooks[i].name, name) == 0)
            return hooks[i].ours;
    for (unsigned int i = 0; i < NVML_HOOKS; i++)
        if (strcmp(nvml_hooks[i].name, name) == 0)
            return nvml_hooks[i].ours;
    return NULL;
}

int driver_has_hooked(const char *name)
{
    for (unsigned int i = 0; i < HOOKS; i++)
        if (strcmp(hooks[i].name, name) == 0)
            return driver_ready() && driver_hooked[i];
    for (unsigned int i = 0; i < NVML_HOOKS; i++)
        if (strcmp(nvml_hooks[i].name, name) == 0)
            return nvml_ready() && nvml_hooked[i];
    return 0;
}

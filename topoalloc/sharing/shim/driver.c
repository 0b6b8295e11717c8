#include "driver.h"

#include "elf_symbol.h"
#include "local_lock.h"

#include <dlfcn.h>
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
#define PLACES 1024u
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

/* The driver's own answer for the ABI that a hook belongs to, legacy and per-thread. */
static void enter_variants(void)
{
    cuGetProcAddress_v2_function ask_v2 = REAL(cuGetProcAddress_v2);
    cuGetProcAddress_function ask = REAL(cuGetProcAddress);
    for (unsigned int i = 0; i < HOOKS; i++) {
        uint64_t flags = hooks[i].per_thread ? PROC_ADDRESS_PER_THREAD : PROC_ADDRESS_LEGACY;
        void *found = NULL;
        int status = 0;
        CUresult result = CUDA_ERROR_NOT_SUPPORTED;
        if (ask_v2)
            result = ask_v2(hooks[i].base, &found, hooks[i].version, flags, &status);
        else if (ask)
            result = ask(hooks[i].base, &found, hooks[i].version, flags);
        /* An address that belongs to another hook already is that other ABI's: the driver knows no older one. */
        if (result == CUDA_SUCCESS && found && driver_substitute(found) == found)
            enter((function_pointer)(uintptr_t)found, hooks[i].ours);
    }
}

int driver_find(void)
{
    local_lock_take(&finding);
    int found = atomic_load_explicit(&driver_found, memory_order_relaxed);
    if (!found) {
        void *handle = loaded("libcuda.so.1");
        for (unsigned int i = 0; handle && i < HOOKS; i++) {
            driver_hooked[i] = symbol(handle, hooks[i].name);
            enter(driver_hooked[i], hooks[i].ours);
        }
        for (unsigned int i = 0; handle && i < CALLS; i++)
            driver_called[i] = symbol(handle, calls[i].name);
        if (handle)
            enter_variants();
        found = handle ? 1 : -1;
        atomic_store_explicit(&driver_found, found, memory_order_release);
    }
    local_lock_drop(&finding);
    return found > 0;
}

int nvml_find(void)
{
    local_lock_take(&finding);
    int found = atomic_load_explicit(&nvml_found, memory_order_relaxed);
    if (!found) {
        void *handle = loaded("libnvidia-ml.so.1");
        for (unsigned int i = 0; handle && i < NVML_HOOKS; i++) {
            nvml_hooked[i] = symbol(handle, nvml_hooks[i].name);
            enter(nvml_hooked[i], nvml_hooks[i].ours);
        }
        found = handle ? 1 : -1;
        atomic_store_explicit(&nvml_found, found, memory_order_release);
    }
    local_lock_drop(&finding);
    return found > 0;
}

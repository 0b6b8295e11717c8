/* How a program comes to the driver's functions, and ours put in their place: by dlsym, by dlvsym, by
 * cuGetProcAddress. The true resolver answers first, status included; then the address it gave is substituted, so that
 * versions and stream semantics stay the driver's. */
#include "driver.h"
#include "process.h"

#include <dlfcn.h>
#include <string.h>

__attribute__((visibility("hidden"))) function_pointer interpose_dlsym(void *handle, const char *name);
__attribute__((visibility("hidden"))) function_pointer interpose_dlvsym(void *handle, const char *name);

/* dlsym finds its caller by the return address, which RTLD_NEXT depends on. So ours only looks at the name, with all
 * argument registers kept, and jumps to the true one. The first instruction (`hint #34` is `bti c`) allows an indirect
 * branch to come there: a compiler that guards branches by default marks the whole library as guarded, this included. */
#if defined(__x86_64__)
#define JUMP(name, route)                                                                                         \
    __asm__(".text\n.globl " #name "\n.type " #name ",@function\n" #name ":\n"                                   \
            "endbr64\n\tpush %rdi\n\tpush %rsi\n\tpush %rdx\n\tcall " #route "\n\tpop %rdx\n\tpop %rsi\n\tpop %rdi\n" \
            "\tjmp *%rax\n.size " #name ",.-" #name "\n")
#elif defined(__aarch64__)
#define JUMP(name, route)                                                                                   \
    __asm__(".text\n.globl " #name "\n.type " #name ",%function\n" #name ":\n"                             \
            "hint #34\n\tstp x29, x30, [sp, #-48]!\n\tstp x0, x1, [sp, #16]\n\tstr x2, [sp, #32]\n"                 \
            "\tbl " #route "\n"                                                                             \
            "\tmov x16, x0\n\tldr x2, [sp, #32]\n\tldp x0, x1, [sp, #16]\n\tldp x29, x30, [sp], #48\n\tbr x16\n" \
            ".size " #name ",.-" #name "\n")
#else
#error "the shim is for x86-64 and arm64"
#endif

JUMP(dlsym, interpose_dlsym);
JUMP(dlvsym, interpose_dlvsym);

static int is_driver_name(const char *name)
{
    return name && ((name[0] == 'c' && name[1] == 'u') || strncmp(name, "nvml", 4) == 0);
}

/* A function that each library has and that is not hooked: where it is found, the driver is. */
static const char *witness_of(const char *name)
{
    return name[0] == 'n' ? "nvmlInit_v2" : "cuInit";
}

/* `found` may be ours, which is there to be found before the driver's, whether there is a driver or not: then the
 * answer is the one that would have been given without us. Names like cublasCreate begin with cu as well, and do not
 * make us load a driver. */
static void *substituted(const char *name, void *found, int has_driver)
{
    function_pointer ours = driver_own_hook(name);
    if (!found || !ours)
        return driver_substitute(found);
    if (found == (void *)(uintptr_t)ours)
        return has_driver && driver_has_hooked(name) ? found : NULL;
    (void)driver_has_hooked(name); /* so that the addresses are known */
    return driver_substitute(found);
}

static void *driver_dlsym(void *handle, const char *name)
{
    dlsym_function look = libc_dlsym_function();
    void *found = look(handle, name);
    return substituted(name, found, found && look(handle, witness_of(name)));
}

static void *driver_dlvsym(void *handle, const char *name, const char *version)
{
    void *found = libc_dlvsym_function()(handle, name, version);
    return substituted(name, found, found && libc_dlsym_function()(handle, witness_of(name)));
}

/* The next object after the caller's is a question of who asks, and asked from here the answer could be the caller's
 * own function. What comes after whoever stands in front of us is us. */
static void *next_dlsym(void *handle, const char *name)
{
    (void)handle;
    return libc_dlsym_function()(RTLD_DEFAULT, witness_of(name)) && driver_has_hooked(name)
               ? (void *)(uintptr_t)driver_own_hook(name)
               : NULL;
}

function_pointer interpose_dlsym(void *handle, const char *name)
{
    if (!is_driver_name(name))
        return (function_pointer)libc_dlsym_function();
    if (handle == RTLD_NEXT)
        return driver_own_hook(name) ? (function_pointer)next_dlsym : (function_pointer)libc_dlsym_function();
    return (function_pointer)driver_dlsym;
}

function_pointer interpose_dlvsym(void *handle, const char *name)
{
    (void)handle;
    return is_driver_name(name) ? (function_pointer)driver_dlvsym : (function_pointer)libc_dlvsym_function();
}

static void substitute_answer(const char *symbol, void **found)
{
    if (!found || !*found)
        return;
    void *ours = driver_substitute(*found);
    /* A newer ABI of a hooked name than we know goes through unlimited; whoever asks `verify` is told. */
    if (ours == *found && symbol && driver_is_hooked_name(symbol)) {
        atomic_fetch_add_explicit(driver_unknown_variants(), 1, memory_order_relaxed);
        process_say_once(SAY_UNKNOWN_ABI, symbol);
    }
    *found = ours;
}

CUresult cuGetProcAddress(const char *symbol, void **found, int version, uint64_t flags)
{
    NEED(cuGetProcAddress);
    CUresult result = REAL(cuGetProcAddress)(symbol, found, version, flags);
    if (result == CUDA_SUCCESS)
        substitute_answer(symbol, found);
    return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **found, int version, uint64_t flags, int *status)
{
    NEED(cuGetProcAddress_v2);
    CUresult result = REAL(cuGetProcAddress_v2)(symbol, found, version, flags, status);
    if (result == CUDA_SUCCESS)
        substitute_answer(symbol, found);
    return result;
}

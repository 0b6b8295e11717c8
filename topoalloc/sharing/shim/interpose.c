/* How a program comes to the driver's functions, and ours put in their place: by dlsym, by dlvsym, by
 * cuGetProcAddress. The true resolver answers first, status included; then the address it gave is substituted, so that
 * versions and stream semantics stay the driver's. */
#include "driver.h"
#include "process.h"

#include <string.h>

__attribute__((visibility("hidden"))) function_pointer interpose_dlsym(void *handle, const char *name);
__attribute__((visibility("hidden"))) function_pointer interpose_dlvsym(void *handle, const char *name);

/* dlsym finds its caller by the return address, which RTLD_NEXT depends on. So ours only looks at the name, with all
 * argument registers kept, and jumps to the true one. */
#if defined(__x86_64__)
#define JUMP(name, route)                                                                                         \
    __asm__(".text\n.globl " #name "\n.type " #name ",@function\n" #name ":\n"                                   \
            "endbr64\n\tpush %rdi\n\tpush %rsi\n\tpush %rdx\n\tcall " #route "\n\tpop %rdx\n\tpop %rsi\n\tpop %rdi\n" \
            "\tjmp *%rax\n.size " #name ",.-" #name "\n")
#elif defined(__aarch64__)
#define JUMP(name, route)                                                                                   \
    __asm__(".text\n.globl " #name "\n.type " #name ",%function\n" #name ":\n"                             \
            "stp x29, x30, [sp, #-48]!\n\tstp x0, x1, [sp, #16]\n\tstr x2, [sp, #32]\n\tbl " #route "\n"      \
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

/* Names like cublasCreate begin with cu as well: only what lies in the driver's own table is substituted. */
static void *substituted(const char *name, void *found)
{
    if (!found)
        return NULL;
    if (name[0] == 'n')
        (void)(atomic_load(&nvml_found) || nvml_find());
    else if (strncmp(name, "cuda", 4) != 0)
        (void)driver_ready();
    return driver_substitute(found);
}

static void *driver_dlsym(void *handle, const char *name)
{
    return substituted(name, libc_dlsym_function()(handle, name));
}

static void *driver_dlvsym(void *handle, const char *name, const char *version)
{
    return substituted(name, libc_dlvsym_function()(handle, name, version));
}

function_pointer interpose_dlsym(void *handle, const char *name)
{
    (void)handle;
    return is_driver_name(name) ? (function_pointer)driver_dlsym : (function_pointer)libc_dlsym_function();
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

/* Finding the driver's calls in four ways, the third of which no preloaded library can see. */
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void *library;

uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

void check(CUresult result, const char *what) {
    if (result != CU_SUCCESS) {
        printf("error %s %d\n", what, result);
        fflush(stdout);
        exit(3);
    }
}

/* -- the symbol table of the loaded driver */

struct image {
    const ElfW(Sym) *symbols;
    const char *names;
    const uint32_t *hash, *old_hash;
    uintptr_t base;
};

static int find_image(struct dl_phdr_info *info, size_t size, void *out) {
    struct image *image = out;
    (void)size;
    const char *file = strrchr(info->dlpi_name, '/');
    if (strncmp(file ? file + 1 : info->dlpi_name, "libcuda.so", 10) != 0) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
        for (const ElfW(Dyn) *d = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr); d->d_tag; d++) {
            uintptr_t at = d->d_un.d_ptr;
            if (at < info->dlpi_addr) at += info->dlpi_addr;
            if (d->d_tag == DT_SYMTAB) image->symbols = (const void *)at;
            if (d->d_tag == DT_STRTAB) image->names = (const void *)at;
            if (d->d_tag == DT_GNU_HASH) image->hash = (const void *)at;
            if (d->d_tag == DT_HASH) image->old_hash = (const void *)at;
        }
    }
    image->base = info->dlpi_addr;
    return 1;
}

static int is_symbol(const struct image *image, uint32_t i, const char *name) {
    return image->symbols[i].st_value && !strcmp(image->names + image->symbols[i].st_name, name);
}

static void *by_elf(const char *name) {
    static struct image image;
    if (!image.base && !dl_iterate_phdr(find_image, &image)) return NULL;
    for (uint32_t i = 0; image.old_hash && i < image.old_hash[1]; i++) /* the second word counts all symbols */
        if (is_symbol(&image, i, name)) return (void *)(image.base + image.symbols[i].st_value);
    if (!image.hash) return NULL;
    uint32_t hash = 5381;
    for (const char *c = name; *c; c++) hash = hash * 33 + (unsigned char)*c;
    uint32_t buckets = image.hash[0], first = image.hash[1], bloom_words = image.hash[2];
    const uint32_t *bucket = image.hash + 4 + bloom_words * (sizeof(ElfW(Addr)) / 4);
    const uint32_t *chain = bucket + buckets;
    for (uint32_t i = bucket[hash % buckets]; i >= first; i++) {
        if ((chain[i - first] | 1) == (hash | 1) && is_symbol(&image, i, name))
            return (void *)(image.base + image.symbols[i].st_value);
        if (chain[i - first] & 1) break;
    }
    return NULL;
}

/* -- all ways */

typedef CUresult (*proc1_call)(const char *, void **, int, unsigned long long);
typedef CUresult (*proc2_call)(const char *, void **, int, unsigned long long, int *);

static void *find(const char *via, const char *symbol, const char *base, unsigned flags) {
    void *address = NULL;
    int status = 0;
    if (!strcmp(via, "elf")) return by_elf(symbol);
    if (!strcmp(via, "proc1")) {
        proc1_call ask = (proc1_call)dlsym(library, "cuGetProcAddress");
        return ask && ask(base, &address, DRIVER_API_VERSION, flags) == CU_SUCCESS ? address : NULL;
    }
    if (!strcmp(via, "proc2")) {
        proc2_call ask = (proc2_call)dlsym(library, "cuGetProcAddress_v2");
        return ask && ask(base, &address, DRIVER_API_VERSION, flags, &status) == CU_SUCCESS ? address : NULL;
    }
    return dlsym(library, symbol);
}

void driver_find(struct driver *driver, const char *via) {
    if (!library) library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        printf("error dlopen %s\n", dlerror());
        exit(3);
    }
#define X(field, symbol, base, flags, parameters) *(void **)&driver->field = find(via, symbol, base, flags);
    DRIVER_CALLS(X)
#undef X
}

CUresult driver_open(struct driver *driver, const char *via) {
    CUdevice device;
    CUcontext context;
    driver_find(driver, via);
    if (!driver->init) return 999;
    CUresult result = driver->init(0);
    if (result == CU_SUCCESS) result = driver->device_get(&device, 0);
    if (result == CU_SUCCESS) result = driver->primary_retain(&context, device);
    if (result == CU_SUCCESS) result = driver->ctx_set(context);
    return result;
}

/* xorshift-like steps: each needs the one before; the last store keeps them alive and never happens. The comment in the
 * first line tells a made-up driver what a real one reads from the rest. */
const char CHAIN_PTX[] =
    "// module kernel=chain:parameter\n.version 6.4\n.target sm_50\n.address_size 64\n"
    ".visible .entry chain(.param .u64 loops)\n{\n"
    ".reg .pred %p<3>; .reg .b32 %r<6>; .reg .b64 %d<4>;\n"
    "ld.param.u64 %d1, [loops];\n"
    "mov.u32 %r1, %tid.x;\nadd.s32 %r1, %r1, 12345;\n"
    "setp.eq.u64 %p1, %d1, 0;\n@%p1 bra DONE;\n"
    "LOOP:\n"
    "shl.b32 %r2, %r1, 13;\nxor.b32 %r1, %r1, %r2;\n"
    "shr.u32 %r2, %r1, 17;\nxor.b32 %r1, %r1, %r2;\n"
    "shl.b32 %r2, %r1, 5;\nxor.b32 %r1, %r1, %r2;\n"
    "sub.u64 %d1, %d1, 1;\nsetp.ne.u64 %p1, %d1, 0;\n@%p1 bra LOOP;\n"
    "DONE:\n"
    "setp.ne.u32 %p2, %r1, 0;\n@%p2 bra END;\n"
    "mov.u64 %d2, 0;\nst.global.u32 [%d2], %r1;\n"
    "END:\nret;\n}\n";

CUfunction chain_function(struct driver *driver) {
    CUmodule module;
    CUfunction function;
    check(driver->module_load(&module, CHAIN_PTX), "cuModuleLoadData");
    check(driver->module_function(&function, module, "chain"), "cuModuleGetFunction");
    return function;
}

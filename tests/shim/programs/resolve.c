/* resolve: for every entry point, what each way of asking gives: "symbol asked-by driver|shim". */
#include "reach.h"

#include <dlfcn.h>

static const struct {
    const char *base, *symbol;
    int version, threads;
} entries[] = {
#define E(base, version, symbol, threads) {#base, #symbol, version, threads},
#include "entry_points.h"
#undef E
};

static const char *whose(void *address)
{
    Dl_info where;
    if (!address)
        return "nobody";
    if (!dladdr(address, &where) || !where.dli_fname)
        return "unknown";
    return strstr(where.dli_fname, "libcuda") ? "driver" : "shim";
}

int main(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    CUresult (*first)(const char *, void **, int, uint64_t);
    CUresult (*second)(const char *, void **, int, uint64_t, int *);
    *(void **)(void *)&first = dlsym(library, "cuGetProcAddress");
    *(void **)(void *)&second = dlsym(library, "cuGetProcAddress_v2");
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        void *by_name = dlsym(library, entries[i].symbol), *by_first = NULL, *by_second = NULL;
        uint64_t flags = entries[i].threads ? PROC_PER_THREAD : PROC_LEGACY;
        int status = -1, first_result = first(entries[i].base, &by_first, entries[i].version, flags);
        int second_result = second(entries[i].base, &by_second, entries[i].version, flags, &status);
        printf("%s@%d/%d=%s %s %s %s %d %d %d\n", entries[i].base, entries[i].version, entries[i].threads,
               entries[i].symbol, whose(by_name), whose(by_first), whose(by_second), first_result, second_result, status);
        if (by_first != by_second)
            printf("differ=%s\n", entries[i].symbol);
    }
    return 0;
}

/* A library that stands in front of the driver as well, as profilers do: it counts, and calls what comes next. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

typedef unsigned long long CUdeviceptr;

int cuInit(unsigned flags);
int cuInit(unsigned flags)
{
    int (*next)(unsigned) = (int (*)(unsigned))dlsym(RTLD_NEXT, "cuInit");
    return next(flags);
}

int cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);
int cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    static int calls;
    int (*next)(CUdeviceptr *, size_t) = (int (*)(CUdeviceptr *, size_t))dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    if (calls++ == 0)
        puts("wrapped=1");
    return next(address, bytes);
}

/* How a program gets at the entry points: exported names, each a function of its own, and cuGetProcAddress, which answers
 * with the newest ABI that is not newer than the version asked for (and not newer than this driver).
 */
#define _GNU_SOURCE
#include "driver.h"

static CUresult checked(const char *base, void **function, int version, uint64_t flags, int *status)
{
    int ignored;
    if (!base || !function || flags > PROC_PER_THREAD)
        return CUDA_ERROR_INVALID_VALUE;
    return entry_point(base, function, version, flags == PROC_PER_THREAD, status ? status : &ignored);
}

EXPORT CUresult cuGetProcAddress(const char *base, void **function, int version, uint64_t flags)
{
    return checked(base, function, version, flags, NULL);
}

EXPORT CUresult cuGetProcAddress_v2(const char *base, void **function, int version, uint64_t flags, int *status)
{
    return checked(base, function, version, flags, status);
}

EXPORT CUresult cuGetErrorName(CUresult error, const char **text)
{
    *text = error == CUDA_SUCCESS                ? "CUDA_SUCCESS"
            : error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
                                                : "CUDA_ERROR";
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorString(CUresult error, const char **text)
{
    return cuGetErrorName(error, text);
}

/* The tables behind this call are the driver's own affair and nowhere published, so there are none. Without them the
 * CUDA runtime resolves all its entry points here and then refuses to run. */
EXPORT CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
    (void)id;
    *table = NULL;
    return CUDA_ERROR_NOT_FOUND;
}

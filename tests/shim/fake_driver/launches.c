/* Every way to launch a kernel; graphs have their own file. */
#define _GNU_SOURCE
#include "driver.h"

/* The launch that would be the 1025th waiting in its stream waits for room, without holding the driver's lock. */
static CUresult wait_for_room(CUstream handle)
{
    uint64_t moment = 0;
    {
        GUARD_CONTEXT;
        (void)context;
        CUstream stream = stream_of(handle);
        if (!stream)
            return CUDA_ERROR_INVALID_HANDLE;
        if (stream->queued >= QUEUE_MAX && !stream->capture)
            moment = stream->queue[stream->queued % QUEUE_MAX];
    }
    if (moment)
        gpu_wait(moment);
    return CUDA_SUCCESS;
}

static CUresult launch(CUfunction function, const unsigned grid[3], CUstream handle, void **parameters)
{
    CUresult result = wait_for_room(handle);
    if (result)
        return result;
    GUARD_CONTEXT;
    (void)context;
    CUstream stream = stream_of(handle);
    if (!stream || !function)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!grid[0] || !grid[1] || !grid[2])
        return CUDA_ERROR_INVALID_VALUE;
    result = function_ready(function, &function);
    return result ? result : stream_work(stream, function_duration(function, grid, parameters));
}

#define SHAPE unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared
#define UNUSED_SHAPE (void)bx, (void)by, (void)bz, (void)shared
#define GRID ((unsigned[3]){gx, gy, gz})

EXPORT CUresult cuLaunchKernel(CUfunction function, SHAPE, CUstream stream, void **parameters, void **extra)
{
    UNUSED_SHAPE, (void)extra;
    return launch(function, GRID, stream, parameters);
}

EXPORT CUresult cuLaunchKernel_ptsz(CUfunction function, SHAPE, CUstream stream, void **parameters, void **extra)
{
    UNUSED_SHAPE, (void)extra;
    return launch(function, GRID, per_thread(stream), parameters);
}

EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, SHAPE, CUstream stream, void **parameters)
{
    UNUSED_SHAPE;
    return launch(function, GRID, stream, parameters);
}

EXPORT CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, SHAPE, CUstream stream, void **parameters)
{
    UNUSED_SHAPE;
    return launch(function, GRID, per_thread(stream), parameters);
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    (void)extra;
    return launch(function, config->grid, config->stream, parameters);
}

EXPORT CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    (void)extra;
    return launch(function, config->grid, per_thread(config->stream), parameters);
}

EXPORT CUresult cuLaunchCooperativeKernelMultiDevice(CUlaunchParams *launches, unsigned count, unsigned flags)
{
    (void)flags;
    CUresult result = CUDA_SUCCESS;
    for (unsigned i = 0; i < count && !result; i++)
        result = launch(launches[i].function, launches[i].grid, launches[i].stream, launches[i].parameters);
    return result;
}

/* The calls of CUDA 1 to 3: the shape is set before. */
EXPORT CUresult cuLaunch(CUfunction function)
{
    return launch(function, (unsigned[3]){1, 1, 1}, NULL, NULL);
}

EXPORT CUresult cuLaunchGrid(CUfunction function, int width, int height)
{
    return launch(function, (unsigned[3]){(unsigned)width, (unsigned)height, 1}, NULL, NULL);
}

EXPORT CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream)
{
    return launch(function, (unsigned[3]){(unsigned)width, (unsigned)height, 1}, stream, NULL);
}

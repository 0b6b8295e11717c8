/* Launches: each waits for credit, goes, and is charged the GPU time it is predicted to take. */
#include "capture.h"
#include "driver.h"
#include "process.h"
#include "timing.h"

/* Recorded into a graph it does not run now; the graph's launch is charged. */
static int is_paced(CUstream stream)
{
    return process_limits_cores() && !capture_has(stream);
}

#define PACED(key, stream, call)                                 \
    do {                                                         \
        struct timing_ticket ticket;                             \
        timing_before((key), (stream), &ticket);                 \
        CUresult result = (call);                                \
        timing_after(&ticket, (stream), result == CUDA_SUCCESS); \
        return result;                                           \
    } while (0)

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
                        CUstream stream, void **parameters, void **extra)
{
    NEED(cuLaunchKernel);
    if (!is_paced(stream))
        return REAL(cuLaunchKernel)(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,
                                    parameters, extra);
    const unsigned int shape[6] = {grid_x, grid_y, grid_z, block_x, block_y, block_z};
    PACED(timing_key(function, shape), stream,
          REAL(cuLaunchKernel)(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,
                               parameters, extra));
}

CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                             unsigned int block_x, unsigned int block_y, unsigned int block_z,
                             unsigned int shared_bytes, CUstream stream, void **parameters, void **extra)
{
    NEED(cuLaunchKernel_ptsz);
    CUstream named = stream ? stream : STREAM_PER_THREAD;
    if (!is_paced(named))
        return REAL(cuLaunchKernel_ptsz)(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,
                                         stream, parameters, extra);
    const unsigned int shape[6] = {grid_x, grid_y, grid_z, block_x, block_y, block_z};
    PACED(timing_key(function, shape), named,
          REAL(cuLaunchKernel_ptsz)(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,
                                    parameters, extra));
}

static uint64_t config_key(const CUlaunchConfig *config, CUfunction function)
{
    const unsigned int shape[6] = {config->grid_x,  config->grid_y,  config->grid_z,
                                   config->block_x, config->block_y, config->block_z};
    return timing_key(function, shape);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    NEED(cuLaunchKernelEx);
    if (!config || !is_paced(config->stream))
        return REAL(cuLaunchKernelEx)(config, function, parameters, extra);
    PACED(config_key(config, function), config->stream, REAL(cuLaunchKernelEx)(config, function, parameters, extra));
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    NEED(cuLaunchKernelEx_ptsz);
    CUstream named = config && config->stream ? config->stream : STREAM_PER_THREAD;
    if (!config || !is_paced(named))
        return REAL(cuLaunchKernelEx_ptsz)(config, function, parameters, extra);
    PACED(config_key(config, function), named, REAL(cuLaunchKernelEx_ptsz)(config, function, parameters, extra));
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                                   unsigned int block_x, unsigned int block_y, unsigned int block_z,
                                   unsigned int shared_bytes, CUstream stream, void **parameters)
{
    NEED(cuLaunchCooperativeKernel);
    if (!is_paced(stream))
        return REAL(cuLaunchCooperativeKernel)(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                                               shared_bytes, stream, parameters);
    const unsigned int shape[6] = {grid_x, grid_y, grid_z, block_x, block_y, block_z};
    PACED(timing_key(function, shape), stream,
          REAL(cuLaunchCooperativeKernel)(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,
                                          stream, parameters));
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                        unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                        unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                        void **parameters)
{
    NEED(cuLaunchCooperativeKernel_ptsz);
    CUstream named = stream ? stream : STREAM_PER_THREAD;
    if (!is_paced(named))
        return REAL(cuLaunchCooperativeKernel_ptsz)(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                                                    shared_bytes, stream, parameters);
    const unsigned int shape[6] = {grid_x, grid_y, grid_z, block_x, block_y, block_z};
    PACED(timing_key(function, shape), named,
          REAL(cuLaunchCooperativeKernel_ptsz)(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                                               shared_bytes, stream, parameters));
}

/* A share has one GPU, so what several devices would run together is one launch here. */
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned int count, unsigned int flags)
{
    NEED(cuLaunchCooperativeKernelMultiDevice);
    if (!launches || !count || !is_paced(launches[0].stream))
        return REAL(cuLaunchCooperativeKernelMultiDevice)(launches, count, flags);
    const unsigned int shape[6] = {launches[0].grid_x,  launches[0].grid_y,  launches[0].grid_z,
                                   launches[0].block_x, launches[0].block_y, launches[0].block_z};
    PACED(timing_key(launches[0].function, shape), launches[0].stream,
          REAL(cuLaunchCooperativeKernelMultiDevice)(launches, count, flags));
}

CUresult cuLaunch(CUfunction function)
{
    NEED(cuLaunch);
    if (!is_paced(NULL))
        return REAL(cuLaunch)(function);
    const unsigned int shape[6] = {1, 1, 1, 0, 0, 0};
    PACED(timing_key(function, shape), NULL, REAL(cuLaunch)(function));
}

CUresult cuLaunchGrid(CUfunction function, int width, int height)
{
    NEED(cuLaunchGrid);
    if (!is_paced(NULL))
        return REAL(cuLaunchGrid)(function, width, height);
    const unsigned int shape[6] = {(unsigned int)width, (unsigned int)height, 1, 0, 0, 0};
    PACED(timing_key(function, shape), NULL, REAL(cuLaunchGrid)(function, width, height));
}

CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream)
{
    NEED(cuLaunchGridAsync);
    if (!is_paced(stream))
        return REAL(cuLaunchGridAsync)(function, width, height, stream);
    const unsigned int shape[6] = {(unsigned int)width, (unsigned int)height, 1, 0, 0, 0};
    PACED(timing_key(function, shape), stream, REAL(cuLaunchGridAsync)(function, width, height, stream));
}

static const unsigned int of_graph[6];

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    NEED(cuGraphLaunch);
    if (!is_paced(stream))
        return REAL(cuGraphLaunch)(exec, stream);
    PACED(timing_key(exec, of_graph), stream, REAL(cuGraphLaunch)(exec, stream));
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
    NEED(cuGraphLaunch_ptsz);
    CUstream named = stream ? stream : STREAM_PER_THREAD;
    if (!is_paced(named))
        return REAL(cuGraphLaunch_ptsz)(exec, stream);
    PACED(timing_key(exec, of_graph), named, REAL(cuGraphLaunch_ptsz)(exec, stream));
}

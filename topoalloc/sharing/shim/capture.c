#include "capture.h"

#include "driver.h"

_Atomic int captures_open;

/* A legacy stream that may not be asked while another captures cannot be captured itself. */
int capture_asks(CUstream stream)
{
    int status = 0;
    return DRIVER_HAS(cuStreamIsCapturing) && DRIVER(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS && status != 0;
}

void capture_forget(void)
{
    atomic_store(&captures_open, 0);
}

static CUresult begun(CUresult result)
{
    if (result != CUDA_SUCCESS)
        atomic_fetch_sub(&captures_open, 1);
    return result;
}

/* A capture ends whatever EndCapture returns, but for a stream that has none. */
static CUresult ended(CUresult result)
{
    if (atomic_fetch_sub(&captures_open, 1) <= 0)
        atomic_fetch_add(&captures_open, 1);
    return result;
}

/* Counted before the driver begins, so that another thread's work on the stream is looked at in time. */
#define BEGIN(name, parameters, ...)                 \
    CUresult name parameters                         \
    {                                                \
        NEED(name);                                  \
        atomic_fetch_add(&captures_open, 1);         \
        return begun(REAL(name)(__VA_ARGS__));       \
    }

BEGIN(cuStreamBeginCapture, (CUstream stream), stream)
BEGIN(cuStreamBeginCapture_ptsz, (CUstream stream), stream)
BEGIN(cuStreamBeginCapture_v2, (CUstream stream, int mode), stream, mode)
BEGIN(cuStreamBeginCapture_v2_ptsz, (CUstream stream, int mode), stream, mode)
BEGIN(cuStreamBeginCaptureToGraph,
      (CUstream stream, CUgraph graph, const CUgraphNode *nodes, const void *edges, size_t count, int mode), stream,
      graph, nodes, edges, count, mode)
BEGIN(cuStreamBeginCaptureToGraph_ptsz,
      (CUstream stream, CUgraph graph, const CUgraphNode *nodes, const void *edges, size_t count, int mode), stream,
      graph, nodes, edges, count, mode)

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    NEED(cuStreamEndCapture);
    return ended(REAL(cuStreamEndCapture)(stream, graph));
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    NEED(cuStreamEndCapture_ptsz);
    return ended(REAL(cuStreamEndCapture_ptsz)(stream, graph));
}

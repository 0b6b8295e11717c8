#include "capture.h"

#include "driver.h"
#include "timing.h"

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

/* The result does not tell: an invalid capture ends with an error, one that another thread has begun goes on with one. */
static void ended(CUstream stream, int had_one, int may_go_on)
{
    if (!had_one || (may_go_on && capture_has(stream)))
        return;
    if (atomic_fetch_sub(&captures_open, 1) <= 0)
        atomic_fetch_add(&captures_open, 1);
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
    int had_one = capture_has(stream);
    CUresult result = REAL(cuStreamEndCapture)(stream, graph);
    ended(stream, had_one, 1);
    return result;
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    NEED(cuStreamEndCapture_ptsz);
    CUstream named = stream ? stream : STREAM_PER_THREAD;
    int had_one = capture_has(named);
    CUresult result = REAL(cuStreamEndCapture_ptsz)(stream, graph);
    ended(named, had_one, 1);
    return result;
}

/* ---- a stream's end: nothing of ours is left on it, and a capture that was open on it is over ---- */

CUresult cuStreamDestroy_v2(CUstream stream)
{
    NEED(cuStreamDestroy_v2);
    int had_one = capture_has(stream);
    timing_stream_gone(stream);
    CUresult result = REAL(cuStreamDestroy_v2)(stream);
    ended(stream, had_one && result == CUDA_SUCCESS, 0);
    return result;
}

CUresult cuStreamDestroy(CUstream stream)
{
    NEED(cuStreamDestroy);
    int had_one = capture_has(stream);
    timing_stream_gone(stream);
    CUresult result = REAL(cuStreamDestroy)(stream);
    ended(stream, had_one && result == CUDA_SUCCESS, 0);
    return result;
}

/* Stream capture: begin, end, and what a stream tells about it. */
#define _GNU_SOURCE
#include "driver.h"

static _Thread_local int mode_of_thread = CAPTURE_GLOBAL;

int capture_mode_of_thread(void)
{
    return mode_of_thread;
}

static CUresult begin(CUstream handle, CUgraph into, int mode)
{
    GUARD_CONTEXT;
    CUstream stream = stream_of(handle);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream == &context->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture || mode < CAPTURE_GLOBAL || mode > CAPTURE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    stream->capture = into ? into : graph_new();
    stream->capture_origin = true;
    stream->capture_invalid = false;
    stream->capture_mode = mode;
    stream->capture_thread = pthread_self();
    stream->capture_last = NULL;
    return CUDA_SUCCESS;
}

#define BEGIN(name)                                                   \
    EXPORT CUresult name(CUstream stream, int mode)     \
    {                                                                 \
        return begin(stream, NULL, mode);                             \
    }                                                                 \
    EXPORT CUresult name##_ptsz(CUstream stream, int mode)            \
    {                                                                 \
        return begin(per_thread(stream), NULL, mode);                 \
    }
BEGIN(cuStreamBeginCapture_v2)

EXPORT CUresult cuStreamBeginCapture(CUstream stream)
{
    return begin(stream, NULL, CAPTURE_GLOBAL);
}

EXPORT CUresult cuStreamBeginCapture_ptsz(CUstream stream)
{
    return begin(per_thread(stream), NULL, CAPTURE_GLOBAL);
}

EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *after, const void *edges,
                                            size_t count, int mode)
{
    (void)after, (void)edges, (void)count;
    return begin(stream, graph, mode);
}

EXPORT CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *after,
                                                 const void *edges, size_t count, int mode)
{
    (void)after, (void)edges, (void)count;
    return begin(per_thread(stream), graph, mode);
}

static CUresult end(CUstream handle, CUgraph *graph)
{
    GUARD_CONTEXT;
    CUstream stream = stream_of(handle);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    *graph = NULL;
    if (!stream->capture || !stream->capture_origin)
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    bool invalid = false;
    CUgraph captured = stream->capture;
    for (CUstream each = context->streams; each; each = each->next)
        if (each->capture == captured) {
            invalid |= each->capture_invalid;
            each->capture = NULL;
            each->capture_last = NULL;
            each->capture_origin = each->capture_invalid = false;
        }
    if (invalid) {
        graph_destroy(captured);
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    *graph = captured;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    return end(stream, graph);
}

EXPORT CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    return end(per_thread(stream), graph);
}

/* Any of the outputs may be NULL. */
static CUresult tell(CUstream handle, int *status, unsigned long long *id, CUgraph *graph, const CUgraphNode **last,
                     size_t *count)
{
    GUARD_CONTEXT;
    CUstream stream = stream_of(handle);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    for (CUstream each = context->streams; stream == &context->legacy && each; each = each->next)
        if (each->capture && !(each->flags & STREAM_NON_BLOCKING)) {
            each->capture_invalid = true;
            return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    *status = !stream->capture ? NOT_CAPTURING : stream->capture_invalid ? CAPTURE_IS_INVALID : CAPTURING;
    if (*status == NOT_CAPTURING)
        return CUDA_SUCCESS;
    if (id)
        *id = (unsigned long long)(uintptr_t)stream->capture;
    if (graph)
        *graph = stream->capture;
    if (last)
        *last = &stream->capture_last;
    if (count)
        *count = stream->capture_last != NULL;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
    return tell(stream, status, NULL, NULL, NULL, NULL);
}

EXPORT CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status)
{
    return tell(per_thread(stream), status, NULL, NULL, NULL, NULL);
}

EXPORT CUresult cuStreamGetCaptureInfo(CUstream stream, int *status, unsigned long long *id)
{
    return tell(stream, status, id, NULL, NULL, NULL);
}

EXPORT CUresult cuStreamGetCaptureInfo_ptsz(CUstream stream, int *status, unsigned long long *id)
{
    return tell(per_thread(stream), status, id, NULL, NULL, NULL);
}

EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream stream, int *status, unsigned long long *id, CUgraph *graph,
                                          const CUgraphNode **last, size_t *count)
{
    return tell(stream, status, id, graph, last, count);
}

EXPORT CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream stream, int *status, unsigned long long *id, CUgraph *graph,
                                               const CUgraphNode **last, size_t *count)
{
    return tell(per_thread(stream), status, id, graph, last, count);
}

EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream stream, int *status, unsigned long long *id, CUgraph *graph,
                                          const CUgraphNode **last, const void **edges, size_t *count)
{
    if (edges)
        *edges = NULL;
    return tell(stream, status, id, graph, last, count);
}

EXPORT CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream stream, int *status, unsigned long long *id, CUgraph *graph,
                                               const CUgraphNode **last, const void **edges, size_t *count)
{
    if (edges)
        *edges = NULL;
    return tell(per_thread(stream), status, id, graph, last, count);
}

static CUresult update(CUstream handle, CUgraphNode *after, size_t count)
{
    GUARD_CONTEXT;
    (void)context;
    CUstream stream = stream_of(handle);
    if (!stream || !stream->capture)
        return CUDA_ERROR_INVALID_HANDLE;
    if (count == 1)
        stream->capture_last = after[0];
    else if (count)
        stream->capture_last = graph_add(stream->capture, NODE_EMPTY, after, count);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *after, size_t count, unsigned flags)
{
    (void)flags;
    return update(stream, after, count);
}

EXPORT CUresult cuStreamUpdateCaptureDependencies_ptsz(CUstream stream, CUgraphNode *after, size_t count, unsigned flags)
{
    (void)flags;
    return update(per_thread(stream), after, count);
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    int before = mode_of_thread;
    mode_of_thread = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

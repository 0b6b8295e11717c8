/* Streams and events: in what order work is placed on the clock, and stream capture with all that it forbids. */
#define _GNU_SOURCE
#include "driver.h"

#include <string.h>

#define STREAM_MAGIC UINT64_C(0x57e40001)
#define EVENT_MAGIC UINT64_C(0xe7e40001)
#define THREAD_STREAMS_MAX 8
#define CAPTURE_ISOLATION 905

static _Thread_local struct {
    uint64_t context_serial;
    CUstream stream;
} mine[THREAD_STREAMS_MAX];
static _Thread_local unsigned mine_next;


static CUstream stream_new(CUcontext context, unsigned flags, int priority)
{
    CUstream stream = calloc(1, sizeof *stream);
    stream->magic = STREAM_MAGIC;
    stream->context = context;
    stream->flags = flags;
    stream->priority = priority;
    stream->next = context->streams;
    context->streams = stream;
    return stream;
}

CUstream per_thread(CUstream stream)
{
    return stream ? stream : STREAM_PER_THREAD;
}

static CUstream stream_of_thread(CUcontext context)
{
    for (unsigned i = 0; i < THREAD_STREAMS_MAX; i++)
        if (mine[i].stream && mine[i].context_serial == context->serial)
            return mine[i].stream;
    unsigned at = mine_next++ % THREAD_STREAMS_MAX;
    mine[at].context_serial = context->serial;
    return mine[at].stream = stream_new(context, 0, 0);
}

CUstream stream_of(CUstream handle)
{
    CUcontext context = context_current();
    if (!context)
        return NULL;
    if (!handle || handle == STREAM_LEGACY)
        return &context->legacy;
    if (handle == STREAM_PER_THREAD)
        return stream_of_thread(context);
    return handle->magic == STREAM_MAGIC ? handle : NULL;
}

void streams_begin(CUcontext context)
{
    context->legacy.magic = STREAM_MAGIC;
    context->legacy.context = context;
}

void streams_end(CUcontext context)
{
    for (CUstream stream = context->streams, next; stream; stream = next) {
        next = stream->next;
        stream->magic = 0;
        free(stream);
    }
}

static bool blocking(const struct CUstream_st *stream)
{
    return stream != &stream->context->legacy && !(stream->flags & STREAM_NON_BLOCKING);
}

static uint64_t not_before(CUstream stream)
{
    uint64_t after = stream->end;
    uint64_t others = stream == &stream->context->legacy ? stream->context->blocking_end
                      : blocking(stream)                 ? stream->context->legacy.end
                                                         : 0;
    return others > after ? others : after;
}

/* A capture of a blocking stream and work in the legacy stream exclude each other. */
static CUresult legacy_forbids(CUstream stream)
{
    CUcontext context = stream->context;
    if (stream != &context->legacy)
        return CUDA_SUCCESS;
    for (CUstream each = context->streams; each; each = each->next)
        if (each->capture && blocking(each)) {
            each->capture_invalid = true;
            return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    return CUDA_SUCCESS;
}

CUresult stream_work(CUstream stream, uint64_t duration_ns)
{
    CUresult forbidden = legacy_forbids(stream);
    if (forbidden)
        return forbidden;
    if (stream->capture) {
        CUgraphNode node = graph_add(stream->capture, NODE_KERNEL, &stream->capture_last, stream->capture_last != NULL);
        node_set_duration(node, duration_ns);
        stream->capture_last = node;
        return stream->capture_invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
    }
    stream->end = gpu_submit(not_before(stream), duration_ns);
    stream->queue[stream->queued++ % QUEUE_MAX] = stream->end;
    if (blocking(stream) && stream->end > stream->context->blocking_end)
        stream->context->blocking_end = stream->end;
    return CUDA_SUCCESS;
}

uint64_t context_end(CUcontext context)
{
    uint64_t end = context->legacy.end;
    for (CUstream stream = context->streams; stream; stream = stream->next)
        if (stream->end > end)
            end = stream->end;
    return end;
}

CUresult capture_forbids(void)
{
    CUcontext context = context_current();
    CUresult result = CUDA_SUCCESS;
    for (CUstream stream = context ? context->streams : NULL; stream; stream = stream->next) {
        bool own = stream->capture && pthread_equal(stream->capture_thread, pthread_self());
        bool bars = own ? stream->capture_mode != CAPTURE_RELAXED && capture_mode_of_thread() != CAPTURE_RELAXED
                        : stream->capture && stream->capture_mode == CAPTURE_GLOBAL && capture_mode_of_thread() == CAPTURE_GLOBAL;
        if (!bars)
            continue;
        stream->capture_invalid = true;
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return result;
}

/* --- streams ----------------------------------------------------------------------------------------------------- */

EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    GUARD_CONTEXT;
    *stream = stream_new(context, flags, priority);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    GUARD_CONTEXT;
    *stream = stream_new(context, flags, 0);
    return CUDA_SUCCESS;
}

static CUresult stream_destroy(CUstream stream)
{
    GUARD;
    if (!stream || (uintptr_t)stream <= 2 || stream->magic != STREAM_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture && stream->capture_origin)
        graph_destroy(stream->capture);
    CUcontext context = stream->context;
    if (stream->end > context->legacy.end) /* the context still waits for what was placed */
        context->legacy.end = stream->end;
    for (CUstream *link = &context->streams; *link; link = &(*link)->next)
        if (*link == stream) {
            *link = stream->next;
            break;
        }
    stream->magic = 0;
    free(stream);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamDestroy(CUstream stream)
{
    return stream_destroy(stream);
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
    return stream_destroy(stream);
}

#define FIND_STREAM(handle)                        \
    GUARD_CONTEXT;                                 \
    CUstream stream = stream_of(handle);           \
    (void)context;                                 \
    if (!stream)                                   \
    return CUDA_ERROR_INVALID_HANDLE
#define UNSAFE_IN_CAPTURE(stream)                                   \
    if ((stream)->capture) {                                        \
        (stream)->capture_invalid = true;                           \
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;               \
    }

static CUresult synchronise(CUstream handle)
{
    uint64_t end;
    {
        FIND_STREAM(handle);
        UNSAFE_IN_CAPTURE(stream)
        CUresult forbidden = legacy_forbids(stream);
        if (forbidden)
            return forbidden;
        end = not_before(stream);
    }
    gpu_wait(end);
    GUARD;
    pools_trim();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamSynchronize(CUstream stream)
{
    return synchronise(stream);
}

EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
    return synchronise(per_thread(stream));
}

static CUresult query(CUstream handle)
{
    FIND_STREAM(handle);
    UNSAFE_IN_CAPTURE(stream)
    CUresult forbidden = legacy_forbids(stream);
    return forbidden ? forbidden : gpu_reached(not_before(stream)) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuStreamQuery(CUstream stream)
{
    return query(stream);
}

EXPORT CUresult cuStreamQuery_ptsz(CUstream stream)
{
    return query(per_thread(stream));
}

static CUresult stream_fact(CUstream handle, CUcontext *of, unsigned *flags, int *priority, unsigned long long *id)
{
    FIND_STREAM(handle);
    if (of)
        *of = stream->context;
    if (flags)
        *flags = stream->flags;
    if (priority)
        *priority = stream->priority;
    if (id)
        *id = (unsigned long long)(uintptr_t)stream;
    return CUDA_SUCCESS;
}

#define STREAM_FACT(name, type, ...)                              \
    EXPORT CUresult name(CUstream stream, type out)               \
    {                                                             \
        return stream_fact(stream, __VA_ARGS__);                  \
    }                                                             \
    EXPORT CUresult name##_ptsz(CUstream stream, type out)        \
    {                                                             \
        return stream_fact(per_thread(stream), __VA_ARGS__);      \
    }
STREAM_FACT(cuStreamGetCtx, CUcontext *, out, NULL, NULL, NULL)
STREAM_FACT(cuStreamGetFlags, unsigned *, NULL, out, NULL, NULL)
STREAM_FACT(cuStreamGetPriority, int *, NULL, NULL, out, NULL)
STREAM_FACT(cuStreamGetId, unsigned long long *, NULL, NULL, NULL, out)

static CUresult host_function(CUstream handle)
{
    FIND_STREAM(handle);
    return stream_work(stream, 0);
}

/* The function runs here and now, once the stream has come to it: a simplification that no limiter can tell. */
EXPORT CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *data)
{
    CUresult result = host_function(stream);
    if (!result && !synchronise(stream))
        function(data);
    return result;
}

EXPORT CUresult cuLaunchHostFunc_ptsz(CUstream stream, void (*function)(void *), void *data)
{
    return cuLaunchHostFunc(per_thread(stream), function, data);
}

/* --- events ------------------------------------------------------------------------------------------------------ */

EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    GUARD_CONTEXT;
    (void)context;
    *event = calloc(1, sizeof **event);
    (*event)->magic = EVENT_MAGIC;
    (*event)->flags = flags;
    return CUDA_SUCCESS;
}

#define FIND_EVENT(event)                                              \
    if (!(event) || (event)->magic != EVENT_MAGIC)                     \
    return CUDA_ERROR_INVALID_HANDLE

static CUresult event_destroy(CUevent event)
{
    GUARD;
    FIND_EVENT(event);
    event->magic = 0;
    free(event);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy(CUevent event)
{
    return event_destroy(event);
}

EXPORT CUresult cuEventDestroy_v2(CUevent event)
{
    return event_destroy(event);
}

static CUresult record(CUevent event, CUstream handle)
{
    FIND_STREAM(handle);
    FIND_EVENT(event);
    CUresult forbidden = legacy_forbids(stream);
    if (forbidden)
        return forbidden;
    if (stream->capture) {
        event->capture = stream->capture;
        event->capture_last = stream->capture_last;
        return CUDA_SUCCESS;
    }
    event->capture = NULL;
    event->recorded = true;
    event->moment = gpu_submit(not_before(stream), 0);
    stream->end = event->moment;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream)
{
    return record(event, stream);
}

EXPORT CUresult cuEventRecord_ptsz(CUevent event, CUstream stream)
{
    return record(event, per_thread(stream));
}

EXPORT CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags)
{
    (void)flags;
    return record(event, stream);
}

EXPORT CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned flags)
{
    (void)flags;
    return record(event, per_thread(stream));
}

EXPORT CUresult cuEventQuery(CUevent event)
{
    GUARD;
    FIND_EVENT(event);
    CUresult forbidden = capture_forbids();
    if (forbidden)
        return forbidden;
    if (event->capture)
        return CUDA_ERROR_CAPTURED_EVENT;
    return !event->recorded || gpu_reached(event->moment) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuEventSynchronize(CUevent event)
{
    uint64_t moment;
    {
        GUARD;
        FIND_EVENT(event);
        CUresult forbidden = capture_forbids();
        if (forbidden)
            return forbidden;
        if (event->capture)
            return CUDA_ERROR_CAPTURED_EVENT;
        moment = event->recorded ? event->moment : 0;
    }
    gpu_wait(moment);
    GUARD;
    pools_trim();
    return CUDA_SUCCESS;
}

static CUresult elapsed(float *ms, CUevent start, CUevent end)
{
    GUARD;
    FIND_EVENT(start);
    FIND_EVENT(end);
    if (!start->recorded || !end->recorded || ((start->flags | end->flags) & EVENT_DISABLE_TIMING))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!gpu_reached(start->moment) || !gpu_reached(end->moment))
        return CUDA_ERROR_NOT_READY;
    *ms = (float)((double)((int64_t)(gpu_wall_ns(end->moment) - gpu_wall_ns(start->moment))) / 1e6);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
    return elapsed(ms, start, end);
}

EXPORT CUresult cuEventElapsedTime_v2(float *ms, CUevent start, CUevent end)
{
    return elapsed(ms, start, end);
}

static CUresult wait_event(CUstream handle, CUevent event)
{
    FIND_STREAM(handle);
    FIND_EVENT(event);
    if (event->capture && !stream->capture) { /* the other stream joins the capture */
        stream->capture = event->capture;
        stream->capture_origin = stream->capture_invalid = false;
        stream->capture_mode = CAPTURE_RELAXED;
        stream->capture_thread = pthread_self();
        stream->capture_last = event->capture_last;
        return CUDA_SUCCESS;
    }
    if (stream->capture) {
        if (stream->capture != event->capture)
            return CAPTURE_ISOLATION;
        CUgraphNode both[2] = {stream->capture_last, event->capture_last};
        size_t from = both[0] ? 0 : 1, count = (both[0] ? 1 : 0) + (both[1] ? 1u : 0u);
        stream->capture_last = graph_add(stream->capture, NODE_EMPTY, both + from, count);
        return CUDA_SUCCESS;
    }
    if (event->recorded && event->moment > stream->end)
        stream->end = event->moment;
    return legacy_forbids(stream);
}

EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    (void)flags;
    return wait_event(stream, event);
}

EXPORT CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned flags)
{
    (void)flags;
    return wait_event(per_thread(stream), event);
}


/* Graphs: nodes in the order they were added, a run time that is the longest path through them, and memory nodes whose
 * addresses are known at once while their bytes are taken at the first launch (or upload) and kept by the device's graph
 * memory until it is trimmed.
 */
#define _GNU_SOURCE
#include "graphs.h"

#include <string.h>

static uint64_t reserved_bytes, reserved_high, idle_bytes, used_bytes, used_high;

CUgraph graph_new(void)
{
    CUgraph graph = calloc(1, sizeof *graph);
    graph->magic = GRAPH_MAGIC;
    return graph;
}

void graph_destroy(CUgraph graph)
{
    for (size_t i = 0; i < graph->count; i++) {
        CUgraphNode node = graph->nodes[i];
        if (node->child)
            graph_destroy(node->child);
        free(node->after);
        free(node);
    }
    free(graph->nodes);
    graph->magic = 0;
    free(graph);
}

CUgraphNode graph_add(CUgraph graph, int type, const CUgraphNode *after, size_t count)
{
    CUgraphNode node = calloc(1, sizeof *node);
    node->type = type;
    node->graph = graph;
    node->index = graph->count;
    node->after = calloc(count + 1, sizeof *node->after);
    node->after_count = count;
    for (size_t i = 0; i < count; i++)
        node->after[i] = after[i]->index;
    graph->nodes = realloc(graph->nodes, (graph->count + 1) * sizeof(*graph->nodes));
    graph->nodes[graph->count++] = node;
    return node;
}

void node_set_duration(CUgraphNode node, uint64_t duration_ns)
{
    node->duration_ns = duration_ns;
}

CUresult node_set_allocation(CUgraphNode node, uint64_t bytes, CUdeviceptr *address)
{
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    node->bytes = bytes;
    node->address = *address = address_new(round_up(bytes, GRANULE_BYTES), GRANULE_BYTES);
    return CUDA_SUCCESS;
}

void node_set_free(CUgraphNode node, CUdeviceptr address)
{
    node->address = address;
}

CUgraph graph_clone(CUgraph graph)
{
    CUgraph copy = graph_new();
    for (size_t i = 0; i < graph->count; i++) {
        CUgraphNode from = graph->nodes[i], made = graph_add(copy, from->type, NULL, 0);
        size_t *after = realloc(made->after, (from->after_count + 1) * sizeof *after);
        memcpy(after, from->after, from->after_count * sizeof *after);
        *made = *from;
        made->graph = copy;
        made->after = after;
        made->child = from->child ? graph_clone(from->child) : NULL;
    }
    return copy;
}

uint64_t graph_duration(const struct CUgraph_st *graph)
{
    uint64_t *end = calloc(graph->count + 1, sizeof *end), longest = 0;
    for (size_t i = 0; i < graph->count; i++) { /* a node's predecessors were added before it */
        const struct CUnode_st *node = graph->nodes[i];
        for (size_t j = 0; j < node->after_count; j++)
            if (end[node->after[j]] > end[i])
                end[i] = end[node->after[j]];
        end[i] += node->child ? graph_duration(node->child) : node->duration_ns;
        if (end[i] > longest)
            longest = end[i];
    }
    free(end);
    return longest;
}

static uint64_t graph_bytes(const struct CUgraph_st *graph)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < graph->count; i++) {
        const struct CUnode_st *node = graph->nodes[i];
        sum += node->child ? graph_bytes(node->child) : node->type == NODE_ALLOC ? round_up(node->bytes, GRANULE_BYTES) : 0;
    }
    return sum;
}

static bool freed_inside(const struct CUgraph_st *graph, CUdeviceptr address)
{
    for (size_t i = 0; i < graph->count; i++)
        if (graph->nodes[i]->type == NODE_FREE && graph->nodes[i]->address == address)
            return true;
    return false;
}

void graph_memory_freed(struct allocation *allocation)
{
    used_bytes -= allocation->taken;
    allocation_drop(allocation);
}

/* The bytes behind a graph's memory nodes: from what earlier graphs left, then from the device. */
CUresult exec_back(CUgraphExec exec)
{
    if (exec->backed)
        return CUDA_SUCCESS;
    uint64_t bytes = graph_bytes(exec->graph), fresh = bytes > idle_bytes ? bytes - idle_bytes : 0;
    if (fresh && !gpu_take(fresh))
        return CUDA_ERROR_OUT_OF_MEMORY;
    idle_bytes = idle_bytes + fresh - bytes;
    reserved_bytes += fresh;
    if (reserved_bytes > reserved_high)
        reserved_high = reserved_bytes;
    exec->bytes = bytes;
    exec->backed = true;
    return CUDA_SUCCESS;
}

void exec_unback(CUgraphExec exec)
{
    if (exec->backed)
        idle_bytes += exec->bytes;
    exec->backed = false;
}

static CUresult make_live(CUgraphExec exec, const struct CUgraph_st *graph)
{
    for (size_t i = 0; i < graph->count; i++) {
        const struct CUnode_st *node = graph->nodes[i];
        struct allocation *old = node->type == NODE_ALLOC ? allocation_find(node->address) : NULL;
        if (old && !(exec->flags & GRAPH_AUTO_FREE))
            return CUDA_ERROR_INVALID_VALUE; /* launched again with its memory not freed */
        if (old)
            graph_memory_freed(old);
    }
    for (size_t i = 0; i < graph->count; i++) {
        const struct CUnode_st *node = graph->nodes[i];
        struct allocation *outside = node->type == NODE_FREE ? allocation_find(node->address) : NULL;
        if (outside && outside->exec != exec)
            memory_give(outside);
        if (node->type != NODE_ALLOC || freed_inside(graph, node->address))
            continue;
        struct allocation *live = allocation_add(node->address, node->bytes, OF_GRAPH);
        live->exec = exec;
        live->taken = round_up(node->bytes, GRANULE_BYTES);
        used_bytes += live->taken;
        if (used_bytes > used_high)
            used_high = used_bytes;
    }
    return CUDA_SUCCESS;
}

static CUresult launch(CUgraphExec exec, CUstream handle, bool only_upload)
{
    GUARD_CONTEXT;
    (void)context;
    CUstream stream = stream_of(handle);
    if (!stream || !exec || exec->magic != EXEC_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture) { /* becomes a child graph */
        CUgraphNode node = graph_add(stream->capture, NODE_GRAPH, &stream->capture_last, stream->capture_last != NULL);
        node->child = graph_clone(exec->graph);
        stream->capture_last = node;
        return CUDA_SUCCESS;
    }
    CUresult result = exec_back(exec);
    if (result || only_upload)
        return result;
    result = make_live(exec, exec->graph);
    return result ? result : stream_work(stream, exec->duration_ns);
}

static void wait_for_room(CUstream handle)
{
    uint64_t moment = 0;
    {
        struct guard guard __attribute__((cleanup(guard_leave))) = guard_enter();
        CUstream stream = guard.error ? NULL : stream_of(handle);
        if (stream && stream->queued >= QUEUE_MAX && !stream->capture)
            moment = stream->queue[stream->queued % QUEUE_MAX];
    }
    if (moment)
        gpu_wait(moment);
}

EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    wait_for_room(stream);
    return launch(exec, stream, false);
}

EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
    wait_for_room(per_thread(stream));
    return launch(exec, per_thread(stream), false);
}

EXPORT CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    return launch(exec, stream, true);
}

EXPORT CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
    return launch(exec, per_thread(stream), true);
}

EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    GUARD;
    gpu_give(idle_bytes);
    reserved_bytes -= idle_bytes;
    idle_bytes = 0;
    return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *value)
{
    GUARD;
    const uint64_t values[] = {used_bytes, used_high, reserved_bytes, reserved_high};
    if (device || attribute < 0 || attribute > GRAPH_MEM_RESERVED_HIGH)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(value, &values[attribute], sizeof values[attribute]);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceSetGraphMemAttribute(CUdevice device, int attribute, void *value)
{
    GUARD;
    (void)value;
    if (attribute == GRAPH_MEM_USED_HIGH)
        used_high = used_bytes;
    if (attribute == GRAPH_MEM_RESERVED_HIGH)
        reserved_high = reserved_bytes;
    return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

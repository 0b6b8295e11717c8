/* How graphs are put together, looked at, instantiated and changed. */
#define _GNU_SOURCE
#include "graphs.h"

#include <string.h>

EXPORT CUresult cuGraphCreate(CUgraph *graph, unsigned flags)
{
    (void)flags;
    GUARD;
    *graph = graph_new();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphDestroy(CUgraph graph)
{
    GUARD;
    if (!graph || graph->magic != GRAPH_MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    graph_destroy(graph);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphClone(CUgraph *copy, CUgraph graph)
{
    GUARD;
    *copy = graph_clone(graph);
    return CUDA_SUCCESS;
}

static CUresult set_kernel(CUgraphNode node, const CUkernelNode *kernel)
{
    CUfunction loaded;
    CUfunction function = kernel->function ? kernel->function : kernel->kernel;
    CUresult result = function ? function_ready(function, &loaded) : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    node->kernel = *kernel;
    node->duration_ns = function_duration(loaded, kernel->grid, kernel->parameters);
    return CUDA_SUCCESS;
}

static CUresult add_alloc(CUgraphNode node, CUallocNode *alloc)
{
    return node_set_allocation(node, alloc->bytes, &alloc->address);
}

static CUresult add(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUgraphNodeParams *of)
{
    GUARD_CONTEXT;
    (void)context;
    if (!graph || graph->magic != GRAPH_MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    *node = graph_add(graph, of->type, after, count);
    switch (of->type) {
    case NODE_KERNEL:
        return set_kernel(*node, &of->of.kernel);
    case NODE_ALLOC:
        return add_alloc(*node, &of->of.alloc);
    case NODE_FREE:
        node_set_free(*node, of->of.free);
        return CUDA_SUCCESS;
    case NODE_GRAPH:
        (*node)->child = graph_clone(of->of.child.graph);
        return CUDA_SUCCESS;
    default:
        return CUDA_SUCCESS;
    }
}

EXPORT CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                               CUgraphNodeParams *of)
{
    return add(node, graph, after, count, of);
}

EXPORT CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges,
                                  size_t count, CUgraphNodeParams *of)
{
    (void)edges;
    return add(node, graph, after, count, of);
}

EXPORT CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                     const CUkernelNodeV1 *kernel)
{
    CUgraphNodeParams of = {.type = NODE_KERNEL};
    memcpy(&of.of.kernel, kernel, sizeof *kernel);
    return add(node, graph, after, count, &of);
}

EXPORT CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                        const CUkernelNode *kernel)
{
    CUgraphNodeParams of = {.type = NODE_KERNEL, .of.kernel = *kernel};
    return add(node, graph, after, count, &of);
}

EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                       CUallocNode *alloc)
{
    CUgraphNodeParams of = {.type = NODE_ALLOC, .of.alloc = *alloc};
    CUresult result = add(node, graph, after, count, &of);
    alloc->address = of.of.alloc.address;
    return result;
}

EXPORT CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                      CUdeviceptr address)
{
    CUgraphNodeParams of = {.type = NODE_FREE, .of.free = address};
    return add(node, graph, after, count, &of);
}

EXPORT CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                         CUgraph child)
{
    CUgraphNodeParams of = {.type = NODE_GRAPH, .of.child.graph = child};
    return add(node, graph, after, count, &of);
}

#define ADD_TIMELESS(name, kind, ...)                                                                         \
    EXPORT CUresult name(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count __VA_ARGS__) \
    {                                                                                                         \
        CUgraphNodeParams of = {.type = kind};                                                                \
        return add(node, graph, after, count, &of);                                                           \
    }
#define UNUSED __attribute__((unused))
ADD_TIMELESS(cuGraphAddEmptyNode, NODE_EMPTY)
ADD_TIMELESS(cuGraphAddHostNode, NODE_HOST, , const void *of_host UNUSED)
ADD_TIMELESS(cuGraphAddMemcpyNode, NODE_MEMCPY, , const void *copy UNUSED, CUcontext of_context UNUSED)
ADD_TIMELESS(cuGraphAddMemsetNode, NODE_MEMSET, , const void *set UNUSED, CUcontext of_context UNUSED)
ADD_TIMELESS(cuGraphAddEventRecordNode, NODE_RECORD_EVENT, , CUevent event UNUSED)
ADD_TIMELESS(cuGraphAddEventWaitNode, NODE_WAIT_EVENT, , CUevent event UNUSED)

EXPORT CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    GUARD;
    if (!graph || graph->magic != GRAPH_MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    if (nodes) {
        if (*count > graph->count)
            *count = graph->count;
        if (*count)
            memcpy(nodes, graph->nodes, *count * sizeof(*nodes));
    } else {
        *count = graph->count;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphNodeGetType(CUgraphNode node, int *type)
{
    GUARD;
    *type = node->type;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUallocNode *alloc)
{
    GUARD;
    if (node->type != NODE_ALLOC)
        return CUDA_ERROR_INVALID_VALUE;
    memset(alloc, 0, sizeof *alloc);
    alloc->bytes = node->bytes;
    alloc->address = node->address;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *address)
{
    GUARD;
    *address = node->address;
    return node->type == NODE_FREE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *child)
{
    GUARD;
    *child = node->child;
    return node->child ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUkernelNodeV1 *kernel)
{
    GUARD;
    memcpy(kernel, &node->kernel, sizeof *kernel);
    return node->type == NODE_KERNEL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUkernelNode *kernel)
{
    GUARD;
    *kernel = node->kernel;
    return node->type == NODE_KERNEL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- instances --------------------------------------------------------------------------------------------------- */

static CUresult instantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    GUARD_CONTEXT;
    (void)context;
    if (!graph || graph->magic != GRAPH_MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    CUgraphExec made = calloc(1, sizeof *made);
    made->magic = EXEC_MAGIC;
    made->graph = graph_clone(graph);
    made->duration_ns = graph_duration(graph);
    made->flags = flags;
    CUresult result = flags & GRAPH_UPLOAD ? exec_back(made) : CUDA_SUCCESS;
    if (result) {
        graph_destroy(made->graph);
        free(made);
        return result;
    }
    *exec = made;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t room)
{
    (void)error_node, (void)log, (void)room;
    return instantiate(exec, graph, 0);
}

EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t room)
{
    (void)error_node, (void)log, (void)room;
    return instantiate(exec, graph, 0);
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    return instantiate(exec, graph, flags);
}

static CUresult with_parameters(CUgraphExec *exec, CUgraph graph, CUgraphInstantiateParams *parameters)
{
    CUresult result = instantiate(exec, graph, parameters->flags);
    parameters->error_node = NULL;
    parameters->result = result != CUDA_SUCCESS;
    return result;
}

EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUgraphInstantiateParams *parameters)
{
    return with_parameters(exec, graph, parameters);
}

EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, CUgraphInstantiateParams *parameters)
{
    return with_parameters(exec, graph, parameters);
}

EXPORT CUresult cuGraphExecGetFlags(CUgraphExec exec, unsigned long long *flags)
{
    GUARD;
    *flags = exec->flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    GUARD;
    if (!exec || exec->magic != EXEC_MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    exec_unback(exec);
    graph_destroy(exec->graph);
    exec->magic = 0;
    free(exec);
    return CUDA_SUCCESS;
}

static CUresult update(CUgraphExec exec, CUgraph graph)
{
    GUARD;
    if (!exec || exec->magic != EXEC_MAGIC || !graph || graph->magic != GRAPH_MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    if (exec->graph->count != graph->count)
        return 910; /* CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE */
    graph_destroy(exec->graph);
    exec->graph = graph_clone(graph);
    exec->duration_ns = graph_duration(graph);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error_node, int *result)
{
    *error_node = NULL;
    *result = 0;
    return update(exec, graph);
}

EXPORT CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, int *result)
{
    *result = 0;
    return update(exec, graph);
}

static CUresult set_exec_kernel(CUgraphExec exec, CUgraphNode node, const CUkernelNode *kernel)
{
    GUARD_CONTEXT;
    (void)context;
    if (!exec || exec->magic != EXEC_MAGIC || node->index >= exec->graph->count)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = set_kernel(exec->graph->nodes[node->index], kernel);
    exec->duration_ns = graph_duration(exec->graph);
    return result;
}

EXPORT CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUkernelNodeV1 *kernel)
{
    CUkernelNode wide = {0};
    memcpy(&wide, kernel, sizeof *kernel);
    return set_exec_kernel(exec, node, &wide);
}

EXPORT CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node, const CUkernelNode *kernel)
{
    return set_exec_kernel(exec, node, kernel);
}

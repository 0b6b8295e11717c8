/* Memory of graphs: their allocation nodes draw on a pool of the device that grows at a launch. So an executable graph
 * is charged all its nodes ask for when it is made, and what the pool keeps after it is gone. */
#include "driver.h"
#include "local_lock.h"
#include "memory.h"
#include "process.h"

#include <errno.h>
#include <sys/mman.h>

#define DEPTH_MAX 8u /* of graphs in graphs */

static struct local_lock lock;
static uint64_t bound_bytes;   /* what living executable graphs may take at most */
static uint64_t charged_bytes; /* at least that, and at least what the pool holds */

static CUgraphNode *nodes_of(CUgraph graph, size_t *count, size_t *mapped_bytes)
{
    *count = 0;
    if (DRIVER(cuGraphGetNodes)(graph, NULL, count) != CUDA_SUCCESS || *count == 0)
        return NULL;
    *mapped_bytes = *count * sizeof(CUgraphNode);
    void *place = mmap(NULL, *mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED)
        return NULL;
    if (DRIVER(cuGraphGetNodes)(graph, place, count) == CUDA_SUCCESS)
        return place;
    munmap(place, *mapped_bytes);
    return NULL;
}

static uint64_t plus(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t asked_by(CUgraph graph, unsigned int depth)
{
    size_t count = 0, mapped_bytes = 0;
    uint64_t sum = 0;
    CUgraphNode *nodes = nodes_of(graph, &count, &mapped_bytes);
    for (size_t i = 0; nodes && i < count; i++) {
        int type = 0;
        CUDA_MEM_ALLOC_NODE_PARAMS parameters;
        CUgraph child = NULL;
        if (DRIVER(cuGraphNodeGetType)(nodes[i], &type) != CUDA_SUCCESS)
            continue;
        if (type == GRAPH_NODE_MEM_ALLOC &&
            DRIVER(cuGraphMemAllocNodeGetParams)(nodes[i], &parameters) == CUDA_SUCCESS)
            sum = plus(sum, memory_taken(parameters.bytes > MIB ? parameters.bytes : MIB + 1));
        else if (type == GRAPH_NODE_CHILD && depth < DEPTH_MAX &&
                 DRIVER(cuGraphChildGraphNodeGetGraph)(nodes[i], &child) == CUDA_SUCCESS)
            sum = plus(sum, asked_by(child, depth + 1));
    }
    if (nodes)
        munmap(nodes, mapped_bytes);
    return sum;
}

static uint64_t needed(CUgraph graph)
{
    int kept = errno;
    int asks = DRIVER_HAS(cuGraphGetNodes) && DRIVER_HAS(cuGraphNodeGetType) &&
               DRIVER_HAS(cuGraphMemAllocNodeGetParams) && DRIVER_HAS(cuGraphChildGraphNodeGetGraph);
    uint64_t bytes = asks && process_limits_memory() ? asked_by(graph, 0) : 0;
    errno = kept;
    return bytes;
}

static uint64_t pool_bytes(void)
{
    CUdevice device = 0;
    uint64_t bytes = 0;
    if (!DRIVER_HAS(cuDeviceGetGraphMemAttribute) || !DRIVER_HAS(cuCtxGetDevice) ||
        DRIVER(cuCtxGetDevice)(&device) != CUDA_SUCCESS ||
        DRIVER(cuDeviceGetGraphMemAttribute)(device, GRAPH_RESERVED_BYTES, &bytes) != CUDA_SUCCESS)
        return charged_bytes;
    return bytes;
}

/* Under `lock`. */
static int settle(void)
{
    uint64_t holds = pool_bytes();
    if (holds < bound_bytes)
        holds = bound_bytes;
    if (holds == charged_bytes)
        return 0;
    if (holds < charged_bytes)
        memory_discharge(charged_bytes - holds, USAGE_DEVICE);
    else if (!usage_reserve(holds - charged_bytes, UINT64_MAX, USAGE_DEVICE))
        return 0; /* what is not charged must not be given back later */
    charged_bytes = holds;
    return 1;
}

int graphs_refresh(void)
{
    local_lock_take(&lock);
    int changed = charged_bytes ? settle() : 0;
    local_lock_drop(&lock);
    return changed;
}

/* What is charged for graphs that were not launched yet: the driver's figure will show it later. */
uint64_t graphs_promised(void)
{
    uint64_t held = 0, promised = 0;
    local_lock_take(&lock);
    if (charged_bytes && DRIVER_HAS(cuDeviceGetGraphMemAttribute) &&
        DRIVER(cuDeviceGetGraphMemAttribute)(0, GRAPH_RESERVED_BYTES, &held) == CUDA_SUCCESS && held < charged_bytes)
        promised = charged_bytes - held;
    local_lock_drop(&lock);
    return promised;
}

void graphs_forget(void)
{
    local_lock_forget(&lock);
    bound_bytes = 0;
    charged_bytes = 0;
}

/* 1: room for it. What the pool holds beyond the living graphs' bound serves the new one too. */
static int admit(uint64_t bytes)
{
    if (!bytes)
        return 1;
    local_lock_take(&lock);
    settle();
    uint64_t wanted = plus(bound_bytes, bytes);
    uint64_t more = wanted > charged_bytes ? wanted - charged_bytes : 0;
    int fits = wanted < UINT64_MAX && usage_reserve(more, atomic_load(&process_limits.memory_bytes), USAGE_DEVICE);
    if (fits) {
        bound_bytes = wanted;
        charged_bytes += more;
    }
    local_lock_drop(&lock);
    return fits;
}

static void dismiss(uint64_t bytes)
{
    if (!bytes)
        return;
    local_lock_take(&lock);
    bound_bytes -= bytes < bound_bytes ? bytes : bound_bytes;
    settle();
    local_lock_drop(&lock);
}

static CUresult made(CUresult result, CUgraphExec *exec, uint64_t bytes)
{
    if (result != CUDA_SUCCESS) {
        dismiss(bytes);
        return result;
    }
    struct pointer pointer = {(uint64_t)(uintptr_t)*exec, bytes, 0, POINTER_GRAPH};
    if (bytes)
        (void)pointers_put(SPACE_GRAPH, pointer); /* unnoted its charge stays to the end of the process */
    return result;
}

#define INSTANTIATE(name, parameters, ...)                              \
    CUresult name parameters                                            \
    {                                                                   \
        NEED(name);                                                     \
        uint64_t bytes = needed(graph);                                 \
        if (!admit(bytes) && (graphs_refresh(), pools_refresh(), !admit(bytes))) \
            return memory_refused();                                    \
        return made(REAL(name)(__VA_ARGS__), exec, bytes);              \
    }

INSTANTIATE(cuGraphInstantiate, (CUgraphExec * exec, CUgraph graph, CUgraphNode *node, char *log, size_t log_bytes),
            exec, graph, node, log, log_bytes)
INSTANTIATE(cuGraphInstantiate_v2, (CUgraphExec * exec, CUgraph graph, CUgraphNode *node, char *log, size_t log_bytes),
            exec, graph, node, log, log_bytes)
INSTANTIATE(cuGraphInstantiateWithFlags, (CUgraphExec * exec, CUgraph graph, unsigned long long flags), exec, graph,
            flags)
INSTANTIATE(cuGraphInstantiateWithParams, (CUgraphExec * exec, CUgraph graph, void *parameters), exec, graph,
            parameters)
INSTANTIATE(cuGraphInstantiateWithParams_ptsz, (CUgraphExec * exec, CUgraph graph, void *parameters), exec, graph,
            parameters)

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    NEED(cuGraphExecDestroy);
    struct pointer pointer;
    int known = pointers_take(SPACE_GRAPH, (uint64_t)(uintptr_t)exec, &pointer);
    CUresult result = REAL(cuGraphExecDestroy)(exec);
    if (known && result == CUDA_SUCCESS)
        dismiss(pointer.bytes);
    else if (known)
        pointers_put(SPACE_GRAPH, pointer);
    return result;
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    NEED(cuDeviceGraphMemTrim);
    CUresult result = REAL(cuDeviceGraphMemTrim)(device);
    if (result == CUDA_SUCCESS)
        graphs_refresh();
    return result;
}

/* probe memory PATH CHUNK_BYTES MOST_BYTES [VIA [THREADS]]: takes device memory one way until it is refused or MOST_BYTES
 * are asked for, says what it asked for and how it ended, and holds it until its input ends.
 * Prints `ready`, waits for a line, prints `held <bytes asked for> <result> <call>`.
 */
#include "driver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct driver cu;
static CUcontext context;
static const char *failed_call = "-";
static CUstream stream;
static CUmemoryPool pool;

static CUresult tried(CUresult result, const char *call) {
    if (result != CU_SUCCESS) failed_call = call;
    return result;
}

static const struct pool_properties DEVICE_POOL = {
    .allocation_type = CU_ALLOCATION_PINNED, .location = {CU_LOCATION_DEVICE, 0}};

/* -- one chunk each; NULL where the driver lacks the call crashes nobody: `present` is asked first */

static CUresult take_plain(size_t bytes) {
    CUdeviceptr at;
    return tried(cu.mem_alloc(&at, bytes), "cuMemAlloc");
}

static CUresult take_pitch(size_t bytes) {
    CUdeviceptr at;
    size_t pitch, width = 1 << 20;
    return tried(cu.mem_pitch(&at, &pitch, width, bytes / width, 4), "cuMemAllocPitch");
}

static CUresult take_narrow_pitch(size_t bytes) {
    CUdeviceptr at;
    size_t pitch;
    return tried(cu.mem_pitch(&at, &pitch, 513, bytes / 513, 4), "cuMemAllocPitch");
}

static CUresult take_managed(size_t bytes) {
    CUdeviceptr at;
    CUresult result = tried(cu.mem_managed(&at, bytes, CU_MEM_ATTACH_GLOBAL), "cuMemAllocManaged");
    if (result != CU_SUCCESS) return result;
    result = tried(cu.memset8(at, 1, bytes), "cuMemsetD8");
    return result == CU_SUCCESS ? tried(cu.ctx_sync(), "cuCtxSynchronize") : result;
}

static CUresult take_async(size_t bytes) {
    CUdeviceptr at;
    CUresult result = tried(cu.mem_async(&at, bytes, stream), "cuMemAllocAsync");
    return result == CU_SUCCESS ? tried(cu.stream_sync(stream), "cuStreamSynchronize") : result;
}

static CUresult take_async_ptsz(size_t bytes) {
    CUdeviceptr at;
    CUresult result = tried(cu.mem_async_ptsz(&at, bytes, NULL), "cuMemAllocAsync_ptsz");
    return result == CU_SUCCESS ? tried(cu.ctx_sync(), "cuCtxSynchronize") : result;
}

static CUresult take_pool(size_t bytes) {
    CUdeviceptr at;
    if (!pool) {
        CUresult made = tried(cu.pool_create(&pool, &DEVICE_POOL), "cuMemPoolCreate");
        if (made != CU_SUCCESS) return made;
    }
    CUresult result = tried(cu.pool_alloc(&at, bytes, pool, stream), "cuMemAllocFromPoolAsync");
    return result == CU_SUCCESS ? tried(cu.stream_sync(stream), "cuStreamSynchronize") : result;
}

static CUresult take_physical(size_t bytes) {
    unsigned long long handle;
    struct allocation_properties properties = {.type = CU_ALLOCATION_PINNED, .location = {CU_LOCATION_DEVICE, 0}};
    return tried(cu.mem_create(&handle, bytes, &properties, 0), "cuMemCreate");
}

static CUresult take_array(size_t bytes) {
    CUarray array;
    struct array_description want = {.width = 8192, .height = bytes / 8192 / 4, .format = CU_FORMAT_UINT32, .channels = 1};
    return tried(cu.array_create(&array, &want), "cuArrayCreate");
}

static CUresult take_array3d(size_t bytes) {
    CUarray array;
    struct array3d_description want = {
        .width = 512, .height = 512, .depth = bytes / 512 / 512 / 4, .format = CU_FORMAT_UINT32, .channels = 1};
    return tried(cu.array3d_create(&array, &want), "cuArray3DCreate");
}

static CUresult take_mipmap(size_t bytes) {
    CUmipmappedArray array;
    struct array3d_description want = {
        .width = 4096, .height = bytes / 4096 / 4, .format = CU_FORMAT_UINT32, .channels = 1};
    return tried(cu.mipmap_create(&array, &want, 8), "cuMipmappedArrayCreate");
}

static CUresult run_graph(CUgraph graph) {
    CUgraphExec exec;
    CUresult result = tried(cu.graph_instantiate(&exec, graph, 0), "cuGraphInstantiateWithFlags");
    if (result == CU_SUCCESS) result = tried(cu.graph_launch(exec, stream), "cuGraphLaunch");
    return result == CU_SUCCESS ? tried(cu.stream_sync(stream), "cuStreamSynchronize") : result;
}

static CUresult take_graph_node(size_t bytes) {
    CUgraph graph;
    CUgraphNode node;
    struct access_description access = {{CU_LOCATION_DEVICE, 0}, 3};
    struct alloc_node_parameters want = {.pool = DEVICE_POOL, .access = &access, .access_count = 1, .bytes = bytes};
    CUresult result = tried(cu.graph_create(&graph, 0), "cuGraphCreate");
    if (result == CU_SUCCESS)
        result = tried(cu.graph_add_alloc(&node, graph, NULL, 0, &want), "cuGraphAddMemAllocNode");
    return result == CU_SUCCESS ? run_graph(graph) : result;
}

static CUresult take_captured(size_t bytes) {
    CUgraph graph = NULL;
    CUdeviceptr at;
    CUresult result = tried(cu.capture_begin(stream, CU_CAPTURE_THREAD_LOCAL), "cuStreamBeginCapture");
    if (result != CU_SUCCESS) return result;
    CUresult taken = tried(cu.mem_async(&at, bytes, stream), "cuMemAllocAsync (capturing)");
    result = tried(cu.capture_end(stream, &graph), "cuStreamEndCapture");
    if (taken != CU_SUCCESS) return taken;
    return result == CU_SUCCESS ? run_graph(graph) : result;
}

static CUresult take_module(size_t bytes) {
    char text[512];
    CUmodule module;
    CUdeviceptr at;
    size_t size;
    snprintf(text, sizeof text,
             "// module bytes=%zu kernel=nothing:1000\n.version 6.4\n.target sm_50\n.address_size 64\n"
             ".visible .global .align 16 .b8 block[%zu];\n.visible .entry nothing()\n{\nret;\n}\n",
             bytes, bytes);
    CUresult result = tried(cu.module_load(&module, text), "cuModuleLoadData");
    if (result == CU_SUCCESS) result = tried(cu.module_global(&at, &size, module, "block"), "cuModuleGetGlobal");
    return result;
}

/* -- limits of the context: the most, and after each refusal a little less until it is granted */

static const char MALLOC_PTX[] =
    "// module kernel=take:1000\n.version 6.4\n.target sm_50\n.address_size 64\n"
    ".extern .func (.param .b64 got) malloc (.param .b64 size);\n"
    ".visible .entry take()\n{\n.reg .b64 %d<3>;\nmov.u64 %d1, 64;\n{\n"
    ".param .b64 size;\n.param .b64 got;\nst.param.b64 [size], %d1;\n"
    "call.uni (got), malloc, (size);\nld.param.b64 %d2, [got];\n}\nret;\n}\n";

static CUresult run_once(const char *ptx, const char *name) {
    CUmodule module;
    CUfunction function;
    CUresult result = tried(cu.module_load(&module, ptx), "cuModuleLoadData");
    if (result == CU_SUCCESS) result = tried(cu.module_function(&function, module, name), "cuModuleGetFunction");
    if (result == CU_SUCCESS)
        result = tried(cu.launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
    return result == CU_SUCCESS ? tried(cu.ctx_sync(), "cuCtxSynchronize") : result;
}

#define RESIDENT_THREADS (132u * 2048u)

static size_t take_limit(int limit, size_t most, CUresult *result) {
    size_t divisor = limit == CU_LIMIT_STACK_SIZE ? RESIDENT_THREADS : 1;
    const char *call = limit == CU_LIMIT_STACK_SIZE ? "cuCtxSetLimit (stack)" : "cuCtxSetLimit (heap)";
    for (size_t want = most; want >= most / 24; want -= most / 24) {
        CUresult set = tried(cu.ctx_set_limit(limit, want / divisor & ~(size_t)15), call);
        if (set != CU_SUCCESS) {
            *result = set;
            continue;
        }
        set = limit == CU_LIMIT_STACK_SIZE ? CU_SUCCESS : run_once(MALLOC_PTX, "take");
        if (set != CU_SUCCESS) *result = set;
        return want;
    }
    return 0;
}

static const struct path {
    const char *name;
    CUresult (*take)(size_t);
} PATHS[] = {
    {"plain", take_plain},       {"pitch", take_pitch},           {"pitch-513", take_narrow_pitch},
    {"managed", take_managed},   {"async", take_async},           {"async-ptsz", take_async_ptsz},
    {"pool", take_pool},         {"physical", take_physical},     {"array", take_array},
    {"array3d", take_array3d},   {"mipmap", take_mipmap},         {"graph-node", take_graph_node},
    {"captured", take_captured}, {"module", take_module},
};

static const struct path *path;
static size_t chunk, most;
static _Atomic size_t asked;
static _Atomic CUresult last;

static void *take_chunks(void *unused) {
    CUresult result = cu.ctx_set(context);
    while (result == CU_SUCCESS && atomic_fetch_add(&asked, chunk) + chunk <= most)
        if ((result = path->take(chunk)) == CU_SUCCESS) continue;
        else break;
    atomic_fetch_sub(&asked, chunk); /* the one that was refused, or was beyond the most */
    if (result != CU_SUCCESS) atomic_store(&last, result);
    return unused;
}

static void take_in_threads(int count) {
    pthread_t threads[64];
    count = count > 64 ? 64 : count;
    for (int i = 0; i < count; i++) pthread_create(&threads[i], NULL, take_chunks, NULL);
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
}

static void take(const char *name, int threads) {
    CUresult result = CU_SUCCESS;
    if (!strcmp(name, "heap")) asked = take_limit(CU_LIMIT_MALLOC_HEAP_SIZE, most, &result);
    else if (!strcmp(name, "stack")) asked = take_limit(CU_LIMIT_STACK_SIZE, most, &result);
    last = result;
    for (size_t i = 0; i < sizeof PATHS / sizeof *PATHS; i++)
        if (!strcmp(name, PATHS[i].name)) {
            path = &PATHS[i];
            if (threads > 1) take_in_threads(threads);
            else take_chunks(NULL);
        }
}

int memory_main(int count, char **words) {
    if (count < 4) return 2;
    chunk = strtoull(words[2], NULL, 10);
    most = strtoull(words[3], NULL, 10);
    CUresult started = driver_open(&cu, count > 4 ? words[4] : "dlsym");
    if (started == CU_SUCCESS) started = cu.primary_retain(&context, 0);
    if (started == CU_SUCCESS) started = cu.stream_create(&stream, CU_STREAM_NON_BLOCKING);
    printf("ready\n");
    fflush(stdout);
    if (getchar() == EOF) return 4;
    if (started == CU_SUCCESS) take(words[1], count > 5 ? atoi(words[5]) : 1);
    else failed_call = "start", last = started;
    printf("held %zu %d %s\n", (size_t)asked, (CUresult)last, failed_call);
    fflush(stdout);
    while (getchar() != EOF) {
    }
    return 0;
}

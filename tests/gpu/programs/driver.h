/* The part of the CUDA driver API that these programs use, declared here so that no CUDA header is needed, and the
 * ways to find it: by dlsym, by cuGetProcAddress of either version, or by reading the driver's own symbol table (past
 * any preloaded library). Values and layouts are those of cuda.h of CUDA 11.4 and later.
 */
#ifndef DRIVER_H
#define DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUarray_st *CUarray;
typedef struct CUmipmappedArray_st *CUmipmappedArray;
typedef struct CUmemPool_st *CUmemoryPool;

enum {
    CU_SUCCESS = 0,
    CU_OUT_OF_MEMORY = 2,
    CU_NOT_READY = 600,
    CU_LIMIT_STACK_SIZE = 0,
    CU_LIMIT_MALLOC_HEAP_SIZE = 2,
    CU_STREAM_NON_BLOCKING = 1,
    CU_EVENT_DEFAULT = 0,
    CU_CAPTURE_THREAD_LOCAL = 1,
    CU_MEM_ATTACH_GLOBAL = 1,
    CU_ALLOCATION_PINNED = 1,
    CU_LOCATION_DEVICE = 1,
    CU_FORMAT_UINT32 = 3,
    CU_PER_THREAD_DEFAULT_STREAM_FLAG = 2,
};
#define CU_STREAM_PER_THREAD ((CUstream)0x2)
#define DRIVER_API_VERSION 12000

struct location {
    int type, id;
};
struct pool_properties {
    int allocation_type, handle_types;
    struct location location;
    void *security;
    size_t max_bytes;
    unsigned short usage;
    unsigned char reserved[54];
};
struct allocation_properties {
    int type, handle_types;
    struct location location;
    void *metadata;
    unsigned char flags[8];
};
struct array_description {
    size_t width, height;
    int format;
    unsigned channels;
};
struct array3d_description {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};
struct access_description {
    struct location location;
    int flags;
};
struct alloc_node_parameters {
    struct pool_properties pool;
    const struct access_description *access;
    size_t access_count, bytes;
    CUdeviceptr address;
};
struct kernel_node_parameters {
    CUfunction function;
    unsigned grid[3], block[3], shared_bytes;
    void **parameters, **extra;
    void *kernel;
    CUcontext context;
};
struct launch_configuration {
    unsigned grid[3], block[3], shared_bytes;
    CUstream stream;
    void *attributes;
    unsigned attribute_count;
};

#define LAUNCH_ARGUMENTS \
    (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **)

/* field, exported name, name for cuGetProcAddress, flags for it, parameters */
#define DRIVER_CALLS(X) \
    X(init, "cuInit", "cuInit", 0, (unsigned)) \
    X(device_get, "cuDeviceGet", "cuDeviceGet", 0, (CUdevice *, int)) \
    X(total_mem, "cuDeviceTotalMem_v2", "cuDeviceTotalMem", 0, (size_t *, CUdevice)) \
    X(primary_retain, "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", 0, (CUcontext *, CUdevice)) \
    X(ctx_set, "cuCtxSetCurrent", "cuCtxSetCurrent", 0, (CUcontext)) \
    X(ctx_sync, "cuCtxSynchronize", "cuCtxSynchronize", 0, (void)) \
    X(ctx_set_limit, "cuCtxSetLimit", "cuCtxSetLimit", 0, (int, size_t)) \
    X(mem_info, "cuMemGetInfo_v2", "cuMemGetInfo", 0, (size_t *, size_t *)) \
    X(mem_alloc, "cuMemAlloc_v2", "cuMemAlloc", 0, (CUdeviceptr *, size_t)) \
    X(mem_free, "cuMemFree_v2", "cuMemFree", 0, (CUdeviceptr)) \
    X(mem_pitch, "cuMemAllocPitch_v2", "cuMemAllocPitch", 0, (CUdeviceptr *, size_t *, size_t, size_t, unsigned)) \
    X(mem_managed, "cuMemAllocManaged", "cuMemAllocManaged", 0, (CUdeviceptr *, size_t, unsigned)) \
    X(mem_async, "cuMemAllocAsync", "cuMemAllocAsync", 0, (CUdeviceptr *, size_t, CUstream)) \
    X(mem_async_ptsz, "cuMemAllocAsync_ptsz", "cuMemAllocAsync", 2, (CUdeviceptr *, size_t, CUstream)) \
    X(free_async, "cuMemFreeAsync", "cuMemFreeAsync", 0, (CUdeviceptr, CUstream)) \
    X(pool_create, "cuMemPoolCreate", "cuMemPoolCreate", 0, (CUmemoryPool *, const struct pool_properties *)) \
    X(pool_alloc, "cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync", 0, \
      (CUdeviceptr *, size_t, CUmemoryPool, CUstream)) \
    X(mem_create, "cuMemCreate", "cuMemCreate", 0, \
      (unsigned long long *, size_t, const struct allocation_properties *, unsigned long long)) \
    X(mem_release, "cuMemRelease", "cuMemRelease", 0, (unsigned long long)) \
    X(array_create, "cuArrayCreate_v2", "cuArrayCreate", 0, (CUarray *, const struct array_description *)) \
    X(array3d_create, "cuArray3DCreate_v2", "cuArray3DCreate", 0, (CUarray *, const struct array3d_description *)) \
    X(mipmap_create, "cuMipmappedArrayCreate", "cuMipmappedArrayCreate", 0, \
      (CUmipmappedArray *, const struct array3d_description *, unsigned)) \
    X(memset8, "cuMemsetD8_v2", "cuMemsetD8", 0, (CUdeviceptr, unsigned char, size_t)) \
    X(module_load, "cuModuleLoadData", "cuModuleLoadData", 0, (CUmodule *, const void *)) \
    X(module_function, "cuModuleGetFunction", "cuModuleGetFunction", 0, (CUfunction *, CUmodule, const char *)) \
    X(module_global, "cuModuleGetGlobal_v2", "cuModuleGetGlobal", 0, \
      (CUdeviceptr *, size_t *, CUmodule, const char *)) \
    X(stream_create, "cuStreamCreate", "cuStreamCreate", 0, (CUstream *, unsigned)) \
    X(stream_sync, "cuStreamSynchronize", "cuStreamSynchronize", 0, (CUstream)) \
    X(capture_begin, "cuStreamBeginCapture_v2", "cuStreamBeginCapture", 0, (CUstream, int)) \
    X(capture_end, "cuStreamEndCapture", "cuStreamEndCapture", 0, (CUstream, CUgraph *)) \
    X(event_create, "cuEventCreate", "cuEventCreate", 0, (CUevent *, unsigned)) \
    X(event_record, "cuEventRecord", "cuEventRecord", 0, (CUevent, CUstream)) \
    X(event_sync, "cuEventSynchronize", "cuEventSynchronize", 0, (CUevent)) \
    X(event_elapsed, "cuEventElapsedTime", "cuEventElapsedTime", 0, (float *, CUevent, CUevent)) \
    X(graph_create, "cuGraphCreate", "cuGraphCreate", 0, (CUgraph *, unsigned)) \
    X(graph_add_alloc, "cuGraphAddMemAllocNode", "cuGraphAddMemAllocNode", 0, \
      (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, struct alloc_node_parameters *)) \
    X(graph_add_kernel, "cuGraphAddKernelNode_v2", "cuGraphAddKernelNode", 0, \
      (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const struct kernel_node_parameters *)) \
    X(graph_instantiate, "cuGraphInstantiateWithFlags", "cuGraphInstantiateWithFlags", 0, \
      (CUgraphExec *, CUgraph, unsigned long long)) \
    X(graph_launch, "cuGraphLaunch", "cuGraphLaunch", 0, (CUgraphExec, CUstream)) \
    X(launch, "cuLaunchKernel", "cuLaunchKernel", 0, LAUNCH_ARGUMENTS) \
    X(launch_ptsz, "cuLaunchKernel_ptsz", "cuLaunchKernel", 2, LAUNCH_ARGUMENTS) \
    X(launch_ex, "cuLaunchKernelEx", "cuLaunchKernelEx", 0, \
      (const struct launch_configuration *, CUfunction, void **, void **)) \
    X(launch_cooperative, "cuLaunchCooperativeKernel", "cuLaunchCooperativeKernel", 0, \
      (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **))

struct driver {
#define X(field, symbol, base, flags, parameters) CUresult(*field) parameters;
    DRIVER_CALLS(X)
#undef X
};

/* `via`: dlsym, proc1, proc2 or elf. A call the driver has not is NULL. Ends the process where there is no driver. */
void driver_find(struct driver *driver, const char *via);
/* cuInit and the primary context of device 0, made current. Returns the first error. */
CUresult driver_open(struct driver *driver, const char *via);
void check(CUresult result, const char *what);
uint64_t now_ns(void);

/* A chain of integer operations, `loops` long, that nothing can shorten; `loops` is its one parameter. */
extern const char CHAIN_PTX[];
CUfunction chain_function(struct driver *driver);

int memory_main(int count, char **words);
int share_main(int count, char **words);
int cost_main(int count, char **words);
int start_main(int count, char **words);
int reported_main(int count, char **words);

#endif

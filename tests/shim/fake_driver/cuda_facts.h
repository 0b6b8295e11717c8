/* What the driver's ABI looks like, as far as the fake driver and the programs that drive it need it: types, constants
 * and structures by their published layout, written down here so that neither needs a CUDA installation to build.
 */
#ifndef TOPOALLOC_TESTS_CUDA_FACTS_H
#define TOPOALLOC_TESTS_CUDA_FACTS_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUfunc_st *CUkernel; /* the fake driver's kernels are its functions */
typedef struct CUlib_st *CUlibrary;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUnode_st *CUgraphNode;
typedef struct CUexec_st *CUgraphExec;
typedef struct CUpool_st *CUmemoryPool;
typedef struct CUarray_st *CUarray;
typedef struct CUmip_st *CUmipmappedArray;
typedef struct CUext_st *CUexternalMemory;
typedef unsigned long long CUhandle; /* CUmemGenericAllocationHandle */

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_FILE_NOT_FOUND = 301,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
    CUDA_ERROR_CAPTURED_EVENT = 907,
};

#define STREAM_LEGACY ((CUstream)(uintptr_t)1)
#define STREAM_PER_THREAD ((CUstream)(uintptr_t)2)
#define STREAM_NON_BLOCKING 1u
#define EVENT_DISABLE_TIMING 2u
enum { CAPTURE_GLOBAL, CAPTURE_THREAD_LOCAL, CAPTURE_RELAXED };
enum { NOT_CAPTURING, CAPTURING, CAPTURE_IS_INVALID };
enum { LIMIT_STACK, LIMIT_PRINTF, LIMIT_HEAP };
enum { PROC_DEFAULT = 0, PROC_LEGACY = 1, PROC_PER_THREAD = 2 };
enum { PROC_FOUND, PROC_SYMBOL_NOT_FOUND, PROC_VERSION_NOT_SUFFICIENT };
enum { POOL_RELEASE_THRESHOLD = 4, POOL_RESERVED, POOL_RESERVED_HIGH, POOL_USED, POOL_USED_HIGH };
enum { GRAPH_MEM_USED, GRAPH_MEM_USED_HIGH, GRAPH_MEM_RESERVED, GRAPH_MEM_RESERVED_HIGH };
enum { NODE_KERNEL, NODE_MEMCPY, NODE_MEMSET, NODE_HOST, NODE_GRAPH, NODE_EMPTY, NODE_WAIT_EVENT, NODE_RECORD_EVENT };
enum { NODE_ALLOC = 10, NODE_FREE = 11 };
enum { HANDLE_NONE = 0, HANDLE_FD = 1, HANDLE_FABRIC = 8 };
enum { LOCATION_DEVICE = 1, LOCATION_HOST = 2 };
#define ARRAY_LAYERED 1u
#define ARRAY_SPARSE 0x40u
#define ARRAY_DEFERRED 0x80u
#define GRAPH_AUTO_FREE 1ull
#define GRAPH_UPLOAD 2ull

typedef struct {
    unsigned char bytes[16];
} CUuuid;
typedef struct {
    char reserved[64];
} CUipcMemHandle;
typedef struct {
    int type;
    int id;
} CUmemLocation;
typedef struct {
    int type;
    int handle_types;
    CUmemLocation location;
    void *meta;
    unsigned char flags[8];
} CUmemAllocationProp;
typedef struct {
    CUmemLocation location;
    int flags;
} CUmemAccessDesc;
typedef struct {
    int type;
    int handle_types;
    CUmemLocation location;
    void *security;
    size_t max_bytes;
    unsigned char reserved[56];
} CUmemPoolProps;
typedef struct {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    CUstream stream;
    void *attributes;
    unsigned attribute_count;
} CUlaunchConfig;
typedef struct {
    CUfunction function;
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    CUstream stream;
    void **parameters;
} CUlaunchParams; /* CUDA_LAUNCH_PARAMS */
typedef struct {
    CUfunction function;
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    void **parameters;
    void **extra;
} CUkernelNodeV1;
typedef struct {
    CUfunction function;
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    void **parameters;
    void **extra;
    CUkernel kernel;
    CUcontext context;
} CUkernelNode;
typedef struct {
    CUmemPoolProps pool;
    const CUmemAccessDesc *access;
    size_t access_count;
    size_t bytes;
    CUdeviceptr address;
} CUallocNode;
typedef struct {
    int type;
    int reserved[3];
    union {
        long long size[29];
        CUkernelNode kernel;
        CUallocNode alloc;
        CUdeviceptr free;
        struct {
            CUgraph graph;
            int ownership;
        } child;
    } of;
    long long reserved_too;
} CUgraphNodeParams;
typedef struct {
    unsigned long long flags;
    CUstream upload;
    CUgraphNode error_node;
    int result;
} CUgraphInstantiateParams;
typedef struct {
    size_t width, height;
    int format;
    unsigned channels;
} CUarrayDesc;
typedef struct {
    unsigned width, height;
    int format;
    unsigned channels;
} CUarrayDescV1;
typedef struct {
    size_t width, height, depth;
    int format;
    unsigned channels;
    unsigned flags;
} CUarray3DDesc;
typedef struct {
    unsigned width, height, depth;
    int format;
    unsigned channels;
    unsigned flags;
} CUarray3DDescV1;
typedef struct {
    int type;
    union {
        int fd;
        void *pair[2];
    } handle;
    unsigned long long bytes;
    unsigned flags;
    unsigned reserved[16];
} CUexternalMemoryDesc;
typedef struct {
    unsigned long long offset, bytes;
    unsigned flags;
    unsigned reserved[16];
} CUexternalBufferDesc;

#endif

/* What the shim needs to know of CUDA's and NVML's binary interface, written from their documentation.
 *
 * Handles are opaque, enums are ints, and of structures only what is read here is named. tests/shim compiles these
 * declarations beside NVIDIA's own headers and compares sizes, offsets and signatures.
 */
#ifndef TOPOALLOC_DRIVER_API_H
#define TOPOALLOC_DRIVER_API_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned int CUdeviceptr_v1;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUlib_st *CUlibrary;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUarray_st *CUarray;
typedef struct CUmipmappedArray_st *CUmipmappedArray;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUextMemory_st *CUexternalMemory;
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUdevResourceDesc_st *CUdevResourceDesc;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_NOT_SUPPORTED = 801,
};

#define STREAM_PER_THREAD ((CUstream)(uintptr_t)2) /* CU_STREAM_PER_THREAD */
#define LOCATION_DEVICE 1                          /* CU_MEM_LOCATION_TYPE_DEVICE */
#define LIMIT_STACK_BYTES 0                        /* CU_LIMIT_STACK_SIZE */
#define LIMIT_PRINTF_BYTES 1                       /* CU_LIMIT_PRINTF_FIFO_SIZE */
#define LIMIT_HEAP_BYTES 2                         /* CU_LIMIT_MALLOC_HEAP_SIZE */
#define POOL_RESERVED_BYTES 5                      /* CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT */
#define GRAPH_RESERVED_BYTES 2                     /* CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT */
#define GRAPH_NODE_CHILD 4                         /* CU_GRAPH_NODE_TYPE_GRAPH */
#define GRAPH_NODE_MEM_ALLOC 10                    /* CU_GRAPH_NODE_TYPE_MEM_ALLOC */
#define ATTRIBUTE_PROCESSORS 16                    /* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT */
#define ATTRIBUTE_THREADS_PER_PROCESSOR 39         /* CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR */
#define PROC_ADDRESS_PER_THREAD UINT64_C(2)        /* CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM */
#define PROC_ADDRESS_LEGACY UINT64_C(1)            /* CU_GET_PROC_ADDRESS_LEGACY_STREAM */

typedef struct {
    int type;
    int id;
} CUmemLocation;

typedef struct {
    int type;
    int handle_types;
    CUmemLocation location;
    void *win32;
    unsigned char flags[8];
} CUmemAllocationProp;

typedef struct {
    int type;
    int handle_types;
    CUmemLocation location;
    void *win32;
    size_t bytes_max;
    unsigned short usage;
    unsigned char reserved[54];
} CUmemPoolProps;

typedef struct {
    CUmemPoolProps pool;
    const void *access;
    size_t access_count;
    size_t bytes;
    CUdeviceptr pointer;
} CUDA_MEM_ALLOC_NODE_PARAMS;

typedef struct {
    size_t width, height;
    int format;
    unsigned int channels;
} CUDA_ARRAY_DESCRIPTOR;

typedef struct {
    unsigned int width, height;
    int format;
    unsigned int channels;
} CUDA_ARRAY_DESCRIPTOR_v1;

typedef struct {
    size_t width, height, depth;
    int format;
    unsigned int channels, flags;
} CUDA_ARRAY3D_DESCRIPTOR;

typedef struct {
    unsigned int width, height, depth;
    int format;
    unsigned int channels, flags;
} CUDA_ARRAY3D_DESCRIPTOR_v1;

#define ARRAY_LAYERED 0x01u  /* CUDA_ARRAY3D_LAYERED: depth counts layers */
#define ARRAY_CUBEMAP 0x04u
#define ARRAY_SPARSE 0x40u   /* CUDA_ARRAY3D_SPARSE: memory is mapped later, from cuMemCreate */
#define ARRAY_DEFERRED 0x80u /* CUDA_ARRAY3D_DEFERRED_MAPPING: the same */

typedef struct {
    unsigned int grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    CUstream stream;
    void *attributes;
    unsigned int attribute_count;
} CUlaunchConfig;

typedef struct {
    CUfunction function;
    unsigned int grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    CUstream stream;
    void **parameters;
} CUDA_LAUNCH_PARAMS;

typedef struct {
    int type;
    union {
        int fd;
        void *pair[2];
    } handle;
    unsigned long long bytes;
    unsigned int flags;
    unsigned int reserved[16];
} CUDA_EXTERNAL_MEMORY_HANDLE_DESC;

typedef struct {
    char bytes[16];
} CUuuid;

typedef int nvmlReturn_t;
typedef struct nvmlDevice_st *nvmlDevice_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    unsigned int pid;
    unsigned long long used_bytes;
    unsigned int gpu_instance, compute_instance;
} nvmlProcessInfo_v2_t;

#define NVML_NO_FUNCTION 13                 /* NVML_ERROR_FUNCTION_NOT_FOUND */
#define NVML_UNKNOWN_BYTES UINT64_MAX       /* NVML_VALUE_NOT_AVAILABLE */

#endif

/* Sizes, offsets and values that the shim relies on: compiled with -DOURS from its own declarations, else from NVIDIA's
 * cuda.h. Both must print the same. */
#include <stddef.h>
#include <stdio.h>

#ifdef OURS
#include "driver_api.h"
#define PICK(ours, theirs) ours
#else
#include <cuda.h>
#define PICK(ours, theirs) theirs
#endif

#define VALUE(ours, theirs) printf(#theirs " = %lld\n", (long long)(size_t)PICK(ours, theirs))
#define SIZE(type) printf("sizeof " #type " = %zu\n", sizeof(type))
/* Where it lies and how long it is: a field of the right name and the wrong width would do harm as well. */
#define FIELD(type, ours, theirs)                                                                                    \
    printf(#type "." #theirs " = %zu + %zu\n", offsetof(type, PICK(ours, theirs)), sizeof(((type *)0)->PICK(ours, theirs)))

static void print_values(void)
{
    VALUE(CUDA_SUCCESS, CUDA_SUCCESS);
    VALUE(CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
    VALUE(CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
    VALUE(CUDA_ERROR_NOT_READY, CUDA_ERROR_NOT_READY);
    VALUE(CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
    VALUE(STREAM_PER_THREAD, CU_STREAM_PER_THREAD);
    VALUE(LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
    VALUE(LIMIT_STACK_BYTES, CU_LIMIT_STACK_SIZE);
    VALUE(LIMIT_PRINTF_BYTES, CU_LIMIT_PRINTF_FIFO_SIZE);
    VALUE(LIMIT_HEAP_BYTES, CU_LIMIT_MALLOC_HEAP_SIZE);
    VALUE(POOL_RESERVED_BYTES, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    VALUE(GRAPH_RESERVED_BYTES, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
    VALUE(GRAPH_NODE_CHILD, CU_GRAPH_NODE_TYPE_GRAPH);
    VALUE(GRAPH_NODE_MEM_ALLOC, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    VALUE(ATTRIBUTE_PROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    VALUE(ATTRIBUTE_THREADS_PER_PROCESSOR, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
    VALUE(PROC_ADDRESS_PER_THREAD, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    VALUE(PROC_ADDRESS_LEGACY, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
    VALUE(ARRAY_LAYERED, CUDA_ARRAY3D_LAYERED);
    VALUE(ARRAY_CUBEMAP, CUDA_ARRAY3D_CUBEMAP);
    VALUE(ARRAY_SPARSE, CUDA_ARRAY3D_SPARSE);
    VALUE(ARRAY_DEFERRED, CUDA_ARRAY3D_DEFERRED_MAPPING);
}

static void print_memory_structures(void)
{
    SIZE(CUresult);
    SIZE(CUdevice);
    SIZE(CUdeviceptr);
    SIZE(CUdeviceptr_v1);
    SIZE(CUmemGenericAllocationHandle);
    SIZE(CUuuid);
    SIZE(CUmemLocation);
    FIELD(CUmemLocation, type, type);
    FIELD(CUmemLocation, id, id);
    SIZE(CUmemAllocationProp);
    FIELD(CUmemAllocationProp, type, type);
    FIELD(CUmemAllocationProp, handle_types, requestedHandleTypes);
    FIELD(CUmemAllocationProp, location, location);
    FIELD(CUmemAllocationProp, win32, win32HandleMetaData);
    FIELD(CUmemAllocationProp, flags, allocFlags);
    SIZE(CUmemPoolProps);
    FIELD(CUmemPoolProps, type, allocType);
    FIELD(CUmemPoolProps, handle_types, handleTypes);
    FIELD(CUmemPoolProps, location, location);
    FIELD(CUmemPoolProps, win32, win32SecurityAttributes);
    SIZE(CUDA_MEM_ALLOC_NODE_PARAMS);
    FIELD(CUDA_MEM_ALLOC_NODE_PARAMS, pool, poolProps);
    FIELD(CUDA_MEM_ALLOC_NODE_PARAMS, access, accessDescs);
    FIELD(CUDA_MEM_ALLOC_NODE_PARAMS, access_count, accessDescCount);
    FIELD(CUDA_MEM_ALLOC_NODE_PARAMS, bytes, bytesize);
    FIELD(CUDA_MEM_ALLOC_NODE_PARAMS, pointer, dptr);
    SIZE(CUDA_EXTERNAL_MEMORY_HANDLE_DESC);
    FIELD(CUDA_EXTERNAL_MEMORY_HANDLE_DESC, type, type);
    FIELD(CUDA_EXTERNAL_MEMORY_HANDLE_DESC, handle, handle);
    FIELD(CUDA_EXTERNAL_MEMORY_HANDLE_DESC, bytes, size);
    FIELD(CUDA_EXTERNAL_MEMORY_HANDLE_DESC, flags, flags);
}

#define ARRAY_2D(type)                     \
    SIZE(type);                            \
    FIELD(type, width, Width);             \
    FIELD(type, height, Height);           \
    FIELD(type, format, Format);           \
    FIELD(type, channels, NumChannels)

#define ARRAY_3D(type)         \
    ARRAY_2D(type);            \
    FIELD(type, depth, Depth); \
    FIELD(type, flags, Flags)

#define LAUNCH(type)                            \
    SIZE(type);                                 \
    FIELD(type, grid_x, gridDimX);              \
    FIELD(type, grid_y, gridDimY);              \
    FIELD(type, grid_z, gridDimZ);              \
    FIELD(type, block_x, blockDimX);            \
    FIELD(type, block_y, blockDimY);            \
    FIELD(type, block_z, blockDimZ);            \
    FIELD(type, shared_bytes, sharedMemBytes);  \
    FIELD(type, stream, hStream)

int main(void)
{
    print_values();
    print_memory_structures();
    ARRAY_2D(CUDA_ARRAY_DESCRIPTOR);
    ARRAY_2D(CUDA_ARRAY_DESCRIPTOR_v1);
    ARRAY_3D(CUDA_ARRAY3D_DESCRIPTOR);
    ARRAY_3D(CUDA_ARRAY3D_DESCRIPTOR_v1);
    LAUNCH(CUlaunchConfig);
    FIELD(CUlaunchConfig, attributes, attrs);
    FIELD(CUlaunchConfig, attribute_count, numAttrs);
    LAUNCH(CUDA_LAUNCH_PARAMS);
    FIELD(CUDA_LAUNCH_PARAMS, function, function);
    FIELD(CUDA_LAUNCH_PARAMS, parameters, kernelParams);
    return 0;
}

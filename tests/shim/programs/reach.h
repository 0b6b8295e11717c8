/* How a program reaches the driver: linked, dlsym, cuGetProcAddress (of either default stream), from a constructor, after
 * a fork. The first argument says which; a program's own work is `run`, its calls go through `cu`.
 */
#ifndef TOPOALLOC_TESTS_REACH_H
#define TOPOALLOC_TESTS_REACH_H

#include "cuda_facts.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SHAPE unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned
#define NODE_ARGS CUgraphNode *, CUgraph, const CUgraphNode *, size_t

/* CALL(field, exported symbol, its _ptsz/_ptds form or the same, base name, ABI version, arguments) */
#define CALLS                                                                                                          \
    CALL(Init, cuInit, cuInit, cuInit, 2000, (unsigned))                                                               \
    CALL(PrimaryRetain, cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000,            \
         (CUcontext *, CUdevice))                                                                                      \
    CALL(PrimaryRelease, cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease, 11000, \
         (CUdevice))                                                                                                   \
    CALL(PrimaryReset, cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset, 11000,         \
         (CUdevice))                                                                                                   \
    CALL(CtxCreate, cuCtxCreate_v2, cuCtxCreate_v2, cuCtxCreate, 3020, (CUcontext *, unsigned, CUdevice))              \
    CALL(CtxDestroy, cuCtxDestroy_v2, cuCtxDestroy_v2, cuCtxDestroy, 4000, (CUcontext))                                \
    CALL(CtxSetCurrent, cuCtxSetCurrent, cuCtxSetCurrent, cuCtxSetCurrent, 4000, (CUcontext))                          \
    CALL(CtxSynchronize, cuCtxSynchronize, cuCtxSynchronize, cuCtxSynchronize, 2000, (void))                           \
    CALL(CtxSetLimit, cuCtxSetLimit, cuCtxSetLimit, cuCtxSetLimit, 3010, (int, size_t))                                \
    CALL(TotalMem, cuDeviceTotalMem_v2, cuDeviceTotalMem_v2, cuDeviceTotalMem, 3020, (size_t *, CUdevice))             \
    CALL(GetInfo, cuMemGetInfo_v2, cuMemGetInfo_v2, cuMemGetInfo, 3020, (size_t *, size_t *))                          \
    CALL(Alloc, cuMemAlloc_v2, cuMemAlloc_v2, cuMemAlloc, 3020, (CUdeviceptr *, size_t))                               \
    CALL(Free, cuMemFree_v2, cuMemFree_v2, cuMemFree, 3020, (CUdeviceptr))                                             \
    CALL(AllocPitch, cuMemAllocPitch_v2, cuMemAllocPitch_v2, cuMemAllocPitch, 3020,                                    \
         (CUdeviceptr *, size_t *, size_t, size_t, unsigned))                                                          \
    CALL(AllocManaged, cuMemAllocManaged, cuMemAllocManaged, cuMemAllocManaged, 6000,                                  \
         (CUdeviceptr *, size_t, unsigned))                                                                            \
    CALL(AllocAsync, cuMemAllocAsync, cuMemAllocAsync_ptsz, cuMemAllocAsync, 11020, (CUdeviceptr *, size_t, CUstream)) \
    CALL(FreeAsync, cuMemFreeAsync, cuMemFreeAsync_ptsz, cuMemFreeAsync, 11020, (CUdeviceptr, CUstream))               \
    CALL(AllocFromPool, cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz, cuMemAllocFromPoolAsync, 11020,         \
         (CUdeviceptr *, size_t, CUmemoryPool, CUstream))                                                              \
    CALL(PoolCreate, cuMemPoolCreate, cuMemPoolCreate, cuMemPoolCreate, 11020, (CUmemoryPool *, const CUmemPoolProps *)) \
    CALL(PoolDestroy, cuMemPoolDestroy, cuMemPoolDestroy, cuMemPoolDestroy, 11020, (CUmemoryPool))                     \
    CALL(PoolTrim, cuMemPoolTrimTo, cuMemPoolTrimTo, cuMemPoolTrimTo, 11020, (CUmemoryPool, size_t))                   \
    CALL(PoolSet, cuMemPoolSetAttribute, cuMemPoolSetAttribute, cuMemPoolSetAttribute, 11020,                          \
         (CUmemoryPool, int, void *))                                                                                  \
    CALL(Create, cuMemCreate, cuMemCreate, cuMemCreate, 10020,                                                         \
         (CUhandle *, size_t, const CUmemAllocationProp *, unsigned long long))                                        \
    CALL(Release, cuMemRelease, cuMemRelease, cuMemRelease, 10020, (CUhandle))                                         \
    CALL(Reserve, cuMemAddressReserve, cuMemAddressReserve, cuMemAddressReserve, 10020,                                \
         (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))                                             \
    CALL(Map, cuMemMap, cuMemMap, cuMemMap, 10020, (CUdeviceptr, size_t, size_t, CUhandle, unsigned long long))        \
    CALL(Unmap, cuMemUnmap, cuMemUnmap, cuMemUnmap, 10020, (CUdeviceptr, size_t))                                      \
    CALL(Retain, cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000,         \
         (CUhandle *, void *))                                                                                         \
    CALL(Export, cuMemExportToShareableHandle, cuMemExportToShareableHandle, cuMemExportToShareableHandle, 10020,      \
         (void *, CUhandle, int, unsigned long long))                                                                  \
    CALL(Import, cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, cuMemImportFromShareableHandle,       \
         10020, (CUhandle *, void *, int))                                                                             \
    CALL(ArrayCreate, cuArrayCreate_v2, cuArrayCreate_v2, cuArrayCreate, 3020, (CUarray *, const CUarrayDesc *))       \
    CALL(Array3DCreate, cuArray3DCreate_v2, cuArray3DCreate_v2, cuArray3DCreate, 3020,                                 \
         (CUarray *, const CUarray3DDesc *))                                                                           \
    CALL(ArrayDestroy, cuArrayDestroy, cuArrayDestroy, cuArrayDestroy, 2000, (CUarray))                                \
    CALL(MipmapCreate, cuMipmappedArrayCreate, cuMipmappedArrayCreate, cuMipmappedArrayCreate, 5000,                   \
         (CUmipmappedArray *, const CUarray3DDesc *, unsigned))                                                        \
    CALL(MipmapDestroy, cuMipmappedArrayDestroy, cuMipmappedArrayDestroy, cuMipmappedArrayDestroy, 5000,               \
         (CUmipmappedArray))                                                                                           \
    CALL(IpcGet, cuIpcGetMemHandle, cuIpcGetMemHandle, cuIpcGetMemHandle, 4010, (CUipcMemHandle *, CUdeviceptr))       \
    CALL(IpcOpen, cuIpcOpenMemHandle_v2, cuIpcOpenMemHandle_v2, cuIpcOpenMemHandle, 11000,                             \
         (CUdeviceptr *, CUipcMemHandle, unsigned))                                                                    \
    CALL(IpcClose, cuIpcCloseMemHandle, cuIpcCloseMemHandle, cuIpcCloseMemHandle, 4010, (CUdeviceptr))                 \
    CALL(ImportExternal, cuImportExternalMemory, cuImportExternalMemory, cuImportExternalMemory, 10000,                \
         (CUexternalMemory *, const CUexternalMemoryDesc *))                                                           \
    CALL(MapExternal, cuExternalMemoryGetMappedBuffer, cuExternalMemoryGetMappedBuffer,                                \
         cuExternalMemoryGetMappedBuffer, 10000, (CUdeviceptr *, CUexternalMemory, const CUexternalBufferDesc *))      \
    CALL(DestroyExternal, cuDestroyExternalMemory, cuDestroyExternalMemory, cuDestroyExternalMemory, 10000,            \
         (CUexternalMemory))                                                                                           \
    CALL(ModuleLoad, cuModuleLoadData, cuModuleLoadData, cuModuleLoadData, 2000, (CUmodule *, const void *))           \
    CALL(ModuleUnload, cuModuleUnload, cuModuleUnload, cuModuleUnload, 2000, (CUmodule))                               \
    CALL(GetFunction, cuModuleGetFunction, cuModuleGetFunction, cuModuleGetFunction, 2000,                             \
         (CUfunction *, CUmodule, const char *))                                                                       \
    CALL(LibraryLoad, cuLibraryLoadData, cuLibraryLoadData, cuLibraryLoadData, 12000,                                  \
         (CUlibrary *, const void *, int *, void **, unsigned, int *, void **, unsigned))                              \
    CALL(LibraryUnload, cuLibraryUnload, cuLibraryUnload, cuLibraryUnload, 12000, (CUlibrary))                         \
    CALL(LibraryKernel, cuLibraryGetKernel, cuLibraryGetKernel, cuLibraryGetKernel, 12000,                             \
         (CUkernel *, CUlibrary, const char *))                                                                        \
    CALL(StreamCreate, cuStreamCreate, cuStreamCreate, cuStreamCreate, 2000, (CUstream *, unsigned))                   \
    CALL(StreamDestroy, cuStreamDestroy_v2, cuStreamDestroy_v2, cuStreamDestroy, 4000, (CUstream))                     \
    CALL(StreamSynchronize, cuStreamSynchronize, cuStreamSynchronize_ptsz, cuStreamSynchronize, 2000, (CUstream))      \
    CALL(StreamCtx, cuStreamGetCtx, cuStreamGetCtx_ptsz, cuStreamGetCtx, 9020, (CUstream, CUcontext *))                \
    CALL(BeginCapture, cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz, cuStreamBeginCapture, 10010,             \
         (CUstream, int))                                                                                              \
    CALL(EndCapture, cuStreamEndCapture, cuStreamEndCapture_ptsz, cuStreamEndCapture, 10000, (CUstream, CUgraph *))    \
    CALL(EventCreate, cuEventCreate, cuEventCreate, cuEventCreate, 2000, (CUevent *, unsigned))                        \
    CALL(EventRecord, cuEventRecord, cuEventRecord_ptsz, cuEventRecord, 2000, (CUevent, CUstream))                     \
    CALL(EventSynchronize, cuEventSynchronize, cuEventSynchronize, cuEventSynchronize, 2000, (CUevent))                \
    CALL(EventElapsed, cuEventElapsedTime, cuEventElapsedTime, cuEventElapsedTime, 2000, (float *, CUevent, CUevent))  \
    CALL(Launch, cuLaunchKernel, cuLaunchKernel_ptsz, cuLaunchKernel, 4000,                                            \
         (CUfunction, SHAPE, CUstream, void **, void **))                                                              \
    CALL(LaunchEx, cuLaunchKernelEx, cuLaunchKernelEx_ptsz, cuLaunchKernelEx, 11060,                                   \
         (const CUlaunchConfig *, CUfunction, void **, void **))                                                       \
    CALL(LaunchCooperative, cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz, cuLaunchCooperativeKernel,      \
         9000, (CUfunction, SHAPE, CUstream, void **))                                                                 \
    CALL(LaunchMulti, cuLaunchCooperativeKernelMultiDevice, cuLaunchCooperativeKernelMultiDevice,                      \
         cuLaunchCooperativeKernelMultiDevice, 9000, (CUlaunchParams *, unsigned, unsigned))                           \
    CALL(GraphCreate, cuGraphCreate, cuGraphCreate, cuGraphCreate, 10000, (CUgraph *, unsigned))                       \
    CALL(GraphDestroy, cuGraphDestroy, cuGraphDestroy, cuGraphDestroy, 10000, (CUgraph))                               \
    CALL(GraphAddAlloc, cuGraphAddMemAllocNode, cuGraphAddMemAllocNode, cuGraphAddMemAllocNode, 11040,                 \
         (NODE_ARGS, CUallocNode *))                                                                                   \
    CALL(GraphAddFree, cuGraphAddMemFreeNode, cuGraphAddMemFreeNode, cuGraphAddMemFreeNode, 11040,                     \
         (NODE_ARGS, CUdeviceptr))                                                                                     \
    CALL(GraphAddChild, cuGraphAddChildGraphNode, cuGraphAddChildGraphNode, cuGraphAddChildGraphNode, 10000,           \
         (NODE_ARGS, CUgraph))                                                                                         \
    CALL(GraphAddNode, cuGraphAddNode, cuGraphAddNode, cuGraphAddNode, 12020, (NODE_ARGS, CUgraphNodeParams *))        \
    CALL(GraphAddKernel, cuGraphAddKernelNode_v2, cuGraphAddKernelNode_v2, cuGraphAddKernelNode, 12000,                \
         (NODE_ARGS, const CUkernelNode *))                                                                            \
    CALL(Instantiate, cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040,    \
         (CUgraphExec *, CUgraph, unsigned long long))                                                                 \
    CALL(GraphLaunch, cuGraphLaunch, cuGraphLaunch_ptsz, cuGraphLaunch, 10000, (CUgraphExec, CUstream))                \
    CALL(GraphUpload, cuGraphUpload, cuGraphUpload_ptsz, cuGraphUpload, 11010, (CUgraphExec, CUstream))                \
    CALL(ExecDestroy, cuGraphExecDestroy, cuGraphExecDestroy, cuGraphExecDestroy, 10000, (CUgraphExec))                \
    CALL(GraphTrim, cuDeviceGraphMemTrim, cuDeviceGraphMemTrim, cuDeviceGraphMemTrim, 11040, (CUdevice))

#define CALL(field, symbol, threads, base, version, arguments) CUresult(*field) arguments;
struct calls {
    CALLS
};
#undef CALL

extern struct calls cu;
int run(int argc, char **argv); /* without the way */

uint64_t fakeBytesTaken(uint32_t pid);
uint64_t fakeBytesManaged(uint32_t pid);
uint64_t fakeBusyNs(uint32_t pid);

/* cuInit, the primary context made current; ends the program on an error, with `start=<error>`. */
void start(void);
uint64_t number(const char *text); /* 64M, 2G, 513 */
void say(const char *key, long long value);

#define MUST(call)                                                          \
    do {                                                                    \
        CUresult must = (call);                                             \
        if (must) {                                                         \
            printf("failed=%s\nfailed_with=%d\n", #call, must);             \
            exit(3);                                                        \
        }                                                                   \
    } while (0)

#endif

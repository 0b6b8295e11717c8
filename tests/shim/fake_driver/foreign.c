/* Memory that another process (or API) owns and pays for: IPC handles and external memory. */
#define _GNU_SOURCE
#include "driver.h"

#include <string.h>
#include <unistd.h>

#define EXTERNAL_MAGIC UINT64_C(0xe47e0001)

struct CUext_st {
    uint64_t magic, size;
};
struct ipc_content {
    uint64_t magic, size;
    uint32_t pid;
};

EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
    GUARD_CONTEXT;
    (void)context;
    struct allocation *allocation = allocation_find(address);
    if (!allocation || allocation->kind > PITCHED)
        return CUDA_ERROR_INVALID_VALUE;
    struct ipc_content content = {EXTERNAL_MAGIC, allocation->size, (uint32_t)getpid()};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &content, sizeof content);
    return CUDA_SUCCESS;
}

static CUresult ipc_open(CUdeviceptr *address, const CUipcMemHandle *handle)
{
    GUARD_CONTEXT;
    (void)context;
    struct ipc_content content;
    memcpy(&content, handle, sizeof content);
    if (content.magic != EXTERNAL_MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    if (content.pid == (uint32_t)getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    *address = address_new(content.size, GRANULE_BYTES);
    allocation_add(*address, content.size, OF_IPC);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
    (void)flags;
    return ipc_open(address, &handle);
}

EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
    (void)flags;
    return ipc_open(address, &handle);
}

EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    GUARD_CONTEXT;
    (void)context;
    struct allocation *allocation = allocation_find(address);
    if (!allocation || allocation->kind != OF_IPC)
        return CUDA_ERROR_INVALID_VALUE;
    allocation_drop(allocation);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuImportExternalMemory(CUexternalMemory *memory, const CUexternalMemoryDesc *of)
{
    GUARD_CONTEXT;
    (void)context;
    if (!of->bytes)
        return CUDA_ERROR_INVALID_VALUE;
    CUexternalMemory made = calloc(1, sizeof *made);
    made->magic = EXTERNAL_MAGIC;
    made->size = of->bytes;
    *memory = made;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *address, CUexternalMemory memory,
                                                const CUexternalBufferDesc *of)
{
    GUARD_CONTEXT;
    (void)context;
    if (!memory || memory->magic != EXTERNAL_MAGIC || of->offset + of->bytes > memory->size)
        return CUDA_ERROR_INVALID_VALUE;
    *address = address_new(of->bytes, GRANULE_BYTES);
    allocation_add(*address, of->bytes, OF_EXTERNAL)->owner = memory;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDestroyExternalMemory(CUexternalMemory memory)
{
    GUARD_CONTEXT;
    (void)context;
    if (!memory || memory->magic != EXTERNAL_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    memory->magic = 0;
    free(memory);
    return CUDA_SUCCESS;
}

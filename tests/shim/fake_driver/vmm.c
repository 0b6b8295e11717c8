/* Virtual memory management: address ranges cost nothing, physical handles cost their size from creation until the last
 * of creation, mappings and retains is given up. An exported handle carries its owner's process id: the importer pays
 * nothing, the owner goes on paying.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PHYSICAL_MAGIC UINT64_C(0x9e4a0001)
#define EXPORTED_MAGIC UINT64_C(0x9e4a0002)

struct physical {
    uint64_t magic, size;
    unsigned uses;
    bool pays;
    CUmemAllocationProp properties;
};
struct exported { /* what travels in a file descriptor or a fabric handle */
    uint64_t magic, size;
};

static struct physical *physical_of(CUhandle handle)
{
    struct physical *physical = (struct physical *)(uintptr_t)handle;
    return physical && physical->magic == PHYSICAL_MAGIC ? physical : NULL;
}

static void physical_drop(struct physical *physical)
{
    if (--physical->uses)
        return;
    if (physical->pays)
        gpu_give(physical->size);
    physical->magic = 0;
    free(physical);
}

static CUhandle physical_new(uint64_t size, bool pays, const CUmemAllocationProp *properties)
{
    struct physical *made = calloc(1, sizeof *made);
    made->magic = PHYSICAL_MAGIC;
    made->size = size;
    made->uses = 1;
    made->pays = pays;
    if (properties)
        made->properties = *properties;
    else
        made->properties.location = (CUmemLocation){.type = LOCATION_DEVICE};
    return (CUhandle)(uintptr_t)made;
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties, int option)
{
    (void)properties, (void)option;
    GUARD;
    *granularity = GRANULE_BYTES;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t align, CUdeviceptr wish,
                                    unsigned long long flags)
{
    (void)wish, (void)flags;
    GUARD;
    if (!size || size % GRANULE_BYTES)
        return CUDA_ERROR_INVALID_VALUE;
    *address = address_new(size, align > GRANULE_BYTES ? align : GRANULE_BYTES);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
    GUARD;
    address_gone(address, size);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemCreate(CUhandle *handle, size_t size, const CUmemAllocationProp *properties,
                            unsigned long long flags)
{
    GUARD;
    if (!size || size % GRANULE_BYTES || flags || !properties)
        return CUDA_ERROR_INVALID_VALUE;
    bool pays = properties->location.type == LOCATION_DEVICE;
    if (pays && !gpu_take(size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = physical_new(size, pays, properties);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemRelease(CUhandle handle)
{
    GUARD;
    struct physical *physical = physical_of(handle);
    if (!physical)
        return CUDA_ERROR_INVALID_VALUE;
    physical_drop(physical);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUhandle handle, unsigned long long flags)
{
    (void)flags;
    GUARD;
    struct physical *physical = physical_of(handle);
    if (!physical || offset || size > physical->size || allocation_find(address))
        return CUDA_ERROR_INVALID_VALUE;
    allocation_add(address, size, MAPPED)->owner = physical;
    physical->uses++;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
    GUARD;
    uint64_t done = 0;
    while (done < size) {
        struct allocation *mapping = allocation_find(address + done);
        if (!mapping || mapping->kind != MAPPED)
            return CUDA_ERROR_INVALID_VALUE;
        done += mapping->size;
        physical_drop(mapping->owner);
        allocation_drop(mapping);
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count)
{
    (void)address, (void)size, (void)access, (void)count;
    GUARD;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUhandle *handle, void *address)
{
    GUARD;
    struct allocation *mapping = allocation_around((CUdeviceptr)(uintptr_t)address);
    if (!mapping || mapping->kind != MAPPED)
        return CUDA_ERROR_INVALID_VALUE;
    struct physical *physical = mapping->owner;
    physical->uses++;
    *handle = (CUhandle)(uintptr_t)physical;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties, CUhandle handle)
{
    GUARD;
    struct physical *physical = physical_of(handle);
    if (!physical)
        return CUDA_ERROR_INVALID_VALUE;
    *properties = physical->properties;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemExportToShareableHandle(void *shareable, CUhandle handle, int type, unsigned long long flags)
{
    (void)flags;
    GUARD;
    struct physical *physical = physical_of(handle);
    if (!physical)
        return CUDA_ERROR_INVALID_VALUE;
    struct exported exported = {.magic = EXPORTED_MAGIC, .size = physical->size};
    if (type == HANDLE_FABRIC) {
        memset(shareable, 0, 64);
        memcpy(shareable, &exported, sizeof exported);
        return CUDA_SUCCESS;
    }
    int fd = type == HANDLE_FD ? memfd_create("fake-gpu-exported", MFD_CLOEXEC) : -1;
    if (fd < 0 || pwrite(fd, &exported, sizeof exported, 0) != sizeof exported)
        return CUDA_ERROR_NOT_SUPPORTED;
    *(int *)shareable = fd;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemImportFromShareableHandle(CUhandle *handle, void *shareable, int type)
{
    GUARD;
    struct exported exported = {0};
    if (type == HANDLE_FABRIC)
        memcpy(&exported, shareable, sizeof exported);
    else if (pread((int)(intptr_t)shareable, &exported, sizeof exported, 0) != sizeof exported)
        return CUDA_ERROR_INVALID_VALUE;
    if (exported.magic != EXPORTED_MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    *handle = physical_new(exported.size, false, NULL);
    return CUDA_SUCCESS;
}

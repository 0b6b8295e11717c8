/* Explicit memory: no byte of it exists, but its addresses, its granules and its errors are those of a real device. */
#define _GNU_SOURCE
#include "driver.h"

#include <string.h>
#include <sys/mman.h>

#define BUCKETS 8192
#define UNIT_BYTES 512u
#define UNITS (GRANULE_BYTES / UNIT_BYTES)
#define SMALL_MAX ((uint64_t)1 << 20)
#define RETURNED_MAX 64
#define PITCH_BYTES 512u

struct block { /* one granule cut up for small allocations */
    struct block *next;
    CUdeviceptr address;
    unsigned used_units;
    unsigned char used[UNITS];
};

static struct allocation *buckets[BUCKETS];
static struct block *blocks;
static CUdeviceptr next_address = UINT64_C(0x100000000000);
static struct {
    CUdeviceptr address;
    uint64_t size;
} returned[RETURNED_MAX];

uint64_t round_up(uint64_t value, uint64_t unit)
{
    return value + (unit - value % unit) % unit;
}

CUdeviceptr address_new(uint64_t size, uint64_t align)
{
    for (int i = 0; i < RETURNED_MAX; i++)
        if (returned[i].address && returned[i].size == size && returned[i].address % align == 0) {
            CUdeviceptr again = returned[i].address; /* the real driver hands out an address again at once */
            returned[i].address = 0;
            return again;
        }
    next_address = round_up(next_address, align);
    CUdeviceptr address = next_address;
    next_address += round_up(size, GRANULE_BYTES);
    return address;
}

void address_gone(CUdeviceptr address, uint64_t size)
{
    static unsigned at;
    returned[at % RETURNED_MAX].address = address;
    returned[at++ % RETURNED_MAX].size = size;
}

static struct allocation **bucket_of(CUdeviceptr address)
{
    return &buckets[(address / UNIT_BYTES * UINT64_C(0x9e3779b97f4a7c15)) >> 51];
}

struct allocation *allocation_find(CUdeviceptr address)
{
    for (struct allocation *each = *bucket_of(address); each; each = each->next)
        if (each->address == address)
            return each;
    return NULL;
}

struct allocation *allocation_around(CUdeviceptr address)
{
    struct allocation *exact = allocation_find(address);
    for (int i = 0; !exact && i < BUCKETS; i++)
        for (struct allocation *each = buckets[i]; each; each = each->next)
            if (address >= each->address && address - each->address < each->size)
                return each;
    return exact;
}

struct allocation *allocation_add(CUdeviceptr address, uint64_t size, enum allocation_kind kind)
{
    struct allocation *made = calloc(1, sizeof *made);
    struct allocation **bucket = bucket_of(address);
    made->address = address;
    made->size = size;
    made->kind = kind;
    made->context = context_current();
    made->next = *bucket;
    *bucket = made;
    return made;
}

void allocation_drop(struct allocation *allocation)
{
    for (struct allocation **link = bucket_of(allocation->address); *link; link = &(*link)->next)
        if (*link == allocation) {
            *link = allocation->next;
            break;
        }
    free(allocation);
}

static CUdeviceptr units_find(struct block *block, unsigned units)
{
    unsigned run = 0;
    if (UNITS - block->used_units < units)
        return 0;
    for (unsigned at = 0; at < UNITS; at++) {
        run = block->used[at] ? 0 : run + 1;
        if (run < units)
            continue;
        unsigned from = at + 1 - units;
        memset(block->used + from, 1, units);
        block->used_units += units;
        return block->address + (uint64_t)from * UNIT_BYTES;
    }
    return 0;
}

static CUresult small_take(uint64_t size, enum allocation_kind kind, CUdeviceptr *address)
{
    unsigned units = (unsigned)(round_up(size, UNIT_BYTES) / UNIT_BYTES);
    struct block *block = blocks;
    for (*address = 0; block; block = block->next)
        if ((*address = units_find(block, units)))
            break;
    if (!block) {
        if (!gpu_take(GRANULE_BYTES))
            return CUDA_ERROR_OUT_OF_MEMORY;
        block = calloc(1, sizeof *block);
        block->address = address_new(GRANULE_BYTES, GRANULE_BYTES);
        block->next = blocks;
        blocks = block;
        *address = units_find(block, units);
    }
    allocation_add(*address, size, kind)->block = block;
    return CUDA_SUCCESS;
}

static void small_give(struct allocation *allocation)
{
    struct block *block = allocation->block;
    unsigned units = (unsigned)(round_up(allocation->size, UNIT_BYTES) / UNIT_BYTES);
    memset(block->used + (allocation->address - block->address) / UNIT_BYTES, 0, units);
    block->used_units -= units;
    if (block->used_units)
        return;
    for (struct block **link = &blocks; *link; link = &(*link)->next)
        if (*link == block) {
            *link = block->next;
            break;
        }
    gpu_give(GRANULE_BYTES);
    address_gone(block->address, GRANULE_BYTES);
    free(block);
}

CUresult memory_take(uint64_t size, enum allocation_kind kind, CUdeviceptr *address)
{
    if (!size)
        return CUDA_ERROR_INVALID_VALUE;
    if (size > (UINT64_C(1) << 48))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (size <= SMALL_MAX)
        return small_take(size, kind, address);
    uint64_t taken = round_up(size, GRANULE_BYTES);
    if (!gpu_take(taken))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *address = address_new(taken, GRANULE_BYTES);
    allocation_add(*address, size, kind)->taken = taken;
    return CUDA_SUCCESS;
}

static void managed_give(struct allocation *allocation)
{
    munmap((void *)(uintptr_t)allocation->address, allocation->taken);
    gpu_give_managed(allocation->taken);
}

CUresult memory_give(struct allocation *allocation)
{
    switch (allocation->kind) {
    case POOLED:
        pool_free(allocation);
        break;
    case OF_GRAPH:
        graph_memory_freed(allocation);
        return CUDA_SUCCESS; /* the graph keeps it */
    case MANAGED_MEMORY:
        managed_give(allocation);
        break;
    case OF_EXTERNAL:
        break;
    case PLAIN:
    case PITCHED:
        if (allocation->block) {
            small_give(allocation);
            break;
        }
        gpu_give(allocation->taken);
        address_gone(allocation->address, allocation->taken);
        break;
    case OF_IPC:
    case OF_HOST:
    case MAPPED:
        return CUDA_ERROR_INVALID_VALUE;
    }
    allocation_drop(allocation);
    return CUDA_SUCCESS;
}

void allocations_end(CUcontext context)
{
    for (int i = 0; i < BUCKETS; i++)
        for (struct allocation *each = buckets[i], *next; each; each = next) {
            next = each->next;
            if (each->context == context && each->kind <= MANAGED_MEMORY)
                memory_give(each);
        }
}

/* --- the entry points -------------------------------------------------------------------------------------------- */

static CUresult allocate(CUdeviceptr *address, size_t size)
{
    GUARD_CONTEXT;
    CUresult forbidden = capture_forbids();
    return forbidden ? forbidden : memory_take(size, PLAIN, address);
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size)
{
    return allocate(address, size);
}

EXPORT CUresult cuMemAlloc(unsigned *address, unsigned size) /* of the time when pointers had 32 bits */
{
    CUdeviceptr wide = 0;
    CUresult result = allocate(&wide, size);
    *address = (unsigned)wide;
    return result;
}

static CUresult free_any(CUdeviceptr address)
{
    uint64_t end;
    {
        GUARD_CONTEXT;
        CUresult forbidden = capture_forbids();
        if (forbidden)
            return forbidden;
        if (!address)
            return CUDA_SUCCESS;
        if (!allocation_find(address))
            return CUDA_ERROR_INVALID_VALUE;
        end = context_end(context);
    }
    gpu_wait(end); /* the plain free waits for the device */
    GUARD;
    struct allocation *allocation = allocation_find(address);
    CUresult result = allocation ? memory_give(allocation) : CUDA_ERROR_INVALID_VALUE;
    pools_trim();
    return result;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr address)
{
    return free_any(address);
}

EXPORT CUresult cuMemFree(unsigned address)
{
    return free_any(address);
}

static CUresult allocate_pitch(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element)
{
    GUARD_CONTEXT;
    CUresult forbidden = capture_forbids();
    if (forbidden)
        return forbidden;
    if (!width || !height || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    *pitch = round_up(width, PITCH_BYTES);
    if (height > (UINT64_C(1) << 47) / *pitch)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return memory_take(*pitch * height, PITCHED, address);
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element)
{
    return allocate_pitch(address, pitch, width, height, element);
}

EXPORT CUresult cuMemAllocPitch(unsigned *address, unsigned *pitch, unsigned width, unsigned height, unsigned element)
{
    CUdeviceptr wide = 0;
    size_t wide_pitch = 0;
    CUresult result = allocate_pitch(&wide, &wide_pitch, width, height, element);
    *address = (unsigned)wide;
    *pitch = (unsigned)wide_pitch;
    return result;
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned flags)
{
    GUARD_CONTEXT;
    CUresult forbidden = capture_forbids();
    if (forbidden)
        return forbidden;
    if (!size || (flags != 1 && flags != 2))
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t taken = round_up(size, GRANULE_BYTES);
    void *room = mmap(NULL, taken, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *address = (CUdeviceptr)(uintptr_t)room;
    allocation_add(*address, size, MANAGED_MEMORY)->taken = taken;
    gpu_take_managed(taken);
    return CUDA_SUCCESS;
}

static CUresult address_range(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
    GUARD_CONTEXT;
    struct allocation *allocation = allocation_around(address);
    if (!allocation)
        return CUDA_ERROR_NOT_FOUND;
    if (base)
        *base = allocation->address;
    if (size)
        *size = allocation->size;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
    return address_range(base, size, address);
}

EXPORT CUresult cuMemGetAddressRange(unsigned *base, unsigned *size, unsigned address)
{
    CUdeviceptr wide = 0;
    size_t wide_size = 0;
    CUresult result = address_range(&wide, &wide_size, address);
    *base = (unsigned)wide;
    *size = (unsigned)wide_size;
    return result;
}

/* --- host memory ------------------------------------------------------------------------------------------------- */

static CUresult host_allocate(void **room, size_t size)
{
    GUARD_CONTEXT;
    if (!size || posix_memalign(room, 4096, size))
        return CUDA_ERROR_INVALID_VALUE;
    allocation_add((CUdeviceptr)(uintptr_t)*room, size, OF_HOST);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostAlloc(void **room, size_t size, unsigned flags)
{
    (void)flags;
    return host_allocate(room, size);
}

EXPORT CUresult cuMemAllocHost_v2(void **room, size_t size)
{
    return host_allocate(room, size);
}

EXPORT CUresult cuMemAllocHost(void **room, unsigned size)
{
    return host_allocate(room, size);
}

EXPORT CUresult cuMemFreeHost(void *room)
{
    GUARD_CONTEXT;
    struct allocation *allocation = allocation_find((CUdeviceptr)(uintptr_t)room);
    if (!allocation || allocation->kind != OF_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    allocation_drop(allocation);
    free(room);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *room, unsigned flags)
{
    (void)flags;
    GUARD_CONTEXT;
    *address = (CUdeviceptr)(uintptr_t)room;
    return CUDA_SUCCESS;
}

static CUresult one_attribute(void *value, int attribute, CUdeviceptr address)
{
    struct allocation *allocation = allocation_around(address);
    if (!allocation)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case 1: *(CUcontext *)value = allocation->context; break;
    case 2: *(unsigned *)value = allocation->kind == OF_HOST ? 1 : 2; break;
    case 3: *(CUdeviceptr *)value = address; break;
    case 4: *(void **)value = (void *)(uintptr_t)address; break;
    case 8: *(unsigned *)value = allocation->kind == MANAGED_MEMORY; break;
    case 9: *(int *)value = 0; break;
    case 11: *(CUdeviceptr *)value = allocation->address; break;
    case 12: *(size_t *)value = allocation->size; break;
    case 13: *(unsigned *)value = 1; break;
    case 17: *(CUmemoryPool *)value = allocation->pool; break;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr address)
{
    GUARD_CONTEXT;
    return one_attribute(value, attribute, address);
}

EXPORT CUresult cuPointerGetAttributes(unsigned count, int *attributes, void **values, CUdeviceptr address)
{
    GUARD_CONTEXT;
    for (unsigned i = 0; i < count; i++)
        if (one_attribute(values[i], attributes[i], address) && attributes[i] == 2)
            *(unsigned *)values[i] = 0; /* unregistered host memory */
    return CUDA_SUCCESS;
}

/* Memory by handles (cuMemCreate and mappings), and memory that comes from elsewhere. A handle's memory lives as long
 * as the handle or one of its mappings does. */
#include "driver.h"
#include "local_lock.h"
#include "memory.h"
#include "process.h"

#include <errno.h>
#include <sys/mman.h>

#define OBJECTS_MAX (1u << 20) /* handles of one process that are alive at a time: two TiB in pages of two MiB */
#define MAPPINGS_MAX_A_CALL OBJECTS_MAX

struct object {
    uint64_t bytes; /* charged for the handle; 0: imported, charged as it is mapped */
    uint32_t handles;
    uint32_t mappings;
    uint32_t next_free;
    uint32_t imported;
};

static struct local_lock lock;
static struct object *objects; /* OBJECTS_MAX, reserved once; pages come as they are touched */
static uint32_t objects_used = 1; /* 0: none */
static uint32_t first_free;

static uint32_t new_object(uint64_t bytes, int imported)
{
    if (!objects) {
        int kept = errno;
        void *place = mmap(NULL, OBJECTS_MAX * sizeof(struct object), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        errno = kept;
        if (place == MAP_FAILED)
            return 0;
        objects = place;
    }
    uint32_t position = first_free;
    if (position)
        first_free = objects[position].next_free;
    else if (objects_used < OBJECTS_MAX)
        position = objects_used++;
    if (position)
        objects[position] = (struct object){.bytes = bytes, .handles = 1, .imported = imported ? 1u : 0u};
    return position;
}

/* Returns the bytes to give back: of the object when nothing holds it any more. */
static uint64_t settle(uint32_t position)
{
    struct object *object = &objects[position];
    if (object->handles || object->mappings)
        return 0;
    uint64_t bytes = object->bytes;
    object->next_free = first_free;
    first_free = position;
    return bytes;
}

void mappings_forget(void)
{
    local_lock_forget(&lock);
    objects_used = 1;
    first_free = 0;
}

static int note_handle(CUmemGenericAllocationHandle handle, uint64_t bytes, int imported)
{
    struct pointer known;
    local_lock_take(&lock);
    if (imported && pointers_get(SPACE_HANDLE, handle, &known)) {
        objects[known.owner].handles++; /* our own, which came back to us */
        local_lock_drop(&lock);
        return 1;
    }
    uint32_t position = new_object(bytes, imported);
    struct pointer pointer = {handle, bytes, position, POINTER_HANDLE};
    int noted = position && pointers_put(SPACE_HANDLE, pointer);
    if (position && !noted) {
        objects[position].handles = 0;
        (void)settle(position); /* charged and given back by the caller */
    }
    local_lock_drop(&lock);
    return noted;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                     unsigned long long flags)
{
    NEED(cuMemCreate);
    int on_device = properties && properties->location.type == LOCATION_DEVICE;
    if (!on_device || !process_limits_memory())
        return REAL(cuMemCreate)(handle, bytes, properties, flags);
    uint64_t taken = memory_taken(bytes > MIB ? bytes : MIB + 1); /* whole pages of two MiB, always */
    if (!memory_charge(taken, USAGE_DEVICE))
        return memory_refused();
    CUresult result = REAL(cuMemCreate)(handle, bytes, properties, flags);
    if (result == CUDA_SUCCESS && note_handle(*handle, taken, 0))
        return result;
    if (result == CUDA_SUCCESS && driver_hooked[HOOK_cuMemRelease])
        REAL(cuMemRelease)(*handle);
    memory_discharge(taken, USAGE_DEVICE);
    return result == CUDA_SUCCESS ? memory_refused() : result;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle, int type)
{
    NEED(cuMemImportFromShareableHandle);
    CUresult result = REAL(cuMemImportFromShareableHandle)(handle, os_handle, type);
    if (result == CUDA_SUCCESS && process_limits_memory())
        (void)note_handle(*handle, 0, 1); /* unnoted it is its exporter's alone */
    return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    NEED(cuMemRelease);
    struct pointer pointer;
    uint64_t back = 0;
    local_lock_take(&lock);
    int known = pointers_take(SPACE_HANDLE, handle, &pointer);
    CUresult result = REAL(cuMemRelease)(handle);
    if (known) {
        struct object *object = &objects[pointer.owner];
        if (result == CUDA_SUCCESS)
            object->handles--;
        if (object->handles)
            pointers_put(SPACE_HANDLE, pointer);
        else
            back = settle((uint32_t)pointer.owner);
    }
    local_lock_drop(&lock);
    memory_discharge(back, USAGE_DEVICE);
    return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    NEED(cuMemRetainAllocationHandle);
    struct pointer pointer;
    local_lock_take(&lock);
    CUresult result = REAL(cuMemRetainAllocationHandle)(handle, address);
    if (result == CUDA_SUCCESS && pointers_get(SPACE_HANDLE, *handle, &pointer))
        objects[pointer.owner].handles++;
    else if (result == CUDA_SUCCESS && pointers_get(SPACE_MAPPING, (uint64_t)(uintptr_t)address, &pointer)) {
        objects[pointer.owner].handles++; /* the handle itself had been released */
        struct pointer again = {*handle, objects[pointer.owner].bytes, pointer.owner, POINTER_HANDLE};
        pointers_put(SPACE_HANDLE, again);
    }
    local_lock_drop(&lock);
    return result;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    NEED(cuMemMap);
    struct pointer owner;
    if (!process_limits_memory() || !pointers_get(SPACE_HANDLE, handle, &owner))
        return REAL(cuMemMap)(address, bytes, offset, handle, flags);
    int imported = objects[owner.owner].imported != 0;
    /* The exporter may end before us, and then the memory is ours alone. */
    if (imported && !memory_charge(bytes, USAGE_DEVICE))
        return memory_refused();
    local_lock_take(&lock);
    CUresult result = REAL(cuMemMap)(address, bytes, offset, handle, flags);
    struct pointer mapping = {address, bytes, owner.owner, POINTER_MAPPING};
    if (result == CUDA_SUCCESS && pointers_put(SPACE_MAPPING, mapping))
        objects[owner.owner].mappings++;
    local_lock_drop(&lock);
    if (result != CUDA_SUCCESS && imported)
        memory_discharge(bytes, USAGE_DEVICE);
    return result;
}

/* One call may unmap several mappings that lie beside each other. */
static uint64_t forget_mappings(CUdeviceptr address, size_t bytes)
{
    uint64_t back = 0;
    struct pointer mapping;
    CUdeviceptr end = address + bytes;
    for (unsigned int i = 0; address < end && i < MAPPINGS_MAX_A_CALL; i++) {
        if (!pointers_take(SPACE_MAPPING, address, &mapping) || mapping.bytes == 0)
            break;
        struct object *object = &objects[mapping.owner];
        object->mappings--;
        if (object->imported)
            back += mapping.bytes;
        back += settle((uint32_t)mapping.owner);
        address += mapping.bytes;
    }
    return back;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    NEED(cuMemUnmap);
    uint64_t back = 0;
    local_lock_take(&lock);
    CUresult result = REAL(cuMemUnmap)(address, bytes);
    if (result == CUDA_SUCCESS)
        back = forget_mappings(address, bytes);
    local_lock_drop(&lock);
    memory_discharge(back, USAGE_DEVICE);
    return result;
}

CUresult cuImportExternalMemory(CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description)
{
    NEED(cuImportExternalMemory);
    if (!description || !process_limits_memory())
        return REAL(cuImportExternalMemory)(memory, description);
    uint64_t taken = memory_taken(description->bytes);
    if (!memory_charge(taken, USAGE_DEVICE))
        return memory_refused();
    CUresult result = REAL(cuImportExternalMemory)(memory, description);
    struct pointer pointer = {result == CUDA_SUCCESS ? (uint64_t)(uintptr_t)*memory : 0, taken, 0, POINTER_EXTERNAL};
    if (result == CUDA_SUCCESS && pointers_put(SPACE_EXTERNAL, pointer))
        return result;
    memory_discharge(taken, USAGE_DEVICE);
    return result;
}

CUresult cuDestroyExternalMemory(CUexternalMemory memory)
{
    NEED(cuDestroyExternalMemory);
    struct pointer pointer;
    int known = pointers_take(SPACE_EXTERNAL, (uint64_t)(uintptr_t)memory, &pointer);
    CUresult result = REAL(cuDestroyExternalMemory)(memory);
    if (known && result == CUDA_SUCCESS)
        memory_discharge(pointer.bytes, USAGE_DEVICE);
    else if (known)
        pointers_put(SPACE_EXTERNAL, pointer);
    return result;
}

/* What the parts of the fake driver share: its objects, the lock around them, and who may call at all. */
#ifndef TOPOALLOC_TESTS_DRIVER_H
#define TOPOALLOC_TESTS_DRIVER_H

#include "cuda_facts.h"
#include "state.h"

#include <pthread.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))
#define QUEUE_MAX 1024 /* launches waiting in one stream; the next one waits for room, as with the real driver */
#define SM_COUNT 132u
#define THREADS_PER_SM 2048u
#define CONTEXT_BYTES ((uint64_t)500 << 20)

struct CUstream_st {
    uint64_t magic;
    CUcontext context;
    CUstream next;
    unsigned flags;
    int priority;
    uint64_t end;              /* of all its work so far, on the process's clock */
    uint64_t queue[QUEUE_MAX]; /* ends of the latest launches */
    uint64_t queued;
    CUgraph capture; /* NULL: not capturing */
    bool capture_origin, capture_invalid;
    int capture_mode;
    pthread_t capture_thread;
    CUgraphNode capture_last;
};

struct CUctx_st {
    uint64_t magic, serial;
    CUcontext next;
    unsigned flags;
    bool primary;
    struct CUstream_st legacy;
    CUstream streams;
    CUmodule modules;
    uint64_t blocking_end; /* of all streams the legacy stream waits for */
    uint64_t stack_bytes, heap_bytes, printf_bytes;
    uint64_t limits_taken;
};

struct CUevent_st {
    uint64_t magic;
    unsigned flags;
    bool recorded;
    uint64_t moment;
    CUgraph capture; /* recorded in a capture: its graph and the node it stands behind */
    CUgraphNode capture_last;
};

struct CUfunc_st {
    CUfunction next;
    CUmodule module;
    CUlibrary library;
    char name[64];
    uint64_t duration_ns;
    enum { FIXED, PER_BLOCK, FIRST_PARAMETER } timing;
};

struct CUmod_st {
    uint64_t magic;
    CUcontext context;
    CUmodule next;
    CUlibrary library;
    uint64_t bytes, taken;
    bool lazy;
    CUfunction functions;
    CUdeviceptr globals;
};

enum allocation_kind { PLAIN, PITCHED, MANAGED_MEMORY, POOLED, OF_GRAPH, OF_IPC, OF_HOST, OF_EXTERNAL, MAPPED };
struct block;
struct allocation {
    struct allocation *next;
    CUdeviceptr address;
    uint64_t size, taken;
    enum allocation_kind kind;
    CUcontext context;
    struct block *block; /* small ones: the granule they lie in */
    CUmemoryPool pool;
    CUgraphExec exec;
    void *owner; /* external memory, physical handle */
};

struct guard {
    CUresult error;
};
struct guard guard_enter(void);
void guard_leave(struct guard *guard);
/* Holds the driver's lock up to the end of the function; returns the driver's error where it cannot be used. */
#define GUARD                                                                        \
    struct guard guard __attribute__((cleanup(guard_leave), unused)) = guard_enter(); \
    if (guard.error)                                                                 \
    return guard.error
#define GUARD_CONTEXT                         \
    GUARD;                                    \
    CUcontext context = context_current();    \
    if (!context)                             \
    return CUDA_ERROR_INVALID_CONTEXT

/* contexts.c */
CUcontext context_current(void);
CUcontext context_of_device(void); /* the primary one, or NULL */
bool context_known(CUcontext context);

/* streams.c */
CUstream stream_of(CUstream handle); /* the object behind a handle, NULL: no such stream in the current context */
void streams_begin(CUcontext context);
void streams_end(CUcontext context);
CUresult stream_work(CUstream stream, uint64_t duration_ns); /* places work; NULL capture only */
uint64_t context_end(CUcontext context);                     /* of all its work */
CUresult capture_forbids(void);                              /* 900 where an unsafe call breaks a capture */
CUstream per_thread(CUstream stream);

/* capture.c */
int capture_mode_of_thread(void);

/* memory.c */
struct allocation *allocation_find(CUdeviceptr address);
struct allocation *allocation_around(CUdeviceptr address);
struct allocation *allocation_add(CUdeviceptr address, uint64_t size, enum allocation_kind kind);
void allocation_drop(struct allocation *allocation);
void allocations_end(CUcontext context);
CUresult memory_take(uint64_t size, enum allocation_kind kind, CUdeviceptr *address);
CUresult memory_give(struct allocation *allocation);
CUdeviceptr address_new(uint64_t size, uint64_t align);
void address_gone(CUdeviceptr address, uint64_t size);
uint64_t round_up(uint64_t value, uint64_t unit);

/* pools.c */
void pools_trim(void); /* what a synchronisation gives back */
CUresult pool_allocate(CUmemoryPool pool, uint64_t size, CUdeviceptr *address);
void pool_free(struct allocation *allocation);
CUmemoryPool pool_current(void);

/* modules.c */
void modules_end(CUcontext context);
CUresult function_ready(CUfunction function, CUfunction *loaded);
uint64_t function_duration(CUfunction function, const unsigned grid[3], void **parameters);

/* graphs.c */
CUgraph graph_new(void);
void graph_destroy(CUgraph graph);
CUgraphNode graph_add(CUgraph graph, int type, const CUgraphNode *after, size_t count);
void node_set_duration(CUgraphNode node, uint64_t duration_ns);
CUresult node_set_allocation(CUgraphNode node, uint64_t bytes, CUdeviceptr *address);
void node_set_free(CUgraphNode node, CUdeviceptr address);
void graph_memory_freed(struct allocation *allocation);

/* entry_points.c */
CUresult entry_point(const char *base, void **function, int version, int per_thread, int *status);

#endif

/* The shim's life inside one process: which limits hold, when they are looked at again, fork, and the few words said. */
#ifndef TOPOALLOC_PROCESS_H
#define TOPOALLOC_PROCESS_H

#include "share.h"

#include <stdatomic.h>
#include <stdint.h>

enum say { SAY_NO_SHARE, SAY_NO_USAGE, SAY_SLOTS_FULL, SAY_UNKNOWN_ABI, SAY_LIMIT, SAYS };

/* One line on stderr, each kind once in a process. errno is kept. */
void process_say_once(enum say what, const char *detail);

/* Limits of this moment. `memory_bytes` 0 refuses everything, SHARE_MEMORY_ALL nothing. */
struct process_limits {
    _Atomic uint64_t memory_bytes;
    _Atomic uint64_t context_bytes;
    _Atomic uint32_t cores;
    _Atomic uint32_t cores_max;
};
extern struct process_limits process_limits;
extern _Atomic int process_started; /* 0 not yet, 1 limits are known */
extern _Atomic uint32_t process_generation; /* changes in a forked child */

void process_start(void); /* slow path */
void process_watch(void); /* starts the thread that looks again; once there is a context */

static inline void process_ensure(void)
{
    if (!atomic_load_explicit(&process_started, memory_order_acquire))
        process_start();
}

static inline int process_limits_memory(void)
{
    process_ensure();
    return atomic_load_explicit(&process_limits.memory_bytes, memory_order_relaxed) != SHARE_MEMORY_ALL;
}

static inline int process_limits_cores(void)
{
    process_ensure();
    return atomic_load_explicit(&process_limits.cores, memory_order_relaxed) != SHARE_CORES_ALL;
}

int process_share_path(const char *file, char *path, unsigned int bytes); /* a file of the share directory */
uint64_t process_now_ns(void);

#endif

/* The usage file: what the processes of one container tell each other, and the agent reads back.
 *
 * The agent makes it (USAGE_FILE_BYTES, zeroed, then the header), every process of the container maps it shared. It
 * lies in the tenant's hands: limits are never read from it, and the agent parses it with fixed bounds and believes
 * nothing. usage.py and told_files.py of topoalloc/sharing know the same layouts; tests/sharing compares them.
 */
#ifndef TOPOALLOC_USAGE_LAYOUT_H
#define TOPOALLOC_USAGE_LAYOUT_H

#include <stdatomic.h>
#include <stdint.h>

#define USAGE_MAGIC UINT64_C(0x3145474153554154) /* "TAUSAGE1", little endian */
#define USAGE_VERSION 1u
#define USAGE_SLOTS_MAX 1000u /* processes of one container that use CUDA at a time */
#define USAGE_FILE_BYTES 131072u

/* One process. It is alive as long as it holds the write lock (an open file description lock) on byte
 * USAGE_LOCKS_AT + index of this file, which lies beyond its end. */
struct usage_slot {
    _Atomic uint64_t explicit_bytes;  /* device memory it asked for, as the driver takes it */
    _Atomic uint64_t implicit_bytes;  /* contexts, modules, stacks: what the driver took beside */
    _Atomic uint64_t managed_bytes;   /* unified memory, part of explicit_bytes: the driver's figures never show it */
    _Atomic uint64_t gpu_time_ns;     /* GPU time charged since the process began */
    _Atomic uint64_t waited_ns;       /* time its launches were held back */
    _Atomic uint64_t launches;        /* kernels and graphs launched while a core limit was on */
    _Atomic uint64_t refused;         /* allocations refused by the limit */
    _Atomic uint64_t refused_bytes;   /* size of the latest of these */
    _Atomic uint32_t pid;             /* in the container's PID namespace; for people only */
    _Atomic uint32_t state;           /* 0 free, 1 in use */
    _Atomic uint32_t unhooked;        /* driver entry points handed out that are of a hooked name but an unknown ABI */
    _Atomic uint32_t overheads;       /* 1: implicit_bytes is measured, 0: it is the configured guess */
    _Atomic uint64_t reserved[6];
};

struct usage_header {
    uint64_t magic;
    uint32_t version;
    uint32_t slots;
    _Atomic uint64_t total_bytes;    /* sum over the slots in use of explicit_bytes + implicit_bytes */
    _Atomic uint32_t lock;           /* 0 free, else 1 + index of the slot whose process holds it */
    _Atomic uint32_t lock_waiters;
    _Atomic uint64_t paid_until_ns;  /* CLOCK_MONOTONIC time up to which the container's launches have been paid */
    _Atomic uint64_t gone_gpu_time_ns; /* of processes that ended */
    _Atomic uint64_t gone_waited_ns;
    _Atomic uint64_t gone_launches;
    _Atomic uint64_t gone_refused;
    _Atomic uint64_t wanting_at_ns;  /* CLOCK_MONOTONIC time a launch was last held back: the container wants more */
    _Atomic uint64_t reserved[6];
};

#define USAGE_LOCKS_AT 0x40000000L

struct usage_file {
    struct usage_header header;
    struct usage_slot slots[USAGE_SLOTS_MAX];
};

_Static_assert(sizeof(struct usage_slot) == 128, "the layout is a contract");
_Static_assert(sizeof(struct usage_header) == 128, "the layout is a contract");
_Static_assert(sizeof(struct usage_file) <= USAGE_FILE_BYTES, "the layout is a contract");

/* The pace file: what the agent allows at this moment. Read-only in the container, written in place by the agent
 * (one aligned 8-byte write per field), mapped shared by the shim. Absent: `cores` of the share file stays. */
#define PACE_MAGIC UINT64_C(0x3145434150415401) /* "\x01TAPACE1" */
struct pace_file {
    uint64_t magic;
    _Atomic uint64_t cores_now;    /* hundredths of a percent of GPU time, 1..10000 */
    _Atomic uint64_t written_at_ns; /* CLOCK_MONOTONIC; older than PACE_STALE_NS: `cores` of the share file stays */
};
#define PACE_STALE_NS UINT64_C(3000000000)

/* The neighbours file: what the agent sees of the GPU's other shares, once a second; kept and written as the pace file. */
#define NEIGHBOURS_MAGIC UINT64_C(0x3148474941544101) /* "\x01ATAIGH1" */
struct neighbours_file {
    uint64_t magic;
    _Atomic uint64_t cores;      /* the most they took together within NEIGHBOURS_SEEN_NS, in hundredths of a percent */
    _Atomic uint64_t seen_at_ns; /* CLOCK_MONOTONIC time up to which that is known; 0: not known */
};
#define NEIGHBOURS_SEEN_NS UINT64_C(10000000000)
#define NEIGHBOURS_STALE_NS UINT64_C(5000000000)

/* The turn file: which part of every period of CLOCK_MONOTONIC is this share's turn, while those who are at work want
 * more of the GPU than there is; kept and written as the pace file. */
#define TURN_MAGIC UINT64_C(0x314E525554415401) /* "\x01TATURN1" */
struct turn_file {
    uint64_t magic;
    _Atomic uint64_t turn; /* its beginning in us in the upper 32 bits, its length in the lower ones; 0: no turns */
    _Atomic uint64_t written_at_ns; /* CLOCK_MONOTONIC; older than PACE_STALE_NS: no turns */
};
#define TURN_PERIOD_NS UINT64_C(100000000)

#endif

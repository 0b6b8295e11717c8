/* Launches of one thread on one stream, right after each other, with an event before the first and one after the last. */
#ifndef TOPOALLOC_BURSTS_H
#define TOPOALLOC_BURSTS_H

#include "driver_api.h"

#define BURSTS_MAX 64
#define BURST_LAUNCHES_MAX 16u
#define BURST_NS UINT64_C(300000)
#define HOST_PAUSE_NS UINT64_C(200000) /* between two launches of a burst: the GPU was idle, and that is not the kernel's */
#define OPEN_MAX 8 /* streams of one thread that are timed at once */

/* BUSY: a thread is in the middle of a call with it, and nobody else touches it, however long that call takes. OPEN: it
 * waits for its thread's next launch, and may be taken away: by whoever destroys its stream, or when it seems lost. */
enum burst_state { BURST_FREE, BURST_BUSY, BURST_OPEN, BURST_PENDING };

struct burst {
    _Atomic int state;
    uint64_t context;
    CUstream stream;
    CUevent begin, end;
    uint64_t first_at_ns, last_at_ns;
    uint64_t predicted_ns, charged_ns;
    uint64_t sequence;
    unsigned int launches, unsteady;
    int single; /* ended with its first launch, since the next may be long in coming */
    int ahead; /* its last launch went while the GPU had not come to its first */
    int first_of_entry; /* one launch of something unknown */
    int is_marker;      /* timed to see when the GPU comes to it; it may have waited for the program */
    int is_forsaken;    /* it was late, was waited for, and may depend on a launch to come: nobody waits again */
    uint32_t entries[BURST_LAUNCHES_MAX];
    uint64_t predictions_ns[BURST_LAUNCHES_MAX];
};

extern struct burst bursts[BURSTS_MAX];

extern __thread struct own_bursts {
    uint32_t generation;
    uint32_t tick;
    uint32_t launches;
    int sparse; /* the program paused before its latest launch */
    uint64_t latest_at_ns;
    int is_marking; /* the next one is a marker */
    int open[OPEN_MAX]; /* -1: none; else a burst, this thread's as long as it has the sequence it had */
    uint64_t sequence[OPEN_MAX];
    uint64_t last_at_ns[OPEN_MAX];
    CUstream stream[OPEN_MAX];
} bursts_mine;

int bursts_may_time(void);
void bursts_renew_mine(void); /* in a forked child nothing is open */

int bursts_open(CUstream stream, uint64_t now_ns); /* -1: none is to be had */
int bursts_begin_in(int slot, CUstream stream, uint64_t now_ns, int is_marker); /* the same, kept among this thread's */
int bursts_find_open(CUstream stream, uint64_t now_ns, int *slot);
int bursts_slot_of(int burst);
struct burst *bursts_hold(int slot);

void bursts_finish(struct burst *burst); /* its last launch has gone */
void bursts_close_all(void);             /* this thread's */
void bursts_abandon(struct burst *burst);
void bursts_forget_events(struct burst *burst, uint64_t context);

#endif

/* Containers of one GPU that take turns on it, where the agent gave them a file to agree in.
 *
 * Work of two containers that is queued at once costs both: the GPU changes between contexts every two milliseconds or
 * so, and that takes a tenth of it. So each waits for the end of what the others have queued, as predicted. Whoever does
 * not keep to it gains nothing: the limits are elsewhere, and a wait for others is bounded. */
#ifndef TOPOALLOC_TURN_H
#define TOPOALLOC_TURN_H

#include <stdatomic.h>
#include <stdint.h>

#define TURN_MAGIC UINT64_C(0x314e525554415401) /* "\x01TATURN1" */
#define TURN_FILE_BYTES 64u

struct turn_file {
    uint64_t magic;
    _Atomic uint64_t queue;  /* whose work is queued, and until when it is predicted to run: see turn_word */
    _Atomic uint64_t wanted; /* who waited for it last, and when */
};

#define TURN_NS UINT64_C(8000000)         /* of one container before another that waits is let in */
#define TURN_HANDOVER_NS UINT64_C(150000) /* the other wakes up within this */
#define TURN_EARLY_NS UINT64_C(60000)     /* a sleep ends this much late */
#define TURN_WAIT_MAX_NS UINT64_C(100000000)
#define TURN_FRESH_NS UINT64_C(20000000)  /* a wish is this long alive */

enum turn_answer { TURN_GO, TURN_GO_FIRST, TURN_WAIT };

struct turn_view {
    uint64_t queue, wanted;
    uint16_t own;
    uint64_t now_ns, since_ns; /* since: the beginning of our present turn */
};

/* Sixteen bits of who, 48 of when in steps of 64 ns; compared modulo 2^48. */
uint64_t turn_word(uint16_t who, uint64_t at_ns);
/* Pure. `next`: the queue after a launch of `gpu_ns`; `until_ns`: when to ask again. */
enum turn_answer turn_decide(const struct turn_view *view, uint64_t gpu_ns, uint64_t *next, uint64_t *until_ns);

void turn_open(void);
int turn_must_wait(uint64_t gpu_ns, uint64_t now_ns); /* 0: it goes, and is queued */
void turn_take(uint64_t gpu_ns);                      /* waits for the turn, at most TURN_WAIT_MAX_NS, and queues */
int turn_is_contended(uint64_t now_ns);

#endif

#include "audit.h"

#include "pace.h"
#include "usage.h"

#include <stdatomic.h>
#include <string.h>

#define WINDOW_NS UINT64_C(500000000)
#define FACTOR_MAX (256u * AUDIT_ONE)
#define SPARED_MAX_NS INT64_C(100000000) /* GPU time charged too much that is made good later, at most */
#define OWED_MAX_NS INT64_C(10000000000) /* and too little */
#define REPAID_PART 4 /* of what a window took: what is owed is paid in parts, so that nothing stands still for it */

static struct audit_window filling, waiting;
static uint64_t filling_since_ns, waiting_from_ns, waiting_until_ns; /* `until` 0: nothing waits */
static uint64_t siblings_ns, waiting_siblings_ns; /* GPU time of the container's other processes: so far, in the window */
static int64_t balance_ns;
static _Atomic uint32_t factor = AUDIT_ONE;

uint32_t audit_factor_after(uint32_t before, uint64_t took_ns, uint64_t predicted_ns)
{
    uint64_t wanted = predicted_ns ? took_ns * AUDIT_ONE / predicted_ns : AUDIT_ONE;
    if (wanted < AUDIT_ONE)
        wanted = AUDIT_ONE;
    if (wanted > FACTOR_MAX)
        wanted = FACTOR_MAX;
    return (uint32_t)((before + wanted + 1) / 2);
}

uint32_t audit_factor(void)
{
    return atomic_load_explicit(&factor, memory_order_relaxed);
}

static void judge(uint64_t now_ns)
{
    atomic_store_explicit(&factor, audit_factor_after(audit_factor(), waiting.took_ns, waiting.predicted_ns),
                          memory_order_relaxed);
    balance_ns += (int64_t)waiting.took_ns - (int64_t)waiting.charged_ns;
    if (balance_ns > 0) {
        int64_t part = (int64_t)waiting.took_ns / REPAID_PART;
        int64_t paid = balance_ns < part ? balance_ns : part;
        pace_charge((uint64_t)paid, now_ns);
        balance_ns -= paid;
    }
    if (balance_ns > OWED_MAX_NS)
        balance_ns = OWED_MAX_NS;
    if (balance_ns < -SPARED_MAX_NS)
        balance_ns = -SPARED_MAX_NS;
}

static void look_at_waiting(uint64_t now_ns)
{
    uint32_t neighbours;
    if (pace_neighbours(waiting_until_ns, &neighbours)) {
        int known = now_ns - waiting_from_ns <= NEIGHBOURS_SEEN_NS;
        if (known && neighbours < PACE_ALONE_CORES && !waiting_siblings_ns)
            judge(now_ns);
        waiting_until_ns = 0;
    } else if (now_ns - waiting_until_ns > NEIGHBOURS_STALE_NS) {
        waiting_until_ns = 0; /* the agent is away */
    }
}

static void begin_to_wait(uint64_t now_ns)
{
    uint64_t before_ns = siblings_ns;
    siblings_ns = usage_siblings_gpu_time_ns();
    waiting_siblings_ns = siblings_ns > before_ns ? siblings_ns - before_ns : 0;
    waiting = filling;
    waiting_from_ns = filling_since_ns;
    waiting_until_ns = filling_since_ns = now_ns;
    memset(&filling, 0, sizeof filling);
}

void audit_timed(const struct audit_window *launches, uint64_t now_ns)
{
    if (!filling_since_ns)
        filling_since_ns = now_ns;
    filling.took_ns += launches->took_ns;
    filling.predicted_ns += launches->predicted_ns;
    filling.charged_ns += launches->charged_ns;
    if (waiting_until_ns)
        look_at_waiting(now_ns);
    if (!waiting_until_ns && now_ns - filling_since_ns >= WINDOW_NS)
        begin_to_wait(now_ns);
}

void audit_forget(void)
{
    memset(&filling, 0, sizeof filling);
    filling_since_ns = waiting_until_ns = 0;
    balance_ns = 0;
    atomic_store(&factor, AUDIT_ONE);
}

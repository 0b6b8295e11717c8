#include "audit.h"

#include "kernels.h"
#include "pace.h"
#include "usage.h"

#include <stdatomic.h>
#include <string.h>

#define WINDOW_NS UINT64_C(500000000)
#define KERNELS_MAX 64u /* told apart in one window; of further ones only the sum is made good */
#define SPARED_MAX_NS INT64_C(100000000) /* GPU time charged too much that is made good later, at most */
#define OWED_MAX_NS INT64_C(10000000000) /* and too little */
#define REPAID_PART 4 /* of what a window took: what is owed is paid in parts, so that nothing stands still for it */

struct window {
    uint64_t from_ns, until_ns; /* `until` 0: not closed */
    uint64_t siblings_ns;       /* GPU time of the container's other processes in it */
    struct audit_sums sums;
    uint32_t count;
    struct {
        uint32_t kernel, launches;
        uint64_t took_ns;
    } of[KERNELS_MAX];
};

static struct window filling, waiting;
static uint64_t siblings_ns;
static int64_t balance_ns;

static void judge_kernels(void)
{
    for (uint32_t i = 0; i < waiting.count; i++) {
        struct estimate *kernel = &kernels[waiting.of[i].kernel];
        uint32_t before_ns = atomic_load_explicit(&kernel->audited_ns, memory_order_relaxed);
        if (!before_ns)
            before_ns = atomic_load_explicit(&kernel->ns_believed, memory_order_relaxed);
        uint32_t mean_ns = estimate_mean_after(before_ns, waiting.of[i].took_ns, waiting.of[i].launches);
        if (atomic_load_explicit(&kernel->unsteady, memory_order_relaxed))
            atomic_store_explicit(&kernel->audited_ns, mean_ns, memory_order_relaxed);
    }
}

static void judge(uint64_t now_ns)
{
    judge_kernels();
    balance_ns += (int64_t)waiting.sums.took_ns - (int64_t)waiting.sums.charged_ns;
    if (balance_ns > 0) {
        int64_t part = (int64_t)waiting.sums.took_ns / REPAID_PART;
        int64_t paid = balance_ns < part ? balance_ns : part;
        struct credit_terms terms = pace_terms(now_ns);
        pace_charge((uint64_t)paid, now_ns, &terms);
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
    if (pace_neighbours(waiting.until_ns, &neighbours)) {
        int known = now_ns - waiting.from_ns <= NEIGHBOURS_SEEN_NS;
        if (known && neighbours < PACE_ALONE_CORES && !waiting.siblings_ns)
            judge(now_ns);
        waiting.until_ns = 0;
    } else if (now_ns - waiting.until_ns > NEIGHBOURS_STALE_NS) {
        waiting.until_ns = 0; /* the agent is away */
    }
}

static void begin_to_wait(uint64_t now_ns)
{
    uint64_t before_ns = siblings_ns;
    siblings_ns = usage_siblings_gpu_time_ns();
    waiting = filling;
    waiting.until_ns = now_ns;
    waiting.siblings_ns = siblings_ns > before_ns ? siblings_ns - before_ns : 0;
    memset(&filling, 0, sizeof filling);
    filling.from_ns = now_ns;
}

void audit_timed(uint32_t kernel, uint64_t took_ns)
{
    uint32_t at = 0;
    while (at < filling.count && filling.of[at].kernel != kernel)
        at++;
    if (at == KERNELS_MAX)
        return;
    if (at == filling.count) {
        filling.count++;
        filling.of[at].kernel = kernel;
    }
    filling.of[at].launches++;
    filling.of[at].took_ns += took_ns;
}

void audit_add(const struct audit_sums *burst, uint64_t now_ns)
{
    if (!filling.from_ns)
        filling.from_ns = now_ns;
    filling.sums.took_ns += burst->took_ns;
    filling.sums.charged_ns += burst->charged_ns;
    if (waiting.until_ns)
        look_at_waiting(now_ns);
    if (!waiting.until_ns && now_ns - filling.from_ns >= WINDOW_NS)
        begin_to_wait(now_ns);
}

/* In a forked child. What was learned of kernels stays: its code is the same. */
void audit_forget(void)
{
    memset(&filling, 0, sizeof filling);
    memset(&waiting, 0, sizeof waiting);
    siblings_ns = 0;
    balance_ns = 0;
}

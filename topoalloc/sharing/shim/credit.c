#include "credit.h"

#include "share.h"
#include "usage_layout.h"

/* Time in which the bucket fills: all of it, or what lies in turns. `filling_at` counts it up to a time, and
 * `time_of` is the first time at which so much of it is over; it lies in a turn. */
static uint64_t filling_at(uint64_t time_ns, const struct credit_terms *terms)
{
    if (!terms->turn_ns)
        return time_ns;
    uint64_t in_period_ns = time_ns % TURN_PERIOD_NS, over_ns = 0;
    if (in_period_ns > terms->from_ns)
        over_ns = in_period_ns - terms->from_ns;
    return time_ns / TURN_PERIOD_NS * terms->turn_ns + (over_ns < terms->turn_ns ? over_ns : terms->turn_ns);
}

static uint64_t time_of(uint64_t filling_ns, const struct credit_terms *terms)
{
    if (!terms->turn_ns)
        return filling_ns;
    return filling_ns / terms->turn_ns * TURN_PERIOD_NS + terms->from_ns + filling_ns % terms->turn_ns;
}

/* How long the bucket has to fill for so much GPU time. */
static uint64_t filling_for(uint64_t gpu_ns, const struct credit_terms *terms)
{
    uint64_t even_ns = gpu_ns * SHARE_CORES_ALL / terms->cores;
    if (!terms->turn_ns)
        return even_ns;
    uint64_t in_turns_ns =
        even_ns / TURN_PERIOD_NS * terms->turn_ns + even_ns % TURN_PERIOD_NS * terms->turn_ns / TURN_PERIOD_NS;
    return in_turns_ns > gpu_ns ? in_turns_ns : gpu_ns; /* no more than the GPU has in that time */
}

uint64_t credit_paid_after(uint64_t paid_until_ns, uint64_t now_ns, uint64_t gpu_ns, const struct credit_terms *terms)
{
    uint64_t now = filling_at(now_ns, terms), saved = filling_for(CREDIT_SAVED_NS, terms);
    uint64_t from = paid_until_ns > now_ns + CREDIT_DEBT_MAX_NS ? now : filling_at(paid_until_ns, terms);
    if (from + saved < now)
        from = now - saved;
    /* A debt beyond it would be taken for a broken file, and forgotten. */
    uint64_t until_ns = time_of(from + filling_for(gpu_ns, terms), terms), latest_ns = now_ns + CREDIT_DEBT_MAX_NS;
    return until_ns > latest_ns ? latest_ns : until_ns;
}

static uint64_t pause_filling(int crowded, const struct credit_terms *terms)
{
    uint64_t usual = filling_for(CREDIT_RESUME_NS, terms);
    if (!crowded)
        return usual;
    uint64_t longer = filling_for(CREDIT_PAUSE_NS * terms->cores / SHARE_CORES_ALL, terms);
    return longer > usual ? longer : usual;
}

/* When a launch may go that waits for so much of the bucket to be filled, `paid` of it for what went before. */
static uint64_t time_to_go(uint64_t paid, uint64_t pause, const struct credit_terms *terms)
{
    if (!terms->turn_ns)
        return paid + pause;
    uint64_t begin = paid - paid % terms->turn_ns, wanted = paid + pause;
    if (wanted > begin + CREDIT_AHEAD_NS)
        return time_of(wanted - CREDIT_AHEAD_NS, terms);
    uint64_t begins_ns = time_of(begin, terms);
    return begins_ns > CREDIT_EARLY_NS ? begins_ns - CREDIT_EARLY_NS : 0;
}

int credit_may_go(uint64_t paid_until_ns, uint64_t now_ns, const struct credit_terms *terms)
{
    return paid_until_ns > now_ns + CREDIT_DEBT_MAX_NS ||
           time_to_go(filling_at(paid_until_ns, terms), 0, terms) <= now_ns;
}

uint64_t credit_wait_until(uint64_t paid_until_ns, uint64_t now_ns, int waited, int crowded,
                           const struct credit_terms *terms)
{
    if (paid_until_ns > now_ns + CREDIT_DEBT_MAX_NS || (!waited && credit_may_go(paid_until_ns, now_ns, terms)))
        return 0;
    uint64_t at_ns = time_to_go(filling_at(paid_until_ns, terms), pause_filling(crowded, terms), terms);
    return at_ns <= now_ns ? 0 : at_ns;
}

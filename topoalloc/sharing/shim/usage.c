#include "usage.h"

#include "file_facts.h"
#include "local_lock.h"
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef F_OFD_SETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

#define REAP_APART_NS UINT64_C(5000000) /* asking after every process costs more than an allocation */
#define LOCK_SPINS 200
#define LOCK_LOOK_NS 20000000L /* how long the holder of the lock may be silent before it is checked to be alive */
#define LOCK_WAIT_NS UINT64_C(5000000000) /* only a process stopped between two instructions takes that long */
#define REAP_SOME 64u /* processes looked at twice a second: if each of a thousand looked at all, it would be a load */

struct usage_file *_Atomic usage_mapped;
struct usage_slot *_Atomic usage_own;

static struct local_lock joining;
static _Atomic int file = -1;
static dev_t file_device;
static ino_t file_inode;
static _Atomic unsigned int own_index;
static _Atomic unsigned int reap_next;
static uint64_t kept_explicit, kept_implicit; /* by usage_check: what the slot said when it was surely ours */

static void take_off(_Atomic uint64_t *sum, uint64_t bytes)
{
    uint64_t had = atomic_load_explicit(sum, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(sum, &had, had > bytes ? had - bytes : 0, memory_order_relaxed,
                                                  memory_order_relaxed))
        continue;
}

static int is_own_file(int descriptor)
{
    struct stat seen;
    return descriptor >= 0 && facts_of_descriptor(descriptor, &seen) == 0 && seen.st_dev == file_device && seen.st_ino == file_inode;
}

static int slot_lock(int descriptor, unsigned int index, int operation, short type)
{
    struct flock lock;
    memset(&lock, 0, sizeof lock);
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = (off_t)USAGE_LOCKS_AT + (off_t)index;
    lock.l_len = 1;
    if (fcntl(descriptor, operation, &lock) != 0)
        return -1;
    return lock.l_type;
}

/* The kernel drops a lock with its last descriptor: at exit, at exec, and after kill -9. Asked of another file, where
 * the program closed our descriptor and opened one of its own, it would call everybody dead. */
static int is_alive(unsigned int index)
{
    if (index == own_index || !is_own_file(file))
        return 1;
    return slot_lock(file, index, F_OFD_GETLK, F_WRLCK) != F_UNLCK;
}

static void recount(struct usage_file *usage)
{
    uint64_t total = 0;
    for (unsigned int i = 0; i < USAGE_SLOTS_MAX; i++) {
        if (atomic_load(&usage->slots[i].state))
            total += atomic_load(&usage->slots[i].explicit_bytes) + atomic_load(&usage->slots[i].implicit_bytes);
    }
    atomic_store(&usage->header.total_bytes, total);
}

/* Takes the lock of a process that died with it, or that cannot be; what it was about to write is made good by counting
 * anew. */
static int inherit_lock(struct usage_file *usage, uint32_t holder)
{
    int kept = errno, held = holder == 0 || (holder <= USAGE_SLOTS_MAX && is_alive(holder - 1));
    errno = kept;
    if (held)
        return 0;
    if (!atomic_compare_exchange_strong(&usage->header.lock, &holder, own_index + 1))
        return 0;
    recount(usage);
    return 1;
}

/* Held for a few instructions and never over a call of the driver. 0: not to be had, see LOCK_WAIT_NS. By the clock,
 * not by turns: where many processes want it, or signals come often, a turn takes no time. */
static int take(struct usage_file *usage)
{
    struct timespec look = {0, LOCK_LOOK_NS};
    uint64_t began_ns = 0;
    for (int spins = 0;;) {
        uint32_t holder = 0;
        if (atomic_compare_exchange_strong_explicit(&usage->header.lock, &holder, own_index + 1, memory_order_acquire,
                                                    memory_order_relaxed))
            return 1;
        if (spins < LOCK_SPINS) {
            spins++;
            continue;
        }
        uint64_t now_ns = process_now_ns();
        began_ns = began_ns ? began_ns : now_ns;
        if (now_ns - began_ns > LOCK_WAIT_NS)
            return 0;
        atomic_fetch_add(&usage->header.lock_waiters, 1);
        futex_call(&usage->header.lock, FUTEX_WAIT, holder, &look);
        atomic_fetch_sub(&usage->header.lock_waiters, 1);
        if (inherit_lock(usage, atomic_load(&usage->header.lock)))
            return 1;
    }
}

static void drop(struct usage_file *usage)
{
    atomic_store_explicit(&usage->header.lock, 0, memory_order_seq_cst);
    if (atomic_load(&usage->header.lock_waiters))
        futex_call(&usage->header.lock, FUTEX_WAKE, 1, NULL);
}

/* Under the lock. */
static void bury(struct usage_file *usage, struct usage_slot *slot)
{
    take_off(&usage->header.total_bytes, atomic_load(&slot->explicit_bytes) + atomic_load(&slot->implicit_bytes));
    atomic_fetch_add(&usage->header.gone_gpu_time_ns, atomic_load(&slot->gpu_time_ns));
    atomic_fetch_add(&usage->header.gone_waited_ns, atomic_load(&slot->waited_ns));
    atomic_fetch_add(&usage->header.gone_launches, atomic_load(&slot->launches));
    atomic_fetch_add(&usage->header.gone_refused, atomic_load(&slot->refused));
    memset((void *)slot, 0, sizeof *slot);
}

static void reap(unsigned int first, unsigned int most)
{
    struct usage_file *usage = atomic_load(&usage_mapped);
    int kept = errno;
    for (unsigned int i = 0, looked_at = 0; usage && i < USAGE_SLOTS_MAX && looked_at < most; i++) {
        unsigned int at = (first + i) % USAGE_SLOTS_MAX;
        struct usage_slot *slot = &usage->slots[at];
        if (!atomic_load(&slot->state))
            continue;
        looked_at++;
        reap_next = at + 1;
        if (is_alive(at))
            continue;
        if (!take(usage))
            break; /* nor will it be had for the next */
        /* Asked again under the lock: a new process may have taken the slot over, and it holds the lock by then. */
        if (atomic_load(&slot->state) && !is_alive(at))
            bury(usage, slot);
        drop(usage);
    }
    errno = kept;
}

void usage_reap(void)
{
    static _Atomic uint64_t latest_ns;
    uint64_t now_ns = process_now_ns(), before_ns = atomic_load(&latest_ns);
    if (now_ns - before_ns >= REAP_APART_NS && atomic_compare_exchange_strong(&latest_ns, &before_ns, now_ns))
        reap(0, USAGE_SLOTS_MAX);
}

void usage_reap_some(void)
{
    reap(reap_next, REAP_SOME);
}

static int claim_slot(struct usage_file *usage, int descriptor)
{
    unsigned int first = (unsigned int)getpid() % USAGE_SLOTS_MAX; /* so that many starting at once do not queue */
    for (unsigned int tried = 0; tried < USAGE_SLOTS_MAX; tried++) {
        unsigned int index = (first + tried) % USAGE_SLOTS_MAX;
        if (slot_lock(descriptor, index, F_OFD_SETLK, F_WRLCK) < 0)
            continue;
        own_index = index;
        struct usage_slot *slot = &usage->slots[index];
        /* Who had this slot before may have died holding the lock, and under this slot's name it is ours now. */
        int inherited = atomic_load(&usage->header.lock) == index + 1;
        int locked = inherited || take(usage);
        if (inherited)
            recount(usage);
        if (locked && atomic_load(&slot->state))
            bury(usage, slot);
        atomic_store(&slot->pid, (uint32_t)getpid());
        atomic_store(&slot->state, 1);
        if (locked)
            drop(usage);
        atomic_store(&usage_own, slot);
        return 1;
    }
    return 0;
}

/* Has the file's memory now, when it can still be refused, and charged to this container and not to the agent, which
 * made the file of one page. A page that cannot be had when it is touched ends the process. */
static int has_room(int descriptor)
{
    if (fallocate(descriptor, 0, 0, (off_t)USAGE_FILE_BYTES) == 0)
        return 1;
    return errno != ENOSPC && errno != EDQUOT && errno != ENOMEM; /* a file system that cannot say is believed */
}

static int join_file(void)
{
    char path[256];
    struct stat seen;
    if (!process_share_path("usage", path, sizeof path))
        return 0;
    int descriptor = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (descriptor < 0)
        return 0;
    void *place = MAP_FAILED;
    if (facts_of_descriptor(descriptor, &seen) == 0 && S_ISREG(seen.st_mode) &&
        seen.st_size >= (off_t)USAGE_FILE_BYTES && has_room(descriptor))
        place = mmap(NULL, USAGE_FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    struct usage_file *usage = place;
    if (place == MAP_FAILED || usage->header.magic != USAGE_MAGIC || usage->header.version != USAGE_VERSION) {
        if (place != MAP_FAILED)
            munmap(place, USAGE_FILE_BYTES);
        close(descriptor);
        return 0;
    }
    file = descriptor;
    file_device = seen.st_dev;
    file_inode = seen.st_ino;
    if (!claim_slot(usage, descriptor)) {
        process_say_once(SAY_SLOTS_FULL, path);
        munmap(place, USAGE_FILE_BYTES);
        close(descriptor);
        file = -1;
        return 0;
    }
    atomic_store(&usage_mapped, usage);
    return 1;
}

static int join_alone(void)
{
    void *place = mmap(NULL, USAGE_FILE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED)
        return 0;
    struct usage_file *usage = place;
    own_index = 0;
    atomic_store(&usage->slots[0].state, 1);
    atomic_store(&usage_own, &usage->slots[0]);
    atomic_store(&usage_mapped, usage);
    return 1;
}

int usage_join(int alone)
{
    int kept = errno;
    local_lock_take(&joining);
    int joined = atomic_load(&usage_mapped) != NULL || join_file() || (alone && join_alone());
    local_lock_drop(&joining);
    errno = kept;
    return joined;
}

void usage_forget(void)
{
    int kept = errno;
    local_lock_forget(&joining);
    struct usage_file *usage = atomic_exchange(&usage_mapped, NULL);
    atomic_store(&usage_own, NULL);
    /* The descriptor shares the parent's lock: while it is open here the parent would seem alive. */
    if (is_own_file(file))
        close(file);
    file = -1;
    if (usage)
        munmap(usage, USAGE_FILE_BYTES);
    errno = kept;
}

/* A program that closes all descriptors it does not know (daemons do) lets go of our lock. */
void usage_check(void)
{
    int kept = errno;
    local_lock_take(&joining);
    struct usage_file *usage = atomic_load(&usage_mapped);
    struct usage_slot *old = atomic_load(&usage_own);
    if (usage && old && file >= 0 && !is_own_file(file)) {
        char path[256];
        file = -1;
        if (process_share_path("usage", path, sizeof path))
            file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        /* The slot may have been buried and taken in between: a new one gets what the old one had. */
        int locked = is_own_file(file) && slot_lock(file, own_index, F_OFD_SETLK, F_WRLCK) >= 0;
        int buried = !locked || !atomic_load(&old->state);
        if (buried && is_own_file(file) && (locked || claim_slot(usage, file)) && take(usage)) {
            struct usage_slot *own = atomic_load(&usage_own);
            atomic_store(&own->pid, (uint32_t)getpid());
            atomic_store(&own->state, 1);
            atomic_fetch_add(&own->explicit_bytes, kept_explicit);
            atomic_fetch_add(&own->implicit_bytes, kept_implicit);
            recount(usage);
            drop(usage);
        }
    } else if (old) {
        kept_explicit = atomic_load(&old->explicit_bytes);
        kept_implicit = atomic_load(&old->implicit_bytes);
    }
    local_lock_drop(&joining);
    errno = kept;
}

#define NOT_TO_BE_HAD (-1)

static int try_reserve(struct usage_file *usage, uint64_t bytes, uint64_t limit_bytes, enum usage_kind kind)
{
    struct usage_slot *own = atomic_load(&usage_own);
    if (!own || bytes > limit_bytes)
        return 0;
    if (!take(usage))
        return NOT_TO_BE_HAD;
    uint64_t total = atomic_load_explicit(&usage->header.total_bytes, memory_order_relaxed);
    int fits = total <= limit_bytes - bytes;
    if (fits) { /* added, not stored: what is given back without the lock, see usage_release, must not be lost */
        atomic_fetch_add_explicit(kind == USAGE_IMPLICIT ? &own->implicit_bytes : &own->explicit_bytes, bytes,
                                  memory_order_relaxed);
        if (kind == USAGE_MANAGED)
            atomic_fetch_add_explicit(&own->managed_bytes, bytes, memory_order_relaxed);
        atomic_fetch_add_explicit(&usage->header.total_bytes, bytes, memory_order_relaxed);
    }
    drop(usage);
    return fits;
}

int usage_reserve(uint64_t bytes, uint64_t limit_bytes, enum usage_kind kind)
{
    struct usage_file *usage = atomic_load_explicit(&usage_mapped, memory_order_acquire);
    if (!usage)
        return 0;
    int reserved = try_reserve(usage, bytes, limit_bytes, kind);
    if (reserved == 0) {
        usage_reap();
        reserved = try_reserve(usage, bytes, limit_bytes, kind);
    }
    return reserved == 1;
}

/* What is given back counts, whether the lock can be had or not. */
void usage_release(uint64_t bytes, enum usage_kind kind)
{
    struct usage_file *usage = atomic_load_explicit(&usage_mapped, memory_order_acquire);
    struct usage_slot *own = atomic_load(&usage_own);
    if (!usage || !own || !bytes)
        return;
    int locked = take(usage);
    take_off(kind == USAGE_IMPLICIT ? &own->implicit_bytes : &own->explicit_bytes, bytes);
    if (kind == USAGE_MANAGED)
        take_off(&own->managed_bytes, bytes);
    take_off(&usage->header.total_bytes, bytes);
    if (locked)
        drop(usage);
}

void usage_set_implicit(uint64_t bytes, int measured)
{
    struct usage_file *usage = atomic_load_explicit(&usage_mapped, memory_order_acquire);
    struct usage_slot *own = atomic_load(&usage_own);
    if (!usage || !own || !take(usage))
        return;
    uint64_t had = atomic_exchange(&own->implicit_bytes, bytes);
    take_off(&usage->header.total_bytes, had);
    atomic_fetch_add(&usage->header.total_bytes, bytes);
    atomic_store(&own->overheads, measured ? 1u : 0u);
    drop(usage);
}

uint64_t usage_total(void)
{
    struct usage_file *usage = atomic_load_explicit(&usage_mapped, memory_order_acquire);
    return usage ? atomic_load(&usage->header.total_bytes) : 0;
}

uint64_t usage_siblings_gpu_time_ns(void)
{
    struct usage_file *usage = atomic_load_explicit(&usage_mapped, memory_order_acquire);
    struct usage_slot *own = atomic_load_explicit(&usage_own, memory_order_relaxed);
    if (!usage)
        return 0;
    uint64_t sum_ns = atomic_load_explicit(&usage->header.gone_gpu_time_ns, memory_order_relaxed);
    for (struct usage_slot *slot = usage->slots; slot < usage->slots + USAGE_SLOTS_MAX; slot++)
        if (slot != own && atomic_load_explicit(&slot->state, memory_order_relaxed))
            sum_ns += atomic_load_explicit(&slot->gpu_time_ns, memory_order_relaxed);
    return sum_ns;
}

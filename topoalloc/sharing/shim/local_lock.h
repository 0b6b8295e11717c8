/* A lock inside one process that needs nothing of libc and can be forgotten in a forked child. */
#ifndef TOPOALLOC_LOCAL_LOCK_H
#define TOPOALLOC_LOCAL_LOCK_H

#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

struct local_lock {
    _Atomic uint32_t word; /* 0 free, 1 held, 2 held and waited for */
};

/* Futex calls report through errno, which belongs to the program. */
static inline long futex_call(_Atomic uint32_t *word, int operation, uint32_t value, const void *timeout)
{
    int kept = errno;
    long result = syscall(SYS_futex, (void *)word, operation, value, timeout, NULL, 0);
    errno = kept;
    return result;
}

static inline void local_lock_take(struct local_lock *lock)
{
    uint32_t seen = 0;
    if (atomic_compare_exchange_strong_explicit(&lock->word, &seen, 1, memory_order_acquire, memory_order_relaxed))
        return;
    while (atomic_exchange_explicit(&lock->word, 2, memory_order_acquire) != 0)
        futex_call(&lock->word, FUTEX_WAIT_PRIVATE, 2, NULL);
}

static inline int local_lock_try(struct local_lock *lock)
{
    uint32_t seen = 0;
    return atomic_compare_exchange_strong_explicit(&lock->word, &seen, 1, memory_order_acquire, memory_order_relaxed);
}

static inline void local_lock_drop(struct local_lock *lock)
{
    if (atomic_exchange_explicit(&lock->word, 0, memory_order_release) == 2)
        futex_call(&lock->word, FUTEX_WAKE_PRIVATE, 1, NULL);
}

static inline void local_lock_forget(struct local_lock *lock)
{
    atomic_store_explicit(&lock->word, 0, memory_order_relaxed);
}

#endif

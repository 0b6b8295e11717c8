#include "pointers.h"

#include "local_lock.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define SHARDS 64u
#define FIRST_PLACES 256u
#define PLACES_MAX (1u << 26) /* of one shard: four thousand million entries in all, beyond any address space */

struct entry {
    struct pointer pointer;
    uint32_t space_and_one; /* 0: empty */
};

struct shard {
    struct local_lock lock;
    uint32_t places; /* a power of two, at most half of them used */
    uint32_t used;
    struct entry *entries;
} __attribute__((aligned(64)));

static struct shard shards[SHARDS];

static uint64_t mixed(uint64_t key, enum pointer_space space)
{
    uint64_t x = (key ^ ((uint64_t)space << 56)) * UINT64_C(0x9E3779B97F4A7C15);
    return x ^ (x >> 29);
}

static struct shard *shard_of(uint64_t hash)
{
    return &shards[(hash >> 40) % SHARDS];
}

static struct entry *new_entries(uint32_t places)
{
    int kept = errno;
    void *place = mmap(NULL, places * sizeof(struct entry), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    errno = kept;
    return place == MAP_FAILED ? NULL : place;
}

static uint32_t home(const struct shard *shard, const struct entry *entry)
{
    return (uint32_t)mixed(entry->pointer.key, (enum pointer_space)(entry->space_and_one - 1)) & (shard->places - 1);
}

static void place(struct shard *shard, const struct entry *entry)
{
    uint32_t at = home(shard, entry);
    while (shard->entries[at].space_and_one)
        at = (at + 1) & (shard->places - 1);
    shard->entries[at] = *entry;
    shard->used++;
}

static int grow(struct shard *shard)
{
    struct shard larger = {.places = shard->places ? shard->places * 2 : FIRST_PLACES};
    if (larger.places > PLACES_MAX || !(larger.entries = new_entries(larger.places)))
        return 0;
    for (uint32_t i = 0; i < shard->places; i++) {
        if (shard->entries[i].space_and_one)
            place(&larger, &shard->entries[i]);
    }
    if (shard->entries)
        munmap(shard->entries, shard->places * sizeof(struct entry));
    shard->places = larger.places;
    shard->used = larger.used;
    shard->entries = larger.entries;
    return 1;
}

static struct entry *find(struct shard *shard, enum pointer_space space, uint64_t key, uint64_t hash)
{
    if (!shard->places)
        return NULL;
    for (uint32_t at = (uint32_t)hash & (shard->places - 1);; at = (at + 1) & (shard->places - 1)) {
        struct entry *entry = &shard->entries[at];
        if (!entry->space_and_one)
            return NULL;
        if (entry->pointer.key == key && entry->space_and_one == (uint32_t)space + 1)
            return entry;
    }
}

/* Moves later entries of the run back over the hole, so that searches may stop at the first empty place. */
static void remove_entry(struct shard *shard, struct entry *entry)
{
    uint32_t mask = shard->places - 1, hole = (uint32_t)(entry - shard->entries);
    for (uint32_t at = (hole + 1) & mask; shard->entries[at].space_and_one; at = (at + 1) & mask) {
        uint32_t wanted = home(shard, &shard->entries[at]);
        if (((at - wanted) & mask) >= ((at - hole) & mask)) {
            shard->entries[hole] = shard->entries[at];
            hole = at;
        }
    }
    shard->entries[hole].space_and_one = 0;
    shard->used--;
}

int pointers_put(enum pointer_space space, struct pointer pointer)
{
    uint64_t hash = mixed(pointer.key, space);
    struct shard *shard = shard_of(hash);
    struct entry entry = {pointer, (uint32_t)space + 1};
    local_lock_take(&shard->lock);
    struct entry *known = find(shard, space, pointer.key, hash);
    int kept = 1;
    if (known)
        *known = entry;
    else if (2 * (shard->used + 1) > shard->places && !grow(shard))
        kept = 0;
    else
        place(shard, &entry);
    local_lock_drop(&shard->lock);
    return kept;
}

int pointers_take(enum pointer_space space, uint64_t key, struct pointer *pointer)
{
    uint64_t hash = mixed(key, space);
    struct shard *shard = shard_of(hash);
    local_lock_take(&shard->lock);
    struct entry *entry = find(shard, space, key, hash);
    if (entry) {
        *pointer = entry->pointer;
        remove_entry(shard, entry);
    }
    local_lock_drop(&shard->lock);
    return entry != NULL;
}

int pointers_get(enum pointer_space space, uint64_t key, struct pointer *pointer)
{
    uint64_t hash = mixed(key, space);
    struct shard *shard = shard_of(hash);
    local_lock_take(&shard->lock);
    struct entry *entry = find(shard, space, key, hash);
    if (entry)
        *pointer = entry->pointer;
    local_lock_drop(&shard->lock);
    return entry != NULL;
}

static int belongs(const struct entry *entry, uint64_t owner)
{
    enum pointer_kind kind = entry->pointer.kind;
    int of_context = kind == POINTER_DEVICE || kind == POINTER_MANAGED || kind == POINTER_ARRAY || kind == POINTER_MIPMAP;
    return entry->space_and_one && of_context && entry->pointer.owner == owner;
}

uint64_t pointers_take_owned(uint64_t owner, uint64_t *managed_bytes)
{
    uint64_t bytes = 0;
    *managed_bytes = 0;
    for (unsigned int i = 0; i < SHARDS; i++) {
        struct shard *shard = &shards[i];
        local_lock_take(&shard->lock);
        for (uint32_t at = 0; at < shard->places;) {
            struct entry *entry = &shard->entries[at];
            if (!belongs(entry, owner)) {
                at++;
                continue;
            }
            if (entry->pointer.kind == POINTER_MANAGED)
                *managed_bytes += entry->pointer.bytes;
            else
                bytes += entry->pointer.bytes;
            remove_entry(shard, entry); /* another entry may have moved to this place: looked at again */
        }
        local_lock_drop(&shard->lock);
    }
    return bytes;
}

void pointers_forget(void)
{
    memset(shards, 0, sizeof shards); /* the entries are the parent's; a child cannot use its contexts */
}

/* What each pointer and handle of this process was charged, so that a free gives back exactly that. */
#ifndef TOPOALLOC_POINTERS_H
#define TOPOALLOC_POINTERS_H

#include <stdint.h>

enum pointer_kind {
    POINTER_DEVICE = 1, /* cuMemAlloc, pitch: `owner` is the context */
    POINTER_MANAGED,
    POINTER_POOL,       /* `owner` is the pool's position */
    POINTER_ARRAY,
    POINTER_MIPMAP,
    POINTER_EXTERNAL,
    POINTER_GRAPH,      /* an executable graph */
    POINTER_HANDLE,     /* cuMemCreate: `owner` is the position of its object */
    POINTER_MAPPING,    /* cuMemMap: the same */
    POINTER_LIMIT,      /* of the context that is its key */
};

struct pointer {
    uint64_t key;
    uint64_t bytes;
    uint64_t owner;
    enum pointer_kind kind;
};

/* Spaces of keys that cannot be mistaken for each other. */
enum pointer_space { SPACE_ADDRESS, SPACE_ARRAY, SPACE_MIPMAP, SPACE_EXTERNAL, SPACE_GRAPH, SPACE_HANDLE, SPACE_MAPPING,
                     SPACE_LIMITS /* and the next two, by CUlimit */ };

int pointers_put(enum pointer_space space, struct pointer pointer); /* 0: no memory for the entry */
int pointers_take(enum pointer_space space, uint64_t key, struct pointer *pointer); /* 1: was there and is not now */
int pointers_get(enum pointer_space space, uint64_t key, struct pointer *pointer);

/* Takes every entry of these kinds that belongs to `owner`; returns their bytes, managed ones apart. */
uint64_t pointers_take_owned(uint64_t owner, uint64_t *managed_bytes);
void pointers_forget(void);

#endif

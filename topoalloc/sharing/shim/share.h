/* The share file: what this container may use, as the agent wrote it. */
#ifndef TOPOALLOC_SHARE_H
#define TOPOALLOC_SHARE_H

#include <stddef.h>
#include <stdint.h>

#define SHARE_FILE_BYTES_MAX 4096u
#define SHARE_CORES_ALL 10000u /* hundredths of a percent */
#define SHARE_MEMORY_ALL UINT64_MAX
#define SHARE_GPU_CHARACTERS_MAX 63u

struct share {
    uint64_t generation;
    uint64_t memory_bytes; /* SHARE_MEMORY_ALL: not limited */
    uint64_t context_bytes;
    uint32_t cores;
    uint32_t cores_max;
    int allow_without_usage;
    char gpu[SHARE_GPU_CHARACTERS_MAX + 1];
};

/* 1 and a whole share, or 0 and `share` as it was: half a file never limits to half. */
int share_parse(const char *text, size_t bytes, struct share *share);

#endif

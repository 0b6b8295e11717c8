#include "share.h"

#include <string.h>

enum key { KEY_GENERATION, KEY_GPU, KEY_CORES, KEY_CORES_MAX, KEY_MEMORY, KEY_CONTEXT, KEY_WITHOUT_USAGE, KEYS };

static const char *const names[KEYS] = {"generation", "gpu",     "cores",        "cores-max",
                                        "memory",     "context", "without-usage"};

static int is(const char *text, size_t length, const char *word)
{
    return strlen(word) == length && memcmp(text, word, length) == 0;
}

static int number(const char *text, size_t length, uint64_t *value)
{
    uint64_t sum = 0;
    if (length == 0)
        return 0;
    for (size_t i = 0; i < length; i++) {
        unsigned int digit = (unsigned int)(unsigned char)text[i] - '0';
        if (digit > 9 || sum > (UINT64_MAX - digit) / 10)
            return 0;
        sum = sum * 10 + digit;
    }
    *value = sum;
    return 1;
}

static int cores(const char *text, size_t length, uint32_t *value)
{
    uint64_t wide;
    if (!number(text, length, &wide) || wide < 1 || wide > SHARE_CORES_ALL)
        return 0;
    *value = (uint32_t)wide;
    return 1;
}

static int set(struct share *share, enum key key, const char *text, size_t length)
{
    switch (key) {
    case KEY_GENERATION:
        return number(text, length, &share->generation);
    case KEY_GPU:
        if (length == 0 || length > SHARE_GPU_CHARACTERS_MAX)
            return 0;
        memcpy(share->gpu, text, length);
        share->gpu[length] = '\0';
        return 1;
    case KEY_CORES:
        return cores(text, length, &share->cores);
    case KEY_CORES_MAX:
        return cores(text, length, &share->cores_max);
    case KEY_MEMORY:
        if (!is(text, length, "none"))
            return number(text, length, &share->memory_bytes) && share->memory_bytes != SHARE_MEMORY_ALL;
        share->memory_bytes = SHARE_MEMORY_ALL;
        return 1;
    case KEY_CONTEXT:
        return number(text, length, &share->context_bytes);
    case KEY_WITHOUT_USAGE:
        share->allow_without_usage = is(text, length, "allow");
        return share->allow_without_usage || is(text, length, "refuse");
    case KEYS:
        break;
    }
    return 0;
}

static int line(struct share *share, const char *text, size_t length, unsigned int *seen)
{
    const char *space = memchr(text, ' ', length);
    if (!space)
        return 0;
    size_t name = (size_t)(space - text);
    for (int key = 0; key < KEYS; key++) {
        if (!is(text, name, names[key]))
            continue;
        if (*seen & (1u << key))
            return 0;
        *seen |= 1u << key;
        return set(share, (enum key)key, space + 1, length - name - 1);
    }
    return 0;
}

int share_parse(const char *text, size_t bytes, struct share *share)
{
    static const char first[] = "topoalloc-share 1\n", last[] = "end\n";
    size_t first_bytes = sizeof first - 1, last_bytes = sizeof last - 1;
    struct share read = {0};
    unsigned int seen = 0;
    if (bytes > SHARE_FILE_BYTES_MAX || bytes < first_bytes + last_bytes)
        return 0;
    if (memcmp(text, first, first_bytes) != 0 || memcmp(text + bytes - last_bytes, last, last_bytes) != 0)
        return 0;
    for (size_t at = first_bytes; at < bytes - last_bytes;) {
        const char *end = memchr(text + at, '\n', bytes - last_bytes - at);
        if (!end || !line(&read, text + at, (size_t)(end - text) - at, &seen))
            return 0;
        at = (size_t)(end - text) + 1;
    }
    if (seen != (1u << KEYS) - 1 || read.cores_max < read.cores)
        return 0;
    *share = read;
    return 1;
}

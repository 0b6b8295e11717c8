/* topoalloc-verify: says, inside a container, whether the limits of its share are active.
 *
 * One line for each check, PASS or FAIL. Exit status 0: every check passed; 1: one failed; 2: there is no share here,
 * or the arguments are wrong. It needs the C library and, for the last checks, the driver; `topoalloc verify` says the
 * same where Python is at hand. With --root DIR the files of a share are looked for below DIR.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../usage_layout.h"

/* Of the versions that every C library from 2.17 on has (in libdl.so.2 before 2.34). */
#if defined __x86_64__
__asm__(".symver dlopen,dlopen@GLIBC_2.2.5");
__asm__(".symver dlsym,dlsym@GLIBC_2.2.5");
#elif defined __aarch64__
__asm__(".symver dlopen,dlopen@GLIBC_2.17");
__asm__(".symver dlsym,dlsym@GLIBC_2.17");
#endif

#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#endif

#define LIBRARY "libtopoalloc-vcuda.so"
#define LIBRARY_DIRECTORY "/usr/local/lib/topoalloc"
#define SHARE_DIRECTORY "/etc/topoalloc"
#define PRELOAD_FILE "/etc/ld.so.preload"
#define CHILD "--is-library-loaded"
#define SHARE_BYTES_MAX 4096
#define LINE_BYTES_MAX 8192
#define LINES_MAX 100000
#define NO_SHARE 2

struct share {
    int limits_memory;
    uint64_t memory_bytes;
    unsigned cores, cores_max;
};

static const char *root = "";
static int failures;

__attribute__((format(printf, 3, 4))) static int check(int passed, const char *name, const char *format, ...)
{
    va_list arguments;
    printf("%s %s: ", passed ? "PASS" : "FAIL", name);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    failures += !passed;
    return passed;
}

static int open_below(const char *path, int flags)
{
    char whole[PATH_MAX];
    if (snprintf(whole, sizeof whole, "%s%s", root, path) >= (int)sizeof whole) {
        errno = ENAMETOOLONG;
        return -1;
    }
    return open(whole, flags | O_CLOEXEC);
}

/* At most `size - 1` bytes and a zero; -1 where there is no such file. */
static ssize_t read_below(const char *path, char *into, size_t size)
{
    int fd = open_below(path, O_RDONLY);
    if (fd < 0)
        return -1;
    ssize_t count = read(fd, into, size - 1);
    close(fd);
    if (count >= 0)
        into[count] = '\0';
    return count;
}

/* The value after `key ` at the beginning of a line, NULL where there is none. */
static const char *value_of(const char *text, const char *key)
{
    size_t length = strlen(key);
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, length) == 0 && line[length] == ' ')
            return line + length + 1;
    }
    return NULL;
}

static int read_share(struct share *share)
{
    char text[SHARE_BYTES_MAX + 1];
    ssize_t count = read_below(SHARE_DIRECTORY "/share", text, sizeof text);
    if (count < 0) {
        int none = errno == ENOENT;
        check(0, "share", "%s/share cannot be read (%s): %s", SHARE_DIRECTORY, strerror(errno),
              none ? "this container has no limits" : "its limits are unknown, and GPU memory is refused");
        return none ? NO_SHARE : 1;
    }
    const char *memory = value_of(text, "memory"), *cores = value_of(text, "cores"),
               *cores_max = value_of(text, "cores-max");
    if (strncmp(text, "topoalloc-share 1\n", 18) != 0 || count < 5 || strcmp(text + count - 5, "\nend\n") != 0 ||
        memory == NULL || cores == NULL || cores_max == NULL) {
        check(0, "share", "%s/share is not a share of this version", SHARE_DIRECTORY);
        return 1;
    }
    share->limits_memory = strncmp(memory, "none\n", 5) != 0;
    share->memory_bytes = share->limits_memory ? strtoull(memory, NULL, 10) : 0;
    share->cores = (unsigned)strtoul(cores, NULL, 10);
    share->cores_max = (unsigned)strtoul(cores_max, NULL, 10);
    if (share->limits_memory)
        check(1, "share", "%u.%02u %% of the GPU's time, %llu bytes of its memory", share->cores / 100,
              share->cores % 100, (unsigned long long)share->memory_bytes);
    else
        check(1, "share", "%u.%02u %% of the GPU's time, memory is not limited on this node", share->cores / 100,
              share->cores % 100);
    return 0;
}

static void check_preload_line(void)
{
    static const char wanted[] = LIBRARY_DIRECTORY "/" LIBRARY "\n";
    char text[sizeof wanted + 1];
    ssize_t count = read_below(PRELOAD_FILE, text, sizeof text);
    if (count < 0)
        check(0, "preload", "%s cannot be read (%s)", PRELOAD_FILE, strerror(errno));
    else if (strcmp(text, wanted) != 0)
        check(0, "preload", "%s does not name %s/%s alone", PRELOAD_FILE, LIBRARY_DIRECTORY, LIBRARY);
    else
        check(1, "preload", "%s names the library", PRELOAD_FILE);
}

static int is_library_loaded(void)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[LINE_BYTES_MAX];
    int found = 0;
    if (maps == NULL)
        return 0;
    for (int number = 0; !found && number < LINES_MAX && fgets(line, sizeof line, maps) != NULL; number++)
        found = strstr(line, "/" LIBRARY "\n") != NULL;
    fclose(maps);
    return found;
}

/* What a tenant may set in its environment must not matter: a child that sets it has the library all the same. */
static void check_environment(void)
{
    static char preload[] = "LD_PRELOAD=", path[] = "LD_LIBRARY_PATH=/nonexistent",
                share[] = "TOPOALLOC_SHARE_DIR=/nonexistent";
    static char program[] = "/proc/self/exe", argument[] = CHILD;
    char *arguments[] = {program, argument, NULL}, *variables[] = {preload, path, share, NULL};
    pid_t child;
    int status = -1;
    int failed = posix_spawn(&child, program, NULL, NULL, arguments, variables);
    if (failed == 0)
        while (waitpid(child, &status, 0) < 0 && errno == EINTR)
            ;
    int passed = failed == 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    check(passed, "environment", passed ? "a process that clears LD_PRELOAD has the library too"
                                        : "a process that clears LD_PRELOAD goes without the library");
}

/* Whether the last mount at `path` is read-only: 1 yes, 0 no, -1 nothing is mounted there. */
static int is_read_only(const char *path)
{
    FILE *mounts = fopen("/proc/self/mountinfo", "re");
    char line[LINE_BYTES_MAX], where[PATH_MAX], options[256];
    int found = -1;
    if (mounts == NULL)
        return -1;
    for (int number = 0; number < LINES_MAX && fgets(line, sizeof line, mounts) != NULL; number++) {
        /* 36 35 98:0 /root /where options ...: proc(5) */
        if (sscanf(line, "%*s %*s %*s %*s %4095s %255s", where, options) != 2 || strcmp(where, path) != 0)
            continue;
        found = strcmp(options, "ro") == 0 || strncmp(options, "ro,", 3) == 0;
    }
    fclose(mounts);
    return found;
}

static void check_mount(const char *path, int wanted)
{
    char whole[PATH_MAX];
    snprintf(whole, sizeof whole, "%s%s", root, path);
    int found = is_read_only(whole);
    char name[64];
    snprintf(name, sizeof name, "mount %s", path);
    if (found < 0)
        check(0, name, "nothing is mounted there");
    else
        check(found == wanted, name, "%s", found ? "read-only" : "writable");
}

/* Mounted read-only is a word; this is the deed. */
static void check_unwritable(const char *path)
{
    char name[64];
    snprintf(name, sizeof name, "write %s", path);
    int fd = open_below(path, O_WRONLY);
    int why = errno;
    if (fd >= 0)
        close(fd);
    check(fd < 0 && why != ENOENT, name, "%s", fd >= 0 ? "it can be written" : strerror(why));
}

static void *symbol(void *driver, const char *name)
{
    return dlsym(driver, name);
}

static int check_call(int result, const char *name)
{
    return result == 0 ? 1 : check(0, "driver", "%s failed with error %d", name, result);
}

static void check_driver(const struct share *share)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (driver == NULL) {
        check(0, "driver", "libcuda.so.1 cannot be loaded");
        return;
    }
    int (*init)(unsigned);
    int (*device_get)(int *, int);
    int (*total_mem)(size_t *, int);
    int (*retain)(void **, int);
    int (*set_current)(void *);
    int (*mem_get_info)(size_t *, size_t *);
    *(void **)&init = symbol(driver, "cuInit");
    *(void **)&device_get = symbol(driver, "cuDeviceGet");
    *(void **)&total_mem = symbol(driver, "cuDeviceTotalMem_v2");
    *(void **)&retain = symbol(driver, "cuDevicePrimaryCtxRetain");
    *(void **)&set_current = symbol(driver, "cuCtxSetCurrent");
    *(void **)&mem_get_info = symbol(driver, "cuMemGetInfo_v2");
    if (!init || !device_get || !total_mem || !retain || !set_current || !mem_get_info) {
        check(0, "driver", "libcuda.so.1 lacks calls that every driver has");
        return;
    }
    int device = 0;
    size_t total = 0, free_now = 0, total_now = 0;
    void *context = NULL;
    if (!check_call(init(0), "cuInit") || !check_call(device_get(&device, 0), "cuDeviceGet") ||
        !check_call(total_mem(&total, device), "cuDeviceTotalMem") ||
        !check_call(retain(&context, device), "cuDevicePrimaryCtxRetain") ||
        !check_call(set_current(context), "cuCtxSetCurrent") ||
        !check_call(mem_get_info(&free_now, &total_now), "cuMemGetInfo"))
        return;
    check(1, "driver", "a context could be made");
    if (!share->limits_memory)
        return;
    unsigned long long limit = share->memory_bytes;
    check(total == share->memory_bytes, "cuDeviceTotalMem", "%llu bytes, granted %llu", (unsigned long long)total,
          limit);
    check(total_now == share->memory_bytes && free_now <= total_now, "cuMemGetInfo", "%llu of %llu bytes, granted %llu",
          (unsigned long long)free_now, (unsigned long long)total_now, limit);
}

/* The slot that says our pid and whose lock is held; -1 where there is none. */
static int own_slot(int fd)
{
    struct usage_slot slot;
    for (unsigned index = 0; index < USAGE_SLOTS_MAX; index++) {
        off_t at = (off_t)(sizeof(struct usage_header) + index * sizeof slot);
        if (pread(fd, &slot, sizeof slot, at) != (ssize_t)sizeof slot)
            return -1;
        if (atomic_load(&slot.state) != 1 || atomic_load(&slot.pid) != (uint32_t)getpid())
            continue;
        struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = USAGE_LOCKS_AT + (off_t)index, .l_len = 1};
        if (fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_WRLCK)
            return (int)index;
    }
    return -1;
}

static void check_usage(void)
{
    struct usage_header header;
    int fd = open_below(SHARE_DIRECTORY "/usage", O_RDWR);
    if (fd < 0) {
        check(0, "usage", "%s/usage cannot be opened for writing (%s)", SHARE_DIRECTORY, strerror(errno));
        return;
    }
    if (pread(fd, &header, sizeof header, 0) != (ssize_t)sizeof header || header.magic != USAGE_MAGIC ||
        header.version != USAGE_VERSION || header.slots != USAGE_SLOTS_MAX)
        check(0, "usage", "%s/usage is not of this version", SHARE_DIRECTORY);
    else {
        int slot = own_slot(fd);
        if (slot >= 0)
            check(1, "usage", "this process is accounted in slot %d", slot);
        else
            check(0, "usage", "this process uses the GPU and is not accounted");
    }
    close(fd);
}

int main(int count, char **arguments)
{
    if (count == 2 && strcmp(arguments[1], CHILD) == 0)
        return is_library_loaded() ? 0 : 1;
    if (count == 3 && strcmp(arguments[1], "--root") == 0)
        root = arguments[2];
    else if (count != 1) {
        fprintf(stderr, "usage: topoalloc-verify [--root DIR]\n");
        return 2;
    }
    struct share share = {0};
    int status = read_share(&share);
    if (status == NO_SHARE)
        return NO_SHARE;
    check_preload_line();
    int loaded = is_library_loaded();
    check(loaded, "library", loaded ? "it is loaded in this process" : "it is not loaded in this process");
    check_environment();
    check_mount(SHARE_DIRECTORY, 1);
    check_mount(PRELOAD_FILE, 1);
    check_mount(LIBRARY_DIRECTORY, 1);
    check_mount(SHARE_DIRECTORY "/usage", 0);
    check_unwritable(SHARE_DIRECTORY "/share");
    check_unwritable(PRELOAD_FILE);
    if (status == 0) {
        check_driver(&share);
        check_usage();
    }
    return failures > 0;
}

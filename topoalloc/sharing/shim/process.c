#include "process.h"

#include "capture.h"
#include "driver.h"
#include "file_facts.h"
#include "local_lock.h"
#include "measure.h"
#include "memory.h"
#include "pace.h"
#include "pointers.h"
#include "timing.h"
#include "usage.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SHARE_DIRECTORY "/etc/topoalloc"
#define POLICY_FILE "without-share" /* beside the library: `allow` where a container without a share is not limited */
#define SHARE_DIRECTORY_VARIABLE "TOPOALLOC_SHARE_DIR" /* only where the mount does not exist: tests, trials by hand */
#define LOOK_PERIOD_NS 500000000L
#define EXIT_WAIT_NS 50000000L

struct process_limits process_limits;
_Atomic int process_started;
_Atomic uint32_t process_generation = 1;

static struct local_lock starting;
static _Atomic int watching;
static _Atomic int stopping;
static char directory[192];
static struct timespec share_changed;

static const char *const said[SAYS] = {
    [SAY_NO_SHARE] = "topoalloc: GPU memory is refused, the limits of this container cannot be read: ",
    [SAY_NO_USAGE] = "topoalloc: GPU memory is refused, the container's ledger cannot be opened: ",
    [SAY_SLOTS_FULL] = "topoalloc: GPU memory is refused, too many processes of this container use the GPU: ",
    [SAY_UNKNOWN_ABI] = "topoalloc: a newer form of this driver function is not limited: ",
    [SAY_LIMIT] = "topoalloc: the container's GPU memory is used up: ",
};

/* Where nobody reads what the program says any more, it is not us who ends it by SIGPIPE. */
static void write_without_signal(const char *line, size_t bytes)
{
    sigset_t pipe, before, pending;
    struct timespec at_once = {0, 0};
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    if (sigpending(&pending) != 0 || sigprocmask(SIG_BLOCK, &pipe, &before) != 0)
        return;
    if (write(STDERR_FILENO, line, bytes) < 0 && errno == EPIPE && !sigismember(&pending, SIGPIPE))
        sigtimedwait(&pipe, NULL, &at_once);
    sigprocmask(SIG_SETMASK, &before, NULL);
}

void process_say_once(enum say what, const char *detail)
{
    static _Atomic unsigned int already;
    char line[256];
    size_t length = strlen(said[what]), more = strlen(detail);
    if (atomic_fetch_or(&already, 1u << what) & (1u << what))
        return;
    int kept = errno;
    if (more > sizeof line - length - 1)
        more = sizeof line - length - 1;
    memcpy(line, said[what], length);
    memcpy(line + length, detail, more);
    line[length + more] = '\n';
    write_without_signal(line, length + more + 1);
    errno = kept;
}

uint64_t process_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

int process_share_path(const char *name, char *path, unsigned int bytes)
{
    size_t length = strlen(directory), more = strlen(name);
    if (length + more + 2 > bytes)
        return 0;
    memcpy(path, directory, length);
    path[length] = '/';
    memcpy(path + length + 1, name, more + 1);
    return 1;
}

static void choose_directory(void)
{
    struct stat seen;
    const char *other = secure_getenv(SHARE_DIRECTORY_VARIABLE);
    const char *chosen = SHARE_DIRECTORY;
    if (facts_of_path(SHARE_DIRECTORY "/share", &seen) != 0 && other && strlen(other) < sizeof directory)
        chosen = other;
    memcpy(directory, chosen, strlen(chosen) + 1);
}

static int read_share(struct share *share)
{
    char path[256], text[SHARE_FILE_BYTES_MAX + 1];
    struct stat seen;
    if (!process_share_path("share", path, sizeof path))
        return 0;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return 0;
    ssize_t got = read(descriptor, text, sizeof text);
    if (facts_of_descriptor(descriptor, &seen) == 0)
        share_changed = seen.st_mtim;
    close(descriptor);
    return got > 0 && share_parse(text, (size_t)got, share);
}

static void publish(const struct share *share)
{
    atomic_store(&process_limits.context_bytes, share->context_bytes);
    atomic_store(&process_limits.cores_max, share->cores_max);
    atomic_store(&process_limits.cores, share->cores);
    atomic_store(&process_limits.memory_bytes, share->memory_bytes);
}

/* Without limits that can be read nothing is known of what is allowed: memory is refused, the GPU's time is not
 * limited, since a wrong guess there would stop work that is granted. */
static void publish_refusal(void)
{
    atomic_store(&process_limits.cores, SHARE_CORES_ALL);
    atomic_store(&process_limits.cores_max, SHARE_CORES_ALL);
    atomic_store(&process_limits.memory_bytes, 0);
}

static void publish_no_limits(void)
{
    atomic_store(&process_limits.cores, SHARE_CORES_ALL);
    atomic_store(&process_limits.cores_max, SHARE_CORES_ALL);
    atomic_store(&process_limits.memory_bytes, SHARE_MEMORY_ALL);
}

/* ---- when the library is loaded ---- */

static int allowed_without_share;

static int find_self(struct dl_phdr_info *info, size_t bytes, void *path)
{
    (void)bytes;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        uintptr_t from = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
        if (info->dlpi_phdr[i].p_type != PT_LOAD || (uintptr_t)&process_limits - from >= info->dlpi_phdr[i].p_memsz)
            continue;
        *(const char **)path = info->dlpi_name;
        return 1;
    }
    return 0;
}

static int policy_allows(void)
{
    static const char allow[] = "allow\n";
    const char *library = NULL;
    char path[256], text[sizeof allow];
    dl_iterate_phdr(find_self, &library);
    const char *slash = library ? strrchr(library, '/') : NULL;
    size_t length = slash ? (size_t)(slash - library) + 1 : 0;
    if (!length || length + sizeof POLICY_FILE > sizeof path)
        return 0;
    memcpy(path, library, length);
    memcpy(path + length, POLICY_FILE, sizeof POLICY_FILE);
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    ssize_t got = descriptor < 0 ? -1 : read(descriptor, text, sizeof text);
    if (descriptor >= 0)
        close(descriptor);
    return got == (ssize_t)sizeof allow - 1 && memcmp(text, allow, sizeof allow - 1) == 0;
}

/* Decided before the program runs: later it could have another root, or no descriptors left to open a file with. A
 * share that is there and cannot be read is never a missing one. */
static int decide_without_share(void)
{
    struct stat seen;
    return facts_of_path(SHARE_DIRECTORY "/share", &seen) != 0 && errno == ENOENT && policy_allows();
}

static void forget_in_child(void);

/* The fork handler stands before any lock of ours can be held. CUDA is not touched here. */
__attribute__((constructor)) static void begin(void)
{
    int kept = errno;
    pthread_atfork(NULL, NULL, forget_in_child);
    allowed_without_share = decide_without_share();
    errno = kept;
}

/* Nearly every process that forks has never used CUDA, and there is nothing to forget then. */
static void forget_in_child(void)
{
    driver_forget();
    capture_forget();
    if (!atomic_load(&process_started) && !atomic_load(&starting.word))
        return;
    atomic_fetch_add(&process_generation, 1);
    local_lock_forget(&starting);
    usage_forget();
    pointers_forget();
    pools_forget();
    mappings_forget();
    graphs_forget();
    contexts_forget();
    measure_forget();
    timing_forget();
    atomic_store(&watching, 0);
    atomic_store(&process_started, 0);
}

void process_start(void)
{
    int kept = errno, cancelled;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelled); /* files are opened with the lock held */
    local_lock_take(&starting);
    if (!atomic_load(&process_started)) {
        struct share share;
        char path[256] = "";
        choose_directory();
        struct stat seen;
        int has_share = read_share(&share);
        process_share_path("share", path, sizeof path);
        if (!has_share && allowed_without_share && facts_of_path(path, &seen) != 0 && errno == ENOENT) {
            publish_no_limits();
        } else if (!has_share) {
            publish_refusal();
            process_say_once(SAY_NO_SHARE, path);
        } else {
            publish(&share);
            pace_open();
            if (!usage_join(share.allow_without_usage) && share.memory_bytes != SHARE_MEMORY_ALL) {
                publish_refusal();
                process_share_path("usage", path, sizeof path);
                process_say_once(SAY_NO_USAGE, path);
            }
        }
        atomic_store_explicit(&process_started, 1, memory_order_release);
    }
    local_lock_drop(&starting);
    pthread_setcancelstate(cancelled, NULL);
    errno = kept;
}

/* A changed share file is a changed limit: the agent replaces it whole. One that cannot be read changes nothing. */
static void look_at_share(void)
{
    char path[256];
    struct stat seen;
    struct share share;
    if (!process_share_path("share", path, sizeof path) || facts_of_path(path, &seen) != 0)
        return;
    if (seen.st_mtim.tv_sec == share_changed.tv_sec && seen.st_mtim.tv_nsec == share_changed.tv_nsec)
        return;
    if (read_share(&share) && atomic_load(&usage_mapped))
        publish(&share);
}

static void tell_unknown_variants(void)
{
    struct usage_slot *own = atomic_load(&usage_own);
    if (own)
        atomic_store(&own->unhooked, atomic_load(driver_unknown_variants()));
}

static void *watch(void *nothing)
{
    struct timespec period = {0, LOOK_PERIOD_NS};
    uint32_t generation = atomic_load(&process_generation);
    measure_now();
    while (!atomic_load(&stopping) && generation == atomic_load(&process_generation)) {
        clock_nanosleep(CLOCK_MONOTONIC, 0, &period, NULL);
        if (atomic_load(&stopping))
            break;
        look_at_share();
        usage_check();
        usage_reap_some();
        tell_unknown_variants();
        pace_open();
        measure_now();
    }
    return nothing;
}

/* NVML must not be in use while its own destructors run. */
static void stop_watching(void)
{
    atomic_store(&stopping, 1);
    struct timespec step = {0, 1000000};
    for (long waited = 0; waited < EXIT_WAIT_NS && measure_busy(); waited += step.tv_nsec)
        clock_nanosleep(CLOCK_MONOTONIC, 0, &step, NULL);
}

void process_watch(void)
{
    typedef int (*create_function)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    static int exit_heard;
    int expected = 0;
    if (!process_limits_memory() && !process_limits_cores())
        return;
    if (!atomic_compare_exchange_strong(&watching, &expected, 1))
        return;
    int kept = errno;
    /* By name: its version moved from libpthread to libc in glibc 2.34. The driver has either loaded. */
    create_function create = (create_function)(uintptr_t)libc_dlsym_function()(NULL, "pthread_create");
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    if (!exit_heard)
        exit_heard = atexit(stop_watching) == 0;
    if (create && sigprocmask(SIG_SETMASK, &all, &before) == 0) {
        if (create(&thread, NULL, watch, NULL) != 0)
            atomic_store(&watching, 0);
        sigprocmask(SIG_SETMASK, &before, NULL);
    }
    errno = kept;
}

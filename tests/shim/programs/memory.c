/* memory WAY plain|pitch|managed|threads|hold BYTES: the explicit allocations. */
#include "fill.h"

#include <errno.h>
#include <pthread.h>

#define THREADS 16

static CUresult take_plain(uint64_t bytes, void **piece)
{
    return cu.Alloc((CUdeviceptr *)piece, bytes);
}

static CUresult take_pitch(uint64_t bytes, void **piece)
{
    size_t pitch = 0;
    return cu.AllocPitch((CUdeviceptr *)piece, &pitch, 513, bytes / 513, 4);
}

static CUresult take_managed(uint64_t bytes, void **piece)
{
    return cu.AllocManaged((CUdeviceptr *)piece, bytes, 1);
}

static CUresult give(void *piece)
{
    return cu.Free((CUdeviceptr)(uintptr_t)piece);
}

static uint64_t thread_bytes;
static CUcontext shared_context;

static void *fill_in_thread(void *counter)
{
    CUdeviceptr address;
    cu.CtxSetCurrent(shared_context);
    while (!cu.Alloc(&address, thread_bytes))
        ++*(long *)counter;
    return NULL;
}

static void fill_by_threads(uint64_t bytes)
{
    pthread_t threads[THREADS];
    long counts[THREADS] = {0}, sum = 0;
    thread_bytes = bytes;
    MUST(cu.PrimaryRetain(&shared_context, 0));
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, fill_in_thread, &counts[i]);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++)
        sum += counts[i];
    say("obtained", (long long)bytes * sum);
    say("taken", (long long)fakeBytesTaken((uint32_t)getpid()));
}

/* Takes all it can, says so, and lives until its standard input closes (or it is killed). */
static void hold(uint64_t bytes)
{
    CUdeviceptr address;
    long count = 0;
    while (!cu.Alloc(&address, bytes))
        count++;
    say("held", (long long)bytes * count);
    while (getchar() != EOF)
        ;
}

static void keep_errno(uint64_t bytes)
{
    CUdeviceptr address = 0;
    errno = 4711;
    CUresult got = cu.Alloc(&address, bytes), refused = cu.Alloc(&address, (size_t)1 << 40);
    if (!got)
        cu.Free(address);
    say("errno", errno);
    say("got", got);
    say("refused", refused);
    say("unknown_free", cu.Free(0x1234567800));
}

static void replace_program(char **argv, uint64_t bytes)
{
    CUdeviceptr address;
    char text[32];
    say("before_exec", cu.Alloc(&address, bytes));
    snprintf(text, sizeof text, "%llu", (unsigned long long)bytes);
    execl("/proc/self/exe", argv[0], "linked", "plain", text, (char *)NULL);
    say("exec_failed", errno);
}

int run(int argc, char **argv)
{
    const char *kind = argc > 0 ? argv[0] : "plain";
    uint64_t bytes = number(argc > 1 ? argv[1] : "64M");
    start();
    if (!strcmp(kind, "pitch"))
        fill(take_pitch, give, bytes);
    else if (!strcmp(kind, "managed"))
        fill(take_managed, give, bytes);
    else if (!strcmp(kind, "threads"))
        fill_by_threads(bytes);
    else if (!strcmp(kind, "hold"))
        hold(bytes);
    else if (!strcmp(kind, "errno"))
        keep_errno(bytes);
    else if (!strcmp(kind, "exec"))
        replace_program(argv, bytes);
    else
        fill(take_plain, give, bytes);
    return 0;
}

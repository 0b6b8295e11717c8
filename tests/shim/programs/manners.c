/* manners WAY CASE: what a program may do with its own streams, contexts, threads and descriptors. */
#include "reach.h"

#include <pthread.h>
#include <sys/socket.h>

#define KERNEL_NS 200000ull
#define HEAP_BYTES ((size_t)1 << 30)

static CUfunction kernel(uint64_t ns)
{
    char image[64];
    CUmodule module;
    CUfunction function;
    snprintf(image, sizeof image, "module bytes=1000 kernel=k:%llu", (unsigned long long)ns);
    MUST(cu.ModuleLoad(&module, image));
    MUST(cu.GetFunction(&function, module, "k"));
    return function;
}

static CUresult launch(CUfunction function, CUstream stream)
{
    return cu.Launch(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
}

/* A stream is destroyed while its latest launches are still being timed; the next wait for credit ends their timing. */
static void destroy_streams(void)
{
    CUfunction function = kernel(KERNEL_NS / 20), longer = kernel(KERNEL_NS * 20);
    CUstream stream;
    for (int turn = 0; turn < 20; turn++) {
        MUST(cu.StreamCreate(&stream, 1));
        for (int i = 0; i < 3; i++)
            MUST(launch(function, stream));
        MUST(cu.StreamDestroy(stream));
        MUST(launch(longer, NULL));
        MUST(launch(longer, NULL));
    }
    MUST(cu.CtxSynchronize());
    say("survived", 1);
}

static int socket_of_the_shim(void)
{
    int found = -1;
    for (int descriptor = 3; descriptor < 256; descriptor++) {
        struct sockaddr address;
        socklen_t length = sizeof address;
        if (getpeername(descriptor, &address, &length) == 0 && address.sa_family == AF_UNIX)
            found = descriptor;
    }
    return found;
}

/* A program that closes all descriptors it does not know, and then has one of its own under the same number. */
static void reuse_descriptor(void)
{
    CUdeviceptr address;
    char heard[64];
    MUST(cu.Alloc(&address, 1 << 20));
    usleep(700000); /* the shim has asked by now */
    int theirs = socket_of_the_shim(), pair[2];
    say("found", theirs >= 0);
    close(theirs);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0 || (pair[0] != theirs && dup2(pair[0], theirs) != theirs))
        exit(4);
    usleep(1500000);
    say("heard", recv(pair[1], heard, sizeof heard, MSG_DONTWAIT) > 0);
    say("still_open", send(theirs, "x", 1, MSG_NOSIGNAL) == 1);
}

static void limits_of_the_next_context(void)
{
    CUcontext context;
    size_t free = 0, total = 0, before[2];
    for (int turn = 0; turn < 2; turn++) {
        MUST(cu.CtxCreate(&context, 0, 0));
        MUST(cu.GetInfo(&before[turn], &total));
        MUST(cu.CtxSetLimit(2, HEAP_BYTES));
        MUST(cu.GetInfo(&free, &total));
        say(turn ? "second" : "first", (long long)(before[turn] - free));
        MUST(cu.CtxDestroy(context));
    }
}

static void *allocate_cancelled(void *nothing)
{
    CUdeviceptr address;
    pthread_cancel(pthread_self()); /* takes effect at the next cancellation point */
    cu.Alloc(&address, (size_t)1 << 40);
    return nothing;
}

static void cancel_threads(void)
{
    CUdeviceptr address;
    pthread_t thread;
    pthread_create(&thread, NULL, allocate_cancelled, NULL);
    pthread_join(thread, NULL);
    say("after", cu.Alloc(&address, (size_t)1 << 40) != 0);
}

static _Atomic int stopped;

static void *refuse_for_ever(void *nothing)
{
    CUdeviceptr address;
    while (!stopped)
        cu.Alloc(&address, (size_t)1 << 40); /* refused, and all pools are looked at before */
    return nothing;
}

static void destroy_pools(void)
{
    CUmemPoolProps properties = {.type = 1, .location = {1, 0}};
    pthread_t thread;
    pthread_create(&thread, NULL, refuse_for_ever, NULL);
    for (int turn = 0; turn < 300; turn++) {
        CUmemoryPool pool;
        CUdeviceptr address;
        MUST(cu.PoolCreate(&pool, &properties));
        MUST(cu.AllocFromPool(&address, 1 << 20, pool, NULL));
        MUST(cu.FreeAsync(address, NULL));
        MUST(cu.StreamSynchronize(NULL));
        MUST(cu.PoolDestroy(pool));
    }
    stopped = 1;
    pthread_join(thread, NULL);
    say("survived", 1);
}

/* EndCapture of a stream that has no capture says nothing of the one that is open on another. */
static void end_of_no_capture(void)
{
    CUfunction function = kernel(KERNEL_NS);
    CUstream captured, plain;
    CUgraph graph = NULL;
    MUST(cu.StreamCreate(&captured, 1));
    MUST(cu.StreamCreate(&plain, 1));
    for (int i = 0; i < 3; i++)
        MUST(launch(function, plain));
    MUST(cu.BeginCapture(captured, 0));
    say("refused", cu.EndCapture(plain, &graph) != 0);
    for (int i = 0; i < 40; i++)
        MUST(launch(function, captured));
    say("ended", cu.EndCapture(captured, &graph));
    say("graph", graph != NULL);
}

int run(int argc, char **argv)
{
    const char *kind = argc > 0 ? argv[0] : "";
    start();
    if (!strcmp(kind, "streams"))
        destroy_streams();
    else if (!strcmp(kind, "descriptor"))
        reuse_descriptor();
    else if (!strcmp(kind, "limits"))
        limits_of_the_next_context();
    else if (!strcmp(kind, "cancel"))
        cancel_threads();
    else if (!strcmp(kind, "pools"))
        destroy_pools();
    else if (!strcmp(kind, "captures"))
        end_of_no_capture();
    return 0;
}

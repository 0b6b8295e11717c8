/* implicit WAY module|library|context|heap|stack|mixed BYTES: memory that is taken beside. */
#include "fill.h"

#include <pthread.h>

static CUresult take_module(uint64_t bytes, void **piece)
{
    char image[96];
    snprintf(image, sizeof image, "module bytes=%llu kernel=k:1000", (unsigned long long)bytes);
    return cu.ModuleLoad((CUmodule *)piece, image);
}

static CUresult give_module(void *piece)
{
    return cu.ModuleUnload(piece);
}

static CUresult take_context(uint64_t bytes, void **piece)
{
    (void)bytes;
    return cu.CtxCreate((CUcontext *)piece, 0, 0);
}

static CUresult give_context(void *piece)
{
    return cu.CtxDestroy(piece);
}

static void limit(int which, size_t step)
{
    size_t value = step, most = 0;
    CUresult error = 0;
    for (; !error && value < step * 1000; value += step)
        if (!(error = cu.CtxSetLimit(which, value)))
            most = value;
    say("most", (long long)most);
    say("error", error);
    say("taken", (long long)fakeBytesTaken((uint32_t)getpid()));
    say("back", cu.CtxSetLimit(which, step));
    say("left", (long long)fakeBytesTaken((uint32_t)getpid()));
}

/* A library costs where its first kernel is launched; the limiter looks about once a second. */
static void lazily(uint64_t bytes)
{
    char image[96];
    CUlibrary library;
    CUkernel kernel;
    CUdeviceptr address;
    CUresult error = 0;
    snprintf(image, sizeof image, "module bytes=%llu kernel=k:1000", (unsigned long long)bytes);
    MUST(cu.LibraryLoad(&library, image, NULL, NULL, 0, NULL, NULL, 0));
    MUST(cu.LibraryKernel(&kernel, library, "k"));
    say("launch", cu.Launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    usleep(1500000);
    while (!error)
        error = cu.Alloc(&address, (size_t)64 << 20);
    say("error", error);
    say("taken", (long long)fakeBytesTaken((uint32_t)getpid()));
}

#define THREADS 4

static CUcontext shared_context;

static void *allocate_all(void *unused)
{
    CUdeviceptr address;
    cu.CtxSetCurrent(shared_context);
    while (!cu.Alloc(&address, (size_t)16 << 20))
        ;
    return unused;
}

/* Memory that is asked for and memory that is found out about, taken at the same time. */
static void mixed(uint64_t bytes)
{
    pthread_t threads[THREADS];
    void *piece;
    MUST(cu.PrimaryRetain(&shared_context, 0));
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, allocate_all, NULL);
    while (!take_module(bytes, &piece))
        ;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    say("taken", (long long)fakeBytesTaken((uint32_t)getpid()));
}

int run(int argc, char **argv)
{
    const char *kind = argc > 0 ? argv[0] : "module";
    uint64_t bytes = number(argc > 1 ? argv[1] : "128M");
    start();
    if (!strcmp(kind, "context"))
        fill(take_context, give_context, (uint64_t)500 << 20);
    else if (!strcmp(kind, "heap"))
        limit(LIMIT_HEAP, bytes);
    else if (!strcmp(kind, "stack"))
        limit(LIMIT_STACK, bytes);
    else if (!strcmp(kind, "mixed"))
        mixed(bytes);
    else if (!strcmp(kind, "library"))
        lazily(bytes);
    else
        fill(take_module, give_module, bytes);
    return 0;
}

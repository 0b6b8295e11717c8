/* pools WAY async|pool|cross|capture: memory in the order of a stream. */
#include "fill.h"

static CUstream stream;
static CUmemoryPool pool;

static CUresult take_async(uint64_t bytes, void **piece)
{
    return cu.AllocAsync((CUdeviceptr *)piece, bytes, stream);
}

static CUresult take_pool(uint64_t bytes, void **piece)
{
    return cu.AllocFromPool((CUdeviceptr *)piece, bytes, pool, stream);
}

/* The pool gives back at the next wait, so the waiting is part of the giving. */
static CUresult give(void *piece)
{
    CUresult result = cu.FreeAsync((CUdeviceptr)(uintptr_t)piece, stream);
    CUresult waited = cu.StreamSynchronize(stream);
    return result ? result : waited;
}

static void make_pool(void)
{
    CUmemPoolProps properties = {.type = 1, .location = {LOCATION_DEVICE, 0}};
    MUST(cu.PoolCreate(&pool, &properties));
}

/* Every legal pairing of one call's memory with another call's free. */
static void cross(void)
{
    CUdeviceptr address = 0;
    long long before = (long long)fakeBytesTaken((uint32_t)getpid());
    for (int i = 0; i < 200; i++) {
        MUST(cu.AllocAsync(&address, (size_t)64 << 20, stream));
        MUST(cu.StreamSynchronize(stream));
        MUST(cu.Free(address));
        MUST(cu.AllocFromPool(&address, (size_t)64 << 20, pool, stream));
        MUST(cu.Free(address));
        MUST(cu.AllocFromPool(&address, (size_t)64 << 20, pool, stream));
        MUST(cu.FreeAsync(address, stream));
        MUST(cu.Alloc(&address, (size_t)64 << 20));
        MUST(cu.FreeAsync(address, stream));
        MUST(cu.StreamSynchronize(stream));
    }
    say("leaked", (long long)fakeBytesTaken((uint32_t)getpid()) - before);
    say("crossed", 1);
}

static void pools_that_die(void)
{
    CUdeviceptr address = 0;
    for (int i = 0; i < 100; i++) {
        make_pool();
        MUST(cu.AllocFromPool(&address, (size_t)512 << 20, pool, stream));
        MUST(cu.FreeAsync(address, stream));
        MUST(cu.PoolDestroy(pool));
    }
    say("destroyed", 1);
}

static void threshold(void)
{
    CUdeviceptr address = 0;
    uint64_t all = UINT64_MAX;
    MUST(cu.PoolSet(pool, POOL_RELEASE_THRESHOLD, &all));
    MUST(cu.AllocFromPool(&address, (size_t)2 << 30, pool, stream));
    MUST(cu.FreeAsync(address, stream));
    MUST(cu.StreamSynchronize(stream));
    say("kept", (long long)fakeBytesTaken((uint32_t)getpid()));
    say("refused", cu.Alloc(&address, (size_t)2 << 30));
    MUST(cu.PoolTrim(pool, 0));
    say("after_trim", cu.Alloc(&address, (size_t)2 << 30));
}

int run(int argc, char **argv)
{
    const char *kind = argc > 0 ? argv[0] : "async";
    uint64_t bytes = number(argc > 1 ? argv[1] : "64M");
    start();
    if (strcmp(kind, "default"))
        MUST(cu.StreamCreate(&stream, STREAM_NON_BLOCKING));
    make_pool();
    if (!strcmp(kind, "pool"))
        fill(take_pool, give, bytes);
    else if (!strcmp(kind, "cross"))
        cross();
    else if (!strcmp(kind, "die"))
        pools_that_die();
    else if (!strcmp(kind, "threshold"))
        threshold();
    else
        fill(take_async, give, bytes);
    return 0;
}

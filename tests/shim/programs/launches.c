/* launches WAY KIND KERNEL_NS SECONDS [STREAMS]: launches as fast as it is let, in its own way; tells the GPU time it got.
 * KIND mixed: one kernel and grid, and the two lengths of KERNEL_NS ("20000,300000") in no order that can be learned;
 * waited: the same, and each launch is waited for before the next; alternating: 300 of the first length are queued, then
 * 60 of the second are waited for one by one; phased: the first length and its threefold until the limiter has learned,
 * the second alone after that; once-longer and long-longer: the first length in the first launch or the first hundred. */
#include "reach.h"

#include <time.h>

#define STREAMS_MAX 8
#define GRAPH_KERNELS 10

static CUfunction function;
static CUstream streams[STREAMS_MAX];
static CUgraphExec exec;
static int stream_count = 1;
static uint64_t longest_ns, calls;

static uint64_t now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

static CUresult plain(CUstream stream)
{
    return cu.Launch(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
}

static CUresult extended(CUstream stream)
{
    CUlaunchConfig config = {.grid = {1, 1, 1}, .block = {32, 1, 1}, .stream = stream};
    return cu.LaunchEx(&config, function, NULL, NULL);
}

static CUresult cooperative(CUstream stream)
{
    return cu.LaunchCooperative(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL);
}

static CUresult multi(CUstream stream)
{
    CUlaunchParams launch = {.function = function, .grid = {1, 1, 1}, .block = {32, 1, 1}, .stream = stream};
    return cu.LaunchMulti(&launch, 1, 0);
}

static uint64_t lengths_ns[2];

static CUresult mixed(CUstream stream)
{
    static uint32_t drawn = 1;
    drawn = drawn * 1664525u + 1013904223u;
    void *parameters[] = {&lengths_ns[drawn >> 31]};
    return cu.Launch(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL);
}

static CUresult waited(CUstream stream)
{
    CUresult result = mixed(stream);
    return result ? result : cu.StreamSynchronize(stream);
}

static CUresult alternating(CUstream stream)
{
    static uint32_t launched;
    uint32_t at = launched++ % 360;
    void *parameters[] = {&lengths_ns[at >= 300]};
    CUresult result = cu.Launch(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL);
    return result || at < 299 ? result : cu.StreamSynchronize(stream);
}

static int learned;

static CUresult phased(CUstream stream)
{
    static uint32_t launched;
    uint64_t length_ns = learned ? lengths_ns[1] : lengths_ns[0] * (launched++ % 3 == 2 ? 3 : 1);
    void *parameters[] = {&length_ns};
    return cu.Launch(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL);
}

static CUresult longer_first(CUstream stream, uint32_t many)
{
    static uint32_t launched;
    void *parameters[] = {&lengths_ns[launched++ >= many]};
    return cu.Launch(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL);
}

static CUresult once_longer(CUstream stream)
{
    return longer_first(stream, 1);
}

static CUresult long_longer(CUstream stream)
{
    return longer_first(stream, 100);
}

static CUresult graph(CUstream stream)
{
    return cu.GraphLaunch(exec, stream);
}

static void make_graph(void)
{
    CUgraph made;
    CUgraphNode node = NULL;
    CUkernelNode kernel = {.function = function, .grid = {1, 1, 1}, .block = {32, 1, 1}};
    MUST(cu.GraphCreate(&made, 0));
    for (int i = 0; i < GRAPH_KERNELS; i++) {
        CUgraphNode before = node;
        MUST(cu.GraphAddKernel(&node, made, &before, i > 0, &kernel));
    }
    MUST(cu.Instantiate(&exec, made, 0));
}

/* How long this thread was ready and no processor was free for it: a launch that comes late is not the limiter's doing. */
static uint64_t starved_ns(void)
{
    unsigned long long ran = 0, waited = 0;
    FILE *file = fopen("/proc/thread-self/schedstat", "re");
    if (file) {
        if (fscanf(file, "%llu %llu", &ran, &waited) != 2)
            waited = 0;
        fclose(file);
    }
    return waited;
}

static void launch_for(CUresult (*launch)(CUstream), uint64_t until)
{
    int turn = 0;
    for (uint64_t at = now(); at < until;) {
        MUST(launch(streams[turn++ % stream_count]));
        uint64_t after = now();
        if (after - at > longest_ns)
            longest_ns = after - at;
        at = after;
        calls++;
    }
}

int run(int argc, char **argv)
{
    const char *kind = argc > 0 ? argv[0] : "plain";
    double seconds = argc > 2 ? atof(argv[2]) : 1;
    char image[96];
    CUmodule module;
    stream_count = argc > 3 ? atoi(argv[3]) : 1;
    start();
    const char *kernel = argc > 1 ? argv[1] : "1000000";
    if (strchr(kernel, ',')) {
        lengths_ns[0] = strtoull(kernel, NULL, 0);
        lengths_ns[1] = strtoull(strchr(kernel, ',') + 1, NULL, 0);
        kernel = "parameter";
    }
    snprintf(image, sizeof image, "module bytes=4096 kernel=k:%s", kernel);
    MUST(cu.ModuleLoad(&module, image));
    MUST(cu.GetFunction(&function, module, "k"));
    for (int i = 0; i < stream_count && strcmp(kind, "default"); i++)
        MUST(cu.StreamCreate(&streams[i], STREAM_NON_BLOCKING));
    CUresult (*launch)(CUstream) = !strcmp(kind, "ex")            ? extended
                                   : !strcmp(kind, "cooperative") ? cooperative
                                   : !strcmp(kind, "multi")       ? multi
                                   : !strcmp(kind, "graph")       ? graph
                                   : !strcmp(kind, "mixed")       ? mixed
                                   : !strcmp(kind, "waited")      ? waited
                                   : !strcmp(kind, "alternating") ? alternating
                                   : !strcmp(kind, "phased")      ? phased
                                   : !strcmp(kind, "once-longer") ? once_longer
                                   : !strcmp(kind, "long-longer") ? long_longer
                                                                  : plain;
    if (launch == graph)
        make_graph();
    launch_for(launch, now() + (uint64_t)(seconds * 0.4e9)); /* the limiter learns */
    learned = 1;
    uint64_t from = now(), busy = fakeBusyNs((uint32_t)getpid()), starved = starved_ns();
    longest_ns = calls = 0;
    launch_for(launch, from + (uint64_t)(seconds * 1e9));
    uint64_t took = now() - from;
    busy = fakeBusyNs((uint32_t)getpid()) - busy;
    say("launches", (long long)calls);
    say("starved_permille", (long long)((starved_ns() - starved) * 1000 / took));
    say("starved_us", (long long)((starved_ns() - starved) / 1000));
    say("permille", (long long)(busy * 1000 / took));
    say("longest_us", (long long)(longest_ns / 1000));
    fflush(stdout);
    _exit(0); /* what is queued need not run */
}

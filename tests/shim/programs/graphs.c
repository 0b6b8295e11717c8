/* graphs WAY node|addnode|child|captured: memory that graphs take when they are launched. */
#include "fill.h"

static CUstream stream;
static const char *kind = "node";

static CUresult add_allocation(CUgraph graph, uint64_t bytes, CUdeviceptr *address)
{
    CUgraphNode node = NULL;
    CUgraphNodeParams any = {.type = NODE_ALLOC};
    CUallocNode alloc = {.pool = {.type = 1, .location = {LOCATION_DEVICE, 0}}, .bytes = bytes};
    any.of.alloc = alloc;
    bool by_any = !strcmp(kind, "addnode");
    CUresult result = by_any ? cu.GraphAddNode(&node, graph, NULL, 0, &any)
                             : cu.GraphAddAlloc(&node, graph, NULL, 0, &alloc);
    *address = by_any ? any.of.alloc.address : alloc.address;
    return result ? result : cu.GraphAddFree(&node, graph, &node, 1, *address);
}

static CUresult build(uint64_t bytes, CUgraph *graph)
{
    CUdeviceptr address = 0;
    if (!strcmp(kind, "captured")) {
        MUST(cu.BeginCapture(stream, CAPTURE_GLOBAL));
        CUresult result = cu.AllocAsync(&address, bytes, stream);
        if (!result)
            MUST(cu.FreeAsync(address, stream));
        CUresult ended = cu.EndCapture(stream, graph);
        return result ? result : ended;
    }
    MUST(cu.GraphCreate(graph, 0));
    return add_allocation(*graph, bytes, &address);
}

static CUresult take(uint64_t bytes, void **piece)
{
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    CUresult result = build(bytes, &graph);
    if (!result)
        result = cu.Instantiate(&exec, graph, 0);
    if (!result && (result = cu.GraphLaunch(exec, stream)))
        cu.ExecDestroy(exec);
    if (graph)
        cu.GraphDestroy(graph);
    *piece = exec;
    return result;
}

static CUresult give(void *piece)
{
    CUresult result = cu.StreamSynchronize(stream);
    if (!result)
        result = cu.ExecDestroy(piece);
    return result ? result : cu.GraphTrim(0);
}

/* A capture with everything in it that programs capture must come out whole under a limit. */
static void capture(void)
{
    CUmodule module;
    CUfunction function;
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    CUdeviceptr address = 0;
    MUST(cu.ModuleLoad(&module, "module bytes=4096 kernel=k:100000"));
    MUST(cu.GetFunction(&function, module, "k"));
    for (int i = 0; i < 50; i++)
        MUST(cu.Launch(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    for (int mode = CAPTURE_GLOBAL; mode <= CAPTURE_RELAXED; mode++) {
        MUST(cu.BeginCapture(stream, mode));
        for (int i = 0; i < 40; i++)
            MUST(cu.Launch(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
        MUST(cu.AllocAsync(&address, 1 << 20, stream));
        MUST(cu.FreeAsync(address, stream));
        MUST(cu.EndCapture(stream, &graph));
        MUST(cu.Instantiate(&exec, graph, 0));
        MUST(cu.GraphLaunch(exec, stream));
        MUST(cu.StreamSynchronize(stream));
        MUST(cu.ExecDestroy(exec));
        MUST(cu.GraphDestroy(graph));
    }
    say("captured", 1);
}

/* What a graph will take when it is launched must still be there then, however often the process was measured since. */
static void unlaunched(uint64_t bytes)
{
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    CUdeviceptr address = 0;
    CUmodule module;
    CUresult error = 0;
    kind = "node";
    MUST(build((uint64_t)1 << 30, &graph));
    MUST(cu.Instantiate(&exec, graph, 0));
    for (int i = 0; i < 8; i++)
        MUST(cu.ModuleLoad(&module, "module bytes=16777216 kernel=k:1000"));
    while (!error)
        error = cu.Alloc(&address, bytes);
    say("error", error);
    say("launched", cu.GraphLaunch(exec, stream));
    say("taken", (long long)fakeBytesTaken((uint32_t)getpid()));
}

int run(int argc, char **argv)
{
    uint64_t bytes = number(argc > 1 ? argv[1] : "64M");
    kind = argc > 0 ? argv[0] : "node";
    start();
    MUST(cu.StreamCreate(&stream, STREAM_NON_BLOCKING));
    if (!strcmp(kind, "capture"))
        capture();
    else if (!strcmp(kind, "unlaunched"))
        unlaunched(bytes);
    else
        fill(take, give, bytes);
    return 0;
}

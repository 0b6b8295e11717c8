/* probe share KIND LOOPS BLOCKS BATCH ALONE_NS SECONDS STREAMS: keeps the GPU as busy as it is let for SECONDS of GPU
 * time and tells when each batch of kernels ended, by the GPU's own timestamps.
 * KIND: launch, ex, cooperative, ptsz, graph (of ten kernels), varying (a tenth of LOOPS or as much more, in no order,
 * so that they are LOOPS on average). Prints `ready`, waits for a line, then prints
 * `end <ms since the start> <kernels>` for every batch and `stall <longest call in ns> <calls>`.
 * probe share time BLOCKS NS: prints `alone <loops> <ns>`, a loop count whose kernel takes about NS on an idle GPU, and
 * what it takes.
 */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STREAMS_MAX 8
#define AHEAD_MAX 64
#define AHEAD_NS 60000000.0 /* work queued per stream: enough that the GPU never waits for the host */
#define BLOCK_THREADS 256
#define GRAPH_KERNELS 10
#define ENDS_MAX 2000000
#define TIMED_KERNELS 10

static struct driver cu;
static CUfunction chain;

struct work {
    const char *kind;
    uint64_t loops;
    unsigned blocks, batch;
    CUgraphExec graph;
    uint64_t stall_ns, calls;
};

struct batch {
    CUevent event;
    unsigned kernels;
};

struct lane {
    CUstream stream;
    struct batch ring[AHEAD_MAX];
    unsigned oldest, waiting;
};

struct end {
    float at_ms;
    unsigned kernels;
};

static uint64_t varied(uint64_t loops) {
    static uint32_t drawn = 1;
    drawn = drawn * 1664525u + 1013904223u;
    return drawn >> 31 ? loops / 10 : loops * 19 / 10;
}

static void launch_one(struct work *work, CUstream stream) {
    uint64_t loops = strcmp(work->kind, "varying") ? work->loops : varied(work->loops);
    void *parameters[] = {&loops};
    unsigned blocks = work->blocks;
    CUresult result;
    uint64_t began = now_ns();
    if (!strcmp(work->kind, "ex")) {
        struct launch_configuration configuration = {{blocks, 1, 1}, {BLOCK_THREADS, 1, 1}, 0, stream, NULL, 0};
        result = cu.launch_ex(&configuration, chain, parameters, NULL);
    } else if (!strcmp(work->kind, "cooperative")) {
        result = cu.launch_cooperative(chain, blocks, 1, 1, BLOCK_THREADS, 1, 1, 0, stream, parameters);
    } else if (!strcmp(work->kind, "ptsz")) {
        result = cu.launch_ptsz(chain, blocks, 1, 1, BLOCK_THREADS, 1, 1, 0, stream, parameters, NULL);
    } else if (!strcmp(work->kind, "graph")) {
        result = cu.graph_launch(work->graph, stream);
    } else {
        result = cu.launch(chain, blocks, 1, 1, BLOCK_THREADS, 1, 1, 0, stream, parameters, NULL);
    }
    uint64_t took = now_ns() - began;
    if (took > work->stall_ns) work->stall_ns = took;
    work->calls++;
    check(result, work->kind);
}

static void make_graph(struct work *work) {
    CUgraph graph;
    CUgraphNode node = NULL;
    void *parameters[] = {&work->loops};
    struct kernel_node_parameters kernel = {
        .function = chain, .grid = {work->blocks, 1, 1}, .block = {BLOCK_THREADS, 1, 1}, .parameters = parameters};
    check(cu.graph_create(&graph, 0), "cuGraphCreate");
    for (int i = 0; i < GRAPH_KERNELS; i++) {
        CUgraphNode before = node;
        check(cu.graph_add_kernel(&node, graph, before ? &before : NULL, before ? 1 : 0, &kernel), "cuGraphAddKernelNode");
    }
    check(cu.graph_instantiate(&work->graph, graph, 0), "cuGraphInstantiate");
}

/* Waits for the oldest batch of a lane; returns when it ended, since `base`. */
static float finish_oldest(struct lane *lane, CUevent base) {
    struct batch *batch = &lane->ring[lane->oldest];
    float at_ms;
    check(cu.event_sync(batch->event), "cuEventSynchronize");
    check(cu.event_elapsed(&at_ms, base, batch->event), "cuEventElapsedTime");
    lane->oldest = (lane->oldest + 1) % AHEAD_MAX;
    lane->waiting--;
    return at_ms;
}

static void issue(struct lane *lane, struct work *work) {
    struct batch *batch = &lane->ring[(lane->oldest + lane->waiting) % AHEAD_MAX];
    unsigned each = strcmp(work->kind, "graph") ? 1 : GRAPH_KERNELS;
    for (unsigned i = 0; i < work->batch; i++) launch_one(work, lane->stream);
    batch->kernels = work->batch * each;
    check(cu.event_record(batch->event, lane->stream), "cuEventRecord");
    lane->waiting++;
}

static size_t run(struct work *work, struct lane *lanes, unsigned count, unsigned ahead, double seconds, CUevent base,
                  struct end *ends) {
    size_t ended = 0;
    float at_ms = 0;
    for (unsigned i = 0; at_ms < seconds * 1000 && ended < ENDS_MAX; i = (i + 1) % count) {
        if (lanes[i].waiting < ahead) {
            issue(&lanes[i], work);
            continue;
        }
        unsigned kernels = lanes[i].ring[lanes[i].oldest].kernels;
        at_ms = finish_oldest(&lanes[i], base);
        ends[ended++] = (struct end){at_ms, kernels};
    }
    return ended;
}

/* Nanoseconds of one kernel, the mean of several in a row. */
static double alone_ns(uint64_t loops, unsigned blocks, CUevent from, CUevent to) {
    struct work work = {.kind = "launch", .loops = loops, .blocks = blocks};
    float ms = 0;
    launch_one(&work, NULL);
    check(cu.event_record(from, NULL), "cuEventRecord");
    for (int i = 0; i < TIMED_KERNELS; i++) launch_one(&work, NULL);
    check(cu.event_record(to, NULL), "cuEventRecord");
    check(cu.event_sync(to), "cuEventSynchronize");
    check(cu.event_elapsed(&ms, from, to), "cuEventElapsedTime");
    return ms * 1e6 / TIMED_KERNELS;
}

static void find_loops(unsigned blocks, double wanted_ns) {
    CUevent from, to;
    check(cu.event_create(&from, CU_EVENT_DEFAULT), "cuEventCreate");
    check(cu.event_create(&to, CU_EVENT_DEFAULT), "cuEventCreate");
    for (uint64_t began = now_ns(); now_ns() - began < 300000000;) alone_ns(10000, blocks, from, to); /* the clock rises */
    double loops = wanted_ns / (alone_ns(100000, blocks, from, to) / 100000);
    for (int i = 0; i < 3; i++) { /* a launch has a fixed part, which counts in short ones */
        double took = alone_ns((uint64_t)loops, blocks, from, to), slope = wanted_ns / loops;
        loops += (wanted_ns - took) / slope;
        if (loops < 1) loops = 1;
    }
    printf("alone %llu %.1f\n", (unsigned long long)loops, alone_ns((uint64_t)loops, blocks, from, to));
}

int share_main(int count, char **words) {
    if (count < 4) return 2;
    setvbuf(stdout, NULL, _IOFBF, 1 << 20);
    check(driver_open(&cu, "dlsym"), "start");
    chain = chain_function(&cu);
    if (!strcmp(words[1], "time")) {
        find_loops((unsigned)atoi(words[2]), atof(words[3]));
        return 0;
    }
    if (count < 8) return 2;
    struct work work = {.kind = words[1], .loops = strtoull(words[2], NULL, 10), .blocks = (unsigned)atoi(words[3]),
                        .batch = (unsigned)atoi(words[4])};
    double each_ns = atof(words[5]), seconds = atof(words[6]);
    unsigned streams = (unsigned)atoi(words[7]);
    static struct lane lanes[STREAMS_MAX];
    struct end *ends = calloc(ENDS_MAX, sizeof *ends);
    if (!ends || streams < 1 || streams > STREAMS_MAX) return 2;
    if (!strcmp(work.kind, "graph")) make_graph(&work);
    double batch_ns = each_ns * work.batch * (strcmp(work.kind, "graph") ? 1 : GRAPH_KERNELS);
    unsigned ahead = (unsigned)(AHEAD_NS / batch_ns);
    ahead = ahead < 2 ? 2 : ahead > AHEAD_MAX ? AHEAD_MAX : ahead;
    for (unsigned i = 0; i < streams; i++) {
        if (!strcmp(work.kind, "ptsz")) lanes[i].stream = CU_STREAM_PER_THREAD;
        else check(cu.stream_create(&lanes[i].stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        for (int j = 0; j < AHEAD_MAX; j++) check(cu.event_create(&lanes[i].ring[j].event, CU_EVENT_DEFAULT), "cuEventCreate");
    }
    CUevent base;
    check(cu.event_create(&base, CU_EVENT_DEFAULT), "cuEventCreate");
    printf("ready\n");
    fflush(stdout);
    if (getchar() == EOF) return 4;
    check(cu.event_record(base, lanes[0].stream), "cuEventRecord");
    check(cu.event_sync(base), "cuEventSynchronize");
    size_t ended = run(&work, lanes, streams, ahead, seconds, base, ends);
    for (size_t i = 0; i < ended; i++) printf("end %.4f %u\n", ends[i].at_ms, ends[i].kernels);
    printf("stall %llu %llu\n", (unsigned long long)work.stall_ns, (unsigned long long)work.calls);
    return 0;
}

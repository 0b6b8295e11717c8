/* A graph and what was made of it, for the two files that handle them. */
#ifndef TOPOALLOC_TESTS_GRAPHS_H
#define TOPOALLOC_TESTS_GRAPHS_H

#include "driver.h"

#define GRAPH_MAGIC UINT64_C(0x64a40001)
#define EXEC_MAGIC UINT64_C(0x64a40002)

struct CUnode_st {
    int type;
    CUgraph graph;
    size_t index;
    size_t *after; /* indexes of the nodes it follows */
    size_t after_count;
    uint64_t duration_ns;
    CUkernelNode kernel;
    uint64_t bytes; /* of an alloc node */
    CUdeviceptr address;
    CUgraph child;
};

struct CUgraph_st {
    uint64_t magic;
    CUgraphNode *nodes;
    size_t count;
};

struct CUexec_st {
    uint64_t magic;
    CUgraph graph; /* its own copy */
    uint64_t duration_ns, bytes;
    unsigned long long flags;
    bool backed;
};

CUgraph graph_clone(CUgraph graph);
uint64_t graph_duration(const struct CUgraph_st *graph);
CUresult exec_back(CUgraphExec exec);
void exec_unback(CUgraphExec exec);

#endif

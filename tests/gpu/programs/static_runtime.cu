// The same as `probe memory plain` through the CUDA runtime that nvcc links statically.
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

int main(int count, char **words) {
    size_t chunk = count > 1 ? strtoull(words[1], nullptr, 10) : 1 << 26;
    size_t most = count > 2 ? strtoull(words[2], nullptr, 10) : chunk, asked = 0;
    void *at;
    cudaError_t result = cudaFree(nullptr);
    printf("ready\n");
    fflush(stdout);
    if (getchar() == EOF) return 4;
    while (result == cudaSuccess && asked + chunk <= most && (result = cudaMalloc(&at, chunk)) == cudaSuccess)
        asked += chunk;
    printf("held %zu %d cudaMalloc\n", asked, (int)result);
    fflush(stdout);
    while (getchar() != EOF) {
    }
    return 0;
}

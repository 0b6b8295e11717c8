"""Fills memory with CuPy until it refuses, then multiplies matrices in what is left."""

import sys

import cupy

blocks = []
try:
    while len(blocks) < 96:
        blocks.append(cupy.zeros(16 << 20, dtype=cupy.float32))
except cupy.cuda.memory.OutOfMemoryError:
    refused = "OutOfMemoryError"
else:
    refused = "not-refused"
print("held", len(blocks) * (64 << 20), flush=True)
sys.stdin.readline()
del blocks
cupy.get_default_memory_pool().free_all_blocks()
a = cupy.ones((2048, 2048), dtype=cupy.float32)
for _ in range(50):
    b = a @ a
kernel = cupy.RawKernel('extern "C" __global__ void twice(float *x) { x[blockIdx.x] *= 2; }', "twice")
kernel((2048,), (1,), (b,))
assert float(b[0, 0]) == 4096.0 and float(b[1, 0]) == 2048.0
assert refused == "OutOfMemoryError", refused
print("done", "right", refused, flush=True)

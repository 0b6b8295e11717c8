"""Adds two vectors with a Triton kernel a hundred times."""

import sys

import torch
import triton
import triton.language as tl


@triton.jit
def add(a, b, out, count, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out + at, tl.load(a + at, at < count) + tl.load(b + at, at < count), at < count)


count = 64 << 20
a, b = (torch.full((count,), value, device="cuda") for value in (1.0, 2.0))
out = torch.empty_like(a)
for _ in range(100):
    add[(triton.cdiv(count, 1024),)](a, b, out, count, block=1024)
torch.cuda.synchronize()
print("held", 3 * 4 * count, flush=True)
sys.stdin.readline()
assert out.min().item() == out.max().item() == 3.0
print("done", "right", flush=True)

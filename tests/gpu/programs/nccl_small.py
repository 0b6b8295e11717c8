"""All-reduces with NCCL in a world of one."""

import os
import sys

import torch
import torch.distributed as dist

os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getpid() % 20000), RANK="0", WORLD_SIZE="1")
torch.cuda.set_device(0)
dist.init_process_group("nccl")
x = torch.ones(64 << 20, device="cuda")
for _ in range(20):
    dist.all_reduce(x)
torch.cuda.synchronize()
print("held", x.numel() * 4, flush=True)
sys.stdin.readline()
assert x.sum().item() == float(64 << 20)
dist.destroy_process_group()
print("done", "right", flush=True)

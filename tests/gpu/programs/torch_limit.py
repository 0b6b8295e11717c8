"""Takes tensors of 64 MiB until torch refuses, prints `held <bytes> <error>`, waits for a line, then frees half of them
and trains; `went-on <steps>`."""

import sys

import torch

CHUNK = 64 << 20
MOST = 6 << 30

torch.ones(1, device="cuda")
tensors, error = [], "none"
try:
    while len(tensors) * CHUNK < MOST:
        tensors.append(torch.empty(CHUNK, dtype=torch.uint8, device="cuda"))
    torch.cuda.synchronize()
except torch.cuda.OutOfMemoryError:
    error = "OutOfMemoryError"
except Exception as other:
    error = f"{type(other).__name__}:{other}".replace(" ", "_")[:200]
print("held", len(tensors) * CHUNK, error, flush=True)
sys.stdin.readline()
del tensors[: len(tensors) // 2]
torch.cuda.empty_cache()
model = torch.nn.Linear(1024, 1024).cuda()
optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(256, 1024, device="cuda")
steps = 0
for _ in range(20):
    loss = model(x).pow(2).mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    steps += bool(torch.isfinite(loss).item())
print("went-on", steps, flush=True)

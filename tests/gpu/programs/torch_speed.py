"""`torch_speed.py WORKLOAD[/PERCENT]...`: runs each for five seconds, prints `work <name> <units per second>...`.

One figure per second after a second and a half of warming up. Completions are counted, by events, never launches.

With a percentage it rests between batches, so that the GPU is busy for that part of the time, and the figures are units
per busy second: what a share of that size does in the time it has, at the clock the GPU then runs at.
"""

import collections
import sys
import time

import torch

AHEAD = 4
WARM_UP_S = 1.5
WINDOWS = 3
BATCH_S = 0.02


def matmul():
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    return lambda: torch.matmul(a, b, out=out), 1


def mlp():
    layers = [torch.nn.Linear(2048, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 2048)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(2048, 2048)).cuda().bfloat16()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x, y = (torch.randn(8192, 2048, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def step():
        optimiser.zero_grad(set_to_none=True)
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimiser.step()

    return step, 1


def small():
    x = torch.ones(8 << 20, device="cuda")

    def step():
        for _ in range(50):
            x.mul_(1.0001)

    return step, 50


def tiny():
    x = torch.ones(1024, device="cuda")

    def step():
        for _ in range(200):
            x.mul_(1.0001)

    return step, 200


def graph():
    a, b = (torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.matmul(a, b, out=out)
    side.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for _ in range(10):
            torch.matmul(a, b, out=out)
    return captured.replay, 1


def completions(step, repeats):
    """(time, units) of every batch as it is seen to be done, for as long as is asked."""
    waiting = collections.deque()
    until = time.monotonic() + WARM_UP_S + WINDOWS + 0.3
    while time.monotonic() < until:
        for _ in range(repeats):
            step()
        event = torch.cuda.Event()
        event.record()
        waiting.append(event)
        if len(waiting) >= AHEAD:
            waiting.popleft().synchronize()
            yield time.monotonic()
    for event in waiting:
        event.synchronize()


def rested(step, repeats, busy_part):
    """Units per busy second of every batch, for as long as is asked."""
    until = time.monotonic() + WARM_UP_S + WINDOWS
    while time.monotonic() < until:
        began = time.monotonic()
        for _ in range(repeats):
            step()
        torch.cuda.synchronize()
        busy_s = time.monotonic() - began
        time.sleep(busy_s * (1 / busy_part - 1))
        yield repeats / busy_s


def run(name):
    plain, _, percent = name.partition("/")
    step, units = {"matmul": matmul, "mlp": mlp, "small": small, "tiny": tiny, "graph": graph}[plain]()
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    began = time.monotonic()
    step()
    torch.cuda.synchronize()
    repeats = max(1, min(1000, round(BATCH_S / (time.monotonic() - began))))
    if percent:
        rates = [units * rate for rate in rested(step, repeats, int(percent) / 100)]
        print("work", name, *(f"{rate:.3f}" for rate in rates[len(rates) // 4 :][-WINDOWS * 20 :]), flush=True)
        return
    began = time.monotonic()
    windows, before = [0.0] * WINDOWS, began
    for at in completions(step, repeats):
        for index in range(WINDOWS):  # the batch is spread over the time since the one before
            low = began + WARM_UP_S + index
            overlap = min(at, low + 1) - max(before, low)
            if overlap > 0:
                windows[index] += repeats * units * overlap / (at - before)
        before = at
    print("work", name, *(f"{window:.3f}" for window in windows), flush=True)
    torch.cuda.empty_cache()


if __name__ == "__main__":
    torch.ones(1, device="cuda").sum().item()
    print("ready", flush=True)
    for wanted in sys.argv[1:]:
        run(wanted)

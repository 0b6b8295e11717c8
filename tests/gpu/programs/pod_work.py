"""What the pods of the whole proof run: `pod_work.py FOLDER [dry]`.

Writes FOLDER/said.jsonl, one JSON object a line; does what FOLDER/mode says: idle, fill (tensors of 64 MiB until torch
refuses), free, train (steps counted as they complete, one line a second), train/80 (the same with pauses, so that it is
busy for 80 percent of the time; the figure is steps per busy second). `dry` needs no torch and no GPU.
"""

import collections
import json
import sys
import time
from pathlib import Path

CHUNK = 64 << 20
AHEAD = 4
STEPS_PER_EVENT = 4


class Torch:
    def __init__(self):
        import torch
        from torch_speed import mlp

        self.torch, self.tensors, self.make, self.step = torch, [], mlp, None

    def sees(self):
        free, total = self.torch.cuda.mem_get_info()
        properties = self.torch.cuda.get_device_properties(0)
        return {
            "free": free,
            "total": total,
            "properties": properties.total_memory,
            "devices": self.torch.cuda.device_count(),
            "name": properties.name,
        }

    def fill(self):
        error = "none"
        try:
            while True:
                self.tensors.append(self.torch.empty(CHUNK, dtype=self.torch.uint8, device="cuda"))
        except self.torch.cuda.OutOfMemoryError:
            error = "OutOfMemoryError"
        return {"bytes": len(self.tensors) * CHUNK, "error": error}

    def free(self):
        self.tensors.clear()
        self.torch.cuda.empty_cache()
        return {}

    def batches(self):
        """Yields the number of steps that have just completed."""
        if self.step is None:
            self.step = self.make()[0]
        waiting = collections.deque()
        while True:
            for _ in range(STEPS_PER_EVENT):
                self.step()
            event = self.torch.cuda.Event()
            event.record()
            waiting.append(event)
            if len(waiting) >= AHEAD:
                waiting.popleft().synchronize()
                yield STEPS_PER_EVENT

    def rested(self, busy_part):
        """Steps per busy second, over about one second."""
        if self.step is None:
            self.step = self.make()[0]
        steps, busy_s = 0, 0.0
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            began = time.monotonic()
            for _ in range(STEPS_PER_EVENT):
                self.step()
            self.torch.cuda.synchronize()
            took_s = time.monotonic() - began
            time.sleep(took_s * (1 / busy_part - 1))
            steps, busy_s = steps + STEPS_PER_EVENT, busy_s + took_s
        return steps / busy_s


class Dry:
    def sees(self):
        """What the share file says, where there is one, and whether the library is in this very process."""
        try:
            lines = Path("/etc/topoalloc/share").read_text().splitlines()
        except OSError:
            return {"free": 0, "total": 0, "properties": 0, "devices": 0, "name": "no share"}
        limit = next(int(line.split()[1]) for line in lines if line.startswith("memory "))
        loaded = "libtopoalloc-vcuda.so" in Path("/proc/self/maps").read_text()
        return {"free": 0, "total": limit, "properties": limit, "devices": int(loaded), "name": "; ".join(lines)}

    def fill(self):
        return {"bytes": 0, "error": "OutOfMemoryError"}

    def free(self):
        return {}

    def batches(self):
        while True:
            time.sleep(0.01)
            yield 1

    def rested(self, busy_part):
        time.sleep(1.0)
        return 100.0


def main(folder, dry):
    said = (folder / "said.jsonl").open("a", buffering=1)

    def say(kind, **content):
        said.write(json.dumps({"kind": kind, "at": time.time(), **content}) + "\n")

    def mode():
        try:
            return (folder / "mode").read_text().strip()
        except OSError:
            return "idle"

    say("began")
    work = Dry() if dry else Torch()
    say("sees", **work.sees())
    done = ""
    batches = None
    while True:
        now = mode()
        if now == "train":
            batches = batches or work.batches()
            began, steps = time.monotonic(), 0
            while time.monotonic() - began < 1.0:
                steps += next(batches)
            say("rate", per_s=steps / (time.monotonic() - began))
        elif now.startswith("train/"):
            say("rate", per_s=work.rested(int(now.partition("/")[2]) / 100))
        elif now != done and now in ("fill", "free"):
            say(now, **getattr(work, now)())
        else:
            time.sleep(0.05)
        done = now


main(Path(sys.argv[1]), "dry" in sys.argv[2:])

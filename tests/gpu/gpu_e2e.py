"""Everything on a real GPU: kubelet, containerd, the agent and PyTorch in three pods on one GPU.

`python3 tests/gpu/gpu_e2e.py` needs root, build/gpu-e2e/gpu-e2e.tar.xz (tests/gpu/pack.py) and the library (make shim).
Writes gpu-e2e.json, gpu-e2e.md and the logs into the folder that the environment variable OUT names (./gpu-e2e-results
without it). `--dry` goes through the same steps on a recorded machine: nothing is enforced, PyTorch is not run.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY))

from tests.gpu.gpu_node import KUBELET_FOLDER, RUN_DIR, GpuNode, wait_for  # noqa: E402
from tests.gpu.ground_truth import ClockWatch, GroundTruth  # noqa: E402
from tests.gpu.record import Record, Row, as_markdown, judged, read_rows, say  # noqa: E402

CLONE_NEWNS = 0x20000  # linux/sched.h
MIB, GIB = 1 << 20, 1 << 30
UNIT_BYTES = 256 * MIB
BUDGET_S = 540
POD_START_S = 150.0
POINTS = 2.0
ATTAINABLE_PERCENT = 85  # shares that fill the GPU are only shown: changing between them takes some of it
SETTLE_S = 3.0
CONTEXT_SETTLES_S = 2.5  # until then the library charges what a young context may come to take
WINDOWS = 6
CHUNK_BYTES = 64 * MIB
KEPT_BYTES = UNIT_BYTES  # a limit is met if less than one unit of it cannot be had
DRY_MACHINE = (
    "--machine",
    str(REPOSITORY / "tests/machines/firecracker-2xh200-nv18.smi-q.xml"),
    str(REPOSITORY / "tests/machines/firecracker-2xh200-nv18.sysfs.tar.gz"),
    str(REPOSITORY / "tests/machines/firecracker-2xh200-nv18.topo-m.txt"),
)


@dataclass(frozen=True)
class Tenant:
    name: str
    cores: int
    memory_bytes: int

    @property
    def units(self) -> int:
        return self.memory_bytes // UNIT_BYTES


THIRTY = Tenant("thirty", 30, 20 * GIB)
FIFTY = Tenant("fifty", 50, 40 * GIB)
TWENTY = Tenant("twenty", 20, 8 * GIB)
TENANTS = (THIRTY, FIFTY, TWENTY)
AGAIN = Tenant("again", 20, 8 * GIB)


def said(out: Path, kind: str) -> list[dict[str, Any]]:
    """What a pod's program has said of this kind so far; its last line may be half written."""
    lines = (out / "said.jsonl").read_text().splitlines() if (out / "said.jsonl").exists() else []
    found = [json.loads(line) for line in lines if line.endswith("}")]
    return [entry for entry in found if entry["kind"] == kind]


@dataclass
class Proof:
    node: GpuNode
    record: Record
    truth: GroundTruth | None  # None: dry
    folders: dict[str, Path] = field(default_factory=dict)
    references: dict[int, float] = field(default_factory=dict)  # steps per busy second, by percent of the time busy
    reference_mhz: float = 0.0
    clock: ClockWatch | None = field(init=False)

    def __post_init__(self) -> None:
        self.clock = None if self.truth is None else ClockWatch(self.truth)

    def mhz(self) -> float:
        return 0.0 if self.clock is None else self.clock.mean_mhz()

    @property
    def dry(self) -> bool:
        return self.truth is None

    def command(self, out: str) -> list[str]:
        program = "/repository/tests/gpu/programs/pod_work.py"
        return [sys.executable, program, out, *(["dry"] if self.dry else [])]

    def start(self, tenant: Tenant) -> None:
        self.folders[tenant.name] = self.node.start_pod(tenant.name, tenant.cores, tenant.units, self.command("/out"))

    def mode(self, tenant: Tenant, mode: str) -> None:
        part = self.folders[tenant.name] / "mode.part"
        part.write_text(mode)
        part.rename(self.folders[tenant.name] / "mode")

    def wait_said(self, tenant: Tenant, kind: str, timeout_s: float, after_s: float = 0.0) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            status = self.node.pod_status(tenant.name)
            if status.get("phase") in ("Failed", "Succeeded"):
                raise RuntimeError(f"pod {tenant.name}: {explained(status)}; {self.pod_log(tenant)}")
            entries = [entry for entry in said(self.folders[tenant.name], kind) if entry["at"] >= after_s]
            return entries[-1] if entries else None

        return wait_for(look, timeout_s, f"`{kind}` of pod {tenant.name}; {self.node.pod_status(tenant.name)}")

    def pod_log(self, tenant: Tenant) -> str:
        files = sorted((self.node.base / "pods").glob(f"*{tenant.name}*/tenant/*.log"))
        return files[-1].read_text(errors="replace")[-600:] if files else "no log"

    def pids(self, tenant: Tenant) -> list[int]:
        wanted = f"TOPOALLOC_POD={tenant.name}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:
                continue  # it has ended
        return found

    def held(self, tenant: Tenant) -> int:
        if self.truth is None:
            return 0
        by_pid = self.truth.bytes_by_pid()
        return sum(by_pid.get(pid, 0) for pid in self.pids(tenant))

    def rates(self, tenants: Sequence[Tenant]) -> dict[str, list[float]]:
        """Steps per second, in the seconds after now and the time to settle."""
        begin_s = time.time() + SETTLE_S
        time.sleep(SETTLE_S + WINDOWS + 1.5)
        rates = {}
        for tenant in tenants:
            entries = [entry for entry in said(self.folders[tenant.name], "rate") if entry["at"] >= begin_s + 1.0]
            rates[tenant.name] = [entry["per_s"] for entry in entries[:WINDOWS]] or [0.0]
        return rates

    def judge_rates(self, what: str, tenants: Sequence[Tenant]) -> None:
        measured = self.rates(tenants)
        mhz = self.mhz()
        busy = min(100, sum(tenant.cores for tenant in tenants))
        for tenant, rates in zip(tenants, measured.values(), strict=True):
            shares = [100 * rate / self.references[busy] for rate in rates]
            mean = statistics.fmean(shares)
            self.record.add(
                f"{tenant.name}: share, {what}",
                f"{mean:.2f} ± {statistics.pstdev(shares):.2f} %",
                f"{tenant.cores} ± {POINTS:g} %",
                judged(self.dry or abs(mean - tenant.cores) <= POINTS) if busy <= ATTAINABLE_PERCENT else "figure",
                windows=shares,
                work=100 * statistics.fmean(rates) / self.references[100],
                mhz=(mhz, self.reference_mhz),
            )


def explained(status: dict[str, Any]) -> str:
    words = [status.get(key, "") for key in ("phase", "reason", "message")]
    for container in status.get("containerStatuses", []):
        for state in container.get("state", {}).values():
            words += [str(state.get(key, "")) for key in ("reason", "exitCode", "message")]
    return " ".join(word for word in words if word)


# -- the steps, in their order


def measure_reference(proof: Proof) -> None:
    """The same program alone on the machine, without pod and library: never idle, and as busy as two of the pods are.

    A GPU that is never idle may slow down to stay within its power, so that a share of its time does more there.
    """
    out = proof.node.base / "out" / "reference"
    out.mkdir()
    program = str(REPOSITORY / "tests/gpu/programs/pod_work.py")
    process = subprocess.Popen([sys.executable, program, str(out), *(["dry"] if proof.dry else [])])
    try:
        for busy in (100, THIRTY.cores + FIFTY.cores):
            before = len(said(out, "rate"))
            (out / "mode").write_text("train" if busy == 100 else f"train/{busy}")
            wanted = before + WINDOWS
            wait_for(lambda n=wanted: len(said(out, "rate")) >= n, POD_START_S, "the reference")
            rates = [entry["per_s"] for entry in said(out, "rate")[before + 2 :]]
            proof.references[busy] = statistics.fmean(rates)
            text = f"{proof.references[busy]:.1f} steps per busy second ± {statistics.pstdev(rates):.1f}"
            proof.record.add(f"the program alone, busy {busy} %", text, per_s=proof.references[busy])
            if busy == 100:
                proof.reference_mhz = proof.mhz()
    finally:
        process.kill()
        process.wait()


def start_node(proof: Proof) -> None:
    began_at_s = time.monotonic()
    proof.node.start()
    proof.record.add("containerd, kubelet and agent", f"ready after {time.monotonic() - began_at_s:.1f} s")


def start_tenants(proof: Proof) -> None:
    began_at_s = time.monotonic()
    for tenant in TENANTS:
        proof.start(tenant)
    for tenant in TENANTS:
        sees = proof.wait_said(tenant, "sees", POD_START_S)
        limit = tenant.memory_bytes
        right = sees["total"] == sees["properties"] == limit and sees["free"] <= limit and sees["devices"] == 1
        proof.record.add(
            f"{tenant.name}: sees",
            f"total {sees['total'] / GIB:.2f} GiB, free {sees['free'] / GIB:.2f} GiB, properties "
            f"{sees['properties'] / GIB:.2f} GiB, {sees['devices']} device ({sees['name']})",
            f"{limit / GIB:.0f} GiB, 1 device",
            judged(right or (proof.dry and sees["total"] == 0)),
            **sees,
        )
    say(f"three pods at work after {time.monotonic() - began_at_s:.1f} s")


def fill_memory(proof: Proof) -> None:
    time.sleep(CONTEXT_SETTLES_S)
    for tenant in TENANTS:
        proof.mode(tenant, "fill")
    filled = {tenant.name: proof.wait_said(tenant, "fill", 60) for tenant in TENANTS}
    for tenant in TENANTS:
        taken, limit = proof.held(tenant), tenant.memory_bytes
        right = limit - KEPT_BYTES <= taken <= limit and filled[tenant.name]["error"] == "OutOfMemoryError"
        proof.record.add(
            f"{tenant.name}: memory taken until refused",
            f"{taken / MIB:.0f} MiB, {filled[tenant.name]['error']}",
            f"{(limit - KEPT_BYTES) / MIB:.0f} to {limit / MIB:.0f} MiB, OutOfMemoryError",
            judged(proof.dry or right),
            taken_bytes=taken,
        )
    for tenant in TENANTS:
        proof.mode(tenant, "free")
    for tenant in TENANTS:
        proof.wait_said(tenant, "free", 30)


def share_time(proof: Proof) -> None:
    """First those two that leave the GPU some time, as switching between processes costs some; then all three."""
    for tenant in (THIRTY, FIFTY):
        proof.mode(tenant, "train")
    for tenant in (THIRTY, FIFTY):
        proof.wait_said(tenant, "rate", 60)
    proof.judge_rates("two at work", (THIRTY, FIFTY))
    proof.mode(TWENTY, "train")
    proof.wait_said(TWENTY, "rate", 60)
    proof.judge_rates("three at work", TENANTS)


def _refused(proof: Proof, tenant: Tenant) -> None:
    def failed() -> dict[str, Any] | None:
        status = proof.node.pod_status(tenant.name)
        return status if status.get("phase") == "Failed" else None

    proof.start(tenant)
    reason = explained(wait_for(failed, 30, f"pod {tenant.name} is refused"))
    named = "vgpu-" in reason
    proof.record.add(f"{tenant.name}: refused", reason, "Failed, with a reason", judged(named))
    proof.node.remove_pod(tenant.name)


def refuse_excess(proof: Proof) -> None:
    """Nothing is left of the one GPU; the recorded machine has two."""
    _refused(proof, Tenant("beyond-cores", 200 if proof.dry else 20, 8 * GIB))


def restart_agent(proof: Proof) -> None:
    """Killed under load and started again: shares and memory go on as they were."""
    node = proof.node
    before = {tenant.name: len(said(proof.folders[tenant.name], "rate")) for tenant in TENANTS}
    since = len(node.log("agent"))
    node.processes["agent"].send_signal(signal.SIGKILL)
    node.processes["agent"].wait()
    time.sleep(3)
    node.start_agent()
    node.wait_registered(since)
    proof.judge_rates("after the agent was killed and started again", TENANTS)
    for tenant in TENANTS:
        rates = [entry["per_s"] for entry in said(proof.folders[tenant.name], "rate")[before[tenant.name] :]]
        held = proof.held(tenant)
        proof.record.add(
            f"{tenant.name}: while the agent was away",
            f"{len(rates)} s of training, {min(rates):.1f} to {max(rates):.1f} steps/s, {held / MIB:.0f} MiB",
            "training goes on",
            judged(min(rates) > 0 and held <= tenant.memory_bytes),
            rates=rates,
        )


def kill_in_training(proof: Proof) -> None:
    """Its share is free for the next pod at once, and the others do not feel it."""
    victims = proof.pids(TWENTY)
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: proof.node.pod_status(TWENTY.name).get("phase") == "Failed", 30, "the killed pod is seen to fail")
    proof.node.remove_pod(TWENTY.name)
    _refused(proof, Tenant("beyond-memory", 10, 260 * GIB if proof.dry else 130 * GIB))
    began_at_s = time.monotonic()
    proof.start(AGAIN)
    sees = proof.wait_said(AGAIN, "sees", POD_START_S)
    took_s = time.monotonic() - began_at_s
    time.sleep(CONTEXT_SETTLES_S)
    proof.mode(AGAIN, "fill")
    filled = proof.wait_said(AGAIN, "fill", 60)
    taken = proof.held(AGAIN)
    right = sees["total"] == AGAIN.memory_bytes and AGAIN.memory_bytes - KEPT_BYTES <= taken <= AGAIN.memory_bytes
    proof.record.add(
        "a pod in place of one killed while training",
        f"at work after {took_s:.1f} s, sees {sees['total'] / MIB:.0f} MiB, took {taken / MIB:.0f}, {filled['error']}",
        f"{AGAIN.memory_bytes / GIB:.0f} GiB, all of it to be had",
        judged(proof.dry or right),
    )
    proof.mode(AGAIN, "free")
    proof.wait_said(AGAIN, "free", 30)
    proof.mode(AGAIN, "train")
    proof.wait_said(AGAIN, "rate", 60)
    proof.judge_rates("beside the new pod", (THIRTY, FIFTY, AGAIN))


def _asked(proof: Proof, what: str, command: Sequence[str], python_path: str) -> None:
    env = {**os.environ, "PYTHONPATH": python_path}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, env=env)
    text = done.stdout + done.stderr
    (proof.node.base / "logs" / f"{what.replace(' ', '-')}.txt").write_text(text)
    say(f"{what}: status {done.returncode}\n{text[:2000]}")
    if not proof.dry:
        last = text.strip().splitlines()[-1] if text.strip() else "nothing said"
        proof.record.add(f"topoalloc {what}", f"status {done.returncode}: {last}", "0", judged(done.returncode == 0))


def ask_agent(proof: Proof) -> None:
    """What an administrator sees on the node, and a tenant in the container."""
    topoalloc = [sys.executable, "-m", "topoalloc"]
    _asked(proof, "top", [*topoalloc, "top", "--once", "--run-dir", str(RUN_DIR)], proof.node.python_path)
    _asked(proof, "show", [*topoalloc, "show"], proof.node.python_path)
    for tenant in TENANTS:
        inside = ["nsenter", "--mount", "--pid", "--target", str(proof.pids(tenant)[0]), "--"]
        path = "/site:/repository" if proof.node.wheels_fit else "/repository"
        _asked(proof, f"verify in {tenant.name}", [*inside, *topoalloc, "verify"], path)


STEPS: Sequence[tuple[str, Callable[[Proof], None], bool]] = (
    # name, step, whether nothing can be proved without it
    ("the program alone", measure_reference, True),
    ("start of the node", start_node, True),
    ("start of three pods", start_tenants, True),
    ("memory", fill_memory, False),
    ("time", share_time, False),
    ("topoalloc's own figures", ask_agent, False),
    ("refusals", refuse_excess, False),
    ("agent killed", restart_agent, False),
    ("pod killed", kill_in_training, False),
)


def run_steps(proof: Proof) -> None:
    for name, step, needed in STEPS:
        say(f"== {name}")
        try:
            step(proof)
        except (RuntimeError, TimeoutError, OSError, subprocess.SubprocessError, KeyError, ValueError) as problem:
            proof.record.failed(name, problem)
            if needed:
                return


class OutOfTimeError(Exception):
    """The whole took longer than it may; no step goes on after it."""


def _out_of_time(*_: object) -> None:
    raise OutOfTimeError("the budget of time is spent")


def write_results(out: Path, base: Path, rows: Sequence[Row], facts: dict[str, object]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    content = {"facts": facts, "rows": [asdict(row) for row in rows]}
    (out / "gpu-e2e.json").write_text(json.dumps(content, indent=1) + "\n")
    (out / "gpu-e2e.md").write_text(as_markdown(rows, facts))
    logs = [path for path in (base / "logs").glob("*") if path.is_file()]
    logs += (base / "pods").glob("*/tenant/*.log")
    parts = [f"===== {path.relative_to(base)}\n{path.read_text(errors='replace')[-200000:]}" for path in logs]
    (out / "gpu-e2e-logs.txt").write_text("\n".join(parts))


def prove(options: argparse.Namespace) -> int:
    """In the mount namespace."""
    out = Path(os.environ.get("OUT", "gpu-e2e-results"))
    base = Path(tempfile.mkdtemp(prefix="ta-gpu-e2e-"))
    for folder in (base, KUBELET_FOLDER, RUN_DIR, Path("/run/containerd")):
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", folder], check=True)
    truth = None if options.dry else GroundTruth()
    facts: dict[str, object] = {"kernel": os.uname().release, "CPUs": os.cpu_count()}
    if truth is not None:
        facts |= {"GPU": truth.name(), "driver": truth.driver()}
    node = GpuNode(base, options.archive.resolve(), shim=options.shim)
    if options.dry:
        node.injection, node.machine = "none", DRY_MACHINE
    record = Record("everything", base / "rows.jsonl")
    signal.signal(signal.SIGALRM, _out_of_time)
    signal.alarm(int(options.budget))
    try:
        node.unpack()
        say("unpacked")
        run_steps(Proof(node, record, truth))
    except OutOfTimeError as problem:
        record.failed("the whole", problem)
    finally:
        signal.alarm(0)
        rows = read_rows(record.path)
        write_results(out, base, rows, facts)
        node.stop()
    subprocess.run(["umount", "-l", base], check=False)
    shutil.rmtree(base, ignore_errors=True)
    judgements = [row.verdict for row in rows if row.verdict != "figure"]
    say(f"{judgements.count('holds')} of {len(judgements)} hold; see {out}")
    return 0 if all(row.verdict in ("holds", "figure") for row in rows) else 1


def enter_mount_namespace() -> None:
    """Of our own, where nothing that is mounted reaches the machine's."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) != 0:
        raise SystemExit(f"no mount namespace: {os.strerror(ctypes.get_errno())}; this needs root")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--archive", type=Path, default=REPOSITORY / "build" / "gpu-e2e" / "gpu-e2e.tar.xz")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds for all of it")
    parser.add_argument("--dry", action="store_true", help="without a GPU, on a recorded machine")
    parser.add_argument("--shim", default="builtin", help="the agent's shim key; none for --dry where it is not built")
    options = parser.parse_args(arguments)
    if not options.archive.exists():
        raise SystemExit(f"no {options.archive}: make it with tests/gpu/pack.py")
    enter_mount_namespace()
    return prove(options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

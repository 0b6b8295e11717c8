"""Builds the programs of a real Kubernetes node, and the oracle, into a cache folder outside the tree.

`build.py` builds all of them, `build.py NAME ...` only those. A program whose sources, versions and Go have not
changed since it was built is left alone. What comes from Debian and PyPI is looked for, never installed.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("TOPOALLOC_E2E_CACHE") or Path.home() / ".cache" / "topoalloc-e2e")
PROGRESS_S = 30
# The kubelet takes under ten minutes on two cores with nothing built before; beyond this the machine is stuck.
BUILD_MAX_S = 3600
LOG_TAIL_LINES = 20
# Programs that the cluster and its images need, with the Debian package of each.
DEBIAN_PROGRAMS = (
    ("etcd", "etcd-server"),
    ("runc", "runc"),
    ("buildah", "buildah"),
    ("mmdebstrap", "mmdebstrap"),
    ("gcc", "gcc libc6-dev"),
    ("ip", "iproute2"),
    ("openssl", "openssl"),
    ("nsenter", "util-linux"),
    ("pkill", "procps"),
)
CNI_FOLDERS = ("/usr/lib/cni", "/opt/cni/bin")


class Failed(Exception):  # noqa: N818 - what a person reads, not a fault of this program
    """Something is missing or does not build; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Component:
    """One program: its name in the cache, the folder of its go.mod, its package, and what the linker writes in."""

    name: str
    module: Path
    package: str
    variables: tuple[str, ...] = ()
    slow: bool = False

    @property
    def binary(self) -> Path:
        return CACHE / "bin" / self.name

    @property
    def stamp(self) -> Path:
        return CACHE / "stamps" / self.name

    @property
    def log(self) -> Path:
        return CACHE / "logs" / f"{self.name}.txt"

    def link_flags(self) -> str:
        return " ".join(["-s", "-w", *(f"-X {variable}" for variable in self.variables)])


def pinned(module: Path, dependency: str) -> str:
    """The version that a go.mod requires, without its `v`."""
    found = re.search(
        rf"^(?:require )?\s*{re.escape(dependency)} v(\S+)", (module / "go.mod").read_text(), re.MULTILINE
    )
    if found is None:
        raise Failed(f"{module / 'go.mod'} does not require {dependency}")
    return found[1]


def kubernetes(program: str, module: Path = HERE, *, name: str | None = None, slow: bool = False) -> Component:
    """A Kubernetes program. The API server refuses a kubelet whose version it cannot read, so it is written in."""
    version = pinned(module, "k8s.io/kubernetes")
    major, minor, _ = version.split(".", 2)
    where = "k8s.io/component-base/version"
    variables = f"{where}.gitVersion=v{version}", f"{where}.gitMajor={major}", f"{where}.gitMinor={minor}"
    return Component(name or program, module, f"k8s.io/kubernetes/cmd/{program}", variables, slow)


def containerd(program: str) -> Component:
    module, upstream = HERE / "containerd", "github.com/containerd/containerd/v2"
    variables = (f"{upstream}/version.Version=v{pinned(module, upstream)}",)
    return Component(program, module, f"{upstream}/cmd/{program}", variables)


def components() -> list[Component]:
    """All of them, the ones that other work waits for first."""
    older = HERE / "older"
    return [
        Component("oracle", HERE, "./oracle"),
        Component("runc-any-cpus", HERE, "./runc-any-cpus"),
        *(kubernetes(p) for p in ("kubelet", "kube-apiserver", "kube-scheduler", "kube-controller-manager")),
        *(containerd(p) for p in ("containerd", "containerd-shim-runc-v2", "ctr")),
        kubernetes(
            "kubelet", older, name=f"kubelet-{pinned(older, 'k8s.io/kubernetes').rpartition('.')[0]}", slow=True
        ),
    ]


def go_version(module: Path) -> str:
    """The Go that builds this module. `go` itself refuses, or fetches a newer one, where go.mod asks for more."""
    wanted = re.search(r"^go (\S+)", (module / "go.mod").read_text(), re.MULTILINE)
    need = f"Go {wanted[1] if wanted else '?'} or newer is needed (the go line of {module / 'go.mod'})"
    go = shutil.which("go")
    if go is None:
        raise Failed(f"{need}, and there is no `go` on PATH: install it and put its bin folder on PATH")
    answer = subprocess.run([go, "env", "GOVERSION"], cwd=module, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise Failed(f"{need}; {go} says: {answer.stderr.strip()}")
    return answer.stdout.strip()


def fingerprint(component: Component, go: str) -> str:
    """Everything the binary depends on; go.sum stands for the sources of all dependencies."""
    digest = hashlib.sha256()
    sources = sorted((component.module / component.package).glob("*")) if component.package.startswith("./") else []
    for file in (component.module / "go.mod", component.module / "go.sum", *sources):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    digest.update("\0".join([component.package, component.link_flags(), go, os.uname().machine]).encode())
    return digest.hexdigest()


def is_current(component: Component, mark: str) -> bool:
    return component.binary.exists() and component.stamp.exists() and component.stamp.read_text() == mark


def compile_to(component: Component, target: Path, jobs: int) -> None:
    command = ["go", "build", "-v", "-p", str(jobs), "-o", str(target), "-ldflags", component.link_flags()]
    environment = {**os.environ, "CGO_ENABLED": "0"}
    with component.log.open("w") as log:
        process = subprocess.Popen(
            [*command, component.package], cwd=component.module, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            status = awaited(process, component)
        finally:
            process.kill()
            process.wait()
    if status != 0:
        tail = "\n  ".join(component.log.read_text().splitlines()[-LOG_TAIL_LINES:])
        raise Failed(f"{component.name} does not build (all of it in {component.log}):\n  {tail}")


def awaited(process: subprocess.Popen[bytes], component: Component) -> int:
    """The exit status of a build; a line now and then says how far it has come."""
    for passed_s in range(PROGRESS_S, BUILD_MAX_S + 1, PROGRESS_S):
        try:
            return process.wait(PROGRESS_S)
        except subprocess.TimeoutExpired:
            compiled = len(component.log.read_text().splitlines())
            say(component.name, f"{passed_s} s, {compiled} packages compiled so far")
    raise Failed(f"{component.name} did not build within {BUILD_MAX_S} s")


def build(component: Component, jobs: int) -> None:
    started = time.monotonic()
    mark = fingerprint(component, go_version(component.module))
    if is_current(component, mark):
        say(component.name, "current")
        return
    with alone(component):
        if is_current(component, mark):
            say(component.name, "current, built by the other")
            return
        say(component.name, "building")
        # A cluster may be running the old binary, which can be replaced but not written to.
        fresh = component.binary.with_name(f".{component.name}.new")
        try:
            compile_to(component, fresh, jobs)
            fresh.replace(component.binary)
        finally:
            fresh.unlink(missing_ok=True)
        component.stamp.write_text(mark)
    size = component.binary.stat().st_size / 1e6
    say(component.name, f"built in {time.monotonic() - started:.1f} s, {size:.0f} MB")


@contextmanager
def alone(component: Component) -> Iterator[None]:
    """One build of a program at a time in one cache."""
    for folder in ("bin", "stamps", "logs", "locks"):
        (CACHE / folder).mkdir(parents=True, exist_ok=True)
    with (CACHE / "locks" / component.name).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(component.name, f"waiting for another build in {CACHE}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def say(name: str, text: str) -> None:
    print(f"{name:<24} {text}", flush=True)


def missing_here() -> list[str]:
    """What the cluster needs beside the cache and this machine lacks, one line each with the remedy."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    lines = []
    packages = []
    for program, package in DEBIAN_PROGRAMS:
        if shutil.which(program, path=path) is None:
            packages.append(package)
    if not any((Path(folder) / "loopback").exists() for folder in CNI_FOLDERS):
        packages.append("containernetworking-plugins")
    if packages:
        lines.append(f"missing from Debian: apt-get install --no-install-recommends {' '.join(packages)}")
    if shutil.which("kubectl", path=path) is None:
        lines.append("missing kubectl: pip install --editable '.[e2e]' (in the virtual environment)")
    return lines


def chosen(names: Sequence[str]) -> list[Component]:
    known = {component.name: component for component in components()}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise Failed(f"no component {' '.join(unknown)}; there are: {' '.join(known)}")
    if names:
        return [known[name] for name in names]
    return [component for component in known.values() if not component.slow or os.environ.get("TOPOALLOC_SLOW")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all but the slow, older kubelet")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilations at a time (default: all cores)")
    arguments = parser.parse_args()
    os.nice(10)
    try:
        for component in chosen(arguments.names):
            build(component, arguments.jobs)
    except Failed as failed:
        print(failed, file=sys.stderr)
        return 1
    lines = [] if arguments.names else missing_here()
    print("\n".join(lines) or f"all in {CACHE / 'bin'}", file=sys.stderr if lines else sys.stdout)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())

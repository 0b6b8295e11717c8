"""Packs what a GPU machine without a package index needs for `make gpu-e2e`: kubelet, containerd, runc and wheels.

`python3 tests/gpu/pack.py` writes build/gpu-e2e/gpu-e2e.tar.xz (a few minutes, once). Needs `make e2e-components`,
Debian's runc and containernetworking-plugins, gcc, and a package index for the wheels.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
CACHE = Path(os.environ.get("TOPOALLOC_E2E_CACHE") or Path.home() / ".cache" / "topoalloc-e2e")
BUILT = ("kubelet", "containerd", "containerd-shim-runc-v2", "ctr")
LOOPBACK = ("/usr/lib/cni/loopback", "/opt/cni/bin/loopback")
PYTHON_THERE = "3.12"
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux1")
WHEELS_MORE = ("typing_extensions",)  # what grpcio needs in turn
PACK_BYTES_MAX = 60 * 10**6
XZ_PRESET = 6
IMAGE = "localhost/topoalloc-gpu-e2e/pause:1"
DEFAULT_OUT = REPOSITORY / "build" / "gpu-e2e"


def find(name: str, places: Sequence[str], package: str) -> Path:
    for place in places:
        if Path(place).exists():
            return Path(place)
    raise SystemExit(f"no {name}: apt-get install --no-install-recommends {package}")


def binaries() -> list[Path]:
    built = [CACHE / "bin" / name for name in BUILT]
    absent = [path.name for path in built if not path.exists()]
    if absent:
        raise SystemExit(f"no {', '.join(absent)} in {CACHE / 'bin'}: run make e2e-components")
    runc = find("runc", (shutil.which("runc") or "/usr/sbin/runc",), "runc")
    return [*built, runc, find("loopback", LOOPBACK, "containernetworking-plugins")]


def libraries_of(program: Path) -> list[Path]:
    """libseccomp: what runc needs and a small system lacks; libc is everywhere."""
    lines = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout.splitlines()
    return [Path(line.split()[2]).resolve() for line in lines if "libseccomp" in line]


def fetch_wheels(folder: Path) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    machine = os.uname().machine
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", PYTHON_THERE, "--implementation", "cp", "--dest", str(folder)]
    for platform in PLATFORMS:
        command += ["--platform", f"{platform}_{machine}"]
    subprocess.run([*command, *project["dependencies"], *WHEELS_MORE], check=True)


def build_image(folder: Path) -> None:
    """A docker archive of one static program: the sandboxes, and containers that mount what they run."""
    program = folder / "pause"
    source = REPOSITORY / "tests" / "e2e" / "cluster" / "workload.c"
    subprocess.run(["gcc", "-O2", "-static", "-s", "-o", program, source], check=True)
    layer = _tar({"pause": (program.read_bytes(), 0o755)})
    program.unlink()
    digest = hashlib.sha256(layer).hexdigest()
    configuration = json.dumps(
        {
            "architecture": "amd64" if os.uname().machine == "x86_64" else "arm64",
            "os": "linux",
            "config": {"Entrypoint": ["/pause"], "Env": ["PATH=/"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    named = f"{hashlib.sha256(configuration).hexdigest()}.json"
    manifest = json.dumps([{"Config": named, "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]).encode()
    files = {named: (configuration, 0o644), "layer.tar": (layer, 0o644), "manifest.json": (manifest, 0o644)}
    (folder / "pause.tar").write_bytes(_tar(files))


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def gather(folder: Path) -> None:
    """bin/, lib/, wheels/ and pause.tar."""
    for name in ("bin", "lib", "wheels"):
        (folder / name).mkdir()
    for program in binaries():
        copy = shutil.copy(program, folder / "bin" / program.name)
        subprocess.run(["strip", copy], check=False, capture_output=True)  # Go's own are stripped, and may be refused
        Path(copy).chmod(0o755)
    for library in libraries_of(folder / "bin" / "runc"):
        shutil.copy(library, folder / "lib" / "libseccomp.so.2")
    fetch_wheels(folder / "wheels")
    build_image(folder)


def write_archive(folder: Path, archive: Path) -> None:
    part = archive.with_suffix(".part")
    with lzma.open(part, "wb", preset=XZ_PRESET) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for path in sorted(folder.rglob("*")):
            tar.add(path, path.relative_to(folder), recursive=False)
    part.rename(archive)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    out = parser.parse_args(arguments).out
    out.mkdir(parents=True, exist_ok=True)
    archive = out / "gpu-e2e.tar.xz"
    os.nice(10)
    with tempfile.TemporaryDirectory() as name:
        gather(Path(name))
        print("compressing (minutes)", flush=True)
        write_archive(Path(name), archive)
    size = archive.stat().st_size
    print(f"{archive}: {size / 1e6:.1f} MB")
    if size > PACK_BYTES_MAX:
        raise SystemExit(f"that is above {PACK_BYTES_MAX / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Container images of the tests as docker archives, built without a daemon and kept until their inputs change.

`build_image` builds deploy/Dockerfile with buildah on a Debian base of its own; `build_workload_image` packs one static
program. Both need root, gcc, buildah and mmdebstrap.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.cluster.binaries import cache_folder
from tests.e2e.cluster.node import PAUSE_IMAGE
from tests.e2e.workloads import IMAGE as WORKLOAD_IMAGE

REPOSITORY = Path(__file__).parents[3]
IMAGE = "localhost/topoalloc:e2e"
INPUTS = ("topoalloc", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE", ".dockerignore", "deploy/Dockerfile")
_BASE_IMAGE = "localhost/topoalloc-base"
_WORKLOAD_SOURCE = Path(__file__).with_name("workload.c")
# The interpreter and what it needs; manuals and translations would be a sixth of the archive.
_BASE_COMMAND = (
    "mmdebstrap",
    "--variant=minbase",
    "--include=python3,python3-venv",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    "bookworm",
)
# How pip is to reach the package index from here; what it installs is for the Dockerfile alone to say.
_PIP_KEYS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "default-timeout", "cert")
_COMMAND_TIMEOUT_S = 1800.0  # packages are fetched and compiled on whatever machine this is
_LOG_LINES_SHOWN = 40
# runc copies itself into a sealed file; on some kernels the sealing finds a page of it still in use.
PASSING_FAULT = "sealing memfd copy: Device or resource busy"
TRIES = 3
FORGET_AFTER_S = 3600.0
_IMAGES_KEPT_MAX = 60  # a build makes about ten, of which a changed code repeats three


def build_image(cache: Path | None = None) -> Path:
    """A docker archive of `topoalloc:e2e`, made from this working tree; `cache` is the tests' cache folder."""
    cache = cache or cache_folder()
    files = sorted(_files_below(REPOSITORY / name for name in INPUTS))
    key = _digest(IMAGE, *_BASE_COMMAND, *(part for path in files for part in (str(path), path.read_bytes())))
    archive = cache / f"topoalloc-{key}.tar"
    with _only_one(cache):
        if not archive.exists():
            base = _base_tar(cache)
            with _told(f"image {IMAGE}"):
                _build(cache, base, archive)
        _forget_all_but(cache, archive, "topoalloc-[0-9a-f]*.tar")
    return archive


def build_workload_image(cache: Path | None = None) -> Path:
    """A docker archive of one image, /pause and nothing else, under two names: the containers' and the sandboxes'."""
    cache = cache or cache_folder()
    archive = cache / f"workload-{_digest(WORKLOAD_IMAGE, PAUSE_IMAGE, _WORKLOAD_SOURCE.read_bytes())}.tar"
    with _only_one(cache):
        if not archive.exists():
            with _told(f"image {WORKLOAD_IMAGE}"):
                program = archive.with_suffix(".program")
                _run(cache, ["gcc", "-O2", "-static", "-s", "-o", str(program), str(_WORKLOAD_SOURCE)])
                _put(archive, _docker_archive((WORKLOAD_IMAGE, PAUSE_IMAGE), program.read_bytes()))
                program.unlink()
        _forget_all_but(cache, archive, "workload-[0-9a-f]*.tar")
    return archive


def _base_tar(cache: Path) -> Path:
    base = cache / f"base-{_digest(*_BASE_COMMAND)}.tar"
    if not base.exists():
        with _told("base image of Debian packages"):
            part = base.with_suffix(".part.tar")
            _run(cache, [*_BASE_COMMAND, str(part)])
            part.rename(base)
    _forget_all_but(cache, base, "base-[0-9a-f]*.tar")
    return base


def _build(cache: Path, base: Path, archive: Path) -> None:
    buildah = _buildah(cache)
    stamp = cache / "image-store" / f"imported-{base.stem}"
    if not stamp.exists():
        container = _run(cache, [*buildah, "from", "scratch"]).strip()
        _run(cache, [*buildah, "add", "--quiet", container, str(base), "/"])
        _run(cache, [*buildah, "commit", "--quiet", "--rm", container, _BASE_IMAGE])
        stamp.touch()
    part = archive.with_suffix(".part")
    part.unlink(missing_ok=True)
    mounts = [f"--volume={path}:{place}:ro" for path, place in _pip_files(cache).items()]
    build = [
        *buildah,
        "build",
        "--isolation=chroot",
        "--layers",
        "--pull=false",
        f"--build-arg=BASE_IMAGE={_BASE_IMAGE}",
    ]
    _run(cache, [*build, *mounts, "--file=deploy/Dockerfile", f"--tag={IMAGE}", str(REPOSITORY)])
    _run(cache, [*buildah, "push", "--quiet", IMAGE, f"docker-archive:{part}:{IMAGE}"])
    part.rename(archive)
    # Layers of earlier builds are what makes the next one fast; past some number they are only a burden.
    if len(_run(cache, [*buildah, "images", "--all", "--quiet"]).split()) > _IMAGES_KEPT_MAX:
        _run(cache, [*buildah, "rmi", "--prune", "--force"])


def _buildah(cache: Path) -> list[str]:
    """buildah with a store below the cache, so that nothing else on this machine is touched."""
    driver = os.environ.get("STORAGE_DRIVER") or ("overlay" if _can_overlay(cache) else "vfs")
    store, state = cache / "image-store" / driver, cache / "image-store" / "run"
    store.mkdir(parents=True, exist_ok=True)
    return ["buildah", f"--root={store}", f"--runroot={state}", f"--storage-driver={driver}"]


def _can_overlay(cache: Path) -> bool:
    """Whether the kernel mounts an overlay here: not where the cache itself lies on one."""
    folders = [cache / "overlay-try" / name for name in ("lower", "upper", "work", "merged")]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    lower, upper, work, merged = folders
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    tried = subprocess.run(
        ["mount", "-t", "overlay", "overlay", "-o", options, merged], check=False, capture_output=True
    )
    if tried.returncode == 0:
        subprocess.run(["umount", merged], check=True)
    return tried.returncode == 0


def _pip_files(cache: Path) -> Mapping[Path, Path]:
    """Files of this machine that pip needs inside the build, with their places there."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], check=False, capture_output=True, text=True
    )
    settings: dict[str, str] = {}
    for line in listed.stdout.splitlines():
        key, _, value = line.partition("=")
        settings[key.rpartition(".")[2]] = value.strip("'\"")
    wanted = {key: value for key, value in settings.items() if key in _PIP_KEYS}
    configuration = cache / "pip.conf"
    configuration.write_text("[global]\n" + "".join(f"{key} = {value}\n" for key, value in sorted(wanted.items())))
    certificates = [Path(wanted["cert"])] if "cert" in wanted else []
    return {configuration: Path("/etc/pip.conf"), **{path: path for path in certificates}}


def _docker_archive(names: Sequence[str], program: bytes) -> bytes:
    """One layer, its configuration and the manifest (the form that `docker save` writes)."""
    layer = _tar({"pause": (program, 0o755)})
    configuration = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": ["/pause"], "Env": ["PATH=/"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        }
    ).encode()
    named = f"{hashlib.sha256(configuration).hexdigest()}.json"
    manifest = json.dumps([{"Config": named, "RepoTags": list(names), "Layers": ["layer.tar"]}]).encode()
    return _tar({named: (configuration, 0o644), "layer.tar": (layer, 0o644), "manifest.json": (manifest, 0o644)})


def _tar(files: Mapping[str, tuple[bytes, int]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def _files_below(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_file():
            yield path
        elif path.is_dir():
            yield from (file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts)


def _digest(*parts: str | bytes) -> str:
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        whole.update(len(data).to_bytes(8, "big") + data)
    return whole.hexdigest()[:16]


def _forget_all_but(cache: Path, kept: Path, pattern: str) -> None:
    """Archives that nobody has made lately; another run may still be importing a newer one."""
    for path in cache.glob(pattern):
        if path != kept and time.time() - path.stat().st_mtime > FORGET_AFTER_S:
            path.unlink(missing_ok=True)


def _put(path: Path, content: bytes) -> None:
    part = path.with_suffix(".part")
    part.write_bytes(content)
    part.rename(path)


def _run(cache: Path, command: Sequence[str]) -> str:
    """The command's output; its complaints go to a log whose end is shown when it fails for good."""
    for _ in range(TRIES - 1):
        try:
            return _run_once(cache, command)
        except RuntimeError as fault:
            if PASSING_FAULT not in str(fault):
                raise
            print(f"once more, {command[0]} failed for the moment: {PASSING_FAULT}", flush=True)
    return _run_once(cache, command)


def _run_once(cache: Path, command: Sequence[str]) -> str:
    log = cache / "image-build.log"
    with log.open("w") as complaints:
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            check=False,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
        )
    if done.returncode != 0:
        tail = (done.stdout + log.read_text(errors="replace")).splitlines()[-_LOG_LINES_SHOWN:]
        raise RuntimeError(f"{command[0]} failed ({done.returncode}):\n" + "\n".join(tail))
    return done.stdout


@contextmanager
def _only_one(cache: Path) -> Iterator[None]:
    """Two test runs share the cache; the second waits and then finds everything built."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "image.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Say on stderr what is being built and how long it took."""
    print(f"building {what} ...", file=sys.stderr, flush=True)
    began_at_s = time.monotonic()
    yield
    print(f"built {what} in {time.monotonic() - began_at_s:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    print(build_image(), build_workload_image(), sep="\n")

"""What a tenant may try in its own container, as root there; run inside by tests/e2e/test_enforcement.py (standard
library only). Prints one line of JSON: what each attempt met with."""

# Attempts are system calls and bear their names.
# ruff: noqa: PTH101, PTH104, PTH108, PTH110, PTH119, PTH120, PTH123, PTH211

from __future__ import annotations

import ctypes
import errno
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

SHARE, PRELOAD = "/etc/topoalloc", "/etc/ld.so.preload"
LIBRARY = "/usr/local/lib/topoalloc/libtopoalloc-vcuda.so"
SOCKET = f"{SHARE}/agent.sock"
ANSWER_S = 5.0
REMOUNT_READ_WRITE = 32  # MS_REMOUNT


def met(attempt: Callable[[], object]) -> str:
    """`done`, or the name of the error."""
    try:
        attempt()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "done"


def _mount(path: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(None, path.encode(), None, REMOUNT_READ_WRITE | 4096, None):
        raise OSError(ctypes.get_errno(), path)


def _unmount(path: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(path.encode(), 2):
        raise OSError(ctypes.get_errno(), path)


def files() -> dict[str, str]:
    """Write, replace, rename and remove what holds the limits, and make the mounts writable or go away."""
    Path("/tmp/own").write_text("memory 99999999999\n")
    found = {}
    for path in (*(f"{SHARE}/{name}" for name in ("share", "turn", "neighbours", "ld.so.preload")), PRELOAD, LIBRARY):
        found |= {
            f"write {path}": met(lambda path=path: os.open(path, os.O_WRONLY)),
            f"truncate {path}": met(lambda path=path: os.truncate(path, 0)),
            f"replace {path}": met(lambda path=path: os.rename("/tmp/own", path)),
            f"rename {path}": met(lambda path=path: os.rename(path, f"{path}.old")),
            f"unlink {path}": met(lambda path=path: os.unlink(path)),
            f"chmod {path}": met(lambda path=path: os.chmod(path, 0o777)),
        }
    for path in (SHARE, PRELOAD, os.path.dirname(LIBRARY)):
        found[f"remount {path}"] = met(lambda path=path: _mount(path))
        found[f"unmount {path}"] = met(lambda path=path: _unmount(path))
    found[f"rename {SHARE}"] = met(lambda: os.rename(SHARE, "/etc/other"))
    return found


def links() -> dict[str, str]:
    """Put links to a file of this container where the agent is going to write."""
    Path("/tmp/canary").write_text("untouched\n")
    found = {}
    names = ("share", ".share.new", "usage", ".usage.new", "pace", "agent.sock", ".deep-1", "x")
    for name in names:
        path = f"{SHARE}/{name}"
        found[f"symlink {name}"] = met(lambda path=path: os.symlink("/tmp/canary", path))
        found[f"link {name}"] = met(lambda path=path: os.link("/tmp/canary", path))
        found[f"make {name}"] = met(lambda path=path: os.mkfifo(f"{path}.pipe"))
        found[f"move a link to {name}"] = met(lambda path=path: _moved_link(path))
    return found


def _moved_link(path: str) -> None:
    if not os.path.lexists("/tmp/link"):
        os.symlink("/tmp/canary", "/tmp/link")
    os.rename("/tmp/link", path)


def ask(request: bytes = b"measure\n") -> str:
    """The answer to a request, `closed` where the agent ends the connection, `silent` where nothing comes."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(ANSWER_S)
        try:
            client.connect(SOCKET)
            client.sendall(request)
            answer = client.recv(128)
        except TimeoutError:
            return "silent"
        except (BrokenPipeError, ConnectionResetError):
            return "closed"
        return answer.decode().strip() if answer else "closed"


def forge() -> dict[str, str]:
    """Say who one is, ask about somebody else, send what is no request."""
    return {
        "another process": ask(b"measure 1\n"),
        "another share": ask(b"measure GPU0-c00\n"),
        "an own figure": ask(b"bytes 0\n"),
        "registration of the older kind": ask(b"RegisterVDevice poduid container\n"),
        "zeros": ask(b"\0" * 100 + b"\n"),
        "a line without end": ask(b"A" * 100_000),
        "another's credentials": met(_send_credentials),
        "bind": met(lambda: socket.socket(socket.AF_UNIX).bind(SOCKET)),
        "honest": ask(),
    }


def _send_credentials() -> None:
    """SCM_CREDENTIALS of process 1; the kernel lets no one without the right claim a pid that is not his."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(SOCKET)
        claim = struct.pack("iII", 1, 0, 0)
        client.sendmsg([b"measure\n"], [(socket.SOL_SOCKET, 2, claim)])
        client.settimeout(ANSWER_S)
        if client.recv(128).startswith(b"bytes"):
            raise OSError(0, "answered with a figure")


def sockets() -> dict[str, list[str]]:
    """Every socket of a share and every folder of the agent's that this container sees, by any path."""
    seen = []
    for top in ("/etc", "/run", "/var", "/proc/1/root/run", "/tmp", "/usr/local"):
        for folder, _, names in os.walk(top):
            seen += [f"{folder}/{name}" for name in names if name.endswith(".sock")]
    return {
        "sockets": seen,
        "folders": [path for path in ("/run/topoalloc", "/var/lib/topoalloc") if os.path.exists(path)],
    }


def flood(seconds: str) -> dict[str, int]:
    """Connect and ask as fast as it goes, keeping connections open."""
    kept: list[socket.socket] = []
    connects = questions = 0
    end_s = time.monotonic() + float(seconds)
    while time.monotonic() < end_s:
        client = socket.socket(socket.AF_UNIX)
        client.setblocking(False)
        try:
            client.connect(SOCKET)
            connects += 1
            client.send(b"measure\n" * 100 if connects % 2 else b"meas")
            questions += 1
        except OSError:
            time.sleep(0.001)
        kept.append(client)
        if len(kept) > 500:
            kept.pop(0).close()
    return {"connects": connects, "questions": questions}


def waits(count: str) -> dict[str, object]:
    """How long honest questions take, in milliseconds."""
    answers, longest_s = [], 0.0
    for _ in range(int(count)):
        began_s = time.monotonic()
        answers.append(ask())
        longest_s = max(longest_s, time.monotonic() - began_s)
        time.sleep(0.05)
    return {"answers": sorted(set(answers)), "longest_ms": round(longest_s * 1000, 1)}


def truncate() -> dict[str, str]:
    return {"truncate": met(lambda: os.truncate(f"{SHARE}/usage", 0))}


def scribble() -> dict[str, str]:
    """Random bytes over the whole account."""

    def write() -> None:
        with open(f"{SHARE}/usage", "r+b") as file:
            file.write(os.urandom(131072))

    return {"scribble": met(write)}


def lie() -> dict[str, str]:
    """A valid account that says: nothing was taken."""

    def write() -> None:
        with open(f"{SHARE}/usage", "r+b") as file:
            file.seek(16)
            file.write(struct.pack("<Q", 0))

    return {"lie": met(write)}


def own_share() -> dict[str, str]:
    """A share of one's own making, with no limit that matters."""
    folder = Path("/tmp/mine")
    folder.mkdir(exist_ok=True)
    text = Path(f"{SHARE}/share").read_text()
    lines = [
        "memory 99999999999" if line.startswith("memory") else "cores 10000" if line.startswith("cores ") else line
        for line in text.splitlines()
    ]
    lines = ["cores-max 10000" if line.startswith("cores-max") else line for line in lines]
    (folder / "share").write_text("\n".join(lines) + "\n")
    (folder / "usage").write_bytes(Path(f"{SHARE}/usage").read_bytes())
    return {"made": str(folder)}


def kill(name: str) -> dict[str, int]:
    """SIGKILL to every process of a program."""
    count = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and folder.name != str(os.getpid()):
            try:
                program = (folder / "cmdline").read_bytes().split(b"\0")[0].decode()
            except OSError:
                continue
            if os.path.basename(program) == name:
                os.kill(int(folder.name), 9)
                count += 1
    return {"killed": count}


def own_loader() -> dict[str, str]:
    """A loader that looks for preloaded libraries in another file: programs started with it skip the library."""
    loader = next(
        Path(path) for path in ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1") if Path(path).exists()
    )
    content = loader.read_bytes()
    Path("/tmp/loader").write_bytes(content.replace(b"/etc/ld.so.preload", b"/etc/ld.so.prelude"))
    Path("/tmp/loader").chmod(0o755)
    return {"made": "/tmp/loader"}


def measure(request: str) -> dict[str, str]:
    return {"answer": ask(f"{request}\n".encode())}


VERBS: dict[str, Callable[..., object]] = {
    each.__name__: each
    for each in (
        files,
        links,
        forge,
        sockets,
        flood,
        waits,
        truncate,
        scribble,
        lie,
        own_share,
        own_loader,
        measure,
        kill,
    )
}

if __name__ == "__main__":
    print(json.dumps(VERBS[sys.argv[1]](*sys.argv[2:])))

"""Versions of the library that came before this agent's: removed when nothing can mount them any more, and not before.

A container mounts the version that its grant named, also when it is started again, for as long as its pod is there.
That is told by two records, each of which covers what the other cannot: the kubelet's checkpoint, which has the answers
that containers are started with (it outlives a reboot), and the `library` file of each share's directory (which
outlives a checkpoint that was removed). A version that neither names is marked, and goes a week later if neither has
named it at any start of the agent in between.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from topoalloc.agent.private_files import (
    is_directory,
    open_below,
    open_directory,
    read_file,
    remove,
    status_of,
    write_file,
)
from topoalloc.agent.share_files import leaf, share_names
from topoalloc.agent.shim_library import DIGEST_SHOWN, DIRECTORY_MODE, POLICY_NAME
from topoalloc.kubelet.checkpoint_file import read_answers
from topoalloc.sharing.builtin_shim import LIBRARY_NAME, LIBRARY_RECORD, VERIFY_NAME

log = logging.getLogger(__name__)

VERSIONS_MAX = 256  # looked at; each is of one update of the agent
REMOVED_AT_ONCE_MAX = 4
UNNAMED_S = 7 * 24 * 3600.0
_VERSION = re.compile(rf"[0-9a-f]{{{DIGEST_SHOWN}}}")
_RECORD_BYTES_MAX = 4096


def remove_unused_versions(
    lib_dir: Path, current: Path, run_dir: str, plugin_dir: Path, clock_s: Callable[[], float] = time.time
) -> tuple[str, ...]:
    """Look at what lies beside the `current` version; names of those that were removed. Called at a start, before
    directories of shares are made. Whatever cannot be told keeps everything; never raises OSError."""
    try:
        fd = open_directory(lib_dir, DIRECTORY_MODE)
        try:
            others = _others(fd, current.name)
            if not others:
                return ()
            named = _named(run_dir, plugin_dir)
            return () if named is None else _sorted_out(fd, others, named, clock_s())
        finally:
            os.close(fd)
    except OSError as error:
        log.warning("earlier versions in %s stay: %s", lib_dir, error.strerror or error)
        return ()


def _others(lib_fd: int, current: str) -> list[str]:
    with os.scandir(lib_fd) as entries:
        names = sorted(entry.name for entry, _ in zip(entries, range(2 * VERSIONS_MAX), strict=False))
    if _marker(current) in names:
        remove(lib_fd, _marker(current))
    return [name for name in names if _VERSION.fullmatch(name) and name != current]


def _named(run_dir: str, plugin_dir: Path) -> bytes | None:
    """Everything that names versions in use; None where a part of it is missing."""
    answers = read_answers(plugin_dir)
    if answers is None:
        return None
    records = []
    for name in share_names(run_dir) if Path(run_dir).exists() else ():
        with leaf(run_dir, name) as fd:
            record = read_file(fd, LIBRARY_RECORD, _RECORD_BYTES_MAX)
        if not record:
            return None  # of another shim, or of an agent that kept no record
        records.append(record)
    return b"\0".join([*answers, *records])


def _sorted_out(lib_fd: int, others: list[str], named: bytes, now_s: float) -> tuple[str, ...]:
    removed: list[str] = []
    for name in others:
        marker = status_of(lib_fd, _marker(name))
        if name.encode() in named:
            remove(lib_fd, _marker(name))
        elif marker is None:
            write_file(lib_fd, _marker(name), b"", 0o600)
        elif now_s - marker.st_mtime >= UNNAMED_S and len(removed) < REMOVED_AT_ONCE_MAX and _is_ours(lib_fd, name):
            remove(lib_fd, name)
            remove(lib_fd, _marker(name))
            removed.append(name)
            log.info("version %s of the library is in no container any more and was removed", name)
    return tuple(removed)


def _is_ours(lib_fd: int, version: str) -> bool:
    """Whether a directory lies under the name with nothing in it but what we put there."""
    if not is_directory(lib_fd, version):
        return False
    fd = open_below(lib_fd, version)
    try:
        with os.scandir(fd) as entries:
            return all(entry.name in {LIBRARY_NAME, VERIFY_NAME, POLICY_NAME} for entry in entries)
    finally:
        os.close(fd)


def _marker(version: str) -> str:
    return f"{version}.unused"

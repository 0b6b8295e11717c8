"""The directories of shares on the node (`<run_dir>/shares/<name>`): the one place that makes and removes them.

It decides nothing: which shares there are comes from the ledger, what lies in a directory from the enforcement.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from topoalloc.agent.private_files import (
    REMOVED_MAX,
    FileFault,
    make_directory,
    open_below,
    open_directory,
    read_file,
    remove,
    status_of,
    told_as_fault,
    write_file,
)
from topoalloc.sharing.enforcement import Enforced, Enforcement, ShareFile, Upkeep
from topoalloc.sharing.share import Share, is_share_name
from topoalloc.sharing.share_file import following

log = logging.getLogger(__name__)

RUN_MODE = 0o750  # keeps the users of the node out; containers see a directory below it, mounted
LEAF_MODE = 0o755  # what a container sees
FILE_BYTES_MAX = 16 * 1024  # of a file that is compared with what it should be; the largest has 8,240 bytes
ENTRIES_MAX = 8192  # looked through at a time; sixteen GPUs have 1,600 shares at most
# At a time, since the ledger's lock is held (tens of milliseconds); the next round goes on.
REMOVALS_MAX = 64


class ShareObserver(Protocol):
    """Whoever serves a socket in each share's directory, or looks at its files."""

    def opened(self, share: Share, directory_fd: int) -> None:
        """The share has this directory from now on (again after a start of the agent, anew after a new grant), or its
        limits have changed. Its container does not run before this returns; raises OSError to keep it from running."""

    def closed(self, name: str) -> None:
        """The share of this name is gone, or is about to get another directory."""


class ShareDirectories:
    """Not safe for threads: the ledger's lock has to be held. Raises FileFault, one line that a user can read."""

    def __init__(self, run_dir: Path, enforcement: Enforcement, observers: tuple[ShareObserver, ...] = ()) -> None:
        self.path = run_dir / "shares"
        self._enforcement = enforcement
        self._observers = observers
        os.close(open_directory(run_dir, RUN_MODE))
        self._root = open_directory(self.path, RUN_MODE)
        self._made: dict[str, tuple[Share, int]] = {}  # with the inode of its directory
        self._faults: dict[str, str] = {}

    def close(self) -> None:
        """Forget the directories and leave them where they are: containers use them."""
        for name in self._made:
            self._tell_closed(name)
        self._made.clear()
        os.close(self._root)

    def leaf(self, name: str) -> str:
        """The directory of a share, as the container runtime sees it."""
        return str(self.path / name)

    def put(self, share: Share, *, fresh: bool) -> Enforced:
        """Make a share's directory what it should be; `fresh`: a new one, so that whoever still runs with the old one
        shares no file with the new container."""
        if not is_share_name(share.name):
            raise FileFault(f"{share.name!r} is no name of a share")
        enforced = self._enforcement.enforced(share, self.leaf(share.name))
        with told_as_fault(self.leaf(share.name)):
            if fresh or not self._is_ours(share.name):
                self._make(share, enforced)
            else:
                self._mend(share, enforced)
        self._faults.pop(share.name, None)
        return enforced

    def settle(self, wanted: Mapping[str, Share], *, remove_others: bool) -> None:
        """Make the directories those of the wanted shares; faults are logged, once each. What nobody holds any more
        goes only with `remove_others`."""
        for name in sorted(wanted):
            try:
                if not self._is_made(wanted[name]):
                    self.put(wanted[name], fresh=False)
            except FileFault as fault:
                self._log_once(name, str(fault))
        if remove_others:
            self._remove_others(wanted)

    def _make(self, share: Share, enforced: Enforced) -> None:
        name = share.name
        if name in self._made:
            self._tell_closed(name)
            del self._made[name]
        fresh, old = f".{name}.fresh", ""
        fd = make_directory(self._root, fresh)
        try:
            for file in enforced.files:
                _put_file(fd, file)
            self._tell_opened(share, fd)
            os.fchmod(fd, LEAF_MODE)
            before = status_of(self._root, name)
            if before is not None:
                # A name of its own: what a container left in an earlier one must not keep the next from starting.
                old = f".{name}.old-{before.st_ino}"
                os.rename(name, old, src_dir_fd=self._root, dst_dir_fd=self._root)
            os.rename(fresh, name, src_dir_fd=self._root, dst_dir_fd=self._root)
            self._made[name] = (share, os.fstat(fd).st_ino)
        except BaseException:
            self._tell_closed(name)
            raise
        finally:
            os.close(fd)
        try:
            if old:
                remove(self._root, old)
        except OSError as error:  # the new one is in its place; the rest is tried again at the next round
            self._log_once(old, f"{self.path / old}: cannot be removed: {error.strerror or error}")

    def _mend(self, share: Share, enforced: Enforced) -> None:
        """Keep the directory, which a container may have mounted, and put right what is in it."""
        fd = open_below(self._root, share.name)
        try:
            status = os.fstat(fd)
            if stat.S_IMODE(status.st_mode) != LEAF_MODE:
                os.fchmod(fd, LEAF_MODE)
            for file in enforced.files:
                _put_file(fd, file)
            _remove_strangers(fd, enforced)
            self._tell_opened(share, fd)
            self._made[share.name] = (share, status.st_ino)
        finally:
            os.close(fd)

    def _is_ours(self, name: str) -> bool:
        status = status_of(self._root, name)
        return status is not None and stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()

    def _is_made(self, share: Share) -> bool:
        """Whether the directory that was made for exactly this share is still in its place."""
        known = self._made.get(share.name)
        if known is None or known[0] != share:
            return False
        with told_as_fault(self.leaf(share.name)):
            status = status_of(self._root, share.name)
        return status is not None and stat.S_ISDIR(status.st_mode) and status.st_ino == known[1]

    def _remove_others(self, wanted: Mapping[str, Share]) -> None:
        with told_as_fault(str(self.path)), os.scandir(self._root) as entries:
            names = [entry.name for _, entry in zip(range(ENTRIES_MAX), entries, strict=False)]
        others = sorted(name for name in names if name not in wanted)
        left = REMOVED_MAX
        for name in others[:REMOVALS_MAX]:
            self._tell_closed(name)
            self._made.pop(name, None)
            try:
                left -= remove(self._root, name, left)
            except OSError as error:
                self._log_once(name, f"{self.path / name}: cannot be removed: {error.strerror or error}")
                if error.errno == errno.E2BIG:
                    return
            else:
                self._faults.pop(name, None)

    def _tell_opened(self, share: Share, directory_fd: int) -> None:
        for observer in self._observers:
            observer.opened(share, directory_fd)

    def _tell_closed(self, name: str) -> None:
        for observer in self._observers:
            observer.closed(name)

    def _log_once(self, name: str, text: str) -> None:
        if self._faults.get(name) != text:
            self._faults[name] = text
            log.warning("%s", text)


def _put_file(directory_fd: int, file: ShareFile) -> None:
    status = status_of(directory_fd, file.name)
    if file.content is None:
        if status is None or not stat.S_ISDIR(status.st_mode):
            made = make_directory(directory_fd, file.name)
            try:
                os.fchmod(made, file.mode)
            finally:
                os.close(made)
        return
    regular = status is not None and stat.S_ISREG(status.st_mode)
    if regular and file.upkeep is Upkeep.LEFT:
        return
    before = read_file(directory_fd, file.name, FILE_BYTES_MAX) if regular else None
    content = following(before, file.content) if file.upkeep is Upkeep.COUNTED else file.content
    if before != content or status is None or stat.S_IMODE(status.st_mode) != file.mode:
        write_file(directory_fd, file.name, content, file.mode, file.size_bytes)


def _remove_strangers(directory_fd: int, enforced: Enforced) -> None:
    """What an earlier agent with another enforcement, or a write cut off by its end, left behind."""
    known = {file.name for file in enforced.files} | set(enforced.sockets)
    with os.scandir(directory_fd) as entries:
        names = [entry.name for _, entry in zip(range(ENTRIES_MAX), entries, strict=False)]
    for name in sorted(names):
        if name not in known:
            remove(directory_fd, name)

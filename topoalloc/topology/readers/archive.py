"""A tar archive of a machine's file tree, unpacked into memory only and seen through the same window as a folder."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from topoalloc.topology.readers.files import CONTENT_BYTES_MAX, NAMES_MAX
from topoalloc.topology.readers.tar_stream import (
    BLOCK_BYTES,
    MEMBERS_MAX,
    ArchiveError,
    Member,
    MemberKind,
    is_tar_header,
    tar_members,
)
from topoalloc.topology.reading import SourceRefusal

# A dump of a 4-socket server unpacks to 60 MiB of tar blocks (512 bytes a member at least) with 0.4 MiB of content.
UNPACKED_BYTES_MAX = 256 * 2**20
KEPT_BYTES_MAX = 32 * 2**20
FOLDERS_MAX = 4 * MEMBERS_MAX  # paths create the folders above them
LINKS_MAX = 40  # links followed on the way to one file; what Linux follows (MAXSYMLINKS)

_GZIP, _BZIP2, _XZ = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00"


@dataclass(frozen=True, slots=True)
class _Link:
    target: str


_Node = dict[str, "_Node"] | _Link | bytes | None  # folder, link, file, file whose content was not kept
_Folder = dict[str, _Node]


def is_archive(head: bytes) -> bool:
    """Whether a file that begins so (512 bytes or more) is an archive or at least compressed like one."""
    return head.startswith((_GZIP, _BZIP2, _XZ)) or is_tar_header(head[:BLOCK_BYTES])


class ArchiveFiles:
    """The tree of an archive; links are followed within it, absolute ones lead nowhere."""

    def __init__(self, root: _Folder) -> None:
        self._root = root

    def read(self, path: str) -> bytes | None:
        node = self._node(path)
        return node if isinstance(node, bytes) else None

    def names(self, path: str) -> Sequence[str]:
        node = self._node(path)
        return sorted(node)[:NAMES_MAX] if isinstance(node, dict) else ()

    def is_folder(self, path: str) -> bool:
        return isinstance(self._node(path), dict)

    def real_path(self, path: str) -> str | None:
        parts = self._resolve(path)
        return None if parts is None else "/".join(parts)

    def _node(self, path: str) -> _Node:
        parts = self._resolve(path)
        if parts is None:
            return None
        node: _Node = self._root
        for part in parts:
            node = node.get(part) if isinstance(node, dict) else None
        return node

    def _resolve(self, path: str) -> list[str] | None:
        """The components of the real path; None where it leaves the tree or follows too many links."""
        todo = path.split("/")[::-1]
        done: list[str] = []
        node: _Node = self._root
        above: list[_Node] = []
        links = 0
        while todo:
            part = todo.pop()
            if part in {"", "."}:
                continue
            if part == "..":
                if not done:
                    return None
                done.pop()
                node = above.pop()
                continue
            child = node.get(part) if isinstance(node, dict) else None
            if isinstance(child, _Link):
                links += 1
                if links > LINKS_MAX or child.target.startswith("/"):
                    return None
                todo.extend(child.target.split("/")[::-1])
                continue
            above.append(node)
            done.append(part)
            node = child
        return done


def open_archive(data: bytes, name: str) -> ArchiveFiles | SourceRefusal:
    """Unpack an archive (tar, plain or packed by gzip, bzip2 or xz) in memory; `name` is the source of a refusal."""
    source = _Bounded(data)
    root: _Folder = {}
    budget = _Budget()
    try:
        for member in tar_members(source, CONTENT_BYTES_MAX):
            budget.spend(member)
            _place(root, member, budget)
        source.finish()
    except ArchiveError as error:
        return SourceRefusal(name, f"archive {error}")
    return ArchiveFiles(root)


class _Budget:
    """What unpacking has cost so far."""

    def __init__(self) -> None:
        self._members = 0
        self._folders = 0
        self._kept_bytes = 0

    def spend(self, member: Member) -> None:
        self._members += 1
        self._kept_bytes += len(member.content or b"") + len(member.path) + len(member.target)
        if self._members > MEMBERS_MAX:
            raise ArchiveError(f"has more than {MEMBERS_MAX} members; record sys and proc/driver/nvidia of one machine")
        if self._kept_bytes > KEPT_BYTES_MAX:
            raise ArchiveError(f"holds more than {KEPT_BYTES_MAX >> 20} MiB; record sys of one machine only")

    def spend_folder(self) -> None:
        self._folders += 1
        if self._folders > FOLDERS_MAX:
            raise ArchiveError(f"has more than {FOLDERS_MAX} folders")


def _place(root: _Folder, member: Member, budget: _Budget) -> None:
    parts = [part for part in member.path.split("/") if part not in {"", "."}]
    if member.path.startswith("/") or ".." in parts:
        raise ArchiveError(f"member {member.path[:80]!r} points outside of the archive")
    if not parts:
        return
    folder = root
    for part in parts[:-1]:
        below = folder.get(part)
        if not isinstance(below, dict):
            # A path that runs through a link or a file is not followed: the later entry replaces the earlier one.
            budget.spend_folder()
            below = folder[part] = {}
        folder = below
    match member.kind:
        case MemberKind.FOLDER:
            if not isinstance(folder.get(parts[-1]), dict):
                budget.spend_folder()
                folder[parts[-1]] = {}
        case MemberKind.LINK:
            folder[parts[-1]] = _Link(member.target)
        case MemberKind.HARD_LINK:
            # The target is a member's path from the top of the archive, so the way up leads to the top first.
            folder[parts[-1]] = _Link("../" * (len(parts) - 1) + member.target)
        case MemberKind.FILE:
            folder[parts[-1]] = member.content
        case MemberKind.OTHER:
            pass


class _Bounded:
    """The unpacked bytes of an archive, up to a total."""

    def __init__(self, data: bytes) -> None:
        self._stream = _unpacking(data)
        self._total = 0

    def read(self, size: int, /) -> bytes:
        try:
            data = self._stream.read(size)
        except EOFError:
            raise ArchiveError("cut short: its compressed data end too early") from None
        except (OSError, ValueError, MemoryError, lzma.LZMAError, zlib.error):  # MemoryError: a huge xz dictionary
            raise ArchiveError("damaged: its compressed data cannot be unpacked") from None
        self._total += len(data)
        if self._total > UNPACKED_BYTES_MAX:
            raise ArchiveError(f"unpacks to more than {UNPACKED_BYTES_MAX >> 20} MiB; record sys of one machine only")
        return data

    def finish(self) -> None:
        """Read to the end, where the packings keep the checksum of the whole."""
        while self.read(1 << 20):
            pass


def _unpacking(data: bytes) -> io.BufferedIOBase:
    raw = io.BytesIO(data)
    if data.startswith(_GZIP):
        return gzip.GzipFile(fileobj=raw)
    if data.startswith(_BZIP2):
        return bz2.BZ2File(raw)
    return lzma.LZMAFile(raw) if data.startswith(_XZ) else raw

"""The members of a tar archive, one after the other, from a stream that is read once and never written to disk.

The standard library's tarfile trusts its input too much for a file from a stranger: it holds extended headers of any
size in memory and searches them with regular expressions of quadratic cost. Here every part has a bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

BLOCK_BYTES = 512
# A dump of a 4-socket server with every attribute has 40,000 members.
MEMBERS_MAX = 200_000
PATH_CHARS_MAX = 4096  # Linux PATH_MAX
HEADER_BYTES_MAX = 64 * 1024  # extended header of one member (a long path and a few time stamps)


class ArchiveError(Exception):
    """The archive cannot be used; the text is the reason."""


class Source(Protocol):
    """A stream of unpacked bytes."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes, less only at the end; raises ArchiveError where it is damaged or too large."""


class MemberKind(Enum):
    """What a member is; devices, FIFOs and sparse files are OTHER."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    HARD_LINK = "hard link"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Member:
    """One member; `content` is None for anything but a file, and for a file above `content_bytes_max`."""

    path: str
    kind: MemberKind
    target: str
    content: bytes | None


@dataclass(slots=True)
class _Extended:
    """What an extended header (pax or GNU) says about the member after it."""

    path: str | None = None
    target: str | None = None
    size: int | None = None


_KINDS = {
    b"0": MemberKind.FILE,
    b"\0": MemberKind.FILE,
    b"7": MemberKind.FILE,
    b"5": MemberKind.FOLDER,
    b"2": MemberKind.LINK,
    b"1": MemberKind.HARD_LINK,
}
_GNU_SPARSE = b"S"


def is_tar_header(block: bytes) -> bool:
    """Whether these first bytes are a tar header by its checksum (old archives carry no magic)."""
    if len(block) < BLOCK_BYTES or not block[0]:
        return False
    try:
        return _number(block[148:156]) == sum(block[:148]) + 8 * 0x20 + sum(block[156:BLOCK_BYTES])
    except ArchiveError:
        return False


def tar_members(source: Source, content_bytes_max: int) -> Iterator[Member]:
    """Every member in order; raises ArchiveError for damage, and for an archive without its end mark (cut short)."""
    extended = _Extended()
    for number in range(3 * MEMBERS_MAX):  # a member may be preceded by two extended headers
        header = _first_header(source) if number == 0 else _exactly(source, BLOCK_BYTES)
        if not any(header):
            return
        if not is_tar_header(header):
            raise ArchiveError("damaged: a header has a wrong checksum")
        flag = header[156:157]
        size = extended.size if extended.size is not None else _number(header[124:136])
        if flag in b"LKxg":
            _extend(extended, flag, _padded(source, _number(header[124:136]), HEADER_BYTES_MAX))
            continue
        if flag == _GNU_SPARSE:
            _skip_sparse_map(source, header)
        yield _member(source, header, extended, size, content_bytes_max)
        extended = _Extended()
    raise ArchiveError(f"more than {MEMBERS_MAX} members")


def _first_header(source: Source) -> bytes:
    header = source.read(BLOCK_BYTES)
    if any(header) and not is_tar_header(header):
        raise ArchiveError("holds no tar archive; if it is one compressed file, unpack that first")
    return header


def _member(source: Source, header: bytes, extended: _Extended, size: int, content_bytes_max: int) -> Member:
    path = extended.path if extended.path is not None else _short_path(header)
    if len(path) > PATH_CHARS_MAX:
        raise ArchiveError(f"a member's path is longer than {PATH_CHARS_MAX} characters")
    kind = _KINDS.get(header[156:157], MemberKind.OTHER)
    target = extended.target if extended.target is not None else _string(header[157:257])
    content: bytes | None = None
    # Only files are followed by content, whatever size a folder or link claims (POSIX pax, "size").
    if kind is MemberKind.FILE or (kind is MemberKind.OTHER and header[156:157] not in b"346"):
        content = _padded(source, size, content_bytes_max, skip_larger=True)
    if kind is MemberKind.FILE and path.endswith("/"):
        kind = MemberKind.FOLDER  # archives older than the folder flag
    return Member(path, kind, target, content if kind is MemberKind.FILE else None)


def _short_path(header: bytes) -> str:
    name = _string(header[:100])
    # POSIX archives ("ustar\0") put the start of a long path in a field of its own; GNU's ("ustar ") use it otherwise.
    prefix = _string(header[345:500]) if header[257:263] == b"ustar\0" else ""
    return f"{prefix}/{name}" if prefix else name


def _extend(extended: _Extended, flag: bytes, data: bytes | None) -> None:
    if data is None:
        raise ArchiveError(f"an extended header is larger than {HEADER_BYTES_MAX >> 10} KiB")
    if flag == b"L":
        extended.path = _string(data)
    elif flag == b"K":
        extended.target = _string(data)
    elif flag == b"x":
        _extend_by_pax(extended, data)
    # A global header (g) carries comments such as a commit id; no member of a machine's dump depends on it.


def _extend_by_pax(extended: _Extended, data: bytes) -> None:
    """Records `LENGTH KEY=VALUE\\n`, the length counting itself (POSIX pax)."""
    position = 0
    while position < len(data) and data[position]:
        space = data.find(b" ", position, position + 8)
        length = data[position:space] if space > 0 else b""
        if not length.isdigit() or int(length) <= space - position:
            raise ArchiveError("damaged: an extended header cannot be read")
        end = position + int(length)
        key, _, value = data[space + 1 : end - 1].partition(b"=")
        if key == b"path":
            extended.path = value.decode("utf-8", "replace")
        elif key == b"linkpath":
            extended.target = value.decode("utf-8", "replace")
        elif key == b"size" and value.isdigit():
            extended.size = int(value[:20])
        position = end


def _skip_sparse_map(source: Source, header: bytes) -> None:
    """GNU sparse files continue their map of holes in blocks before the data; byte 504 says whether one follows."""
    more = bool(header[482])
    for _ in range(HEADER_BYTES_MAX // BLOCK_BYTES):
        if not more:
            return
        more = bool(_exactly(source, BLOCK_BYTES)[504])
    raise ArchiveError("damaged: a sparse file's map does not end")


def _padded(source: Source, size: int, keep_max: int, *, skip_larger: bool = False) -> bytes | None:
    """The next `size` bytes and the padding after them; None for more than `keep_max` (read past if so asked)."""
    rest = -size % BLOCK_BYTES
    if size <= keep_max:
        return _exactly(source, size + rest)[:size]
    if skip_larger:
        _skip(source, size + rest)
    return None


def _skip(source: Source, size: int) -> None:
    while size > 0:
        size -= len(_exactly(source, min(size, 1 << 20)))


def _exactly(source: Source, size: int) -> bytes:
    data = source.read(size)
    if len(data) != size:
        raise ArchiveError("cut short: it ends before its end mark")
    return data


def _number(field: bytes) -> int:
    """Octal digits, or GNU's binary form with the top bit set."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    if not digits:
        return 0
    try:
        return int(digits, 8)
    except ValueError:
        raise ArchiveError("damaged: a header holds no number where one belongs") from None


def _string(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "replace")

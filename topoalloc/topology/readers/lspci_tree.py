"""`lspci -tv`: the PCI tree with names. A source of its own: it tells where GPUs and NICs hang, not their NUMA nodes.

-+-[0000:00]-+-00.0  NAME                  one root per host bridge
 |           +-01.1-[01]--+-00.0  NAME     a bridge, the bus below it, its functions
 |           |            \\-00.1  NAME
 |           \\-05.0-[02-03]----00.0  NAME  a range of buses; a single child
 \\-[0000:80]---00.0  NAME
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from topoalloc.topology.pci import PciAddress, PciPath
from topoalloc.topology.pci_classes import PciKind
from topoalloc.topology.readers.lspci_names import NamedFunction, named_function
from topoalloc.topology.readers.printed_text import plain_head, printed_lines
from topoalloc.topology.reading import GpuReading, NicReading, Reading, SourceRefusal, Standing

FUNCTIONS_MAX = 20_000
# Real trees are seven bridges deep (a GPU below two cascaded switches); a line is read by recursion.
DEPTH_MAX = 64

_ROOT = re.compile(r"\[([0-9a-f]{4,8}):([0-9a-f]{2})(?:-[0-9a-f]{2})?\]", re.IGNORECASE)
_FUNCTION = re.compile(r"([0-9a-f]{2})\.([0-7])", re.IGNORECASE)
_BUSES = re.compile(r"-\[([0-9a-f]{2})(?:-([0-9a-f]{2}))?\]", re.IGNORECASE)
_MARGIN = re.compile(r"[ |]*")
_HEAD = re.compile(r"^[^\S\n]*-(?:\+-)?\[[0-9a-f]{4,8}:[0-9a-f]{2}\]-", re.MULTILINE | re.IGNORECASE)
_TREE_LINE = re.compile(r"[ |]*(?:[+\\]-|-\+-\[|-\[[0-9a-f]{4})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Bus:
    """A bus and the way to it; `domain` None stands for the machine, whose children are host bridges."""

    domain: int | None
    number: int
    host_bridge: str
    bridges: tuple[PciAddress, ...]


_MACHINE = _Bus(None, 0, "", ())


@dataclass(frozen=True, slots=True)
class _Found:
    """A function at the end of a branch."""

    bdf: PciAddress
    path: PciPath
    what: NamedFunction


@dataclass(slots=True)
class _Tree:
    """The tree read so far. `open_branches`: by column, the bus whose further children begin there."""

    open_branches: dict[int, _Bus] = field(default_factory=dict)
    found: dict[PciAddress, _Found] = field(default_factory=dict)
    bridges: set[PciAddress] = field(default_factory=set)
    host_bridges: set[str] = field(default_factory=set)


def recognise(head: str) -> bool:
    """Whether the beginning of a file looks like this tree."""
    return _HEAD.search(plain_head(head)) is not None


def parse(text: str, name: str) -> Reading | SourceRefusal:
    """GPUs, NICs and NVSwitches with their paths, in PCI address order; `model` is the name that lspci prints."""
    source = f"lspci -tv ({name})"
    lines = printed_lines(text, source)
    if isinstance(lines, SourceRefusal):
        return lines
    first = next((at for at, line in enumerate(lines.lines) if _HEAD.match(line)), None)
    if first is None:
        return SourceRefusal(source, "no line that begins a tree, such as `-+-[0000:00]-+-00.0  NAME`")
    margin = len(lines.lines[first]) - len(lines.lines[first].lstrip())
    tree = _Tree()
    end = len(lines.lines)
    for at in range(first, len(lines.lines)):
        line = lines.lines[at]
        if line[:margin].strip() or not _TREE_LINE.match(line[margin:]):
            end = at
            break
        problem = _take(tree, line[margin:], is_first=at == first)
        if problem is not None:
            return SourceRefusal(source, f"line {at + 1}: {problem}")
    stray = next((at for at in range(end, len(lines.lines)) if _TREE_LINE.match(lines.lines[at][margin:])), None)
    if stray is not None:
        return SourceRefusal(source, f"line {end + 1} is no line of the tree, but line {stray + 1} continues it")
    if tree.open_branches:
        return SourceRefusal(source, "the tree is cut short: a branch has no last child (`\\-`); record it again")
    return _reading(source, tree, lines.is_open and end == len(lines.lines))


def _take(tree: _Tree, line: str, is_first: bool) -> str | None:
    """Add the functions of one line; or why it cannot be placed."""
    if is_first:
        if line.startswith("-+-"):
            tree.open_branches[1] = _MACHINE
        return _take_root(tree, line, line.index("["))
    margin = _MARGIN.match(line)
    column = margin.end() if margin else 0
    bus = tree.open_branches.get(column)
    if bus is None or line[column : column + 2] not in {"+-", "\\-"}:
        return f"nothing branches off at column {column + 1}; the lines may have been moved or cut"
    deeper = max(tree.open_branches)
    if deeper > column:
        return f"a branch at column {deeper + 1} has no last child; lines are missing"
    if line[column] == "\\":
        del tree.open_branches[column]
    if bus is _MACHINE:
        return _take_root(tree, line, column + 2)
    return _take_function(tree, line, column + 2, bus)


def _take_root(tree: _Tree, line: str, at: int) -> str | None:
    """A host bridge and what hangs below it in the same line."""
    match = _ROOT.match(line, at)
    if match is None:
        return f"no host bridge such as [0000:00] at column {at + 1}"
    domain, number = int(match[1], 16), int(match[2], 16)
    name = f"{domain:04x}:{number:02x}"
    if name in tree.host_bridges:
        return f"host bridge {name} is there twice"
    tree.host_bridges.add(name)
    return _take_children(tree, line, match.end(), _Bus(domain, number, name, ()))


def _take_children(tree: _Tree, line: str, at: int, bus: _Bus) -> str | None:
    """What follows a bus: nothing, a single child, or the first of several."""
    dashes = re.compile("-*").match(line, at)
    at = dashes.end() if dashes else at
    if not line[at:].strip():
        return None
    if line[at] == "+":
        tree.open_branches[at] = bus
        return _take_function(tree, line, at + 2, bus) if line[at + 1 : at + 2] == "-" else "a branch without a child"
    return _take_function(tree, line, at, bus)


def _take_function(tree: _Tree, line: str, at: int, bus: _Bus) -> str | None:
    match = _FUNCTION.match(line, at)
    if match is None or int(match[1], 16) > 0x1F:
        return f"no function such as 00.0 at column {at + 1}"
    assert bus.domain is not None, "the children of the machine are host bridges"
    bdf = PciAddress(bus.domain, bus.number, int(match[1], 16), int(match[2]))
    if bdf in tree.found or bdf in tree.bridges:
        return f"{bdf} is there twice"
    if len(tree.found) + len(tree.bridges) >= FUNCTIONS_MAX:
        return f"more than {FUNCTIONS_MAX} functions; give the tree of one machine"
    below = _BUSES.match(line, match.end())
    if below is not None:
        if len(bus.bridges) >= DEPTH_MAX:
            return f"more than {DEPTH_MAX} bridges above one another"
        tree.bridges.add(bdf)
        lower = _Bus(bus.domain, int(below[1], 16), bus.host_bridge, (*bus.bridges, bdf))
        return _take_children(tree, line, below.end(), lower)
    name = line[match.end() :]
    if name.strip() and not name.startswith("  "):
        return f"{bdf} is followed by {name[:20]!r}, neither a bus nor a name"
    if not name.strip():
        return f"{bdf} has no name; print the tree with `lspci -tv`"
    path = PciPath(bus.host_bridge, bus.bridges)
    tree.found[bdf] = _Found(bdf, path, named_function(name.strip(), bdf.function))
    return None


def _reading(source: str, tree: _Tree, is_open: bool) -> Reading:
    found = [tree.found[bdf] for bdf in sorted(tree.found)]
    gpus = [item for item in found if item.what.kind is PciKind.GPU]
    warnings = [
        f"{item.bdf} is taken for a GPU by its vendor alone; lspci knows no name for it"
        for item in gpus
        if item.what.is_unnamed
    ]
    if is_open and tree.found:
        last = next(reversed(tree.found.values()))
        warnings.append(f"the text ends without a line end; the name of {last.bdf} may be cut short")
    return Reading(
        source=source,
        standing=Standing.WHOLE,
        gpus=tuple(
            GpuReading(
                bdf=item.bdf,
                path=item.path,
                model=item.what.name,
                vendor=item.what.vendor,
                pci_device=item.what.device,
            )
            for item in gpus
        ),
        nics=tuple(
            NicReading(bdf=item.bdf, path=item.path, vendor=item.what.vendor, function=item.what.nic_function)
            for item in found
            if item.what.kind is PciKind.NIC
        ),
        nvswitches=tuple(item.bdf for item in found if item.what.kind is PciKind.NVSWITCH),
        warnings=tuple(warnings),
    )

"""A list of PCI functions, one per line, with class and NUMA node (often printed by a shell loop over sysfs); adds to
another source.

Lines: `0000:03:00.0 class=0x030200 numa=3`, with `vendor=` and `device=` if told, or the bare values in the order
class, NUMA node; separated by blanks or commas.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from topoalloc.topology.machine import Unknown
from topoalloc.topology.pci import PciAddress
from topoalloc.topology.pci_classes import PciKind, class_code_of, hex_id, kind_of
from topoalloc.topology.readers.printed_text import PrintedText, plain_head, printed_lines
from topoalloc.topology.reading import GpuReading, NicReading, NumaReading, Reading, SourceRefusal, Standing

# A large server shows some hundred functions, with all virtual functions of its NICs a few thousand.
FUNCTIONS_MAX = 10_000
NODE_MAX = 1023  # CONFIG_NODES_SHIFT is at most 10

_ADDRESS = r"(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]"
_HEAD = re.compile(
    rf"^[^\S\n]*{_ADDRESS}[ \t,;]+(?:[a-z_]+=[^\s,;]*[ \t,;]+)*(?:class=)?(?:0x)?[0-9A-Fa-f]{{6}}\b", re.MULTILINE
)
_NODE = re.compile(r"-?\d{1,5}")
_KEYS = {"class": "class", "numa": "numa", "numa_node": "numa", "node": "numa", "vendor": "vendor", "device": "device"}
_BARE_KEYS = ("class", "numa")


@dataclass(frozen=True, slots=True)
class _Function:
    """One line: `node` is None where the line has none."""

    bdf: PciAddress
    kind: PciKind
    node: int | Unknown | None
    vendor: str | None
    device: str | None


def recognise(head: str) -> bool:
    """Whether the beginning of a file looks like such a list."""
    return _HEAD.search(plain_head(head)) is not None


def parse(text: str, name: str) -> Reading | SourceRefusal:
    """GPUs and NICs among the functions, in the order of the lines; other functions are passed over."""
    source = f"PCI list ({name})"
    lines = printed_lines(text, source)
    if isinstance(lines, SourceRefusal):
        return lines
    functions: dict[PciAddress, _Function] = {}
    for number, line in enumerate(lines.lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        function = _function(line)
        if isinstance(function, str):
            return SourceRefusal(source, f"line {number}: {function}")
        if function.bdf in functions:
            return SourceRefusal(source, f"line {number}: {function.bdf} is there twice")
        functions[function.bdf] = function
        if len(functions) > FUNCTIONS_MAX:
            return SourceRefusal(source, f"more than {FUNCTIONS_MAX} functions; give the list of one machine")
    if not functions:
        return SourceRefusal(source, "no PCI function in it")
    gap = _gap(functions.values(), lines)
    if gap is not None:
        return SourceRefusal(source, gap)
    devices = functions.values()
    nodes = sorted({item.node for item in devices if isinstance(item.node, int)})
    last = next(reversed(functions.values()))
    cut = f"the text ends without a line end; the NUMA node {last.node} of {last.bdf} may be cut short"
    return Reading(
        source=source,
        standing=Standing.ADDITION,
        numa_nodes=tuple(NumaReading(node) for node in nodes),
        gpus=tuple(
            GpuReading(bdf=item.bdf, numa_node=item.node, vendor=item.vendor, pci_device=item.device)
            for item in devices
            if item.kind is PciKind.GPU
        ),
        nics=tuple(
            NicReading(bdf=item.bdf, numa_node=item.node, vendor=item.vendor)
            for item in devices
            if item.kind is PciKind.NIC
        ),
        nvswitches=tuple(item.bdf for item in devices if item.kind is PciKind.NVSWITCH),
        warnings=(cut,) if lines.is_open and isinstance(last.node, int) else (),
    )


def _gap(functions: Iterable[_Function], lines: PrintedText) -> str | None:
    """What shows that the list was cut short."""
    if lines.is_open and lines.lines[-1].rstrip().endswith("="):
        return "the last line is cut short; record the list again"
    silent = next((item for item in functions if item.node is None), None)
    if silent is not None:
        return f"{silent.bdf} has no NUMA node (-1 where the kernel knows none), which is what the list is for"
    return None


def _function(line: str) -> _Function | str:
    """The function of a line, or why the line cannot be used."""
    fields = re.split(r"[\s,;]+", line.strip())
    try:
        bdf = PciAddress.parse(fields[0])
    except ValueError as error:
        return str(error)[:80]
    values: dict[str, str] = {}
    bare = list(_BARE_KEYS)
    for item in fields[1:]:
        if not item:
            continue
        label, equals, value = item.partition("=")
        key = _KEYS.get(label.lower()) if equals else (bare.pop(0) if bare else None)
        if key is None or key in values:
            return f"{item[:40]!r} of {bdf} is none of class, numa, vendor and device"
        values[key] = value if equals else item
    class_code = class_code_of(values.get("class"))
    if class_code is None:
        return f"{bdf} has no class of six hexadecimal digits"
    vendor, device = hex_id(values.get("vendor")), hex_id(values.get("device"))
    for key, parsed in (("vendor", vendor), ("device", device)):
        if key in values and parsed is None:
            return f"{key}={values[key][:20]} of {bdf} is no PCI id"
    node = _node(values.get("numa"))
    if isinstance(node, str):
        return f"{node} of {bdf}"
    return _Function(bdf, kind_of(class_code, vendor), node, vendor, device)


def _node(text: str | None) -> int | Unknown | str | None:
    """The NUMA node; Unknown for what the kernel prints without one; text: why it is none."""
    if text is None:
        return None
    if text in {"", "N/A", "-", "none"}:
        return Unknown(f"the list has {text!r} for the NUMA node")
    if not _NODE.fullmatch(text):
        return f"numa={text[:20]!r} is no NUMA node"
    node = int(text)
    if node > NODE_MAX:
        return f"NUMA node {node} is above {NODE_MAX}"
    return node if node >= 0 else Unknown(f"numa_node is {node}")

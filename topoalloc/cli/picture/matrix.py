"""A machine as the table that `nvidia-smi topo -m` prints, for eyes and scripts that know that table.

Cells are parted by tabs, so that terminals align them and readers of the original read this one too. What no source
tells is `?`, a word that the original does not have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.machine import Gpu, Link, Machine, Nic, Unknown
from topoalloc.topology.readers.topo_matrix import UNKNOWN_CELL
from topoalloc.topology.spelling import fabric_name, links_words, printable

_SELF = " X "
_NO_AFFINITY = "N/A"
_TAB_WIDTH = 8

# Without any NVLink count the table is what `nvidia-smi topo -mp` prints, and says so to whoever reads it.
_PCIE_ONLY = "No source tells of {links}: PCIe classes only, as in nvidia-smi topo -mp"
_MEANINGS = (
    ("X", "the device itself"),
    ("SYS", "through the interconnect of NUMA nodes (UPI, Infinity Fabric)"),
    ("NODE", "through several host bridges of one NUMA node"),
    ("PHB", "through one host bridge, which is in the CPU as a rule"),
    ("PXB", "through several PCIe bridges, not through a host bridge"),
    ("PIX", "through one PCIe bridge, or one on either side of a common one"),
    ("NV#", "through # {links}, counted between the two GPUs"),
    (UNKNOWN_CELL, "no source tells"),
)


def matrix_text(machine: Machine) -> str:
    """Header, one row per device, a legend, and the names of the NICs. Ends in a newline."""
    labels = [*(gpu.id for gpu in machine.gpus), *(nic.id for nic in machine.nics)]
    links = machine.links_by_pair()
    gpus = {gpu.id: gpu for gpu in machine.gpus}
    links_name = links_words(2, fabric_name(machine.gpus)).removeprefix("2 ")
    pcie_only = _is_pcie_only(machine)
    lines = [_PCIE_ONLY.format(links=links_name)] if pcie_only else []
    lines.append("\t".join(("", *labels, "CPU Affinity", "NUMA Affinity")))
    for label in labels:
        cells = [_cell(label, other, links, pcie_only) for other in labels]
        tail = _affinities(gpus[label]) if label in gpus else "\t"
        lines.append("\t".join((label, *cells, tail)))
    lines += ["", "Legend:", ""]
    lines += [f"  {word.ljust(4)} = {meaning.format(links=links_name)}" for word, meaning in _MEANINGS]
    if machine.nics:
        names = _distinct_names(machine.nics)
        lines += ["", "NIC Legend:", "", *(f"  {nic}: {name}" for nic, name in names.items())]
    return "".join(f"{line}\n" for line in lines)


def _is_pcie_only(machine: Machine) -> bool:
    between = [link.nvlinks for link in machine.links if link.a.startswith("GPU") and link.b.startswith("GPU")]
    return bool(between) and all(isinstance(count, Unknown) for count in between)


def _cell(a: str, b: str, links: Mapping[tuple[str, str], Link], pcie_only: bool) -> str:
    """NVLink first, as the driver does: `NV#` hides the PCIe class of the pair.

    Any class says that there are no NVLinks, so where that is not known, the class must not be said either.
    """
    if a == b:
        return _SELF
    link = links.get((a, b))
    if link is None or isinstance(link.pcie, Unknown):
        counted = link.nvlinks if link is not None else 0
        return f"NV{counted}" if isinstance(counted, int) and counted > 0 else UNKNOWN_CELL
    if isinstance(link.nvlinks, Unknown):
        return link.pcie.name if pcie_only else UNKNOWN_CELL
    return f"NV{link.nvlinks}" if link.nvlinks > 0 else link.pcie.name


def _affinities(gpu: Gpu) -> str:
    """The cells below CPU Affinity and NUMA Affinity; a short one gets a second tab, or the titles would not fit it."""
    cpus = str(gpu.cpus) if isinstance(gpu.cpus, CpuSet) and gpu.cpus else _NO_AFFINITY
    node = _NO_AFFINITY if isinstance(gpu.numa_node, Unknown) else str(gpu.numa_node)
    return "\t".join((cpus, node) if len(cpus) >= _TAB_WIDTH else (cpus, "", node))


def _distinct_names(nics: tuple[Nic, ...]) -> dict[str, str]:
    """One word per NIC, the id appended where several have the same: a legend names each device once."""
    words = {nic.id: printable("_".join(nic.name.split())) or nic.id for nic in nics}
    often = Counter(words.values())
    return {nic: word if often[word] == 1 else f"{word}.{nic}" for nic, word in words.items()}

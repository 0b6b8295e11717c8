"""How single facts of a machine are worded, the same in the tree and in the picture."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.machine import Gpu, Machine, Nic, NicFunction, NicLink, NumaNode, Unknown
from topoalloc.topology.pci_classes import AMD, NVIDIA
from topoalloc.topology.sizes import size_words
from topoalloc.wording import plural

_VENDOR_WORDS = (
    "NVIDIA Tesla ",
    "NVIDIA ",
    "Tesla ",
    "AMD Instinct ",
    "AMD ",
    "Advanced Micro Devices, Inc. ",
    "Intel ",
)
_SILENCE = re.compile(r"no source tells [^,]+(?:, and (.+))?")
# "node3 has no ..." and "hidden by NV12 cell": the same gap of many owners reads as one without the number.
_NUMBERED = re.compile(r"\b(?:(node)|(NV))\d+\b")
# lspci writes the chip and, in brackets, the name it is sold under: "NVIDIA Corporation AD102GL [RTX 6000 Ada ...]".
_SOLD_AS = re.compile(r".* \[([^\[\]]+)\]")
EVIDENCE_CHARACTERS_MAX = 60  # a reason is a hint beside the fact; a snapshot has it whole


def model_words(model: str | Unknown) -> str:
    """The model without its maker and brand, which fill a line and say nothing new."""
    if isinstance(model, Unknown):
        return "model unknown"
    if (sold_as := _SOLD_AS.fullmatch(model)) is not None:
        return sold_as[1]
    for vendor in _VENDOR_WORDS:
        if model.startswith(vendor) and len(model) > len(vendor):
            return model.removeprefix(vendor)
    return model


def memory_words(memory_bytes: int | Unknown) -> str:
    return "memory unknown" if isinstance(memory_bytes, Unknown) else size_words(memory_bytes)


def node_memory_words(node: NumaNode) -> str:
    return "no memory" if node.memory_bytes == 0 else memory_words(node.memory_bytes)


def cpu_count_words(cpus: CpuSet | Unknown) -> str:
    """`32 CPUs`, `no CPUs`, `CPUs unknown`."""
    if isinstance(cpus, Unknown):
        return "CPUs unknown"
    return plural(len(cpus), "CPU") if cpus else "no CPUs"


def nic_words(nic: Nic) -> str:
    """What a port is, after its name: `InfiniBand`, `Ethernet VF`, empty where nothing is known."""
    words = {NicLink.INFINIBAND: "InfiniBand", NicLink.ETHERNET: "Ethernet"}
    parts = [] if isinstance(nic.link, Unknown) else [words[nic.link]]
    if nic.function == NicFunction.VIRTUAL:
        parts.append("VF")
    return " ".join(parts)


def nic_names(nic: Nic) -> tuple[str, ...]:
    """The port's own names, the usual one first; its id and its address are told elsewhere and are none."""
    told = dict.fromkeys(name for name in (nic.name, nic.rdma, nic.netdev) if isinstance(name, str))
    return tuple(name for name in told if name and name not in (nic.id, str(nic.bdf)))


def nic_second_line(nic: Nic) -> str:
    """What stands below a port's name in the picture: `0000:06:00.0 · IB VF`, as far as it is known."""
    kind = nic_words(nic).replace("InfiniBand", "IB").replace("Ethernet", "Eth")
    return " · ".join(filter(None, ("" if isinstance(nic.bdf, Unknown) else str(nic.bdf), kind)))


def id_list(ids: Iterable[str]) -> str:
    """`GPU0-3, NIC0, NIC2`: runs of three and more of one kind are joined; the order given is kept."""
    kinds = groupby(ids, key=lambda device: device[:3])
    return ", ".join(number_list([int(device[3:]) for device in devices], kind) for kind, devices in kinds)


def number_list(numbers: Sequence[int], prefix: str = "") -> str:
    """`0-3, 5, 6`, every number or run with `prefix` before it."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    joined = ([f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run) for run in runs)
    return ", ".join(f"{prefix}{part}" for parts in joined for part in parts)


def fabric_name(gpus: Sequence[Gpu]) -> str:
    """What the links between these GPUs are called; a name of no maker where the maker is not known."""
    vendors = {gpu.vendor for gpu in gpus}
    if vendors == {AMD}:
        return "XGMI"
    return "NVLink" if vendors <= {NVIDIA} else "GPU-GPU"


def headline(machine: Machine) -> str:
    """`8 × A100-SXM4-40GB`, or what there is instead of GPUs."""
    models = Counter(model_words(gpu.model) for gpu in machine.gpus if not isinstance(gpu.model, Unknown))
    if machine.gpus and sum(models.values()) == len(machine.gpus):
        return " + ".join(f"{count} × {model}" for model, count in models.items())
    if machine.gpus:
        return plural(len(machine.gpus), "GPU")
    return f"{plural(len(machine.nics), 'NIC')}, no GPU" if machine.nics else "No GPU and no NIC"


def subtitle(machine: Machine) -> str:
    """`4 NUMA nodes · 10 NICs · read from topo -m (host.txt)`."""
    parts = [plural(len(machine.numa_nodes), "NUMA node") if machine.numa_nodes else "NUMA nodes unknown"]
    if machine.nics:
        parts.append(plural(len(machine.nics), "NIC"))
    if machine.nvswitches:
        parts.append("1 NVSwitch" if len(machine.nvswitches) == 1 else f"{len(machine.nvswitches)} NVSwitches")
    if machine.sources:
        parts.append(f"read from {_sources_words(machine.sources)}")
    return " · ".join(parts)


def _sources_words(sources: Sequence[str]) -> str:
    """`topo -m (host.txt)`; of several sources the formats alone, since they have to fit on a line."""
    formats = dict.fromkeys(source.partition(" (")[0] for source in sources)
    if len(sources) > 1:
        return ", ".join(formats)
    kind, parenthesis, path = sources[0].partition(" (")
    return kind + parenthesis + (path.rstrip("/)").rpartition("/")[2] + ")" if parenthesis else "")


def links_words(count: int, fabric: str) -> str:
    """`2 NVLinks`, `1 XGMI link`."""
    return plural(count, fabric if fabric == "NVLink" else f"{fabric} link")


def shortened(text: str, characters_max: int) -> str:
    """The text, or its beginning and an ellipsis; never longer than `characters_max`."""
    if len(text) <= characters_max:
        return text
    return text[: max(characters_max - 1, 0)].rstrip(" ,-") + "…"


def printable(text: str) -> str:
    """Without characters that would steer a terminal: names come from files that anybody may have written."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def reason_words(unknown: Unknown) -> str:
    """The evidence, short: what is silent needs no more words than that, and numbers that tell nothing go."""
    evidence = " ".join(unknown.evidence.split())
    if (silence := _SILENCE.fullmatch(evidence)) is not None:
        evidence = silence[1] or "no source tells"
    return shortened(_NUMBERED.sub(lambda match: match[1] or f"{match[2]}#", evidence), EVIDENCE_CHARACTERS_MAX)

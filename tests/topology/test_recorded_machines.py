"""Every recorded machine reads as the facts worked out for its file, from the file to the assembled machine.

The facts (tests/machines/facts.json, explained in ORIGINS.md) were made without this program. What a file's format
cannot tell stays unknown, and the comparison insists on that too. Three readings differ on purpose:

- hgx-b200-8gpu-container.nccl-topo.xml lists `eth0`, a socket interface that hangs below both CPU elements. It has no
  PCI device, so it is no NIC here; a warning says that it is left out.
- In sysfs dumps of machines with one NUMA node, `numa_node` is -1 and stays unknown, as in the facts, while the CPUs
  near a GPU are those of that node.
- NCCL's PIX means one parent element; below nested switches the facts and this program say PXB alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from topoalloc.errors import InputError
from topoalloc.topology.checks import check_machine
from topoalloc.topology.links import nearest_nics
from topoalloc.topology.machine import Gpu, Machine, Nic, Unknown, known
from topoalloc.topology.sources import load_machine

MACHINES = Path(__file__).parent.parent / "machines"
FACTS: dict[str, dict[str, Any]] = {
    name: entry["facts"] for name, entry in json.loads((MACHINES / "facts.json").read_text()).items()
}
ADDITIONS = {
    "nvidia-smi -L",
    "nvidia-smi -q -x",
    "nvidia-smi nvlink",
    "nvidia-smi topo -p2p",
    "numactl --hardware",
    "text: PCI address, class, numa_node per line",
}


@cache
def loaded(*names: str) -> Machine:
    return load_machine([str(MACHINES / name) for name in names])


def of_format(*formats: str) -> list[str]:
    return sorted(name for name, facts in FACTS.items() if facts["format"] in formats)


@dataclass(frozen=True, slots=True)
class Compared:
    """How many things of one file were compared."""

    nodes: int = 0
    gpus: int = 0
    nics: int = 0
    pairs: int = 0

    def __add__(self, other: Compared) -> Compared:
        return Compared(
            self.nodes + other.nodes, self.gpus + other.gpus, self.nics + other.nics, self.pairs + other.pairs
        )


def node_of(device: Gpu | Nic) -> int | None:
    return known(device.numa_node)


def classes_of(machine: Machine) -> dict[frozenset[str], str | None]:
    return {
        frozenset((link.a, link.b)): None if isinstance(link.pcie, Unknown) else link.pcie.name
        for link in machine.links
    }


def nvlinks_of(machine: Machine) -> dict[frozenset[str], int | None]:
    return {frozenset((link.a, link.b)): known(link.nvlinks) for link in machine.links}


def groups_of(machine: Machine) -> set[frozenset[str]]:
    return {frozenset(group) for group in machine.switch_groups}


def groups_of_facts(groups: Iterable[Iterable[str]], id_of: dict[str, str]) -> set[frozenset[str]]:
    """The groups by ids; devices that are no GPU or NIC (accelerators of other kinds) fall out, as do lone ones."""
    named = (frozenset(id_of[name] for name in group if name in id_of) for group in groups)
    return {group for group in named if len(group) > 1}


def check_nearest(machine: Machine, facts: dict[str, Any], id_of: dict[str, str]) -> None:
    found = {gpu: (nearest.pcie.name, set(nearest.nics)) for gpu, nearest in nearest_nics(machine).items()}
    expected = {
        id_of[gpu]: (best["class"], {id_of[nic] for nic in best["nics"]})
        for gpu, best in facts.items()
        if best is not None and gpu in id_of
    }
    assert found == expected


def compare_table(name: str) -> Compared:
    facts, machine = FACTS[name], loaded(name)
    assert [node.id for node in machine.numa_nodes] == facts["numa_nodes_seen"]
    assert [(f"GPU{gpu.index}", known(gpu.cpus) and str(gpu.cpus), node_of(gpu)) for gpu in machine.gpus] == [
        (f"GPU{gpu['index']}", gpu["cpu_affinity"], gpu["numa"]) for gpu in facts["gpus"]
    ]
    assert [(nic.name, node_of(nic)) for nic in machine.nics] == [
        (nic["device"] or nic["name"], nic["numa"]) for nic in facts["nics"]
    ]
    id_of = {gpu.id: gpu.id for gpu in machine.gpus} | {
        nic["name"]: found.id for nic, found in zip(facts["nics"], machine.nics, strict=True)
    }
    classes, nvlinks = classes_of(machine), nvlinks_of(machine)
    seen: set[frozenset[str]] = set()
    for row, cells in facts["gpu_matrix"].items():
        for column, cell in cells.items():
            pair = frozenset((id_of[row], id_of[column]))
            seen.add(pair)
            assert classes[pair] == (None if cell.startswith("NV") else cell.replace("SOC", "SYS"))
            assert nvlinks[pair] == (int(cell[2:]) if cell.startswith("NV") else 0)
    joined = {frozenset((f"GPU{pair['a']}", f"GPU{pair['b']}")): pair["links"] for pair in facts["nvlink_pairs"]}
    assert {pair: count for pair, count in nvlinks.items() if count} == joined
    assert groups_of(machine) == groups_of_facts(facts["switch_groups"], id_of)
    check_nearest(machine, facts["best_nic_per_gpu"], id_of)
    return Compared(len(machine.numa_nodes), len(machine.gpus), len(machine.nics), len(seen))


def class_in_nccl(a: dict[str, Any], b: dict[str, Any]) -> str:
    """NCCL's own words: one parent element is PIX, one ancestor element PXB, one cpu element PHB."""
    if a["bridges"] and a["bridges"] == b["bridges"]:
        return "PIX"
    if a["bridges"][:1] and a["bridges"][:1] == b["bridges"][:1]:
        return "PXB"
    return "PHB" if a["numa"] == b["numa"] else "SYS"


def nccl_key(device: dict[str, Any]) -> tuple[str, str | None]:
    return device["busid"], device.get("name")


def compare_nccl(name: str) -> Compared:
    facts, machine = FACTS[name], loaded(name)
    assert {node.id: known(node.cpus) and str(node.cpus) for node in machine.numa_nodes} == {
        cpu["numaid"]: cpu["cpus"] for cpu in facts["cpu_elements"]
    }
    with_pci = [nic for nic in facts["nics"] if nic["busid"] is not None]
    assert [str(gpu.bdf) for gpu in machine.gpus] == sorted(gpu["busid"] for gpu in facts["gpus"])
    found_nics = [(str(nic.bdf), nic.name) for nic in machine.nics]
    expected_nics = sorted(with_pci, key=lambda nic: (nic["busid"], nic.get("port") or 0))
    assert found_nics == [(nic["busid"], nic["name"] or nic["busid"]) for nic in expected_nics]
    device_of = {gpu["busid"]: gpu for gpu in facts["gpus"]}
    facts_of = {gpu.id: device_of[str(gpu.bdf)] for gpu in machine.gpus} | {
        nic.id: fact for nic, fact in zip(machine.nics, expected_nics, strict=True)
    }
    for device in (*machine.gpus, *machine.nics):
        fact = facts_of[device.id]
        assert node_of(device) == fact["numa"]
        path = known(device.path)
        assert path is not None
        assert [str(bridge) for bridge in path.bridges] == fact["bridges"]
    pairs = 0
    for pair, found in classes_of(machine).items():
        a, b = (facts_of[device] for device in sorted(pair))
        assert found == class_in_nccl(a, b)
        pairs += 1
    id_of = {str(gpu.bdf): gpu.id for gpu in machine.gpus}
    id_of |= {key: nic.id for nic in machine.nics for key in (str(nic.bdf), nic.name)}
    assert groups_of(machine) == groups_of_facts(
        ([*group["gpus"], *group["nics"]] for group in facts["switch_groups"]), id_of
    )
    check_nearest(machine, facts["best_nic_per_gpu"], id_of)
    compare_nccl_nvlinks(machine, facts, id_of)
    warned = " ".join(machine.warnings)
    assert all(device["busid"] in warned for device in facts.get("unclassed_pci", ()))
    return Compared(len(machine.numa_nodes), len(machine.gpus), len(machine.nics), pairs)


def compare_nccl_nvlinks(machine: Machine, facts: dict[str, Any], id_of: dict[str, str]) -> None:
    expected = {frozenset((id_of[pair["a"]], id_of[pair["b"]])): pair["links"] for pair in facts["direct_link_pairs"]}
    totals = {id_of[gpu]: sum(far["links"] for far in ends) for gpu, ends in facts["switch_links"].items()}
    expected |= {frozenset(pair): min(totals[pair[0]], totals[pair[1]]) for pair in combinations(totals, 2)}
    assert {pair: count for pair, count in nvlinks_of(machine).items() if count} == expected


def class_in_tree(a: list[str], b: list[str], a_node: int | None, b_node: int | None) -> str | None:
    """The class of two chains `host bridge, bridge, ...`, as ORIGINS.md words it."""
    if a[0] != b[0]:
        return None if a_node is None or b_node is None else "NODE" if a_node == b_node else "SYS"
    common = [left for left, right in zip(a, b, strict=False) if left == right]
    if len(common) == 1:
        return "PHB"
    return "PIX" if max(len(a), len(b)) - len(common) <= 1 else "PXB"


def compare_tree(
    machine: Machine,
    gpus: list[dict[str, Any]],
    nics: list[dict[str, Any]],
    chain: Callable[[dict[str, Any]], list[str]],
) -> int:
    """Addresses, nodes and every pair's class of a source with whole paths; the number of pairs."""
    assert [(str(gpu.bdf), node_of(gpu)) for gpu in machine.gpus] == sorted((gpu["busid"], gpu["numa"]) for gpu in gpus)
    assert [(str(nic.bdf), node_of(nic)) for nic in machine.nics] == sorted((nic["busid"], nic["numa"]) for nic in nics)
    fact_of = {fact["busid"]: fact for fact in (*gpus, *nics)}
    facts = {device.id: fact_of[str(device.bdf)] for device in (*machine.gpus, *machine.nics)}
    for pair, found in classes_of(machine).items():
        a, b = (facts[device] for device in sorted(pair))
        assert found == class_in_tree(chain(a), chain(b), a["numa"], b["numa"])
    return len(machine.links)


def compare_sysfs(name: str) -> Compared:
    facts, machine = FACTS[name], loaded(name)
    assert [
        (node.id, str(known(node.cpus)), known(node.memory_bytes), known(node.distances)) for node in machine.numa_nodes
    ] == [
        (
            node["id"],
            node.get("usable_cpus", node["cpus_by_cpumap"]),
            None if node["mem_total_kb"] is None else node["mem_total_kb"] * 1024,
            None if node["distance"] is None else tuple(node["distance"]),
        )
        for node in facts["numa_nodes"]
    ]
    pairs = compare_tree(machine, facts["gpus"], facts["nics"], lambda device: device["path"].split("/")[:-1])
    for nic, fact in zip(machine.nics, sorted(facts["nics"], key=lambda nic: nic["busid"]), strict=True):
        assert {nic.netdev, nic.rdma} >= {*fact.get("netdevs", ()), *fact.get("rdma", ())}
    for gpu, fact in zip(machine.gpus, facts["gpus"], strict=True):
        assert str(gpu.cpus) == fact["local_cpulist"]
    id_of = {str(device.bdf): device.id for device in (*machine.gpus, *machine.nics)}
    for device, cells in facts.get("device_nic_class", {}).items():
        for nic, expected in cells.items():
            if device in id_of:
                assert classes_of(machine)[frozenset((id_of[device], id_of[nic]))] == expected
    assert groups_of(machine) == groups_of_facts(facts.get("switch_groups", []), id_of)
    check_nearest(machine, facts.get("best_nic_per_device", {}), id_of)
    assert [str(switch) for switch in machine.nvswitches] == facts.get("nvswitches", [])
    return Compared(len(machine.numa_nodes), len(machine.gpus), len(machine.nics), pairs)


def compare_hwloc(name: str) -> Compared:
    facts, machine = FACTS[name], loaded(name)
    assert [(node.id, str(node.cpus), node.memory_bytes) for node in machine.numa_nodes] == [
        (node["id"], node["cpus"], node["mem_bytes"]) for node in facts["numa_nodes"]
    ]
    pairs = compare_tree(machine, facts["gpus"], facts["nics"], lambda device: device["bridges"])
    for nic, fact in zip(machine.nics, sorted(facts["nics"], key=lambda nic: nic["busid"]), strict=True):
        assert nic.name in fact["os"]
    id_of = {str(device.bdf): device.id for device in (*machine.gpus, *machine.nics)}
    assert groups_of(machine) == groups_of_facts(facts["switch_groups"], id_of)
    check_nearest(machine, facts.get("best_nic_per_gpu", {}), id_of)
    return Compared(len(machine.numa_nodes), len(machine.gpus), len(machine.nics), pairs)


def compare_lspci(name: str) -> Compared:
    facts, machine = FACTS[name], loaded(name)
    assert machine.numa_nodes == ()
    assert [str(gpu.bdf) for gpu in machine.gpus] == sorted(gpu["busid"] for gpu in facts["gpus"])
    assert [str(nic.bdf) for nic in machine.nics] == sorted(nic["busid"] for nic in facts["nics"])
    fact_of = {fact["busid"]: fact for fact in (*facts["gpus"], *facts["nics"])}
    for device in (*machine.gpus, *machine.nics):
        path, fact = known(device.path), fact_of[str(device.bdf)]
        assert path is not None
        assert (path.host_bridge, [str(bridge) for bridge in path.bridges]) == (fact["root"], fact["bridges"])
        assert node_of(device) is None
    id_of = {str(device.bdf): device.id for device in (*machine.gpus, *machine.nics)}
    classes, pairs = classes_of(machine), set[frozenset[str]]()
    for matrix in (facts["gpu_nic_class"], facts["gpu_gpu_class"]):
        for a, cells in matrix.items():
            for b, expected in cells.items():
                pair = frozenset((id_of[a], id_of[b]))
                pairs.add(pair)
                assert classes[pair] == (None if expected == "NODE_OR_SYS" else expected)
    return Compared(0, len(machine.gpus), len(machine.nics), len(pairs))


def compare_addition(name: str) -> Compared:
    """Alone such a file is refused, with what would do beside it; what it adds is tested with its companions."""
    with pytest.raises(
        InputError, match=r"only adds to another source of the same machine; give also .*topo -m"
    ) as error:
        loaded(name)
    assert "\n" not in str(error.value)
    return Compared()


COMPARISONS: dict[str, Callable[[str], Compared]] = {
    "nvidia-smi topo -m": compare_table,
    "nccl topo xml": compare_nccl,
    "sysfs tarball": compare_sysfs,
    "hwloc xml": compare_hwloc,
    "lspci -tv": compare_lspci,
    **dict.fromkeys(ADDITIONS, compare_addition),
}


def compare(name: str) -> Compared:
    return COMPARISONS[FACTS[name]["format"]](name)


def test_every_recorded_file_has_facts_and_all_are_read() -> None:
    files = {path.name for path in MACHINES.iterdir()} - {"facts.json", "ORIGINS.md"}
    assert files == set(FACTS)
    assert len(files) == 79
    assert {facts["format"] for facts in FACTS.values()} == set(COMPARISONS)


@pytest.mark.parametrize("name", sorted(FACTS))
def test_the_machine_is_the_one_the_facts_tell(name: str) -> None:
    compare(name)


@pytest.mark.parametrize("name", sorted(name for name, facts in FACTS.items() if facts["format"] not in ADDITIONS))
def test_every_invariant_holds(name: str) -> None:
    assert check_machine(loaded(name)) == ()


def test_the_figures_of_the_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    by_format = {kind: [compare(name) for name in of_format(kind)] for kind in COMPARISONS if kind not in ADDITIONS}
    refused = [compare(name) for name in of_format(*ADDITIONS)]
    with capsys.disabled():
        print(f"\n{'recorded machines':24}{'files':>7}{'nodes':>7}{'GPUs':>7}{'NICs':>7}{'pairs':>7}")
        total = Compared()
        for kind, found in by_format.items():
            figures = sum(found, Compared())
            total = total + figures
            print(f"{kind:24}{len(found):7}{figures.nodes:7}{figures.gpus:7}{figures.nics:7}{figures.pairs:7}")
        print(f"{'refused alone':24}{len(refused):7}")
        files = sum(len(found) for found in by_format.values()) + len(refused)
        print(f"{'together':24}{files:7}{total.nodes:7}{total.gpus:7}{total.nics:7}{total.pairs:7}")
    assert files == len(FACTS)
    assert total.gpus == sum(number_of(facts, "gpus") for facts in FACTS.values())
    # One NIC less than the facts count: the socket interface without PCI device of the B200 container.
    assert total.nics == sum(number_of(facts, "nics") for facts in FACTS.values()) - 1


def number_of(facts: dict[str, Any], kind: str) -> int:
    return 0 if facts["format"] in ADDITIONS else len(facts[kind])

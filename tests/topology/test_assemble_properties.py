"""Whatever views of one true machine are assembled, in whatever order, the machine that comes out is the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from topoalloc.topology.assemble import assemble
from topoalloc.topology.checks import check_machine
from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.links import Place, pcie_class
from topoalloc.topology.machine import LinkClass, Machine, MigDevice, NicFunction, Unknown
from topoalloc.topology.machine_json import json_text, machine_json
from topoalloc.topology.pci import PciAddress, PciPath
from topoalloc.topology.reading import (
    NO_NAME,
    FarEnd,
    GpuReading,
    LinkReading,
    NicReading,
    NumaReading,
    NvlinkReading,
    Reading,
    SourceRefusal,
    Standing,
)
from topoalloc.topology.restated import restated

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Device:
    """A device of the true machine; `switch` is None below a root port of its own."""

    bdf: PciAddress
    node: int
    host: str
    root_port: PciAddress
    switch: PciAddress | None

    @property
    def path(self) -> PciPath:
        if self.switch is None:
            return PciPath(self.host, (self.root_port,))
        downstream = PciAddress(0, self.switch.bus + 1, self.bdf.bus % 32, 0)
        return PciPath(self.host, (self.root_port, self.switch, downstream))

    @property
    def folded_path(self) -> PciPath:
        return PciPath(f"numa{self.node}", () if self.switch is None else (self.switch,))

    @property
    def place(self) -> Place:
        return Place(self.path, self.bdf, self.node)


@dataclass(frozen=True, slots=True)
class World:
    """A true machine: devices in address order, and NVLinks per pair of GPU positions."""

    nodes: tuple[int, ...]
    gpus: tuple[Device, ...]
    nics: tuple[Device, ...]
    nvlinks: dict[tuple[int, int], int]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    nodes = tuple(sorted(draw(st.sets(st.integers(0, 9), min_size=1, max_size=2))))
    gpus: list[Device] = []
    nics: list[Device] = []
    bus = 1
    for at, node in enumerate(nodes):
        for bridge in range(draw(st.integers(1, 2))):
            root = at * 64 + bridge * 32
            bus = root + 1
            for port in range(draw(st.integers(0, 2))):
                has_switch = draw(st.booleans())
                switch = PciAddress(0, bus, 0, 0) if has_switch else None
                bus += 2 if has_switch else 0
                for _ in range(draw(st.integers(1, 2)) if has_switch else 1):
                    kind = draw(st.sampled_from([gpus, nics]))
                    host, root_port = f"0000:{root:02x}", PciAddress(0, root, port + 1, 0)
                    kind.append(Device(PciAddress(0, bus, 0, 0), node, host, root_port, switch))
                    bus += 1
    pairs = list(combinations(range(len(gpus)), 2))
    nvlinks = {pair: draw(st.sampled_from([0, 0, 1, 4])) for pair in pairs}
    return World(nodes, tuple(gpus), tuple(nics), nvlinks)


def cpus_of(node: int) -> CpuSet:
    return CpuSet.of(range(node * 8, node * 8 + 8))


def sysfs(world: World) -> Reading:
    distances = tuple(tuple(10 if a == b else 20 + a + b for b in world.nodes) for a in world.nodes)
    return Reading(
        "sysfs",
        Standing.WHOLE,
        numa_nodes=tuple(
            NumaReading(node, cpus_of(node), 64 * GIB + 4096, row)
            for node, row in zip(world.nodes, distances, strict=True)
        ),
        gpus=tuple(
            GpuReading(bdf=gpu.bdf, numa_node=gpu.node, path=gpu.path, vendor="10de", pci_device="2330")
            for gpu in world.gpus
        ),
        nics=tuple(
            NicReading(f"eth{at}", nic.bdf, nic.node, f"mlx5_{at}", f"eth{at}", nic.path, vendor="15b3")
            for at, nic in enumerate(world.nics)
        ),
        all_numa_nodes=True,
    )


def nccl(world: World) -> Reading:
    return Reading(
        "nccl",
        Standing.WHOLE,
        numa_nodes=tuple(NumaReading(node, cpus_of(node)) for node in world.nodes),
        gpus=tuple(
            GpuReading(
                bdf=gpu.bdf, numa_node=gpu.node, path=gpu.folded_path, vendor="10de", nvlinks=links_of(world, at)
            )
            for at, gpu in enumerate(world.gpus)
        ),
        nics=tuple(
            NicReading(f"mlx5_{at}", nic.bdf, nic.node, f"mlx5_{at}", path=nic.folded_path, port=1)
            for at, nic in enumerate(world.nics)
        ),
    )


def links_of(world: World, at: int) -> tuple[NvlinkReading, ...]:
    return tuple(
        NvlinkReading(FarEnd.GPU, world.gpus[b if a == at else a].bdf, count)
        for (a, b), count in world.nvlinks.items()
        if at in (a, b) and count
    )


def table(world: World) -> Reading:
    ends = [("gpu", at, gpu) for at, gpu in enumerate(world.gpus)] + [
        ("nic", at, nic) for at, nic in enumerate(world.nics)
    ]
    links = []
    for (kind, a, one), (other_kind, b, other) in combinations(ends, 2):
        count = world.nvlinks[a, b] if kind == other_kind == "gpu" else 0
        stated = Unknown(f"hidden by NV{count} cell") if count else pcie_class(one.place, other.place)
        links.append(LinkReading((kind, a), (other_kind, b), stated, count))
    return Reading(
        "topo -m",
        Standing.WHOLE,
        numa_nodes=tuple(NumaReading(node) for node in sorted({gpu.node for gpu in world.gpus})),
        gpus=tuple(
            GpuReading(index=at, numa_node=gpu.node, cpus=cpus_of(gpu.node), vendor="10de")
            for at, gpu in enumerate(world.gpus)
        ),
        nics=tuple(NicReading(f"mlx5_{at}", rdma=f"mlx5_{at}") for at in range(len(world.nics))),
        links=tuple(links),
        ordered=True,
    )


def smi_query(world: World) -> Reading:
    return Reading(
        "nvidia-smi -q -x",
        Standing.ADDITION,
        gpus=tuple(
            GpuReading(index=at, bdf=gpu.bdf, uuid=f"GPU-{at}", model="NVIDIA H100", memory_bytes=80 * GIB, minor=at)
            for at, gpu in enumerate(world.gpus)
        ),
    )


def nvlink_status(world: World) -> Reading:
    totals = [sum(link.count for link in links_of(world, at)) for at in range(len(world.gpus))]
    return Reading(
        "nvlink -s",
        Standing.ADDITION,
        gpus=tuple(
            GpuReading(
                index=at,
                uuid=f"GPU-{at}",
                model="NVIDIA H100",
                nvlinks=(NvlinkReading(FarEnd.UNKNOWN, None, total),) if total else (),
            )
            for at, total in enumerate(totals)
        ),
    )


def numactl(world: World) -> Reading:
    return Reading(
        "numactl -H",
        Standing.ADDITION,
        numa_nodes=tuple(NumaReading(node, cpus_of(node), 64 * GIB) for node in world.nodes),
    )


VIEWS = (sysfs, nccl, table, smi_query, nvlink_status, numactl)
WHOLE_VIEWS = VIEWS[:3]


@st.composite
def views(draw: st.DrawFn) -> list[Reading]:
    """Some views of one world, one of them whole."""
    world = draw(worlds())
    first = draw(st.sampled_from(WHOLE_VIEWS))
    rest = draw(st.lists(st.sampled_from([view for view in VIEWS if view is not first]), unique=True))
    return [view(world) for view in (first, *rest)]


def assembled(readings: list[Reading]) -> Machine:
    machine = assemble(readings, None)
    assert not isinstance(machine, SourceRefusal), machine
    return machine


def without_sources(machine: Machine) -> Machine:
    return replace(machine, sources=())


@given(views(), st.data())
def test_the_order_of_agreeing_sources_changes_nothing(readings: list[Reading], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(readings))
    assert without_sources(assembled(readings)) == without_sources(assembled(shuffled))


@given(views())
def test_agreeing_sources_raise_no_warning(readings: list[Reading]) -> None:
    assert assembled(readings).warnings == ()


@given(views())
def test_every_invariant_holds(readings: list[Reading]) -> None:
    assert check_machine(assembled(readings)) == ()


@given(views(), st.data())
def test_a_source_given_twice_changes_nothing(readings: list[Reading], data: st.DataObject) -> None:
    again = replace(data.draw(st.sampled_from(readings)), source="a copy")
    machine = assembled(readings)
    assert without_sources(assembled([*readings, again])) == without_sources(machine)
    assert assembled([*readings, readings[0]]) == machine


@given(views(), st.data())
def test_the_order_of_entries_in_an_unordered_source_changes_nothing(
    readings: list[Reading], data: st.DataObject
) -> None:
    shuffled = [reading if reading.links else shuffled_entries(reading, data) for reading in readings]
    assert assembled(shuffled) == assembled(readings)


def shuffled_entries(reading: Reading, data: st.DataObject) -> Reading:
    """Links name entries by position and distances follow the nodes, so only sources without links are shuffled."""
    nodes = [replace(node, distances=None) for node in reading.numa_nodes]
    has_distances = any(node.distances is not None for node in reading.numa_nodes)
    return replace(
        reading,
        numa_nodes=reading.numa_nodes if has_distances else tuple(data.draw(st.permutations(nodes))),
        gpus=tuple(data.draw(st.permutations(reading.gpus))),
        nics=tuple(data.draw(st.permutations(reading.nics))),
    )


@given(worlds(), st.data())
def test_a_machine_that_all_sources_describe_is_the_true_one(world: World, data: st.DataObject) -> None:
    machine = assembled(data.draw(st.permutations([view(world) for view in VIEWS])))
    devices = (*world.gpus, *world.nics)
    assert [gpu.bdf for gpu in machine.gpus] == [gpu.bdf for gpu in world.gpus]
    assert [nic.bdf for nic in machine.nics] == [nic.bdf for nic in world.nics]
    assert [device.numa_node for device in (*machine.gpus, *machine.nics)] == [device.node for device in devices]
    place_of = {found.id: true.place for found, true in zip((*machine.gpus, *machine.nics), devices, strict=True)}
    for link in machine.links:
        assert link.pcie == pcie_class(place_of[link.a], place_of[link.b])
    counts = {(f"GPU{a}", f"GPU{b}"): count for (a, b), count in world.nvlinks.items()}
    assert {(link.a, link.b): link.nvlinks for link in machine.links if link.b.startswith("GPU")} == counts


@given(worlds())
def test_link_classes_do_not_depend_on_which_end_is_named_first(world: World) -> None:
    reading = table(world)
    turned = replace(reading, links=tuple(replace(link, a=link.b, b=link.a) for link in reading.links))
    assert assembled([turned]) == assembled([reading])


@given(worlds(), st.integers(0, 40), st.integers(1, 7))
def test_moving_all_buses_and_nodes_moves_nothing_else(world: World, domain: int, nodes_up: int) -> None:
    """Ids are numbers of things, not their addresses: a machine elsewhere in the address space has the same links."""
    moved = replace(
        world,
        nodes=tuple(node + nodes_up for node in world.nodes),
        gpus=tuple(moved_device(gpu, domain, nodes_up) for gpu in world.gpus),
        nics=tuple(moved_device(nic, domain, nodes_up) for nic in world.nics),
    )
    for view in WHOLE_VIEWS:
        assert assembled([view(world)]).links == assembled([view(moved)]).links


def moved_device(device: Device, domain: int, nodes_up: int) -> Device:
    return Device(
        replace(device.bdf, domain=domain),
        device.node + nodes_up,
        f"{domain:04x}:{device.host[5:]}",
        replace(device.root_port, domain=domain),
        None if device.switch is None else replace(device.switch, domain=domain),
    )


@given(worlds(), st.data())
def test_a_contradiction_is_named_and_the_earlier_source_wins(world: World, data: st.DataObject) -> None:
    if not world.gpus:
        return
    at = data.draw(st.integers(0, len(world.gpus) - 1))
    right, other = smi_query(world), smi_query(world)
    gpus = list(other.gpus)
    gpus[at] = replace(gpus[at], memory_bytes=16 * GIB, minor=77)
    wrong = replace(other, source="another", gpus=tuple(gpus))
    machine = assembled([nccl(world), wrong, right])
    assert machine.gpus[at].memory_bytes == 16 * GIB
    assert machine.gpus[at].minor == 77
    assert len(machine.warnings) == 2
    assert all("another" in line and "nvidia-smi -q -x" in line and "\n" not in line for line in machine.warnings)


addresses = st.builds(PciAddress, st.just(0), st.integers(1, 3), st.just(0), st.integers(0, 1))
node_ids = st.none() | st.just(Unknown("-1")) | st.integers(0, 2)
cpu_sets = st.none() | st.just(Unknown("N/A")) | st.builds(CpuSet, st.integers(0, 15))
paths = st.builds(
    PciPath,
    st.sampled_from(["0000:00", "0000:40", "numa0", "numa1", "numa-1"]),
    st.lists(addresses, max_size=2).map(tuple),
)
names = st.none() | st.sampled_from([NO_NAME, "eth0", "mlx5_0", "mlx5_1", "NIC0"])
vendors = st.sampled_from([None, "10de", "1002", "15b3"])
any_nvlinks = st.builds(NvlinkReading, st.sampled_from(list(FarEnd)), st.none() | addresses, st.integers(0, 4))
any_gpu = st.builds(
    GpuReading,
    index=st.none() | st.integers(0, 3),
    bdf=st.none() | addresses,
    uuid=st.sampled_from([None, "GPU-a", "GPU-b"]),
    model=st.sampled_from([None, "NVIDIA L4", "NVIDIA L40", ""]),
    memory_bytes=st.sampled_from([None, 0, 4096, GIB]),
    numa_node=node_ids,
    cpus=cpu_sets,
    path=st.none() | paths,
    vendor=vendors,
    mig=st.sampled_from([(), (MigDevice(0, "1g.5gb", "MIG-a"),), (MigDevice(0, "1g.5gb", ""),)]),
    nvlinks=st.none() | st.lists(any_nvlinks, max_size=2).map(tuple),
)
any_nic = st.builds(
    NicReading,
    name=names,
    bdf=st.none() | addresses,
    numa_node=node_ids,
    rdma=names,
    netdev=names,
    path=st.none() | paths,
    function=st.sampled_from([None, *NicFunction]),
    vendor=vendors,
    physical_function=st.none() | addresses,
    port=st.none() | st.integers(1, 2),
)
any_node = st.builds(
    NumaReading,
    st.integers(0, 3),
    cpu_sets,
    st.sampled_from([None, 0, GIB]),
    st.none() | st.lists(st.integers(10, 30), max_size=3).map(tuple),
)
ends = st.tuples(st.sampled_from(["gpu", "nic"]), st.integers(0, 3))
any_link = st.builds(LinkReading, ends, ends, st.none() | st.sampled_from(LinkClass), st.none() | st.integers(0, 4))


def with_valid_ends(reading: Reading) -> Reading:
    """A reading whose links name entries that it has, as every reader sees to."""
    counts = {"gpu": len(reading.gpus), "nic": len(reading.nics)}
    valid = (
        link for link in reading.links if link.a != link.b and all(end[1] < counts[end[0]] for end in (link.a, link.b))
    )
    return replace(reading, links=tuple(valid))


any_reading = st.builds(
    Reading,
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(list(Standing)),
    numa_nodes=st.lists(any_node, max_size=3).map(tuple),
    gpus=st.lists(any_gpu, max_size=3).map(tuple),
    nics=st.lists(any_nic, max_size=3).map(tuple),
    links=st.lists(any_link, max_size=4).map(tuple),
    nvswitches=st.lists(addresses, max_size=2).map(tuple),
    ordered=st.booleans(),
    all_numa_nodes=st.booleans(),
).map(with_valid_ends)


@given(st.lists(any_reading, max_size=4))
def test_sources_that_contradict_themselves_and_each_other_still_make_a_sound_machine(readings: list[Reading]) -> None:
    outcome = assemble(readings, None)
    if isinstance(outcome, SourceRefusal):
        assert "\n" not in str(outcome)
        return
    assert check_machine(outcome) == ()
    assert all("\n" not in warning for warning in outcome.warnings)
    assert assemble(readings, None) == outcome
    json_text(outcome)
    again = assemble([restated(outcome, "a snapshot")], None)
    assert isinstance(again, Machine)
    assert machine_json(replace(again, sources=(), warnings=())) == machine_json(
        replace(outcome, sources=(), warnings=())
    )


def test_a_nic_known_to_have_no_rdma_device_says_none() -> None:
    nic = NicReading("eth0", PciAddress(0, 2, 0, 0), 0, NO_NAME, "eth0")
    machine = assembled([Reading("sysfs", Standing.WHOLE, nics=(nic,))])
    assert machine.nics[0].rdma is None


def test_the_true_classes_of_a_world_use_every_class() -> None:
    """The worlds above are no toys: one of them holds every class at once."""
    host = [("0000:00", 0), ("0000:20", 0), ("0000:40", 1)]
    devices = [
        Device(PciAddress(0, 4 + at, 0, 0), node, name, PciAddress(0, int(name[5:], 16), port, 0), switch)
        for at, ((name, node), port, switch) in enumerate(
            [
                (host[0], 1, PciAddress(0, 1, 0, 0)),
                (host[0], 1, PciAddress(0, 1, 0, 0)),
                (host[0], 2, None),
                (host[1], 1, None),
                (host[2], 1, None),
            ]
        )
    ]
    classes = {pcie_class(a.place, b.place) for a, b in combinations(devices, 2)}
    assert classes == {LinkClass.PIX, LinkClass.PHB, LinkClass.NODE, LinkClass.SYS}

"""What is kept back makes the kubelet's counts true: it counts free ids by NUMA node, a share needs one GPU."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import combinations_with_replacement, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.handmade import GIB, machine
from topoalloc.admission.hints import DeviceView, device_hints
from topoalloc.allocation.withholding import withheld_ids
from topoalloc.sharing.inventory import Inventory, ResourceKind, inventory_of
from topoalloc.sharing.settings import CORE_RESOURCE, MEMORY_RESOURCE, NumaReporting, SharingSettings
from topoalloc.topology.machine import Unknown

UNITS = 4  # of memory per GPU
CORES = 100


def inventory(
    *, numa: int = 2, gpus: int = 4, memory: bool = True, reporting: NumaReporting | None = None
) -> Inventory:
    numa_of = {} if reporting is None else dict.fromkeys((CORE_RESOURCE, MEMORY_RESOURCE), reporting)
    made = machine(
        numa=numa, switches=1, gpus=gpus, nics=1, memory_bytes=UNITS * GIB if memory else Unknown("not told")
    )
    cut = inventory_of(made, SharingSettings(memory_unit_bytes=GIB, numa=numa_of))
    assert isinstance(cut, Inventory)
    return cut


TWO_NODES = inventory()
ONE_NODE = inventory(numa=1, gpus=3)
CORES_ALONE = inventory(memory=False)
NO_NODES = inventory(reporting=NumaReporting.NONE)


@dataclass(frozen=True)
class Use:
    """What is held of one GPU."""

    cores: int
    memory: int

    @property
    def untouched(self) -> bool:
        return (self.cores, self.memory) == (0, 0)


def held_of(node: Inventory, uses: tuple[Use, ...]) -> frozenset[str]:
    amounts = {ResourceKind.CORE: [use.cores for use in uses], ResourceKind.MEMORY: [use.memory for use in uses]}
    return frozenset(
        device.id
        for device in node.devices.values()
        if device.kind is not ResourceKind.NIC and device.unit < amounts[device.kind][device.position]
    )


def offered_of(node: Inventory, held: frozenset[str], kind: ResourceKind) -> Counter[int]:
    """Healthy and free, by position."""
    kept = withheld_ids(node, held)
    free = (d for d in node.devices.values() if d.kind is kind and d.id not in held and d.id not in kept)
    return Counter(device.position for device in free)


def says_yes(node: Inventory, held: frozenset[str], numa_node: int, cores: int, memory: int) -> bool:
    """Whether the kubelet's hints let a request have this one NUMA node."""
    kept = withheld_ids(node, held)
    for name, amount in ((CORE_RESOURCE, cores), (MEMORY_RESOURCE, memory)):
        resource = node.resource(name)
        if resource is None or amount == 0:
            continue
        ids = frozenset(device.id for device in resource.devices)
        view = DeviceView({d.id: d.numa_nodes or None for d in resource.devices}, ids - kept, held & ids)
        hints = device_hints(view, amount, (0, 1))
        if hints is not None and 1 << numa_node not in {hint.mask for hint in hints}:
            return False
    return True


def fits(use: Use, cores: int, memory: int) -> bool:
    """Whether a share finds room on a GPU, by what nobody holds of it."""
    return CORES - use.cores >= cores and UNITS - use.memory >= memory


uses = st.builds(Use, st.sampled_from([0, 0, 1, 30, 40, 60, 99, 100]), st.integers(0, UNITS))
worlds = st.tuples(*[uses] * 8)
shares = st.tuples(st.integers(1, 99), st.integers(1, UNITS))


@given(worlds, shares)
def test_the_kubelet_says_yes_to_a_share_only_where_one_gpu_can_take_it(world: tuple[Use, ...], share: tuple[int, int]):
    held = held_of(TWO_NODES, world)

    for numa_node in (0, 1):
        here = world[4 * numa_node : 4 * numa_node + 4]
        if says_yes(TWO_NODES, held, numa_node, *share):
            assert any(fits(use, *share) for use in here)
        else:
            assert not any(use.untouched for use in here)


@given(worlds, shares)
def test_the_kubelet_says_yes_wherever_what_is_offered_of_one_gpu_is_enough(
    world: tuple[Use, ...], share: tuple[int, int]
):
    held = held_of(TWO_NODES, world)
    cores, memory = (offered_of(TWO_NODES, held, kind) for kind in (ResourceKind.CORE, ResourceKind.MEMORY))

    for numa_node in (0, 1):
        here = range(4 * numa_node, 4 * numa_node + 4)
        enough = any(cores[position] >= share[0] and memory[position] >= share[1] for position in here)
        assert says_yes(TWO_NODES, held, numa_node, *share) == enough


@given(worlds, st.integers(1, 4))
def test_the_kubelet_says_yes_to_whole_gpus_exactly_where_as_many_are_untouched(world: tuple[Use, ...], count: int):
    held = held_of(TWO_NODES, world)

    for numa_node in (0, 1):
        untouched = sum(use.untouched for use in world[4 * numa_node : 4 * numa_node + 4])
        for memory in (0, 1, count * UNITS):
            assert says_yes(TWO_NODES, held, numa_node, count * CORES, memory) == (untouched >= count)


@given(st.tuples(*[st.builds(Use, st.integers(0, 100), st.just(0))] * 8), st.integers(1, 99))
def test_without_memory_the_kubelet_says_yes_exactly_where_one_gpu_can_take_the_share(
    world: tuple[Use, ...], cores: int
):
    held = held_of(CORES_ALONE, world)

    for numa_node in (0, 1):
        here = world[4 * numa_node : 4 * numa_node + 4]
        assert says_yes(CORES_ALONE, held, numa_node, cores, 0) == any(fits(use, cores, 0) for use in here)


@given(st.tuples(*[st.integers(0, UNITS)] * 8), st.integers(1, UNITS), st.data())
def test_with_memory_in_proportion_the_kubelet_says_yes_exactly_where_one_gpu_can_take_the_share(
    quarters: tuple[int, ...], memory: int, data: st.DataObject
):
    world = tuple(Use(25 * quarter, quarter) for quarter in quarters)
    cores = data.draw(st.integers(1, min(99, 25 * memory)))
    held = held_of(TWO_NODES, world)

    for numa_node in (0, 1):
        here = world[4 * numa_node : 4 * numa_node + 4]
        assert says_yes(TWO_NODES, held, numa_node, cores, memory) == any(fits(use, cores, memory) for use in here)


def test_every_small_world_is_counted_truly():
    """Three GPUs of one node in every combination of 24 uses, every share of seven sizes and any memory."""
    kinds = [Use(cores, memory) for cores, memory in product((0, 1, 40, 60, 99, 100), (0, 1, 3, 4))]
    for world in combinations_with_replacement(kinds, 3):
        held = held_of(ONE_NODE, world)
        cores, memory = (offered_of(ONE_NODE, held, kind) for kind in (ResourceKind.CORE, ResourceKind.MEMORY))
        untouched = sum(use.untouched for use in world)
        assert cores.total() // CORES == untouched
        for share in product((1, 40, 41, 59, 60, 61, 99), range(1, UNITS + 1)):
            counted = cores.total() >= share[0] and memory.total() >= share[1]
            offered = any(cores[p] >= share[0] and memory[p] >= share[1] for p in range(3))
            assert counted == offered
            if counted:
                assert any(fits(use, *share) for use in world)


@given(worlds, st.sampled_from([TWO_NODES, NO_NODES]), st.integers(0, 7))
def test_held_ids_untouched_gpus_nics_and_gpus_out_of_order_are_left_alone(
    world: tuple[Use, ...], node: Inventory, ill: int
):
    held = held_of(node, world)
    key = node.gpu_keys[ill]

    kept = withheld_ids(node, held, frozenset({key}))

    assert kept.isdisjoint(held)
    devices = [node.devices[device_id] for device_id in kept]
    assert not any(device.kind is ResourceKind.NIC or device.key == key for device in devices)
    assert not any(world[device.position].untouched for device in devices)


@given(worlds)
def test_one_partly_used_gpu_in_each_group_offers_what_is_left(world: tuple[Use, ...]):
    for node, groups in ((TWO_NODES, (range(4), range(4, 8))), (NO_NODES, (range(8),))):
        cores = offered_of(node, held_of(node, world), ResourceKind.CORE)
        for group in groups:
            partly = [position for position in group if cores[position] and not world[position].untouched]
            usable = any(not u.untouched and u.cores < CORES and u.memory < UNITS for u in (world[p] for p in group))
            assert usable <= len(partly) <= 1
            assert usable or cores.total() == 1 or not partly


@pytest.mark.parametrize("use", [Use(100, 0), Use(0, 4)], ids=["memory", "cores"])
def test_no_resource_is_kept_back_to_the_last_id(use: Use):
    held = held_of(TWO_NODES, (use,) * 8)
    offered = {kind: offered_of(TWO_NODES, held, kind).total() for kind in (ResourceKind.CORE, ResourceKind.MEMORY)}

    assert sorted(offered.values()) == [0, 1]
    assert not any(says_yes(TWO_NODES, held, numa_node, 1, 1) for numa_node in (0, 1))


@given(worlds)
def test_what_is_kept_back_depends_on_nothing_but_what_is_held(world: tuple[Use, ...]):
    held = held_of(TWO_NODES, world)

    assert withheld_ids(TWO_NODES, held) == withheld_ids(TWO_NODES, sorted(held, reverse=True))


def test_where_the_kubelet_keeps_to_no_nodes_one_gpu_of_the_machine_offers_what_is_left():
    held = held_of(TWO_NODES, (Use(60, 1),) * 8)

    kept = withheld_ids(TWO_NODES, held, by_node=False)

    assert {TWO_NODES.devices[device_id].position for device_id in kept} == set(range(1, 8))


@pytest.mark.parametrize(
    ("world", "offered"),
    [
        ((Use(60, 1), Use(50, 1), Use(50, 1)), 1),  # most cores, then the lower position
        ((Use(50, 2), Use(50, 1), Use(60, 1)), 1),  # memory breaks the tie
        ((Use(1, 3), Use(60, 2), Use(99, 1)), 1),  # the largest share with memory in proportion
        ((Use(100, 0), Use(0, 4), Use(99, 3)), 2),  # a GPU that lacks one of both is never offered
    ],
)
def test_which_gpu_offers_what_is_left(world: tuple[Use, ...], offered: int):
    cores = offered_of(ONE_NODE, held_of(ONE_NODE, world), ResourceKind.CORE)

    assert [position for position in range(3) if cores[position]] == [offered]


def test_a_gpu_whose_memory_alone_is_used_is_not_counted_as_a_whole_one():
    cores = offered_of(ONE_NODE, held_of(ONE_NODE, (Use(0, 1), Use(100, 4), Use(100, 4))), ResourceKind.CORE)

    assert cores[0] == CORES - 1

"""Which GPUs NVLink joins evenly."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from hypothesis import given

from tests.cli.made_machines import cube_mesh, dgx, gpu, machine
from tests.cli.random_machines import machines
from topoalloc.topology.machine import Link, LinkClass, Machine, Unknown
from topoalloc.topology.nvlink_shape import EvenFabric, nvlink_shape
from topoalloc.topology.pci import PciAddress


def even(gpus: int, count: int) -> Machine:
    made = [gpu(i, 0) for i in range(gpus)]
    return machine([], made, [], lambda a, b: LinkClass.SYS, {(a.id, b.id): count for a, b in combinations(made, 2)})


def test_more_links_per_gpu_than_a_gpu_has_prove_a_switch() -> None:
    assert nvlink_shape(dgx()).fabrics == (EvenFabric(tuple(f"GPU{i}" for i in range(8)), 12, switched=True),)


def test_as_many_links_as_a_gpu_has_are_a_full_mesh() -> None:
    (fabric,) = nvlink_shape(even(4, 6)).fabrics

    assert (fabric.switched, fabric.links_per_gpu) == (False, 18)


def test_two_gpus_are_a_pair_unless_an_nvswitch_is_seen() -> None:
    made = even(2, 18)
    seen = replace(made, nvswitches=(PciAddress(0, 1, 0, 0),))

    assert [len(nvlink_shape(one).pairs) for one in (made, seen)] == [1, 0]


def test_a_mesh_of_uneven_links_is_told_pair_by_pair() -> None:
    shape = nvlink_shape(cube_mesh())

    assert (shape.fabrics, len(shape.pairs)) == ((), 16)


def test_pairs_of_which_nothing_is_known_are_counted() -> None:
    made = even(2, 0)
    silent = Link("GPU0", "GPU1", LinkClass.SYS, Unknown("no source"), Unknown("no source"))

    assert nvlink_shape(replace(made, links=(silent,))).unknown_pairs == 1


@given(machines())
def test_every_linked_pair_is_in_one_fabric_or_a_pair_of_its_own(made: Machine) -> None:
    shape = nvlink_shape(made)
    linked = {(link.a, link.b) for link in made.links if isinstance(link.nvlinks, int) and link.nvlinks > 0}
    in_fabrics = [pair for fabric in shape.fabrics for pair in combinations(fabric.gpus, 2)]

    assert sorted([*in_fabrics, *((link.a, link.b) for link in shape.pairs)]) == sorted(linked)

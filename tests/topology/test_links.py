"""PCIe classes from paths, NVLink counts from links per GPU, and what follows from the classes of all pairs."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoalloc.topology.links import NvlinkAsymmetry, Place, nearest_nics, nvlink_counts, pcie_class, switch_groups
from topoalloc.topology.machine import Gpu, Link, LinkClass, Machine, Nic, Unknown
from topoalloc.topology.pci import PciAddress, PciPath
from topoalloc.topology.reading import FarEnd, NvlinkReading

PIX, PXB, PHB, NODE, SYS = LinkClass
NO_NODE = Unknown("numa_node is -1")


def place(path: str, bdf: str | None = None, node: int | None = 0) -> Place:
    """`0000:00/01.0/02:00.0` is host bridge 0000:00 with the bridges 00:01.0 and 02:00.0."""
    host, *bridges = path.split("/")
    addresses = tuple(PciAddress.parse(bridge if bridge.count(":") else f"00:{bridge}") for bridge in bridges)
    return Place(
        PciPath(host, addresses), None if bdf is None else PciAddress.parse(bdf), NO_NODE if node is None else node
    )


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (place("0000:00/01.0"), place("0000:00/01.0"), PIX),
        (place("0000:00/01.0/02:00.0/03:01.0"), place("0000:00/01.0/02:00.0/03:02.0"), PIX),
        (place("0000:00/01.0/02:00.0"), place("0000:00/01.0/02:00.0/03:02.0"), PIX),
        (place("0000:00/01.0/02:00.0"), place("0000:00/01.0/02:00.0/03:02.0/04:00.0"), PXB),
        (place("0000:00/01.0/02:00.0/03:01.0"), place("0000:00/01.0/02:00.0/03:02.0/04:00.0/05:01.0"), PXB),
        (place("0000:00/01.0"), place("0000:00/02.0"), PHB),
        (place("0000:00"), place("0000:00/02.0/03:00.0"), PHB),
        (place("0000:00"), place("0000:00"), PHB),
        (place("0000:00/01.0", node=1), place("0000:40/40:01.0", node=1), NODE),
        (place("0000:00/01.0", node=0), place("0000:40/40:01.0", node=1), SYS),
    ],
)
def test_the_class_counts_bridges_below_the_last_common_one(a: Place, b: Place, expected: LinkClass) -> None:
    assert pcie_class(a, b) is expected


def test_functions_of_one_device_are_pix_even_on_the_root_bus() -> None:
    assert pcie_class(place("0000:00", "00:05.0"), place("0000:00", "00:05.1")) is PIX


def test_two_host_bridges_of_unknown_node_are_node_or_sys_and_so_unknown() -> None:
    found = pcie_class(place("0000:00", node=None), place("0000:40", node=0))
    assert isinstance(found, Unknown)
    assert "NODE or SYS" in found.evidence


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (place("numa0/18:00.0"), place("numa0/18:00.0"), PIX),
        # A bridge more on one side is a whole switch more (4 Vega20 below a two-level switch).
        (place("numa0/18:00.0"), place("numa0/18:00.0/1b:00.0"), PXB),
        (place("numa0/18:00.0/1b:00.0"), place("numa0/18:00.0/1e:00.0"), PXB),
        (place("numa0/18:00.0"), place("numa0/3b:00.0"), PHB),
        (place("numa0"), place("numa0"), PHB),
        (place("numa0"), place("numa1"), SYS),
    ],
)
def test_a_folded_path_counts_switches_and_hides_node(a: Place, b: Place, expected: LinkClass) -> None:
    assert pcie_class(a, b) is expected


def test_a_folded_path_without_numa_node_gives_no_class_above_the_switch() -> None:
    assert isinstance(pcie_class(place("numa-1/18:00.0"), place("numa-1/19:00.0")), Unknown)
    assert pcie_class(place("numa-1/18:00.0"), place("numa-1/18:00.0")) is PIX


def test_a_folded_and_an_unfolded_path_are_not_compared() -> None:
    assert isinstance(pcie_class(place("numa0/18:00.0"), place("0000:00/01.0")), Unknown)


BRIDGES = [PciAddress(0, 0, number, 0) for number in range(1, 4)]
PLACES = [
    Place(PciPath(host, bridges), None, node)
    for host in ("0000:00", "0000:40", "numa0", "numa1")
    for depth in range(3)
    for bridges in product(BRIDGES, repeat=depth)
    for node in (0, 1, NO_NODE)
]


def test_the_class_is_symmetric_over_every_small_tree() -> None:
    for a, b in product(PLACES, repeat=2):
        assert pcie_class(a, b) == pcie_class(b, a)


def by_definition(a: Place, b: Place) -> LinkClass | None:
    """The words of the class, spelt as sets: bridges above both, bridges above one alone."""
    if a.path.host_bridge != b.path.host_bridge:
        if isinstance(a.numa_node, Unknown) or isinstance(b.numa_node, Unknown):
            return None
        return NODE if a.numa_node == b.numa_node else SYS
    above = [
        {(depth, bridges[: depth + 1]) for depth in range(len(bridges))} for bridges in (a.path.bridges, b.path.bridges)
    ]
    if not above[0] & above[1]:
        return PHB
    return PIX if all(len(own - other) <= 1 for own, other in (above, above[::-1])) else PXB


def test_the_class_is_the_one_that_its_definition_gives_for_every_small_tree() -> None:
    unfolded = [place for place in PLACES if not place.path.is_folded]
    for a, b in product(unfolded, repeat=2):
        found = pcie_class(a, b)
        assert (None if isinstance(found, Unknown) else found) == by_definition(a, b)


GPUS = [PciAddress(0, bus, 0, 0) for bus in range(1, 5)]
SWITCH = PciAddress(0, 0xF3, 0, 0)
AT = {address: position for position, address in enumerate(GPUS)}


def to_gpu(position: int, count: int) -> NvlinkReading:
    return NvlinkReading(FarEnd.GPU, GPUS[position], count)


def test_direct_links_count_for_their_pair_alone() -> None:
    counts, asymmetries = nvlink_counts([(to_gpu(1, 4),), (to_gpu(0, 4),), ()], AT)
    assert counts == {(0, 1): 4, (0, 2): 0, (1, 2): 0}
    assert asymmetries == ()


def test_of_two_ends_that_differ_the_smaller_count_is_kept_and_told() -> None:
    counts, asymmetries = nvlink_counts([(to_gpu(1, 2),), (to_gpu(0, 1),), (to_gpu(0, 3),)], AT)
    assert counts[0, 1] == 1
    assert counts[0, 2] == 0
    assert asymmetries == (NvlinkAsymmetry(0, 1, 2, 1), NvlinkAsymmetry(0, 2, 0, 3))


def test_a_gpu_of_which_the_source_is_silent_takes_the_other_ends_count() -> None:
    switched = (NvlinkReading(FarEnd.SWITCH, SWITCH, 12),)
    counts, asymmetries = nvlink_counts([(to_gpu(1, 2),), None, None, switched], AT)
    assert counts[0, 1] == 2
    assert counts[0, 2] == 0, "all links of GPU0 lead elsewhere"
    assert isinstance(counts[1, 3], Unknown), "whether the silent GPU hangs on the switch is not told"
    assert (1, 2) not in counts
    assert asymmetries == ()


def test_through_switches_seen_or_not_a_pair_has_the_smaller_of_both_counts() -> None:
    seen = tuple(
        NvlinkReading(FarEnd.SWITCH, PciAddress(0, 0xF3 + at, 0, 0), count) for at, count in enumerate((4, 4, 5, 5))
    )
    unseen = (NvlinkReading(FarEnd.UNSEEN_SWITCH, None, 12),)
    counts, _ = nvlink_counts([seen, seen, unseen], AT)
    assert counts == {(0, 1): 18, (0, 2): 12, (1, 2): 12}


def test_links_of_untold_far_end_leave_the_pair_unknown() -> None:
    untold = (NvlinkReading(FarEnd.UNKNOWN, None, 4),)
    counts, _ = nvlink_counts([untold, untold, ()], AT)
    assert isinstance(counts[0, 1], Unknown)
    assert counts[0, 2] == 0, "a GPU without links is joined to nothing"


def test_a_link_to_the_gpu_itself_is_no_pair() -> None:
    counts, _ = nvlink_counts([(to_gpu(0, 12),), (to_gpu(1, 12),), ()], AT)
    assert isinstance(counts[0, 1], Unknown)
    assert counts[0, 2] == counts[1, 2] == 0


def test_a_link_to_a_gpu_that_the_source_leaves_out_joins_no_listed_pair() -> None:
    counts, _ = nvlink_counts([(NvlinkReading(FarEnd.GPU, PciAddress(0, 99, 0, 0), 6),), ()], AT)
    assert counts == {(0, 1): 0}


def test_a_source_that_is_silent_on_nvlink_gives_no_counts() -> None:
    assert nvlink_counts([None, None], AT) == ({}, ())


far_ends = st.one_of(
    st.builds(to_gpu, st.integers(0, 3), st.integers(1, 6)),
    st.builds(NvlinkReading, st.just(FarEnd.SWITCH), st.just(SWITCH), st.integers(1, 6)),
    st.builds(NvlinkReading, st.sampled_from([FarEnd.UNSEEN_SWITCH, FarEnd.UNKNOWN]), st.none(), st.integers(1, 6)),
)
told_links = st.lists(st.none() | st.lists(far_ends, max_size=3).map(tuple), min_size=2, max_size=4)


@given(told_links, st.randoms(use_true_random=False))
def test_counts_do_not_depend_on_the_order_of_the_gpus(links: list[tuple[NvlinkReading, ...] | None], random) -> None:
    # Links to a GPU that the source does not list lead nowhere in either order.
    listed = {GPUS[position]: position for position in range(len(links))}
    order = list(range(len(links)))
    random.shuffle(order)
    counts, _ = nvlink_counts(links, listed)
    moved, _ = nvlink_counts([links[old] for old in order], {GPUS[old]: new for new, old in enumerate(order)})
    for (a, b), count in counts.items():
        new = tuple(sorted((order.index(a), order.index(b))))
        assert moved[new] == count


def link(a: str, b: str, pcie: LinkClass | None) -> Link:
    return Link(a, b, Unknown("hidden") if pcie is None else pcie, 0, Unknown("not asked"))


def test_switch_groups_join_transitively_and_a_lone_device_is_no_group() -> None:
    links = [
        link("GPU0", "NIC0", PXB),
        link("GPU1", "NIC0", PIX),
        link("GPU2", "GPU3", PHB),
        link("GPU0", "GPU1", None),
    ]
    assert switch_groups(links) == (("GPU0", "GPU1", "NIC0"),)


def test_switch_groups_are_sorted_by_number_not_by_letter() -> None:
    links = [link("GPU10", "NIC10", PIX), link("GPU2", "NIC2", PIX), link("NIC2", "NIC10", PIX)]
    assert switch_groups(links) == (("GPU2", "GPU10", "NIC2", "NIC10"),)


def test_two_groups_that_meet_late_become_one() -> None:
    links = [link("GPU0", "GPU1", PIX), link("GPU2", "GPU3", PIX), link("GPU1", "GPU2", PXB)]
    assert switch_groups(links) == (("GPU0", "GPU1", "GPU2", "GPU3"),)


def machine_of(gpus: list[str], nics: list[str], links: list[Link]) -> Machine:
    unknown = Unknown("test")
    return Machine(
        numa_nodes=(),
        gpus=tuple(Gpu(gpu, int(gpu[3:]), *[unknown] * 9) for gpu in gpus),
        nics=tuple(Nic(nic, nic, *[unknown] * 10) for nic in nics),
        links=tuple(links),
        switch_groups=(),
        nvswitches=(),
        sources=(),
        warnings=(),
    )


def test_the_nearest_nics_are_all_of_the_nearest_class_and_none_of_unknown_class() -> None:
    links = [
        link("GPU0", "NIC0", PHB),
        link("GPU0", "NIC1", None),
        link("GPU0", "NIC2", PIX),
        link("GPU0", "NIC3", PIX),
    ]
    found = nearest_nics(machine_of(["GPU0"], ["NIC0", "NIC1", "NIC2", "NIC3"], links))
    assert found["GPU0"].pcie is PIX
    assert found["GPU0"].nics == ("NIC2", "NIC3")


def test_nics_that_are_sys_away_are_nearest_where_nothing_is_nearer() -> None:
    found = nearest_nics(machine_of(["GPU0"], ["NIC0", "NIC1"], [link("GPU0", "NIC0", SYS), link("GPU0", "NIC1", SYS)]))
    assert found["GPU0"].nics == ("NIC0", "NIC1")


def test_a_gpu_that_knows_no_class_to_any_nic_has_no_nearest() -> None:
    assert nearest_nics(machine_of(["GPU0"], ["NIC0"], [link("GPU0", "NIC0", None)])) == {}

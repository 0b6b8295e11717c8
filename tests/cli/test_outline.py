"""The nesting in which a machine is drawn."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given

from tests.cli.made_machines import NO_NODE, bare, cube_mesh, dgx, gpu, hostile, machine, nic, node, path, pci_tree
from tests.cli.random_machines import machines
from topoalloc.topology.machine import LinkClass, Machine, Unknown
from topoalloc.topology.outline import Box, BoxKind, Room, devices_in, outline

_Shape = list["str | tuple[str, str | None, _Shape]"]


def shape(children: Sequence[Box | str]) -> _Shape:
    """Boxes as (kind, address, shape of what is in them)."""
    return [
        child if isinstance(child, str) else (child.kind.value, child.address, shape(child.children))
        for child in children
    ]


def room_of(rooms: Sequence[Room], node_id: int) -> Room:
    return next(room for room in rooms if room.node is not None and room.node.id == node_id)


def test_devices_of_known_path_are_nested_below_their_host_bridge_switch_and_card() -> None:
    rooms = outline(pci_tree())

    assert shape(room_of(rooms, 0).children) == [
        (
            "host bridge",
            "0000:00",
            [("PCIe switch", "0000:01:00.0", ["GPU0", "GPU1", ("card", "0000:06:00", ["NIC0", "NIC1"])])],
        ),
        ("host bridge", "0000:40", ["NIC2"]),
    ]


def test_a_bridge_with_one_device_below_it_is_a_slot_and_gets_no_box() -> None:
    rooms = outline(pci_tree())

    assert shape(room_of(rooms, 1).children) == [("host bridge", "0000:80", ["GPU2", "NIC3"])]


def test_a_node_without_devices_is_a_room_too() -> None:
    rooms = outline(pci_tree())

    assert room_of(rooms, 2).children == ()


def test_devices_of_unknown_node_come_last_with_the_reason() -> None:
    last = outline(pci_tree())[-1]

    assert (last.node, last.reason, devices_in(last.children)) == (None, "numa_node is -1", ("NIC4",))


def test_gpus_of_unknown_node_are_parted_by_their_cpus() -> None:
    rooms = outline(cube_mesh())

    assert [(str(room.cpus), devices_in(room.children)) for room in rooms] == [
        ("0-11", ("GPU0", "GPU1", "GPU2", "GPU3")),
        ("12-23", ("GPU4", "GPU5", "GPU6", "GPU7")),
    ]


def test_a_nic_of_unknown_node_joins_the_gpus_that_are_nearer_than_sys() -> None:
    gpus = [gpu(0, NO_NODE, cpus="0-3"), gpu(1, NO_NODE, cpus="4-7")]
    near = {("GPU1", "NIC0")}
    made = machine([], gpus, [nic(0, NO_NODE)], lambda a, b: LinkClass.NODE if (a, b) in near else LinkClass.SYS)

    assert [devices_in(room.children) for room in outline(made)] == [("GPU0",), ("GPU1", "NIC0")]


def test_a_nic_near_gpus_of_different_cpus_stays_apart() -> None:
    gpus = [gpu(0, NO_NODE, cpus="0-3"), gpu(1, NO_NODE, cpus="4-7")]
    made = machine([], gpus, [nic(0, NO_NODE)], lambda a, b: LinkClass.NODE)

    assert [devices_in(room.children) for room in outline(made)] == [("GPU0",), ("GPU1",), ("NIC0",)]


def test_without_addresses_the_classes_make_the_boxes() -> None:
    rooms = outline(dgx())

    assert [shape(room.children) for room in rooms] == [
        [("PCIe switch", None, [f"GPU{2 * i}", f"GPU{2 * i + 1}", f"NIC{2 * i}", f"NIC{2 * i + 1}"])] for i in range(4)
    ]


def test_pix_groups_are_boxed_inside_the_pxb_group_that_holds_them() -> None:
    def pcie(a: str, b: str) -> LinkClass:
        return LinkClass.PIX if a[3:] == b[3:] else LinkClass.PXB

    made = machine([node(0, "0-3")], [gpu(i, 0) for i in range(2)], [nic(i, 0) for i in range(2)], pcie)

    (box,) = outline(made)[0].children
    assert isinstance(box, Box)
    assert box.pcie == LinkClass.PXB
    assert shape(box.children) == [("PCIe switch", None, ["GPU0", "NIC0"]), ("PCIe switch", None, ["GPU1", "NIC1"])]


def test_two_ports_in_a_table_may_be_one_card_or_one_switch() -> None:
    made = machine([node(0, "0-3")], [], [nic(0, 0), nic(1, 0)], lambda a, b: LinkClass.PIX)

    (box,) = outline(made)[0].children
    assert isinstance(box, Box)
    assert box.kind == BoxKind.CARD_OR_SWITCH


def test_host_bridges_that_a_source_folds_into_one_are_not_drawn() -> None:
    gpus = [gpu(0, 0, "0000:04:00.0", path("numa0", "0000:01:00.0")), gpu(1, 0, "0000:05:00.0", path("numa0"))]
    made = machine([node(0, "0-3")], gpus)

    assert outline(made)[0].children == ("GPU0", "GPU1")


def test_a_device_without_address_is_put_beside_the_device_it_is_pix_to() -> None:
    gpus = [
        gpu(0, 0, "0000:04:00.0", path("0000:00", "0000:01:00.0", "0000:02:00.0")),
        gpu(1, 0, "0000:05:00.0", path("0000:00", "0000:01:00.0", "0000:02:01.0")),
    ]
    classes = {("GPU0", "GPU1"): LinkClass.PIX, ("GPU0", "NIC0"): LinkClass.PXB, ("GPU1", "NIC0"): LinkClass.PIX}
    made = machine([node(0, "0-3")], gpus, [nic(0, 0)], lambda a, b: classes[a, b])

    assert shape(outline(made)[0].children) == [
        (
            "host bridge",
            "0000:00",
            [("PCIe switch", "0000:01:00.0", ["GPU0", ("PCIe switch", "0000:02:01.0", ["GPU1", "NIC0"])])],
        )
    ]


def test_a_node_that_only_a_device_names_is_a_room_with_nothing_known() -> None:
    made = machine([node(0, "0-3")], [gpu(0, 5)])

    room = room_of(outline(made), 5)
    assert isinstance(room.cpus, Unknown)
    assert devices_in(room.children) == ("GPU0",)


def test_a_machine_without_devices_still_has_its_nodes() -> None:
    assert [room.node.id for room in outline(bare()) if room.node] == [0, 33]


def _all_devices(made: Machine) -> list[str]:
    return sorted([*(gpu.id for gpu in made.gpus), *(nic.id for nic in made.nics)])


def test_every_device_of_a_hostile_machine_is_drawn_once() -> None:
    made = hostile()

    assert sorted(device for room in outline(made) for device in devices_in(room.children)) == _all_devices(made)


@given(machines())
def test_every_device_is_in_exactly_one_room(made: Machine) -> None:
    drawn = sorted(device for room in outline(made) for device in devices_in(room.children))

    assert drawn == _all_devices(made)


@given(machines())
def test_no_box_holds_less_than_two_things_except_a_host_bridge(made: Machine) -> None:
    def boxes(children: Sequence[Box | str]) -> list[Box]:
        return [box for child in children if isinstance(child, Box) for box in (child, *boxes(child.children))]

    lonely = [box for room in outline(made) for box in boxes(room.children) if len(box.children) < 2]

    assert all(box.kind == BoxKind.HOST_BRIDGE for box in lonely)

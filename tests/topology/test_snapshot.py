"""Snapshots: the equal machine comes back, letter by letter the same text, and nothing else is accepted."""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology.trees import FACTS, MACHINES
from topoalloc.errors import InputError
from topoalloc.topology.checks import check_machine
from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.links import switch_groups
from topoalloc.topology.machine import (
    Gpu,
    Link,
    LinkClass,
    Machine,
    MigDevice,
    Nic,
    NicFunction,
    NicLink,
    NumaNode,
    Unknown,
)
from topoalloc.topology.pci import PciAddress, PciPath
from topoalloc.topology.reading import SourceRefusal
from topoalloc.topology.snapshot import SCHEMA, dump, load, redact
from topoalloc.topology.sources import load_machine

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
unknowns = st.builds(Unknown, texts)
counts = st.integers(0, (1 << 63) - 1)
cpu_sets = st.sets(st.integers(0, 300), max_size=6).map(CpuSet.of)
addresses = st.builds(PciAddress, st.integers(0, 0xFFFFFFF), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7))
pci_paths = st.builds(PciPath, texts, st.lists(addresses, max_size=3).map(tuple))


def maybe(known: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(known, unknowns)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Any sound machine, whatever its facts."""
    ids = sorted(draw(st.sets(st.integers(0, 999), max_size=3)))
    nodes = tuple(
        NumaNode(
            number,
            draw(maybe(cpu_sets)),
            draw(maybe(counts)),
            draw(maybe(st.tuples(*[st.integers(0, 255)] * len(ids)))),
        )
        for number in ids
    )
    node = maybe(st.sampled_from(ids)) if ids else unknowns
    free = draw(st.lists(addresses, unique=True, min_size=3, max_size=3))
    gpus = tuple(
        Gpu(
            id=f"GPU{at}",
            index=at,
            bdf=draw(maybe(st.just(free[at]))),
            uuid=draw(maybe(st.just(f"GPU-{at}"))),
            model=draw(maybe(texts)),
            memory_bytes=draw(maybe(st.integers(1, 1 << 40))),
            numa_node=draw(node),
            cpus=draw(maybe(cpu_sets)),
            path=draw(maybe(pci_paths)),
            vendor=draw(maybe(texts)),
            minor=draw(maybe(counts)),
            mig=draw(st.sampled_from([(), (MigDevice(0, "1g.10gb", f"MIG-{at}"),)])),
        )
        for at in range(draw(st.integers(0, 3)))
    )
    nics = tuple(draw(nic_of(at, node)) for at in range(draw(st.integers(0, 2))))
    links = tuple(
        Link(
            a,
            b,
            draw(maybe(st.sampled_from(LinkClass))),
            draw(maybe(st.integers(0, 18) if b.startswith("GPU") else st.just(0))),
            draw(maybe(st.booleans())),
        )
        for a, b in combinations([device.id for device in (*gpus, *nics)], 2)
    )
    return Machine(
        nodes,
        gpus,
        nics,
        links,
        switch_groups(links),
        tuple(draw(st.lists(addresses, max_size=2))),
        tuple(draw(st.lists(texts, max_size=2))),
        tuple(draw(st.lists(texts, max_size=2))),
    )


def nic_of(at: int, node: st.SearchStrategy[Any]) -> st.SearchStrategy[Nic]:
    return st.builds(
        Nic,
        id=st.just(f"NIC{at}"),
        name=texts.filter(bool),
        bdf=maybe(addresses),
        numa_node=node,
        rdma=st.none() | maybe(texts),
        netdev=st.none() | maybe(texts),
        path=maybe(pci_paths),
        function=maybe(st.just(NicFunction.VIRTUAL)),
        link=maybe(st.sampled_from(NicLink)),
        driver=maybe(texts),
        vendor=maybe(texts),
        physical_function=st.none() | maybe(addresses),
    )


def loaded(text: str) -> Machine:
    machine = load(text, "a.json")
    assert isinstance(machine, Machine), machine
    return machine


def refusal(text: str) -> str:
    refused = load(text, "a.json")
    assert isinstance(refused, SourceRefusal), refused
    assert refused.source == "a.json"
    assert "\n" not in refused.reason
    return refused.reason


@given(machines())
def test_a_machine_comes_back_equal(machine: Machine) -> None:
    assert check_machine(machine) == ()
    assert loaded(dump(machine)) == machine


@given(machines())
def test_a_snapshot_is_written_back_letter_by_letter(machine: Machine) -> None:
    text = dump(machine)
    assert dump(loaded(text)) == text


@cache
def recorded_machines() -> dict[str, Machine]:
    """Every recorded file that describes a machine by itself."""
    found = {}
    for name in FACTS:
        try:
            found[name] = load_machine([str(MACHINES / name)])
        except InputError:
            continue
    assert len(found) > 60
    return found


def test_every_recorded_machine_comes_back_equal() -> None:
    for machine in recorded_machines().values():
        assert loaded(dump(machine)) == machine


def test_a_snapshot_carries_its_version_first() -> None:
    assert dump(loaded_example()).startswith(f'{{\n "schema": "{SCHEMA}",\n')


def loaded_example() -> Machine:
    return load_machine(["synthetic:numa:2 switch:1 gpu:2 nic:1 nv:all=2 cpus:2"])


def test_an_unknown_fact_keeps_its_evidence() -> None:
    document = json.loads(dump(loaded_example()))
    assert document["gpus"][0]["memory_bytes"] == {
        "unknown": "no source tells the memory, and the model is not in the table of GPU memory"
    }


Change = Callable[[dict[str, Any]], object]


def changed(change: Change) -> str:
    document = json.loads(dump(loaded_example()))
    change(document)
    return json.dumps(document)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d.update(schema="topoalloc.snapshot/v2"), "$.schema: is 'topoalloc.snapshot/v2'"),
        (lambda d: d.pop("schema"), "$.schema: is missing"),
        (lambda d: d.update(extra=1), "$.extra: is not known here"),
        (lambda d: d.pop("links"), "$.links: is missing"),
        (lambda d: d.update(gpus={}), "$.gpus: is no list"),
        (lambda d: d["gpus"].__setitem__(0, 7), "$.gpus[0]: is no object"),
        (lambda d: d["gpus"][1].update(memory_bytes="80GiB"), "$.gpus[1].memory_bytes: is no number"),
        (lambda d: d["gpus"][1].update(memory_bytes=True), "$.gpus[1].memory_bytes: is no number"),
        (lambda d: d["gpus"][1].update(memory_bytes=1.5), "$.gpus[1].memory_bytes: is no number"),
        (lambda d: d["gpus"][1].update(memory_bytes=-1), "$.gpus[1].memory_bytes: is no number"),
        (lambda d: d["gpus"][1].update(memory_bytes=None), "$.gpus[1].memory_bytes: is no number"),
        (lambda d: d["gpus"][1].update(memory_bytes=0), "GPU1 has 0 bytes of memory"),
        (lambda d: d["gpus"][1].update(numa_node={"unknown": 1}), "$.gpus[1].numa_node.unknown: is no text"),
        (lambda d: d["gpus"][1].update(numa_node={"unknown": "x", "y": 1}), "$.gpus[1].numa_node: is no number"),
        (lambda d: d["gpus"][1].update(numa_node=9), "GPU1 is on NUMA node 9"),
        (lambda d: d["gpus"][1].update(bdf="0000:01:00.9"), "$.gpus[1].bdf: not a PCI address"),
        (lambda d: d["gpus"][1].update(bdf="01:00.0"), "$.gpus[1].bdf: '01:00.0' is spelled '0000:01:00.0' here"),
        (lambda d: d["gpus"][1].update(cpus="3,1"), "$.gpus[1].cpus: '3,1' is spelled '1,3' here"),
        (lambda d: d["gpus"][1].update(id="GPU7"), "GPU 1 is called GPU7"),
        (lambda d: d["gpus"][1].update(id="GPU01"), "neither GPU nor NIC and a number"),
        (lambda d: d["gpus"][1]["path"].update(bridges="x"), "$.gpus[1].path.bridges: is no list"),
        (lambda d: d["nics"][0].update(link="token ring"), "$.nics[0].link: 'token ring' is none of"),
        (lambda d: d["nics"][0].update(name=""), "NIC0 has no name"),
        (lambda d: d["links"][0].update(pcie="NEAR"), "$.links[0].pcie: 'NEAR' is none of PIX, PXB, PHB, NODE, SYS"),
        (lambda d: d["links"][0].update(peer_access=1), "$.links[0].peer_access: is neither true nor false"),
        (lambda d: d["links"][0].update(a="GPU99"), "GPU0-GPU1 has no link"),
        (lambda d: d["links"].append(d["links"][0] | {"a": "GPU99"}), "GPU99-GPU1 is no ordered pair of two devices"),
        (lambda d: d.update(nics=d["nics"] * 400), "has more than 256 GPUs or 640 NICs"),
        (lambda d: d["links"].pop(), "has no link"),
        (lambda d: d["links"].append(d["links"][0]), "has two links"),
        (lambda d: d["switch_groups"].pop(), "the switch groups are not those of the link classes"),
        (lambda d: d["numa_nodes"][0].update(distances=[10]), "has 1 distances to 2 nodes"),
        (lambda d: d["sources"].append("\ud800"), "half of a character"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_place(change: Change, reason: str) -> None:
    assert reason in refusal(changed(change))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"schema": "topoalloc.snapshot/v1", "schema": "topoalloc.snapshot/v1"}',
        '{"schema": NaN}',
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"schema": ' + "9" * 100_000 + "}",
    ],
)
def test_what_is_no_document_is_refused(text: str) -> None:
    assert refusal(text)


@pytest.mark.parametrize("part", range(1, 16))
def test_a_truncated_snapshot_is_refused(part: int) -> None:
    text = dump(loaded_example())
    assert "damaged JSON" in refusal(text[: len(text) * part // 16])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(string.printable, max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=2),
    max_leaves=5,
)


def places(value: object) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) below a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from places(inner)


@given(st.data())
def test_any_one_changed_value_is_refused_or_read_and_never_raises(data: st.DataObject) -> None:
    document = json.loads(dump(loaded_example()))
    container, key = data.draw(st.sampled_from(list(places(document))))
    container[key] = data.draw(json_values)
    result = load(json.dumps(document), "a.json")
    assert isinstance(result, Machine | SourceRefusal)
    if isinstance(result, Machine):
        assert check_machine(result) == ()


SECRET = "GPU-0a1b2c3d-1111-2222-3333-444455556666"


def identifying() -> Machine:
    machine = loaded_example()
    gpu = replace(machine.gpus[0], uuid=SECRET, mig=(MigDevice(0, "1g.10gb", f"MIG-{SECRET}/1/0"),))
    amd = replace(machine.gpus[1], uuid="0xdeadbeefcafef00d")
    nics = (
        replace(machine.nics[0], name="enx001122334455", netdev="enx001122334455", rdma="rocex0c42a10300aabbcc"),
        replace(machine.nics[1], name="enx001122334466", netdev="enx001122334466"),
    )
    return replace(
        machine,
        gpus=(gpu, amd, *machine.gpus[2:]),
        nics=nics,
        sources=("topo -m (node17.example.com.txt)", "sysfs (/srv/node17)"),
        warnings=(
            f"GPU0: UUID is {SECRET} by topo -m (node17.example.com.txt) and 0xdeadbeefcafef00d by sysfs (/srv/node17)",
            "NIC enx001122334455 has no PCI device",
        ),
    )


def test_a_redacted_snapshot_names_neither_uuid_nor_host_nor_hardware_address() -> None:
    text = dump(redact(identifying()))
    for secret in ("0a1b2c3d", "deadbeef", "node17", "example.com", "0011223344", "0c42a103"):
        assert secret not in text
    assert loaded(text) == redact(identifying())


def test_redaction_says_what_it_left_out_and_keeps_devices_apart() -> None:
    redacted = redact(identifying())
    assert redacted.gpus[0].uuid == Unknown("left out of the record")
    assert [nic.netdev for nic in redacted.nics] == ["enx0", "enx2"]
    assert redacted.sources == ("topo -m", "sysfs")


def test_redaction_changes_nothing_else() -> None:
    plain = loaded_example()
    redacted = redact(plain)
    assert replace(redacted, sources=plain.sources, gpus=plain.gpus) == plain
    assert [replace(gpu, uuid=plain.gpus[0].uuid) for gpu in redacted.gpus] == list(plain.gpus)


@given(machines())
def test_a_redacted_machine_is_sound_and_redacting_it_again_changes_nothing(machine: Machine) -> None:
    redacted = redact(machine)
    assert check_machine(redacted) == ()
    assert redact(redacted) == redacted

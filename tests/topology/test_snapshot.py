"""Snapshots: the equal machine comes back, letter by letter the same text, and nothing else is accepted."""

from __future__ import annotations

import json
import random
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

LETTERS = "abXY09 -_.:/\\\"'\n\t\0\x1b\x7fäß€漢\U0001f680\u2028\ufeff"


class _Maker:
    """Any sound machine, whatever its facts, from one seed: drawing every fact by hypothesis is much slower."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def text(self) -> str:
        return "".join(self._chance.choices(LETTERS, k=self._chance.randrange(12)))

    def maybe(self, value: Any) -> Any:
        return value if self._chance.random() < 0.7 else Unknown(self.text())

    def maybe_none(self, value: Any) -> Any:
        return None if self._chance.random() < 0.2 else self.maybe(value)

    def number(self) -> int:
        return self._chance.choice([0, 1, self._chance.randrange(1 << 63), (1 << 63) - 1])

    def cpus(self) -> CpuSet:
        return CpuSet.of(self._chance.sample(range(300), self._chance.randrange(6)))

    def address(self) -> PciAddress:
        chance = self._chance
        domain = chance.choice([0, chance.randrange(1 << 28)])
        return PciAddress(domain, chance.randrange(256), chance.randrange(32), chance.randrange(8))

    def path(self) -> PciPath:
        return PciPath(self.text(), self.some(self.address))

    def some(self, make: Callable[[], Any]) -> tuple[Any, ...]:
        return tuple(make() for _ in range(self._chance.randrange(3)))

    def gpu(self, at: int, nodes: list[int]) -> Gpu:
        return Gpu(
            id=f"GPU{at}",
            index=at,
            bdf=self.maybe(replace(self.address(), domain=at)),
            uuid=self.maybe(f"GPU-{at}{self.text()}"),
            model=self.maybe(self.text()),
            memory_bytes=self.maybe(self.number() or 1),
            numa_node=self.node(nodes),
            cpus=self.maybe(self.cpus()),
            path=self.maybe(self.path()),
            vendor=self.maybe(self.text()),
            minor=self.maybe(self.number()),
            mig=self._chance.choice([(), (MigDevice(0, "1g.10gb", f"MIG-{at}"),)]),
        )

    def nic(self, at: int, nodes: list[int]) -> Nic:
        return Nic(
            id=f"NIC{at}",
            name=self.text() or "x",
            bdf=self.maybe(self.address()),
            numa_node=self.node(nodes),
            rdma=self.maybe_none(self.text()),
            netdev=self.maybe_none(self.text()),
            path=self.maybe(self.path()),
            function=self.maybe(NicFunction.VIRTUAL),
            link=self.maybe(self._chance.choice(list(NicLink))),
            driver=self.maybe(self.text()),
            vendor=self.maybe(self.text()),
            physical_function=self.maybe_none(self.address()),
        )

    def node(self, nodes: list[int]) -> int | Unknown:
        return self.maybe(self._chance.choice(nodes)) if nodes else Unknown(self.text())

    def link(self, a: str, b: str) -> Link:
        nvlinks = self._chance.randrange(19) if b.startswith("GPU") else 0
        pcie = self._chance.choice(list(LinkClass))
        return Link(a, b, self.maybe(pcie), self.maybe(nvlinks), self.maybe(self._chance.random() < 0.5))

    def machine(self) -> Machine:
        ids = sorted(self._chance.sample(range(1000), self._chance.randrange(4)))
        nodes = tuple(
            NumaNode(
                number, self.maybe(self.cpus()), self.maybe(self.number()), self.maybe(tuple(at + 10 for at in ids))
            )
            for number in ids
        )
        gpus = tuple(self.gpu(at, ids) for at in range(self._chance.randrange(4)))
        nics = tuple(self.nic(at, ids) for at in range(self._chance.randrange(3)))
        devices = [device.id for device in (*gpus, *nics)]
        links = tuple(self.link(a, b) for a, b in combinations(devices, 2))
        switches, sources, warnings = self.some(self.address), self.some(self.text), self.some(self.text)
        return Machine(nodes, gpus, nics, links, switch_groups(links), switches, sources, warnings)


def machines() -> st.SearchStrategy[Machine]:
    return st.integers(0, 1 << 40).map(lambda seed: _Maker(seed).machine())


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


@cache
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


VALUES = (
    None, True, False, 0, 1, -1, 7, 1 << 63, 10**30, 0.5, 1e300, "", "x", "0-3", "GPU0", "NIC0", "GPU1", "0000:00:01.0",
    "PIX", "pf", "infiniband", [], {}, [0], [[]], {"unknown": "x"}, {"unknown": 1}, {"id": 0}, [10, 20], "\x1b[4m",
)  # fmt: skip


def places(value: object) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) below a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from places(inner)


@given(st.integers(0, 1 << 40))
def test_any_one_changed_value_is_refused_or_read_and_never_raises(seed: int) -> None:
    chance = random.Random(seed)
    document = json.loads(dump(loaded_example()))
    container, key = chance.choice(list(places(document)))
    container[key] = chance.choice(VALUES)
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

"""From a grant of the ledger to the directory of its share, through the desk that answers the kubelet."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.agent.test_desk import BOARD, INVENTORY, Clock, WrittenEvidence, first, free, pod, resource
from tests.sharing.enforcements import LIBRARY, enforcement
from topoalloc.agent.desk import Desk, Injecting
from topoalloc.agent.enforcer import Enforcer
from topoalloc.agent.private_files import FileFault
from topoalloc.agent.share_directories import ShareDirectories
from topoalloc.allocation.demand import PodDemand
from topoalloc.allocation.ledger import CheckpointEntry, ListedContainer
from topoalloc.kubelet.evidence import Evidence
from topoalloc.kubelet.kubelet_config import KubeletConfig
from topoalloc.kubelet.plugin_server import Refused
from topoalloc.sharing.edits import ContainerEdits, DeviceFiles, Injection, Mount
from topoalloc.sharing.settings import CORE_RESOURCE, MEMORY_RESOURCE, NIC_RESOURCE

UNIT = 256 * 1024**2


class RecordedEvidence(WrittenEvidence):
    """With a checkpoint of the kubelet."""

    def __init__(self, pods: tuple[PodDemand, ...], entries: tuple[CheckpointEntry, ...] = ()) -> None:
        super().__init__(pods, ())
        self.entries = entries

    def checkpoint_entries(self) -> tuple[CheckpointEntry, ...]:
        return self.entries


class Node:
    """A desk whose shares lie below a directory; `fault` is what is wrong with the library, if anything."""

    def __init__(self, run_dir: Path, evidence: WrittenEvidence) -> None:
        self.run_dir = run_dir
        self.fault: str | None = None
        self.directories = ShareDirectories(run_dir, enforcement("builtin"))
        enforcer = Enforcer(INVENTORY, self.directories, self.check)
        injecting = Injecting(Injection.NONE, DeviceFiles(), "x/y", enforcer)
        self.clock = Clock()
        self.desk = Desk(INVENTORY, BOARD, cast(Evidence, evidence), KubeletConfig(None), injecting, clock_s=self.clock)

    def check(self) -> None:
        if self.fault is not None:
            raise FileFault(self.fault)

    def admitted(self, name: str, size: int) -> ContainerEdits:
        ids = frozenset(self.desk.prefer(resource(name), free(self.desk, name), frozenset(), size))
        return self.desk.allocate(resource(name), ids)

    def names(self) -> list[str]:
        return sorted(path.name for path in (self.run_dir / "shares").iterdir())

    def limits(self) -> list[tuple[str, str]]:
        """Cores and memory that each share's file tells, by name."""
        found = []
        for name in self.names():
            lines = (self.run_dir / "shares" / name / "share").read_text().splitlines()
            keys = dict(line.split(" ") for line in lines[1:-1])
            found.append((keys["cores"], keys["memory"]))
        return found

    def reconcile(self) -> None:
        self.clock.now_s += 60
        self.desk.reconcile()


@pytest.fixture
def node_with(tmp_path: Path) -> Iterator[Callable[[WrittenEvidence], Node]]:
    nodes: list[Node] = []

    def made(evidence: WrittenEvidence) -> Node:
        nodes.append(Node(tmp_path / "run", evidence))
        return nodes[-1]

    yield made
    for node in nodes:
        node.directories.close()


NodeWith = Callable[[WrittenEvidence], Node]


@pytest.mark.parametrize("order", [(CORE_RESOURCE, MEMORY_RESOURCE), (MEMORY_RESOURCE, CORE_RESOURCE)])
@pytest.mark.parametrize("told", [True, False], ids=["pods told", "nothing told"])
def test_the_limits_are_on_the_node_when_both_halves_are_granted(
    node_with: NodeWith, order: tuple[str, str], told: bool
) -> None:
    node = node_with(WrittenEvidence((pod("a", cores=30, memory=8),) if told else None))
    amounts = {CORE_RESOURCE: 30, MEMORY_RESOURCE: 8}

    for name in order:
        node.admitted(name, amounts[name])

    assert node.limits() == [("3000", str(8 * UNIT))]


def test_the_cores_answer_carries_the_mounts_and_memory_carries_none(node_with: NodeWith) -> None:
    node = node_with(WrittenEvidence((pod("a", cores=30, memory=8),)))

    cores, memory = node.admitted(CORE_RESOURCE, 30), node.admitted(MEMORY_RESOURCE, 8)

    leaf = f"{node.run_dir}/shares/{node.names()[0]}"
    assert cores.mounts == (
        Mount(leaf, "/etc/topoalloc"),
        Mount(f"{leaf}/usage", "/etc/topoalloc/usage", read_only=False),
        Mount(f"{leaf}/ld.so.preload", "/etc/ld.so.preload"),
        Mount(LIBRARY, "/usr/local/lib/topoalloc"),
    )
    assert all(Path(mount.host_path).exists() for mount in cores.mounts[:3])
    assert memory.mounts == ()


def test_cores_without_memory_may_use_none(node_with: NodeWith) -> None:
    node = node_with(WrittenEvidence())

    node.admitted(CORE_RESOURCE, 30)

    assert node.limits() == [("3000", "0")]


@pytest.mark.parametrize(("name", "size"), [(CORE_RESOURCE, 100), (CORE_RESOURCE, 200), (NIC_RESOURCE, 1)])
def test_whole_gpus_and_nics_are_not_limited(node_with: NodeWith, name: str, size: int) -> None:
    node = node_with(WrittenEvidence((pod("a", cores=size) if name == CORE_RESOURCE else pod("a", nics=size),)))
    node.fault = "the library is gone"

    edits = node.admitted(name, size)

    assert edits.mounts == ()
    assert node.names() == []


def test_a_share_whose_library_is_not_in_order_is_refused_and_holds_nothing(node_with: NodeWith) -> None:
    node = node_with(WrittenEvidence((pod("a", cores=30, memory=8),)))
    node.fault = "/lib/x.so: is not what the agent put there"

    with pytest.raises(Refused) as refused:
        node.admitted(CORE_RESOURCE, 30)

    assert str(refused.value) == (
        "topoalloc: the limits of this share cannot be set on the node: /lib/x.so: is not what the agent put there"
    )
    assert not any(holding.ids for holding in node.desk.state.holdings.values())
    assert node.names() == []


def test_memory_whose_limit_cannot_be_written_is_refused(node_with: NodeWith) -> None:
    node = node_with(WrittenEvidence((pod("a", cores=30, memory=8),)))
    node.admitted(CORE_RESOURCE, 30)
    (node.run_dir / "shares").rename(node.run_dir / "away")
    os.close(node.directories._root)
    node.directories._root = os.open("/proc/self", os.O_RDONLY)  # where nothing can be made

    with pytest.raises(Refused, match="the limits of this share cannot be set"):
        node.admitted(MEMORY_RESOURCE, 8)


def test_a_pod_refused_for_its_directory_can_be_admitted_when_created_again(node_with: NodeWith) -> None:
    evidence = WrittenEvidence((pod("a", cores=30, memory=8),))
    node = node_with(evidence)
    node.fault = "out of order"
    with pytest.raises(Refused):
        node.admitted(CORE_RESOURCE, 30)
    node.fault = None
    evidence.pods = (pod("b", cores=30, memory=8),)

    node.admitted(CORE_RESOURCE, 30)

    assert node.limits() == [("3000", "0")]


def test_what_is_listed_at_the_start_has_its_directory_before_anybody_is_served(node_with: NodeWith) -> None:
    held = first(CORE_RESOURCE, 30) | first(MEMORY_RESOURCE, 8)
    evidence = RecordedEvidence((pod("a", cores=30, memory=8),))
    evidence.containers = (ListedContainer("ns", "a", "app", held),)
    node = node_with(evidence)

    assert node.desk.rebuild()

    assert node.limits() == [("3000", str(8 * UNIT))]


def test_what_only_the_kubelets_checkpoint_shows_has_its_directory_too(node_with: NodeWith) -> None:
    entries = tuple(
        CheckpointEntry("uid-a", "app", ids) for ids in (first(CORE_RESOURCE, 30), first(MEMORY_RESOURCE, 8))
    )
    node = node_with(RecordedEvidence((pod("a", cores=30, memory=8),), entries))

    node.desk.rebuild()

    assert node.limits() == [("3000", str(8 * UNIT))]


def test_the_directory_stays_as_long_as_the_container_is_listed_and_goes_after_it(node_with: NodeWith) -> None:
    evidence = WrittenEvidence((pod("a", cores=30, memory=8),), ())
    node = node_with(evidence)
    node.admitted(CORE_RESOURCE, 30)
    (ids,) = (holding.ids for holding in node.desk.state.holdings.values())
    evidence.containers = (ListedContainer("ns", "a", "app", ids),)

    node.reconcile()
    assert len(node.names()) == 1

    evidence.containers, evidence.pods = (), ()
    node.reconcile()
    assert node.names() == []


def test_nothing_goes_while_podresources_cannot_be_asked(node_with: NodeWith) -> None:
    evidence = WrittenEvidence((pod("a", cores=30, memory=8),), ())
    node = node_with(evidence)
    node.admitted(CORE_RESOURCE, 30)
    evidence.containers, evidence.pods = None, None

    node.reconcile()

    assert len(node.names()) == 1


def test_the_next_holder_of_the_same_cores_has_an_account_of_its_own(node_with: NodeWith) -> None:
    evidence = WrittenEvidence((pod("a", cores=30, memory=8),), ())
    node = node_with(evidence)
    node.admitted(CORE_RESOURCE, 30)
    (ids,) = (holding.ids for holding in node.desk.state.holdings.values())
    usage = node.run_dir / "shares" / node.names()[0] / "usage"
    usage.write_bytes(b"what a left behind")
    evidence.pods = (pod("b", cores=30, memory=8),)

    node.desk.allocate(resource(CORE_RESOURCE), ids)

    assert len(node.names()) == 1
    assert usage.read_bytes()[:8] == b"TAUSAGE1"


def test_a_pod_that_is_judged_again_keeps_the_account_of_its_running_container(node_with: NodeWith) -> None:
    node = node_with(WrittenEvidence((pod("a", cores=30, memory=8),), ()))
    node.admitted(CORE_RESOURCE, 30)
    (ids,) = (holding.ids for holding in node.desk.state.holdings.values())
    usage = node.run_dir / "shares" / node.names()[0] / "usage"
    usage.write_bytes(b"of the running container")
    node.clock.now_s += 60

    node.desk.allocate(resource(CORE_RESOURCE), ids)

    assert usage.read_bytes() == b"of the running container"

"""What a container got, what would have had to be free, and how it looks: pure, without sockets."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.handmade import GIB, machine
from topoalloc.admission.pod import checked_container
from topoalloc.admission.refusal import Refusal, out_of, unexpected
from topoalloc.admission.remedy import remedy_of
from topoalloc.allocation.shortfall import shortfall
from topoalloc.cli.simulation.granted import GpuShare, granted
from topoalloc.cli.simulation.outcome import ContainerOutcome, PairLink, PodOutcome, pair_links
from topoalloc.cli.simulation.rehearsal import Rehearsal
from topoalloc.cli.simulation.report_table import table_text
from topoalloc.kubelet.simulated.settings import KubeletSettings
from topoalloc.sharing.edits import DeviceFiles, Injection, edits_of
from topoalloc.sharing.inventory import Inventory, InventoryRefusal, inventory_of
from topoalloc.sharing.settings import CORE_RESOURCE, MEMORY_RESOURCE, NIC_RESOURCE, SharingSettings
from topoalloc.topology.machine import Unknown

UNITS_PER_GPU = 16  # 4 GiB in units of 256 MiB


def inventory(memory_bytes: int | Unknown = 4 * GIB) -> Inventory:
    made = inventory_of(machine(nvlinks=4, memory_bytes=memory_bytes), SharingSettings())
    assert not isinstance(made, InventoryRefusal)
    return made


def ids(made: Inventory, resource: str, gpu: int, count: int) -> frozenset[str]:
    """The first `count` devices of a resource on one GPU or NIC."""
    listed = made.resource(resource)
    assert listed is not None
    return frozenset([device.id for device in listed.devices if device.position == gpu][:count])


def environment(made: Inventory, recorded: dict[str, frozenset[str]]) -> dict[str, str]:
    """What the agent would inject for these devices."""
    merged: dict[str, str] = {}
    for name, chosen in recorded.items():
        resource = made.resource(name)
        assert resource is not None
        merged |= dict(edits_of(made, resource, chosen, Injection.NONE, DeviceFiles(), "x/y").envs)
    return merged


def test_a_share_is_read_from_the_injected_variables() -> None:
    made = inventory()
    recorded = {CORE_RESOURCE: ids(made, CORE_RESOURCE, 1, 30), MEMORY_RESOURCE: ids(made, MEMORY_RESOURCE, 1, 2)}
    got = granted(environment(made, recorded), made, recorded)
    assert (got.gpus, got.nics, got.faults) == ((GpuShare("GPU1", 30, 512 * 2**20, False),), (), ())


def test_a_whole_gpu_has_all_its_memory_without_asking_for_it() -> None:
    made = inventory()
    recorded = {CORE_RESOURCE: ids(made, CORE_RESOURCE, 2, 100), NIC_RESOURCE: ids(made, NIC_RESOURCE, 1, 1)}
    got = granted(environment(made, recorded), made, recorded)
    assert (got.gpus, got.nics) == ((GpuShare("GPU2", 100, 4 * GIB, True),), ("NIC1",))


@pytest.mark.parametrize(("memory_bytes", "limit"), [(4 * GIB, 0), (Unknown("not told"), None)])
def test_a_share_without_memory_has_none_or_is_not_limited_where_memory_is_not_served(
    memory_bytes: int | Unknown, limit: int | None
) -> None:
    made = inventory(memory_bytes)
    recorded = {CORE_RESOURCE: ids(made, CORE_RESOURCE, 0, 30)}
    assert granted(environment(made, recorded), made, recorded).gpus == (GpuShare("GPU0", 30, limit, False),)


def test_variables_that_differ_from_the_records_are_reported() -> None:
    made = inventory()
    recorded = {CORE_RESOURCE: ids(made, CORE_RESOURCE, 0, 30)}
    key = made.gpu_keys[1]
    (fault,) = granted({"TOPOALLOC_CORES": f"{key}=30"}, made, recorded).faults
    assert fault.startswith("TOPOALLOC_CORES: injected")


def test_a_variable_that_makes_no_sense_is_reported() -> None:
    made = inventory()
    assert granted({"TOPOALLOC_CORES": "nonsense"}, made, {}).faults == (
        "TOPOALLOC_CORES holds 'nonsense', which is no <key>=<amount>",
    )


def test_a_device_that_was_never_offered_is_reported() -> None:
    (fault,) = granted({}, inventory(), {CORE_RESOURCE: frozenset({"x"})}).faults
    assert "x, which was never offered" in fault


@given(st.dictionaries(st.integers(0, 7), st.integers(1, 100), max_size=4), st.frozensets(st.integers(0, 3)))
def test_what_is_injected_for_any_devices_says_the_same_as_the_records(
    cores: dict[int, int], nics: frozenset[int]
) -> None:
    made = inventory()
    chosen = (ids(made, CORE_RESOURCE, gpu, count) for gpu, count in cores.items())
    recorded = {CORE_RESOURCE: frozenset().union(*chosen)} if cores else {}
    if nics:
        recorded[NIC_RESOURCE] = frozenset().union(*(ids(made, NIC_RESOURCE, nic, 1) for nic in nics))
    got = granted(environment(made, recorded), made, recorded)
    assert got.faults == ()
    assert {share.id: share.cores for share in got.gpus} == {f"GPU{gpu}": count for gpu, count in cores.items()}
    assert got.nics == tuple(f"NIC{nic}" for nic in sorted(nics))


def test_every_pair_has_its_link_nvlink_before_pcie() -> None:
    made = machine(nvlinks=4)
    links = pair_links(made, ["GPU0", "GPU1"], ["NIC0", "NIC3"])
    assert [(link.a, link.b) for link in links] == [
        ("GPU0", "GPU1"),
        ("GPU0", "NIC0"),
        ("GPU0", "NIC3"),
        ("GPU1", "NIC0"),
        ("GPU1", "NIC3"),
    ]
    assert [link.link_class for link in links] == ["NV4", "PIX", "SYS", "PIX", "SYS"]


@pytest.mark.parametrize(
    ("refusal", "remedy"),
    [
        (
            unexpected("requested number of devices unavailable for a.test/b. Requested: 5, Available: 2"),
            "3 more of a.test/b would have had to be free (5 needed, 2 free)",
        ),
        (
            unexpected("not enough cpus available to satisfy request: requested=4, available=1"),
            "3 more CPUs would have had to be free for the container alone",
        ),
        (out_of("cpu", 1500, 3000, 4000), "0.5 more of cpu would have had to be free"),
        (out_of("memory", 9, 0, 8), "ask for less: the whole node has 8 of memory"),
        (
            unexpected("no healthy devices present; cannot allocate unhealthy devices a.test/b"),
            "the plugin that serves a.test/b would have had to be back",
        ),
        (unexpected("rpc error: code = Unknown desc = something"), None),
    ],
)
def test_the_remedy_is_worked_out_from_the_kubelets_counts(refusal: Refusal, remedy: str | None) -> None:
    assert remedy_of(refusal) == remedy


def lacking(made: Inventory, in_use: Iterable[str], nodes: tuple[int, ...] | None = None, **limits: int) -> str | None:
    names = {"cores": CORE_RESOURCE, "units": MEMORY_RESOURCE}
    amounts = {names[key]: str(count) for key, count in limits.items()}
    return shortfall(checked_container("c", amounts, amounts), made, in_use, nodes)


def all_but(made: Inventory, free: int) -> list[str]:
    """Everything of every GPU but `free` cores of each."""
    return [device_id for gpu in range(8) for device_id in (*ids(made, CORE_RESOURCE, gpu, 100 - free),)]


def test_for_a_share_the_nearest_gpu_is_named() -> None:
    made = inventory()
    in_use = [*all_but(made, 10), *ids(made, MEMORY_RESOURCE, 0, UNITS_PER_GPU)]
    assert lacking(made, in_use, cores=30, units=4) == (
        "20 more cores would have had to be free on one GPU; GPU1 comes nearest"
    )


def test_only_gpus_of_the_chosen_numa_nodes_count() -> None:
    made = inventory()
    told = lacking(made, all_but(made, 10), (1,), cores=30, units=4)
    assert told == "20 more cores would have had to be free on one GPU on NUMA node 1; GPU4 comes nearest"


def test_for_whole_gpus_untouched_ones_are_counted() -> None:
    made = inventory()
    in_use = [device_id for gpu in range(7) for device_id in ids(made, CORE_RESOURCE, gpu, 1)]
    assert lacking(made, in_use, cores=300) == "2 more whole GPUs would have had to be free (1 free)"


def test_where_there_was_room_it_is_the_kubelets_choice_that_failed() -> None:
    told = lacking(inventory(), [], (0,), cores=30, units=4)
    assert told is not None
    assert told.startswith("GPU0 and GPU1 and GPU2 and GPU3 had room on NUMA node 0, but the kubelet had taken other")


def test_what_init_containers_leave_is_taken_at_every_attempt_so_their_requests_have_to_change() -> None:
    amounts = {CORE_RESOURCE: "30", MEMORY_RESOURCE: "4"}
    told = shortfall(checked_container("c", amounts, amounts), inventory(), [], (0,), from_init=True)
    assert told is not None
    assert "let each of them ask for just as much as this container" in told
    assert "next attempt" not in told


def test_a_request_that_makes_no_sense_has_no_remedy_in_free_devices() -> None:
    made = inventory()
    assert lacking(made, [], cores=150) is None
    assert lacking(made, [], units=4) is None


def container_outcome(name: str, *gpus: GpuShare, links: tuple[PairLink, ...] = ()) -> ContainerOutcome:
    return ContainerOutcome(name, False, {}, gpus, ("NIC0",), (0,), None, None, links, None, ())


def test_the_table_has_a_line_per_container_the_reason_below_and_a_summary() -> None:
    refusal = Refusal("TopologyAffinityError", "Resources cannot be allocated with Topology locality")
    share = GpuShare("GPU1", 1, 512 * 2**20, False)
    whole = GpuShare("GPU0", 100, None, True)
    links = (PairLink("GPU0", "NIC0", "PIX"),)
    pods = (
        PodOutcome("good", "default", None, None, None, (container_outcome("a", whole, links=links),), ()),
        PodOutcome("bad", "team", refusal, "why not", "this much", (container_outcome("b", share),), ()),
    )
    assert table_text(Rehearsal(pods, ()), KubeletSettings(), 7, machine()).splitlines() == [
        "8 GPUs (Handmade GPU), 4 NICs, 2 NUMA nodes; policy none, scope container, seed 7",
        "",
        "POD       CONTAINER  VERDICT   GPUS                 NICS  NUMA  LINKS",
        "good      a          admitted  GPU0 whole           NIC0  0     GPU0-NIC0 PIX",
        "team/bad  b          REFUSED   GPU1 1 core 512 MiB  NIC0  0     -",
        "    TopologyAffinityError: Resources cannot be allocated with Topology locality",
        "    why: why not",
        "    remedy: this much",
        "",
        "2 pods: 1 admitted, 1 refused (1 TopologyAffinityError)",
    ]

"""KubeletConfiguration as settings: what counts, what is only remarked on, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from topoalloc.admission.policy import Policy, Scope
from topoalloc.errors import InputError
from topoalloc.kubelet.simulated.configuration import Configured, configured, read_configuration
from topoalloc.kubelet.simulated.settings import EVICTION_MEMORY_BYTES, KubeletSettings
from topoalloc.topology.cpus import CpuSet
from topoalloc.yaml_documents import parse_documents

GIB = 2**30


def read(text: str) -> Configured:
    (document,) = parse_documents(text, "kubelet.yaml")
    return configured(document)


def fault(text: str) -> str:
    with pytest.raises(InputError) as caught:
        read(text)
    return str(caught.value)


def test_an_empty_configuration_has_the_defaults_of_a_kubelet() -> None:
    assert read("kind: KubeletConfiguration") == Configured(KubeletSettings())


def test_policy_scope_and_options_are_read() -> None:
    settings = read(
        "topologyManagerPolicy: restricted\ntopologyManagerScope: pod\n"
        'topologyManagerPolicyOptions: {prefer-closest-numa-nodes: "true", max-allowable-numa-nodes: "10"}'
    ).settings
    assert (settings.policy, settings.scope) == (Policy.RESTRICTED, Scope.POD)
    assert (settings.options.prefer_closest_numa_nodes, settings.options.max_allowable_numa_nodes) == (True, 10)


def test_reserved_cpus_are_named_or_counted() -> None:
    named = read('cpuManagerPolicy: static\nreservedSystemCPUs: "0-1,8"\nkubeReserved: {cpu: 7}').settings
    counted = read("cpuManagerPolicy: static\nkubeReserved: {cpu: 500m}\nsystemReserved: {cpu: 700m}").settings
    assert named.cpu is not None and named.cpu.reserved == CpuSet.from_list("0-1,8")
    assert named.reserved_cpu_milli == 3000
    assert counted.cpu is not None and counted.cpu.reserved == 2
    assert counted.reserved_cpu_milli == 1200


def test_cpu_options_below_a_feature_gate_need_it_as_in_the_kubelet() -> None:
    asked = "cpuManagerPolicy: static\nkubeReserved: {cpu: 1}\ncpuManagerPolicyOptions: {align-by-socket: 'true'}\n"
    assert "Alpha-level Options not enabled, but option 'align-by-socket' provided" in fault(asked)
    settings = read(asked + "featureGates: {CPUManagerPolicyAlphaOptions: true}").settings
    assert settings.cpu is not None and settings.cpu.options.align_by_socket


def test_memory_is_reserved_by_node_and_the_eviction_threshold_counts() -> None:
    given = read(
        "memoryManagerPolicy: Static\nkubeReserved: {memory: 1Gi}\nevictionHard: {memory.available: 100Mi}\n"
        "reservedMemory: [{numaNode: 0, limits: {memory: 1124Mi}}]"
    )
    assert given.notes == ()
    assert given.settings.reserved_memory_bytes == GIB + EVICTION_MEMORY_BYTES
    assert given.settings.memory is not None
    assert given.settings.memory.reserved_bytes == {0: {"memory": 1124 * 2**20}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cpuManagerPolicy: static", "a real kubelet would not start; one CPU is set aside"),
        ("memoryManagerPolicy: Static", "reservedMemory adds up to 0 bytes"),
        ("evictionHard: {memory.available: 5%}", "a threshold in percent is not simulated"),
        ("podsPerCore: 2", "podsPerCore: the number of pods per core is not limited here"),
        ("featureGates: {PodLevelResourceManagers: true}", "featureGates.PodLevelResourceManagers: not simulated"),
    ],
)
def test_what_is_simulated_differently_is_remarked_on(text: str, expected: str) -> None:
    (note,) = read(text).notes
    assert note.startswith("kubelet.yaml: document 1: ")
    assert expected in note


def test_other_keys_are_passed_over_in_silence() -> None:
    assert read("clusterDNS: [10.0.0.10]\nfeatureGates: {Other: true}\nmaxPods: 7").settings.pods_max == 7


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("topologyManagerPolicy: numa", "topologyManagerPolicy: 'numa' is not one of none, best-effort, restricted"),
        ("topologyManagerScope: [pod]", "topologyManagerScope: \"['pod']\" is not one of container, pod"),
        ("topologyManagerPolicyOptions: {nope: 'true'}", "topologyManagerPolicyOptions: "),
        ("topologyManagerPolicyOptions: {prefer-closest-numa-nodes: true}", "must be text, not true or false"),
        ("cpuManagerPolicy: static\nreservedSystemCPUs: x", "reservedSystemCPUs: not a CPU list"),
        ("cpuManagerPolicy: static\ncpuManagerPolicyOptions: {nope: 'true'}", "cpuManagerPolicyOptions: "),
        ("kubeReserved: {cpu: x}", "kubeReserved.cpu: not a quantity"),
        ("kubeReserved: {cpu: -1}", "kubeReserved.cpu: '-1' must be 0 or more"),
        ("maxPods: many", "maxPods: must be a whole number"),
        (
            "memoryManagerPolicy: Static\nreservedMemory: [{numaNode: 0, limits: {cpu: 1}}]",
            "reservedMemory[0].limits: 'cpu' is neither memory nor hugepages-<size>",
        ),
        (
            "memoryManagerPolicy: Static\nreservedMemory: [{numaNode: 0}, {numaNode: 0}]",
            "reservedMemory[1].numaNode: NUMA node 0 appears twice",
        ),
        ("- 1", "must be a mapping, not a list"),
    ],
)
def test_a_fault_names_the_key(text: str, expected: str) -> None:
    line = fault(text)
    assert line.startswith("kubelet.yaml: document 1: ")
    assert expected in line


def test_a_file_has_exactly_one_configuration(tmp_path: Path) -> None:
    file = tmp_path / "kubelet.yaml"
    file.write_text("kind: Pod\n---\nkind: Pod\n")
    with pytest.raises(InputError, match="0 documents of kind KubeletConfiguration: exactly one is needed"):
        read_configuration(file)
    file.write_text("kind: Pod\n---\nmaxPods: 3\n")
    assert read_configuration(file).settings.pods_max == 3

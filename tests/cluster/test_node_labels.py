"""Labels of a node: values that the API server takes, and only what is known."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.random_machines import machines
from tests.handmade import UNTOLD, machine
from topoalloc.admission.policy import Policy, Scope
from topoalloc.allocation.affinity import UNKNOWN_ALIGNMENT, Alignment
from topoalloc.cluster.node_labels import GPU_MODEL, NVLINK, OWN_LABELS, label_value, node_labels
from topoalloc.topology.machine import Machine
from topoalloc.topology.sources import load_machine

# apimachinery pkg/util/validation: labelValueFmt, and 63 characters.
VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")


def labels(made: Machine, alignment: Alignment = UNKNOWN_ALIGNMENT) -> dict[str, str]:
    return {key.removeprefix("topoalloc.io/"): value for key, value in node_labels(made, alignment).items()}


def test_a_machine_of_which_all_is_known_has_every_label():
    alignment = Alignment(Policy.RESTRICTED, Scope.POD)

    assert labels(machine(numa=2, switches=2, gpus=2, nics=1, nvlinks=12), alignment) == {
        "gpu-model": "Handmade-GPU",
        "gpu-count": "8",
        "gpu-memory": "4Gi",
        "nvlink": "NV12",
        "numa-nodes": "2",
        "nic-count": "4",
        "topology-policy": "restricted",
        "topology-scope": "pod",
    }


def test_memory_that_is_no_whole_gib_is_told_to_the_mib():
    assert labels(machine(memory_bytes=81_559 * 1024**2))["gpu-memory"] == "81559Mi"


def test_what_is_not_known_gives_no_label():
    assert labels(machine(memory_bytes=UNTOLD)).keys() & {"gpu-memory", "topology-policy", "topology-scope"} == set()


@pytest.mark.parametrize(
    ("recorded", "nvlink"),
    [
        ("dgx-a100-epyc-nps4-10nic.topo-m.txt", "NV12"),
        ("v100-sxm2-8gpu-hybrid-cube-mesh-1nic.topo-m.txt", "mixed"),
        ("8xrtx4090-2socket-sys-dualport-nic.topo-m.txt", "none"),
    ],
)
def test_nvlink_tells_all_pairs_alike_apart_from_some_and_none(recorded: str, nvlink: str):
    assert labels(load_machine([f"tests/machines/{recorded}"]))["nvlink"] == nvlink


@given(st.text(max_size=200))
def test_any_text_becomes_a_value_that_the_api_server_takes(text: str):
    value = label_value(text)

    assert VALUE.fullmatch(value)
    assert len(value) <= 63


@given(st.from_regex(VALUE, fullmatch=True).filter(lambda text: text.isascii() and 0 < len(text) <= 63))
def test_a_text_that_is_a_value_already_stays_as_it_is(text: str):
    assert label_value(text) == text


@given(machines())
def test_every_label_of_every_machine_is_ours_and_valid(made: Machine):
    told = node_labels(made, Alignment(Policy.SINGLE_NUMA_NODE))

    assert told.keys() <= set(OWN_LABELS)
    assert all(value and VALUE.fullmatch(value) and len(value) <= 63 for value in told.values())


@given(machines())
def test_one_unknown_model_or_link_silences_the_label(made: Machine):
    told = node_labels(made, UNKNOWN_ALIGNMENT)

    if any(not isinstance(gpu.model, str) for gpu in made.gpus):
        assert GPU_MODEL not in told
    if any(link.b.startswith("GPU") and not isinstance(link.nvlinks, int) for link in made.links):
        assert NVLINK not in told

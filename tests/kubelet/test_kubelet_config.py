"""What the kubelet's configuration file tells about its Topology Manager, and what an unreadable one tells: nothing."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoalloc.admission.policy import Options, Policy, Scope
from topoalloc.allocation.affinity import UNKNOWN_ALIGNMENT, Alignment
from topoalloc.errors import InputError
from topoalloc.kubelet.kubelet_config import KubeletConfig, parse_alignment

TEXT = """
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
topologyManagerPolicy: restricted
topologyManagerScope: pod
topologyManagerPolicyOptions: {prefer-closest-numa-nodes: "true"}
"""


def test_policy_scope_and_options_are_read():
    alignment = parse_alignment(TEXT)

    assert alignment == Alignment(Policy.RESTRICTED, Scope.POD, Options(prefer_closest_numa_nodes=True))


@pytest.mark.parametrize(("text", "root"), [("cgroupRoot: /a", "/a"), ("cgroupRoot: 7", ""), ("a: b: c", ""), ("", "")])
def test_the_group_that_holds_those_of_pods_is_read(tmp_path: Path, text: str, root: str):
    file = tmp_path / "config.yaml"
    file.write_text(text)

    assert KubeletConfig(file).cgroup_root() == root
    assert KubeletConfig(tmp_path / "missing").cgroup_root() == ""
    assert KubeletConfig(None).cgroup_root() == ""


def test_a_file_that_does_not_speak_of_it_means_the_kubelets_defaults():
    assert parse_alignment("kind: KubeletConfiguration") == Alignment(Policy.NONE, Scope.CONTAINER)


@pytest.mark.parametrize(
    "text", ["", "[]", "topologyManagerPolicy: strict", "topologyManagerPolicyOptions: [1]", "a: b: c", "\x00"]
)
def test_what_no_kubelet_would_take_is_refused(text: str):
    with pytest.raises(InputError):
        parse_alignment(text)


@given(st.text(max_size=100))
def test_any_text_tells_something_or_is_refused(text: str):
    with contextlib.suppress(InputError):
        assert isinstance(parse_alignment(text), Alignment)


def test_a_missing_file_tells_nothing(tmp_path: Path):
    assert KubeletConfig(tmp_path / "absent").alignment() == UNKNOWN_ALIGNMENT
    assert KubeletConfig(None).alignment() == UNKNOWN_ALIGNMENT


def test_a_changed_file_is_read_again(tmp_path: Path):
    path = tmp_path / "config.yaml"
    path.write_text(TEXT)
    config = KubeletConfig(path)
    assert config.alignment().policy is Policy.RESTRICTED

    path.write_text("topologyManagerPolicy: best-effort")
    os.utime(path, ns=(1, 1))

    assert config.alignment().policy is Policy.BEST_EFFORT


def test_a_file_that_became_unreadable_tells_nothing_any_more(tmp_path: Path):
    path = tmp_path / "config.yaml"
    path.write_text(TEXT)
    config = KubeletConfig(path)
    config.alignment()

    path.write_text("[")
    os.utime(path, ns=(1, 1))

    assert config.alignment() == UNKNOWN_ALIGNMENT

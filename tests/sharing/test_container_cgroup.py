"""Whose process it is, by every form of `/proc/<pid>/cgroup` that nodes have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoalloc.sharing.container_cgroup import Placed, container_of

UID = "0f9e8d7c-1234-4567-89ab-0123456789ab"
SLICE_UID = UID.replace("-", "_")
ID = "4aa615892ab2a014d52178bdf3da1c4a45c8ddfb5171dd6e39dc910f96693e14"
OTHER = "9e073649debeec6d511391c9ec7627ee67ce3a3fb508b0fa0437a97f8e58ba98"
HERE = Placed(UID, ID)


@pytest.mark.parametrize(
    "path",
    [
        f"/kubepods/pod{UID}/{ID}",
        f"/kubepods/besteffort/pod{UID}/{ID}",
        f"/kubepods.slice/kubepods-pod{SLICE_UID}.slice/cri-containerd-{ID}.scope",
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE_UID}.slice/crio-{ID}.scope",
        f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SLICE_UID}.slice/docker-{ID}.scope",
        f"/../../kubepods-besteffort-pod{SLICE_UID}.slice/cri-containerd-{ID}.scope",
        f"/system.slice/containerd.service/kubepods-burstable-pod{SLICE_UID}.slice:cri-containerd:{ID}",
        f"/kubepods/pod{UID}/{ID}/init.scope",
    ],
)
@pytest.mark.parametrize("line", ["0::{}", "11:memory:{}", "7:cpu,cpuacct:/x\n5:hugetlb,memory:{}\n1:name=systemd:/y"])
def test_the_container_is_the_group_below_its_pods(line: str, path: str) -> None:
    assert container_of(line.format(path) + "\n") == HERE


def test_a_group_that_a_container_made_below_its_own_is_not_another_container() -> None:
    made = f"0::/kubepods/pod{UID}/{ID}/pod{UID[::-1]}/{OTHER}\n"
    scope = f"0::/kubepods.slice/kubepods-pod{SLICE_UID}.slice/cri-containerd-{ID}.scope/cri-containerd-{OTHER}.scope\n"

    assert [container_of(made), container_of(scope)] == [HERE, HERE]


def test_the_memory_controllers_group_counts_before_the_others() -> None:
    text = f"9:pids:/kubepods/pod{UID}/{OTHER}\n0::/kubepods/pod{UID}/{OTHER}\n3:memory:/kubepods/pod{UID}/{ID}\n"

    assert container_of(text) == HERE


def test_a_static_pods_hash_is_a_uid() -> None:
    assert container_of(f"0::/kubepods/pod{'ab' * 16}/{ID}") == Placed("ab" * 16, ID)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0::/",
        "0::/init.scope",
        f"0::/kubepods/pod{UID}",
        f"0::/kubepods/pod{UID}/",
        f"0::/kubepods/pod{UID}/{ID[:-1]}",
        f"0::/kubepods/pod../{ID}",
        f"0::/user.slice/pod{UID}x/{ID}",
        "nonsense",
    ],
)
def test_what_is_in_no_container_is_in_none(text: str) -> None:
    assert container_of(text) is None


@given(st.text(max_size=300))
def test_any_text_is_read(text: str) -> None:
    container_of(text)
    container_of(f"0::/kubepods/pod{UID}/{text}")

"""Which container a process is in: every layout that kubelets and runtimes make, and none that a tenant makes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoalloc.sharing.cgroup_path import PodCgroup, pod_cgroup

UID, OTHER_UID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0", "ffffffff-4b5a-6978-8796-a5b4c3d2e1f0"
HASH = "0123456789abcdef0123456789abcdef"
ID, OTHER_ID = "ab" * 32, "cd" * 32
ESCAPED, OTHER_ESCAPED = UID.replace("-", "_"), OTHER_UID.replace("-", "_")
POD_SLICE = f"kubepods-burstable-pod{ESCAPED}.slice"
OURS = PodCgroup(UID, ID)
PATHS = [
    f"/kubepods/burstable/pod{UID}/{ID}",
    f"/kubepods/besteffort/pod{UID}/{ID}",
    f"/kubepods/pod{UID}/{ID}",
    f"/kubelet/kubepods/pod{UID}/{ID}",
    f"/kubepods.slice/kubepods-burstable.slice/{POD_SLICE}/cri-containerd-{ID}.scope",
    f"/kubepods.slice/kubepods-pod{ESCAPED}.slice/crio-{ID}.scope",
    f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{ESCAPED}.slice/docker-{ID}.scope",
    f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{ESCAPED}.slice/cri-containerd-{ID}.scope",
    f"/../../../kubepods-pod{ESCAPED}.slice/cri-containerd-{ID}.scope",
    f"/../../{POD_SLICE}/cri-containerd-{ID}.scope",
    f"/../../pod{UID}/{ID}",
    f"/../../../burstable/pod{UID}/{ID}",
    f"/../../kubepods/pod{UID}/{ID}",
    f"/system.slice/containerd.service/{POD_SLICE}:cri-containerd:{ID}",
    f"/system.slice/{POD_SLICE}:cri-containerd:{ID}",
    f"/kubepods-pod{ESCAPED}.slice:docker:{ID}",
    f"/../{POD_SLICE}:cri-containerd:{ID}",
]


@pytest.mark.parametrize("path", PATHS)
def test_every_layout_is_read_on_cgroup_v2(path: str):
    assert pod_cgroup(f"0::{path}\n".encode()) == OURS


@pytest.mark.parametrize("path", PATHS)
def test_groups_that_a_tenant_makes_below_its_own_change_nothing(path: str):
    below = f"/kubepods/pod{OTHER_UID}/{OTHER_ID}"

    assert pod_cgroup(f"0::{path}{below}\n".encode()) == OURS
    assert pod_cgroup(f"0::{path}/kubepods.slice/kubepods-pod{OTHER_ESCAPED}.slice\n".encode()) == OURS


ROOTED = [
    ("/team", f"/team/kubepods/burstable/pod{UID}/{ID}"),
    ("/a/b-c", f"/a/b-c/kubepods/pod{UID}/{ID}"),
    ("/team", f"/team.slice/team-kubepods.slice/team-kubepods-pod{ESCAPED}.slice/cri-containerd-{ID}.scope"),
    (
        "/a/b-c",
        f"/a.slice/a-b_c.slice/a-b_c-kubepods.slice/a-b_c-kubepods-pod{ESCAPED}.slice/crio-{ID}.scope",
    ),
    ("/team", f"/../../burstable/pod{UID}/{ID}"),
    ("/", f"/kubepods/pod{UID}/{ID}"),
]


@pytest.mark.parametrize(("root", "path"), ROOTED)
def test_the_kubelets_groups_may_lie_below_another_one(root: str, path: str):
    assert pod_cgroup(f"0::{path}\n".encode(), root) == OURS
    assert pod_cgroup(f"0::{path}{path}/kubepods/pod{OTHER_UID}/{OTHER_ID}\n".encode(), root) == OURS


@pytest.mark.parametrize(("root", "path"), ROOTED[:4])
def test_groups_below_any_other_are_nobodys(root: str, path: str):
    assert pod_cgroup(f"0::{path}\n".encode()) is None
    assert pod_cgroup(f"0::/other{path}\n".encode(), root) is None
    assert pod_cgroup(f"0::/kubepods/pod{UID}/{ID}\n".encode(), root) is None


def test_a_static_pod_is_named_by_a_hash():
    assert pod_cgroup(f"0::/kubepods/burstable/pod{HASH}/{ID}\n".encode()) == PodCgroup(HASH, ID)


def test_every_hierarchy_of_cgroup_v1_has_to_agree():
    lines = [f"{n}:{controller}:/kubepods/pod{UID}/{ID}" for n, controller in ((9, "memory"), (8, "cpu,cpuacct"))]
    agreed = "\n".join([*lines, "1:name=systemd:/kubepods/pod" + UID + "/" + ID, "0::/system.slice/containerd.service"])

    assert pod_cgroup(agreed.encode()) == OURS
    assert pod_cgroup(f"{agreed}\n7:pids:/kubepods/pod{OTHER_UID}/{OTHER_ID}\n".encode()) is None


@pytest.mark.parametrize(
    "path",
    [
        "/",
        f"/user.slice/user-1000.slice/kubepods/pod{UID}/{ID}",
        f"/system.slice/kubepods.slice/kubepods-pod{ESCAPED}.slice/cri-containerd-{ID}.scope",
        f"/kubepods/pod{UID}",
        f"/kubepods/pod{UID}/{ID[:-1]}",
        f"/kubepods/pod{UID}x/{ID}",
        f"/kubepods/x/pod{UID}/{ID}",
        f"/kubepods.slice/kubepods-pod{ESCAPED}.slice/crio-conmon-{ID}.scope",
        f"/pod{UID}/{ID}",
        f"/../../user.slice/kubepods/pod{UID}/{ID}",
        f"/kubepods/../pod{UID}/{ID}",
        f"/system.slice/other.service/{POD_SLICE}:cri-containerd:{ID}",
        f"/user.slice/user-1000.slice/{POD_SLICE}:cri-containerd:{ID}",
        f"/kubepods.slice/{POD_SLICE}:cri-containerd:{ID}",
        f"/system.slice/{POD_SLICE}:conmon:{ID}",
        f"/system.slice/{POD_SLICE}:cri-containerd:{ID}x",
        f"/kubepods.slice/kubepods-burstable.slice/cri-containerd-{ID}.scope/{POD_SLICE}/cri-containerd-{ID}.scope",
    ],
)
def test_a_process_elsewhere_is_in_no_container(path: str):
    assert pod_cgroup(f"0::{path}\n".encode()) is None


@given(st.binary(max_size=300))
def test_any_bytes_are_no_container_unless_they_are_one(content: bytes):
    assert pod_cgroup(content) is None


def test_more_than_any_kernel_says_is_not_read():
    assert pod_cgroup(f"0::{PATHS[0]}/{'x' * 20000}\n".encode()) is None

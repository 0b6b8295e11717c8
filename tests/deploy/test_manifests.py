"""What an operator applies: rights, mounts and the way a new version comes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from tests.deploy.manifests import KUSTOMIZE, RENDERED, container, mounts, one, pod_spec, rendered
from topoalloc.agent.config import Config, parse_config

CONTAINERS = ("agent", "publish")
RESTRICTED = {
    "privileged": False,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
everywhere = pytest.mark.parametrize("name", RENDERED)


def served_config(name: str = "base") -> Config:
    (content,) = (item["data"]["config.yaml"] for item in rendered(name) if "config.yaml" in item.get("data", {}))
    return parse_config(content, "config.yaml")


@everywhere
def test_no_container_has_more_rights_than_root_without_capabilities(name: str) -> None:
    spec = pod_spec(name)

    assert [item["name"] for item in spec["containers"]] == list(CONTAINERS)
    assert "initContainers" not in spec
    assert all(item["securityContext"] == RESTRICTED for item in spec["containers"])
    assert spec["securityContext"] == {
        "runAsUser": 0,
        "runAsGroup": 0,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


@everywhere
def test_the_pod_shares_no_namespace_of_the_host(name: str) -> None:
    assert not {"hostNetwork", "hostPID", "hostIPC", "hostUsers"} & pod_spec(name).keys()


@everywhere
def test_the_role_allows_exactly_what_is_told_to_the_api_server(name: str) -> None:
    assert one(name, "ClusterRole")["rules"] == [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    ]
    binding = one(name, "ClusterRoleBinding")
    assert binding["roleRef"]["name"] == "topoalloc"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "topoalloc", "namespace": "topoalloc-system"}]
    assert not [item for item in rendered(name) if item["kind"] in {"Role", "RoleBinding"}]


@everywhere
def test_only_the_container_that_publishes_sees_a_token(name: str) -> None:
    assert one(name, "ServiceAccount")["automountServiceAccountToken"] is False
    assert pod_spec(name)["automountServiceAccountToken"] is False
    with_token = {
        each
        for each in CONTAINERS
        for _, volume in mounts(each, name).values()
        if any("serviceAccountToken" in source for source in volume.get("projected", {}).get("sources", ()))
    }
    assert with_token == {"publish"}
    assert "secret" not in str(pod_spec(name)["volumes"]).replace("secrets/", "")


@everywhere
def test_only_the_agent_can_write_on_the_host_and_only_plugin_sockets_and_shares(name: str) -> None:
    writable = {
        (each, path)
        for each in CONTAINERS
        for path, (mount, _) in mounts(each, name).items()
        if not mount.get("readOnly", False)
    }
    assert writable == {
        ("agent", "/var/lib/kubelet/device-plugins"),
        ("agent", "/run/topoalloc"),
        ("agent", "/var/lib/topoalloc"),
    }
    assert "/var/lib/kubelet/device-plugins" not in mounts("publish", name)


@everywhere
def test_only_the_agent_reads_the_pods_of_the_kubelet(name: str) -> None:
    """The pods API gives whole pod specs, environments included; what is published needs none of them."""
    assert "/var/lib/kubelet/pods-api" in mounts("agent", name)
    assert "/var/lib/kubelet/pods-api" not in mounts("publish", name)


@everywhere
def test_no_mount_shows_the_kubelets_own_folder_or_all_of_sysfs(name: str) -> None:
    paths = {volume["hostPath"]["path"] for volume in pod_spec(name)["volumes"] if "hostPath" in volume}

    assert paths == {
        "/dev",
        "/run/topoalloc",
        "/sys/bus",
        "/sys/class",
        "/sys/devices",
        "/var/lib/kubelet/config.yaml",
        "/var/lib/kubelet/device-plugins",
        "/var/lib/kubelet/pod-resources",
        "/var/lib/kubelet/pods-api",
        "/var/lib/topoalloc",
    }


@pytest.mark.parametrize("key", ["plugin_dir", "pod_resources", "pods_api", "kubelet_config", "run_dir", "lib_dir"])
def test_every_path_of_the_configuration_is_mounted(key: str) -> None:
    configured = PurePosixPath(getattr(served_config(), key))
    there = [PurePosixPath(path) for path in mounts("agent")]

    assert any(path == configured or path in configured.parents for path in there)


def test_the_hosts_sysfs_and_device_nodes_are_where_the_configuration_says() -> None:
    config = served_config()
    below = {f"{config.sysfs}/{part}" for part in ("bus", "class", "devices")}

    assert below < mounts("agent").keys()
    assert below < mounts("publish").keys()
    assert f"{config.host_root}/dev" in mounts("agent")


@everywhere
def test_what_the_host_may_lack_is_a_folder_that_is_made_and_nothing_else(name: str) -> None:
    """Without a type the container runtime would make a folder at whatever path is missing."""
    kinds = {v["hostPath"]["path"]: v["hostPath"]["type"] for v in pod_spec(name)["volumes"] if "hostPath" in v}

    made = {path for path, kind in kinds.items() if kind == "DirectoryOrCreate"}
    assert made == {
        "/run/topoalloc",
        "/var/lib/kubelet/pod-resources",
        "/var/lib/kubelet/pods-api",
        "/var/lib/topoalloc",
    }
    assert set(kinds.values()) == {"Directory", "DirectoryOrCreate", "File"}


@everywhere
def test_every_image_has_a_fixed_version_of_one_name(name: str) -> None:
    images = {item["image"] for item in pod_spec(name)["containers"]}

    assert len(images) == 1
    assert re.fullmatch(r"topoalloc:\d+\.\d+\.\d+", images.pop())


@everywhere
def test_a_new_version_comes_node_by_node_and_stops_when_it_fails(name: str) -> None:
    spec = one(name, "DaemonSet")["spec"]

    assert spec["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "10%"},
    }
    assert spec["minReadySeconds"] >= 10


@everywhere
def test_the_pod_runs_on_every_node_and_is_evicted_last(name: str) -> None:
    assert pod_spec(name)["tolerations"] == [{"operator": "Exists"}]
    assert pod_spec(name)["priorityClassName"] == "system-node-critical"


@everywhere
def test_both_containers_ask_for_memory_and_neither_is_throttled(name: str) -> None:
    for item in pod_spec(name)["containers"]:
        resources = item["resources"]
        assert resources["requests"].keys() == {"cpu", "memory"}
        assert resources["limits"].keys() == {"memory"}


def test_a_changed_configuration_gives_the_pods_another_config_map() -> None:
    """The hash in the name is what makes the DaemonSet roll."""
    _, volume = mounts("agent")["/etc/topoalloc"]

    assert re.fullmatch(r"topoalloc-[a-z0-9]{10}", volume["configMap"]["name"])


@everywhere
def test_the_policy_speaks_of_the_account_that_the_pod_runs_under(name: str) -> None:
    policy, account = one(name, "ValidatingAdmissionPolicy"), one(name, "ServiceAccount")["metadata"]
    user = f"system:serviceaccount:{account['namespace']}:{account['name']}"

    assert policy["spec"]["matchConditions"][0]["expression"] == f"request.userInfo.username == '{user}'"
    assert policy["spec"]["failurePolicy"] == "Fail"
    binding = one(name, "ValidatingAdmissionPolicyBinding")["spec"]
    assert binding == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}


def test_the_recorded_machine_is_given_to_both_containers() -> None:
    name = "overlays/recorded-machine"

    for each in CONTAINERS:
        assert container(each, name)["args"][-1] == "--machine=/etc/topoalloc-machine/machine"
        assert mounts(each, name)["/etc/topoalloc-machine"][1]["configMap"] == {"name": "topoalloc-machine"}


def test_nvidias_runtime_shows_the_driver_to_both_containers() -> None:
    name = "overlays/nvidia-runtime"

    assert pod_spec(name)["runtimeClassName"] == "nvidia"
    for each in CONTAINERS:
        env = {item["name"]: item.get("value") for item in container(each, name)["env"]}
        assert (env["NVIDIA_VISIBLE_DEVICES"], env["NVIDIA_DRIVER_CAPABILITIES"]) == ("all", "utility")
    assert any(item["name"] == "NODE_NAME" for item in container("publish", name)["env"])


def test_the_image_has_no_registry_written_into_it() -> None:
    lines = (Path(__file__).parents[2] / "deploy" / "Dockerfile").read_text().splitlines()

    assert "ARG BASE_IMAGE=python:3.11-slim-bookworm" in lines
    assert {line.split(" AS ")[0] for line in lines if line.startswith("FROM ")} == {"FROM ${BASE_IMAGE}"}
    assert 'ENTRYPOINT ["topoalloc"]' in lines


@pytest.mark.parametrize("path", ["/run/topoalloc", "/var/lib/topoalloc"])
def test_what_is_named_to_the_kubelet_has_the_same_path_on_the_node(path: str) -> None:
    _, volume = mounts("agent")[path]

    assert volume["hostPath"]["path"] == path


@everywhere
def test_the_publisher_reads_what_the_watchdog_found_and_changes_nothing_there(name: str) -> None:
    run_dir = Config().run_dir
    mount, volume = mounts("publish", name)[run_dir]

    assert mount["readOnly"] is True
    assert volume["hostPath"]["path"] == run_dir


def with_components(tmp_path: Path, *names: str) -> dict[str, Any]:
    """The pod of the base with some components."""
    where = os.path.relpath(KUSTOMIZE, tmp_path)
    lines = [f"resources: [{where}/base]", f"components: [{', '.join(f'{where}/components/{n}' for n in names)}]"]
    (tmp_path / "kustomization.yaml").write_text("\n".join(lines))
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run([kubectl, "kustomize", str(tmp_path)], check=True, capture_output=True, text=True)
    (found,) = (item for item in yaml.safe_load_all(done.stdout) if item["kind"] == "DaemonSet")
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


def test_the_processes_of_the_node_are_seen_where_that_is_chosen(tmp_path: Path) -> None:
    assert with_components(tmp_path, "host-processes")["hostPID"] is True


def test_nodes_without_the_toolkit_show_the_loaders_cache_and_take_specifications(tmp_path: Path) -> None:
    agent = with_components(tmp_path, "no-toolkit")["containers"][0]
    places = {mount["mountPath"]: mount.get("readOnly", False) for mount in agent["volumeMounts"]}

    assert places["/host/etc/ld.so.cache"] is True
    assert places["/run/cdi"] is False


def test_the_directory_of_specifications_is_a_path_without_links() -> None:
    """The agent follows none, and /var/run is one to /run in the image."""
    component = (KUSTOMIZE / "components" / "no-toolkit" / "kustomization.yaml").read_text(encoding="utf-8")
    page = (KUSTOMIZE.parents[1] / "docs" / "CONFIGURATION.md").read_text(encoding="utf-8")

    assert "cdi_spec_dir: /run/cdi`" in component
    assert "mountPath: /run/cdi}" in component
    assert "a directory such as `/run/cdi`" in page

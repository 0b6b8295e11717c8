"""The manifests as `kubectl kustomize` renders them."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

KUSTOMIZE = Path(__file__).parents[2] / "deploy" / "kustomize"
RENDERED = ("base", "overlays/nvidia-runtime", "overlays/recorded-machine")


@cache
def rendered(name: str) -> tuple[dict[str, Any], ...]:
    """Every object of a kustomization below deploy/kustomize."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run([kubectl, "kustomize", str(KUSTOMIZE / name)], check=True, capture_output=True, text=True)
    return tuple(yaml.safe_load_all(done.stdout))


def one(name: str, kind: str) -> dict[str, Any]:
    """The only object of that kind."""
    (found,) = (item for item in rendered(name) if item["kind"] == kind)
    return found


def pod_spec(name: str = "base") -> dict[str, Any]:
    spec: dict[str, Any] = one(name, "DaemonSet")["spec"]["template"]["spec"]
    return spec


def container(container_name: str, name: str = "base") -> dict[str, Any]:
    (found,) = (item for item in pod_spec(name)["containers"] if item["name"] == container_name)
    result: dict[str, Any] = found
    return result


def mounts(container_name: str, name: str = "base") -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """By path in the container: the mount and the volume."""
    volumes = {volume["name"]: volume for volume in pod_spec(name)["volumes"]}
    return {
        mount["mountPath"]: (mount, volumes[mount["name"]]) for mount in container(container_name, name)["volumeMounts"]
    }

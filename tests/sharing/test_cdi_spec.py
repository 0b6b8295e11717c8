"""A CDI specification as its strict readers accept it: data only, of the lowest version that is enough."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.handmade import machine
from topoalloc.sharing.cdi_spec import cdi_spec
from topoalloc.sharing.edits import DeviceFiles, Injection, edits_of
from topoalloc.sharing.inventory import Inventory, inventory_of
from topoalloc.sharing.settings import CORE_RESOURCE, SharingSettings
from topoalloc.topology.machine import Machine

KIND = "topoalloc.io/gpu"
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")


def served(of: Machine) -> Inventory:
    inventory = inventory_of(of, SharingSettings())
    assert isinstance(inventory, Inventory)
    return inventory


def named(*uuids: str) -> Inventory:
    plain = machine(numa=1, switches=1, gpus=len(uuids))
    return served(replace(plain, gpus=tuple(replace(g, uuid=u) for g, u in zip(plain.gpus, uuids, strict=True))))


def files_of(inventory: Inventory, libraries: tuple[tuple[str, str], ...] = ()) -> DeviceFiles:
    nodes = {key: (f"/dev/nvidia{number}",) for number, key in enumerate(inventory.gpu_keys)}
    return DeviceFiles(MappingProxyType(nodes), ("/dev/nvidiactl", "/dev/nvidia-uvm"), libraries)


def written(inventory: Inventory, libraries: tuple[tuple[str, str], ...] = ()) -> dict[str, Any]:
    spec = cdi_spec(inventory, files_of(inventory, libraries), KIND)
    assert spec is not None
    document: dict[str, Any] = json.loads(spec.content)
    check(document)
    return document


def check(document: Mapping[str, Any]) -> None:
    """The rules of the format that readers enforce, for what can stand in ours."""
    assert document.keys() <= {"cdiVersion", "kind", "devices", "containerEdits"}
    assert document["devices"]
    names = [device["name"] for device in document["devices"]]
    assert len(set(names)) == len(names)
    assert all(NAME.fullmatch(name) for name in names)
    needs_digits = any(name[0].isdigit() for name in names)
    assert document["cdiVersion"] == ("0.5.0" if needs_digits else "0.3.0")
    for edits in [document.get("containerEdits", {}), *(device["containerEdits"] for device in document["devices"])]:
        assert edits.keys() <= {"env", "deviceNodes", "mounts"}
        assert all(node.keys() == {"path", "permissions"} for node in edits.get("deviceNodes", ()))
        assert all(node["permissions"] == "rw" for node in edits.get("deviceNodes", ()))
        assert all("=" in pair for pair in edits.get("env", ()))
        for mount in edits.get("mounts", ()):
            assert mount.keys() == {"hostPath", "containerPath", "options"}
            assert {"ro", "nosuid", "nodev"} <= set(mount["options"])


def test_each_gpu_has_its_own_node_and_the_nodes_that_all_need_come_once() -> None:
    document = written(named("GPU-aa", "GPU-bb"))

    assert [device["name"] for device in document["devices"]] == ["GPU-aa", "GPU-bb"]
    assert document["devices"][1]["containerEdits"] == {"deviceNodes": [{"path": "/dev/nvidia1", "permissions": "rw"}]}
    assert document["containerEdits"]["deviceNodes"][0]["path"] == "/dev/nvidiactl"


def test_names_that_begin_with_a_digit_need_the_version_that_allows_them() -> None:
    assert written(served(machine()))["cdiVersion"] == "0.5.0"
    assert written(named("GPU-aa"))["cdiVersion"] == "0.3.0"


def test_the_drivers_libraries_are_mounted_read_only_where_they_are_looked_for() -> None:
    edits = written(named("GPU-aa"), (("libcuda.so.1", "/usr/lib/libcuda.so.1"),))["containerEdits"]

    assert edits["mounts"][0]["hostPath"] == "/usr/lib/libcuda.so.1"
    assert edits["mounts"][0]["containerPath"] == "/usr/local/nvidia/lib64/libcuda.so.1"
    assert edits["env"] == ["LD_LIBRARY_PATH=/usr/local/nvidia/lib64"]


def test_every_device_that_allocate_names_is_in_the_specification() -> None:
    inventory = named("GPU-aa", "GPU-bb")
    cores = inventory.resource(CORE_RESOURCE)
    assert cores is not None
    names = edits_of(inventory, cores, [d.id for d in cores.devices], Injection.CDI, DeviceFiles(), KIND).cdi_devices

    assert set(names) == {f"{KIND}={device['name']}" for device in written(inventory)["devices"]}


def test_a_gpu_without_a_node_or_with_a_name_that_is_none_is_left_out_and_told() -> None:
    inventory = named("GPU-aa", 'GPU-"b\n', "GPU-cc")
    files = files_of(inventory)
    without_first = replace(files, by_key={key: files.by_key[key] for key in inventory.gpu_keys[1:]})

    spec = cdi_spec(inventory, without_first, KIND)

    assert spec is not None
    assert spec.left_out == ("GPU0", "GPU1")
    assert [device["name"] for device in json.loads(spec.content)["devices"]] == ["GPU-cc"]


def test_a_node_without_device_nodes_has_no_specification() -> None:
    assert cdi_spec(named("GPU-aa"), DeviceFiles(), KIND) is None


@given(st.text(max_size=80), st.text(max_size=40))
def test_whatever_a_driver_calls_its_gpus_the_file_is_in_order(uuid: str, library: str) -> None:
    inventory = named(uuid, "GPU-bb")
    written(inventory, ((library, "/usr/lib/x"),))


@pytest.mark.parametrize("kind", [KIND, "nvidia.com/gpu"])
def test_the_file_is_named_by_vendor_and_class(kind: str) -> None:
    spec = cdi_spec(named("GPU-aa"), files_of(named("GPU-aa")), kind)

    assert spec is not None
    assert spec.file_name == f"{kind.replace('/', '-')}.json"

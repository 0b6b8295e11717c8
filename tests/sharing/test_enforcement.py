"""One contract over the three ways to hold a container to its share."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sharing.enforcements import LIBRARY, NAMES, enforcement
from tests.sharing.test_share_file import keys_of
from topoalloc.sharing.edits import Mount
from topoalloc.sharing.enforcement import Enforced, Upkeep
from topoalloc.sharing.share import Share, ShareRules

LEAF = "/run/topoalloc/shares/0000:3b:00.0-c07"
MIB = 1024**2
GIB = 1024**3
SHARE = Share("0000:3b:00.0-c07", 0, "GPU-8e1c", 30, 8 * GIB, "0f9e8d7c-1234-4567-89ab-0123456789ab", "app")
everyone = pytest.mark.parametrize("name", NAMES)
shares = st.builds(
    Share,
    name=st.just(SHARE.name),
    position=st.integers(0, 7),
    gpu_uuid=st.none() | st.text(max_size=90),
    cores=st.integers(1, 99),
    memory_bytes=st.none() | st.integers(0, 2**40).map(lambda units: units * MIB % 2**45),
    pod_uid=st.text(max_size=300),
    container=st.text(max_size=300),
)
ceilings = st.none() | st.integers(1, 100)


def content(enforced: Enforced, name: str) -> bytes:
    (found,) = (file.content for file in enforced.files if file.name == name)
    assert found is not None
    return found


def told(name: str, enforced: Enforced) -> tuple[int, int | None]:
    """Cores and bytes as the library of that name reads them; None: no limit of memory."""
    if name == "builtin":
        keys = keys_of(content(enforced, "share"))
        return int(keys["cores"]) // 100, None if keys["memory"] == "none" else int(keys["memory"])
    if name == "vcuda":
        config = content(enforced, "vcuda.config")
        (memory,) = struct.unpack_from("<Q", config, 8208)
        (cores,) = struct.unpack_from("<i", config, 8216)
        assert struct.unpack_from("<i", config, 8232) == (1,)
        return cores, None if memory == 2**63 - 1 else memory
    envs = dict(enforced.edits.envs)
    memory_text = envs.get("CUDA_DEVICE_MEMORY_LIMIT_0")
    return int(envs["CUDA_DEVICE_SM_LIMIT"]), None if memory_text is None else int(memory_text.removesuffix("m")) * MIB


@everyone
def test_its_name_is_the_one_in_the_configuration(name: str) -> None:
    assert enforcement(name).name == name


@everyone
@given(share=shares, ceiling=ceilings)
def test_the_library_reads_the_limits_of_the_grant(name: str, share: Share, ceiling: int | None) -> None:
    cores, memory_bytes = told(name, enforcement(name, ShareRules(ceiling)).enforced(share, LEAF))

    assert cores == share.cores
    if share.memory_bytes == 0:
        assert memory_bytes is not None
        assert memory_bytes <= MIB  # HAMi-core takes 0 for no limit
    else:
        assert memory_bytes == share.memory_bytes


@everyone
@given(share=shares, ceiling=ceilings)
def test_the_same_share_needs_the_same(name: str, share: Share, ceiling: int | None) -> None:
    one, other = (enforcement(name, ShareRules(ceiling)).enforced(share, LEAF) for _ in range(2))

    assert one == other


@everyone
def test_what_a_mount_shows_of_the_directory_is_made_there(name: str) -> None:
    enforced = enforcement(name).enforced(SHARE, LEAF)
    made = {LEAF, *(f"{LEAF}/{file.name}" for file in enforced.files)}

    of_leaf = [mount.host_path for mount in enforced.edits.mounts if mount.host_path.startswith(LEAF)]
    assert set(of_leaf) <= made
    others = {mount.host_path for mount in enforced.edits.mounts} - set(of_leaf)
    assert all(path.startswith((LIBRARY, "/opt/vcuda", "/opt/vgpu")) for path in others)


@everyone
def test_a_container_writes_only_into_what_is_its_own_to_write(name: str) -> None:
    enforced = enforcement(name, ShareRules(90)).enforced(SHARE, LEAF)
    by_path = {f"{LEAF}/{file.name}": file for file in enforced.files}

    written = [mount for mount in enforced.edits.mounts if not mount.read_only]
    assert all(by_path[mount.host_path].upkeep is Upkeep.LEFT for mount in written)
    open_to_all = {path for path, file in by_path.items() if file.mode & 0o022}
    assert open_to_all == {mount.host_path for mount in written}


@everyone
def test_names_of_files_and_sockets_are_plain_and_different(name: str) -> None:
    enforced = enforcement(name, ShareRules(90)).enforced(SHARE, LEAF)
    names = [*(file.name for file in enforced.files), *enforced.sockets]

    assert len(set(names)) == len(names)
    assert all(PurePosixPath(each).name == each and not each.startswith(".") for each in names)


@everyone
def test_every_place_in_the_container_is_absolute_and_taken_once(name: str) -> None:
    places = [mount.container_path for mount in enforcement(name).enforced(SHARE, LEAF).edits.mounts]

    assert len(set(places)) == len(places)
    assert all(place.startswith("/") and ".." not in place for place in places)


@everyone
def test_no_device_is_given_by_the_limits(name: str) -> None:
    edits = enforcement(name).enforced(SHARE, LEAF).edits

    assert (edits.device_paths, edits.cdi_devices) == ((), ())


@pytest.mark.parametrize("name", ["builtin", "hami-core"])
def test_what_the_loader_preloads_is_mounted(name: str) -> None:
    enforced = enforcement(name).enforced(SHARE, LEAF)
    (preloaded,) = content(enforced, "ld.so.preload").decode().splitlines()

    assert Mount(f"{LEAF}/ld.so.preload", "/etc/ld.so.preload") in enforced.edits.mounts
    places = {mount.container_path for mount in enforced.edits.mounts}
    assert preloaded in places or str(PurePosixPath(preloaded).parent) in places


def test_the_builtin_library_gets_its_directory_its_account_and_itself() -> None:
    assert enforcement("builtin").enforced(SHARE, LEAF).edits.mounts == (
        Mount(LEAF, "/etc/topoalloc"),
        Mount(f"{LEAF}/usage", "/etc/topoalloc/usage", read_only=False),
        Mount(f"{LEAF}/ld.so.preload", "/etc/ld.so.preload"),
        Mount(LIBRARY, "/usr/local/lib/topoalloc"),
    )


def test_limits_of_the_builtin_library_are_in_no_variable() -> None:
    assert enforcement("builtin").enforced(SHARE, LEAF).edits.envs == ()


def test_an_elastic_share_has_a_pace_which_is_its_own_until_the_agent_sets_another() -> None:
    enforced = enforcement("builtin", ShareRules(80)).enforced(SHARE, LEAF)

    assert struct.unpack("<QQQ", content(enforced, "pace")) == (0x3145434150415401, 3000, 0)
    assert "pace" not in {file.name for file in enforcement("builtin").enforced(SHARE, LEAF).files}


def test_a_share_has_a_place_for_its_turn_and_no_turn_at_first_and_a_whole_gpu_has_none() -> None:
    whole = replace(SHARE, cores=100)

    assert struct.unpack("<QQQ", content(enforcement("builtin").enforced(SHARE, LEAF), "turn")) == (
        0x314E525554415401,
        0,
        0,
    )
    assert "turn" not in {file.name for file in enforcement("builtin").enforced(whole, LEAF).files}


def test_a_share_has_a_place_where_it_is_told_of_its_neighbours_and_a_whole_gpu_has_none() -> None:
    whole = replace(SHARE, cores=100)

    assert struct.unpack("<QQQ", content(enforcement("builtin").enforced(SHARE, LEAF), "neighbours"))[1:] == (0, 0)
    assert "neighbours" not in {file.name for file in enforcement("builtin").enforced(whole, LEAF).files}


def test_a_new_account_has_the_header_that_its_readers_expect() -> None:
    (usage,) = (file for file in enforcement("builtin").enforced(SHARE, LEAF).files if file.name == "usage")

    assert usage.content is not None
    assert struct.unpack_from("<8sII", usage.content) == (b"TAUSAGE1", 1, 1000)
    assert set(usage.content[16:]) == {0}
    assert usage.size_bytes == 131072


def test_hami_core_never_reads_zero_which_would_be_no_limit() -> None:
    edits = enforcement("hami-core").enforced(replace(SHARE, memory_bytes=0), LEAF).edits

    assert ("CUDA_DEVICE_MEMORY_LIMIT_0", "1m") in edits.envs


def test_hami_core_is_told_its_limits_as_its_own_plugin_would() -> None:
    assert enforcement("hami-core").enforced(SHARE, LEAF).edits.envs == (
        ("CUDA_DEVICE_SM_LIMIT", "30"),
        ("CUDA_DEVICE_MEMORY_SHARED_CACHE", "/usr/local/vgpu/share.cache"),
        ("CUDA_DEVICE_MEMORY_LIMIT_0", "8192m"),
    )

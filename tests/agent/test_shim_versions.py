"""An earlier version of the library goes when nothing can mount it any more, and whatever is not sure keeps it."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.made_shares import RunDir
from topoalloc.agent.shim_library import install_library
from topoalloc.agent.shim_versions import REMOVED_AT_ONCE_MAX, UNNAMED_S, remove_unused_versions

LIBRARY = "libtopoalloc-vcuda.so"
CHECKPOINT = "kubelet_internal_checkpoint"


class Node:
    """Two versions of the library, of which the second one is the agent's."""

    def __init__(self, path: Path) -> None:
        self.lib, self.plugins, self.run = path / "lib", path / "plugins", RunDir(path / "run")
        self.old, self.current = (self.install(content) for content in (b"\x7fELF 1", b"\x7fELF 2"))
        self.plugins.mkdir()
        self.record()
        self.now_s = self.lib.stat().st_mtime

    def install(self, content: bytes) -> Path:
        return install_library({LIBRARY: content}, self.lib).directory

    def record(self, *mounts: Path) -> None:
        """The kubelet's checkpoint, with an answer for each container."""
        entries = [
            {
                "PodUID": "uid",
                "ContainerName": "app",
                "ResourceName": "example.com/gpu",
                "DeviceIDs": {},
                "AllocResp": base64.b64encode(b"\x12\x20" + bytes(mount) + b"\x1a").decode(),
            }
            for mount in mounts
        ]
        (self.plugins / CHECKPOINT).write_text(json.dumps({"Data": {"PodDeviceEntries": entries}, "Checksum": 1}))

    def share(self, library: Path | None) -> None:
        leaf = self.run.make()
        if library is not None:
            (leaf / "library").write_text(f"{library}\n")

    def start(self, after_s: float = 0.0) -> tuple[str, ...]:
        self.now_s += after_s
        return remove_unused_versions(self.lib, self.current, str(self.run.path), self.plugins, lambda: self.now_s)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_what_nothing_names_for_a_week_is_removed_and_nothing_else(node: Node) -> None:
    assert node.start() == ()
    assert node.start(UNNAMED_S / 2) == ()
    assert node.old.exists()

    assert node.start(UNNAMED_S) == (node.old.name,)

    assert [path.name for path in node.lib.iterdir()] == [node.current.name]


def named_by_an_answer(node: Node) -> None:
    node.record(node.old)


def named_by_a_share(node: Node) -> None:
    node.share(node.old)


def unreadable(node: Node) -> None:
    (node.plugins / CHECKPOINT).write_text("{")


def without_checkpoint(node: Node) -> None:
    (node.plugins / CHECKPOINT).unlink()


def with_a_share_of_an_agent_that_kept_no_record(node: Node) -> None:
    node.share(None)


DOUBTS = [
    *(named_by_an_answer, named_by_a_share, unreadable, without_checkpoint),
    with_a_share_of_an_agent_that_kept_no_record,
]


@pytest.mark.parametrize("doubt", DOUBTS)
def test_what_may_be_mounted_stays(node: Node, doubt: Callable[[Node], None]) -> None:
    doubt(node)

    assert [node.start(UNNAMED_S * 2) for _ in range(3)] == [()] * 3

    assert (node.old / LIBRARY).exists()


@pytest.mark.parametrize("doubt", DOUBTS)
def test_what_may_be_mounted_again_stays_however_long_it_was_not(node: Node, doubt: Callable[[Node], None]) -> None:
    node.start()
    doubt(node)

    assert node.start(UNNAMED_S * 2) == ()

    assert (node.old / LIBRARY).exists()


def test_a_week_begins_anew_when_the_version_was_named_in_between(node: Node) -> None:
    node.start()
    node.record(node.old)
    node.start(UNNAMED_S * 2)
    node.record(node.current)

    assert node.start() == ()
    assert node.old.exists()


def test_shares_with_the_current_version_keep_no_other(node: Node) -> None:
    node.share(node.current)
    node.start()

    assert node.start(UNNAMED_S * 2) == (node.old.name,)


def test_the_agents_own_version_is_never_removed_also_when_it_was_marked_by_another(node: Node) -> None:
    node.start()
    node.old, node.current = node.current, node.old

    assert node.start(UNNAMED_S * 2) == ()
    assert (node.current / LIBRARY).exists()


def test_what_is_no_version_is_nobodys_to_remove(node: Node) -> None:
    for name in ("backup", "0123456789abcdefg", "0123456789ABCDEF", ".x"):
        (node.lib / name).mkdir()
    (node.lib / "0123456789abcdef").symlink_to(node.current)
    node.start()
    node.start(UNNAMED_S * 2)

    assert {"backup", "0123456789abcdefg", "0123456789ABCDEF", ".x", "0123456789abcdef"} <= {
        path.name for path in node.lib.iterdir()
    }


def test_a_version_that_somebody_put_something_into_is_left_to_him(node: Node) -> None:
    (node.old / "notes").touch()
    node.start()

    assert node.start(UNNAMED_S * 2) == ()
    assert sorted(path.name for path in node.old.iterdir()) == [LIBRARY, "notes", "without-share"]


def test_a_directory_that_cannot_be_used_is_said_and_keeps_nothing_from_starting(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.run.path.write_text("no directory")

    assert node.start() == ()
    assert "earlier versions" in caplog.text


def test_few_are_removed_at_a_time(node: Node) -> None:
    for number in range(10):
        node.install(f"\x7fELF {number + 10}".encode())
    node.start()

    assert [len(node.start(UNNAMED_S * 2)) for _ in range(4)] == [REMOVED_AT_ONCE_MAX, REMOVED_AT_ONCE_MAX, 3, 0]


def test_a_node_without_a_run_directory_yet_has_no_shares(node: Node) -> None:
    shutil.rmtree(node.run.path, ignore_errors=True)
    node.start()

    assert node.start(UNNAMED_S * 2) == (node.old.name,)

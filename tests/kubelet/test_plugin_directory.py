"""Sockets in the kubelet's directory: which are ours, which are new, and what wakes the watch."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from topoalloc.errors import MachineError
from topoalloc.kubelet.plugin_directory import (
    SOCKET_PATH_BYTES_MAX,
    DirectoryWatch,
    mark_of,
    new_socket_path,
    remove_stale_sockets,
)

LONG_S = 30.0  # a wake-up that never came


def bind(path: Path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    return server


def test_every_path_is_new(tmp_path: Path):
    paths = {new_socket_path(tmp_path, "topoalloc.io/nic") for _ in range(64)}

    assert len(paths) == 64


def test_a_path_fits_a_socket_address_however_long_the_resource_is(tmp_path: Path):
    path = new_socket_path(tmp_path, "x" * 200 + "/y")

    assert len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX
    with bind(path):
        assert mark_of(path) is not None


def test_a_directory_too_deep_for_a_socket_is_refused(tmp_path: Path):
    with pytest.raises(MachineError, match="too long"):
        new_socket_path(tmp_path / ("d" * 120), "topoalloc.io/nic")


def test_only_dead_sockets_of_ours_are_removed(tmp_path: Path):
    (tmp_path / "topoalloc-notes.sock").write_text("a file, no socket")
    with bind(tmp_path / "topoalloc-old-1.sock"), bind(tmp_path / "other.sock"), bind(tmp_path / "kubelet.sock"):
        removed = remove_stale_sockets(tmp_path)

    assert removed == ("topoalloc-old-1.sock",)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kubelet.sock", "other.sock", "topoalloc-notes.sock"]


def test_a_socket_made_anew_has_another_mark(tmp_path: Path):
    path = tmp_path / "kubelet.sock"
    with bind(path):
        before = mark_of(path)
        path.unlink()
    with bind(path):
        assert mark_of(path) != before


def test_a_plain_file_has_no_mark(tmp_path: Path):
    (tmp_path / "kubelet.sock").write_text("")

    assert mark_of(tmp_path / "kubelet.sock") is None


def waiting(watch: DirectoryWatch) -> threading.Event:
    """Let a thread wait on the watch; set when its wait is over."""
    woken = threading.Event()

    def wait() -> None:
        watch.wait(LONG_S)
        woken.set()

    threading.Thread(target=wait, daemon=True).start()
    return woken


def watched(watch: DirectoryWatch, change: threading.Thread) -> bool:
    """Whether the watch wakes by what the thread does, long before its time is over."""
    watch.wait(0)  # the watch is set by the first wait, so the change cannot come too early
    woken = waiting(watch)
    change.start()
    change.join()
    return woken.wait(LONG_S / 3)


def test_a_new_socket_wakes_the_watch(tmp_path: Path):
    watch = DirectoryWatch(tmp_path)

    assert watched(watch, threading.Thread(target=lambda: bind(tmp_path / "kubelet.sock").close()))
    watch.close()


def test_a_deleted_socket_wakes_the_watch(tmp_path: Path):
    bind(tmp_path / "ours.sock").close()
    watch = DirectoryWatch(tmp_path)

    assert watched(watch, threading.Thread(target=(tmp_path / "ours.sock").unlink))
    watch.close()


def test_a_directory_that_appears_later_is_watched_then(tmp_path: Path):
    directory = tmp_path / "device-plugins"
    watch = DirectoryWatch(directory)
    watch.wait(0)
    directory.mkdir()

    assert watched(watch, threading.Thread(target=(directory / "x").touch))
    watch.close()


def test_a_directory_made_anew_is_watched_again(tmp_path: Path):
    directory = tmp_path / "device-plugins"
    directory.mkdir()
    watch = DirectoryWatch(directory)
    watch.wait(0)
    directory.rmdir()
    watch.wait(LONG_S)
    directory.mkdir()

    assert watched(watch, threading.Thread(target=(directory / "x").touch))
    watch.close()


def test_wake_ends_a_wait_even_before_it_began(tmp_path: Path):
    watch = DirectoryWatch(tmp_path)
    watch.wait(0)
    watch.wake()

    assert waiting(watch).wait(LONG_S / 3)
    watch.close()


def test_wake_ends_a_wait_that_has_begun(tmp_path: Path):
    watch = DirectoryWatch(tmp_path)

    assert watched(watch, threading.Thread(target=watch.wake))
    watch.close()


def test_a_wake_up_that_comes_after_the_watch_was_closed_does_nothing(tmp_path: Path) -> None:
    watch = DirectoryWatch(tmp_path)
    watch.close()
    watch.wake()

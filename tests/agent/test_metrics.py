"""The metrics endpoint: Prometheus' text for who asks properly, and nothing lost by who does not."""

from __future__ import annotations

import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.made_shares import NAME, RunDir, Slot
from topoalloc.agent.metrics_server import REQUEST_BYTES_MAX, MetricsServer
from topoalloc.agent.metrics_text import CONTENT_TYPE, metrics_text
from topoalloc.agent.share_board import ShareBoard
from topoalloc.agent.share_files import read_shares
from topoalloc.sharing.share_owners import ShareOwner

_LINE = re.compile(r'[a-z_]+(\{([a-z]+="([^"\\\n]|\\["\\n])*",?)*\})? -?[0-9][0-9.e+-]*')


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    stop = threading.Event()
    made = MetricsServer("127.0.0.1", 0, lambda: "a 1\n", CONTENT_TYPE)
    thread = threading.Thread(target=made.run, args=(stop,))
    thread.start()
    yield made
    stop.set()
    thread.join()


def get(server: MetricsServer, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=20) as answer:
        return bytes(answer.read())


def test_metrics_are_answered(server: MetricsServer):
    assert get(server, "/metrics") == b"a 1\n"
    assert get(server, "/metrics?x=1") == b"a 1\n"


def test_anything_else_is_not_found(server: MetricsServer):
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(server, "/")
    with refused.value:
        assert refused.value.code == 404


@pytest.mark.parametrize("noise", [b"", b"\0" * 100, b"x" * (2 * REQUEST_BYTES_MAX), b"GET /metrics", b"\r\n\r\n"])
def test_whoever_asks_badly_or_not_at_all_leaves_it_to_the_others(server: MetricsServer, noise: bytes):
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(noise)
        assert get(server, "/metrics") == b"a 1\n"


def test_every_line_is_of_the_format_and_labels_are_escaped(tmp_path: Path):
    run_dir = RunDir(tmp_path)
    slot = Slot(run_dir.make(), 0, explicit=5, implicit=6, gpu_time_ns=2_500_000_000, refused=3)
    board = ShareBoard(owners={NAME: ShareOwner("ns", 'p"\\\n', "app")}, samples=read_shares(str(tmp_path), [NAME]))
    slot.end()

    lines = metrics_text(board).splitlines()

    assert all(line.startswith("# ") or _LINE.fullmatch(line) for line in lines)
    assert len({line for line in lines if line.startswith("# TYPE")}) * 2 == sum(line[0] == "#" for line in lines)
    labels = f'share="{NAME}",gpu="0000:3b:00.0",namespace="ns",pod="p\\"\\\\\\n",container="app"'
    assert f"topoalloc_share_memory_limit_bytes{{{labels}}} {8 * 1024**3}" in lines
    assert f"topoalloc_share_gpu_time_seconds_total{{{labels}}} 2.5" in lines


def test_a_share_that_cannot_be_read_says_so(tmp_path: Path):
    RunDir(tmp_path).make(share=b"", usage=b"")

    text = metrics_text(ShareBoard(samples=read_shares(str(tmp_path), [NAME])))

    assert f'topoalloc_share_usage_readable{{share="{NAME}",gpu="0000:3b:00.0"}} 0\n' in text
    assert "topoalloc_share_processes{" not in text

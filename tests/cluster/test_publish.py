"""`topoalloc publish` as a process: one clear line for what is wrong, status 0 after SIGTERM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.fake_api import LIMIT_S, FakeApi
from tests.cluster.published import MACHINE, fake_api
from tests.test_budget import rss_kib

RSS_KIB_MAX = 96 * 1024  # the memory request of the container, deploy/kustomize/base/daemonset.yaml
COMMAND = [sys.executable, "-m", "topoalloc", "publish", "--machine", MACHINE, "--gpu-memory", "80GiB"]


def environment(**more: str) -> dict[str, str]:
    outside = {key: value for key, value in os.environ.items() if not key.startswith("KUBERNETES_")}
    outside.pop("NODE_NAME", None)
    return outside | more


def failing(*arguments: str, **variables: str) -> tuple[int, str]:
    done = subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        env=environment(**variables),
        timeout=LIMIT_S,
        check=False,
    )
    return done.returncode, done.stderr


def ended(api: FakeApi, process: subprocess.Popen[bytes], signum: int = signal.SIGTERM) -> int:
    assert api.wait_for(api.picture)
    process.send_signal(signum)
    return process.wait(LIMIT_S)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_end_gives_status_0(tmp_path: Path, signum: signal.Signals):
    with fake_api(tmp_path) as (api, config):
        process = subprocess.Popen([*COMMAND, "--node", "n1", "--kubeconfig", str(config)], env=environment())

        assert ended(api, process, signum) == 0


def test_the_nodes_name_may_come_from_the_environment(tmp_path: Path):
    with fake_api(tmp_path) as (api, config):
        process = subprocess.Popen([*COMMAND, "--kubeconfig", str(config)], env=environment(NODE_NAME="n1"))

        assert ended(api, process) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give --node NAME or set NODE_NAME"),
        (("--node", "Not A Node"), "no node name"),
        (("--node", "n1"), "not in a pod (give --kubeconfig FILE)"),
        (("--node", "n1", "--kubeconfig", "/nowhere/at/all"), "/nowhere/at/all: no kubeconfig"),
        (("--node", "n1", "--kubeconfig", "pyproject.toml"), "pyproject.toml: no kubeconfig"),
        (("--node", "n1", "--kubeconfig", "/dev/null"), "/dev/null: no kubeconfig"),
        (("--node", "n1", "--config", "/nowhere"), "/nowhere: cannot be read"),
        (("--node", "n1", "--gpu-memory", "much"), "--gpu-memory"),
    ],
    ids=str,
)
def test_what_is_given_wrongly_is_said_in_one_line(arguments: tuple[str, ...], words: str):
    status, said = failing(*arguments)

    assert status == 2
    assert words in said
    assert said.startswith("topoalloc publish: ")
    assert len(said.splitlines()) == 1


def test_without_the_kubernetes_package_one_line_names_the_extra(tmp_path: Path):
    (tmp_path / "kubernetes").mkdir()
    (tmp_path / "kubernetes" / "__init__.py").write_text("raise ImportError('none here')\n")
    path = f"{tmp_path}{os.pathsep}{Path.cwd()}"

    status, said = failing("--node", "n1", "--kubeconfig", "/dev/null", PYTHONPATH=path)

    assert status == 1
    assert "topoalloc[cluster]" in said
    assert len(said.splitlines()) == 1


def test_the_agent_loads_nothing_of_what_talks_to_the_api_server():
    code = "import sys, topoalloc.cli.agent; print([n for n in sys.modules if n.startswith('topoalloc.cluster')])"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert loaded.strip() == "[]"


def test_a_publisher_stays_below_what_its_container_asks_for(tmp_path: Path):
    with fake_api(tmp_path) as (api, config):
        process = subprocess.Popen([*COMMAND, "--node", "n1", "--kubeconfig", str(config)], env=environment())
        assert api.wait_for(lambda: api.picture() and api.watches)
        resident_kib = rss_kib(process.pid)
        assert ended(api, process) == 0

    assert resident_kib <= RSS_KIB_MAX

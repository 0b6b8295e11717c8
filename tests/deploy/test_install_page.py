"""docs/INSTALL.md against the manifests and the code it speaks of."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy.manifests import KUSTOMIZE
from topoalloc.agent.config import Config

PAGE = (Path(__file__).parents[2] / "docs" / "INSTALL.md").read_text(encoding="utf-8")


def console_commands() -> list[str]:
    """Every command of the page's console blocks, with its continuation lines."""
    commands: list[str] = []
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                commands.append(line[2:])
            elif line.startswith("> "):
                commands[-1] += "\n" + line[2:]
    return commands


def test_every_command_of_the_page_is_shell() -> None:
    for command in console_commands():
        subprocess.run(["bash", "-n"], input=command, text=True, check=True)


@pytest.mark.parametrize("overlay", ["nvidia-runtime", "recorded-machine"])
def test_the_kustomization_of_the_page_names_the_image_everywhere(overlay: str, tmp_path: Path) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    shutil.copytree(KUSTOMIZE, tmp_path / "deploy" / "kustomize", ignore=shutil.ignore_patterns("site"))
    (write,) = (command for command in console_commands() if command.startswith("cat > "))
    assignments = f"IMAGE=example.com:5000/mirror/topoalloc:9.8.7\nOVERLAY={overlay}\nmkdir -p deploy/kustomize/site\n"
    subprocess.run(["bash", "-eu"], input=assignments + write + "\n", text=True, check=True, cwd=tmp_path)

    site = tmp_path / "deploy" / "kustomize" / "site"
    done = subprocess.run([kubectl, "kustomize", str(site)], check=True, capture_output=True, text=True)

    (daemon_set,) = (item for item in yaml.safe_load_all(done.stdout) if item["kind"] == "DaemonSet")
    images = {item["image"] for item in daemon_set["spec"]["template"]["spec"]["containers"]}
    assert images == {"example.com:5000/mirror/topoalloc:9.8.7"}


def test_uninstalling_takes_off_every_label_and_annotation_that_is_written() -> None:
    node_labels = pytest.importorskip("topoalloc.cluster.node_labels")
    node_patch = pytest.importorskip("topoalloc.cluster.node_patch")
    words = {word for command in console_commands() for word in command.split() if word.endswith("-")}

    assert {word.removesuffix("-") for word in words if "/" in word} == {
        *node_labels.OWN_LABELS,
        *node_patch.OWN_ANNOTATIONS,
    }


def test_what_stays_on_a_node_after_uninstalling_is_named() -> None:
    uninstall = PAGE.partition("## Uninstall")[2]

    assert Config().run_dir in uninstall
    assert Config().lib_dir in uninstall

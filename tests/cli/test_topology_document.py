"""What docs/TOPOLOGY.md says, run and compared."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from topoalloc.cli.main import main

ROOT = Path(__file__).parent.parent.parent
DOCUMENT = (ROOT / "docs" / "TOPOLOGY.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^topoalloc (.+?)(?: > \S+)?$", DOCUMENT, re.MULTILINE)
PICTURE = ROOT / "docs" / "img" / "dgx-a100.svg"
PICTURE_COMMAND = "show --from tests/machines/dgx-a100-epyc-nps4-10nic.topo-m.txt --gpu-memory 40GiB --as svg"


@pytest.fixture
def beside_the_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder like the repository's, in which commands may write."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("beside_the_machines")
def test_every_command_of_the_document_runs(capsys: pytest.CaptureFixture[str]) -> None:
    statuses = {command: main(shlex.split(command)) for command in COMMANDS}

    assert len(statuses) >= 12
    assert set(statuses.values()) == {0}


@pytest.mark.usefixtures("beside_the_machines")
def test_the_document_names_every_key_that_the_json_has(capsys: pytest.CaptureFixture[str]) -> None:
    main(["show", "--from", "synthetic: numa:2 gpu:2 nic:2 nv:pairs=4", "--as", "json"])
    shown = json.loads(capsys.readouterr().out)
    schema = DOCUMENT.partition("## The JSON schema")[2].partition("\n## ")[0]
    named = set(re.findall(r"`\.?(\w+)(?:\[\])?`", schema))
    inner = {
        key
        for value in shown.values()
        if isinstance(value, list)
        for item in value
        if isinstance(item, dict)
        for key in item
    }

    assert (set(shown) | inner | {"class", "nics"}) - named == set()


@pytest.mark.usefixtures("beside_the_machines")
def test_the_picture_of_the_documents_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    main(shlex.split(PICTURE_COMMAND))

    assert capsys.readouterr().out == PICTURE.read_text(encoding="utf-8"), f"run: topoalloc {PICTURE_COMMAND}"

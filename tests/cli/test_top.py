"""`topoalloc top`: what it shows of shares, and one clear line where there is nothing to read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.made_shares import NAME, OTHER, RunDir, Slot
from tests.sharing.made_usage import GIB, share_bytes
from topoalloc.agent.share_files import OWNERS, write_list, write_turn
from topoalloc.cli.main import main
from topoalloc.cli.usage_table import SharesSeen, usage_json, usage_table
from topoalloc.sharing.share_file import ShareLimits, ShareRefusal
from topoalloc.sharing.share_owners import ShareOwner
from topoalloc.sharing.share_sample import ShareSample, UsageRate
from topoalloc.sharing.told_files import Turn
from topoalloc.sharing.usage import ProcessUsage, Usage, UsageRefusal

LIMITS = ShareLimits(1, "GPU-8e", 3000, 3000, 8 * GIB, 0, True)
USAGE = Usage((ProcessUsage(0, 7, 2 * GIB, GIB // 2, 0, 0, True),), 5, 6, 7, 8, 0)
SEEN = SharesSeen(
    (
        ShareSample(NAME, 1, LIMITS, USAGE, 0),
        ShareSample(OTHER, 2, ShareLimits(1, None, 2000, 9000, None, 0, True), UsageRefusal("cut short"), 0),
    ),
    {NAME: UsageRate(2987, 0.25)},
    {NAME: ShareOwner("team", "train-0", "main")},
    {NAME: Turn(36_750, 49_250)},
)


def top(*arguments: str) -> int:
    return main(["top", "--once", "--interval", "0.1", *arguments])


def test_the_table_says_used_and_granted_of_every_share():
    assert usage_table(SEEN) == (
        "GPU           CONTAINER          MEMORY    LIMIT  GPU%  LIMIT%  WAIT%     TURN  PROCS  REFUSED\n"
        "0000:3b:00.0  team/train-0/main  2560MiB  8192MiB  29.9      30     25  37-86ms      1        8\n"
        "0000:3b:00.0  0000:3b:00.0-c50         ?        -     ?   20-90      ?        -      ?        ?\n"
        "0000:3b:00.0-c50: cut short\n"
    ).replace("MEMORY    LIMIT", " MEMORY    LIMIT")


def test_json_has_bytes_percent_and_reasons():
    first, second = json.loads(usage_json(SEEN))["shares"]

    assert first == {
        "share": NAME,
        "owner": {"namespace": "team", "pod": "train-0", "container": "main"},
        "gpu": "0000:3b:00.0",
        "limits": {"cores_percent": 30.0, "cores_max_percent": 30.0, "memory_bytes": 8 * GIB},
        "usage": {
            "explicit_bytes": 2 * GIB, "implicit_bytes": GIB // 2, "cores_percent": 29.87, "waiting_percent": 25.0,
            "gpu_time_ns": 5, "waited_ns": 6, "refused": 8, "processes": 1,
        },
        "turn": {"from_us": 36_750, "length_us": 49_250, "period_us": 100_000},
    }  # fmt: skip
    assert second["unreadable"] == "cut short"
    assert second["limits"]["memory_bytes"] is None
    assert not {"usage", "turn"} & second.keys()


def test_what_a_share_does_is_unknown_until_it_was_there_for_an_interval():
    seen = SharesSeen((ShareSample(NAME, 1, LIMITS, USAGE, 0),), {}, {})

    assert usage_table(seen).splitlines()[1].split() == [
        *("0000:3b:00.0", NAME, "2560MiB", "8192MiB", "?", "30", "?", "-", "1", "8"),
    ]
    usage = json.loads(usage_json(seen))["shares"][0]["usage"]
    assert (usage["cores_percent"], usage["waiting_percent"]) == (None, None)


def test_a_share_of_which_nothing_can_be_read_is_a_line_with_the_reason():
    seen = SharesSeen((ShareSample(NAME, 1, ShareRefusal("not ASCII"), UsageRefusal("gone"), 0),), {}, {})

    assert f"{NAME}: not ASCII; gone\n" in usage_table(seen)
    assert json.loads(usage_json(seen))["shares"][0]["unreadable"] == "not ASCII; gone"


def test_a_node_is_read_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run_dir = RunDir(tmp_path)
    slot = Slot(run_dir.make(NAME, share_bytes()), 3, explicit=GIB)
    write_list(str(tmp_path), OWNERS, f"{NAME} ns p c -\nnonsense\n../x ns p c -\n")
    (run_dir.leaf(NAME) / "turn").touch()
    write_turn(str(tmp_path), NAME, Turn(0, 36_750))

    assert top("--run-dir", str(tmp_path)) == 0
    slot.end()

    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["0000:3b:00.0", "ns/p/c", "1024MiB", "8192MiB", "0.0", "30", "0", "0-37ms", "1", "0"]
    assert len(lines) == 2


def test_a_node_without_shares_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert top("--run-dir", str(tmp_path)) == 0
    assert capsys.readouterr().out == "no container has a share of a GPU\n"
    assert top("--run-dir", str(tmp_path), "--as", "json") == 0
    assert json.loads(capsys.readouterr().out) == {"shares": []}


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("absent", "does not exist"),
        ("file", "/file is no directory; give the agent's run_dir"),
        ("file/below", "is no directory"),
        ("with a file", "/with a file/shares is no directory; give the agent's run_dir"),
        ("link to nothing", "is a link that leads to no directory; give the agent's run_dir"),
        ("link to itself", "is a link that leads to no directory"),
        ("a\0b", ""),
    ],
)
def test_a_bad_run_dir_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], path: str, words: str):
    (tmp_path / "file").write_text("")
    (tmp_path / "with a file").mkdir()
    (tmp_path / "with a file" / "shares").write_text("")
    (tmp_path / "link to nothing").symlink_to(tmp_path / "absent")
    (tmp_path / "link to itself").symlink_to("link to itself")

    assert top("--run-dir", f"{tmp_path}/{path}") == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert words in captured.err


def test_a_link_is_not_followed_and_what_to_give_in_its_place_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")

    assert top("--run-dir", f"{tmp_path}/link") == 2

    said = capsys.readouterr().err
    assert said == (
        f"topoalloc top: {tmp_path}/link is a link, and none is followed; give the directory itself: "
        f"--run-dir {tmp_path}/real\n"
    )
    assert top("--run-dir", said.split("--run-dir ")[1].rstrip()) == 0


def test_a_run_dir_that_may_not_be_read_says_who_may(tmp_path: Path):
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    (tmp_path / "run").mkdir(mode=0o700)
    code = (  # the interpreter's own files may be root's alone, so all that is needed is imported before
        "import os, sys; from topoalloc.cli.main import main; main(['top', '--once', '--run-dir', '/absent'])\n"
        "os.setgid(65534); os.setuid(65534); sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "top", "--once", "--run-dir", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr.splitlines()[1:] == [f"topoalloc top: {tmp_path}/run may not be read; run this as root"]


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "1e9"])
def test_an_interval_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], interval: str):
    assert main(["top", "--once", "--run-dir", str(tmp_path), "--interval", interval]) == 2
    assert "--interval" in capsys.readouterr().err

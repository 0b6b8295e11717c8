"""The tree of shares on a node: made from the ledger alone, whatever lay there before."""

from __future__ import annotations

import os
import resource
import socket
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sharing.enforcements import NAMES, enforcement
from topoalloc.agent.private_files import REMOVED_MAX, FileFault
from topoalloc.agent.share_directories import ShareDirectories
from topoalloc.sharing.enforcement import Enforcement, Upkeep
from topoalloc.sharing.share import Share, ShareRules

GIB = 1024**3
SHARE = Share("0000:3b:00.0-c07", 0, "GPU-8e1c", 30, 8 * GIB)
BUILTIN = enforcement("builtin", ShareRules(90))


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


class Sockets:
    """An observer that serves a socket in every directory, as the agent's own do."""

    def __init__(self) -> None:
        self.open: dict[str, int] = {}
        self.told: list[str] = []
        self.fault: OSError | None = None

    def opened(self, share: Share, directory_fd: int) -> None:
        if self.fault is not None:
            raise self.fault
        self.open[share.name] = os.fstat(directory_fd).st_ino
        self.told.append(f"+{share.name}")
        path = f"/proc/self/fd/{directory_fd}/agent.sock"
        if not os.path.lexists(path):
            with socket.socket(socket.AF_UNIX) as one:
                one.bind(path)

    def closed(self, name: str) -> None:
        self.open.pop(name, None)
        self.told.append(f"-{name}")


@contextmanager
def directories(
    run_dir: Path, shim: Enforcement = BUILTIN, observers: tuple[Sockets, ...] = ()
) -> Iterator[ShareDirectories]:
    made = ShareDirectories(run_dir, shim, observers)
    try:
        yield made
    finally:
        made.close()


def tree(run_dir: Path) -> dict[str, dict[str, tuple[int, bytes | None]]]:
    """What lies in each share's directory: mode and content, sockets left out; a link is a fault."""
    found: dict[str, dict[str, tuple[int, bytes | None]]] = {}
    for leaf in sorted((run_dir / "shares").iterdir()):
        assert leaf.is_dir()
        assert not leaf.is_symlink()
        assert stat.S_IMODE(leaf.stat().st_mode) == 0o755
        found[leaf.name] = {}
        for path in sorted(leaf.iterdir()):
            status = path.lstat()
            assert not stat.S_ISLNK(status.st_mode)
            if not stat.S_ISSOCK(status.st_mode):
                content = path.read_bytes() if path.is_file() else None
                found[leaf.name][path.name] = (stat.S_IMODE(status.st_mode), content)
    return found


def without_count(content: bytes | None) -> bytes | None:
    return (
        content if content is None else b"\n".join(x for x in content.split(b"\n") if not x.startswith(b"generation "))
    )


def wanted_tree(shim: Enforcement, wanted: Mapping[str, Share]) -> dict[str, dict[str, tuple[int, bytes | None]]]:
    return {
        name: {
            file.name: (
                file.mode,
                without_count(None if file.content is None else file.content.ljust(file.size_bytes or 0, b"\0")),
            )
            for file in shim.enforced(share, "").files
        }
        for name, share in sorted(wanted.items())
    }


def uncounted(found: dict[str, dict[str, tuple[int, bytes | None]]]) -> dict[str, dict[str, tuple[int, bytes | None]]]:
    return {
        leaf: {name: (mode, without_count(content)) for name, (mode, content) in files.items()}
        for leaf, files in found.items()
    }


def test_a_share_has_the_modes_that_keep_the_nodes_users_out_and_let_the_container_in(tmp_path: Path) -> None:
    with directories(tmp_path / "run") as shares:
        shares.put(SHARE, fresh=True)

    modes = {
        str(path.relative_to(tmp_path / "run")): stat.S_IMODE(path.lstat().st_mode)
        for path in [tmp_path / "run", *(tmp_path / "run").rglob("*")]
    }
    leaf = f"shares/{SHARE.name}"
    assert modes == {
        ".": 0o750,
        "shares": 0o750,
        leaf: 0o755,
        f"{leaf}/share": 0o444,
        f"{leaf}/usage": 0o666,
        f"{leaf}/pace": 0o644,
        f"{leaf}/neighbours": 0o644,
        f"{leaf}/turn": 0o644,
        f"{leaf}/ld.so.preload": 0o444,
        f"{leaf}/library": 0o444,
    }


def test_a_new_grant_shares_no_file_with_the_container_before_it(tmp_path: Path) -> None:
    with directories(tmp_path) as shares:
        shares.put(SHARE, fresh=True)
        leaf = tmp_path / "shares" / SHARE.name
        with (leaf / "usage").open("rb") as old:
            shares.put(SHARE, fresh=True)

            assert os.fstat(old.fileno()).st_ino != (leaf / "usage").stat().st_ino
            assert os.fstat(old.fileno()).st_nlink == 0
    assert [path.name for path in (tmp_path / "shares").iterdir()] == [SHARE.name]


def test_changed_limits_change_the_file_and_nothing_that_the_container_writes(tmp_path: Path) -> None:
    with directories(tmp_path) as shares:
        shares.put(Share(SHARE.name, 0, None, 30, 0), fresh=True)
        leaf = tmp_path / "shares" / SHARE.name
        (leaf / "usage").write_bytes(b"written by the container")
        before = leaf.stat().st_ino

        shares.put(Share(SHARE.name, 0, None, 30, GIB), fresh=False)

        assert leaf.stat().st_ino == before
        assert (leaf / "usage").read_bytes() == b"written by the container"
        text = (leaf / "share").read_text()
        assert "generation 2\n" in text
        assert f"memory {GIB}\n" in text


def test_after_kill_9_the_directories_of_running_containers_stay_the_same(tmp_path: Path) -> None:
    shares = ShareDirectories(tmp_path, BUILTIN)
    shares.put(SHARE, fresh=True)
    leaf = tmp_path / "shares" / SHARE.name
    (leaf / "usage").write_bytes(b"written by the container")
    (tmp_path / "shares" / f".{SHARE.name}.fresh").mkdir()  # it was making another one
    (leaf / ".share.new").write_text("half wri")
    before = (leaf.stat().st_ino, (leaf / "share").read_bytes(), (leaf / "usage").stat().st_ino)

    with directories(tmp_path) as again:
        again.settle({SHARE.name: SHARE}, remove_others=True)

    assert (leaf.stat().st_ino, (leaf / "share").read_bytes(), (leaf / "usage").stat().st_ino) == before
    names = ["ld.so.preload", "library", "neighbours", "pace", "share", "turn", "usage"]
    assert sorted(path.name for path in leaf.iterdir()) == names
    assert names_in(tmp_path / "shares") == [SHARE.name]
    shares.close()


def test_another_enforcement_takes_its_predecessors_files_from_running_containers(tmp_path: Path) -> None:
    """Hence docs/CONFIGURATION.md: drain a node before `shim` is changed there."""
    with directories(tmp_path) as shares:
        shares.put(SHARE, fresh=True)
    with directories(tmp_path, enforcement("hami-core")) as shares:
        shares.settle({SHARE.name: SHARE}, remove_others=True)

    assert names_in(tmp_path / "shares" / SHARE.name) == ["ld.so.preload", "lock", "share.cache"]


def test_after_a_reboot_the_directories_are_there_again(tmp_path: Path) -> None:
    with directories(tmp_path / "run") as shares:
        shares.settle({SHARE.name: SHARE}, remove_others=False)

    assert uncounted(tree(tmp_path / "run")) == wanted_tree(BUILTIN, {SHARE.name: SHARE})


def test_what_a_container_runtime_made_of_missing_mounts_is_put_right(tmp_path: Path) -> None:
    leaf = tmp_path / "shares" / SHARE.name
    for name in ("usage", "ld.so.preload", "share"):
        (leaf / name).mkdir(parents=True)
    for path in (tmp_path, tmp_path / "shares"):
        path.chmod(0o755)

    with directories(tmp_path) as shares:
        shares.settle({SHARE.name: SHARE}, remove_others=False)

    assert uncounted(tree(tmp_path)) == wanted_tree(BUILTIN, {SHARE.name: SHARE})


def test_a_directory_that_somebody_removed_is_made_again_at_the_next_round(tmp_path: Path) -> None:
    with directories(tmp_path) as shares:
        shares.put(SHARE, fresh=True)
        (tmp_path / "shares" / SHARE.name).rename(tmp_path / "taken away")

        shares.settle({SHARE.name: SHARE}, remove_others=False)

        assert uncounted(tree(tmp_path)) == wanted_tree(BUILTIN, {SHARE.name: SHARE})


def test_a_file_that_somebody_removed_is_made_again_when_the_agent_starts(tmp_path: Path) -> None:
    with directories(tmp_path) as shares:
        shares.put(SHARE, fresh=True)
        (tmp_path / "shares" / SHARE.name / "share").unlink()
        shares.settle({SHARE.name: SHARE}, remove_others=True)
        assert "share" not in names_in(tmp_path / "shares" / SHARE.name)
    with directories(tmp_path) as shares:
        shares.settle({SHARE.name: SHARE}, remove_others=False)
        assert "share" in names_in(tmp_path / "shares" / SHARE.name)


def test_what_nobody_holds_goes_only_when_that_is_sure(tmp_path: Path) -> None:
    with directories(tmp_path) as shares:
        shares.put(SHARE, fresh=True)

        shares.settle({}, remove_others=False)
        assert names_in(tmp_path / "shares") == [SHARE.name]
        shares.settle({}, remove_others=True)
        assert names_in(tmp_path / "shares") == []


def test_links_planted_among_the_shares_lead_nowhere(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.mkdir()
    (canary / "alive").touch()
    run = tmp_path / "run"
    with directories(run) as shares:
        (run / "shares" / SHARE.name).symlink_to(canary)
        (run / "shares" / f".{SHARE.name}.fresh").symlink_to(canary)
        (run / "shares" / ".deep-1").symlink_to(canary)
        (run / "shares" / "stranger").symlink_to(canary)
        shares.put(SHARE, fresh=False)
        leaf = run / "shares" / SHARE.name
        assert not leaf.is_symlink()
        (leaf / "planted").symlink_to(canary)
        (leaf / "share").unlink()
        (leaf / "share").symlink_to(canary / "alive")

        shares.put(SHARE, fresh=False)
        shares.settle({}, remove_others=True)

    assert names_in(run / "shares") == []
    assert names_in(canary) == ["alive"]
    assert (canary / "alive").read_bytes() == b""


def test_a_full_disk_is_one_clear_line_and_leaves_nothing_half_made(tmp_path: Path) -> None:
    with directories(tmp_path) as shares:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        try:
            with pytest.raises(FileFault) as fault:
                shares.put(SHARE, fresh=True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert str(fault.value) == f"{tmp_path}/shares/{SHARE.name}: File too large"
        assert not (tmp_path / "shares" / SHARE.name).exists()

        shares.put(SHARE, fresh=True)

    assert uncounted(tree(tmp_path)) == wanted_tree(BUILTIN, {SHARE.name: SHARE})


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "UPPER", "x" * 64])
def test_a_name_that_is_none_is_refused_and_nothing_is_made(tmp_path: Path, name: str) -> None:
    with directories(tmp_path / "run") as shares, pytest.raises(FileFault):
        shares.put(Share(name, 0, None, 1, 0), fresh=True)

    assert names_in(tmp_path / "run" / "shares") == []


def test_a_run_directory_behind_a_link_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "real")

    with pytest.raises(FileFault):
        ShareDirectories(tmp_path / "run", BUILTIN)

    assert names_in(tmp_path / "real") == []


def test_a_socket_is_served_before_the_directory_has_its_name_and_again_after_a_restart(tmp_path: Path) -> None:
    sockets = Sockets()
    with directories(tmp_path, observers=(sockets,)) as shares:
        shares.put(SHARE, fresh=True)
        assert sockets.open[SHARE.name] == (tmp_path / "shares" / SHARE.name).stat().st_ino
        shares.put(SHARE, fresh=False)  # changed limits leave the socket where it is
        assert (tmp_path / "shares" / SHARE.name / "agent.sock").is_socket()
    assert sockets.open == {}

    again = Sockets()
    with directories(tmp_path, observers=(again,)) as shares:
        shares.settle({SHARE.name: SHARE}, remove_others=True)
        assert list(again.open) == [SHARE.name]
        shares.settle({}, remove_others=True)
        assert again.open == {}


def test_a_share_whose_socket_cannot_be_served_is_not_given(tmp_path: Path) -> None:
    sockets = Sockets()
    sockets.fault = OSError(24, "Too many open files")
    with directories(tmp_path, observers=(sockets,)) as shares:
        with pytest.raises(FileFault, match="Too many open files"):
            shares.put(SHARE, fresh=True)

        assert not (tmp_path / "shares" / SHARE.name).exists()


def test_a_fault_in_the_background_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sockets = Sockets()
    sockets.fault = OSError(24, "Too many open files")
    with directories(tmp_path, observers=(sockets,)) as shares:
        for _ in range(3):
            shares.settle({SHARE.name: SHARE}, remove_others=True)

    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}/shares/{SHARE.name}: Too many open files"
    ]


def test_a_container_that_fills_its_directory_is_removed_over_several_rounds(tmp_path: Path) -> None:
    with directories(tmp_path, enforcement("hami-core")) as shares:
        shares.put(SHARE, fresh=True)
        lock = tmp_path / "shares" / SHARE.name / "lock"
        for number in range(REMOVED_MAX + 10):
            (lock / str(number)).touch()

        shares.settle({}, remove_others=True)
        assert names_in(tmp_path / "shares") == [SHARE.name]
        shares.settle({}, remove_others=True)
        assert names_in(tmp_path / "shares") == []


def test_what_a_container_left_behind_keeps_the_next_one_from_nothing(tmp_path: Path) -> None:
    with directories(tmp_path, enforcement("hami-core")) as shares:
        for _ in range(3):
            shares.put(SHARE, fresh=True)
            lock = tmp_path / "shares" / SHARE.name / "lock"
            lock.joinpath(*["d"] * 40).mkdir(parents=True)
            for number in range(REMOVED_MAX + 10):
                (lock / str(number)).touch()
        shares.put(SHARE, fresh=True)
        assert names_in(tmp_path / "shares" / SHARE.name / "lock") == []

        for _ in range(20):
            shares.settle({SHARE.name: SHARE}, remove_others=True)
        assert names_in(tmp_path / "shares") == [SHARE.name]


names = st.sampled_from([f"0000:3b:00.0-c{unit:02d}" for unit in range(6)])
shares_held = st.builds(
    Share,
    name=names,
    position=st.just(0),
    gpu_uuid=st.sampled_from([None, "GPU-8e1c"]),
    cores=st.integers(1, 99),
    memory_bytes=st.sampled_from([None, 0, GIB]),
    pod_uid=st.sampled_from(["", "uid"]),
)
ledgers = st.lists(shares_held, max_size=6, unique_by=lambda share: share.name).map(
    lambda held: {share.name: share for share in held}
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("settle"), ledgers, st.booleans()),
        st.tuples(st.just("grant"), shares_held, st.booleans()),
        st.tuples(st.just("restart"), st.none(), st.booleans()),
    ),
    max_size=12,
)


@pytest.mark.parametrize("name", NAMES)
@given(steps=steps, last=ledgers)
def test_after_any_history_the_tree_is_that_of_the_ledger(
    name: str, steps: list[tuple[str, object, bool]], last: dict[str, Share]
) -> None:
    shim = enforcement(name)  # not elastic: a pace that is there is left as it is
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        shares = ShareDirectories(run, shim)
        for what, value, flag in steps:
            if what == "settle":
                assert isinstance(value, dict)
                shares.settle(value, remove_others=flag)
                assert set(value) <= {path.name for path in (run / "shares").iterdir()}
            elif what == "grant":
                assert isinstance(value, Share)
                shares.put(value, fresh=flag)
            else:
                if not flag:
                    shares.close()
                shares = ShareDirectories(run, shim)
        shares.settle(last, remove_others=True)

        assert uncounted(tree(run)) == wanted_tree(shim, last)
        shares.close()


def test_what_is_left_alone_is_what_is_written_in_place_and_which_library_the_container_was_given() -> None:
    left = {
        name: [f.name for f in enforcement(name).enforced(SHARE, "").files if f.upkeep is Upkeep.LEFT] for name in NAMES
    }

    assert left == {
        "builtin": ["usage", "library", "neighbours", "turn"],
        "vcuda": ["pids.config"],
        "hami-core": ["share.cache", "lock"],
    }

"""What enforces shares, by configuration and by what the installation brought; never silently nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.handmade import machine
from topoalloc.agent import chosen_shim
from topoalloc.agent.chosen_shim import NOT_ENFORCED, chosen_enforcer
from topoalloc.agent.config import Config
from topoalloc.agent.enforcer import Enforcer
from topoalloc.agent.private_files import FileFault
from topoalloc.errors import InputError
from topoalloc.sharing.inventory import Inventory, inventory_of
from topoalloc.sharing.settings import SharingSettings
from topoalloc.topology.machine import Machine
from topoalloc.topology.pci_classes import AMD


def served(of: Machine) -> Inventory:
    inventory = inventory_of(of, SharingSettings())
    assert isinstance(inventory, Inventory)
    return inventory


NODE = served(machine())
AMD_NODE = served(replace(machine(), gpus=tuple(replace(gpu, vendor=AMD) for gpu in machine().gpus)))
MIXED_NODE = served(
    replace(machine(), gpus=(replace(machine().gpus[0], vendor=AMD), *machine().gpus[1:])),
)


@pytest.fixture(params=[{"libtopoalloc-vcuda.so": b"\x7fELF"}, None], ids=["with library", "without library"])
def brought(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes] | None:
    """What the installation brought."""
    content: dict[str, bytes] | None = request.param
    monkeypatch.setattr(chosen_shim, "packaged_library", lambda: content)
    return content


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(run_dir=str(tmp_path / "run"), lib_dir=str(tmp_path / "lib"), shim_dir=str(tmp_path / "shim"))


def with_shim(config: Config, shim: str) -> Config:
    return Config(**{key: getattr(config, key) for key in ("run_dir", "lib_dir", "shim_dir")}, shim=shim)  # type: ignore[arg-type]


def said_by(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_a_live_node_enforces_where_its_installation_brought_the_library(
    config: Config, brought: dict[str, bytes] | None, caplog: pytest.LogCaptureFixture
) -> None:
    enforcer = chosen_enforcer(config, NODE, live=True)

    assert (enforcer is not None) == (brought is not None)
    told = [text for text in said_by(caplog) if NOT_ENFORCED in text]
    assert ["build it with one" in text for text in told] == ([] if brought else [True])
    if enforcer is not None:
        enforcer.close()


def test_the_builtin_library_is_installed_before_anybody_is_served(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chosen_shim, "packaged_library", lambda: {"libtopoalloc-vcuda.so": b"\x7fELF"})

    enforcer = chosen_enforcer(with_shim(config, "builtin"), NODE, live=False)

    assert isinstance(enforcer, Enforcer)
    assert [path.name for path in Path(config.lib_dir).rglob("*.so")] == ["libtopoalloc-vcuda.so"]
    assert Path(config.run_dir, "shares").is_dir()
    enforcer.close()


def test_the_builtin_shim_without_its_library_is_no_configuration(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chosen_shim, "packaged_library", lambda: None)

    with pytest.raises(InputError, match="built without the library"):
        chosen_enforcer(with_shim(config, "builtin"), NODE, live=True)


def test_nothing_enforced_is_said_once(config: Config, caplog: pytest.LogCaptureFixture) -> None:
    assert chosen_enforcer(with_shim(config, "none"), NODE, live=True) is None
    assert said_by(caplog) == [f"shim: none: {NOT_ENFORCED}"]


def served_metrics(config: Config, shim: str, node: Inventory, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What is said of the metrics."""
    Path(config.shim_dir, "lib64").mkdir(parents=True)
    for file in ("libvgpu.so", "lib64/libcuda.so.1"):
        Path(config.shim_dir, file).touch()
    caplog.set_level("INFO")
    enforcer = chosen_enforcer(msgspec.structs.replace(with_shim(config, shim), metrics="127.0.0.1:1"), node, live=True)
    if enforcer is not None:
        enforcer.close()
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("metrics: ")]


@pytest.mark.parametrize(
    ("shim", "said"), [("none", "nothing is enforced here"), ("vcuda", "another library's"), ("hami-core", "another")]
)
def test_metrics_that_can_have_no_figures_of_shares_are_told_and_no_fault(
    config: Config, shim: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    (line,) = served_metrics(config, shim, NODE, caplog)

    assert said in line
    assert "counters are served" in line
    assert said_by(caplog) == ([f"shim: none: {NOT_ENFORCED}"] if shim == "none" else [])


def test_metrics_of_a_node_without_gpus_have_no_figures_either(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(served_metrics(config, "auto", served(machine(gpus=0)), caplog)) == 1
    assert said_by(caplog) == []


def test_metrics_with_our_own_library_need_no_word(
    config: Config, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(chosen_shim, "packaged_library", lambda: {"libtopoalloc-vcuda.so": b"\x7fELF"})

    assert served_metrics(config, "builtin", NODE, caplog) == []


@pytest.mark.parametrize("name", ["auto", "builtin", "none"])
def test_a_recorded_machine_enforces_only_where_that_is_asked_for(
    config: Config, brought: dict[str, bytes] | None, name: str
) -> None:
    if name == "builtin" and brought is None:
        return
    enforcer = chosen_enforcer(with_shim(config, name), NODE, live=False)

    assert (enforcer is not None) == (name == "builtin")
    assert Path(config.run_dir).exists() == (name == "builtin")
    if enforcer is not None:
        enforcer.close()


def test_gpus_for_which_there_is_no_shim_are_told(
    config: Config, brought: dict[str, bytes] | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert chosen_enforcer(config, AMD_NODE, live=True) is None
    assert "AMD" in said_by(caplog)[0]


@pytest.mark.parametrize("name", ["builtin", "vcuda", "hami-core"])
@pytest.mark.parametrize("live", [True, False])
def test_a_shim_named_for_gpus_that_none_can_limit_is_no_configuration(
    config: Config, brought: dict[str, bytes] | None, name: str, live: bool
) -> None:
    with pytest.raises(InputError, match=f"shim: {name}: all GPUs here are AMD's.*set shim: none"):
        chosen_enforcer(with_shim(config, name), AMD_NODE, live=live)

    assert not Path(config.run_dir).exists()
    assert not Path(config.lib_dir).exists()


@pytest.mark.parametrize("name", ["auto", "builtin"])
def test_one_gpu_that_can_be_limited_is_enough_for_a_shim_and_the_others_are_told(
    config: Config, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(chosen_shim, "packaged_library", lambda: {"libtopoalloc-vcuda.so": b"\x7fELF"})

    enforcer = chosen_enforcer(with_shim(config, name), MIXED_NODE, live=True)

    assert isinstance(enforcer, Enforcer)
    assert said_by(caplog) == ["shim: builtin: it limits no share of the AMD GPUs that are here beside others"]
    enforcer.close()


def test_a_node_without_gpus_needs_nothing(config: Config, brought: dict[str, bytes] | None) -> None:
    assert chosen_enforcer(with_shim(config, "builtin"), served(machine(gpus=0)), live=True) is None


@pytest.mark.parametrize(("name", "file"), [("vcuda", "lib64/libcuda.so.1"), ("hami-core", "libvgpu.so")])
def test_the_library_of_somebody_else_has_to_be_there_at_the_start(config: Config, name: str, file: str) -> None:
    with pytest.raises(FileFault, match=r"^shim_dir: .*No such file or directory; put it there, or name the place"):
        chosen_enforcer(with_shim(config, name), NODE, live=True)
    path = Path(config.shim_dir, file)
    path.parent.mkdir(parents=True)
    with pytest.raises(FileFault, match=rf"^shim_dir: {path}: No such file or directory; put it there"):
        chosen_enforcer(with_shim(config, name), NODE, live=True)
    path.touch()

    enforcer = chosen_enforcer(with_shim(config, name), NODE, live=True)

    assert isinstance(enforcer, Enforcer)
    enforcer.close()


@pytest.mark.parametrize("key", ["run_dir", "lib_dir"])
def test_a_linked_directory_ends_the_start(
    config: Config, tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chosen_shim, "packaged_library", lambda: {"libtopoalloc-vcuda.so": b"\x7fELF"})
    (tmp_path / "elsewhere").mkdir()
    Path(getattr(config, key)).symlink_to(tmp_path / "elsewhere")

    with pytest.raises(FileFault, match=rf"^{key}: .*; name a path that goes through no link"):
        chosen_enforcer(config, NODE, live=True)


def test_the_drivers_version_is_its_first_two_parts(tmp_path: Path) -> None:
    path = tmp_path / "version"
    path.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Thu Jul  3 2026\nGCC version: 12\n")

    assert chosen_shim._driver_version(path) == (580, 159)
    assert chosen_shim._driver_version(tmp_path / "missing") == (0, 0)

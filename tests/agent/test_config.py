"""The configuration file: every key works, everything else is refused with the key at fault."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoalloc.agent.config import Config, load_config, parse_config
from topoalloc.errors import InputError
from topoalloc.sharing.settings import NumaReporting
from topoalloc.topology.machine import NicFunction, NicLink
from topoalloc.yaml_documents import DOCUMENT_BYTES_MAX


def test_an_empty_file_gives_the_defaults():
    assert parse_config("", "config.yaml") == Config()


def test_no_file_gives_the_defaults():
    assert load_config(None) == Config()


def test_one_line_serves_the_tencent_names():
    sharing = parse_config("resource_names: tencent\n", "config.yaml").sharing()

    assert (sharing.core_resource, sharing.memory_resource) == ("tencent.com/vcuda-core", "tencent.com/vcuda-memory")


def test_a_pool_selects_by_rdma_function_link_and_driver():
    text = """
nic_pools:
- {resource: example.com/ib, rdma: true, function: vf, link: infiniband, drivers: [mlx5_core]}
"""

    selector = parse_config(text, "config.yaml").sharing().nic_pools[0].selector

    assert selector.rdma is True
    assert selector.function is NicFunction.VIRTUAL
    assert selector.link is NicLink.INFINIBAND
    assert selector.drivers == {"mlx5_core"}


def test_numa_reporting_is_set_by_resource():
    sharing = parse_config("numa: {topoalloc.io/vgpu-core: none}", "config.yaml").sharing()

    assert sharing.numa["topoalloc.io/vgpu-core"] is NumaReporting.NONE


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("memory_units: 256MiB", "unknown field `memory_units`"),
        ("memory_unit: 1", "memory_unit"),
        ("memory_unit: 256", "memory_unit"),
        ("memory_unit: 4KiB", "below 1MiB"),
        ("resource_names: nvidia", "resource_names"),
        ("core_resource: gpu", "'gpu' is no extended resource name"),
        ("core_resource: kubernetes.io/gpu", "no extended resource name"),
        ("core_resource: requests.example.com/gpu", "no extended resource name"),
        ("core_resource: UPPER.example.com/gpu", "no extended resource name"),
        ("core_resource: example.com/gpu-", "no extended resource name"),
        ("core_resource: topoalloc.io/vgpu-memory", "given to two resources"),
        ("numa: {topoalloc.io/gpu: node}", "no resource of this configuration"),
        ("numa: {topoalloc.io/vgpu-core: socket}", "numa"),
        ("nic_pools: [{rdma: true}]", "resource"),
        ("nic_pools: [{resource: a.b/c, speed: 1}]", "unknown field `speed`"),
        ("gpu_memory: lots", "not a size"),
        ("[1, 2]", "Expected `object`"),
        ("a: b: c", "line 1"),
        ("\x00", "document 1"),
        ("&a [*a]", "the alias *a is not accepted"),
        ("{}\n---\n{}", "2 YAML documents"),
    ],
)
def test_a_wrong_configuration_is_refused_naming_what_is_wrong(text: str, named: str):
    with pytest.raises(InputError) as refused:
        parse_config(text, "config.yaml")

    assert str(refused.value).startswith("config.yaml: ")
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_missing_is_named(tmp_path: Path):
    with pytest.raises(InputError, match="No such file"):
        load_config(str(tmp_path / "absent.yaml"))


def test_a_file_beyond_any_configuration_is_refused(tmp_path: Path):
    path = tmp_path / "huge.yaml"
    path.write_bytes(b"#" * (DOCUMENT_BYTES_MAX + 1))

    with pytest.raises(InputError, match="larger than"):
        load_config(str(path))


@given(st.text(max_size=200))
def test_any_text_gives_a_configuration_or_one_clear_line(text: str):
    try:
        assert isinstance(parse_config(text, "config.yaml"), Config)
    except InputError as error:
        assert "\n" not in str(error)


def test_every_key_is_explained_in_the_documentation():
    text = Path("docs/CONFIGURATION.md").read_text()

    assert [key for key in Config.__struct_fields__ if f"`{key}`" not in text] == []


def test_every_default_in_the_documentation_is_the_one_that_holds():
    table = Path("docs/CONFIGURATION.md").read_text().split("\n## ")[0]
    defaults = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", table, re.MULTILINE))

    assert defaults.keys() == set(Config.__struct_fields__)
    for key, words in defaults.items():
        if literal := re.fullmatch(r"`([^`]+)`", words):
            assert parse_config(f"{key}: {literal[1]}", key) == Config()
        else:
            assert words == "none" or words.startswith(("by `", "one pool"))


@pytest.mark.parametrize(("host_root", "sysfs"), [("/", "/sys"), ("/host", "/host/sys"), ("/host/", "/host/sys")])
def test_the_nodes_sysfs_is_below_the_hosts_root(host_root: str, sysfs: str) -> None:
    assert parse_config(f"host_root: {host_root}", "c.yaml").sysfs == sysfs


def test_a_relative_root_of_the_host_is_refused() -> None:
    with pytest.raises(InputError, match="host_root: 'host' is no absolute path"):
        parse_config("host_root: host", "c.yaml")


def test_the_xids_that_are_ignored_can_be_others_or_none() -> None:
    assert parse_config("ignored_xids: [31, 94]", "c.yaml").ignored_xids == (31, 94)
    assert parse_config("ignored_xids: []", "c.yaml").ignored_xids == ()
    with pytest.raises(InputError, match="ignored_xids"):
        parse_config("ignored_xids: [all]", "c.yaml")


@pytest.mark.parametrize(("text", "ceiling"), [("", None), ("elastic: off", None), ("elastic: 80", 80)])
def test_elastic_is_off_or_a_ceiling(text: str, ceiling: int | None) -> None:
    assert parse_config(text, "c.yaml").share_rules().elastic_cores == ceiling


@pytest.mark.parametrize("text", ["elastic: on", "elastic: 0", "elastic: 101", "elastic: -1", "elastic: half"])
def test_any_other_ceiling_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="elastic"):
        parse_config(text, "c.yaml")


def test_the_rules_of_shares_are_configured() -> None:
    rules = parse_config("{context: 1GiB, without_usage: allow}", "c.yaml").share_rules()

    assert (rules.context_bytes, rules.without_usage) == (1024**3, True)


@pytest.mark.parametrize("key", ["run_dir", "lib_dir", "shim_dir", "driver_dir", "cdi_spec_dir"])
@pytest.mark.parametrize("path", ["relative", "/a/../b", "/a:b", "/a,b", "/a b", "/a/", "/a//b", "/a\\n"])
def test_a_directory_that_is_no_plain_path_is_refused(key: str, path: str) -> None:
    with pytest.raises(InputError, match=key):
        parse_config(f'{{{key}: "{path}", cdi_kind: x.y/z}}', "c.yaml")


def test_a_directory_too_long_for_sockets_below_it_is_refused() -> None:
    with pytest.raises(InputError, match="run_dir: longer than 40"):
        parse_config(f"run_dir: /{'a' * 60}", "c.yaml")


@pytest.mark.parametrize("injection", ["mounts", "envvar", "cdi"])
def test_vcuda_is_not_combined_with_what_would_put_the_drivers_libraries_back(injection: str) -> None:
    with pytest.raises(InputError, match="shim: vcuda takes the place"):
        parse_config(f"{{shim: vcuda, injection: {injection}}}", "c.yaml")


def test_a_specification_under_nvidias_kind_is_refused() -> None:
    with pytest.raises(InputError, match="set cdi_kind"):
        parse_config("cdi_spec_dir: /run/cdi", "c.yaml")
    assert parse_config("{cdi_spec_dir: /run/cdi, cdi_kind: topoalloc.io/gpu}", "c.yaml").cdi_spec_dir


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("metrics: off\n", None),
        ("metrics: 127.0.0.1:9400\n", ("127.0.0.1", 9400)),
        ("metrics: '[::1]:9400'\n", ("::1", 9400)),
        ("metrics: 0.0.0.0:65535\n", ("0.0.0.0", 65535)),
    ],
)
def test_metrics_are_off_or_at_an_address(text: str, expected: tuple[str, int] | None):
    assert parse_config(text, "config.yaml").metrics_address == expected


@pytest.mark.parametrize(
    "value", ["on", "9400", "'localhost'", "'localhost:0'", "'localhost:65536'", "'a b:1'", "':1'"]
)
def test_an_address_of_metrics_that_is_none_is_refused(value: str):
    with pytest.raises(InputError, match="metrics"):
        parse_config(f"metrics: {value}\n", "config.yaml")


def test_overuse_is_reported_unless_it_is_to_be_stopped():
    assert parse_config("", "config.yaml").overuse == "report"
    assert parse_config("overuse: stop\n", "config.yaml").overuse == "stop"
    with pytest.raises(InputError, match="overuse"):
        parse_config("overuse: perhaps\n", "config.yaml")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("shim: Builtin", "shim: one of auto, builtin, vcuda, hami-core, none"),
        ("shim:", "shim: one of auto, builtin"),
        ("numa: {topoalloc.io/nic: near}", "numa: one of node, none, all"),
        ("publish: [labels, pictures]", "publish: one of labels, annotation, events"),
        ("elastic: 50%", "elastic: off, or a whole number from 1 to 100"),
        ("metrics: 9400", "metrics: off, or HOST:PORT"),
        ("context: 600", "a size with its unit, such as 600MiB"),
    ],
)
def test_a_value_that_is_none_is_answered_with_those_that_are(text: str, told: str):
    with pytest.raises(InputError) as fault:
        parse_config(text, "config.yaml")

    assert told in str(fault.value)

"""The agent's configuration file: YAML, every key listed here, unknown keys refused."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Literal, get_args, get_origin, get_type_hints

import msgspec

from topoalloc.agent.health import APPLICATION_XIDS
from topoalloc.errors import InputError
from topoalloc.sharing.edits import CORES_VARIABLE, MEMORY_VARIABLE, WHOLE_GPUS_VARIABLE, nic_variable
from topoalloc.sharing.settings import (
    CORE_RESOURCE,
    CORES_PER_GPU,
    MEMORY_RESOURCE,
    MEMORY_UNIT_BYTES,
    NIC_RESOURCE,
    TENCENT_CORE_RESOURCE,
    TENCENT_MEMORY_RESOURCE,
    NicPool,
    NicSelector,
    NumaReporting,
    SharingSettings,
)
from topoalloc.sharing.share import CONTEXT_BYTES, ShareRules
from topoalloc.topology.machine import NicFunction, NicLink
from topoalloc.topology.sizes import parse_size
from topoalloc.yaml_documents import Document, parse_documents, read_documents

MEMORY_UNIT_BYTES_MIN = 1024**2
CONTEXT_BYTES_MAX = 64 * 1024**3
NVIDIA_CDI_KIND = "nvidia.com/gpu"
# What else may stand in a path that is handed to container runtimes, which split some of their options at `:` and `,`.
_PLAIN_PATH = re.compile(r"(?:/[A-Za-z0-9_+@=-][A-Za-z0-9._+@=-]{0,127}){1,16}")
RUN_DIR_CHARACTERS_MAX = 40  # a socket's path has 107, and a share's name takes up to 63 of them
# A DNS subdomain, a slash, and at most 63 characters; the kubelet puts `requests.` before it and checks the whole.
_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_RESOURCE_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*/[A-Za-z0-9](?:[-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?")
RESOURCE_PREFIX_CHARACTERS_MAX = 253 - len("requests.")
_CDI_KIND = re.compile(rf"{_LABEL}(?:\.{_LABEL})*/[A-Za-z](?:[-A-Za-z0-9_]{{0,61}}[A-Za-z0-9])?")
PORT_MAX = 65535
_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<host>[A-Za-z0-9.-]{1,253})):(?P<port>[0-9]{1,5})")


class NicPoolKeys(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One entry of `nic_pools`: a resource name and what a NIC must be to belong to it."""

    resource: str
    rdma: bool | None = None
    function: NicFunction | None = None
    link: NicLink | None = None
    drivers: tuple[str, ...] | None = None


_KEY_IN_MESSAGE = re.compile(r"at `\$\.([a-z_]+)")
_FORMS = {
    "elastic": f"off, or a whole number from 1 to {CORES_PER_GPU}",
    "metrics": "off, or HOST:PORT in quotes",
    **dict.fromkeys(("context", "gpu_memory", "memory_unit"), "a size with its unit, such as 600MiB"),
}


class Config(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Every key of the configuration file with its default; docs/CONFIGURATION.md explains each."""

    resource_names: Literal["topoalloc", "tencent"] = "topoalloc"
    core_resource: str | None = None
    memory_resource: str | None = None
    memory_unit: str = "256MiB"
    nic_pools: tuple[NicPoolKeys, ...] = (NicPoolKeys(NIC_RESOURCE),)
    numa: dict[str, NumaReporting] = msgspec.field(default_factory=dict)
    leftovers: Literal["withhold", "offer"] = "offer"
    gpu_memory: str | None = None
    injection: Literal["auto", "device-nodes", "mounts", "envvar", "cdi", "none"] = "auto"
    cdi_kind: str = NVIDIA_CDI_KIND
    cdi_spec_dir: str = ""
    driver_dir: str = ""
    shim: Literal["auto", "builtin", "vcuda", "hami-core", "none"] = "auto"
    shim_dir: str = ""
    elastic: bool | int = False
    context: str = "600MiB"
    without_usage: Literal["refuse", "allow"] = "refuse"
    without_share: Literal["refuse", "allow"] = "refuse"
    run_dir: str = "/run/topoalloc"
    lib_dir: str = "/var/lib/topoalloc"
    turns: Literal["auto", "never"] = "auto"
    overuse: Literal["report", "stop"] = "report"
    metrics: str | bool = False
    host_root: str = "/"
    plugin_dir: str = "/var/lib/kubelet/device-plugins"
    pod_resources: str = "/var/lib/kubelet/pod-resources/kubelet.sock"
    pods_api: str = "/var/lib/kubelet/pods-api/pods-api.sock"
    kubelet_config: str = "/var/lib/kubelet/config.yaml"
    publish: tuple[Literal["labels", "annotation", "events"], ...] = ("labels", "annotation", "events")
    ignored_xids: tuple[int, ...] = APPLICATION_XIDS
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @property
    def gpu_memory_bytes(self) -> int | None:
        return None if self.gpu_memory is None else parse_size(self.gpu_memory)

    @property
    def sysfs(self) -> str:
        """The folder where the node's own sysfs is seen."""
        return f"{self.host_root.rstrip('/')}/sys"

    def share_rules(self) -> ShareRules:
        """What holds for every share of the node; raises InputError."""
        if self.elastic is True or (self.elastic is not False and not 1 <= self.elastic <= CORES_PER_GPU):
            raise InputError(f"elastic: off, or a percentage from 1 to {CORES_PER_GPU}")
        context_bytes = parse_size(self.context)
        if context_bytes > CONTEXT_BYTES_MAX:
            raise InputError(f"context: {self.context} is more than any context takes")
        elastic_cores = None if self.elastic is False else self.elastic
        return ShareRules(elastic_cores, context_bytes, self.without_usage == "allow")

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Host and port of the metrics endpoint, None: off. Raises InputError."""
        if self.metrics is False:
            return None
        match = None if self.metrics is True else _ADDRESS.fullmatch(self.metrics)
        if match is None or not 1 <= int(match["port"]) <= PORT_MAX:
            raise InputError("metrics: off, or HOST:PORT such as 127.0.0.1:9400; [HOST]:PORT for IPv6")
        return match["v6"] or match["host"], int(match["port"])

    def sharing(self) -> SharingSettings:
        """The part that says how the machine is cut; raises InputError."""
        tencent = self.resource_names == "tencent"
        unit_bytes = parse_size(self.memory_unit)
        if unit_bytes < MEMORY_UNIT_BYTES_MIN:
            raise InputError(f"memory_unit: {self.memory_unit} is below 1MiB")
        settings = SharingSettings(
            core_resource=_or(self.core_resource, TENCENT_CORE_RESOURCE if tencent else CORE_RESOURCE),
            memory_resource=_or(self.memory_resource, TENCENT_MEMORY_RESOURCE if tencent else MEMORY_RESOURCE),
            memory_unit_bytes=unit_bytes,
            nic_pools=tuple(_pool(keys) for keys in self.nic_pools),
            numa=MappingProxyType(dict(self.numa)),
        )
        _check_names(settings)
        return settings


assert parse_size(Config().memory_unit) == MEMORY_UNIT_BYTES
assert Config().share_rules().context_bytes == CONTEXT_BYTES


def load_config(path: str | None) -> Config:
    """Read a configuration file, or the defaults; raises InputError naming the key at fault."""
    if path is None:
        return Config()
    return _config_of(read_documents(Path(path)), path)


def parse_config(text: str, name: str) -> Config:
    """Decode configuration text; raises InputError."""
    return _config_of(parse_documents(text, name), name)


def _config_of(documents: tuple[Document, ...], name: str) -> Config:
    if len(documents) > 1:
        raise InputError(f"{name}: {len(documents)} YAML documents, a configuration is one")
    try:
        config = msgspec.convert(documents[0].value if documents else {}, Config)
    except msgspec.ValidationError as error:
        raise InputError(f"{name}: {error}{_known_keys(str(error))}{_what_is_allowed(str(error))}") from error
    try:
        config.sharing()
        config.share_rules()
        _ = config.gpu_memory_bytes, config.metrics_address
        _check_paths(config)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    return config


def _known_keys(message: str) -> str:
    return f"; known keys: {', '.join(Config.__struct_fields__)}" if "unknown field" in message else ""


def _what_is_allowed(message: str) -> str:
    """The values or the form of the key that a message is about."""
    about = _KEY_IN_MESSAGE.search(message)
    if about is None or about[1] not in Config.__struct_fields__:
        return ""
    key = about[1]
    words = _words_of(get_type_hints(Config)[key])
    form = f"one of {', '.join(words)}" if words else _FORMS.get(key)
    return "" if form is None else f"; {key}: {form}"


def _words_of(annotation: object) -> tuple[str, ...]:
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return tuple(annotation)
    return tuple(word for part in get_args(annotation) for word in _words_of(part))


def _check_paths(config: Config) -> None:
    if not config.plugin_dir:
        raise InputError("plugin_dir: an agent without the kubelet's directory serves nobody")
    if not config.host_root.startswith("/"):
        raise InputError(f"host_root: {config.host_root!r} is no absolute path")
    if not _CDI_KIND.fullmatch(config.cdi_kind):
        raise InputError(f"cdi_kind: {config.cdi_kind!r} is no CDI kind; write one such as nvidia.com/gpu")

    for key in ("run_dir", "lib_dir", "shim_dir", "driver_dir", "cdi_spec_dir"):
        path = getattr(config, key)
        needed = key in {"run_dir", "lib_dir"}
        if (path or needed) and not _PLAIN_PATH.fullmatch(path):
            raise InputError(
                f"{key}: {path!r} is no plain absolute path (letters, digits, . _ + @ = - between slashes)"
            )
    if len(config.run_dir) > RUN_DIR_CHARACTERS_MAX:
        raise InputError(f"run_dir: longer than {RUN_DIR_CHARACTERS_MAX} characters, too long for the sockets below it")
    _check_shim(config)


def _check_shim(config: Config) -> None:
    if config.shim == "vcuda" and config.injection not in {"auto", "device-nodes", "none"}:
        raise InputError(
            f"shim: vcuda takes the place of the driver's libraries, which injection: {config.injection} would put "
            "back; use injection: device-nodes"
        )
    if config.cdi_spec_dir and config.cdi_kind == NVIDIA_CDI_KIND:
        raise InputError(
            f"cdi_spec_dir: devices of kind {NVIDIA_CDI_KIND} may be described by NVIDIA's toolkit too, and then "
            "neither counts; set cdi_kind: topoalloc.io/gpu"
        )


def _or(text: str | None, default: str) -> str:
    return default if text is None else text


def _pool(keys: NicPoolKeys) -> NicPool:
    drivers = None if keys.drivers is None else frozenset(keys.drivers)
    return NicPool(keys.resource, NicSelector(keys.rdma, keys.function, keys.link, drivers))


def _check_names(settings: SharingSettings) -> None:
    """The kubelet's rule for extended resource names, so that a bad name is refused here and not at registration."""
    names = [settings.core_resource, settings.memory_resource, *(pool.resource for pool in settings.nic_pools)]
    for name in names:
        reserved = "kubernetes.io/" in name or name.startswith("requests.")
        long = len(name.partition("/")[0]) > RESOURCE_PREFIX_CHARACTERS_MAX
        if reserved or long or not _RESOURCE_NAME.fullmatch(name):
            raise InputError(f"{name!r} is no extended resource name; write one such as example.com/gpu-cores")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{twice!r} is given to two resources; give each its own name")
    variables = [CORES_VARIABLE, WHOLE_GPUS_VARIABLE, MEMORY_VARIABLE]
    for pool in settings.nic_pools:
        variable = nic_variable(pool.resource)
        if variable in variables:
            raise InputError(
                f"{pool.resource!r} would set {variable} like another resource; change the part after the /"
            )
        variables.append(variable)
    strange = next((name for name in settings.numa if name not in names), None)
    if strange is not None:
        raise InputError(f"numa: {strange!r} is no resource of this configuration; it has {', '.join(names)}")

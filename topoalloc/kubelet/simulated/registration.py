"""The kubelet's Registration service and its list of connected plugins, told apart by resource and socket path.

Rules of Kubernetes 1.37 (pkg/kubelet/cm/devicemanager/plugin/v1beta1: server.go, handler.go), its traps included.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import grpc

from topoalloc.kubelet.simulated.plugin_client import DeviceList, PluginCallError, PluginClient
from topoalloc.pb import deviceplugin_v1beta1_pb2 as wire
from topoalloc.pb import deviceplugin_v1beta1_pb2_grpc as wire_grpc

VERSION = "v1beta1"
RESOURCE_NAME_MAX = 63  # characters after the slash of a qualified name
PREFIX_MAX = 253  # a DNS subdomain
REGISTRATIONS_MAX = 100_000  # a plugin in a registration loop ends here instead of filling memory

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_PREFIX = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


class Plugins(Protocol):
    """Who is told about plugins that come, list devices and go."""

    def plugin_connected(self, client: PluginClient) -> None:
        """Raises PluginCallError to refuse."""

    def devices_listed(self, client: PluginClient, devices: DeviceList) -> None: ...

    def plugin_ended(self, client: PluginClient, reason: str) -> None: ...


def is_extended_resource_name(name: str) -> bool:
    """Whether the kubelet lets a plugin register this name (pkg/apis/core/v1/helper IsExtendedResourceName)."""
    prefix, slash, rest = name.partition("/")
    if not slash or "kubernetes.io/" in name or name.startswith("requests."):
        return False
    quota_prefix = "requests." + prefix
    return (
        len(quota_prefix) <= PREFIX_MAX
        and _PREFIX.fullmatch(quota_prefix) is not None
        and len(rest) <= RESOURCE_NAME_MAX
        and _NAME.fullmatch(rest) is not None
    )


class RegistrationService(wire_grpc.RegistrationServicer):
    """Serves Register; keeps the connections that it made until `close`."""

    def __init__(self, directory: Path, plugins: Plugins, note: Callable[[str], None]) -> None:
        self._directory = directory
        self._plugins = plugins
        self._note = note
        self._lock = threading.Lock()
        self._clients: dict[str, list[PluginClient]] = {}
        self._opened: set[PluginClient] = set()
        self._registrations = 0
        self._closed = False

    def Register(self, request: wire.RegisterRequest, context: grpc.ServicerContext) -> wire.Empty:  # noqa: N802
        fault = self._fault(request)
        if fault is None:
            try:
                # Not the `/` operator: it would let an absolute endpoint leave the directory, filepath.Join does not.
                self._connect(request.resource_name, Path(f"{self._directory}/{request.endpoint}"))
            except PluginCallError as error:
                fault = str(error)
        if fault is not None:
            self._note(f"Register of {request.resource_name} at {request.endpoint} failed: {fault}")
            context.abort(grpc.StatusCode.UNKNOWN, fault)
        return wire.Empty()

    def close(self) -> None:
        """Cut every connection, as the end of a kubelet process does."""
        with self._lock:
            self._closed = True
            opened, self._opened = self._opened, set()
            self._clients.clear()
        for client in opened:
            client.close()

    def _fault(self, request: wire.RegisterRequest) -> str | None:
        if request.version != VERSION:
            asked = f'requested API version "{request.version}" is not supported by kubelet'
            return f'{asked}. Supported version is "{VERSION}"'
        if not is_extended_resource_name(request.resource_name):
            return f'the ResourceName "{request.resource_name}" is invalid'
        self._registrations += 1
        if self._registrations > REGISTRATIONS_MAX:
            return f"more than {REGISTRATIONS_MAX} registrations in one simulation"
        return None

    def _connect(self, resource: str, path: Path) -> None:
        client = PluginClient(resource, path)
        with self._lock:
            if self._closed:
                client.close()
                raise PluginCallError("the kubelet is stopping")
            self._clients.setdefault(resource, []).append(client)
            self._opened.add(client)
        try:
            client.connect()
            self._plugins.plugin_connected(client)
        except PluginCallError:
            # Forgets every client with this path, a live one of the same path too: the end of that one's stream is
            # then noticed by nobody (1.37).
            self._forget(client)
            client.close()
            raise
        client.watch(self._plugins.devices_listed, self._stream_ended)

    def _forget(self, client: PluginClient) -> None:
        with self._lock:
            known = self._clients.get(client.resource, [])
            self._clients[client.resource] = [other for other in known if other.path != client.path]
            self._opened.discard(client)

    def _stream_ended(self, client: PluginClient, reason: str) -> None:
        with self._lock:
            remembered = any(known.path == client.path for known in self._clients.get(client.resource, []))
            if self._closed or not remembered:
                return
        self._note(f"{client.resource}: {reason}")
        self._forget(client)
        self._plugins.plugin_ended(client, reason)
        client.close()

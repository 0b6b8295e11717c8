"""Which plugin answers for a resource: endpoints told apart by socket path, the one that registered last in charge.

As Kubernetes 1.37 does (k/k PR 135437); up to 1.36 there was one endpoint per resource.
"""

from __future__ import annotations

from topoalloc.kubelet.simulated.plugin_client import PluginClient

STOP_GRACE_PERIOD_S = 300.0  # endpointStopGracePeriod: afterwards the node shows the resource with capacity 0


class Endpoints:
    """Not safe for threads by itself: the device manager's lock covers it."""

    def __init__(self) -> None:
        self._connected: dict[str, dict[str, PluginClient]] = {}
        self._in_charge: dict[str, PluginClient] = {}
        self._stopped_s: dict[str, float] = {}

    def restored(self, resource: str, now_s: float) -> None:
        """A resource of the checkpoint: its endpoint counts as stopped since the kubelet's start."""
        self._stopped_s[resource] = now_s

    def add(self, client: PluginClient) -> str | None:
        """Put a plugin in charge of its resource; returns why not, where the same path is still connected."""
        connected = self._connected.setdefault(client.resource, {})
        path = str(client.path)
        if path in connected:
            return f"device plugin already connected: {path}"
        connected[path] = client
        self._in_charge[client.resource] = client
        self._stopped_s.pop(client.resource, None)
        return None

    def remove(self, client: PluginClient, now_s: float) -> bool:
        """A plugin is gone; True when it was the last of its resource.

        Which of several others takes over is arbitrary in the kubelet; here it is the one that came last.
        """
        connected = self._connected.get(client.resource, {})
        if connected.pop(str(client.path), None) is None:
            return False
        if connected:
            self._in_charge[client.resource] = list(connected.values())[-1]
            return False
        self._stopped_s[client.resource] = now_s
        return True

    def in_charge(self, resource: str) -> PluginClient | None:
        """Who is called for this resource, stopped or not; None where nobody ever registered it."""
        return self._in_charge.get(resource)

    def expired(self, now_s: float) -> tuple[str, ...]:
        """Resources whose last plugin has been away longer than the grace period."""
        return tuple(
            resource for resource, stopped_s in self._stopped_s.items() if now_s - stopped_s > STOP_GRACE_PERIOD_S
        )

    def drop(self, resource: str) -> None:
        """The grace period ended: the resource has no endpoint any more."""
        self._stopped_s.pop(resource, None)
        self._in_charge.pop(resource, None)

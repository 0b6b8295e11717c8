"""A small API server over real HTTP: nodes, pods with list and watch, events; it can misbehave on demand."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

LIMIT_S = 30.0  # far above what anything here needs
NODE = "n1"


@dataclass(frozen=True)
class Request:
    """What a client asked."""

    method: str
    path: str
    query: dict[str, str]
    body: object
    at_s: float


@dataclass(frozen=True)
class Fault:
    """How the next request of a kind is treated. `reset`: the connection breaks; `slow`: no answer until `end`."""

    code: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    reset: bool = False
    slow: bool = False
    body: bytes = b'{"kind":"Status","message":"on purpose"}'
    watch: bool = False  # only for a watch
    drip: str = ""  # the answer's bytes come one by one, without end; `chunked` or `counted` says how it is framed
    pod: str = ""  # only for events of this pod


@dataclass
class FakeApi:
    """Everything it knows; `changed` guards it."""

    tokens: set[str] = field(default_factory=lambda: {"secret"})
    node: dict[str, dict[str, str]] | None = field(default_factory=lambda: {"labels": {}, "annotations": {}})
    pods: dict[str, dict[str, object]] = field(default_factory=dict)
    history: list[tuple[int, str, dict[str, object]]] = field(default_factory=list)
    events: dict[str, dict[str, object]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    faults: deque[Fault] = field(default_factory=deque)
    version: int = 10
    oldest: int = 0
    watches: int = 0
    broken: int = 0  # watches begun before this one are to end
    ending: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)

    def wait_for(self, condition: Callable[[], object]) -> bool:
        """Whether it came true within LIMIT_S."""
        with self.changed:
            return bool(self.changed.wait_for(condition, LIMIT_S))

    def put_pod(self, name: str, *, version_told: bool = True, **status: object) -> None:
        """Add or change a pod of NODE; `spec` among the keywords is its spec."""
        spec = status.pop("spec", {"containers": [{"name": "a"}]})
        began = status.pop("began", "2026-01-01T00:00:00Z")
        with self.changed:
            self.version += 1
            meta = {
                "name": name,
                "namespace": "default",
                "uid": f"uid-{name}",
                "creationTimestamp": began,
                "resourceVersion": str(self.version),
            }
            pod = {"metadata": meta, "spec": spec, "status": status}
            kind = "MODIFIED" if name in self.pods else "ADDED"
            self.pods[name] = pod
            self.history.append((self.version, kind, pod))
            self.changed.notify_all()

    def delete_pod(self, name: str) -> None:
        """A watch is told of its last state."""
        with self.changed:
            self.version += 1
            self.history.append((self.version, "DELETED", self.pods.pop(name)))
            self.changed.notify_all()

    def forget_history(self) -> None:
        """Compaction: whoever watches has to list again."""
        with self.changed:
            self.version += 5
            self.oldest = self.version
            self.history.clear()
            self.broken = self.watches + 1
            self.changed.notify_all()

    def break_watches(self) -> None:
        with self.changed:
            self.broken = self.watches + 1
            self.changed.notify_all()

    def patches(self) -> list[Request]:
        return [request for request in self.requests if request.method == "PATCH"]

    def label(self, key: str) -> str | None:
        return None if self.node is None else self.node["labels"].get(f"topoalloc.io/{key}")

    def picture(self) -> str:
        return "" if self.node is None else self.node["annotations"].get("topoalloc.io/topology", "")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: FakeApi

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base class's name
        pass

    def do_GET(self) -> None:
        self._serve()

    def do_PATCH(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = Request(self.command, unquote(parts.path), query, json.loads(raw or b"null"), time.monotonic())
        with self.api.changed:
            self.api.requests.append(request)
            fault = self._fault(request)
            self.api.changed.notify_all()
        if fault is not None:
            self._misbehave(fault)
        elif (self.headers.get("Authorization") or "").removeprefix("Bearer ") not in self.api.tokens:
            self._answer(401, {"kind": "Status", "message": "Unauthorized"})
        elif request.query.get("watch"):
            self._watch(request)
        else:
            with self.api.changed:
                code, body = self._handle(request)
                self.api.changed.notify_all()
            self._answer(code, body)

    def _fault(self, request: Request) -> Fault | None:
        for fault in self.api.faults:
            is_meant = not fault.pod or fault.pod == _pod_of(request)
            if is_meant and fault.watch == bool(request.query.get("watch")):
                self.api.faults.remove(fault)
                return fault
        return None

    def _misbehave(self, fault: Fault) -> None:
        if fault.slow:
            self.api.wait_for(lambda: self.api.ending)
        if fault.reset or fault.slow:
            self.close_connection = True
            self.connection.close()
            return
        self.send_response(fault.code or 200)
        if fault.drip:
            is_chunked = fault.drip == "chunked"
            self.send_header(*(("Transfer-Encoding", "chunked") if is_chunked else ("Content-Length", "1000000")))
            self.end_headers()
            while not self.api.ending:
                self.wfile.write(b"1\r\n \r\n" if is_chunked else b" ")
                with self.api.changed:
                    self.api.changed.wait(0.02)
            return
        for key, value in fault.headers:
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(fault.body)))
        self.end_headers()
        self.wfile.write(fault.body)

    def _answer(self, code: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _handle(self, request: Request) -> tuple[int, object]:
        api = self.api
        if request.path == f"/api/v1/nodes/{NODE}":
            if api.node is None:
                return 404, {"kind": "Status", "message": f'nodes "{NODE}" not found'}
            if request.method == "PATCH":
                assert self.headers["Content-Type"] == "application/merge-patch+json"
                self._merge(request.body)
            return 200, {"metadata": {"name": NODE, **api.node}}
        if request.path == "/api/v1/pods":
            return 200, {"metadata": {"resourceVersion": str(api.version)}, "items": list(api.pods.values())}
        if request.method == "POST" and request.path == "/api/v1/namespaces/default/events":
            assert isinstance(request.body, dict)
            name = request.body["metadata"]["name"]
            if name in api.events:
                return 409, {"kind": "Status", "reason": "AlreadyExists", "message": "already exists"}
            api.events[name] = request.body
            return 201, request.body
        return 404, {"kind": "Status", "message": f"no {request.path} here"}

    def _merge(self, patch: object) -> None:
        assert isinstance(patch, dict)
        assert self.api.node is not None
        for part, keys in patch["metadata"].items():
            for key, value in keys.items():
                if value is None:
                    self.api.node[part].pop(key, None)
                else:
                    self.api.node[part][key] = value

    def _watch(self, request: Request) -> None:
        api = self.api
        since = int(request.query["resourceVersion"])
        if since < api.oldest:
            self._answer(410, {"kind": "Status", "code": 410, "message": "too old resource version"})
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with api.changed:
            api.watches += 1
            mine = api.watches
            api.changed.notify_all()
        while True:
            with api.changed:
                api.changed.wait_for(lambda since=since: api.ending or mine < api.broken or self._news(since), LIMIT_S)
                news = self._news(since)
                over = api.ending or mine < api.broken
            for version, kind, pod in news:
                self._line({"type": kind, "object": pod})
                since = version
            if over:
                break
        bookmark = {"kind": "Pod", "metadata": {"resourceVersion": str(since)}}
        self._line({"type": "BOOKMARK", "object": bookmark})
        self.wfile.write(b"0\r\n\r\n")

    def _news(self, since: int) -> list[tuple[int, str, dict[str, object]]]:
        return [item for item in self.api.history if item[0] > since]

    def _line(self, event: object) -> None:
        data = json.dumps(event).encode() + b"\n"
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


def _pod_of(request: Request) -> str:
    """Of which pod the request is an event; empty where it is none."""
    is_event = isinstance(request.body, dict) and request.path.endswith("/events")
    return str(request.body["involvedObject"]["name"]) if is_event else ""  # type: ignore[index]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that went away in the middle of an answer


@contextmanager
def served(api: FakeApi, port: int = 0) -> Iterator[int]:
    """Serve on a port of the loopback address; gives the port."""
    handler = type("Handler", (_Handler,), {"api": api})
    server = _Server(("127.0.0.1", port), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    api.ending = False
    try:
        yield server.server_address[1]
    finally:
        with api.changed:
            api.ending = True
            api.changed.notify_all()
        server.shutdown()
        server.server_close()
        thread.join()


def kubeconfig(directory: Path, port: int, token: str = "secret") -> Path:
    """A kubeconfig whose token is in a file beside it."""
    (directory / "token").write_text(token + "\n")
    path = directory / "kubeconfig"
    path.write_text(
        "apiVersion: v1\nkind: Config\n"
        f'clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{port}"}}}}]\n'
        f"users: [{{name: u, user: {{tokenFile: {directory / 'token'}}}}}]\n"
        "contexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n"
    )
    return path

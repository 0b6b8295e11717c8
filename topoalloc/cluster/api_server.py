"""The API server: the only module that speaks to it. It moves bytes and decides nothing.

What the service account needs, and nothing else:
- nodes (API group ""): get, patch, best limited by resourceNames to its own node where that is possible
- pods (API group ""): list, watch; asked with fieldSelector spec.nodeName alone
- events (API group ""): create

Transport and configuration are those of the `kubernetes` package, of the optional extra `cluster`; its models are not
used (they cost ten times the memory and time of the few fields that are read).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from topoalloc import __version__
from topoalloc.cluster.api_objects import status_message
from topoalloc.errors import InputError, MachineError, TopoallocError
from topoalloc.yaml_documents import read_documents

if TYPE_CHECKING:
    from kubernetes.client.api_client import ApiClient
    from kubernetes.client.configuration import Configuration
    from urllib3 import BaseHTTPResponse

CONNECT_TIMEOUT_S = 5.0
REQUEST_TIMEOUT_S = 15.0  # of a whole request; the API server itself gives up after 60 s
# Tokens of service accounts are replaced by the kubelet some time before they expire, an hour or so; certificates and
# kubeconfigs change too. All of it is read anew this often, and after every 401.
RELOAD_S = 60.0
# A watch ends by itself after this; many clients use 5 to 10 minutes. What is silent for longer is dead.
WATCH_S = 300
WATCH_GRACE_S = 30.0
ANSWER_BYTES_MAX = 64 * 1024**2  # 250 pods of the largest size that etcd takes (1.5 MiB) would be more; real ones never
LINE_BYTES_MAX = 8 * 1024**2  # one pod in a watch
CHUNK_BYTES = 64 * 1024
PAGE_PODS = 250
MESSAGE_CHARACTERS_MAX = 300
# Only the metadata of a node: the whole of it names every image on its disk.
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
EXTRA = "topoalloc publish needs the kubernetes package: install topoalloc[cluster]"

UNAUTHORIZED = 401
UNREACHED = 0


class ApiError(TopoallocError):
    """A request that was not answered as hoped. `code` is HTTP's, UNREACHED where there was no answer."""

    def __init__(self, code: int, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message if code == UNREACHED else f"{code} {message}".strip())
        self.code = code
        self.retry_after_s = retry_after_s


class ApiServer:
    """One API server under one identity. Methods may be called from several threads."""

    def __init__(self, kubeconfig: Path | None, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        """`timeout_s`: of a whole request.

        Raises InputError or MachineError where there is no configuration to begin with.
        """
        self._kubeconfig = kubeconfig
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._client: ApiClient | None = None
        self._loaded_at_s = 0.0
        self._watched: BaseHTTPResponse | None = None
        self._closed = False
        try:
            self._current()
        except ApiError as error:
            raise InputError(str(error)) from error

    def node(self, name: str) -> bytes:
        """The node's metadata, as fresh as a watch would have it. Raises ApiError, as all that follow."""
        return self._request("GET", _path("nodes", name), {"resourceVersion": "0"}, accept=METADATA_ONLY)

    def patch_node(self, name: str, patch: Mapping[str, object]) -> bytes:
        """Change the node by a merge patch; its metadata afterwards."""
        content = "application/merge-patch+json"
        return self._request("PATCH", _path("nodes", name), {}, patch, content=content, accept=METADATA_ONLY)

    def create_event(self, namespace: str, event: Mapping[str, object]) -> None:
        self._request("POST", _path("namespaces", namespace, "events"), {}, event)

    def pods(self, node: str, more: str) -> bytes:
        """A page of the node's pods; `more` from the page before, empty for the first."""
        query = {"fieldSelector": f"spec.nodeName={node}", "limit": str(PAGE_PODS)}
        # The first page may come from the server's cache, which spares etcd.
        query |= {"continue": more} if more else {"resourceVersion": "0"}
        return self._request("GET", _path("pods"), query)

    @contextmanager
    def watch_pods(self, node: str, resource_version: str) -> Iterator[Iterator[bytes]]:
        """The lines of a watch on the node's pods; they end when the server or `close` ends it."""
        query = {
            "fieldSelector": f"spec.nodeName={node}",
            "resourceVersion": resource_version,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        timeout_s = (CONNECT_TIMEOUT_S, WATCH_S + WATCH_GRACE_S)
        response = self._opened("GET", _path("pods"), query, None, "", "application/json", timeout_s)
        self._watched = response
        try:
            yield _lines(response)
        finally:
            self._watched = None
            response.close()

    def close(self) -> None:
        """End a watch that is waiting; no request begins after it."""
        self._closed = True
        response = self._watched
        if response is not None:
            _shut_down(response)

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, object] | None = None,
        *,
        content: str = "application/json",
        accept: str = "application/json",
    ) -> bytes:
        deadline_s = time.monotonic() + self._timeout_s
        timeout_s = (min(CONNECT_TIMEOUT_S, self._timeout_s), self._timeout_s)
        response = self._opened(method, path, query, body, content, accept, timeout_s)
        try:
            return _whole(response, deadline_s)
        finally:
            response.close()  # one that was read to its end has given its connection back already

    def _opened(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, object] | None,
        content: str,
        accept: str,
        timeout_s: tuple[float, float],
    ) -> BaseHTTPResponse:
        """A response whose status is a success and whose body is still to be read. Raises ApiError."""
        from urllib3.exceptions import HTTPError

        if self._closed:
            raise ApiError(UNREACHED, "ending")
        client, token = self._current()
        headers = {"Accept": accept, "User-Agent": f"topoalloc/{__version__}"}
        headers |= {"Authorization": token} if token else {}
        headers |= {"Content-Type": content} if body is not None else {}
        url = client.configuration.host + path + (f"?{urlencode(query)}" if query else "")
        try:
            answer = client.call_api(method, url, headers, body, _request_timeout=timeout_s)
        except (HTTPError, OSError, ValueError) as error:  # ValueError: a token that no header can hold
            raise ApiError(UNREACHED, f"cannot be reached: {_reason(error)}") from error
        response: BaseHTTPResponse = answer.response
        if response.status < 300:
            return response
        raise self._refusal(response)

    def _refusal(self, response: BaseHTTPResponse) -> ApiError:
        if response.status == UNAUTHORIZED:
            with self._lock:
                self._loaded_at_s = -RELOAD_S  # whatever replaced the token is read before the next request
        try:
            body = _whole(response, time.monotonic() + self._timeout_s)
        except ApiError:
            body = b""
        response.close()
        message = status_message(body) or str(response.reason or "")
        return ApiError(response.status, message[:MESSAGE_CHARACTERS_MAX], _retry_after_s(response))

    def _current(self) -> tuple[ApiClient, str]:
        """The client and the Authorization header of now. Raises ApiError; InputError, MachineError at the start."""
        with self._lock:
            now_s = time.monotonic()
            if self._client is None or now_s - self._loaded_at_s >= RELOAD_S:
                self._client = _client(_configuration(self._kubeconfig))
                self._loaded_at_s = now_s
            token: str = self._client.configuration.api_key.get("BearerToken") or ""
            return self._client, token.strip()  # files end in a newline as often as not


def _configuration(kubeconfig: Path | None) -> Configuration:
    try:
        from kubernetes.client.configuration import Configuration
        from kubernetes.config.config_exception import ConfigException
        from kubernetes.config.incluster_config import load_incluster_config
        from kubernetes.config.kube_config import load_kube_config
    except ImportError as error:
        raise MachineError(f"{EXTRA} ({error})") from error

    configuration = Configuration()
    try:
        if kubeconfig is None:
            load_incluster_config(configuration, False)  # type: ignore[no-untyped-call]
        else:
            read_documents(kubeconfig)  # a file that is no YAML gets one clear line
            load_kube_config(str(kubeconfig), None, configuration, False)  # type: ignore[no-untyped-call]
    except (ConfigException, InputError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        what = "not in a pod (give --kubeconfig FILE)" if kubeconfig is None else f"{kubeconfig}: no kubeconfig"
        raise ApiError(UNREACHED, f"{what}: {_reason(error)}") from error
    return configuration


def _client(configuration: Configuration) -> ApiClient:
    from kubernetes.client.api_client import ApiClient
    from urllib3 import disable_warnings
    from urllib3.exceptions import InsecureRequestWarning

    if not configuration.verify_ssl:
        disable_warnings(InsecureRequestWarning)  # the kubeconfig says so; a warning per request helps nobody
    configuration.retries = False  # one request is one request; when to try again is decided elsewhere
    configuration.keep_alive = True
    return ApiClient(configuration)


def _path(*parts: str) -> str:
    return "/api/v1/" + "/".join(quote(part, safe="") for part in parts)


def _whole(response: BaseHTTPResponse, deadline_s: float) -> bytes:
    """The body, within bounds of size and time. Raises ApiError."""
    from urllib3.exceptions import HTTPError

    body = bytearray()
    while True:
        try:
            chunk = response.read1(CHUNK_BYTES)  # one piece as it arrives: filling a buffer has no limit of time
        except (HTTPError, OSError, ValueError) as error:
            raise ApiError(UNREACHED, f"the answer broke off: {_reason(error)}") from error
        if not chunk:
            return bytes(body)
        body += chunk
        if len(body) > ANSWER_BYTES_MAX:
            raise ApiError(UNREACHED, f"the answer is larger than {ANSWER_BYTES_MAX >> 20} MiB")
        if time.monotonic() > deadline_s:
            raise ApiError(UNREACHED, "the answer took too long")


def _lines(response: BaseHTTPResponse) -> Iterator[bytes]:
    rest = b""
    for chunk in _chunks(response):
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line for line in whole if line.strip())
        if len(rest) > LINE_BYTES_MAX:
            raise ApiError(UNREACHED, f"a line of the watch is longer than {LINE_BYTES_MAX >> 20} MiB")


def _chunks(response: BaseHTTPResponse) -> Iterator[bytes]:
    """What has arrived, as it arrives. Raises ApiError."""
    from urllib3.exceptions import HTTPError

    try:
        yield from response.stream(CHUNK_BYTES)
    except (HTTPError, OSError, ValueError) as error:
        raise ApiError(UNREACHED, f"the answer broke off: {_reason(error)}") from error


def _shut_down(response: BaseHTTPResponse) -> None:
    """Wake the thread that reads this response."""
    try:
        response.shutdown()
    except (OSError, ValueError, RuntimeError):
        response.close()  # not connected any more: there is nobody to wake


def _retry_after_s(response: BaseHTTPResponse) -> float:
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0.0


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:MESSAGE_CHARACTERS_MAX] or type(error).__name__

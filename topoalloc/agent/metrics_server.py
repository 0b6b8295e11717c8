"""Answers `GET /metrics`, one question at a time: there are few who ask, and a server that can hold many connections is
a server that many can fill."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

REQUEST_BYTES_MAX = 8192
DEADLINE_S = 2.0  # for a whole question and its answer
BACKLOG = 16
WAIT_MAX_S = 0.5
_HEAD_END = b"\r\n\r\n"


class MetricsServer:
    """`run` serves in one thread until `stop`."""

    def __init__(self, host: str, port: int, text: Callable[[], str], content_type: str) -> None:
        """Raises OSError where the address cannot be had."""
        self._text = text
        self._content_type = content_type
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        self._listener.settimeout(WAIT_MAX_S)

    @property
    def port(self) -> int:
        """The port, where 0 was asked for."""
        return int(self._listener.getsockname()[1])

    def run(self, stop: threading.Event) -> None:
        """Serve; a connection that fails or is late is closed and nothing more."""
        with self._listener:
            while not stop.is_set():
                try:
                    connection, _ = self._listener.accept()
                except TimeoutError:
                    continue
                with connection, contextlib.suppress(OSError):
                    self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        received = b""
        while _HEAD_END not in received and len(received) <= REQUEST_BYTES_MAX:
            connection.settimeout(max(0.01, deadline_s - time.monotonic()))
            if time.monotonic() >= deadline_s or not (content := connection.recv(REQUEST_BYTES_MAX)):
                return
            received += content
        words = received.split(b"\r\n", 1)[0].split(b" ")
        is_asked = len(words) == 3 and words[0] == b"GET" and words[1].split(b"?")[0] == b"/metrics"
        status, body = ("200 OK", self._text()) if is_asked else ("404 Not Found", "try /metrics\n")
        content = body.encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: {self._content_type}\r\nContent-Length: {len(content)}\r\n"
        connection.settimeout(max(0.01, deadline_s - time.monotonic()))
        connection.sendall(f"{head}Connection: close\r\n\r\n".encode() + content)

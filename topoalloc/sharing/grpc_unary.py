"""The server's side of gRPC with one unary method, as bytes in and bytes out.

grpcio does not tell who is at the other end of a Unix socket, and that is all an agent may believe of a container. One
method needs no headers read, so HTTP/2's compression of headers is not needed either (RFC 9113; what is sent is in RFC
7541's plainest form).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_BYTES_MAX = 16384  # the largest that a peer may send unless told otherwise
MESSAGE_BYTES_MAX = 64 * 1024
CALLS_MAX = 16  # on one connection; a client makes one
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_STREAM, END_HEADERS, PADDED, ACK = 0x1, 0x4, 0x8, 0x1
_GRPC_PREFIX = struct.Struct(">BI")
# `:status: 200` is entry 8 of the static table, `content-type` is 31; both as RFC 7541 writes them without a table.
_RESPONSE = bytes([0x88, 0x0F, 0x10, 16]) + b"application/grpc"


class ProtocolFault(Exception):  # noqa: N818 - the peer's, not ours
    """The peer does not speak HTTP/2 with gRPC, or sends more than one call needs."""


@dataclass(slots=True)
class UnaryConnection:
    """One connection; `take` bytes, answer the requests that are complete, send what comes out."""

    _buffer: bytearray = field(default_factory=bytearray)
    _bodies: dict[int, bytearray] = field(default_factory=dict)
    _greeted: bool = False
    _calls: int = 0

    def take(self, data: bytes) -> tuple[bytes, tuple[tuple[int, bytes], ...]]:
        """What has to be sent at once, and the requests now complete, each with its stream. Raises ProtocolFault."""
        self._buffer += data
        out = bytearray()
        if not self._greeted:
            if not PREFACE.startswith(bytes(self._buffer[: len(PREFACE)])):
                raise ProtocolFault("no HTTP/2")
            if len(self._buffer) < len(PREFACE):
                return b"", ()
            del self._buffer[: len(PREFACE)]
            self._greeted = True
            out += _frame(SETTINGS, 0, 0, b"")
        requests: list[tuple[int, bytes]] = []
        while (taken := self._next_frame()) is not None:
            kind, flags, stream, payload = taken
            if kind in {SETTINGS, PING} and not flags & ACK:
                out += _frame(kind, ACK, 0, payload if kind == PING else b"")
            elif kind == GOAWAY:
                raise ProtocolFault("the client is done")
            else:
                requests += self._take_stream(kind, flags, stream, payload)
        return bytes(out), tuple(requests)

    def _next_frame(self) -> tuple[int, int, int, bytes] | None:
        if len(self._buffer) < 9:
            return None
        length = int.from_bytes(self._buffer[:3], "big")
        if length > FRAME_BYTES_MAX:
            raise ProtocolFault("a frame larger than allowed")
        if len(self._buffer) < 9 + length:
            return None
        kind, flags = self._buffer[3], self._buffer[4]
        stream = int.from_bytes(self._buffer[5:9], "big") & 0x7FFFFFFF
        payload = bytes(self._buffer[9 : 9 + length])
        del self._buffer[: 9 + length]
        return kind, flags, stream, payload

    def _take_stream(self, kind: int, flags: int, stream: int, payload: bytes) -> list[tuple[int, bytes]]:
        if kind == HEADERS and stream not in self._bodies:
            self._calls += 1
            if self._calls > CALLS_MAX:
                raise ProtocolFault("too many calls on one connection")
            self._bodies[stream] = bytearray()
        elif kind == RST_STREAM:
            self._bodies.pop(stream, None)
        elif kind == DATA and stream in self._bodies:
            self._bodies[stream] += _unpadded(flags, payload)
            if sum(len(body) for body in self._bodies.values()) > MESSAGE_BYTES_MAX:
                raise ProtocolFault("a message larger than allowed")
        if kind in {HEADERS, DATA} and flags & END_STREAM and stream in self._bodies:
            return [(stream, _message(bytes(self._bodies.pop(stream))))]
        return []


def answer(stream: int, message: bytes) -> bytes:
    """The frames of a successful answer."""
    data = _GRPC_PREFIX.pack(0, len(message)) + message
    return (
        _frame(HEADERS, END_HEADERS, stream, _RESPONSE)
        + _frame(DATA, 0, stream, data)
        + _frame(HEADERS, END_HEADERS | END_STREAM, stream, _literal("grpc-status", "0"))
    )


def refusal(stream: int, status: int, text: str) -> bytes:
    """The frames of an answer that is an error (a gRPC status code and printable ASCII)."""
    block = _RESPONSE + _literal("grpc-status", str(status)) + _literal("grpc-message", text[:120])
    return _frame(HEADERS, END_HEADERS | END_STREAM, stream, block)


def _message(body: bytes) -> bytes:
    if len(body) < _GRPC_PREFIX.size:
        raise ProtocolFault("a call without a message")
    compressed, length = _GRPC_PREFIX.unpack_from(body)
    if compressed or length != len(body) - _GRPC_PREFIX.size:
        raise ProtocolFault("not one plain message")
    return body[_GRPC_PREFIX.size :]


def _unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ProtocolFault("padding longer than its frame")
    return payload[1 : len(payload) - payload[0]]


def _literal(name: str, value: str) -> bytes:
    return bytes([0, len(name)]) + name.encode("ascii") + bytes([len(value)]) + value.encode("ascii", "replace")


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload

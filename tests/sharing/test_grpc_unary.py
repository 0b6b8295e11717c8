"""Bytes of a gRPC connection: nothing that a peer sends does more than end its own connection."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoalloc.sharing.grpc_unary import (
    CALLS_MAX,
    DATA,
    END_STREAM,
    HEADERS,
    MESSAGE_BYTES_MAX,
    PADDED,
    PREFACE,
    ProtocolFault,
    UnaryConnection,
    answer,
    refusal,
)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def call(stream: int, message: bytes) -> bytes:
    body = b"\0" + len(message).to_bytes(4, "big") + message
    return frame(HEADERS, 4, stream, b"\x83") + frame(DATA, END_STREAM, stream, body)


@given(st.binary(max_size=200), st.lists(st.integers(0, 400), max_size=10))
def test_a_call_is_taken_however_its_bytes_arrive(message: bytes, cuts: list[int]) -> None:
    data = PREFACE + frame(4, 0, 0, b"") + call(1, message)
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    talk = UnaryConnection()
    requests: list[tuple[int, bytes]] = []

    for begin, end in pairwise(edges):
        requests += talk.take(data[begin:end])[1]

    assert requests == [(1, message)]


def test_padding_is_left_out() -> None:
    body = b"\0\0\0\0\x02hi"
    data = PREFACE + frame(HEADERS, 4, 1, b"") + frame(DATA, END_STREAM | PADDED, 1, b"\x03" + body + b"\0\0\0")

    assert UnaryConnection().take(data)[1] == ((1, b"hi"),)


def test_settings_and_pings_are_acknowledged() -> None:
    out, requests = UnaryConnection().take(PREFACE + frame(4, 0, 0, b"") + frame(6, 0, 0, b"12345678"))

    assert out == frame(4, 0, 0, b"") + frame(4, 1, 0, b"") + frame(6, 1, 0, b"12345678")
    assert requests == ()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another protocol"),
        pytest.param(PREFACE + b"\xff\xff\xff\0\0\0\0\0\x01", id="a frame larger than allowed"),
        pytest.param(PREFACE + frame(HEADERS, 5, 1, b""), id="a call without a message"),
        pytest.param(
            PREFACE + frame(HEADERS, 4, 1, b"") + frame(DATA, 1, 1, b"\x01\0\0\0\0"), id="a compressed message"
        ),
        pytest.param(PREFACE + frame(HEADERS, 4, 1, b"") + frame(DATA, 1, 1, b"\0\0\0\0\x09x"), id="a wrong length"),
        pytest.param(
            PREFACE + frame(HEADERS, 4, 1, b"") + frame(DATA, 9, 1, b"\xff\0"), id="padding longer than its frame"
        ),
        pytest.param(
            PREFACE + frame(HEADERS, 4, 1, b"") + 5 * frame(DATA, 0, 1, b"x" * 16384), id="a message without end"
        ),
        pytest.param(PREFACE + frame(7, 0, 0, b"\0" * 8), id="a goodbye"),
        pytest.param(PREFACE + b"".join(call(1 + 2 * n, b"") for n in range(CALLS_MAX + 1)), id="calls without end"),
    ],
)
def test_what_is_no_call_ends_the_connection(data: bytes) -> None:
    with pytest.raises(ProtocolFault):
        UnaryConnection().take(data)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 255), st.integers(0, 3), st.binary(max_size=40))))
def test_any_frames_are_taken_or_end_the_connection(frames: list[tuple[int, int, int, bytes]]) -> None:
    try:
        _, requests = UnaryConnection().take(PREFACE + b"".join(frame(*each) for each in frames))
    except ProtocolFault:
        return
    assert all(len(message) <= MESSAGE_BYTES_MAX for _, message in requests)


@given(st.binary(max_size=500))
def test_any_bytes_are_taken_or_end_the_connection(data: bytes) -> None:
    for begin in (b"", PREFACE):
        try:
            UnaryConnection().take(begin + data)
        except ProtocolFault:
            continue


def test_answers_end_their_stream() -> None:
    assert answer(1, b"")[-len(b"grpc-status") - 2 :].endswith(b"grpc-status\x010")
    assert b"grpc-message" in refusal(3, 7, "no")

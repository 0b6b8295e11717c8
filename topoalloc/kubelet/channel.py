"""gRPC over the node's unix sockets, as the kubelet's strict HTTP/2 stack wants it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

import grpc

T = TypeVar("T")

# A node with 100,000 devices answers List with several megabytes; upstream's own clients use 16 MiB.
MESSAGE_BYTES_MAX = 16 * 1024**2

SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.so_reuseport", 0),
)


def unix_channel(path: Path) -> grpc.Channel:
    """A channel to a unix socket. Newer C cores send the escaped path as authority, which Go servers reject."""
    options = (
        ("grpc.default_authority", "localhost"),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.enable_retries", 0),
        # A kubelet that restarts is back within a second; the default back-off would wait up to two minutes. (The
        # smallest back-off is left alone: it is also how long a loaded kubelet may take to answer a connection.)
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
    )
    return grpc.insecure_channel(f"unix:{path}", options=options)


# The kubelet serves each of its local APIs 100 requests a second with a burst of 10, all clients together; beyond it
# refuses at once. The next token is 10 ms away.
RATE_PAUSE_S = 0.015
RATE_TRIES_MAX = 6
RATE_WORDS = "rate limit"  # of the kubelet's refusal; an answer that is too large has the same code


def within_rate(call: Callable[[], T]) -> T:
    """Make a call, again after a moment when the kubelet's rate limit refused it; raises what the last try raised."""
    for _ in range(RATE_TRIES_MAX - 1):
        try:
            return call()
        except grpc.RpcError as error:
            if code_of(error) is not grpc.StatusCode.RESOURCE_EXHAUSTED or RATE_WORDS not in reason_of(error):
                raise
            time.sleep(RATE_PAUSE_S)
    return call()


def code_of(error: grpc.RpcError) -> grpc.StatusCode:
    """The status code of a failed call; a failed call is also a Call, which the types cannot say."""
    code: grpc.StatusCode = cast(grpc.Call, error).code()
    return code


def reason_of(error: grpc.RpcError) -> str:
    """Code and text of a failed call on one line."""
    details = cast(grpc.Call, error).details() or ""
    return f"{code_of(error).name}: {' '.join(details.split())}"

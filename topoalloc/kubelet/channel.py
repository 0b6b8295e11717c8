"""gRPC over the node's unix sockets, as the kubelet's strict HTTP/2 stack wants it."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import grpc

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
        # A kubelet that restarts is back within a second; the default back-off would wait up to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
    )
    return grpc.insecure_channel(f"unix:{path}", options=options)


def code_of(error: grpc.RpcError) -> grpc.StatusCode:
    """The status code of a failed call; a failed call is also a Call, which the types cannot say."""
    code: grpc.StatusCode = cast(grpc.Call, error).code()
    return code


def reason_of(error: grpc.RpcError) -> str:
    """Code and text of a failed call on one line."""
    details = cast(grpc.Call, error).details() or ""
    return f"{code_of(error).name}: {' '.join(details.split())}"

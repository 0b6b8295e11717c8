"""How amounts are worded wherever a person reads them."""

from __future__ import annotations


def plural(count: int, noun: str) -> str:
    """`1 GPU`, `2 GPUs`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

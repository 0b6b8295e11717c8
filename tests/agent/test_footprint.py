"""Modules that grpc would load and the agent never uses stay away, and are there for whoever asks for them."""

from __future__ import annotations

import subprocess
import sys

BEGIN = "import sys; from topoalloc.agent.footprint import reduce_footprint; reduce_footprint(); import grpc\n"


def said(code: str) -> str:
    """In a process of its own: here everything is loaded already."""
    return subprocess.run([sys.executable, "-c", BEGIN + code], capture_output=True, text=True, check=True).stdout


def test_grpc_brings_neither_asyncio_nor_openssl():
    loaded = said("print([name for name in ('asyncio', 'grpc.aio', 'ssl') if name in sys.modules])")

    assert loaded == "[]\n"


def test_the_asyncio_side_of_grpc_works_when_it_is_asked_for():
    code = """
import asyncio, grpc.aio
async def served():
    server = grpc.aio.server()
    await server.start()
    await server.stop(None)
    return "served"
print(asyncio.run(served()))
"""

    assert said(code) == "served\n"


def test_a_name_below_grpc_is_enough_to_have_it():
    assert said("print(grpc.aio.insecure_channel.__name__)") == "insecure_channel\n"

"""Which machine a command is about: recorded sources, an unpacked sysfs, or the node it runs on."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from topoalloc.errors import InputError
from topoalloc.topology.machine import Machine
from topoalloc.topology.sizes import parse_size

LIVE_SYSFS = "/sys"


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from",
        dest="sources",
        metavar="PATH",
        action="extend",
        nargs="+",
        help="a recorded machine instead of this node; several sources of one machine are merged",
    )
    parser.add_argument("--sysfs", metavar="DIR", help=f"sysfs of the live node (default: {LIVE_SYSFS})")


def add_gpu_memory_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpu-memory", metavar="SIZE", help="memory per GPU where no source tells it, such as 80GiB")


def chosen_machine(sources: Sequence[str] | None, sysfs: str | None, gpu_memory: str | None = None) -> Machine:
    """Read the machine that these arguments name; raises InputError or MachineError."""
    from topoalloc.topology.sources import discover, load_machine

    gpu_memory_bytes = None if gpu_memory is None else parse_gpu_memory(gpu_memory)
    if sources and sysfs is not None:
        raise InputError("--sysfs names a live node and --from a recorded one; give one of the two")
    if sources:
        return load_machine(sources, gpu_memory_bytes)
    return discover(LIVE_SYSFS if sysfs is None else sysfs, gpu_memory_bytes)


def parse_gpu_memory(text: str) -> int:
    """Bytes given as --gpu-memory; the refusal names the argument."""
    try:
        return parse_size(text)
    except InputError as error:
        raise InputError(f"--gpu-memory: {error}") from None

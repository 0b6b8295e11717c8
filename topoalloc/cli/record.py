"""`topoalloc record`: this node, or a recorded machine, as a snapshot that can be published in a bug report."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from topoalloc.cli.chosen_machine import add_source_arguments, chosen_machine
from topoalloc.cli.show import print_utf8
from topoalloc.errors import InputError
from topoalloc.topology.machine import Gpu, Machine, Nic
from topoalloc.topology.snapshot import dump, redact
from topoalloc.wording import plural


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source_arguments(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="write to FILE at once or not at all (default: stdout)")


def run(args: argparse.Namespace) -> int:
    """Write the snapshot; what it holds and what was left out is told on stderr."""
    machine = chosen_machine(args.sources, args.sysfs)
    snapshot = redact(machine)
    if args.output is None:
        print_utf8(dump(snapshot))
    else:
        write_whole(Path(args.output), dump(snapshot))
    for warning in machine.warnings:
        print(f"topoalloc record: {warning}", file=sys.stderr)
    print(f"topoalloc record: {recorded_words(snapshot)}", file=sys.stderr)
    print(f"topoalloc record: {left_out_words(machine, snapshot)}", file=sys.stderr)
    return 0


def recorded_words(snapshot: Machine) -> str:
    """`recorded 4 NUMA nodes, 8 GPUs, 10 NICs`."""
    parts = ((snapshot.numa_nodes, "NUMA node"), (snapshot.gpus, "GPU"), (snapshot.nics, "NIC"))
    return "recorded " + ", ".join(plural(len(things), noun) for things, noun in parts)


def left_out_words(machine: Machine, snapshot: Machine) -> str:
    """Which facts of the machine the snapshot does not hold, and which are never read."""
    uuids = sum(_uuids(gpu) != _uuids(kept) for gpu, kept in zip(machine.gpus, snapshot.gpus, strict=True))
    names = sum(_names(nic) != _names(kept) for nic, kept in zip(machine.nics, snapshot.nics, strict=True))
    parts = []
    if uuids:
        parts.append(f"UUIDs of {plural(uuids, 'GPU')}")
    if names:
        parts.append(f"names made from hardware addresses of {plural(names, 'NIC')}")
    if machine.sources != snapshot.sources:
        parts.append("names of source files")
    told = f"left out {', '.join(parts)}; " if parts else ""
    return f"{told}serial numbers and host names are not in it"


def _uuids(gpu: Gpu) -> tuple[object, ...]:
    return gpu.uuid, *(device.uuid for device in gpu.mig)


def _names(nic: Nic) -> tuple[object, ...]:
    return nic.name, nic.rdma, nic.netdev


def write_whole(path: Path, text: str) -> None:
    """Put a file in place in one step, so that no reader and no crash sees half of it; raises InputError."""
    target = path.resolve()
    try:
        if target.exists() and not target.is_file():
            # A pipe or a terminal cannot be replaced, only written to.
            target.write_text(text, encoding="utf-8")
            return
        beside = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            with beside.open("x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); name a file in a folder you own") from error

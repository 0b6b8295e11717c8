"""`topoalloc show`: a machine, live or recorded, as a tree, a matrix, JSON or a picture."""

from __future__ import annotations

import argparse
import io
import sys

from topoalloc.cli.chosen_machine import add_gpu_memory_argument, add_source_arguments, chosen_machine
from topoalloc.topology.machine import Machine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source_arguments(parser)
    add_gpu_memory_argument(parser)
    parser.add_argument("--as", dest="form", choices=tuple(_FORMS), default="tree", help="default: tree")


def run(args: argparse.Namespace) -> int:
    """Print the machine; contradictions between its sources go to stderr, in JSON they are inside."""
    machine = chosen_machine(args.sources, args.sysfs, args.gpu_memory)
    text = _FORMS[args.form](machine)
    if args.form != "json":
        for warning in machine.warnings:
            print(f"topoalloc show: {warning}", file=sys.stderr)
    print_utf8(text)
    return 0


def print_utf8(text: str) -> None:
    """Write to stdout as UTF-8 whatever the locale: JSON and SVG are UTF-8, and a tree in less is a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    sys.stdout.write(text)
    sys.stdout.flush()


def _tree(machine: Machine) -> str:
    from topoalloc.cli.picture.tree import tree_text

    return tree_text(machine)


def _matrix(machine: Machine) -> str:
    from topoalloc.cli.picture.matrix import matrix_text

    return matrix_text(machine)


def _svg(machine: Machine) -> str:
    from topoalloc.cli.picture.svg import svg_text

    return svg_text(machine)


def _json(machine: Machine) -> str:
    from topoalloc.topology.machine_json import json_text

    return json_text(machine)


_FORMS = {"tree": _tree, "matrix": _matrix, "json": _json, "svg": _svg}

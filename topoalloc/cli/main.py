"""The `topoalloc` command: one module per verb, imported only when it is asked for."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from topoalloc import __version__
from topoalloc.errors import TopoallocError

# verb: one line of help. Module topoalloc.cli.<verb> has add_arguments(parser) and run(args) -> exit status.
VERBS = {
    "show": "print a machine's topology as a tree, matrix, JSON or picture",
    "record": "write a snapshot of this node, fit for a bug report",
    "simulate": "run pods on a recorded machine against the real agent and a simulated kubelet",
    "agent": "serve this node's GPUs and NICs to the kubelet",
    "top": "show what containers use of their shares of this node's GPUs",
    "verify": "say, inside a container, whether the limits of its share are active",
    "publish": "show this node's topology, and why its pods were rejected, in the cluster",
}

INTERRUPTED = 130  # 128 + SIGINT, as shells count


def main(argv: Sequence[str]) -> int:
    """Run one verb; returns the exit status (2: the input was at fault, 1: anything else)."""
    parser = argparse.ArgumentParser(prog="topoalloc", description="Topology-true GPU sharing for Kubernetes nodes.")
    parser.add_argument("--version", action="version", version=f"topoalloc {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    wanted = next((word for word in argv if not word.startswith("-")), None)
    for verb, summary in VERBS.items():
        verb_parser = verbs.add_parser(verb, help=summary, description=summary.capitalize() + ".")
        if verb == wanted:
            module = importlib.import_module(f"topoalloc.cli.{verb}")
            module.add_arguments(verb_parser)
            verb_parser.set_defaults(run=module.run)
    args = parser.parse_args(argv)
    try:
        status: int = args.run(args)
    except TopoallocError as error:
        print(f"topoalloc {args.verb}: {error}", file=sys.stderr)
        return error.status
    return status


def entry() -> None:
    """Console script."""
    if sys.stdout is None:  # closed by whoever started us
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - open until the process ends
    try:
        status = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output went away (`| head`): nothing is wrong, and nothing can be said to it.
        _discard_output()
        status = 0
    except KeyboardInterrupt:
        status = INTERRUPTED
    except (OSError, MemoryError, RuntimeError) as error:
        # A full disk, no more memory, threads or file descriptors: the machine's fault, and one line says which.
        _discard_output()
        print(f"topoalloc: {type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        status = 1
    sys.exit(status)


def _discard_output() -> None:
    """What is still buffered cannot be written; without this the interpreter would try again at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

"""`topoalloc simulate`: pods on a recorded machine, the real agent, a simulated kubelet; who got what, and why not."""

from __future__ import annotations

import argparse
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType

from topoalloc.admission.policy import Policy, Scope
from topoalloc.agent.config import load_config
from topoalloc.cli.chosen_machine import add_gpu_memory_argument, parse_gpu_memory
from topoalloc.cli.simulation.rehearsal import rehearse
from topoalloc.cli.simulation.report_json import json_text
from topoalloc.cli.simulation.report_table import table_text
from topoalloc.kubelet.simulated.configuration import Configured, read_configuration
from topoalloc.kubelet.simulated.manifests import read_manifests
from topoalloc.kubelet.simulated.settings import Behaviour, KubeletSettings
from topoalloc.topology.sources import load_machine

SEED_MAX = 2**63 - 1
INTERFACES = ("pod-resources", "pods-api")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--node",
        dest="sources",
        metavar="PATH",
        action="extend",
        nargs="+",
        required=True,
        help="a recorded machine; several sources of one machine are merged",
    )
    parser.add_argument("--pods", metavar="FILE", required=True, help="Kubernetes YAML: pods, lists, workloads")
    parser.add_argument("--config", metavar="FILE", help="the agent's configuration (YAML)")
    parser.add_argument("--kubelet-config", metavar="FILE", help="a KubeletConfiguration (YAML)")
    parser.add_argument("--policy", choices=[policy.value for policy in Policy], help="topology manager policy")
    parser.add_argument("--scope", choices=[scope.value for scope in Scope], help="topology manager scope")
    parser.add_argument("--seed", type=_seed, default=0, metavar="N", help="for what a kubelet leaves to chance")
    add_gpu_memory_argument(parser)
    parser.add_argument(
        "--without",
        choices=INTERFACES,
        action="append",
        default=[],
        help="an interface that this node's kubelet does not have (the pods API came with 1.37)",
    )
    parser.add_argument("--as", dest="form", choices=("table", "json"), default="table", help="default: table")


def run(args: argparse.Namespace) -> int:
    """Simulate and print; refused pods are a result, so the status is 0."""
    config = load_config(args.config)
    configured = _configured(args)
    settings = configured.settings
    manifests = read_manifests(Path(args.pods))
    gpu_memory_bytes = parse_gpu_memory(args.gpu_memory) if args.gpu_memory is not None else config.gpu_memory_bytes
    machine = load_machine(args.sources, gpu_memory_bytes)
    behaviour = Behaviour(
        pods_api="pods-api" not in args.without,
        pod_resources="pod-resources" not in args.without,
        limits_requests=False,
    )
    signal.signal(signal.SIGTERM, _end)
    rehearsal = rehearse(machine, config, settings, manifests.pods, seed=args.seed, behaviour=behaviour)
    for note in (*machine.warnings, *configured.notes, *manifests.notes, *rehearsal.warnings):
        print(f"topoalloc simulate: {note}", file=sys.stderr)
    if args.form == "json":
        sys.stdout.write(json_text(rehearsal, settings, args.seed))
    else:
        sys.stdout.write(table_text(rehearsal, settings, args.seed, machine))
    sys.stdout.flush()
    return 0


def _configured(args: argparse.Namespace) -> Configured:
    """The kubelet's settings; arguments go before the file."""
    given = Configured(KubeletSettings())
    if args.kubelet_config is not None:
        given = read_configuration(Path(args.kubelet_config))
    settings = given.settings
    policy = settings.policy if args.policy is None else Policy(args.policy)
    scope = settings.scope if args.scope is None else Scope(args.scope)
    return replace(given, settings=replace(settings, policy=policy, scope=scope))


def _seed(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > SEED_MAX:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no whole number of 0 or more")
    return int(text)


def _end(signum: int, frame: FrameType | None) -> None:
    """Leave through the ordinary way out, so that sockets and their directory are removed."""
    sys.exit(128 + signum)

"""`topoalloc publish`: labels, a readable picture and events for this node at the API server, until SIGTERM."""

from __future__ import annotations

import argparse
import logging
import os
import re
import threading
from pathlib import Path

from topoalloc.agent.footprint import reduce_footprint

reduce_footprint()

from topoalloc.agent.config import Config, load_config  # noqa: E402
from topoalloc.agent.process import inventory_for  # noqa: E402
from topoalloc.agent.share_files import OVERUSE, read_list  # noqa: E402
from topoalloc.cli.agent import log_to_stderr  # noqa: E402
from topoalloc.cli.chosen_machine import add_gpu_memory_argument, parse_gpu_memory  # noqa: E402
from topoalloc.cli.ending import Ending  # noqa: E402
from topoalloc.cluster.api_server import ApiServer  # noqa: E402
from topoalloc.cluster.node_view import NodeView  # noqa: E402
from topoalloc.cluster.publisher import Publisher, Wanted  # noqa: E402
from topoalloc.errors import InputError  # noqa: E402
from topoalloc.sharing.overuse_record import OveruseRecord, parse_records  # noqa: E402
from topoalloc.topology.sources import discover, load_machine  # noqa: E402

NODE_VARIABLE = "NODE_NAME"
END_MAX_S = 5.0  # of a request that is under way; the process ends without it
# A DNS subdomain, as names of nodes are.
_NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
NODE_NAME_CHARACTERS_MAX = 253


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="configuration (YAML), the agent's; defaults without it")
    parser.add_argument("--node", metavar="NAME", help=f"this node's name in the cluster (default: ${NODE_VARIABLE})")
    parser.add_argument(
        "--machine", metavar="PATH", action="extend", nargs="+", help="a recorded machine, not the live node"
    )
    parser.add_argument("--sysfs", metavar="DIR", help="sysfs of the live node (default: that of host_root)")
    parser.add_argument("--pod-resources", metavar="SOCKET", help="the kubelet's PodResources socket")
    parser.add_argument("--kubeconfig", metavar="FILE", help="how to reach the API server, where not from a pod")
    add_gpu_memory_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Publish until SIGTERM, SIGINT or SIGHUP; returns 0 then, 1 when the publisher failed."""
    ending, failed = Ending(), threading.Event()
    ending.on_signals()
    node = _node_name(args.node if args.node is not None else os.environ.get(NODE_VARIABLE))
    config = load_config(args.config)
    log_to_stderr(config.log_level)
    view = _view(args, config)
    server = ApiServer(None if args.kubeconfig is None else Path(args.kubeconfig))
    wanted = Wanted(*(part in config.publish for part in ("labels", "annotation", "events")))

    def overuses() -> tuple[OveruseRecord, ...]:
        return parse_records(read_list(config.run_dir, OVERUSE))

    publisher = Publisher(server, node, view, wanted, overuses=overuses)

    def publish() -> None:
        try:
            publisher.run()
        except Exception:  # whatever it is, the thread is gone
            logging.getLogger("topoalloc").exception("the publisher ended by a fault")
            failed.set()
        ending.wish()

    thread = threading.Thread(target=publish, name="publisher", daemon=True)
    thread.start()
    ending.wait()
    logging.getLogger("topoalloc").info("stopping")
    publisher.stop()
    thread.join(END_MAX_S)
    return 1 if failed.is_set() else 0


def _view(args: argparse.Namespace, config: Config) -> NodeView:
    gpu_memory_bytes = parse_gpu_memory(args.gpu_memory) if args.gpu_memory else config.gpu_memory_bytes
    if args.machine:
        machine = load_machine(args.machine, gpu_memory_bytes)
    else:
        machine = discover(args.sysfs or config.sysfs, gpu_memory_bytes)
    for warning in machine.warnings:
        logging.getLogger("topoalloc").warning("%s", warning)
    pod_resources = config.pod_resources if args.pod_resources is None else args.pod_resources
    return NodeView(
        inventory_for(config, machine),
        Path(pod_resources) if pod_resources else None,
        Path(config.kubelet_config) if config.kubelet_config else None,
    )


def _node_name(name: str | None) -> str:
    if not name:
        raise InputError(f"which node is this? give --node NAME or set {NODE_VARIABLE}")
    if not _NODE_NAME.fullmatch(name) or len(name) > NODE_NAME_CHARACTERS_MAX:
        raise InputError(f"--node: {name[:80]!r} is no node name: lower case letters, digits, '-' and '.'")
    return name

"""`topoalloc agent`: serve this node, or a recorded machine, to the kubelet until SIGTERM."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
from pathlib import Path

from topoalloc.agent.footprint import reduce_footprint

reduce_footprint()

from topoalloc.agent.config import Config, load_config  # noqa: E402
from topoalloc.agent.health_watch import LiveWatch, RecordedWatch, Watch, file_marks  # noqa: E402
from topoalloc.agent.process import Sockets, running_agent  # noqa: E402
from topoalloc.cli.chosen_machine import add_gpu_memory_argument, parse_gpu_memory  # noqa: E402
from topoalloc.cli.ending import Ending  # noqa: E402
from topoalloc.errors import InputError, MachineError  # noqa: E402
from topoalloc.kubelet.plugin_directory import new_socket_path  # noqa: E402
from topoalloc.sharing.inventory import Inventory  # noqa: E402
from topoalloc.topology.machine import Machine  # noqa: E402
from topoalloc.topology.sources import discover, load_machine  # noqa: E402


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="configuration (YAML); defaults without it")
    parser.add_argument(
        "--machine", metavar="PATH", action="extend", nargs="+", help="serve this recorded machine, not the live node"
    )
    parser.add_argument("--sysfs", metavar="DIR", help="sysfs of the live node (default: that of host_root)")
    parser.add_argument("--plugin-dir", metavar="DIR", help="the kubelet's device plugin directory")
    parser.add_argument("--pod-resources", metavar="SOCKET", help="the kubelet's PodResources socket")
    parser.add_argument("--pods-api", metavar="SOCKET", help="the kubelet's local pods API socket (1.37 and later)")
    add_gpu_memory_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM, SIGINT or SIGHUP; returns 0 then, 1 when a part of the agent failed."""
    ending, failed = Ending(), threading.Event()
    ending.on_signals()

    def fail() -> None:
        failed.set()
        ending.wish()

    config = load_config(args.config)
    log_to_stderr(config.log_level)
    gpu_memory_bytes = parse_gpu_memory(args.gpu_memory) if args.gpu_memory else config.gpu_memory_bytes

    def scan() -> Machine:
        return discover(args.sysfs or config.sysfs, gpu_memory_bytes)

    def reread() -> Machine:
        return load_machine(args.machine, gpu_memory_bytes)

    def watch(inventory: Inventory) -> Watch:
        if args.machine:
            return RecordedWatch(inventory, args.machine, marks, reread)
        return LiveWatch(inventory, scan, args.sysfs or config.sysfs, config.ignored_xids)

    marks = file_marks(args.machine or ())
    machine = reread() if args.machine else scan()
    for warning in machine.warnings:
        logging.getLogger("topoalloc").warning("%s", warning)
    live = not args.machine
    with running_agent(config, machine, _sockets(args, config), live=live, watch=watch, on_failure=fail):
        ending.wait()
        logging.getLogger("topoalloc").info("stopping")
    return 1 if failed.is_set() else 0


def _sockets(args: argparse.Namespace, config: Config) -> Sockets:
    if args.plugin_dir == "":
        raise InputError("--plugin-dir is empty; it names the kubelet's device-plugins directory")
    plugin_dir = Path(args.plugin_dir or config.plugin_dir)
    try:
        new_socket_path(plugin_dir, "")
    except MachineError as error:
        raise InputError(f"--plugin-dir: {error}") from error
    if plugin_dir.exists() and not plugin_dir.is_dir():
        raise InputError(f"{plugin_dir} is no directory; --plugin-dir names the kubelet's device-plugins directory")
    if plugin_dir.is_dir() and not os.access(plugin_dir, os.W_OK):
        raise InputError(f"{plugin_dir} cannot be written; the agent has to run as root or own it")
    pod_resources = config.pod_resources if args.pod_resources is None else args.pod_resources
    pods_api = config.pods_api if args.pods_api is None else args.pods_api
    return Sockets(
        plugin_dir,
        Path(pod_resources) if pod_resources else None,
        Path(pods_api) if pods_api else None,
        Path(config.kubelet_config) if config.kubelet_config else None,
    )


def log_to_stderr(level: str) -> None:
    logging.basicConfig(
        stream=sys.stderr, level=level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    )

"""`make cluster`: a cluster to play with, until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys

from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.image import build_image, build_workload_image
from tests.e2e.deployment import Deployment


def main() -> int:
    parser = argparse.ArgumentParser(prog="make cluster", description=__doc__)
    parser.add_argument("--machine", default="azure-ndv5.nccl-topo.xml", help="a file of tests/machines")
    parser.add_argument("--gpu-memory", default="80GiB")
    parser.add_argument("--policy", default="single-numa-node")
    parser.add_argument("--scope", default="container")
    parser.add_argument("--cpu-manager", default="static")
    parser.add_argument("--memory-manager", default="Static")
    parser.add_argument("--nodes", type=int, default=1, choices=(1, 2))
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    images = (build_workload_image(), build_image())
    print("starting etcd, API server, scheduler, controller manager, containerd and kubelet", flush=True)
    cluster = Cluster(
        args.machine,
        args.policy,
        args.scope,
        args.cpu_manager,
        args.memory_manager,
        args.nodes,
        args.gpu_memory,
        images=images,
    )
    with cluster:
        Deployment(cluster).apply()
        print(f"ready after {cluster.seconds['ready']:.0f} s. In another terminal:\n")
        print(f"    export KUBECONFIG={cluster.control_plane.kubeconfig}")
        print("    kubectl describe node node-0\n")
        print("Ctrl-C ends it and removes everything.", flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            print("\nending", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`make cluster`: a cluster to play with, until Ctrl-C."""

from __future__ import annotations

import argparse
import json
import signal
import sys

from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.image import build_image, build_workload_image
from tests.e2e.deployment import Deployment
from tests.e2e.workloads import CORE, MEMORY, NIC, container, pod


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make cluster", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--machine", default="azure-ndv5.nccl-topo.xml", help="a file of tests/machines")
    parser.add_argument("--gpu-memory", default="80GiB", help="where the machine does not tell")
    policies = ("none", "best-effort", "restricted", "single-numa-node")
    parser.add_argument("--policy", default="single-numa-node", choices=policies, help="of the Topology Manager")
    parser.add_argument("--scope", default="container", choices=("container", "pod"), help="of the Topology Manager")
    parser.add_argument("--cpu-manager", default="static", choices=("none", "static"), help="policy")
    parser.add_argument("--memory-manager", default="Static", choices=("None", "Static"), help="policy")
    parser.add_argument("--nodes", type=int, default=1, choices=(1, 2), help="how many")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print("looking for the images", flush=True)
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
        Deployment(cluster, {"log_level": "info"}).apply()
        first = cluster.base / "first.json"
        limits = {CORE: 30, MEMORY: 16, NIC: 1}
        first.write_text(json.dumps(pod("first", [container("main", limits, ["inspect"])], node=None)))
        print(f"{args.machine} under {args.policy}, scope {args.scope}; ready after {cluster.seconds['ready']:.0f} s.")
        print("In another terminal:\n")
        print(f"    export KUBECONFIG={cluster.control_plane.kubeconfig}")
        print("    kubectl describe node node-0")
        print(f"    kubectl apply -f {first}   # 30 cores, 4 GiB and a NIC; change and apply it under other names")
        print("    kubectl logs first | grep TOPOALLOC\n")
        print("Ctrl-C ends it and removes everything.", flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            print("\nending", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

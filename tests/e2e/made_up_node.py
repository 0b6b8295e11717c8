"""A node whose GPUs and NICs are files: a sysfs tree that the agent discovers as a live node's, and device nodes that
containers can really open.

Two AMD GPUs (their driver needs no library to be found) and an RDMA NIC beside each; their device nodes are other names
of /dev/fuse, which no container may open unless it was given it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.e2e.cluster.node import Node
from tests.topology.trees import Folder, Link, Tree, netdev_tree, numa_tree, pci_tree, tar_of

GPU_CLASS, AMD, NIC_CLASS, MELLANOX = "0x120000", "0x1002", "0x020000", "0x15b3"
GPUS = ("0000:11:00.0", "0000:21:00.0")
RENDER_NODES = ("/dev/dri/renderD128", "/dev/dri/renderD129")
VERBS_NODES = ("/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1")
SHARED_NODES = ("/dev/kfd", "/dev/infiniband/rdma_cm")
OPENED = "/dev/fuse"
SYS_PARTS = ("bus", "class", "devices")


def tree() -> Tree:
    made: dict[str, Any] = dict(numa_tree("0-15", "16-31"))
    for number, gpu in enumerate(GPUS):
        bus, bridge = f"pci0000:{number + 1}0", f"0000:{number + 1}0:00.0"
        nic = f"{bus}/{bridge}/0000:{number + 1}2:00.0"
        made |= pci_tree(f"{bus}/{bridge}", "0x060400", "0x1022", numa_node=str(number))
        made |= pci_tree(f"{bus}/{bridge}/{gpu}", GPU_CLASS, AMD, device="0x74a1", numa_node=str(number))
        made |= pci_tree(nic, NIC_CLASS, MELLANOX, device="0x1021", numa_node=str(number))
        made |= netdev_tree(f"{nic}/net/eth{number}", address="02:00:00:00:00:01")
        made[f"sys/devices/{nic}/infiniband/mlx5_{number}/ports/1/link_layer"] = "InfiniBand\n"
        made[f"sys/devices/{nic}/infiniband_verbs/uverbs{number}/ibdev"] = f"mlx5_{number}\n"
        made[f"sys/devices/{nic}/infiniband/mlx5_{number}/device"] = Link("../../")
        made[f"sys/class/infiniband/mlx5_{number}"] = Link(f"../../devices/{nic}/infiniband/mlx5_{number}")
    return made


def archive(folder: Path) -> Path:
    """The tree as a file that a test cluster takes its NUMA layout from."""
    path = folder / "made-up.sysfs.tar"
    path.write_bytes(tar_of(tree()))
    return path


def furnish(node: Node) -> dict[str, Any]:
    """Put the tree and the device nodes on a node; the patch that shows the tree to the DaemonSet as /host/sys."""
    volumes = write_sysfs(node, tree())
    for path in (*RENDER_NODES, *VERBS_NODES, *SHARED_NODES):
        node.make_device(path, OPENED)
    node.room.run("mkdir", "-p", "/dev/dri/by-path")
    for gpu, target in zip(GPUS, RENDER_NODES, strict=True):
        node.room.run("ln", "-s", f"../{Path(target).name}", f"/dev/dri/by-path/pci-{gpu}-render")
    return {"template": {"spec": {"volumes": volumes}}}


def write_sysfs(node: Node, made: Tree) -> list[dict[str, Any]]:
    """Put a tree on a node; the volumes that show its sysfs to the DaemonSet in the place of the node's own."""
    root = node.base / "made-up"
    for part in SYS_PARTS:
        (root / "sys" / part).mkdir(parents=True)
    for name, content in made.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Link):
            path.symlink_to(content.target)
        elif not isinstance(content, Folder):
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    return [
        {"name": f"sys-{part}", "hostPath": {"path": f"{root}/sys/{part}", "type": "Directory"}} for part in SYS_PARTS
    ]

"""A machine restated as a reading, so that a snapshot can be joined with other sources of the same machine."""

from __future__ import annotations

from topoalloc.topology.machine import Gpu, Link, Machine, Nic, Unknown, known
from topoalloc.topology.reading import (
    NO_NAME,
    GpuReading,
    LinkReading,
    NicReading,
    NumaReading,
    Reading,
    Standing,
)


def restated(machine: Machine, source: str) -> Reading:
    """Everything a machine says, in its own numbering. What it does not know it is silent about or doubts anew.

    NVLinks come as counts per pair, since a Machine does not keep where each link of a GPU ends.
    """
    end_of = {gpu.id: ("gpu", at) for at, gpu in enumerate(machine.gpus)}
    end_of |= {nic.id: ("nic", at) for at, nic in enumerate(machine.nics)}
    return Reading(
        source=source,
        standing=Standing.WHOLE,
        numa_nodes=tuple(
            NumaReading(node.id, node.cpus, node.memory_bytes, node.distances) for node in machine.numa_nodes
        ),
        gpus=tuple(_gpu(gpu) for gpu in machine.gpus),
        nics=tuple(_nic(nic) for nic in machine.nics),
        links=tuple(_link(link, end_of[link.a], end_of[link.b]) for link in machine.links),
        nvswitches=machine.nvswitches,
        ordered=True,
        warnings=machine.warnings,
    )


def _gpu(gpu: Gpu) -> GpuReading:
    # Beside AMD GPUs a machine's numbers are not those of nvidia-smi, so an address is the better name.
    return GpuReading(
        index=gpu.index if isinstance(gpu.bdf, Unknown) else None,
        bdf=known(gpu.bdf),
        uuid=known(gpu.uuid),
        model=known(gpu.model),
        memory_bytes=known(gpu.memory_bytes),
        numa_node=gpu.numa_node,
        cpus=gpu.cpus,
        path=known(gpu.path),
        vendor=known(gpu.vendor),
        minor=known(gpu.minor),
        mig=gpu.mig,
    )


def _nic(nic: Nic) -> NicReading:
    return NicReading(
        name=nic.name,
        bdf=known(nic.bdf),
        numa_node=nic.numa_node,
        rdma=NO_NAME if nic.rdma is None else nic.rdma,
        netdev=NO_NAME if nic.netdev is None else nic.netdev,
        path=known(nic.path),
        function=known(nic.function),
        link=known(nic.link),
        driver=known(nic.driver),
        vendor=known(nic.vendor),
        physical_function=None if nic.physical_function is None else known(nic.physical_function),
    )


def _link(link: Link, a: tuple[str, int], b: tuple[str, int]) -> LinkReading:
    return LinkReading(a, b, link.pcie, link.nvlinks, known(link.peer_access))

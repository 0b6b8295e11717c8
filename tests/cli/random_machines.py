"""Machines that no vendor sells: every shape that the model allows, for properties of how machines are shown."""

from __future__ import annotations

from itertools import combinations

from hypothesis import strategies as st

from tests.cli import made_machines
from topoalloc.topology.machine import Link, LinkClass, Machine, Unknown
from topoalloc.topology.pci import PciAddress, PciPath

# Blanks, markup, what steers a terminal, what XML cannot hold, wide and combining characters, and plain names.
_NAMES = st.text("aW0_ \t\n\x00\x1b<&\"'>�日é\u0301\u202e", min_size=1, max_size=40) | st.sampled_from(
    ["mlx5_0", "eth0"]
)
_REASONS = st.sampled_from(
    ["numa_node is -1", "no source tells the NUMA node", "hidden by NV4 cell", "node3 is offline"]
)
_ADDRESSES = st.builds(PciAddress, st.integers(0, 1), st.integers(0, 4), st.integers(0, 2), st.integers(0, 1))
_PATHS = st.builds(
    PciPath,
    st.sampled_from(["0000:00", "0000:80", "10000:00", "numa0", "numa-1"]),
    st.lists(_ADDRESSES, max_size=20).map(tuple),
)


def _told(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.one_of(strategy, st.builds(Unknown, _REASONS))


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """A whole machine with up to four nodes, six GPUs and six NICs."""
    node_ids = draw(st.lists(st.integers(0, 9), unique=True, max_size=4).map(sorted))
    nodes = [
        made_machines.node(number, f"{4 * number}-{4 * number + 3}", draw(st.none() | st.integers(0, 2048)))
        for number in node_ids
    ]
    homes = _told(st.integers(0, 9))
    gpus = [
        made_machines.gpu(
            index,
            draw(homes),
            str(draw(_ADDRESSES)) if draw(st.booleans()) else None,
            draw(st.none() | _PATHS),
            draw(st.none() | st.sampled_from(["0-3", "4-7", ""])),
            draw(st.none() | _NAMES),
            draw(st.none() | st.integers(1, 300)),
            draw(st.sampled_from(["10de", "1002"])),
        )
        for index in range(draw(st.integers(0, 6)))
    ]
    nics = [
        made_machines.nic(
            number,
            draw(homes),
            str(draw(_ADDRESSES)) if draw(st.booleans()) else None,
            draw(st.none() | _PATHS),
            draw(st.none() | _NAMES),
        )
        for number in range(draw(st.integers(0, 6)))
    ]
    links = tuple(
        Link(
            a,
            b,
            draw(_told(st.sampled_from(LinkClass))),
            draw(_told(st.sampled_from([0, 0, 1, 2, 4, 18, 72]))) if b.startswith("GPU") else 0,
            Unknown("not asked"),
        )
        for a, b in combinations([*(gpu.id for gpu in gpus), *(nic.id for nic in nics)], 2)
    )
    switches = tuple(draw(st.lists(_ADDRESSES, max_size=2)))
    return Machine(tuple(nodes), tuple(gpus), tuple(nics), links, (), switches, ("made up",), ())

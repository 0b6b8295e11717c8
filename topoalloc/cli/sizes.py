"""Sizes given on the command line; the spelling belongs to the topology, where configurations read it too."""

from __future__ import annotations

from topoalloc.topology.sizes import parse_size

__all__ = ["parse_size"]

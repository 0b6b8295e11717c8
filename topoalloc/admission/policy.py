"""The topology manager's four policies: many hints in, one set of NUMA nodes and a verdict out.

Semantics of pkg/kubelet/cm/topologymanager/policy*.go, the same from 1.34 to 1.37.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from topoalloc.admission.hints import ANY_PREFERRED, Hint, ProviderAnswer
from topoalloc.admission.numa_mask import NODE_ID_MAX, mask_of, nodes_of, width_then_value
from topoalloc.errors import InputError
from topoalloc.topology.machine import Machine, Unknown


class Policy(StrEnum):
    """`topologyManagerPolicy` of the kubelet configuration."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"


class Scope(StrEnum):
    """`topologyManagerScope`: align each container by itself, or the pod as one."""

    CONTAINER = "container"
    POD = "pod"


NODES_MAX_DEFAULT = 8  # the kubelet refuses to start above it, because it enumerates every subset of nodes


@dataclass(frozen=True, slots=True)
class Options:
    """`topologyManagerPolicyOptions`."""

    prefer_closest_numa_nodes: bool = False
    max_allowable_numa_nodes: int = NODES_MAX_DEFAULT


@dataclass(frozen=True, slots=True)
class NumaInfo:
    """The machine's NUMA nodes as the kubelet sees them: all of them, CPU-less ones too.

    `distances[node]` is the row of that node as the kernel prints it; the kubelet indexes the row by node id.
    Empty where distances are unknown.
    """

    nodes: tuple[int, ...]
    distances: Mapping[int, tuple[int, ...]]

    @property
    def mask(self) -> int:
        """All nodes: the affinity of whoever has no opinion."""
        return mask_of(self.nodes)

    def distance_sum(self, mask: int) -> int:
        """Sum of the distances of all ordered pairs in the mask, each node with itself included.

        Masks of one size have as many pairs, so the kubelet's comparison of means is one of sums.
        """
        nodes = nodes_of(mask)
        return sum(self.distances[a][b] for a in nodes for b in nodes)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The merged hint (stored as the affinity of the container when admitted) and whether the policy admits it."""

    hint: Hint
    admit: bool


def numa_info(machine: Machine) -> NumaInfo:
    """The NUMA nodes of a machine; unknown distances are left out."""
    distances = {node.id: node.distances for node in machine.numa_nodes if not isinstance(node.distances, Unknown)}
    return NumaInfo(tuple(node.id for node in machine.numa_nodes), distances)


PREFER_CLOSEST = "prefer-closest-numa-nodes"
MAX_ALLOWABLE = "max-allowable-numa-nodes"
BOOL_WORDS = {  # what Go's strconv.ParseBool takes
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}


def parse_bool(option: str, value: str) -> bool:
    """A truth value as the kubelet reads it in its string options. Raises InputError."""
    if value not in BOOL_WORDS:
        raise InputError(f"bad value for option {option!r}: {value!r} is not true or false")
    return BOOL_WORDS[value]


def parse_options(options: Mapping[str, str]) -> Options:
    """Read `topologyManagerPolicyOptions`. Raises InputError with the kubelet's reason."""
    unknown = sorted(options.keys() - {PREFER_CLOSEST, MAX_ALLOWABLE})
    if unknown:
        raise InputError(f"unknown Topology Manager Policy option: {unknown[0]!r}")
    closest = PREFER_CLOSEST in options and parse_bool(PREFER_CLOSEST, options[PREFER_CLOSEST])
    nodes_max = NODES_MAX_DEFAULT
    if MAX_ALLOWABLE in options:
        text = options[MAX_ALLOWABLE]
        # What Go's strconv.Atoi takes: Python's int() also takes blanks, underscores and the digits of other scripts.
        if not re.fullmatch("[+-]?[0-9]{1,18}", text):
            raise InputError(f"unable to convert policy option to integer {MAX_ALLOWABLE!r}: {text!r}")
        nodes_max = int(text)
        if nodes_max < NODES_MAX_DEFAULT:
            raise InputError(f"the minimum value of {MAX_ALLOWABLE!r} should not be less than {NODES_MAX_DEFAULT}")
    return Options(closest, nodes_max)


def start_refusal(policy: Policy, options: Options, numa: NumaInfo) -> str | None:
    """Why a kubelet would not start (or would crash) on this machine with this policy; None when it would run."""
    if policy is Policy.NONE:
        return None
    if options.prefer_closest_numa_nodes and set(numa.distances) != set(numa.nodes):
        return "cannot discover NUMA topology: error getting NUMA distances from cadvisor"
    if len(numa.nodes) > options.max_allowable_numa_nodes:
        return f"unsupported on machines with more than {options.max_allowable_numa_nodes} NUMA Nodes"
    if any(not 0 <= node <= NODE_ID_MAX for node in numa.nodes):
        return f"NUMA node ids above {NODE_ID_MAX} do not fit the kubelet's masks"
    # The kubelet looks up distance[i][j] by node id in rows that hold online nodes only
    # (topologymanager/numa_info.go CalculateAverageFor): with sparse ids it runs off the row.
    rows = numa.distances.values()
    if options.prefer_closest_numa_nodes and any(len(row) <= max(numa.nodes) for row in rows):
        return f"{PREFER_CLOSEST} crashes the kubelet on sparse NUMA node ids {numa.nodes}"
    return None


def merge(policy: Policy, options: Options, answers: Iterable[ProviderAnswer], numa: NumaInfo) -> Verdict:
    """Merge the providers' hints. The result does not depend on the order of providers or resources.

    Policy none stores no affinity and admits always. best-effort admits always; restricted and
    single-numa-node admit a preferred result only.
    """
    if policy is Policy.NONE:
        return Verdict(Hint(None, False), True)
    lists = hint_lists(answers)
    if policy is Policy.SINGLE_NUMA_NODE:
        # The option has no effect here: all masks that are left have one node, or all of them.
        best = _best(single_node_hints(lists), Options(), numa)
        if best.mask == numa.mask:
            best = Hint(None, best.preferred)
        return Verdict(best, best.preferred)
    best = _best(lists, options, numa)
    return Verdict(best, best.preferred or policy is Policy.BEST_EFFORT)


def hint_lists(answers: Iterable[ProviderAnswer]) -> list[tuple[Hint, ...]]:
    """One list of hints per provider and resource, with "no opinion" and "impossible" spelt out."""
    lists: list[tuple[Hint, ...]] = []
    for answer in answers:
        if not answer:
            lists.append((ANY_PREFERRED,))
            continue
        for hints in answer.values():
            if hints is None:
                lists.append((ANY_PREFERRED,))
            else:
                lists.append(hints or (Hint(None, False),))
    return lists


def single_node_hints(lists: Sequence[tuple[Hint, ...]]) -> list[tuple[Hint, ...]]:
    """What single-numa-node looks at: preferred hints of one node, or of any."""
    return [
        tuple(hint for hint in hints if hint.preferred and (hint.mask is None or hint.mask.bit_count() == 1))
        for hints in lists
    ]


def _best(lists: Sequence[tuple[Hint, ...]], options: Options, numa: NumaInfo) -> Hint:
    """The best hint over every combination of one hint per list; all nodes, not preferred, if there is none."""
    widest_need = max((_narrowest_width(hints) for hints in lists), default=0)
    best: Hint | None = None
    for candidate in _merged_hints(lists, numa.mask):
        best = better(best, candidate, widest_need, options, numa)
    return best or Hint(numa.mask, False)


def _narrowest_width(hints: tuple[Hint, ...]) -> int:
    return min((hint.mask.bit_count() for hint in hints if hint.mask is not None), default=0)


def _merged_hints(lists: Sequence[tuple[Hint, ...]], all_nodes: int) -> list[Hint]:
    """The distinct outcomes of all combinations, those without a node left out.

    An outcome is the intersection of the masks and whether every hint was preferred and every given mask equal.
    The lists are folded one by one and equal partial outcomes kept once, so that the cost is bounded by the
    number of masks (at most 2^n of each kind) and not by the product of the lists' lengths.
    """
    partial: set[_Partial] = {(all_nodes, None, True)}
    for hints in lists:
        distinct = set(hints)
        partial = {_combined(part, hint) for part in partial for hint in distinct}
        partial = {part for part in partial if part[0]}
    return [Hint(mask, preferred) for mask, _, preferred in sorted(partial, key=_partial_order)]


# (intersection so far, the one mask that every hint so far named or None, still preferred)
_Partial = tuple[int, int | None, bool]


def _combined(part: _Partial, hint: Hint) -> _Partial:
    mask, common, preferred = part
    if hint.mask is None:
        return (mask, common, True) if preferred and hint.preferred else (mask, None, False)
    if preferred and hint.preferred and common in (None, hint.mask):
        return mask & hint.mask, hint.mask, True
    return mask & hint.mask, None, False


def _partial_order(part: _Partial) -> tuple[int, bool]:
    return part[0], part[2]


def better(current: Hint | None, candidate: Hint, widest_need: int, options: Options, numa: NumaInfo) -> Hint:
    """Which of two merged hints the kubelet keeps; both masks are given and not empty.

    `widest_need` is the largest, over the lists, of the size of the list's narrowest mask: among hints that are
    not preferred, the one whose size comes closest to it from below wins. A total order of hints, so the
    winner does not depend on the order of comparison.
    """
    if current is None:
        return candidate
    if current.preferred != candidate.preferred:
        return current if current.preferred else candidate
    if current.preferred:
        return _fitter(current, candidate, options, numa)
    now, new = _width(current), _width(candidate)
    # 1. Too wide now: anything fitter is an improvement.
    if now > widest_need:
        return _fitter(current, candidate, options, numa)
    # 2. Exactly as wide as needed: only another of that width can be fitter.
    if now == widest_need:
        return _fitter(current, candidate, options, numa) if new == widest_need else current
    # 3. Too narrow now.
    # 3a. Do not jump over the needed width; 3b. reaching it is best.
    if new >= widest_need:
        return candidate if new == widest_need else current
    # 3c. Both too narrow: the wider comes closer (3ca, 3cb); equally wide: the fitter (3cc).
    if new != now:
        return candidate if new > now else current
    return _fitter(current, candidate, options, numa)


def _width(hint: Hint) -> int:
    assert hint.mask is not None
    return hint.mask.bit_count()


def _fitter(current: Hint, candidate: Hint, options: Options, numa: NumaInfo) -> Hint:
    """Narrower, then (with prefer-closest) nearer together, then of lower node numbers."""
    assert current.mask is not None
    assert candidate.mask is not None
    a, b = current.mask, candidate.mask
    if options.prefer_closest_numa_nodes and a.bit_count() == b.bit_count():
        return candidate if (numa.distance_sum(b), b) < (numa.distance_sum(a), a) else current
    return candidate if width_then_value(b) < width_then_value(a) else current

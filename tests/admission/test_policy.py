"""The four policies: upstream's tables, whole-node scenarios, options, refusals at start."""

from __future__ import annotations

import pytest

from tests import handmade
from tests.admission.spelling import hints, mask
from topoalloc.admission.hints import Hint, ProviderAnswer
from topoalloc.admission.policy import (
    NumaInfo,
    Options,
    Policy,
    Verdict,
    merge,
    numa_info,
    parse_options,
    start_refusal,
)
from topoalloc.errors import InputError

BE, RE, SN = Policy.BEST_EFFORT, Policy.RESTRICTED, Policy.SINGLE_NUMA_NODE


def numa(count: int) -> NumaInfo:
    return NumaInfo(tuple(range(count)), {})


def two_halves() -> NumaInfo:
    """Eight nodes: 10 to oneself, 11 within a pair of 0-1, 2-3, 4-5, 6-7, 12 within four, 30 across."""

    def distance(a: int, b: int) -> int:
        if a == b:
            return 10
        if a // 4 != b // 4:
            return 30
        return 11 if a // 2 == b // 2 else 12

    return NumaInfo(tuple(range(8)), {a: tuple(distance(a, b) for b in range(8)) for a in range(8)})


def answers(text: str) -> list[ProviderAnswer]:
    """`{0}P | {1}P, {0}n`: providers separated by |, resources by commas before a space; `-` is no opinion."""
    found: list[ProviderAnswer] = []
    for provider in text.split("|"):
        lists = [part.strip() for part in provider.split(" & ")]
        if lists == ["-"]:
            found.append(None)
        else:
            found.append({f"r{i}": hints("" if part == "empty" else part) for i, part in enumerate(lists)})
    return found


def outcome(verdict: Verdict) -> str:
    hint = verdict.hint
    text = "any" if hint.mask is None else "{" + ",".join(str(n) for n in range(64) if hint.mask >> n & 1) + "}"
    return f"{text}{'P' if hint.preferred else 'n'}" if verdict.admit else "refused"


ONE = "{0}P {1}P {0,1}n"
# name, nodes, answers, best-effort, restricted, single-numa-node
TABLE = [
    ("two agree on node 0", 4, "{0}P | {0}P", "{0}P", "{0}P", "{0}P"),
    ("one without opinion follows the other", 4, "- | {1}P", "{1}P", "{1}P", "{1}P"),
    ("the common node of several", 4, "{0}P {1}P | {1}P", "{1}P", "{1}P", "{1}P"),
    ("a wide hint that is not preferred does not disturb", 4, "{0}P {1}P | {0}P {0,1}n", "{0}P", "{0}P", "{0}P"),
    ("the narrow preferred one of three", 4, "{1}P {0,1}n | {0}P {1}P {0,1}n", "{1}P", "{1}P", "{1}P"),
    ("two nodes needed by both", 4, "{0,1}P {0,2}P | {0,1}P {0,2}P", "{0,1}P", "{0,1}P", "refused"),
    ("impossible for one", 4, "empty", "{0,1,2,3}n", "refused", "refused"),
    ("nothing in common", 4, "{0}P | {1}P", "{0,1,2,3}n", "refused", "refused"),
    ("agreed, but one is not preferred", 4, "{0}P | {0}n", "{0}n", "refused", "refused"),
    ("contained, but not equal", 4, "{1}P | {0,1}P", "{1}n", "refused", "refused"),
    ("narrow preferred ones beside a wide fragmented one", 4, "{0}P {1}P | {0,1}n", "{0}n", "refused", "refused"),
    ("the width of the needier one, {0,3}", 4, "{0,1,2,3}n {0,1}n | {0,3}n", "{0,3}n", "refused", "refused"),
    ("the width of the needier one, {2,3}", 4, "{0,1,2,3}n {0,1}n | {2,3}n", "{2,3}n", "refused", "refused"),
    ("of two of that width the lower", 4, "{0,1,2,3}n {0,1}n | {1,2}n {2,3}n", "{1,2}n", "refused", "refused"),
    ("both nodes needed by one of two", 2, f"{{0,1}}P | {ONE}", "{0,1}n", "refused", "refused"),
    ("a free choice and no opinion", 2, f"{ONE} | -", "{0}P", "{0}P", "{0}P"),
    ("S1: GPU, NIC and CPUs on an empty node", 2, f"{ONE} & {ONE} | {ONE}", "{0}P", "{0}P", "{0}P"),
    ("S2: five GPUs of 4+4, few CPUs", 2, f"{{0,1}}P | {ONE}", "{0,1}n", "refused", "refused"),
    ("S3: four GPUs, free 2+2", 2, f"{{0,1}}n | {ONE}", "{0,1}n", "refused", "refused"),
    ("S4: GPUs free on 1 only, NIC on 0 only", 2, f"{{1}}P {{0,1}}n & {{0}}P {{0,1}}n | {ONE}", "{0}n", "refused",
     "refused"),
    ("S5: two NICs of 1+1", 2, f"{ONE} & {{0,1}}P | {ONE}", "{0,1}n", "refused", "refused"),
    ("S6: GPU free on 0 only, CPUs on 1 only", 2, "{0}P {0,1}n | {1}P {0,1}n", "{0}n", "refused", "refused"),
    ("S7: GPUs listed on both nodes", 2, f"{ONE} | {ONE}", "{0}P", "{0}P", "{0}P"),
    ("S8: one GPU without node", 2, f"{{1}}P | {ONE}", "{1}P", "{1}P", "{1}P"),
    ("S9: both of them asked for", 2, f"empty | {ONE}", "{0}n", "refused", "refused"),
    ("S10: one of two on the node is broken", 2, "{0,1}n", "{0,1}n", "refused", "refused"),
    ("S11: five GPUs and forty CPUs", 2, "{0,1}P | {0,1}P", "{0,1}P", "{0,1}P", "refused"),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "given", "be", "re", "sn"), [row[1:] for row in TABLE], ids=[r[0] for r in TABLE])
def test_policies_decide_as_upstream_does(nodes: int, given: str, be: str, re: str, sn: str) -> None:
    found = [outcome(merge(policy, Options(), answers(given), numa(nodes))) for policy in (BE, RE, SN)]

    assert found == [be, re, sn]


@pytest.mark.parametrize("given", [[], [None], [{}], [{"r": None}], [None, {}, {"r": None, "s": None}]])
def test_without_any_opinion_all_nodes_are_stored_except_under_single_numa_node(given: list[ProviderAnswer]) -> None:
    found = [outcome(merge(policy, Options(), given, numa(4))) for policy in (BE, RE, SN)]

    assert found == ["{0,1,2,3}P", "{0,1,2,3}P", "anyP"]


def test_policy_none_admits_what_cannot_be_satisfied_and_stores_nothing() -> None:
    assert merge(Policy.NONE, Options(), answers("empty"), numa(2)) == Verdict(Hint(None, False), True)


def test_on_a_machine_of_one_node_single_numa_node_stores_no_affinity() -> None:
    assert outcome(merge(SN, Options(), answers("{0}P | {0}P"), numa(1))) == "anyP"


CLOSEST = Options(prefer_closest_numa_nodes=True)


@pytest.mark.parametrize(
    ("given", "be", "re", "sn"),
    [
        ("{0,1,2,3}n {0,1}n | {1,2}n {2,3}n", "{2,3}n", "refused", "refused"),
        ("{0,4}P {0,2}P | {0,4}P {0,2}P", "{0,2}P", "{0,2}P", "refused"),
        ("{4}P {0,2}P | {4}P {0,2}P", "{4}P", "{4}P", "{4}P"),
    ],
    ids=["nearer before lower", "nearer of two pairs", "narrower before nearer"],
)
def test_prefer_closest_chooses_among_sets_of_one_size(given: str, be: str, re: str, sn: str) -> None:
    found = [outcome(merge(policy, CLOSEST, answers(given), two_halves())) for policy in (BE, RE, SN)]

    assert found == [be, re, sn]


def test_options_are_read_as_the_kubelet_reads_them() -> None:
    given = {"prefer-closest-numa-nodes": "True", "max-allowable-numa-nodes": "16"}

    assert parse_options(given) == Options(True, 16)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"prefer-nearest": "true"}, "unknown Topology Manager Policy option: 'prefer-nearest'"),
        ({"prefer-closest-numa-nodes": "yes"}, "bad value for option 'prefer-closest-numa-nodes'"),
        ({"max-allowable-numa-nodes": "many"}, "unable to convert policy option to integer"),
        ({"max-allowable-numa-nodes": " 9"}, "unable to convert policy option to integer"),
        ({"max-allowable-numa-nodes": "1_0"}, "unable to convert policy option to integer"),
        ({"max-allowable-numa-nodes": "\N{ARABIC-INDIC DIGIT NINE}"}, "unable to convert policy option to integer"),
        ({"max-allowable-numa-nodes": "4"}, "should not be less than 8"),
    ],
)
def test_a_wrong_option_is_refused_with_its_name(given: dict[str, str], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        parse_options(given)


def test_more_than_eight_nodes_are_refused_at_start_unless_allowed() -> None:
    nine = numa(9)

    assert start_refusal(RE, Options(), nine) == "unsupported on machines with more than 8 NUMA Nodes"
    assert start_refusal(RE, Options(max_allowable_numa_nodes=9), nine) is None
    assert start_refusal(Policy.NONE, Options(), nine) is None
    assert start_refusal(RE, Options(), numa(8)) is None


def test_prefer_closest_without_known_distances_does_not_start() -> None:
    assert "NUMA distances" in (start_refusal(BE, CLOSEST, numa(2)) or "")


def test_prefer_closest_crashes_on_sparse_node_ids() -> None:
    sparse = NumaInfo((0, 8), {0: (10, 20), 8: (20, 10)})

    assert "sparse NUMA node ids" in (start_refusal(BE, CLOSEST, sparse) or "")
    assert start_refusal(BE, Options(), sparse) is None


def test_the_nodes_of_a_machine_include_those_without_distances() -> None:
    seen = numa_info(handmade.machine(numa=2))

    assert seen.nodes == (0, 1)
    assert seen.mask == mask("{0,1}")

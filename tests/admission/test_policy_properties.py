"""What holds for every merge: equality with the plain product, independence of order, what each policy admits."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from topoalloc.admission.hints import Hint, ProviderAnswer
from topoalloc.admission.numa_mask import masks_in_order
from topoalloc.admission.policy import NumaInfo, Options, Policy, better, hint_lists, merge, single_node_hints

ALIGNING = (Policy.BEST_EFFORT, Policy.RESTRICTED, Policy.SINGLE_NUMA_NODE)
DISTANCES = st.sampled_from((10, 11, 12, 20, 21, 30))


@st.composite
def numas(draw: st.DrawFn) -> NumaInfo:
    nodes = sorted(draw(st.sets(st.integers(0, 6), min_size=1, max_size=4)))
    row = st.lists(DISTANCES, min_size=7, max_size=7).map(tuple)
    return NumaInfo(tuple(nodes), {node: draw(row) for node in nodes})


@st.composite
def worlds(draw: st.DrawFn) -> tuple[NumaInfo, Options, list[ProviderAnswer]]:
    numa = draw(numas())
    masks = st.one_of(st.none(), st.sampled_from(list(masks_in_order(numa.nodes))))
    lists = st.lists(st.builds(Hint, masks, st.booleans()), max_size=4).map(tuple)
    answer = st.one_of(st.none(), st.dictionaries(st.sampled_from("rst"), st.one_of(st.none(), lists), max_size=2))
    return numa, Options(draw(st.booleans())), draw(st.lists(answer, max_size=3))


def fitter(current: Hint, candidate: Hint, options: Options, numa: NumaInfo) -> Hint:
    a, b = current.mask or 0, candidate.mask or 0
    if a == b:
        return current
    if a.bit_count() != b.bit_count():
        return current if a.bit_count() < b.bit_count() else candidate
    if options.prefer_closest_numa_nodes:
        mean_a, mean_b = mean(a, numa), mean(b, numa)
        if mean_a != mean_b:
            return current if mean_a < mean_b else candidate
    return current if a < b else candidate


def mean(mask: int, numa: NumaInfo) -> float:
    nodes = [node for node in range(64) if mask >> node & 1]
    return sum(float(numa.distances[i][j]) for i in nodes for j in nodes) / len(nodes) ** 2


def product_merge(lists: Sequence[tuple[Hint, ...]], options: Options, numa: NumaInfo) -> Hint:
    """Every combination in turn, compared as the cases of the kubelet's comparison read."""
    widest = max((min((h.mask.bit_count() for h in hs if h.mask is not None), default=0) for hs in lists), default=0)
    best: Hint | None = None
    for combination in product(*lists):
        given_masks = [hint.mask for hint in combination if hint.mask is not None]
        mask = numa.mask
        for given_mask in given_masks:
            mask &= given_mask
        if mask == 0:
            continue
        preferred = all(hint.preferred for hint in combination) and len(set(given_masks)) <= 1
        best = kept(best, Hint(mask, preferred), widest, options, numa)
    return best or Hint(numa.mask, False)


def kept(current: Hint | None, new: Hint, widest: int, options: Options, numa: NumaInfo) -> Hint:
    if current is None or (new.preferred and not current.preferred):
        return new
    if current.preferred and not new.preferred:
        return current
    now, then = (current.mask or 0).bit_count(), (new.mask or 0).bit_count()
    if current.preferred or now > widest or now == then:
        return fitter(current, new, options, numa)
    if now == widest or then > widest:
        return current
    return new if then == widest or then > now else current


@given(worlds())
def test_the_fold_equals_the_plain_product_of_all_combinations(
    world: tuple[NumaInfo, Options, list[ProviderAnswer]],
) -> None:
    numa, options, answers = world
    lists = hint_lists(answers)

    assert merge(Policy.RESTRICTED, options, answers, numa).hint == product_merge(lists, options, numa)
    single = product_merge(single_node_hints(lists), Options(), numa)
    found = merge(Policy.SINGLE_NUMA_NODE, options, answers, numa).hint
    assert found == (Hint(None, single.preferred) if single.mask == numa.mask else single)


@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_of_providers_resources_and_hints_does_not_matter(
    world: tuple[NumaInfo, Options, list[ProviderAnswer]], chance: random.Random
) -> None:
    numa, options, answers = world
    shuffled: list[ProviderAnswer] = []
    for answer in chance.sample(answers, len(answers)):
        if answer is None:
            shuffled.append(None)
            continue
        names = chance.sample(sorted(answer), len(answer))
        found = {name: answer[name] for name in names}
        shuffled.append({n: None if hs is None else tuple(chance.sample(hs, len(hs))) for n, hs in found.items()})

    for policy in ALIGNING:
        assert merge(policy, options, answers, numa) == merge(policy, options, shuffled, numa)


@given(worlds())
def test_restricted_admits_only_what_best_effort_calls_preferred(
    world: tuple[NumaInfo, Options, list[ProviderAnswer]],
) -> None:
    numa, options, answers = world
    loose, strict = (merge(policy, options, answers, numa) for policy in ALIGNING[:2])

    assert loose.admit
    assert loose.hint == strict.hint
    assert strict.admit is strict.hint.preferred


@given(worlds())
def test_single_numa_node_admits_one_node_or_no_opinion(
    world: tuple[NumaInfo, Options, list[ProviderAnswer]],
) -> None:
    numa, options, answers = world
    verdict = merge(Policy.SINGLE_NUMA_NODE, options, answers, numa)

    if verdict.admit:
        assert verdict.hint.mask is None or verdict.hint.mask.bit_count() == 1


@given(worlds())
def test_what_single_numa_node_admits_restricted_admits_too(
    world: tuple[NumaInfo, Options, list[ProviderAnswer]],
) -> None:
    numa, options, answers = world

    if merge(Policy.SINGLE_NUMA_NODE, options, answers, numa).admit:
        assert merge(Policy.RESTRICTED, options, answers, numa).admit


@given(numas(), st.booleans(), st.integers(0, 4), st.data())
def test_the_comparison_is_a_total_order(numa: NumaInfo, closest: bool, widest: int, data: st.DataObject) -> None:
    hints = st.builds(Hint, st.sampled_from(list(masks_in_order(numa.nodes))), st.booleans())
    a, b, c = data.draw(hints), data.draw(hints), data.draw(hints)
    options = Options(closest)

    def best(*found: Hint) -> Hint | None:
        kept_: Hint | None = None
        for hint in found:
            kept_ = better(kept_, hint, widest, options, numa)
        return kept_

    assert best(a, b) == best(b, a)
    assert best(a, b, c) == best(c, b, a) == best(b, c, a)


def test_eight_nodes_and_six_resources_with_every_mask_take_well_under_a_second() -> None:
    numa = NumaInfo(tuple(range(8)), {})
    every = tuple(Hint(mask, False) for mask in masks_in_order(numa.nodes))
    answers: list[ProviderAnswer] = [dict.fromkeys("abcdef", every)]
    begun = time.process_time()

    verdict = merge(Policy.RESTRICTED, Options(), answers, numa)

    assert verdict.hint == Hint(1, False)
    assert time.process_time() - begun < 1

"""Why a want cannot be met, and what would have had to be free."""

from __future__ import annotations

from collections.abc import Iterable

from topoalloc.placement.ask import Ask, contention
from topoalloc.placement.board import Board
from topoalloc.placement.nearness import mask_of, mask_union, positions
from topoalloc.placement.offer import Offer, Want
from topoalloc.sharing.settings import CORES_PER_GPU
from topoalloc.wording import plural

NAMES_MAX = 8  # more devices than this in one sentence help nobody
NIC_POOLS_MAX = 8  # all 2^8 groups of pools are looked at where pools compete for NICs


def reasons_against(board: Board, want: Want, offer: Offer, ask: Ask) -> tuple[str, ...]:
    """Every reason why no answer exists to a well-formed want that cannot be satisfied."""
    if want.cores >= CORES_PER_GPU:
        reasons = [*_whole_reasons(board, want, offer, ask)]
    elif want.cores or want.memory_units:
        reasons = [*_share_reasons(board, want, offer, ask)]
    elif ask.fixed:
        reasons = [f"{_names(board.gpu_ids, ask.fixed)} would have to be part of it, but no GPU is asked"]
    else:
        reasons = []
    reasons.extend(_nic_reasons(board, ask))
    return tuple(reasons)


def malformed(board: Board, want: Want, offer: Offer) -> str | None:
    """Why a want makes no sense, whatever is free."""
    if want.cores < 0 or want.memory_units < 0 or any(count < 0 for count in want.nics):
        return "a negative amount cannot be asked"
    if want.cores > CORES_PER_GPU and want.cores % CORES_PER_GPU:
        return f"{want.cores} cores are neither a share of one GPU (1 to 99) nor whole GPUs (a multiple of 100)"
    if len(want.nics) > NIC_POOLS_MAX:
        return f"{len(want.nics)} NIC pools are asked by one container, at most {NIC_POOLS_MAX} can be"
    if len(offer.gpus) != len(board.gpu_ids) or not len(want.nics) == len(offer.nics_free) == len(offer.nics_fixed):
        return "the offer is for another machine or other NIC pools"
    if want.memory_units and any(gpu.memory_units_free is None for gpu in offer.gpus):
        return "GPU memory is asked, but not served on this node because the memory of its GPUs is not known"
    return None


def _whole_reasons(board: Board, want: Want, offer: Offer, ask: Ask) -> Iterable[str]:
    size, given = ask.size, ask.usable.bit_count()
    missing = size - given
    held = _held(offer)
    if size > len(board.gpu_ids):
        yield f"{plural(size, 'whole GPU')} asked, the node has {len(board.gpu_ids)}"
        return
    if ask.fixed.bit_count() > size:
        yield f"{_names(board.gpu_ids, ask.fixed)} would all have to be part of it, but {plural(size, 'GPU')} asked"
        return
    if ask.fixed & ~ask.usable:
        yield f"{_names(board.gpu_ids, ask.fixed & ~ask.usable)} must be part of it but cannot be given whole"
    if missing > 0:
        have = f" ({_names(board.gpu_ids, ask.usable)})" if given else ""
        yield f"{plural(size, 'whole GPU')} asked, {given} can be given{have}{_remedy(board, offer, missing, held)}"
        return
    if ask.memory and ask.memory_most() < want.memory_units:
        asked = plural(want.memory_units, "memory unit")
        yield f"{asked} asked, but {plural(size, 'GPU')} here have {ask.memory_most()} at most"


def _remedy(board: Board, offer: Offer, missing: int, held: int) -> str:
    """What would have had to be free or allowed for the missing GPUs."""
    closed = mask_of(offer.gpus_closed) & ~held
    texts = []
    if held:
        texts.append(f"held by others or not offered: {_names(board.gpu_ids, held)}")
    if closed:
        texts.append(f"ruled out by what the container already has: {_names(board.gpu_ids, closed)}")
    return f"; {missing} more of these would have to be free: {'; '.join(texts)}"


def _share_reasons(board: Board, want: Want, offer: Offer, ask: Ask) -> Iterable[str]:
    asked = _amounts(want.cores, want.memory_units)
    if ask.fixed.bit_count() > 1:
        yield f"a share lies on one GPU, but {_names(board.gpu_ids, ask.fixed)} would all have to be part of it"
        return
    if ask.fixed & ask.usable or (not ask.fixed and ask.usable):
        return
    bound = positions(ask.fixed)
    if bound:
        gpu = bound[0]
        closed = " and is ruled out" if gpu in offer.gpus_closed else ""
        yield f"{asked} asked on {board.gpu_ids[gpu]}, which {_lacks(want, offer, gpu) or 'has room'}{closed}"
        return
    open_gpus = [gpu for gpu in range(len(offer.gpus)) if gpu not in offer.gpus_closed]
    if not open_gpus:
        yield f"{asked} asked, but no GPU may be used"
        return
    nearest = sorted(open_gpus, key=lambda gpu: (_shortfall(want, offer, gpu), gpu))[:NAMES_MAX]
    lacking = ", ".join(f"{board.gpu_ids[gpu]} {_lacks(want, offer, gpu)}" for gpu in nearest)
    yield f"no GPU has {asked} free at once: {lacking}"


def _lacks(want: Want, offer: Offer, gpu: int) -> str:
    cores = max(0, want.cores - offer.gpus[gpu].cores_free)
    memory = max(0, want.memory_units - (offer.gpus[gpu].memory_units_free or 0))
    return f"lacks {_amounts(cores, memory)}" if cores or memory else ""


def _shortfall(want: Want, offer: Offer, gpu: int) -> int:
    """How far a GPU is from fitting, per cent of what is asked in the worse dimension."""
    cores = want.cores - offer.gpus[gpu].cores_free
    memory = want.memory_units - (offer.gpus[gpu].memory_units_free or 0)
    return max(0, cores * 100 // max(1, want.cores), memory * 100 // max(1, want.memory_units))


def _nic_reasons(board: Board, ask: Ask) -> Iterable[str]:
    pools = ask.pools
    for number, pool in enumerate(pools, 1):
        which = f" of NIC pool {number}" if len(pools) > 1 else ""
        if pool.fixed.bit_count() > pool.count:
            names = _names(board.nic_ids, pool.fixed)
            yield f"{names}{which} would all have to be part of it, but {plural(pool.count, 'NIC')} asked"
        elif pool.free.bit_count() < pool.count:
            free = pool.free.bit_count()
            have = f" ({_names(board.nic_ids, pool.free)})" if free else ""
            more = pool.count - free
            yield f"{plural(pool.count, 'NIC')}{which} asked, {free} free{have}; {more} more would have to be free"
    for number, pool in enumerate(pools):
        twice = mask_union(other.fixed for other in pools[:number]) & pool.fixed
        if twice:
            yield f"{_names(board.nic_ids, twice)} would have to serve two NIC pools of the container"
    rivals = contention(pools) if ask.entangled else None
    if rivals is not None and len(rivals) > 1:
        union = mask_union(pool.free for pool in rivals)
        have = f"{union.bit_count()} free together ({_names(board.nic_ids, union)})"
        yield f"{plural(sum(pool.count for pool in rivals), 'NIC')} asked from pools that have {have}"


def _held(offer: Offer) -> int:
    return mask_of(gpu for gpu, here in enumerate(offer.gpus) if not here.whole_free)


def _amounts(cores: int, memory_units: int) -> str:
    parts = [plural(cores, "core")] if cores else []
    parts += [plural(memory_units, "memory unit")] if memory_units else []
    return " and ".join(parts) or "nothing"


def _names(ids: tuple[str, ...], mask: int) -> str:
    members = positions(mask)
    names = ", ".join(ids[position] for position in members[:NAMES_MAX])
    return names if len(members) <= NAMES_MAX else f"{names} and {len(members) - NAMES_MAX} more"

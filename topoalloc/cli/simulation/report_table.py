"""The outcome of a run as a table for people: a line per container, the reason below a refused pod, a summary."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence

from topoalloc.cli.simulation.outcome import ContainerOutcome, PairLink, PodOutcome
from topoalloc.cli.simulation.rehearsal import Rehearsal
from topoalloc.kubelet.simulated.settings import KubeletSettings
from topoalloc.topology.machine import Machine
from topoalloc.topology.sizes import size_words
from topoalloc.wording import plural

HEADINGS = ("POD", "CONTAINER", "VERDICT", "GPUS", "NICS", "NUMA", "LINKS", "CPUS")
NOTHING = "-"
PAIRS_NAMED_MAX = 1  # beyond it links are counted by class; the JSON form lists every pair
REASON_COLUMNS = 110  # a refusal is a sentence; it is wrapped to be read, not cut


def table_text(rehearsal: Rehearsal, settings: KubeletSettings, seed: int, machine: Machine) -> str:
    """The whole answer, ending in a line break."""
    rows: list[tuple[str, ...]] = [HEADINGS]
    reasons: dict[int, list[str]] = {}
    for pod in rehearsal.pods:
        rows.extend(_rows(pod))
        if not pod.admitted:
            reasons[len(rows) - 1] = _reason_lines(pod)
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    shown = [column for column in range(len(HEADINGS)) if any(row[column] not in (NOTHING, "") for row in rows[1:])]
    lines = [_heading(settings, seed, machine), ""]
    for number, row in enumerate(rows):
        lines.append("  ".join(row[column].ljust(widths[column]) for column in shown).rstrip())
        lines.extend(reasons.get(number, []))
    return "\n".join([*lines, "", _summary(rehearsal.pods), ""])


def _heading(settings: KubeletSettings, seed: int, machine: Machine) -> str:
    models = Counter(gpu.model if isinstance(gpu.model, str) else "" for gpu in machine.gpus)
    things = [f"{plural(count, 'GPU')}{model and f' ({model})'}" for model, count in models.items()] or ["no GPU"]
    things.append(plural(len(machine.nics), "NIC"))
    things.append(plural(len(machine.numa_nodes), "NUMA node"))
    return f"{', '.join(things)}; policy {settings.policy}, scope {settings.scope}, seed {seed}"


def _rows(pod: PodOutcome) -> list[tuple[str, ...]]:
    name = pod.name if pod.namespace == "default" else f"{pod.namespace}/{pod.name}"
    verdict = "admitted" if pod.admitted else "REFUSED"
    if not pod.containers:
        return [(name, NOTHING, verdict, *[NOTHING] * 5)]
    return [
        (name if number == 0 else "", *_container_cells(container, verdict if number == 0 else ""))
        for number, container in enumerate(pod.containers)
    ]


def _container_cells(container: ContainerOutcome, verdict: str) -> tuple[str, ...]:
    nodes = container.numa_nodes
    return (
        f"{container.name} (init)" if container.init else container.name,
        verdict,
        _gpus_cell(container),
        " ".join(container.nics) or NOTHING,
        NOTHING if nodes is None else ",".join(str(node) for node in nodes),
        _links_cell(container.links),
        container.cpus or NOTHING,
    )


def _gpus_cell(container: ContainerOutcome) -> str:
    """`GPU0 GPU1 whole`, `GPU3 30 cores 8 GiB`."""
    whole = [share.id for share in container.gpus if share.whole]
    parts = [f"{' '.join(whole)} whole"] if whole else []
    for share in container.gpus:
        if not share.whole:
            memory = "" if share.memory_bytes is None else f" {size_words(share.memory_bytes)}"
            parts.append(f"{share.id} {plural(share.cores, 'core')}{memory}")
    return ", ".join(parts) or NOTHING


def _links_cell(links: Sequence[PairLink]) -> str:
    """`GPU0-NIC1 PXB` for one pair, else `6 NV12, 8 PXB, 8 SYS`: GPU to GPU first, then GPU to NIC."""
    if not links:
        return NOTHING
    if len(links) <= PAIRS_NAMED_MAX:
        return ", ".join(f"{link.a}-{link.b} {link.link_class or 'unknown'}" for link in links)
    parts = []
    for kind in ("GPU", "NIC"):
        classes = Counter(link.link_class or "unknown" for link in links if link.b.startswith(kind))
        if classes:
            parts.append(f"to {kind}s: " + ", ".join(f"{count} {name}" for name, count in classes.items()))
    return "; ".join(parts)


def _reason_lines(pod: PodOutcome) -> list[str]:
    assert pod.refusal is not None
    told = [f"{pod.refusal.reason}: {pod.refusal.message}"]
    told.extend(f"{label}: {text}" for label, text in (("why", pod.why), ("remedy", pod.remedy)) if text)
    return [
        line
        for text in told
        for line in textwrap.wrap(text, REASON_COLUMNS, initial_indent="    ", subsequent_indent="      ")
    ]


def _summary(pods: Sequence[PodOutcome]) -> str:
    admitted = sum(pod.admitted for pod in pods)
    reasons = Counter(pod.refusal.reason for pod in pods if pod.refusal is not None)
    refused = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    text = f"{plural(len(pods), 'pod')}: {admitted} admitted, {len(pods) - admitted} refused"
    return f"{text} ({refused})" if refused else text

"""Why the kubelet turns a pod away: the reason word and the message that end up in the pod's status."""

from __future__ import annotations

from dataclasses import dataclass

# status.message of a refused pod is this prefix and the message.
STATUS_PREFIX = "Pod was rejected: "


@dataclass(frozen=True, slots=True)
class Refusal:
    """`reason` is status.reason, `message` the event's text (status.message has `STATUS_PREFIX` before it)."""

    reason: str
    message: str

    @property
    def status_message(self) -> str:
        return STATUS_PREFIX + self.message


TOPOLOGY_AFFINITY = Refusal("TopologyAffinityError", "Resources cannot be allocated with Topology locality")


def unexpected(error: str) -> Refusal:
    """An allocator failed: a device plugin's error, or not enough CPUs or memory (pkg/kubelet/cm/admission)."""
    return Refusal("UnexpectedAdmissionError", f"Allocate failed due to {error}, which is unexpected")


def smt_alignment(error: str) -> Refusal:
    """The CPU manager's `full-pcpus-only` refused."""
    return Refusal("SMTAlignmentError", error)


def out_of(resource: str, requested: int, used: int, capacity: int) -> Refusal:
    """The fit predicate refused; cpu counts in thousandths."""
    counts = f"requested: {requested}, used: {used}, capacity: {capacity}"
    return Refusal(f"OutOf{resource}", f"Node didn't have enough resource: {resource}, {counts}")

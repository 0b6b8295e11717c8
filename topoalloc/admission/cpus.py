"""The static CPU manager: hints for whole CPUs, and which CPUs a container gets.

Semantics of pkg/kubelet/cm/cpumanager/policy_static.go (1.37).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from topoalloc.admission.cpu_distribute import take_distributed
from topoalloc.admission.cpu_take import NotTaken, take_packed
from topoalloc.admission.cpu_topology import CpuTopology
from topoalloc.admission.hints import UNSATISFIABLE, Hint, ProviderAnswer
from topoalloc.admission.numa_mask import ENUMERATED_NODES_MAX, masks_in_order, nodes_of
from topoalloc.admission.pod import CPU, Container, Pod, Qos, qos
from topoalloc.admission.policy import Policy, parse_bool
from topoalloc.admission.quantity import ZERO
from topoalloc.admission.refusal import Refusal, smt_alignment, unexpected
from topoalloc.errors import InputError
from topoalloc.topology.cpus import CpuSet


@dataclass(frozen=True, slots=True)
class CpuOptions:
    """`cpuManagerPolicyOptions` that are understood; others are refused by name."""

    full_pcpus_only: bool = False
    distribute_cpus_across_numa: bool = False
    align_by_socket: bool = False
    distribute_cpus_across_cores: bool = False
    strict_cpu_reservation: bool = False


OPTION_FIELDS = {
    "full-pcpus-only": "full_pcpus_only",
    "distribute-cpus-across-numa": "distribute_cpus_across_numa",
    "align-by-socket": "align_by_socket",
    "distribute-cpus-across-cores": "distribute_cpus_across_cores",
    "strict-cpu-reservation": "strict_cpu_reservation",
}
# Known to the kubelet and not understood here, with the reason.
OPTIONS_REFUSED = {"prefer-align-cpus-by-uncorecache": "last-level caches are not part of the machine model"}
# Options below a feature gate: the gate, its default, and how the kubelet calls the level.
GATED_OPTIONS = {
    "align-by-socket": ("CPUManagerPolicyAlphaOptions", False, "Alpha"),
    "distribute-cpus-across-cores": ("CPUManagerPolicyAlphaOptions", False, "Alpha"),
    "distribute-cpus-across-numa": ("CPUManagerPolicyBetaOptions", True, "Beta"),
}
# The kubelet refuses these together (policy_options.go).
EXCLUSIVE_OPTIONS = (
    ("full-pcpus-only", "distribute-cpus-across-cores"),
    ("distribute-cpus-across-numa", "distribute-cpus-across-cores"),
)


@dataclass(frozen=True, slots=True)
class CpuManager:
    """What does not change while the kubelet runs."""

    topology: CpuTopology
    reserved: CpuSet
    options: CpuOptions

    @property
    def reserved_cores(self) -> CpuSet:
        """The reserved CPUs and their sibling threads: full-pcpus-only gives out neither."""
        bits = 0
        for cpu in self.reserved:
            bits |= self.topology.by_core[self.topology.places[cpu].core].bits
        return CpuSet(bits)


@dataclass(frozen=True, slots=True)
class CpuState:
    """`shared` is the default CPU set (reserved CPUs included unless strictly reserved); `assigned` is keyed by
    (pod uid, container name). `reusable` belongs to the pod `reuse_pod`."""

    shared: CpuSet
    assigned: Mapping[tuple[str, str], CpuSet] = field(default_factory=dict)
    reuse_pod: str = ""
    reusable: CpuSet = field(default_factory=CpuSet)


def parse_cpu_options(options: Mapping[str, str], feature_gates: Mapping[str, bool] | None = None) -> CpuOptions:
    """Read `cpuManagerPolicyOptions`, under the `featureGates` of the same configuration.

    Raises InputError that names the option.
    """
    for name in sorted(options):
        if name in OPTIONS_REFUSED:
            raise InputError(f"CPU Manager policy option {name!r} is not supported: {OPTIONS_REFUSED[name]}")
        if name not in OPTION_FIELDS:
            raise InputError(f"unknown CPU Manager Policy option: {name!r}")
        gate, default, level = GATED_OPTIONS.get(name, ("", True, ""))
        if not (feature_gates or {}).get(gate, default):
            missing = f"CPU Manager Policy {level}-level Options not enabled, but option {name!r} provided"
            raise InputError(f"{missing}: set the feature gate {gate}")
    values = {OPTION_FIELDS[name]: parse_bool(name, value) for name, value in options.items()}
    for one, other in EXCLUSIVE_OPTIONS:
        if values.get(OPTION_FIELDS[one]) and values.get(OPTION_FIELDS[other]):
            raise InputError(f"static policy options {one} and {other} can not be used at the same time")
    return CpuOptions(**values)


def start(
    topology: CpuTopology, reserved: CpuSet | int, options: CpuOptions, policy: Policy
) -> tuple[CpuManager, CpuState]:
    """The manager of a freshly started kubelet. `reserved` is `reservedSystemCPUs`, or how many CPUs to set aside
    (kubeReserved plus systemReserved, rounded up).

    Raises InputError where the kubelet would not start.
    """
    if not reserved:
        raise InputError("the static CPU policy requires systemReserved.cpu + kubeReserved.cpu to be greater than zero")
    _check_options(topology, options, policy)
    manager = CpuManager(topology, CpuSet(), options)
    chosen = reserved if isinstance(reserved, CpuSet) else _take(manager, topology.cpus, reserved)
    if isinstance(chosen, NotTaken):
        raise InputError(f"unable to reserve {reserved} CPUs: {chosen.text}")
    if chosen - topology.cpus:
        raise InputError(f"reserved CPUs {chosen - topology.cpus} do not exist; online are {topology.cpus}")
    shared = topology.cpus - chosen if options.strict_cpu_reservation else topology.cpus
    return CpuManager(topology, chosen, options), CpuState(shared)


def _check_options(topology: CpuTopology, options: CpuOptions, policy: Policy) -> None:
    if options.align_by_socket and policy is Policy.SINGLE_NUMA_NODE:
        raise InputError("align-by-socket does not go with the topology manager policy single-numa-node")
    if options.align_by_socket and topology.socket_count > len(topology.numa_nodes):
        raise InputError("align-by-socket does not go with hardware that has more sockets than NUMA nodes")
    if options.distribute_cpus_across_numa and len(topology.numa_nodes) > ENUMERATED_NODES_MAX:
        raise InputError(f"distribute-cpus-across-numa is predicted for at most {ENUMERATED_NODES_MAX} NUMA nodes")


def exclusive_cpus(pod: Pod, container: Container) -> int:
    """How many CPUs of its own the container gets: whole requests of Guaranteed pods, else 0."""
    asked = container.requests.get(CPU, ZERO)
    return asked.value if qos(pod) is Qos.GUARANTEED and asked.is_whole else 0


def exclusive_cpus_of_pod(pod: Pod) -> int:
    """The same for the pod at its worst moment; init containers count with the sidecars started before them."""
    running = sidecars = peak = 0
    for container in pod.containers:
        asked = exclusive_cpus(pod, container)
        if container.init and not container.restartable:
            peak = max(peak, sidecars + asked)
        else:
            running += asked
            sidecars += asked if container.restartable else 0
    return max(running, peak)


def container_hints(manager: CpuManager, state: CpuState, pod: Pod, container: Container) -> ProviderAnswer:
    """The CPU manager's answer in container scope; None unless the container gets CPUs of its own."""
    request = exclusive_cpus(pod, container)
    if request == 0 or pod.has_pod_level_resources:
        return None
    assigned = state.assigned.get((pod.uid, container.name))
    if assigned is not None:
        if len(assigned) != request:
            return {CPU: UNSATISFIABLE}
        return {CPU: _generate(manager, assigned, CpuSet(), request)}
    return {CPU: _generate(manager, state.shared - manager.reserved, _reusable(state, pod), request)}


def pod_hints(manager: CpuManager, state: CpuState, pod: Pod) -> ProviderAnswer:
    """The CPU manager's answer in pod scope; CPUs that containers of the pod have already must be inside."""
    request = exclusive_cpus_of_pod(pod)
    if request == 0 or pod.has_pod_level_resources:
        return None
    assigned = CpuSet()
    for container in pod.containers:
        cpus = state.assigned.get((pod.uid, container.name))
        if cpus is None:
            continue
        if len(cpus) != exclusive_cpus(pod, container):
            return {CPU: UNSATISFIABLE}
        assigned = assigned | cpus
    if len(assigned) == request:
        return {CPU: _generate(manager, assigned, CpuSet(), request)}
    reusable = _reusable(state, pod) | assigned
    return {CPU: _generate(manager, state.shared - manager.reserved, reusable, request)}


def _reusable(state: CpuState, pod: Pod) -> CpuSet:
    return state.reusable if state.reuse_pod == pod.uid else CpuSet()


def _generate(manager: CpuManager, free: CpuSet, reusable: CpuSet, request: int) -> tuple[Hint, ...]:
    topology = manager.topology
    nodes = topology.numa_nodes
    width_min = len(nodes)
    masks: list[int] = []
    for mask in masks_in_order(nodes):
        inside = topology.cpus_of_nodes(nodes_of(mask))
        # Reserved and given-out CPUs count here: "preferred" is about the hardware.
        if len(inside) >= request and mask.bit_count() < width_min:
            width_min = mask.bit_count()
        if not reusable - inside and len(reusable) + len(free & inside) >= request:
            masks.append(mask)
    return tuple(Hint(mask, _is_preferred(manager, mask, width_min)) for mask in masks)


def _is_preferred(manager: CpuManager, mask: int, width_min: int) -> bool:
    """As narrow as can be, or with align-by-socket: in as few sockets as can be."""
    if mask.bit_count() == width_min:
        return True
    nodes_per_socket = len(manager.topology.numa_nodes) // manager.topology.socket_count
    if not manager.options.align_by_socket or nodes_per_socket == 0:
        return False
    sockets_min = -(-width_min // nodes_per_socket)
    return len(manager.topology.sockets_of_nodes(nodes_of(mask))) == sockets_min


def allocate(
    manager: CpuManager, state: CpuState, pod: Pod, container: Container, affinity: int | None
) -> CpuState | Refusal:
    """Give the container its CPUs: first from `affinity`, the rest from elsewhere. Unchanged if it gets none."""
    request = exclusive_cpus(pod, container)
    if request == 0 or pod.has_pod_level_resources:
        return state
    owner = (pod.uid, container.name)
    if owner in state.assigned:
        return _with_reuse(state, pod, container, state.assigned[owner])
    misaligned = _smt_fault(manager, state, request)
    if misaligned is not None:
        return smt_alignment(misaligned)
    free = (state.shared - manager.reserved) | _reusable(state, pod)
    chosen = _choose(manager, free, request, affinity)
    if isinstance(chosen, NotTaken):
        return unexpected(chosen.text)
    given = replace(state, shared=state.shared - chosen, assigned={**state.assigned, owner: chosen})
    return _with_reuse(given, pod, container, chosen)


def _choose(manager: CpuManager, free: CpuSet, request: int, affinity: int | None) -> CpuSet | NotTaken:
    taken = CpuSet()
    if affinity is not None:
        inside = free & _aligned(manager, affinity)
        first = _take(manager, inside, min(request, len(inside)))
        if isinstance(first, NotTaken):
            return first
        taken = first
    rest = _take(manager, free - taken, request - len(taken))
    return rest if isinstance(rest, NotTaken) else taken | rest


def _aligned(manager: CpuManager, affinity: int) -> CpuSet:
    """The CPUs of the affinity; with align-by-socket those of all sockets that it touches."""
    topology = manager.topology
    if not manager.options.align_by_socket:
        return topology.cpus_of_nodes(nodes_of(affinity))
    bits = 0
    for socket in topology.sockets_of_nodes(nodes_of(affinity)):
        bits |= topology.by_socket[socket].bits
    return CpuSet(bits)


def _take(manager: CpuManager, available: CpuSet, count: int) -> CpuSet | NotTaken:
    options, topology = manager.options, manager.topology
    if options.distribute_cpus_across_numa:
        group_size = topology.cpus_per_core if options.full_pcpus_only else 1
        return take_distributed(
            topology, available, count, group_size=group_size, align_by_socket=options.align_by_socket
        )
    return take_packed(topology, available, count, spread_over_cores=options.distribute_cpus_across_cores)


def _smt_fault(manager: CpuManager, state: CpuState, request: int) -> str | None:
    """full-pcpus-only: whole cores only, and enough of them outside the reserved ones. Under every policy."""
    if not manager.options.full_pcpus_only:
        return None
    per_core = manager.topology.cpus_per_core
    if request % per_core:
        return f"SMT Alignment Error: requested {request} cpus not multiple cpus per core = {per_core}"
    available = len(state.shared - manager.reserved_cores)
    if request > available:
        counts = f"available physical CPUs = {available}, requested CPUs = {request}, CPUs per core = {per_core}"
        return f"SMT Alignment Error: not enough free physical CPUs: {counts}"
    return None


def _with_reuse(state: CpuState, pod: Pod, container: Container, cpus: CpuSet) -> CpuState:
    """Ordinary init containers leave their CPUs to the containers after them; others keep theirs."""
    before = _reusable(state, pod)
    leaves = container.init and not container.restartable
    return replace(state, reuse_pod=pod.uid, reusable=before | cpus if leaves else before - cpus)


def removed(state: CpuState, pod_uid: str, container: str) -> CpuState:
    """The container is gone: its CPUs return to the shared set unless a sibling still has them."""
    owner = (pod_uid, container)
    if owner not in state.assigned:
        return state
    assigned = {other: cpus for other, cpus in state.assigned.items() if other != owner}
    freed = state.assigned[owner]
    for (uid, _), cpus in assigned.items():
        if uid == pod_uid:
            freed = freed - cpus
    return replace(state, shared=state.shared | freed, assigned=assigned)


def collect(state: CpuState, active_pods: frozenset[str]) -> CpuState:
    """Free the CPUs of pods that are no longer active; the kubelet does so before every hint and allocation."""
    for pod_uid, container in sorted(state.assigned):
        if pod_uid not in active_pods:
            state = removed(state, pod_uid, container)
    return state

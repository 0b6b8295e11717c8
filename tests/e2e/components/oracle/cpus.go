package main

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/state"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"k8s.io/utils/cpuset"
)

// cpuSide is the static CPU policy with its state in memory: what the CPU manager puts behind the topology
// manager, without the container runtime.
type cpuSide struct {
	policy cpumanager.Policy
	state  state.State
}

func newCPUSide(c *CPUConfig, store topologymanager.Store) (*cpuSide, error) {
	reserved, err := cpuset.Parse(c.Reserved)
	if err != nil {
		return nil, err
	}
	count := c.Count
	if reserved.Size() > 0 {
		count = reserved.Size()
	}
	policy, err := cpumanager.NewStaticPolicy(discard, c.topology(), count, reserved, store, c.Options)
	if err != nil {
		return nil, err
	}
	side := &cpuSide{policy, state.NewMemoryState(discard)}
	return side, policy.Start(discard, side.state)
}

func (c *cpuSide) GetTopologyHints(
	logger klog.Logger, pod *v1.Pod, container *v1.Container, operation lifecycle.Operation,
) map[string][]topologymanager.TopologyHint {
	return c.policy.GetTopologyHints(logger, c.state, pod, container, operation)
}

func (c *cpuSide) GetPodTopologyHints(
	logger klog.Logger, pod *v1.Pod, operation lifecycle.Operation,
) map[string][]topologymanager.TopologyHint {
	return c.policy.GetPodTopologyHints(logger, c.state, pod, operation)
}

func (c *cpuSide) AllocatePod(logger klog.Logger, pod *v1.Pod, operation lifecycle.Operation) error {
	return c.policy.AllocatePod(logger, c.state, pod, operation)
}

func (c *cpuSide) Allocate(
	_ context.Context, pod *v1.Pod, container *v1.Container, operation lifecycle.Operation,
) error {
	return c.policy.Allocate(discard, c.state, pod, container, operation)
}

func (c *cpuSide) forget(uid, container string) {
	// An error means that nothing was assigned.
	_ = c.policy.RemoveContainer(discard, c.state, uid, container)
}

func (c *cpuSide) shared() string { return c.state.GetDefaultCPUSet().String() }

// assigned is each container's own CPUs.
func (c *cpuSide) assigned(uid string) map[string]string {
	own := map[string]string{}
	for container, cpus := range c.state.GetCPUAssignments()[uid] {
		own[container] = cpus.String()
	}
	return own
}

func (c *cpuSide) allocateStep(pod *v1.Pod, s Step) any {
	err := c.Allocate(context.Background(), pod, containerOf(pod, s.Container), lifecycle.AddOperation)
	reply := map[string]any{"shared": c.shared()}
	if own, given := c.assigned(s.UID)[s.Container]; given {
		reply["cpus"] = own
	}
	if err != nil {
		reply["error"] = err.Error()
	}
	return reply
}

func hintsStep(provider topologymanager.HintProvider, pod *v1.Pod, s Step) any {
	if s.Container == "" {
		return fromHints(provider.GetPodTopologyHints(discard, pod, lifecycle.AddOperation))
	}
	container := containerOf(pod, s.Container)
	return fromHints(provider.GetTopologyHints(discard, pod, container, lifecycle.AddOperation))
}

// cpus leads the static CPU policy through a conversation, the topology manager's affinity given in the steps.
func cpus(q Request) any {
	w := newWorld()
	w.policy = policyOf(q)
	side, err := newCPUSide(q.CPU, w)
	if err != nil {
		return map[string]any{"error": err.Error()}
	}
	replies := []any{map[string]any{
		"shared":      side.shared(),
		"allocatable": side.policy.GetAllocatableCPUs(side.state).String(),
	}}
	for _, s := range q.Steps {
		var reply any
		switch s.Do {
		case "pod":
			w.add(s.Pod)
		case "hints":
			reply = hintsStep(side, w.pod(s.UID), s)
		case "allocate":
			w.store(s)
			reply = side.allocateStep(w.pod(s.UID), s)
		case "removed":
			side.forget(s.UID, s.Container)
			reply = map[string]any{"shared": side.shared()}
		default:
			panic("unknown step " + s.Do)
		}
		replies = append(replies, reply)
	}
	return replies
}

package main

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
)

// kubeletNode is the kubelet's admission as a whole: the topology manager in front of device, CPU and memory
// manager, in the kubelet's order. CPU and memory manager may be absent (their policy none).
type kubeletNode struct {
	world    *world
	topology topologymanager.Manager
	devices  *deviceSide
	cpus     *cpuSide
	memory   *memorySide
}

func newKubeletNode(q Request) (*kubeletNode, error) {
	topology, err := topologymanager.NewManager(discard, cadvisorNodes(q), q.Policy, q.Scope, q.Options)
	if err != nil {
		return nil, err
	}
	n := &kubeletNode{world: newWorld(), topology: topology}
	if q.CPU != nil {
		if n.cpus, err = newCPUSide(q.CPU, topology); err != nil {
			return nil, err
		}
	}
	if q.Memory != nil {
		if n.memory, err = newMemorySide(q, topology); err != nil {
			return nil, err
		}
	}
	n.devices = newDeviceSide(q, n.world, topology)
	topology.AddHintProvider(discard, n.devices.manager)
	if n.cpus != nil {
		topology.AddHintProvider(discard, n.cpus)
	}
	if n.memory != nil {
		topology.AddHintProvider(discard, n.memory)
	}
	return n, nil
}

func (n *kubeletNode) admit(s Step) any {
	others := n.world.active
	pod := n.world.add(s.Pod)
	attributes := &lifecycle.PodAdmitAttributes{Pod: pod, OtherPods: others, Operation: lifecycle.AddOperation}
	result := n.topology.Admit(klog.NewContext(context.Background(), discard), attributes)
	affinity := map[string]any{}
	for _, container := range containersOf(pod) {
		affinity[container.Name] = fromHint(n.topology.GetAffinity(discard, s.Pod.UID, container.Name))
	}
	reply := map[string]any{
		"admit": result.Admit, "reason": result.Reason, "message": result.Message,
		"calls": n.world.calls, "recorded": n.devices.recorded(pod), "affinity": affinity,
	}
	if n.cpus != nil {
		reply["cpus"], reply["shared"] = n.cpus.assigned(s.Pod.UID), n.cpus.shared()
	}
	if n.memory != nil {
		reply["memory"] = n.memory.nodes()
	}
	if !result.Admit {
		n.remove(pod)
	}
	return reply
}

// remove is what the managers' collection of a pod that is no longer active comes to.
func (n *kubeletNode) remove(pod *v1.Pod) {
	uid := string(pod.UID)
	n.world.remove(uid)
	for _, container := range containersOf(pod) {
		if n.cpus != nil {
			n.cpus.forget(uid, container.Name)
		}
		if n.memory != nil {
			n.memory.forget(uid, container.Name)
		}
	}
}

// node admits whole pods one after the other.
func node(q Request) any {
	n, err := newKubeletNode(q)
	if err != nil {
		return map[string]any{"error": err.Error()}
	}
	defer n.devices.stop()
	var replies []any
	for _, s := range q.Steps {
		n.world.calls, n.world.plans = nil, s.Plugins
		var reply any
		switch s.Do {
		case "connect":
			reply = n.devices.connect(s)
		case "list":
			n.devices.list(s)
		case "admit":
			reply = n.admit(s)
		case "remove":
			if n.world.isActive(s.UID) {
				n.remove(n.world.pod(s.UID))
			}
		default:
			panic("unknown step " + s.Do)
		}
		replies = append(replies, reply)
	}
	return replies
}

package main

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
)

// world is what the managers see around them: the active pods, the affinity that the topology manager is said to
// have stored, and what device plugins will answer. It records the calls that plugins got.
type world struct {
	affinity map[string]topologymanager.TopologyHint
	policy   topologymanager.Policy
	active   []*v1.Pod
	plans    map[string]*PluginPlan
	calls    []Call
}

func newWorld() *world {
	return &world{affinity: map[string]topologymanager.TopologyHint{}}
}

// The three methods of topologymanager.Store, for the managers that are driven without a topology manager.

func (w *world) GetAffinity(_ klog.Logger, uid, container string) topologymanager.TopologyHint {
	return w.affinity[uid+"/"+container]
}

func (w *world) GetPolicy() topologymanager.Policy { return w.policy }

func (w *world) Name() string { return "container" }

func (w *world) store(s Step) {
	w.affinity[s.UID+"/"+s.Container] = toHint(HintJSON{s.Affinity, s.Preferred})
}

func (w *world) add(p *PodJSON) *v1.Pod {
	pod := p.pod()
	w.active = append(w.active, pod)
	return pod
}

func (w *world) isActive(uid string) bool {
	for _, pod := range w.active {
		if string(pod.UID) == uid {
			return true
		}
	}
	return false
}

func (w *world) pod(uid string) *v1.Pod {
	for _, pod := range w.active {
		if string(pod.UID) == uid {
			return pod
		}
	}
	panic("no pod " + uid)
}

func (w *world) remove(uid string) {
	var left []*v1.Pod
	for _, pod := range w.active {
		if string(pod.UID) != uid {
			left = append(left, pod)
		}
	}
	w.active = left
}

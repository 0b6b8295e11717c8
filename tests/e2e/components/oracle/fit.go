package main

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	schedulerframework "k8s.io/kubernetes/pkg/scheduler/framework"
)

// nothingPreempted leaves a failed predicate as it is; the kubelet would evict pods for a critical one.
type nothingPreempted struct{}

func (nothingPreempted) HandleAdmissionFailure(
	_ context.Context, _ *v1.Pod, reasons []lifecycle.PredicateFailureReason, _ lifecycle.Operation,
) ([]lifecycle.PredicateFailureReason, error) {
	return reasons, nil
}

// fit asks the predicates, which come after the topology manager, whether a pod fits beside the others.
func fit(q Request) any {
	machine := &v1.Node{}
	machine.Name = "node"
	machine.Status.Allocatable = amounts(q.Allocatable)
	machine.Status.Capacity = machine.Status.Allocatable
	get := func(context.Context, bool) (*v1.Node, error) { return machine, nil }
	leave := func(*schedulerframework.NodeInfo, *lifecycle.PodAdmitAttributes) error { return nil }
	handler := lifecycle.NewPredicateAdmitHandler(get, nothingPreempted{}, leave)
	var others []*v1.Pod
	for _, other := range q.Others {
		others = append(others, other.pod())
	}
	attributes := &lifecycle.PodAdmitAttributes{Pod: q.Pod.pod(), OtherPods: others, Operation: lifecycle.AddOperation}
	result := handler.Admit(klog.NewContext(context.Background(), discard), attributes)
	return map[string]any{"admit": result.Admit, "reason": result.Reason, "message": result.Message}
}

package main

import (
	cadvisorapi "github.com/google/cadvisor/lib/model"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
)

func cadvisorNodes(q Request) []cadvisorapi.Node {
	var nodes []cadvisorapi.Node
	for _, id := range q.Nodes {
		nodes = append(nodes, cadvisorapi.Node{Id: id, Distances: q.Distances[id]})
	}
	return nodes
}

// merge says whether the topology manager starts with this policy and these options on these nodes and, if so,
// what it makes of the providers' hints. The policy is asked itself, because the manager keeps the merged hint
// of an admitted container only.
func merge(q Request) any {
	if _, err := topologymanager.NewManager(discard, cadvisorNodes(q), q.Policy, "container", q.Options); err != nil {
		return map[string]any{"error": err.Error()}
	}
	policy := policyOf(q)
	var hints []map[string][]topologymanager.TopologyHint
	for _, given := range q.Answers {
		hints = append(hints, toHints(given))
	}
	hint, admit := policy.Merge(discard, hints)
	merged := fromHint(hint)
	return map[string]any{"mask": merged.Mask, "preferred": merged.Preferred, "admit": admit}
}

// policyOf builds the policy as NewManager does, from options that NewManager accepted.
func policyOf(q Request) topologymanager.Policy {
	if q.Policy == topologymanager.PolicyNone {
		return topologymanager.NewNonePolicy()
	}
	options, err := topologymanager.NewPolicyOptions(discard, q.Options)
	if err != nil {
		panic(err)
	}
	info, err := topologymanager.NewNUMAInfo(cadvisorNodes(q), options)
	if err != nil {
		panic(err)
	}
	switch q.Policy {
	case topologymanager.PolicyBestEffort:
		return topologymanager.NewBestEffortPolicy(info, options)
	case topologymanager.PolicyRestricted:
		return topologymanager.NewRestrictedPolicy(info, options)
	case topologymanager.PolicySingleNumaNode:
		return topologymanager.NewSingleNumaNodePolicy(info, options)
	}
	panic("unknown policy " + q.Policy)
}

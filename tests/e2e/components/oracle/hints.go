package main

import (
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager/bitmask"
)

// HintJSON is a hint; a null mask is "any node".
type HintJSON struct {
	Mask      *uint64 `json:"mask"`
	Preferred bool    `json:"preferred"`
}

// Answer is what one provider says per resource. Null, an empty map, a null list and an empty list all differ
// in what upstream makes of them or in how it gets there, so they are kept apart.
type Answer map[string][]HintJSON

func maskOf(bits uint64) bitmask.BitMask {
	mask, _ := bitmask.NewBitMask()
	for node := range 64 {
		if bits&(1<<node) != 0 {
			_ = mask.Add(node)
		}
	}
	return mask
}

func bitsOf(mask bitmask.BitMask) *uint64 {
	if mask == nil {
		return nil
	}
	var bits uint64
	for _, node := range mask.GetBits() {
		bits |= 1 << node
	}
	return &bits
}

func toHint(h HintJSON) topologymanager.TopologyHint {
	hint := topologymanager.TopologyHint{Preferred: h.Preferred}
	if h.Mask != nil {
		hint.NUMANodeAffinity = maskOf(*h.Mask)
	}
	return hint
}

func fromHint(hint topologymanager.TopologyHint) HintJSON {
	return HintJSON{bitsOf(hint.NUMANodeAffinity), hint.Preferred}
}

// each keeps null and empty apart, in the map and in its lists.
func each[From, To any](lists map[string][]From, convert func(From) To) map[string][]To {
	if lists == nil {
		return nil
	}
	converted := map[string][]To{}
	for resource, list := range lists {
		if list == nil {
			converted[resource] = nil
			continue
		}
		converted[resource] = make([]To, 0, len(list))
		for _, item := range list {
			converted[resource] = append(converted[resource], convert(item))
		}
	}
	return converted
}

func toHints(answer Answer) map[string][]topologymanager.TopologyHint {
	return each(answer, toHint)
}

func fromHints(hints map[string][]topologymanager.TopologyHint) Answer {
	return each(hints, fromHint)
}

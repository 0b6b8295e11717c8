package main

import (
	_ "unsafe" // for go:linkname

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/topology"
	"k8s.io/utils/cpuset"
)

//go:linkname takeByTopologyNUMAPacked k8s.io/kubernetes/pkg/kubelet/cm/cpumanager.takeByTopologyNUMAPacked
func takeByTopologyNUMAPacked(
	logger klog.Logger, topo *topology.CPUTopology, available cpuset.CPUSet, count int,
	strategy cpumanager.CPUSortingStrategy, preferUncoreCache bool,
) (cpuset.CPUSet, error)

//go:linkname takeByTopologyNUMADistributed k8s.io/kubernetes/pkg/kubelet/cm/cpumanager.takeByTopologyNUMADistributed
func takeByTopologyNUMADistributed(
	logger klog.Logger, topo *topology.CPUTopology, available cpuset.CPUSet, count int, groupSize int,
	strategy cpumanager.CPUSortingStrategy, alignBySocket bool,
) (cpuset.CPUSet, error)

// TakeRequest asks for CPUs out of the available ones; a group size of 0 means packed, not distributed.
type TakeRequest struct {
	Available string `json:"available"`
	Count     int    `json:"count"`
	Group     int    `json:"group"`
	Spread    bool   `json:"spread"`
	Align     bool   `json:"align"`
}

// CPUConfig is a machine's CPUs and the static CPU manager's configuration.
type CPUConfig struct {
	Places   map[int][3]int    `json:"places"` // CPU: its core, socket and NUMA node
	Sockets  int               `json:"sockets"`
	Reserved string            `json:"reserved"`
	Count    int               `json:"count"` // how many are reserved, where Reserved names none
	Options  map[string]string `json:"options"`
}

func (c *CPUConfig) topology() *topology.CPUTopology {
	details := topology.CPUDetails{}
	cores := sets.New[int]()
	for cpu, place := range c.Places {
		details[cpu] = topology.CPUInfo{CoreID: place[0], SocketID: place[1], NUMANodeID: place[2]}
		cores.Insert(place[0])
	}
	return &topology.CPUTopology{
		NumCPUs: len(c.Places), NumCores: cores.Len(), NumSockets: c.Sockets,
		NumNUMANodes: details.NUMANodes().Size(), CPUDetails: details,
	}
}

// take chooses CPUs as the static policy does once it knows from which.
func take(q Request) any {
	available, err := cpuset.Parse(q.Take.Available)
	if err != nil {
		panic(err)
	}
	strategy := cpumanager.CPUSortingStrategyPacked
	if q.Take.Spread {
		strategy = cpumanager.CPUSortingStrategySpread
	}
	var taken cpuset.CPUSet
	if topo := q.CPU.topology(); q.Take.Group == 0 {
		taken, err = takeByTopologyNUMAPacked(discard, topo, available, q.Take.Count, strategy, false)
	} else {
		taken, err = takeByTopologyNUMADistributed(
			discard, topo, available, q.Take.Count, q.Take.Group, strategy, q.Take.Align)
	}
	if err != nil {
		return map[string]any{"error": err.Error()}
	}
	return map[string]any{"cpus": taken.String()}
}

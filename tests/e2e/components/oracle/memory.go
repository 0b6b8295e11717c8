package main

import (
	"context"
	"fmt"
	"slices"

	cadvisorapi "github.com/google/cadvisor/lib/model"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/memorymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/memorymanager/state"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
)

// MemoryConfig is a machine's memory and the static memory manager's configuration, per NUMA node.
type MemoryConfig struct {
	Memory    map[int]uint64            `json:"memory"`    // bytes
	HugePages map[int]map[uint64]uint64 `json:"hugepages"` // page size in KiB: pages
	Reserved  map[int]map[string]uint64 `json:"reserved"`  // kind: bytes
}

func (m *MemoryConfig) machine(nodes []int) *cadvisorapi.MachineInfo {
	info := &cadvisorapi.MachineInfo{}
	for _, id := range nodes {
		node := cadvisorapi.Node{Id: id, Memory: m.Memory[id]}
		for _, size := range sets.List(sets.KeySet(m.HugePages[id])) {
			pages := cadvisorapi.HugePagesInfo{PageSize: size, NumPages: m.HugePages[id][size]}
			node.HugePages = append(node.HugePages, pages)
		}
		info.Topology = append(info.Topology, node)
	}
	return info
}

func (m *MemoryConfig) reservation() map[int]map[v1.ResourceName]uint64 {
	reserved := map[int]map[v1.ResourceName]uint64{}
	for node, kinds := range m.Reserved {
		reserved[node] = map[v1.ResourceName]uint64{}
		for kind, size := range kinds {
			reserved[node][v1.ResourceName(kind)] = size
		}
	}
	return reserved
}

// memorySide is the static memory policy with its state in memory: what the memory manager puts behind the
// topology manager, without the container runtime.
type memorySide struct {
	policy memorymanager.Policy
	state  state.State
}

func newMemorySide(q Request, store topologymanager.Store) (*memorySide, error) {
	machine, reserved := q.Memory.machine(q.Nodes), q.Memory.reservation()
	policy, err := memorymanager.NewPolicyStatic(discard, machine, reserved, store)
	if err != nil {
		return nil, err
	}
	side := &memorySide{policy, state.NewMemoryState(discard)}
	return side, policy.Start(discard, side.state)
}

func (m *memorySide) GetTopologyHints(
	logger klog.Logger, pod *v1.Pod, container *v1.Container, operation lifecycle.Operation,
) map[string][]topologymanager.TopologyHint {
	return m.policy.GetTopologyHints(logger, m.state, pod, container, operation)
}

func (m *memorySide) GetPodTopologyHints(
	logger klog.Logger, pod *v1.Pod, operation lifecycle.Operation,
) map[string][]topologymanager.TopologyHint {
	return m.policy.GetPodTopologyHints(logger, m.state, pod, operation)
}

func (m *memorySide) AllocatePod(logger klog.Logger, pod *v1.Pod, operation lifecycle.Operation) error {
	return m.policy.AllocatePod(logger, m.state, pod, operation)
}

func (m *memorySide) Allocate(
	ctx context.Context, pod *v1.Pod, container *v1.Container, operation lifecycle.Operation,
) error {
	return m.policy.Allocate(ctx, m.state, pod, container, operation)
}

func (m *memorySide) forget(uid, container string) {
	m.policy.RemoveContainer(discard, m.state, uid, container)
}

// nodes is each NUMA node's memory: per kind allocatable and free bytes, its group, how many containers use it.
func (m *memorySide) nodes() any {
	found := map[string]any{}
	for id, node := range m.state.GetMachineState() {
		kinds := map[string]any{}
		for kind, table := range node.MemoryMap {
			kinds[string(kind)] = []uint64{table.Allocatable, table.Free}
		}
		cells := append([]int{}, node.Cells...)
		slices.Sort(cells)
		found[fmt.Sprint(id)] = map[string]any{
			"kinds": kinds, "cells": cells, "assignments": node.NumberOfAssignments,
		}
	}
	return found
}

// blocks is what each container was given, per kind.
func (m *memorySide) blocks() any {
	found := map[string]any{}
	for uid, containers := range m.state.GetMemoryAssignments() {
		for container, blocks := range containers {
			kinds := map[string]any{}
			for _, block := range blocks {
				kinds[string(block.Type)] = map[string]any{"size": block.Size, "nodes": block.NUMAAffinity}
			}
			found[uid+"/"+container] = kinds
		}
	}
	return found
}

func (m *memorySide) reply(err error) any {
	reply := map[string]any{"state": m.nodes(), "blocks": m.blocks()}
	if err != nil {
		reply["error"] = err.Error()
	}
	return reply
}

// memory leads the static memory policy through a conversation, the topology manager's affinity given in the steps.
func memory(q Request) any {
	w := newWorld()
	side, err := newMemorySide(q, w)
	if err != nil {
		return map[string]any{"error": err.Error()}
	}
	ctx := klog.NewContext(context.Background(), discard)
	replies := []any{side.nodes()}
	for _, s := range q.Steps {
		var reply any
		switch s.Do {
		case "pod":
			w.add(s.Pod)
		case "hints":
			reply = hintsStep(side, w.pod(s.UID), s)
		case "allocate":
			w.store(s)
			pod := w.pod(s.UID)
			reply = side.reply(side.Allocate(ctx, pod, containerOf(pod, s.Container), lifecycle.AddOperation))
		case "removed":
			side.forget(s.UID, s.Container)
			reply = side.reply(nil)
		default:
			panic("unknown step " + s.Do)
		}
		replies = append(replies, reply)
	}
	return replies
}

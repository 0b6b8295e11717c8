package main

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/grpc"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// PluginPlan is what the device plugin of one resource does during one step.
type PluginPlan struct {
	Answer   []string `json:"answer"`    // GetPreferredAllocation prefers these
	Follow   bool     `json:"follow"`    // GetPreferredAllocation prefers the first in order, must-includes before all
	GPAError string   `json:"gpa_error"` // GetPreferredAllocation fails
	Error    string   `json:"error"`     // Allocate fails
	Empty    bool     `json:"empty"`     // Allocate answers for no container
	NoGPA    bool     `json:"no_gpa"`    // on connect: GetPreferredAllocation is not offered
}

// Call is one call that a plugin got; ids are sorted, because upstream's order is random.
type Call struct {
	Resource  string   `json:"resource"`
	Kind      string   `json:"kind"`
	Available []string `json:"available,omitempty"`
	Must      []string `json:"must,omitempty"`
	Size      int      `json:"size,omitempty"`
	Devices   []string `json:"devices,omitempty"`
}

func sorted(ids []string) []string {
	inOrder := slices.Clone(ids)
	slices.Sort(inOrder)
	return inOrder
}

// plugin is a device plugin without a socket: the device manager's endpoint and its client in one.
type plugin struct {
	resource string
	noGPA    bool
	world    *world
}

func (p *plugin) API() pluginapi.DevicePluginClient { return p }

func (p *plugin) Resource() string { return p.resource }

func (p *plugin) SocketPath() string { return socketOf(p.resource) }

func socketOf(resource string) string { return "/plugins/" + resource }

func (p *plugin) plan() PluginPlan {
	if plan := p.world.plans[p.resource]; plan != nil {
		return *plan
	}
	return PluginPlan{}
}

func (p *plugin) GetDevicePluginOptions(
	context.Context, *pluginapi.Empty, ...grpc.CallOption,
) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: !p.noGPA}, nil
}

// ListAndWatch has no stream: lists are handed to the manager by the steps of a conversation.
func (p *plugin) ListAndWatch(
	context.Context, *pluginapi.Empty, ...grpc.CallOption,
) (grpc.ServerStreamingClient[pluginapi.ListAndWatchResponse], error) {
	return nil, errors.New("lists come as steps")
}

func (p *plugin) GetPreferredAllocation(
	_ context.Context, in *pluginapi.PreferredAllocationRequest, _ ...grpc.CallOption,
) (*pluginapi.PreferredAllocationResponse, error) {
	asked := in.ContainerRequests[0]
	available, must := sorted(asked.AvailableDeviceIDs), sorted(asked.MustIncludeDeviceIDs)
	size := int(asked.AllocationSize)
	p.world.calls = append(p.world.calls, Call{
		Resource: p.resource, Kind: "gpa", Available: available, Must: must, Size: size,
	})
	plan := p.plan()
	if plan.GPAError != "" {
		return nil, errors.New(plan.GPAError)
	}
	ids := plan.Answer
	if plan.Follow {
		ids = firstInOrder(available, must, size)
	}
	if ids == nil {
		return &pluginapi.PreferredAllocationResponse{}, nil
	}
	preferred := &pluginapi.ContainerPreferredAllocationResponse{DeviceIDs: ids}
	return &pluginapi.PreferredAllocationResponse{
		ContainerResponses: []*pluginapi.ContainerPreferredAllocationResponse{preferred},
	}, nil
}

func firstInOrder(available, must []string, size int) []string {
	ids := slices.Clone(must)
	for _, id := range available {
		if len(ids) < size && !slices.Contains(must, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

func (p *plugin) Allocate(
	_ context.Context, in *pluginapi.AllocateRequest, _ ...grpc.CallOption,
) (*pluginapi.AllocateResponse, error) {
	ids := sorted(in.ContainerRequests[0].DevicesIds)
	p.world.calls = append(p.world.calls, Call{Resource: p.resource, Kind: "allocate", Devices: ids})
	plan := p.plan()
	if plan.Error != "" {
		return nil, errors.New(plan.Error)
	}
	if plan.Empty {
		return &pluginapi.AllocateResponse{}, nil
	}
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{{}}}, nil
}

func (p *plugin) PreStartContainer(
	context.Context, *pluginapi.PreStartContainerRequest, ...grpc.CallOption,
) (*pluginapi.PreStartContainerResponse, error) {
	return &pluginapi.PreStartContainerResponse{}, nil
}

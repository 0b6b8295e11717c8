package main

import (
	"context"
	"os"
	"path/filepath"
	_ "unsafe" // for go:linkname

	cadvisorapi "github.com/google/cadvisor/lib/model"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
)

// The exported constructor has the kubelet's own folder built in, where a real kubelet may live.
//
//go:linkname newManagerImpl k8s.io/kubernetes/pkg/kubelet/cm/devicemanager.newManagerImpl
func newManagerImpl(
	logger klog.Logger, socketPath string, topology []cadvisorapi.Node, store topologymanager.Store,
) (*devicemanager.ManagerImpl, error)

// DeviceJSON is one device of a list. Topo says whether it has TopologyInfo at all, which may be empty.
type DeviceJSON struct {
	ID      string  `json:"id"`
	Nodes   []int64 `json:"nodes"`
	Topo    bool    `json:"topo"`
	Healthy bool    `json:"healthy"`
}

func (d DeviceJSON) device() *pluginapi.Device {
	device := &pluginapi.Device{ID: d.ID, Health: pluginapi.Unhealthy}
	if d.Healthy {
		device.Health = pluginapi.Healthy
	}
	if d.Topo {
		device.Topology = &pluginapi.TopologyInfo{}
		for _, node := range d.Nodes {
			device.Topology.Nodes = append(device.Topology.Nodes, &pluginapi.NUMANode{ID: node})
		}
	}
	return device
}

// deviceSide is a device manager in a folder of its own, its plugins played by the steps.
type deviceSide struct {
	world   *world
	manager *devicemanager.ManagerImpl
	folder  string
}

func newDeviceSide(q Request, w *world, store topologymanager.Store) *deviceSide {
	folder, err := os.MkdirTemp("", "oracle-")
	if err != nil {
		panic(err)
	}
	side := &deviceSide{world: w, folder: folder}
	side.manager, err = newManagerImpl(discard, filepath.Join(folder, "kubelet.sock"), cadvisorNodes(q), store)
	if err != nil {
		panic(err)
	}
	active := func() []*v1.Pod { return w.active }
	ready := config.NewSourcesReady(func(sets.Set[string]) bool { return true })
	err = side.manager.Start(discard, active, ready, containermap.NewContainerMap(), sets.New[string]())
	if err != nil {
		panic(err)
	}
	return side
}

func (d *deviceSide) stop() {
	_ = d.manager.Stop(discard)
	_ = os.RemoveAll(d.folder)
}

func (d *deviceSide) connect(s Step) any {
	plan := s.Plugins[s.Resource]
	noGPA := plan != nil && plan.NoGPA
	if err := d.manager.PluginConnected(context.Background(), s.Resource, &plugin{s.Resource, noGPA, d.world}); err != nil {
		return err.Error()
	}
	return nil
}

func (d *deviceSide) list(s Step) {
	list := &pluginapi.ListAndWatchResponse{}
	for _, device := range s.Devices {
		list.Devices = append(list.Devices, device.device())
	}
	d.manager.PluginListAndWatchReceiver(discard, s.Resource, list)
}

// recorded is what the manager holds for a pod: container, resource, sorted ids.
func (d *deviceSide) recorded(pod *v1.Pod) map[string]map[string][]string {
	found := map[string]map[string][]string{}
	for _, container := range containersOf(pod) {
		for resource, devices := range d.manager.GetDevices(string(pod.UID), container.Name) {
			if found[container.Name] == nil {
				found[container.Name] = map[string][]string{}
			}
			found[container.Name][resource] = sets.List(sets.KeySet(devices))
		}
	}
	return found
}

func (d *deviceSide) allocate(s Step) any {
	d.world.store(s)
	pod := d.world.pod(s.UID)
	text := ""
	err := d.manager.Allocate(context.Background(), pod, containerOf(pod, s.Container), lifecycle.AddOperation)
	if err != nil {
		text = err.Error()
	}
	return map[string]any{"error": text, "calls": d.world.calls, "recorded": d.recorded(pod)[s.Container]}
}

// devices leads the device manager through a conversation, the topology manager's affinity given in the steps.
func devices(q Request) any {
	w := newWorld()
	side := newDeviceSide(q, w, w)
	defer side.stop()
	var replies []any
	for _, s := range q.Steps {
		w.calls, w.plans = nil, s.Plugins
		var reply any
		switch s.Do {
		case "connect":
			reply = side.connect(s)
		case "disconnect":
			side.manager.PluginDisconnected(discard, s.Resource, socketOf(s.Resource))
		case "list":
			side.list(s)
		case "pod":
			w.add(s.Pod)
		case "remove":
			w.remove(s.UID)
		case "hints":
			reply = hintsStep(side.manager, w.pod(s.UID), s)
		case "allocate":
			reply = side.allocate(s)
		default:
			panic("unknown step " + s.Do)
		}
		replies = append(replies, reply)
	}
	return replies
}

package main

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	v1qos "k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"
)

// ContainerJSON is a container as far as resources go; amounts are quantities.
type ContainerJSON struct {
	Name        string            `json:"name"`
	Requests    map[string]string `json:"requests"`
	Limits      map[string]string `json:"limits"`
	Init        bool              `json:"init"`
	Restartable bool              `json:"restartable"`
}

// PodJSON is a pod as far as resources go. Requests and Limits are those of the pod itself.
type PodJSON struct {
	UID        string            `json:"uid"`
	Containers []ContainerJSON   `json:"containers"`
	Requests   map[string]string `json:"requests"`
	Limits     map[string]string `json:"limits"`
	Overhead   map[string]string `json:"overhead"`
}

func amounts(texts map[string]string) v1.ResourceList {
	if texts == nil {
		return nil
	}
	list := v1.ResourceList{}
	for name, text := range texts {
		list[v1.ResourceName(name)] = resource.MustParse(text)
	}
	return list
}

func decimals(list v1.ResourceList) map[string]string {
	texts := map[string]string{}
	for name, amount := range list {
		texts[string(name)] = amount.AsDec().String()
	}
	return texts
}

func (c ContainerJSON) container() v1.Container {
	container := v1.Container{Name: c.Name}
	container.Resources.Requests = amounts(c.Requests)
	container.Resources.Limits = amounts(c.Limits)
	if c.Restartable {
		always := v1.ContainerRestartPolicyAlways
		container.RestartPolicy = &always
	}
	return container
}

func (p PodJSON) pod() *v1.Pod {
	pod := &v1.Pod{}
	pod.Name, pod.Namespace, pod.UID = p.UID, "default", types.UID(p.UID)
	for _, c := range p.Containers {
		if c.Init {
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, c.container())
		} else {
			pod.Spec.Containers = append(pod.Spec.Containers, c.container())
		}
	}
	if len(p.Requests)+len(p.Limits) > 0 {
		pod.Spec.Resources = &v1.ResourceRequirements{Requests: amounts(p.Requests), Limits: amounts(p.Limits)}
	}
	pod.Spec.Overhead = amounts(p.Overhead)
	return pod
}

func containersOf(pod *v1.Pod) []*v1.Container {
	var all []*v1.Container
	for i := range pod.Spec.InitContainers {
		all = append(all, &pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		all = append(all, &pod.Spec.Containers[i])
	}
	return all
}

func containerOf(pod *v1.Pod, name string) *v1.Container {
	for _, container := range containersOf(pod) {
		if container.Name == name {
			return container
		}
	}
	panic("no container " + name)
}

// quantity reads one amount as the API does.
func quantity(q Request) any {
	amount, err := resource.ParseQuantity(q.Text)
	if err != nil {
		return map[string]any{"error": err.Error()}
	}
	return map[string]any{
		"value": fmt.Sprint(amount.Value()),
		"milli": fmt.Sprint(amount.MilliValue()),
		"dec":   amount.AsDec().String(),
	}
}

// podFacts is what follows from a pod's amounts alone.
func podFacts(q Request) any {
	pod := q.Pod.pod()
	options := resourcehelper.PodResourcesOptions{ExcludeOverhead: true}
	return map[string]any{
		"qos":      string(v1qos.GetPodQOS(pod)),
		"requests": decimals(resourcehelper.PodRequests(pod, options)),
		"limits":   decimals(resourcehelper.PodLimits(pod, options)),
	}
}

//go:build tools

// Package components names the programs of a real Kubernetes node that build.py builds, so that
// `go mod tidy` keeps what they need. It is never compiled itself.
package components

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver/app"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	_ "k8s.io/kubernetes/cmd/kube-scheduler/app"
	_ "k8s.io/kubernetes/cmd/kubelet/app"
)

//go:build tools

// Package older names the kubelet of an earlier minor release that build.py builds, so that
// `go mod tidy` keeps what it needs. It is never compiled itself.
package older

import (
	_ "k8s.io/kubernetes/cmd/kubelet/app"
)

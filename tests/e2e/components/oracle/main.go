// Command oracle answers questions about a kubelet's admission with Kubernetes' own packages: one JSON question
// per line on stdin, one JSON answer per line on stdout, in order.
//
// A question that makes upstream panic is answered with {"panic": text}. One that upstream never answers is
// answered with {"hang": true}, after which the oracle ends, because the goroutine cannot be stopped.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/go-logr/logr"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// The slowest question that upstream does answer takes some seconds on a busy machine.
const patience = 30 * time.Second

var discard = logr.Discard()

// Request is one question; which fields count depends on Op.
type Request struct {
	Op string `json:"op"`

	// The machine and the topology manager's configuration.
	Nodes     []int             `json:"nodes"`
	Distances map[int][]uint64  `json:"distances"`
	Policy    string            `json:"policy"`
	Scope     string            `json:"scope"`
	Options   map[string]string `json:"options"`

	Answers []Answer `json:"answers"` // merge: one per hint provider

	CPU    *CPUConfig    `json:"cpu"`
	Memory *MemoryConfig `json:"memory"`
	Take   *TakeRequest  `json:"take"`
	Steps  []Step        `json:"steps"`

	Text        string            `json:"text"` // quantity
	Pod         PodJSON           `json:"pod"`
	Others      []PodJSON         `json:"others"`
	Allocatable map[string]string `json:"allocatable"`
}

// Step is one event in a conversation; which fields count depends on Do.
type Step struct {
	Do        string                 `json:"do"`
	Resource  string                 `json:"resource"`
	Devices   []DeviceJSON           `json:"devices"`
	Pod       *PodJSON               `json:"pod"`
	UID       string                 `json:"uid"`
	Container string                 `json:"container"`
	Affinity  *uint64                `json:"affinity"`
	Preferred bool                   `json:"preferred"`
	Plugins   map[string]*PluginPlan `json:"plugins"`
}

var operations = map[string]func(Request) any{
	"merge":    merge,
	"take":     take,
	"devices":  devices,
	"cpu":      cpus,
	"memory":   memory,
	"node":     node,
	"quantity": quantity,
	"pod":      podFacts,
	"fit":      fit,
}

// fault is how a question ends that upstream gives no answer to.
type fault map[string]any

func answer(q Request) (reply any) {
	defer func() {
		if cause := recover(); cause != nil {
			reply = fault{"panic": fmt.Sprint(cause)}
		}
	}()
	operation, known := operations[q.Op]
	if !known {
		return fault{"panic": "unknown op " + q.Op}
	}
	return operation(q)
}

// answerInTime is the answer, and whether upstream gave one at all.
func answerInTime(q Request) (any, bool) {
	done := make(chan any, 1)
	go func() { done <- answer(q) }()
	select {
	case reply := <-done:
		return reply, true
	case <-time.After(patience):
		return fault{"hang": true}, false
	}
}

func serve(questions io.Reader, answers io.Writer) error {
	decoder := json.NewDecoder(bufio.NewReaderSize(questions, 1<<20))
	buffered := bufio.NewWriter(answers)
	encoder := json.NewEncoder(buffered)
	for {
		var q Request
		if err := decoder.Decode(&q); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("not a question: %w", err)
		}
		reply, alive := answerInTime(q)
		if err := encoder.Encode(reply); err != nil {
			return err
		}
		if err := buffered.Flush(); err != nil {
			return err
		}
		if !alive {
			return nil
		}
	}
}

func main() {
	// Without the gate the kubelet refuses the CPU manager's alpha options, which ours knows too.
	err := utilfeature.DefaultMutableFeatureGate.Set("CPUManagerPolicyAlphaOptions=true")
	if err == nil {
		err = serve(os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "oracle:", err)
		os.Exit(1)
	}
}

// runc-any-cpus is runc for made-up machines: it leaves out the CPU and memory node sets, which do not exist here, and
// then becomes the real runc. What the kubelet asked for is kept in the bundle: config.json.asked of a container that is
// created, and one line for each update in updates.asked.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
)

const (
	createdName = "config.json.asked"
	updatedName = "updates.asked"
	fileMode    = 0o644
	// A pipe holds 64 KiB; the resources of one container are a few hundred bytes.
	updateBytesMax = 60 << 10
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "runc-any-cpus:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	var err error
	switch {
	case slices.Contains(args, "create"):
		err = edited(filepath.Join(valueOf(args, "--bundle"), "config.json"))
	case slices.Contains(args, "update"):
		err = updated(filepath.Join(filepath.Dir(valueOf(args, "--log")), updatedName))
	}
	if err != nil {
		return err
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		return err
	}
	return syscall.Exec(runc, append([]string{runc}, args...), os.Environ())
}

func valueOf(args []string, flag string) string {
	if at := slices.Index(args, flag); at >= 0 && at+1 < len(args) {
		return args[at+1]
	}
	return ""
}

func edited(config string) error {
	asked, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(config), createdName), asked, fileMode); err != nil {
		return err
	}
	changed, err := withoutCPUs(asked, "linux", "resources", "cpu")
	if err != nil {
		return err
	}
	return os.WriteFile(config, changed, fileMode)
}

// updated passes the resources on standard input on without the sets. Other forms of update have them in flags, which
// containerd does not use.
func updated(log string) error {
	asked, err := io.ReadAll(os.Stdin)
	if err != nil || len(bytes.TrimSpace(asked)) == 0 {
		return err
	}
	changed, err := withoutCPUs(asked, "cpu")
	if err != nil {
		return err
	}
	if len(changed) > updateBytesMax {
		return fmt.Errorf("an update of %d bytes", len(changed))
	}
	if err := appendLine(log, asked); err != nil {
		return err
	}
	reading, writing, err := os.Pipe()
	if err != nil {
		return err
	}
	if _, err := writing.Write(changed); err != nil {
		return err
	}
	if err := writing.Close(); err != nil {
		return err
	}
	return syscall.Dup2(int(reading.Fd()), int(os.Stdin.Fd()))
}

func appendLine(path string, line []byte) error {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, fileMode)
	if err != nil {
		return err
	}
	if _, err := file.Write(append(bytes.TrimSpace(line), '\n')); err != nil {
		return err
	}
	return file.Close()
}

// withoutCPUs drops `cpus` and `mems` from the object at a path, where there is one. Numbers keep their digits.
func withoutCPUs(document []byte, path ...string) ([]byte, error) {
	decoder := json.NewDecoder(bytes.NewReader(document))
	decoder.UseNumber()
	var top map[string]any
	if err := decoder.Decode(&top); err != nil {
		return nil, err
	}
	place := top
	for _, name := range path {
		inner, there := place[name].(map[string]any)
		if !there {
			return document, nil
		}
		place = inner
	}
	delete(place, "cpus")
	delete(place, "mems")
	return json.Marshal(top)
}

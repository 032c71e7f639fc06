package measure

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Machine is the machine that a run used. Facts that cannot be found out are nil.
type Machine struct {
	CPU          *string   `json:"cpu"`
	Cores        *uint64   `json:"cores"`
	MemoryBytes  *uint64   `json:"memory_bytes"`
	IsVirtual    *bool     `json:"is_virtual"`
	Kernel       *string   `json:"kernel"`
	Distribution *string   `json:"distribution"`
	FileSystem   *string   `json:"file_system"`
	Device       *string   `json:"device"`
	Cgroup       *struct{} `json:"cgroup"`
	Load         *float64  `json:"load"`
	MemcpyGBPerS *float64  `json:"memcpy_gb_per_s"`
}

// MachineOf finds out about this machine and about the file system of the folder.
func MachineOf(folder string) Machine {
	m := Machine{Cores: ptr(uint64(runtime.NumCPU())), MemcpyGBPerS: memcpyGBPerS()}
	cpu := readFields("/proc/cpuinfo")
	for name, value := range cpu {
		switch strings.TrimSpace(name) {
		case "model name":
			m.CPU = ptr(value)
		case "flags":
			m.IsVirtual = ptr(slices.Contains(strings.Fields(value), "hypervisor"))
		}
	}
	m.MemoryBytes = kib(readFields("/proc/meminfo"), "MemTotal")
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
		if arch == "" {
			arch = runtime.GOARCH
		}
		m.Kernel = ptr("Linux " + strings.TrimSpace(string(release)) + ", " + arch)
	}
	if text, err := os.ReadFile("/etc/os-release"); err == nil {
		for line := range strings.Lines(string(text)) {
			if name, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
				m.Distribution = ptr(strings.Trim(name, `"`))
			}
		}
	}
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		one, _, _ := strings.Cut(string(text), " ")
		if load, err := strconv.ParseFloat(one, 64); err == nil {
			m.Load = &load
		}
	}
	m.FileSystem, m.Device = mountOf(folder)
	return m
}

// mountOf returns the file system of a folder, and what is mounted there.
func mountOf(folder string) (fileSystem, device *string) {
	path, err := filepath.Abs(folder)
	if err != nil {
		return nil, nil
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, nil
	}
	longest := -1
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 3 {
			continue
		}
		point := fields[1]
		isAbove := path == point || strings.HasPrefix(path, strings.TrimSuffix(point, "/")+"/")
		if isAbove && len(point) >= longest {
			longest = len(point)
			device, fileSystem = &fields[0], &fields[2]
		}
	}
	return fileSystem, device
}

// memcpyGBPerS copies 32 MiB five times and returns the best in GB a second.
func memcpyGBPerS() *float64 {
	from, to := make([]byte, 32<<20), make([]byte, 32<<20)
	for i := range from {
		from[i], to[i] = 1, 2
	}
	best := time.Hour
	for range 5 {
		start := time.Now()
		copy(to, from)
		best = min(best, time.Since(start))
	}
	runtime.KeepAlive(to)
	return Ratio(float64(len(from))/1e9, best.Seconds())
}

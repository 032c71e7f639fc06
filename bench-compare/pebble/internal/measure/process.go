package measure

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

// Reading is what the system says of this process at one moment. Times and counters are those since
// the process started. A figure that the system does not give is nil.
type Reading struct {
	CPUS                *float64 `json:"cpu_s"`
	UserS               *float64 `json:"user_s"`
	SystemS             *float64 `json:"system_s"`
	ResidentBytes       *uint64  `json:"resident_bytes"`
	AnonymousBytes      *uint64  `json:"anonymous_bytes"`
	FileBytes           *uint64  `json:"file_bytes"`
	SharedBytes         *uint64  `json:"shared_bytes"`
	PeakBytes           *uint64  `json:"peak_bytes"`
	ReadCallBytes       *uint64  `json:"read_call_bytes"`
	WriteCallBytes      *uint64  `json:"write_call_bytes"`
	DeviceReadBytes     *uint64  `json:"device_read_bytes"`
	DeviceWriteBytes    *uint64  `json:"device_write_bytes"`
	MinorFaults         *uint64  `json:"minor_faults"`
	MajorFaults         *uint64  `json:"major_faults"`
	VoluntarySwitches   *uint64  `json:"voluntary_switches"`
	InvoluntarySwitches *uint64  `json:"involuntary_switches"`
}

// ReadProcess reads everything. It takes about a tenth of a millisecond.
func ReadProcess() Reading {
	r := Reading{CPUS: processCPU()}
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) == nil {
		r.UserS, r.SystemS = secondsOf(usage.Utime), secondsOf(usage.Stime)
		r.MinorFaults, r.MajorFaults = count(usage.Minflt), count(usage.Majflt)
		r.VoluntarySwitches, r.InvoluntarySwitches = count(usage.Nvcsw), count(usage.Nivcsw)
	}
	status := readFields("/proc/self/status")
	r.ResidentBytes = kib(status, "VmRSS")
	r.AnonymousBytes = kib(status, "RssAnon")
	r.FileBytes = kib(status, "RssFile")
	r.SharedBytes = kib(status, "RssShmem")
	r.PeakBytes = kib(status, "VmHWM")
	io := readFields("/proc/self/io")
	r.ReadCallBytes = field(io, "rchar")
	r.WriteCallBytes = field(io, "wchar")
	r.DeviceReadBytes = field(io, "read_bytes")
	if written, cancelled := field(io, "write_bytes"), field(io, "cancelled_write_bytes"); written != nil &&
		cancelled != nil {
		r.DeviceWriteBytes = ptr(*written - min(*cancelled, *written))
	}
	return r
}

// clockProcess is CLOCK_PROCESS_CPUTIME_ID.
const clockProcess = 2

// processCPU is the processor time of this process so far, in seconds.
func processCPU() *float64 {
	var time syscall.Timespec
	_, _, failed := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockProcess,
		uintptr(unsafe.Pointer(&time)), 0)
	if failed != 0 {
		return nil
	}
	return ptr(float64(time.Sec) + float64(time.Nsec)/1e9)
}

// resetPeak lets PeakBytes begin anew.
func resetPeak() bool {
	return os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) == nil
}

func readFields(path string) map[string]string {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	fields := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			fields[name] = strings.TrimSpace(value)
		}
	}
	return fields
}

func field(fields map[string]string, name string) *uint64 {
	parsed, err := strconv.ParseUint(strings.TrimSuffix(fields[name], " kB"), 10, 64)
	if err != nil {
		return nil
	}
	return &parsed
}

func kib(fields map[string]string, name string) *uint64 {
	if value := field(fields, name); value != nil {
		return ptr(*value << 10)
	}
	return nil
}

func secondsOf(time syscall.Timeval) *float64 {
	return ptr(float64(time.Sec) + float64(time.Usec)/1e6)
}

func count(value int64) *uint64 { return ptr(uint64(value)) }

func ptr[T any](value T) *T { return &value }

// Growth returns how much a counter grew; nil if it is not known.
func Growth[T uint64 | float64](before, after *T) *T {
	if before == nil || after == nil {
		return nil
	}
	return ptr(*after - min(*before, *after))
}

// Ratio returns a quotient; nil if it is not a number.
func Ratio(of, to float64) *float64 {
	if to == 0 {
		return nil
	}
	return ptr(of / to)
}

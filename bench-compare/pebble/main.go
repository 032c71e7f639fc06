// Command pebble-bench runs the workloads of the comparison on Pebble and prints one JSON object for
// each, with the keys of the record of the Rust harness. See README.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"siltstone/bench-compare/pebble/internal/measure"
	"siltstone/bench-compare/pebble/internal/record"
	"siltstone/bench-compare/pebble/internal/run"
	"siltstone/bench-compare/pebble/internal/settings"
	"siltstone/bench-compare/pebble/internal/store"
)

// The exit codes.
const (
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := runAll(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// runAll carries out the command line and returns the exit code.
func runAll(ctx context.Context, arguments []string, output, failures io.Writer) int {
	all, err := settings.Parse(arguments, output)
	if errors.Is(err, settings.ErrHelp) {
		return 0
	}
	if err == nil {
		err = store.Check(all[0].Engine)
	}
	if err != nil {
		fmt.Fprintln(failures, "pebble-bench:", err)
		return exitUsage
	}
	machine := measure.MachineOf(all[0].Folder)
	for _, s := range all {
		if err := runOne(ctx, &s, machine, output); err != nil {
			fmt.Fprintf(failures, "pebble-bench: %s: %v\n", s.Workload, err)
			return exitFailure
		}
	}
	return 0
}

func runOne(ctx context.Context, s *settings.Settings, machine measure.Machine, output io.Writer) error {
	outcome, err := run.Run(ctx, s)
	if err != nil {
		return err
	}
	line, err := record.Of(s, outcome, machine).JSON()
	if err != nil {
		return err
	}
	_, err = output.Write(append(line, '\n'))
	return err
}

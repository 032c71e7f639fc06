// Command build builds pebble-bench, and tells it which commit it is built from:
//
//	go run ./build -o pebble-bench
//
// Its arguments are those of `go build`. Go itself notes the commit only in a repository with a
// folder `.git`, which a worktree does not have, and calls a checkout modified if it has new files.
//
// The commit is that of the environment variable SILTSTONE_COMMIT, otherwise what is checked out.
// Without a repository, the record of a run says `unknown`.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// variables is the package whose variables the linker sets.
const variables = "siltstone/bench-compare/pebble/internal/record"

// sources are what pebble-bench is made of: tests and documents are not in it.
var sources = []string{
	".", ":(exclude,glob)**/*_test.go", ":(exclude,glob)**/*.md", ":(exclude)testdata",
}

func main() {
	if err := build(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
}

func build(arguments []string) error {
	if _, err := os.Stat("go.mod"); err != nil {
		return fmt.Errorf("run it in the folder bench-compare/pebble: %w", err)
	}
	commit, isModified := os.Getenv("SILTSTONE_COMMIT"), ""
	if commit == "" {
		commit, isModified = checkout(".")
	}
	flags := fmt.Sprintf("-X %s.commit=%s -X %s.isModified=%s",
		variables, commit, variables, isModified)
	all := slices.Concat([]string{"build", "-ldflags", flags}, arguments, []string{"."})
	command := exec.Command("go", all...)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	return command.Run()
}

// checkout returns the commit of the repository of which the folder is bench-compare/pebble, and
// whether sources differ from it: true or false. Both are empty if it is in no such repository.
func checkout(folder string) (commit, isModified string) {
	top, ok := git(folder, "rev-parse", "--show-toplevel")
	if !ok || !isSameFolder(top, filepath.Join(folder, "../..")) {
		return "", ""
	}
	commit, ok = git(folder, "rev-parse", "--verify", "HEAD")
	if !ok {
		return "", ""
	}
	status := append([]string{"status", "--porcelain", "--untracked-files=no", "--"}, sources...)
	if changed, ok := git(folder, status...); ok {
		isModified = fmt.Sprint(changed != "")
	}
	return commit, isModified
}

func isSameFolder(a, b string) bool {
	first, err := os.Stat(a)
	if err != nil {
		return false
	}
	second, err := os.Stat(b)
	return err == nil && os.SameFile(first, second)
}

// git returns what a command of git prints, and whether it worked.
func git(folder string, arguments ...string) (string, bool) {
	command := exec.Command("git", append([]string{"-C", folder}, arguments...)...)
	// A hook of git has variables that name its own repository. The lock would be in the way of other
	// commands of git.
	command.Env = append(withoutRepository(os.Environ()), "GIT_OPTIONAL_LOCKS=0")
	output, err := command.Output()
	return strings.TrimSpace(string(output)), err == nil
}

func withoutRepository(environment []string) []string {
	names := []string{"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX"}
	return slices.DeleteFunc(environment, func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return slices.Contains(names, name)
	})
}

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// repository makes a repository with this program's folders, and returns that of the program.
func repository(t *testing.T) string {
	t.Helper()
	top := t.TempDir()
	folder := filepath.Join(top, "bench-compare", "pebble")
	write(t, filepath.Join(folder, "main.go"), "package main\n")
	write(t, filepath.Join(folder, "main_test.go"), "package main\n")
	write(t, filepath.Join(top, "README.md"), "A repository.\n")
	if !run(top, "init", "--quiet") {
		t.Skip("git cannot make a repository here")
	}
	commitAll(t, top)
	return folder
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func run(folder string, arguments ...string) bool {
	identity := []string{"-C", folder, "-c", "user.name=test", "-c", "user.email=test@example.invalid"}
	command := exec.Command("git", append(identity, arguments...)...)
	command.Env = withoutRepository(os.Environ())
	return command.Run() == nil
}

func commitAll(t *testing.T, folder string) {
	t.Helper()
	if !run(folder, "add", "--all") ||
		!run(folder, "commit", "--quiet", "--allow-empty", "-m", "change") {
		t.Fatal("git does not commit")
	}
}

func TestACheckoutHasACommitAndSaysWhetherSourcesDiffer(t *testing.T) {
	folder := repository(t)
	clean, isModified := checkout(folder)
	if len(clean) != 40 || isModified != "false" {
		t.Fatalf("commit %q, modified %q", clean, isModified)
	}
	for _, path := range []string{"main_test.go", "new.go", "../../README.md"} {
		write(t, filepath.Join(folder, path), "// Changed.\n")
		if commit, isModified := checkout(folder); commit != clean || isModified != "false" {
			t.Errorf("with %s: commit %q, modified %q", path, commit, isModified)
		}
	}
	write(t, filepath.Join(folder, "main.go"), "package main // Changed.\n")
	if commit, isModified := checkout(folder); commit != clean || isModified != "true" {
		t.Errorf("commit %q, modified %q", commit, isModified)
	}
	commitAll(t, folder)
	if commit, isModified := checkout(folder); commit == clean || isModified != "false" {
		t.Errorf("commit %q, modified %q", commit, isModified)
	}
}

func TestAWorktreeHasTheCommitThatIsCheckedOutInIt(t *testing.T) {
	folder := repository(t)
	first, _ := checkout(folder)
	worktree := filepath.Join(t.TempDir(), "worktree")
	if !run(folder, "worktree", "add", "--quiet", "--detach", worktree) {
		t.Fatal("git makes no worktree")
	}
	commitAll(t, folder)
	commit, isModified := checkout(filepath.Join(worktree, "bench-compare", "pebble"))
	if commit != first || isModified != "false" {
		t.Errorf("commit %q, modified %q, want %q", commit, isModified, first)
	}
	if commit, _ := checkout(folder); commit == first {
		t.Errorf("commit %q is that before the last one", commit)
	}
}

func TestAnUnpackedArchiveHasNoCommit(t *testing.T) {
	within := filepath.Join(repository(t), "vendor", "bench-compare", "pebble")
	write(t, filepath.Join(within, "main.go"), "package main\n")
	for _, folder := range []string{t.TempDir(), within} {
		if commit, isModified := checkout(folder); commit != "" || isModified != "" {
			t.Errorf("%s: commit %q, modified %q", folder, commit, isModified)
		}
	}
}

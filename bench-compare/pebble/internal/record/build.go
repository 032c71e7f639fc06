package record

import "runtime/debug"

// Build says how the program was built, and from which commit.
type Build struct {
	Rustc      *string `json:"rustc"`
	Profile    string  `json:"profile"`
	Commit     *string `json:"commit"`
	IsModified *bool   `json:"is_modified"`
	Go         string  `json:"go"`
}

// The linker sets these two if the program is built by `go run ./build`.
var commit, isModified string

// unknown is the commit of a program that was built without a repository.
const unknown = "unknown"

func buildOf() Build {
	info, _ := debug.ReadBuildInfo()
	return buildFrom(commit, isModified, info)
}

// buildFrom: what the linker was told takes precedence over what Go noted itself.
func buildFrom(commit, isModified string, info *debug.BuildInfo) Build {
	build := Build{Profile: "release"}
	if info != nil {
		build.Go = info.GoVersion
	}
	if commit == "" {
		commit, isModified = noted(info)
	}
	if commit == "" {
		commit, isModified = unknown, ""
	}
	build.Commit = &commit
	if isModified != "" {
		is := isModified == "true"
		build.IsModified = &is
	}
	return build
}

// noted returns what `go build` notes of a repository that has a folder `.git`.
func noted(info *debug.BuildInfo) (commit, isModified string) {
	if info == nil {
		return "", ""
	}
	for _, setting := range info.Settings {
		switch setting.Key {
		case "vcs.revision":
			commit = setting.Value
		case "vcs.modified":
			isModified = setting.Value
		}
	}
	return commit, isModified
}

package record

import (
	"runtime/debug"
	"testing"
)

func TestTheCommitIsThatOfTheLinkerOrOfGoOrUnknown(t *testing.T) {
	stamped := &debug.BuildInfo{GoVersion: "go1.26", Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "b"}, {Key: "vcs.modified", Value: "true"},
	}}
	plain := &debug.BuildInfo{GoVersion: "go1.26"}
	for _, c := range []struct {
		commit, isModified string
		info               *debug.BuildInfo
		wantCommit         string
		wantModified       string
	}{
		{"a", "false", stamped, "a", "false"},
		{"a", "", stamped, "a", "nil"},
		{"", "", stamped, "b", "true"},
		{"", "", plain, "unknown", "nil"},
		{"", "", nil, "unknown", "nil"},
	} {
		build := buildFrom(c.commit, c.isModified, c.info)
		modified := "nil"
		if build.IsModified != nil {
			modified = map[bool]string{true: "true", false: "false"}[*build.IsModified]
		}
		if build.Commit == nil || *build.Commit != c.wantCommit || modified != c.wantModified {
			t.Errorf("%+v: %+v", c, build)
		}
	}
}

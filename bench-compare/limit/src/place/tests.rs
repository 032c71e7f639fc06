use super::*;

/// Debian 12 with the boot option for version 1, as this project's own machine has it.
const V1_GROUPS: &str = "9:name=systemd:/\n8:pids:/\n4:memory:/process/abc\n2:cpuacct:/\n0::/\n";
const V1_MOUNTS: &str = "\
23 0 254:0 / / rw - ext4 /dev/vda rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:5 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

/// A usual system with systemd and version 2.
const V2_GROUPS: &str = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-7.scope\n";
const V2_MOUNTS: &str = "\
24 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw
30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
";

fn place(version: Version, mount: &str, group: &str) -> Place {
    Place {
        version,
        mount: mount.into(),
        group: group.into(),
    }
}

#[test]
fn version_1_has_a_hierarchy_for_memory() {
    let found = Place::parsed(V1_GROUPS, V1_MOUNTS).unwrap();
    let memory = "/sys/fs/cgroup/memory";
    let expected = place(Version::One, memory, "/sys/fs/cgroup/memory/process/abc");
    assert_eq!(found, expected);
}

#[test]
fn version_2_has_one_hierarchy() {
    let found = Place::parsed(V2_GROUPS, V2_MOUNTS).unwrap();
    let group = "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/run-7.scope";
    assert_eq!(found, place(Version::Two, "/sys/fs/cgroup", group));
}

#[test]
fn with_both_versions_memory_is_where_its_controller_is() {
    // Version 1 is mounted for other controllers only.
    let groups = "3:cpu,cpuacct:/x\n0::/y\n";
    let mounts = "\
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";
    let found = Place::parsed(groups, mounts).unwrap();
    let unified = "/sys/fs/cgroup/unified";
    assert_eq!(
        found,
        place(Version::Two, unified, "/sys/fs/cgroup/unified/y")
    );
}

#[test]
fn a_mount_may_begin_at_a_group() {
    let groups = "4:memory:/docker/1f/sub\n";
    let mounts = "35 31 0:32 /docker/1f /sys/fs/cgroup/me\\040mory ro - cgroup cgroup rw,memory\n";
    let found = Place::parsed(groups, mounts).unwrap();
    let memory = "/sys/fs/cgroup/me mory";
    assert_eq!(
        found,
        place(Version::One, memory, "/sys/fs/cgroup/me mory/sub")
    );

    // In a namespace of its own, a container sees its group as the root.
    let found = Place::parsed("0::/\n", V2_MOUNTS).unwrap();
    assert_eq!(
        found,
        place(Version::Two, "/sys/fs/cgroup", "/sys/fs/cgroup")
    );
}

#[test]
fn a_group_outside_of_the_mount_is_none() {
    let mounts = "35 31 0:32 /docker/1f /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
    let error = Place::parsed("4:memory:/docker/2e\n", mounts).unwrap_err();
    let text = error.to_string();
    for part in ["4:memory:/docker/2e", "cgroup at /sys/fs/cgroup/memory"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn torn_lines_are_passed_over() {
    for (groups, mounts) in [("", ""), ("4:memory", "35 31 - "), (V1_GROUPS, " - cgroup")] {
        assert!(
            Place::parsed(groups, mounts).is_err(),
            "{groups:?} {mounts:?}"
        );
    }
}

#[test]
fn the_lowest_limit_on_the_way_up_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let mount = folder.path().join("mount");
    let group = mount.join("a/b");
    fs::create_dir_all(&group).unwrap();
    let write = |folder: &Path, name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
    // The limit above the mount does not count.
    write(folder.path(), "memory.max", "1\n");
    write(&mount, "memory.max", "max\n");
    write(&mount.join("a"), "memory.max", "1048576\n");
    write(&group, "memory.max", "2097152\n");
    write(&group, "memory.limit_in_bytes", "9223372036854771712\n");
    let at = |version| Place {
        version,
        mount: mount.clone(),
        group: group.clone(),
    };
    assert_eq!(
        at(Version::Two).lowest_limit(),
        Some((mount.join("a"), 1 << 20))
    );
    assert_eq!(at(Version::One).lowest_limit(), None);
}

#[test]
fn version_2_without_the_controller_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = Place {
        version: Version::Two,
        mount: folder.path().into(),
        group: folder.path().into(),
    };
    assert!(at.check_controllers().is_err());
    fs::write(folder.path().join("cgroup.controllers"), "cpu hugetlb\n").unwrap();
    let text = at.check_controllers().unwrap_err().to_string();
    assert!(text.contains("cpu hugetlb"), "{text}");
    fs::write(folder.path().join("cgroup.controllers"), "cpu memory\n").unwrap();
    at.check_controllers().unwrap();
}

use super::*;

fn place(version: Version, mount: &Path, group: &Path) -> Place {
    Place {
        version,
        mount: mount.into(),
        group: group.into(),
    }
}

/// The way of version 2 in a group below the mount, or in the mount itself.
fn way(
    is_mount: bool,
    hands_on: &str,
    others: &[u32],
    beside: Option<&str>,
) -> Result<Way, LimitError> {
    let mount = Path::new("/mount");
    let group = match is_mount {
        true => mount.to_path_buf(),
        false => mount.join("a"),
    };
    let mut processes = format!("{}\n", std::process::id());
    others
        .iter()
        .for_each(|other| processes.push_str(&format!("{other}\n")));
    Way::of(
        &place(Version::Two, mount, &group),
        hands_on,
        &processes,
        beside,
    )
}

#[test]
fn version_1_takes_a_group_below() {
    let place = place(Version::One, Path::new("/mount"), Path::new("/mount/a"));
    assert_eq!(Way::find(&place).unwrap(), Way::Below);
}

#[test]
fn version_2_takes_a_way_that_its_rules_allow() {
    // The root of the whole system may have processes and groups with limits.
    assert_eq!(
        way(true, "cpu memory\n", &[1, 2], None).unwrap(),
        Way::Below
    );
    // Alone in a scope of systemd.
    let alone = way(false, "\n", &[], Some("cpu memory pids\n"));
    assert_eq!(alone.unwrap(), Way::Nested);
    // With a shell in the same scope, the group above has the controller.
    let beside = way(false, "\n", &[77], Some("memory\n"));
    assert_eq!(beside.unwrap(), Way::Beside);
    // The only process of a container, whose group is the root that it sees.
    assert_eq!(way(true, "\n", &[], None).unwrap(), Way::Nested);
}

#[test]
fn version_2_refuses_a_crowded_group_and_says_what_to_do() {
    for (is_mount, beside) in [(true, None), (false, None), (false, Some("cpu pids\n"))] {
        let text = way(is_mount, "cpu\n", &[1, 77], beside)
            .unwrap_err()
            .to_string();
        assert!(text.contains("2 processes beside this one"), "{text}");
        assert!(text.contains("systemd-run --scope"), "{text}");
    }
}

#[test]
fn a_group_without_the_controllers_files_is_removed_again() {
    let folder = tempfile::tempdir().unwrap();
    let place = place(Version::One, folder.path(), folder.path());
    let text = Group::enter(&place, 1 << 30).unwrap_err().to_string();
    assert!(
        text.contains("memory.limit_in_bytes: could not write `1073741824`"),
        "{text}"
    );
    assert!(text.contains("+memory"), "{text}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn groups_of_processes_that_are_gone_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let (groups, processes) = (folder.path().join("groups"), folder.path().join("proc"));
    let own = format!("{PREFIX}{}", std::process::id());
    for name in [
        "bench-limit-11",
        "bench-limit-12",
        "bench-limit-x",
        "other-11",
        &own,
    ] {
        fs::create_dir_all(groups.join(name)).unwrap();
    }
    fs::create_dir_all(processes.join("12")).unwrap();
    remove_leftovers(&groups, &processes);
    let mut left: Vec<_> = fs::read_dir(&groups)
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["bench-limit-12", "bench-limit-x", "other-11"]);
}

#[test]
fn a_refused_write_names_the_file_and_the_text() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("memory.max");
    let text = write(&file, "+memory").unwrap_err().to_string();
    assert!(
        text.contains("memory.max: could not write `+memory`: "),
        "{text}"
    );
}

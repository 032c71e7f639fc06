//! Stores whose tables are on a device, and what may happen to their folders.

mod common;
#[path = "common/device.rs"]
#[allow(dead_code)]
mod device;

use common::{files, numbered, silt, silt_with};
use device::TestDevice;

/// A store that was made in the folder of the tables of another one, before there were any tables,
/// had its own tables there, and each of the two deleted those of the other.
#[test]
fn no_store_is_made_in_a_folder_of_tables() {
    let device = TestDevice::start(&[]);
    let (local, tables) = (device.text("local"), device.url("t"));
    let load = [
        "load", &local, "-", "--format", "lines", "--tables", &tables,
    ];
    assert_eq!(silt_with(load, b"").code, Some(0));
    assert!(device.path("data/t/OWNER").exists());
    for count in [0, 5_000] {
        let load = ["load", &tables, "-", "--key", "number"];
        for said in [
            silt_with(load, &numbered(10)).failed(3),
            silt(["put", &tables, "k", "v"]).failed(3),
            silt(["count", &tables]).failed(3),
        ] {
            assert!(said.contains("it holds the tables of"), "{said}");
            assert!(said.contains("/local ("), "{said}");
        }
        let checked = silt(["check", &tables]);
        assert!(!checked.out.contains("DAMAGED"), "{checked:?}");
        assert!(checked.failed(3).contains("/local ("));
        assert!(!device.path("data/t/CURRENT").exists());
        if count == 0 {
            let load = ["load", &local, "-", "--key", "number"];
            silt_with(load, &numbered(5_000)).fine();
        }
    }
    assert_eq!(silt(["count", &local]).fine(), "5000\n");
    silt(["check", &local]).fine();
}

/// A copy of the local folder at the same path, as in a clone of the machine: its open deleted the
/// tables that the newer one had made.
#[test]
fn an_old_copy_of_a_local_folder_deletes_no_tables() {
    let device = TestDevice::start(&[]);
    let (local, tables) = (device.text("local"), device.url("t"));
    let load = ["load", &local, "-", "--key", "number", "--tables", &tables];
    silt_with(load, &numbered(5_000)).fine();
    let (old, new) = (device.path("old"), device.path("new"));
    std::fs::create_dir(&old).unwrap();
    for entry in std::fs::read_dir(&local).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), old.join(entry.file_name())).unwrap();
    }
    let load = ["load", &local, "-", "--key", "number"];
    silt_with(load, &numbered(6_000)).fine();
    let before = files(&device.path("data/t"), ".tbl");
    std::fs::rename(&local, &new).unwrap();
    std::fs::rename(&old, &local).unwrap();
    for args in [
        &["put", &local, "k", "v"][..],
        &["count", &local],
        &["check", &local],
    ] {
        let said = silt(args).failed(3);
        assert!(said.contains("is an old copy"), "{args:?}: {said}");
        let file = format!("delete the file OPENED of the folder {tables}");
        assert!(said.contains(&file), "{args:?}: {said}");
    }
    assert_eq!(files(&device.path("data/t"), ".tbl"), before);
    std::fs::rename(&local, &old).unwrap();
    std::fs::rename(&new, &local).unwrap();
    assert_eq!(silt(["count", &local]).fine(), "6000\n");
    silt(["check", &local]).fine();
}

/// The store is there, so the advice is not about creating one, and no command makes its folder.
#[test]
fn a_missing_folder_of_tables_is_explained() {
    let device = TestDevice::start(&[]);
    let (local, tables) = (device.text("local"), device.url("t"));
    let load = ["load", &local, "-", "--key", "number", "--tables", &tables];
    silt_with(load, &numbered(2_000)).fine();
    let (there, away) = (device.path("data/t"), device.path("data/away"));
    std::fs::rename(&there, &away).unwrap();
    for args in [
        &["put", &local, "k", "v"][..],
        &["count", &local],
        &["check", &local],
    ] {
        let said = silt(args).failed(3);
        assert!(said.contains("mount the device's disk"), "{args:?}: {said}");
        assert!(!said.contains("create a store"), "{args:?}: {said}");
    }
    let said = silt_with(load, &numbered(10)).failed(3);
    assert!(said.contains("mount the device's disk"), "{said}");
    assert!(!there.exists());
    std::fs::rename(&away, &there).unwrap();
    assert_eq!(silt(["count", &local]).fine(), "2000\n");
    // A store that cannot be made here makes nothing on the device.
    let other = device.url("z");
    let load = ["load", "/proc/x", "-", "--tables", &other];
    silt_with(load, &numbered(10)).failed(3);
    assert!(!device.path("data/z").exists());
}

/// A store whose tables are gone for good cannot be destroyed, so the user is told what to do.
#[test]
fn what_is_left_of_a_store_with_tables_on_a_device_is_explained() {
    let mut device = TestDevice::start(&[]);
    let (local, tables) = (device.text("local"), device.url("t"));
    let load = ["load", &local, "-", "--key", "number", "--tables", &tables];
    silt_with(load, &numbered(2_000)).fine();
    let (there, away) = (device.path("data/t"), device.path("data/away"));
    let destroy = ["destroy", &local, "--yes"];
    let advice = format!("if the tables are gone for good, remove the folder {local} with rm -r");
    std::fs::rename(&there, &away).unwrap();
    let said = silt(destroy).failed(3);
    assert!(
        said.contains("mount the device's disk") && said.contains(&advice),
        "{said}"
    );
    std::fs::rename(&away, &there).unwrap();
    device.kill();
    let said = silt(destroy).failed(3);
    assert!(
        said.contains("is `silt device` running?") && said.contains(&advice),
        "{said}"
    );
    device.run();
    // The question is about the tables, too.
    let said = silt(["destroy", &local]).failed(2);
    assert!(
        said.contains(&tables) && said.contains("for good?"),
        "{said}"
    );
    // A link to the store's folder stays, and so do the files of the user, each of which is listed
    // once.
    let (link, letter) = (device.text("link"), device.path("local/letter.txt"));
    std::os::unix::fs::symlink(&local, &link).unwrap();
    std::fs::write(&letter, "dear").unwrap();
    std::fs::create_dir(device.path("local/notes")).unwrap();
    let said = silt(["destroy", &link, "--yes"]).fine();
    assert!(said.contains("a link to the store's folder"), "{said}");
    assert!(said.contains(&format!("{link}/notes (")), "{said}");
    assert_eq!(said.matches("letter.txt").count(), 1, "{said}");
    assert!(!said.contains("other files"), "{said}");
    assert!(letter.exists() && files(&there, ".tbl").is_empty());
}

/// Without its file DIRECTORIES, a store looks as if its tables were lost.
#[test]
fn a_store_is_told_again_where_its_tables_are() {
    let device = TestDevice::start(&[]);
    let (local, tables) = (device.text("local"), device.url("t"));
    let load = |store: &str, tables: &str, input: &[u8]| {
        let input_is = ["--format", "lines", "--key", "number"];
        let mut args = vec!["load", store, "-", "--tables", tables];
        args.extend(input_is);
        silt_with(args, input)
    };
    load(&local, &tables, &numbered(2_000)).fine();
    load(&device.text("other"), &device.url("o"), &numbered(10)).fine();
    let file = device.path("local/DIRECTORIES");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let checked = silt(["check", &local]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    for said in [silt(["put", &local, "k", "v"]).failed(3), checked.out] {
        assert!(said.contains("DIRECTORIES"), "{said}");
        assert!(said.contains("on a device"), "{said}");
    }
    for wrong in ["o", "nothing"] {
        let said = load(&local, &device.url(wrong), b"").failed(2);
        assert!(said.contains("leave --tables out"), "{said}");
    }
    assert!(!device.path("data/nothing").exists());
    assert!(!file.exists());
    assert_eq!(load(&local, &tables, b"").code, Some(0));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    assert_eq!(silt(["count", &local]).fine(), "2000\n");
    silt(["check", &local]).fine();
}

//! Every message that a user can cause, one by one: its class, and the file, the values and the
//! advice that it must have. `cargo test -p siltstone --test errors -- --nocapture` prints them.
//! (Options that are not valid are in `options.rs`.)

use std::path::{Path, PathBuf};
use std::sync::Arc;

use siltstone::{
    Batch, Components, Error, ErrorKind, IngestMode, IterOptions, Options, Store, TableBuilder,
    TableFolder, TableOptions, WriteOptions,
};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{FaultStorage, MemoryStorage, OpKind, Runtime, Storage, StorageErrorKind};

/// The parts that a message must have beside its text.
const FILE: u8 = 1;
const OFFSET: u8 = 2;
const EXPECTED: u8 = 4;
const FOUND: u8 = 8;
const ADVICE: u8 = 16;

fn small() -> Options {
    Options {
        memtable_bytes: 256 << 10,
        table_bytes: 64 << 10,
        level1_bytes: 64 << 10,
        log_segment_bytes: 64 << 10,
        log_bytes_max: 1 << 20,
        block_bytes: 1 << 10,
        ..Options::default()
    }
}

/// A store in a folder that is deleted with the test.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    fn open(&self) -> Store {
        Store::open(self.path(), small()).unwrap()
    }

    /// A store with a table of some blocks, and more in the log.
    fn filled() -> Place {
        let place = Place::new();
        let store = place.open();
        let ks = store.default_keyspace().unwrap();
        for i in 0..200u32 {
            ks.put(&i.to_be_bytes(), &[i as u8; 100]).unwrap();
        }
        store.flush().unwrap();
        for i in 200..300u32 {
            ks.put(&i.to_be_bytes(), &[i as u8; 100]).unwrap();
        }
        store.close().unwrap();
        place
    }

    /// The path of the last file whose name ends or begins with `part`.
    fn file(&self, part: &str) -> PathBuf {
        let mut names: Vec<PathBuf> = std::fs::read_dir(self.path())
            .unwrap()
            .map(|e| e.unwrap().path())
            .collect();
        names.sort();
        let is = |p: &Path| {
            let name = p.file_name().unwrap().to_str().unwrap();
            name == part
                || part.starts_with('.') && name.ends_with(part)
                || part == "MANIFEST" && name.starts_with("MANIFEST-")
        };
        names
            .into_iter()
            .rfind(|p| is(p))
            .unwrap_or_else(|| panic!("no {part}"))
    }

    fn change(&self, part: &str, change: impl FnOnce(&mut Vec<u8>)) -> &Place {
        let path = self.file(part);
        let mut bytes = std::fs::read(&path).unwrap();
        change(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        self
    }

    fn refused(&self) -> Error {
        Store::open(self.path(), small()).expect_err("the store opened")
    }

    /// The first error of reading everything, during which other keyspaces must not fail.
    fn unreadable(&self) -> Error {
        let store = self.open();
        let ks = store.default_keyspace().unwrap();
        let error = ks
            .iter()
            .and_then(|pairs| pairs.collect::<Result<Vec<_>, _>>().map(drop))
            .expect_err("all of it was read");
        let got = (0..200u32)
            .find_map(|i| ks.get(&i.to_be_bytes()).err())
            .expect("every get was answered");
        assert_eq!(got.kind(), error.kind(), "{got}");
        store
            .create_keyspace("other")
            .unwrap()
            .put(b"k", b"v")
            .unwrap();
        error
    }
}

/// Writes the checksum of `bytes[..at]` at `at`.
fn seal(bytes: &mut [u8], at: usize) {
    let crc = crc32c::crc32c(&bytes[..at]);
    bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

fn on_memory() -> (MemoryStorage, FaultStorage, Store) {
    let runtime = Runtime::threads();
    let memory = MemoryStorage::new(&runtime);
    let faults = FaultStorage::new(Arc::new(memory.clone()), &runtime);
    let storage: Arc<dyn Storage> = Arc::new(faults.clone());
    let store = Store::open_with(Components::on(storage, runtime), small()).unwrap();
    (memory, faults, store)
}

/// What is done, the class of the error, the parts that it must have, and the call.
type Case = (&'static str, ErrorKind, u8, fn() -> Error);

const CASES: &[Case] = &[
    (
        "a key of 65,536 bytes",
        ErrorKind::InvalidArgument,
        EXPECTED | FOUND | ADVICE,
        || {
            Place::new()
                .open()
                .default_keyspace()
                .unwrap()
                .put(&[1; 65_536], b"v")
                .unwrap_err()
        },
    ),
    (
        "a value over 1 GiB",
        ErrorKind::InvalidArgument,
        EXPECTED | FOUND | ADVICE,
        || {
            let huge = vec![0; (1 << 30) + 1];
            Place::new()
                .open()
                .default_keyspace()
                .unwrap()
                .put(b"k", &huge)
                .unwrap_err()
        },
    ),
    (
        "delete_range the wrong way round",
        ErrorKind::InvalidArgument,
        ADVICE,
        || {
            Place::new()
                .open()
                .default_keyspace()
                .unwrap()
                .delete_range(b"b", b"a")
                .unwrap_err()
        },
    ),
    (
        "an unknown keyspace",
        ErrorKind::NotFound,
        EXPECTED | ADVICE,
        || Place::new().open().keyspace("nobody").unwrap_err(),
    ),
    (
        "a keyspace that is there already",
        ErrorKind::InvalidArgument,
        ADVICE,
        || Place::new().open().create_keyspace("default").unwrap_err(),
    ),
    (
        "a keyspace without a name",
        ErrorKind::InvalidArgument,
        EXPECTED | FOUND,
        || Place::new().open().create_keyspace("").unwrap_err(),
    ),
    (
        "a keyspace's name of 300 bytes",
        ErrorKind::InvalidArgument,
        EXPECTED | FOUND,
        || {
            Place::new()
                .open()
                .create_keyspace(&"x".repeat(300))
                .unwrap_err()
        },
    ),
    (
        "dropping an unknown keyspace",
        ErrorKind::NotFound,
        EXPECTED | ADVICE,
        || Place::new().open().drop_keyspace("nobody").unwrap_err(),
    ),
    (
        "a read of a dropped keyspace",
        ErrorKind::KeyspaceDropped,
        ADVICE,
        || {
            let store = Place::new().open();
            let ks = store.create_keyspace("a").unwrap();
            store.drop_keyspace("a").unwrap();
            ks.get(b"k").unwrap_err()
        },
    ),
    (
        "a batch for a dropped keyspace",
        ErrorKind::KeyspaceDropped,
        ADVICE,
        || {
            let store = Place::new().open();
            let keyspace = store.create_keyspace("a").unwrap();
            store.drop_keyspace("a").unwrap();
            let mut batch = Batch::new();
            batch.put(&keyspace, b"k", b"v").unwrap();
            store.write(&batch, WriteOptions::default()).unwrap_err()
        },
    ),
    (
        "a table built under a name that is taken",
        ErrorKind::InvalidArgument,
        FILE | ADVICE,
        || {
            let dir = tempfile::tempdir().unwrap();
            let folder = TableFolder::open(dir.path()).unwrap();
            let build = || {
                let mut builder = TableBuilder::new(&folder, "t", TableOptions::default())?;
                builder.put(b"k", b"v")?;
                builder.finish()
            };
            build().unwrap();
            build().unwrap_err()
        },
    ),
    (
        "an export under a name that is taken",
        ErrorKind::InvalidArgument,
        FILE | ADVICE,
        || {
            let dir = tempfile::tempdir().unwrap();
            let folder = TableFolder::open(dir.path()).unwrap();
            let ks = Place::new().open().default_keyspace().unwrap();
            ks.put(b"k", b"v").unwrap();
            ks.export(.., &folder, "t").unwrap();
            ks.export(.., &folder, "t").unwrap_err()
        },
    ),
    (
        "an ingest of a missing table",
        ErrorKind::NotFound,
        FILE | ADVICE,
        || {
            let dir = tempfile::tempdir().unwrap();
            let folder = TableFolder::open(dir.path()).unwrap();
            let place = Place::new();
            let ks = place.open().default_keyspace().unwrap();
            let files = vec![folder.file("missing.table")];
            let store = ks.store();
            store.ingest(&[(&ks, files)], IngestMode::Move).unwrap_err()
        },
    ),
    (
        "a snapshot of another store",
        ErrorKind::InvalidArgument,
        ADVICE,
        || {
            let (one, other) = (Place::new(), Place::new());
            let snapshot = one.open().snapshot();
            other
                .open()
                .default_keyspace()
                .unwrap()
                .get_at(&snapshot, b"k")
                .unwrap_err()
        },
    ),
    (
        "a step of a cursor that stands nowhere",
        ErrorKind::InvalidArgument,
        ADVICE,
        || {
            let store = Place::new().open();
            store
                .default_keyspace()
                .unwrap()
                .cursor(IterOptions::default())
                .unwrap()
                .next()
                .unwrap_err()
        },
    ),
    (
        "a call on a closed store",
        ErrorKind::Closed,
        ADVICE,
        || {
            let place = Place::new();
            let store = place.open();
            let ks = store.default_keyspace().unwrap();
            store.close().unwrap();
            ks.put(b"k", b"v").unwrap_err()
        },
    ),
    (
        "two writers on one folder",
        ErrorKind::Locked,
        ADVICE,
        || {
            let place = Place::new();
            let _first = place.open();
            place.refused()
        },
    ),
    (
        "no store, and none may be created",
        ErrorKind::NotFound,
        FILE | ADVICE,
        || {
            Store::open(
                Place::new().path(),
                Options {
                    create_if_missing: false,
                    ..small()
                },
            )
            .unwrap_err()
        },
    ),
    (
        "an empty folder, and no store may be created",
        ErrorKind::NotFound,
        ADVICE,
        || {
            let place = Place::new();
            std::fs::create_dir(place.path()).unwrap();
            Store::open(
                place.path(),
                Options {
                    create_if_missing: false,
                    ..small()
                },
            )
            .unwrap_err()
        },
    ),
    (
        "error_if_exists",
        ErrorKind::InvalidArgument,
        ADVICE,
        || {
            let place = Place::filled();
            Store::open(
                place.path(),
                Options {
                    error_if_exists: true,
                    ..small()
                },
            )
            .unwrap_err()
        },
    ),
    (
        "a file where the folder should be",
        ErrorKind::InvalidArgument,
        FILE,
        || {
            let place = Place::new();
            std::fs::write(place.path(), b"a file").unwrap();
            place.refused()
        },
    ),
    (
        "a manifest of a newer format",
        ErrorKind::Unsupported,
        FILE | OFFSET | EXPECTED | FOUND | ADVICE,
        || {
            let newer = |bytes: &mut Vec<u8>| {
                bytes[8] = 9;
                seal(bytes, 44);
            };
            Place::filled().change("MANIFEST", newer).refused()
        },
    ),
    (
        "a CURRENT of a newer format",
        ErrorKind::Unsupported,
        FILE | EXPECTED | FOUND | ADVICE,
        || {
            let newer = |bytes: &mut Vec<u8>| {
                let text = String::from_utf8(bytes.clone()).unwrap().replacen(
                    "siltstone-current 2",
                    "siltstone-current 9",
                    1,
                );
                let covered = text[..text.rfind("crc32c ").unwrap()].to_string();
                *bytes = format!(
                    "{covered}crc32c {:08x}\n",
                    crc32c::crc32c(covered.as_bytes())
                )
                .into_bytes();
            };
            Place::filled().change("CURRENT", newer).refused()
        },
    ),
    (
        "a log segment of a newer format",
        ErrorKind::Unsupported,
        FILE | OFFSET | EXPECTED | FOUND | ADVICE,
        || {
            let place = Place::filled();
            for entry in std::fs::read_dir(place.path()).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                if name.ends_with(".log") {
                    place.change(&name, |bytes| {
                        bytes[8] = 9;
                        seal(bytes, 60);
                    });
                }
            }
            place.refused()
        },
    ),
    (
        "a table of a newer format",
        ErrorKind::Unsupported,
        FILE | EXPECTED | FOUND | ADVICE,
        || {
            let newer = |bytes: &mut Vec<u8>| {
                let footer = bytes.len() - 64;
                bytes[footer + 48] = 9;
                seal(&mut bytes[footer..], 52);
            };
            Place::filled().change(".tbl", newer).refused()
        },
    ),
    (
        "a flipped bit in the manifest",
        ErrorKind::Corruption,
        FILE | OFFSET | EXPECTED | FOUND | ADVICE,
        || {
            Place::filled()
                .change("MANIFEST", |bytes| bytes[20] ^= 1)
                .refused()
        },
    ),
    (
        "a flipped bit in CURRENT",
        ErrorKind::Corruption,
        FILE | EXPECTED | FOUND | ADVICE,
        || {
            Place::filled()
                .change("CURRENT", |bytes| bytes[25] ^= 1)
                .refused()
        },
    ),
    (
        "a manifest longer than any can be",
        ErrorKind::Corruption,
        FILE | EXPECTED | FOUND | ADVICE,
        || {
            let place = Place::filled();
            // The file has a hole, so it takes no space.
            let manifest = std::fs::OpenOptions::new()
                .write(true)
                .open(place.file("MANIFEST"))
                .unwrap();
            manifest.set_len((8 << 30) + 1).unwrap();
            place.refused()
        },
    ),
    (
        "a missing manifest",
        ErrorKind::Corruption,
        FILE | ADVICE,
        || {
            let place = Place::filled();
            std::fs::remove_file(place.file("MANIFEST")).unwrap();
            place.refused()
        },
    ),
    (
        "a missing CURRENT beside tables",
        ErrorKind::Corruption,
        FILE | ADVICE,
        || {
            let place = Place::filled();
            std::fs::remove_file(place.file("CURRENT")).unwrap();
            place.refused()
        },
    ),
    (
        "a missing log segment",
        ErrorKind::Corruption,
        FILE | ADVICE,
        || {
            let place = Place::filled();
            for entry in std::fs::read_dir(place.path()).unwrap() {
                let path = entry.unwrap().path();
                if path.extension().is_some_and(|e| e == "log") {
                    std::fs::remove_file(path).unwrap();
                }
            }
            place.refused()
        },
    ),
    (
        "a flipped bit in a block of a table",
        ErrorKind::Corruption,
        FILE | OFFSET | EXPECTED | FOUND | ADVICE,
        || {
            Place::filled()
                .change(".tbl", |bytes| bytes[700] ^= 1)
                .unreadable()
        },
    ),
    (
        "a truncated table",
        ErrorKind::Corruption,
        FILE | ADVICE,
        || {
            Place::filled()
                .change(".tbl", |bytes| bytes.truncate(bytes.len() / 2))
                .unreadable()
        },
    ),
    (
        "a table cut to nothing",
        ErrorKind::Corruption,
        FILE | ADVICE,
        || Place::filled().change(".tbl", Vec::clear).unreadable(),
    ),
    (
        "a missing table",
        ErrorKind::Corruption,
        FILE | ADVICE,
        || {
            let place = Place::filled();
            std::fs::remove_file(place.file(".tbl")).unwrap();
            place.refused()
        },
    ),
    (
        "a table of another store in its place",
        ErrorKind::Corruption,
        FILE | EXPECTED | FOUND | ADVICE,
        || {
            let (place, other) = (Place::filled(), Place::new());
            let store = other.open();
            store.default_keyspace().unwrap().put(b"k", b"v").unwrap();
            store.flush().unwrap();
            std::fs::copy(other.file(".tbl"), place.file(".tbl")).unwrap();
            place.unreadable()
        },
    ),
    (
        "a map of a table that has become unreadable",
        ErrorKind::Io,
        FILE,
        || {
            let (_, faults, store) = on_memory();
            let ks = store.default_keyspace().unwrap();
            ks.put(b"k", b"a value that is not zeros").unwrap();
            faults.add(Rule::on(OpKind::Map, Fault::FailedMap).for_good());
            store.flush().unwrap();
            match ks.get(b"k") {
                Ok(found) => panic!("{found:?} from a failed map"),
                Err(error) => error,
            }
        },
    ),
    (
        "a write on a full disk",
        ErrorKind::NoSpace,
        FILE | ADVICE,
        || {
            let (memory, _, store) = on_memory();
            let ks = store.default_keyspace().unwrap();
            memory.set_capacity(Some(memory.used_bytes()));
            (0..1000u32)
                .find_map(|i| ks.put(&i.to_be_bytes(), &[7; 900]).err())
                .expect("the disk never filled")
        },
    ),
    (
        "a write whose sync fails",
        ErrorKind::Poisoned,
        FILE | ADVICE,
        || {
            let (_, faults, store) = on_memory();
            faults
                .add(Rule::on(OpKind::Sync, Fault::Fail(StorageErrorKind::Io)).named("000000000"));
            let mut batch = Batch::new();
            let ks = store.default_keyspace().unwrap();
            batch.put(&ks, b"k", b"v").unwrap();
            store.write(&batch, WriteOptions::SYNC).unwrap_err()
        },
    ),
    (
        "a write after a failed sync",
        ErrorKind::Poisoned,
        FILE | ADVICE,
        || {
            let (_, faults, store) = on_memory();
            faults
                .add(Rule::on(OpKind::Sync, Fault::Fail(StorageErrorKind::Io)).named("000000000"));
            let ks = store.default_keyspace().unwrap();
            ks.put(b"k", b"v").unwrap();
            store.sync_log().unwrap_err();
            assert_eq!(ks.get(b"k").unwrap().unwrap(), b"v", "reads continue");
            ks.put(b"k", b"w").unwrap_err()
        },
    ),
    ("a read that fails", ErrorKind::Io, FILE, || {
        let (_, faults, store) = on_memory();
        let ks = store.default_keyspace().unwrap();
        ks.put(b"k", b"v").unwrap();
        store.flush().unwrap();
        faults.add(Rule::on(OpKind::Open, Fault::Fail(StorageErrorKind::Io)).named("00000001-"));
        let error = ks.get(b"k").unwrap_err();
        assert_eq!(
            ks.get(b"k").unwrap().unwrap(),
            b"v",
            "the next one succeeds"
        );
        error
    }),
];

#[test]
fn every_message_is_complete() {
    let mut wrong = Vec::new();
    for (what, kind, parts, provoke) in CASES {
        let error = provoke();
        println!("{what:46} | {:16} | {error}", error.kind().word());
        if error.kind() != *kind {
            wrong.push(format!(
                "{what}: {:?} instead of {kind:?}: {error}",
                error.kind()
            ));
        }
        let said = [
            (FILE, "a file", error.file().is_some()),
            (OFFSET, "an offset", error.offset().is_some()),
            (
                EXPECTED,
                "what was expected",
                error.expected_value().is_some(),
            ),
            (FOUND, "what was found", error.found_value().is_some()),
            (ADVICE, "advice", error.advice_text().is_some()),
        ];
        for (part, name, there) in said {
            if parts & part != 0 && !there {
                wrong.push(format!("{what}: the message lacks {name}: {error}"));
            }
        }
        if error.message().is_empty() || error.to_string().contains("Error {") {
            wrong.push(format!("{what}: no message for people: {error}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A batch has the numbers of its keyspaces. The message has the name, as in every other call.
#[test]
fn a_batch_for_a_dropped_keyspace_names_it() {
    let place = Place::new();
    let store = place.open();
    let keyspace = store.create_keyspace("birds").unwrap();
    store.drop_keyspace("birds").unwrap();
    let mut batch = Batch::new();
    batch.put(&keyspace, b"k", b"v").unwrap();
    batch.put(&keyspace, b"l", b"v").unwrap();
    let written = store.write(&batch, WriteOptions::default()).unwrap_err();
    assert!(written.to_string().contains("`birds`"), "{written}");
    assert_eq!(
        written.to_string(),
        keyspace.get(b"k").unwrap_err().to_string()
    );
    // Only the names of the last dropped keyspaces are kept. After that the message has the number.
    for i in 0..70 {
        let name = format!("keyspace-{i}");
        store.create_keyspace(&name).unwrap();
        store.drop_keyspace(&name).unwrap();
    }
    let error = store.write(&batch, WriteOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::KeyspaceDropped);
    let number = format!("number {}", keyspace.id());
    assert!(error.to_string().contains(&number), "{error}");
}

/// A keyspace's name may have a line feed, which broke the message that lists the names.
#[test]
fn names_of_keyspaces_are_escaped() {
    let place = Place::new();
    let store = place.open();
    store.create_keyspace("two\nlines").unwrap();
    for name in ["nope", "no\npe"] {
        let error = store.keyspace(name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_eq!(error.expected_value(), Some("one of: default, two\\nlines"));
        assert!(!error.to_string().contains("pe`\n"), "{error}");
        assert_eq!(error.to_string().lines().count(), 1, "{error}");
    }
}

/// The message had the advice to close the readers twice.
#[test]
fn a_store_with_readers_is_locked_with_one_advice() {
    let place = Place::new();
    place.open().close().unwrap();
    let _reader = Store::open_read_only(place.path(), small()).unwrap();
    let error = place.refused();
    assert_eq!(error.kind(), ErrorKind::Locked);
    let text = error.to_string();
    assert!(text.contains("readers have it open"), "{text}");
    assert_eq!(text.matches("close ").count(), 1, "{text}");
}

/// The advice for a number in a wrong form was to stay within the limits, which it did.
#[test]
fn a_number_in_a_wrong_form_is_refused_with_the_right_form() {
    let place = Place::new();
    let store = place.open();
    let advice = |value: &str| {
        let error = store.set_option("stats_file_ms", value).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        error.advice_text().unwrap().to_string()
    };
    for value in ["1 s", "1.5", "often", ""] {
        let wanted = "write a whole number of milliseconds";
        assert!(
            advice(value).contains(wanted),
            "{value:?}: {}",
            advice(value)
        );
    }
    for value in ["3600001", "99999999999999999999"] {
        assert!(
            advice(value).contains("limits"),
            "{value:?}: {}",
            advice(value)
        );
    }
}

/// `default` can be dropped like every other keyspace, and does not exist until it is created
/// again.
#[test]
fn a_store_without_keyspaces_says_so() {
    let place = Place::new();
    let store = place.open();
    store.drop_keyspace("default").unwrap();
    let error = store.default_keyspace().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let expected = error.expected_value().unwrap();
    assert!(expected.contains("no keyspaces"), "{error}");
    let advice = error.advice_text().unwrap();
    assert!(advice.contains("Store::open_keyspace"), "{error}");
    store.close().unwrap();
    let store = place.open();
    assert_eq!(store.keyspaces(), [""; 0]);
    assert!(store.default_keyspace().is_err());
    store.open_keyspace("default").unwrap();
    assert_eq!(store.default_keyspace().unwrap().name(), "default");
    store.close().unwrap();
}

/// The folder of an open store is removed: reads and flushes fail with an error that names a
/// missing file, and the statistics show that flushes fail.
#[test]
fn a_folder_that_is_removed_under_an_open_store_is_reported() {
    let place = Place::filled();
    let store = place.open();
    let ks = store.default_keyspace().unwrap();
    ks.put(b"k", b"v").unwrap();
    assert_eq!(store.stats().jobs_failing, None);
    std::fs::remove_dir_all(place.path()).unwrap();

    let read = ks.get(&7u32.to_be_bytes()).unwrap_err();
    println!("{read}");
    assert_eq!(read.kind(), ErrorKind::Corruption);
    assert!(read.to_string().contains("is missing"), "{read}");
    assert!(read.file().unwrap().ends_with(".tbl"), "{read}");
    assert!(read.advice_text().unwrap().contains("removed"), "{read}");

    let flush = store.flush().unwrap_err();
    println!("{flush}");
    let folder = place.path().display().to_string();
    let text = flush.to_string();
    assert!(
        text.contains(&format!("the folder {folder} was removed")),
        "{text}"
    );
    assert!(flush.advice_text().unwrap().contains("removed"), "{text}");
    let stats = store.stats();
    assert!(stats.counter("job_failed_count") > 0);
    let failing = stats.jobs_failing.unwrap();
    assert!(failing.contains("was removed"), "{failing}");
}

/// A folder that may not be written. (Root may write everything, so there the test says only that
/// nothing is lost.)
#[test]
fn a_folder_that_may_not_be_written_is_reported() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::filled();
    let set = |mode| {
        std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(mode)).unwrap()
    };
    set(0o555);
    let result = Store::open(place.path(), small());
    set(0o755);
    match result {
        Ok(store) => store.close().unwrap(),
        Err(error) => {
            println!("{error}");
            assert_eq!(error.kind(), ErrorKind::Io, "{error}");
            assert!(
                error.file().is_some() && error.advice_text().is_some(),
                "{error}"
            );
        }
    }
    assert_eq!(
        place
            .open()
            .default_keyspace()
            .unwrap()
            .iter()
            .unwrap()
            .count(),
        300
    );
}

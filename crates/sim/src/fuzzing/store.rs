//! Parsers that read several files: recovery, check, repair, and the files that say where a store's
//! parts lie.

use std::sync::{Arc, OnceLock};

use siltstone::check::{CheckStorages, check};
use siltstone::log::format::{ChainEnd, SEGMENT_HEADER_BYTES, SegmentHeader};
use siltstone::manifest::format::{HEADER_BYTES, RECORD_HEADER_BYTES};
use siltstone::manifest::{manifest_name, recover};
use siltstone::repair::{RepairOptions, RepairSource, repair as run_repair};
use siltstone::version::{LogPosition, LogStart, StoreState};
use siltstone::{Components, Options, Storages, Store};
use siltstone_storage::{Epoch, MemoryStorage, Runtime, Storage};

use super::fixup;
use crate::checker::contents;
use crate::world::admin::reading_options;

fn put(storage: &MemoryStorage, name: &str, bytes: &[u8]) {
    storage
        .replace(Epoch::default(), name, bytes)
        .expect("memory");
}

fn bytes_of(storage: &MemoryStorage, name: &str) -> Vec<u8> {
    storage.read_small(name).expect("it is there")
}

/// A store with a keyspace and a log that is not flushed, as a kill leaves it.
struct Killed {
    image: MemoryStorage,
    segment: String,
    header: SegmentHeader,
}

fn options() -> Options {
    Options {
        memtable_bytes: 64 << 10,
        log_segment_bytes: 64 << 10,
        log_bytes_max: 256 << 10,
        stats_file_ms: 0,
        background_tasks: 1,
        ..Options::default()
    }
}

/// The log segment in `image` that contains records.
fn segment_of(image: &MemoryStorage) -> (String, SegmentHeader) {
    let names = image.list().expect("memory").into_iter().map(|o| o.name);
    names
        .filter(|name| name.ends_with(".log"))
        .find_map(|name| {
            let number = siltstone::log::format::parse_segment_name(&name)?;
            let bytes = bytes_of(image, &name);
            let (header, _) = SegmentHeader::decode(&bytes, number).ok()?;
            Some((name, header))
        })
        .expect("a segment with a header")
}

fn killed() -> &'static Killed {
    static KILLED: OnceLock<Killed> = OnceLock::new();
    KILLED.get_or_init(|| {
        let runtime = Runtime::threads();
        let medium = MemoryStorage::new(&runtime);
        let components = Components::on(Arc::new(medium.clone()), runtime.clone());
        let store = Store::open_with(components, options()).expect("a new store");
        let keyspace = store.default_keyspace().expect("it is there");
        keyspace.put(b"key", b"value").expect("memory");
        let image = medium.kill_in(&runtime);
        store.close().expect("memory");
        let (segment, header) = segment_of(&image);
        Killed {
            image,
            segment,
            header,
        }
    })
}

/// Puts a log start, a salt, a synced position and the mark of a close into the manifest of
/// `image`. They are drawn from the bytes of the log's header that name the previous segment, which
/// the first segment does not need. If these are zeros, the manifest stays as it is.
fn draw_manifest(image: &MemoryStorage, bytes: &[u8], header: &SegmentHeader) {
    let drawn = bytes.get(40..56).unwrap_or(&[0; 16]);
    if drawn.iter().all(|byte| *byte == 0) {
        return;
    }
    let recovered = recover(image).expect("it is sound").expect("it is there");
    let mut state = StoreState::clone(&recovered.state);
    let offset = |byte: u8| match u64::from(byte) * 4 {
        offset if offset < SEGMENT_HEADER_BYTES as u64 => 0,
        offset => offset,
    };
    let segment = u64::from(header.number);
    state.log_start = LogStart {
        segment,
        offset: offset(drawn[1]),
        salt: header.salt.wrapping_add(u64::from(drawn[0] >> 1 & 1)),
    };
    state.log_synced = LogPosition {
        segment,
        offset: offset(drawn[2]).max(state.log_start.offset),
    };
    state.closed = drawn[0] & 1 != 0;
    let payload = state.to_edit().encode();
    let mut manifest = vec![0; HEADER_BYTES];
    manifest.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    manifest.resize(HEADER_BYTES + RECORD_HEADER_BYTES, 0);
    manifest.extend_from_slice(&payload);
    let current = recovered.current;
    let manifest = fixup::manifest(&manifest, &current);
    put(image, &manifest_name(current.number), &manifest);
}

/// The bytes are the log of a store that was killed, or closed ([`draw_manifest`]). The store is
/// checked, and opened for reading.
pub(super) fn recovery(bytes: &[u8]) {
    let killed = killed();
    let header = SegmentHeader {
        previous: ChainEnd::NONE,
        ..killed.header
    };
    let runtime = Runtime::threads();
    for log in [bytes.to_vec(), fixup::segment(bytes, &header)] {
        let image = killed.image.kill_in(&runtime);
        put(&image, &killed.segment, &log);
        draw_manifest(&image, bytes, &header);
        let sound = check(&CheckStorages::on(&image), &mut |_| {}).is_ok_and(|r| r.is_sound());
        let components = Components::on(Arc::new(image.clone()), runtime.clone());
        match Store::open_read_only_with(components, reading_options()) {
            Ok(store) => {
                let all = contents(&store);
                assert!(
                    all.is_ok() || !sound,
                    "`check` finds nothing, and a read says {:?}",
                    all.err()
                );
                let passed = store.stats().counter("skipped_log_damage_count");
                assert!(
                    passed == 0 || !sound,
                    "`check` finds nothing, although damage was passed over"
                );
            }
            Err(e) => assert!(
                e.file().is_some() || e.kind() == siltstone::ErrorKind::NoSpace,
                "an error that names no file: {e}"
            ),
        }
    }
}

/// Names of files in a folder, in the order of the numbers that represent them.
const NAMES: [&str; 8] = [
    "CURRENT",
    "MANIFEST-000000000001",
    "MANIFEST-000000000002",
    "000000000001.log",
    "000000000002.log",
    "00000001-00000001-0000-00000.tbl",
    "00000001-00000002-0000-00000.tbl",
    "00000001-00000003-0000-00000.tbl",
];

/// A folder: pieces with a number (below 8: a name as above; plus 8: with corrected checksums), a
/// length u16, and bytes.
fn folder(mut bytes: &[u8], runtime: &Runtime) -> MemoryStorage {
    let storage = MemoryStorage::new(runtime);
    while let Some(([number, low, high], rest)) = bytes.split_first_chunk::<3>() {
        let len = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        let (piece, rest) = rest.split_at(len);
        bytes = rest;
        let name = NAMES[usize::from(number % 8)];
        let fits = number & 8 != 0;
        let current = fixup::current_of(piece);
        let object = match number % 8 {
            1 | 2 if fits => fixup::manifest(
                piece,
                &siltstone::manifest::Current {
                    number: u64::from(number % 8),
                    ..current
                },
            ),
            3 | 4 if fits => {
                let mut id = [0; 8];
                let found = piece.get(16..24).unwrap_or(&[0; 8]);
                id.copy_from_slice(found);
                let header = SegmentHeader {
                    store_id: u64::from_le_bytes(id),
                    number: u32::from(number % 8 - 2),
                    salt: 1,
                    previous: ChainEnd::NONE,
                };
                fixup::segment(piece, &header)
            }
            5.. if fits => fixup::table(piece),
            _ => piece.to_vec(),
        };
        put(&storage, name, &object);
    }
    storage
}

/// Repairs a folder of any files; the result must be a sound store.
pub(super) fn repair(bytes: &[u8]) {
    let runtime = Runtime::threads();
    let source = folder(bytes, &runtime);
    let _ = check(&CheckStorages::on(&source), &mut |_| {});
    let target = MemoryStorage::new(&runtime);
    let storage: Arc<dyn Storage> = Arc::new(target.clone());
    let from = RepairSource::on(Arc::new(source.clone()));
    let options = RepairOptions {
        table_bytes: 64 << 10,
        block_bytes: 1 << 10,
        ..RepairOptions::default()
    };
    if run_repair(&from, &storage, &runtime, &options, &mut |_| {}).is_err() {
        return;
    }
    let report = check(&CheckStorages::on(&target), &mut |_| {}).expect("a store was made");
    assert!(report.is_sound(), "{:?}", report.problems);
    let components = Components::on(storage, runtime);
    let store = match Store::open_read_only_with(components, reading_options()) {
        Ok(store) => store,
        // Settings are copied unchanged, also those of a later version.
        Err(e) if e.kind() == siltstone::ErrorKind::Unsupported => return,
        Err(e) => panic!("a sound store does not open: {e}"),
    };
    contents(&store).unwrap_or_else(|e| panic!("a sound store is read: {e}"));
}

/// One byte selects the file: `DIRECTORIES` of the store's folder, or `OWNER` of the folder of its
/// log.
pub(super) fn directories(bytes: &[u8]) {
    let Some((which, bytes)) = bytes.split_first() else {
        return;
    };
    static SPLIT: OnceLock<[MemoryStorage; 2]> = OnceLock::new();
    let split = SPLIT.get_or_init(|| {
        let runtime = Runtime::threads();
        let media = ["/store", "/log"].map(|n| MemoryStorage::named(&runtime, n));
        let components = Components::of(storages(&media), runtime.clone());
        let store = Store::open_with(components, options()).expect("a new store");
        store.close().expect("memory");
        media
    });
    let runtime = Runtime::threads();
    let media = [0, 1].map(|i| split[i].kill_in(&runtime));
    match which % 2 {
        0 => put(&media[0], "DIRECTORIES", bytes),
        _ => put(&media[1], "OWNER", bytes),
    }
    let all = storages(&media);
    let found = check(&CheckStorages::of(&all), &mut |_| {});
    let components = Components::of(all, runtime);
    let opened = Store::open_read_only_with(components, reading_options());
    if found.is_ok_and(|f| f.is_sound()) {
        assert!(
            opened.is_ok(),
            "`check` finds nothing, and open says {}",
            opened.err().map_or(String::new(), |e| e.to_string())
        );
    }
}

fn storages(media: &[MemoryStorage; 2]) -> Storages {
    let [store, log] = media.clone().map(|m| Arc::new(m) as Arc<dyn Storage>);
    Storages {
        log,
        manifest: store.clone(),
        tables: store,
        redirect: None,
    }
}

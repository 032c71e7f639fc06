//! What is read back after a power loss at every call, from every torn tail, with every byte
//! flipped, and on a full disk; and that the bytes are those of `docs/format/manifest.md`.

use std::sync::Arc;

use proptest::prelude::*;
use siltstone::ErrorKind;
use siltstone::manifest::format::{
    HEADER_BYTES, SEAL_BYTES, encode_header, encode_record_header, record_bytes,
};
use siltstone::manifest::reader::parse_manifest;
use siltstone::manifest::{
    Current, Manifest, Space, StoreId, manifest_name, read_current, recover,
};
use siltstone::version::{
    AddTable, CreateKeyspace, Edit, KeyRange, KeyspaceEdit, LogPosition, LogStart, RemoveTable,
    RunSlot, SeqRange, StoreState, StoredOptions, TableMeta,
};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::memory::CrashPolicy;
use siltstone_storage::{
    Epoch, FaultStorage, MemoryStorage, OpKind, Runtime, Storage, StorageErrorKind,
};

const STORE: StoreId = StoreId(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);

const SALT: u64 = 0xc0de_c0de_0bad_cafe;

fn first_state() -> StoreState {
    let mut options = StoredOptions::new();
    options.set_u64(siltstone::version::edit::option::MEMTABLE_BYTES, 64 << 20);
    let edit = Edit {
        next_table_id: Some(1000),
        sequence_ceiling: Some(1 << 28),
        open_number: Some(1),
        log_start: Some(LogStart::of_segment(1, SALT)),
        log_synced: Some(LogPosition {
            segment: 1,
            offset: 64,
        }),
        created_us: Some(1_700_000_000_000_000),
        create: vec![CreateKeyspace {
            id: 0,
            name: "default".into(),
            sequence: 1,
            options,
        }],
        ..Edit::new()
    };
    StoreState::new().apply(&edit).unwrap()
}

/// The `n`-th flush (from 1), with one table whose name has `name_bytes` bytes.
fn flush(n: u64, name_bytes: usize) -> Edit {
    let seqs = SeqRange::new(n * 10 - 9, n * 10 + 1);
    let table = TableMeta {
        id: n,
        location: 0,
        name: format!("{n:0name_bytes$}"),
        min_seq: seqs.lo + 1,
        max_seq: seqs.hi,
        raw_bytes: 4096,
        file_bytes: 5000,
        entries: 10,
        deletes: 1,
        range_deletes: 0,
        digest: 0x0123_4567_89ab_cdef,
        points: Some((Box::from(*b"apple"), Box::from(*b"pear"))),
        bounds: KeyRange::closed(b"apple", b"pear"),
        sequence_override: None,
        flags: 0,
    };
    let change = KeyspaceEdit {
        covered: vec![seqs],
        add: vec![AddTable {
            level: 0,
            run: Some(RunSlot { id: 500 + n, seqs }),
            table: Arc::new(table),
        }],
        ..KeyspaceEdit::new(0)
    };
    Edit {
        log_start: Some(LogStart {
            offset: if n == 1 { 64 } else { 0 },
            ..LogStart::of_segment(n, SALT)
        }),
        keyspaces: vec![change],
        ..Edit::new()
    }
}

fn memory() -> (MemoryStorage, Arc<dyn Storage>) {
    let storage = MemoryStorage::new(&Runtime::threads());
    (storage.clone(), Arc::new(storage))
}

/// A manifest with some edits: its bytes, the state after each record, and where each record ends.
fn written(edits: u64, name_bytes: usize) -> (Vec<u8>, Vec<StoreState>, Vec<usize>) {
    let (_, storage) = memory();
    let first = Arc::new(first_state());
    let mut manifest = Manifest::create(
        storage.clone(),
        Epoch(0),
        STORE,
        first.clone(),
        Space::Fresh,
    )
    .unwrap();
    let mut states = vec![(*first).clone()];
    let mut ends = vec![manifest.writer().acknowledged().offset as usize];
    for n in 1..=edits {
        states.push((*manifest.commit(&flush(n, name_bytes)).unwrap()).clone());
        ends.push(manifest.writer().acknowledged().offset as usize);
    }
    (storage.read_small(&manifest_name(1)).unwrap(), states, ends)
}

const CURRENT: Current = Current {
    number: 1,
    store_id: STORE,
    end: 0,
};

#[test]
fn a_tail_torn_at_any_byte_gives_the_edits_before() {
    let (bytes, states, ends) = written(3, 20);
    for cut in 0..=ends[3] {
        let whole_records = ends.iter().filter(|end| **end <= cut).count();
        let mut zeroed = bytes.clone();
        zeroed[cut..].fill(0);
        // Padding consists of zeros, so a record may be whole before its last byte is written.
        let padded = ends
            .iter()
            .filter(|end| **end <= cut || zeroed[..**end] == bytes[..**end])
            .count();
        for (image, expected) in [(&bytes[..cut], whole_records), (&zeroed[..], padded)] {
            match (parse_manifest(image, &CURRENT), expected) {
                (Ok(recovered), expected) if expected > 0 => {
                    assert_eq!(recovered.state, states[expected - 1], "cut at {cut}");
                    assert_eq!(
                        recovered.end.offset as usize,
                        ends[expected - 1],
                        "cut at {cut}"
                    );
                }
                (Err(error), 0) => {
                    assert_eq!(error.kind(), ErrorKind::Corruption, "cut at {cut}: {error}")
                }
                (other, expected) => panic!("cut at {cut}: {expected} records, but {other:?}"),
            }
        }
    }
}

#[test]
fn a_flipped_bit_is_found() {
    let (bytes, states, ends) = written(3, 20);
    let last = ends.len() - 1;
    for at in 0..ends[last] + 200 {
        for bit in [0, 3, 7] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            match parse_manifest(&damaged, &CURRENT) {
                Err(error) => {
                    assert!(at < ends[last], "byte {at}: {error}");
                    assert_eq!(error.kind(), ErrorKind::Corruption, "byte {at}: {error}");
                    assert!(
                        error.file() == Some("MANIFEST-000000000001") && error.offset().is_some(),
                        "{error}"
                    );
                }
                // A seal says nothing about the state: without it the edits are valid as they are.
                Ok(recovered) => {
                    let is_seal = |end: &usize| (*end..*end + SEAL_BYTES).contains(&at);
                    assert!(
                        at >= ends[last] || ends[1..].iter().any(is_seal),
                        "byte {at} is not noticed"
                    );
                    assert_eq!(recovered.state, states[last], "byte {at}");
                    let dropped = match at.checked_sub(ends[last]) {
                        None => 0,
                        // The tag is the last byte of the seal that is not zero.
                        Some(within) if within < SEAL_BYTES => 17.max(within + 1),
                        Some(within) => within + 1 - SEAL_BYTES,
                    };
                    assert_eq!(recovered.dropped_bytes as usize, dropped, "byte {at}");
                }
            }
        }
    }
}

#[test]
fn seals_that_a_power_loss_took_are_skipped() {
    let (bytes, states, ends) = written(3, 20);
    for taken in 0..8u8 {
        let mut image = bytes.clone();
        for (i, end) in ends[1..].iter().enumerate() {
            if taken & 1 << i != 0 {
                // The first byte may have reached the disk.
                image[end + 1..end + SEAL_BYTES].fill(0);
            }
        }
        let recovered = parse_manifest(&image, &CURRENT).unwrap();
        assert_eq!(recovered.state, states[3]);
        assert_eq!(recovered.record_count, 4);
        assert_eq!(recovered.end.offset as usize, ends[3]);
    }
    // Without its seal, the last edit may have been lost in the same power loss.
    let mut image = bytes.clone();
    image[ends[3]..].fill(0);
    image[ends[3] - 9] ^= 1;
    assert_eq!(parse_manifest(&image, &CURRENT).unwrap().state, states[2]);
}

#[test]
fn a_flipped_bit_of_the_pointer_is_found() {
    let bytes = CURRENT.encode();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            let error = Current::decode(&damaged).expect_err("a flipped bit");
            assert_eq!(error.kind(), ErrorKind::Corruption, "byte {at}: {error}");
        }
        assert!(Current::decode(&bytes[..at]).is_err());
    }
}

#[test]
fn power_loss_at_any_call_gives_the_old_or_the_new_state() {
    let (memory, storage) = memory();
    memory.start_journal();
    let mut states = vec![StoreState::new(), first_state()];
    let mut manifest = Manifest::create(
        storage.clone(),
        Epoch(0),
        STORE,
        Arc::new(first_state()),
        Space::Fresh,
    )
    .unwrap();
    memory.mark("1");
    // Names of some kilobytes: edits cross pages, and the file grows beyond its first reservation.
    for n in 1..=24u64 {
        states.push((*manifest.commit(&flush(n, 7000)).unwrap()).clone());
        memory.mark((states.len() - 1).to_string());
        if n % 8 == 0 {
            // An open: a new manifest with the whole state and an edit; then the old ones are
            // deleted.
            let recovered = recover(&*storage).unwrap().unwrap();
            assert_eq!(recovered.state, states[states.len() - 1]);
            let edit = Edit {
                open_number: Some(n),
                ..Edit::new()
            };
            manifest = Manifest::reopen(storage.clone(), Epoch(0), &recovered, &edit, Space::Fresh)
                .unwrap();
            states.push((**manifest.state()).clone());
            memory.mark((states.len() - 1).to_string());
            for name in manifest.take_obsolete() {
                storage.delete(Epoch(0), &name).unwrap();
            }
        }
    }
    let mut replay = memory.replay();
    let (mut old, mut new) = (0, 0);
    for n in 0..=replay.len() {
        replay.advance_to(n);
        let acknowledged: usize = replay
            .marks_so_far()
            .last()
            .map_or(0, |mark| mark.label.parse().unwrap());
        let seeds = (0..4).map(|i| CrashPolicy::Seeded(n * 1000 + i));
        for policy in [CrashPolicy::LoseUnsynced, CrashPolicy::KeepUnsynced]
            .into_iter()
            .chain(seeds)
        {
            let (image, _) = replay.crash(policy);
            let state = match recover(&image) {
                Ok(recovered) => recovered.map_or(StoreState::new(), |recovered| recovered.state),
                Err(error) => panic!("crash after {n} calls, {policy:?}: {error}"),
            };
            match state {
                state if state == states[acknowledged] => old += 1,
                state if states.get(acknowledged + 1) == Some(&state) => new += 1,
                _ => panic!(
                    "crash after {n} calls, {policy:?}: neither state {acknowledged} nor the next"
                ),
            }
        }
    }
    assert!(old > 100 && new > 10, "both happen: {old} old, {new} new");
}

#[test]
fn a_full_disk_refuses_edits_but_takes_drops() {
    let (memory, storage) = memory();
    let mut manifest = Manifest::create(
        storage.clone(),
        Epoch(0),
        STORE,
        Arc::new(first_state()),
        Space::Fresh,
    )
    .unwrap();
    memory.set_capacity(Some(memory.used_bytes()));
    // Large edits and then small ones, until not even those fit.
    let mut n = 0;
    let mut fill = |manifest: &mut Manifest, name_bytes| loop {
        n += 1;
        if let Err(error) = manifest.commit(&flush(n, name_bytes)) {
            n -= 1;
            break (n, error);
        }
    };
    fill(&mut manifest, 1000);
    let (mut n, error) = fill(&mut manifest, 20);
    assert!(
        error.is_no_space() && error.to_string().contains("cannot grow"),
        "{error}"
    );
    assert!(n > 10, "the reserve is used first");
    let before = manifest.state().clone();
    assert!(
        manifest
            .commit(&flush(n + 1, 20))
            .unwrap_err()
            .is_no_space()
    );
    assert_eq!(*manifest.state(), before, "nothing changed");
    assert!(
        manifest.writer().failed().is_none(),
        "a full disk poisons nothing"
    );
    let state = manifest
        .commit(&Edit {
            drop: vec![0],
            ..Edit::new()
        })
        .unwrap();
    assert!(state.keyspaces.is_empty());
    let create = Edit {
        create: vec![CreateKeyspace {
            id: 1,
            name: "n".repeat(250),
            sequence: 900,
            options: StoredOptions::new(),
        }],
        ..Edit::new()
    };
    assert!(manifest.commit(&create).unwrap_err().is_no_space());
    // A new manifest does not fit either. The old one stays current, and nothing is left behind.
    let recovered = recover(&*storage).unwrap().unwrap();
    let failure = Manifest::reopen(
        storage.clone(),
        Epoch(0),
        &recovered,
        &Edit::new(),
        Space::Fresh,
    )
    .expect_err("no room");
    assert!(
        failure.error.is_no_space() && !failure.unsure,
        "{failure:?}"
    );
    assert_eq!(
        storage
            .list()
            .unwrap()
            .iter()
            .filter(|o| o.name.starts_with("MANIFEST"))
            .count(),
        1
    );
    memory.set_capacity(None);
    manifest.commit(&create).unwrap();
    n += 100;
    let mut edit = flush(n, 20);
    edit.keyspaces[0].id = 1;
    let state = manifest.commit(&edit).unwrap();
    assert_eq!(recover(&*storage).unwrap().unwrap().state, *state);
}

#[test]
fn a_reserve_becomes_the_manifest() {
    let (memory, storage) = memory();
    let first = Manifest::create(
        storage.clone(),
        Epoch(0),
        STORE,
        Arc::new(first_state()),
        Space::Fresh,
    )
    .unwrap();
    let reserve = storage.create(Epoch(0), "RESERVE").unwrap();
    reserve.reserve(64 << 10).unwrap();
    reserve.sync().unwrap();
    storage.sync_dir(Epoch(0)).unwrap();
    // There is room for the replacement of the pointer, and none for a manifest.
    memory.set_capacity(Some(memory.used_bytes() + 8192));
    drop(first);
    let recovered = recover(&*storage).unwrap().unwrap();
    let drop_it = Edit {
        drop: vec![0],
        ..Edit::new()
    };
    assert!(
        Manifest::reopen(
            storage.clone(),
            Epoch(0),
            &recovered,
            &drop_it,
            Space::Fresh
        )
        .is_err()
    );
    let manifest = Manifest::reopen(
        storage.clone(),
        Epoch(0),
        &recovered,
        &drop_it,
        Space::Recycle("RESERVE"),
    )
    .unwrap();
    let image = memory.crash(CrashPolicy::LoseUnsynced);
    assert_eq!(recover(&image).unwrap().unwrap().state, **manifest.state());
}

#[test]
fn a_missing_manifest_is_corruption() {
    let (_, storage) = memory();
    drop(
        Manifest::create(
            storage.clone(),
            Epoch(0),
            STORE,
            Arc::new(first_state()),
            Space::Fresh,
        )
        .unwrap(),
    );
    storage.delete(Epoch(0), &manifest_name(1)).unwrap();
    let error = recover(&*storage).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    assert!(
        error.to_string().contains("MANIFEST-000000000001"),
        "{error}"
    );
    // Its number is not given again.
    let manifest = Manifest::create(
        storage.clone(),
        Epoch(0),
        STORE,
        Arc::new(first_state()),
        Space::Fresh,
    )
    .unwrap();
    assert_eq!(manifest.writer().current().number, 2);
    assert_eq!(read_current(&*storage).unwrap().unwrap().number, 2);
}

/// The bytes of manifest 1 with these records, with valid checksums.
fn of_records(payloads: &[Vec<u8>]) -> (Vec<u8>, Vec<u64>) {
    let mut bytes = encode_header(STORE, 1).to_vec();
    let mut starts = Vec::new();
    for payload in payloads {
        let at = bytes.len() as u64;
        starts.push(at);
        bytes.extend_from_slice(&encode_record_header(1, at, payload));
        bytes.extend_from_slice(payload);
        bytes.resize((at + record_bytes(payload.len() as u64)) as usize, 0);
    }
    (bytes, starts)
}

/// Records with valid checksums and contents that are never written: the error has the offset of
/// the record, and no state is made from them.
#[test]
fn records_that_make_no_sense_are_reported_with_their_offset() {
    let whole = first_state().to_edit().encode();
    let drop_of = |id| {
        let drop = vec![id];
        Edit {
            drop,
            ..Edit::new()
        }
        .encode()
    };
    let no_table = Edit {
        keyspaces: vec![KeyspaceEdit {
            remove: vec![RemoveTable { level: 0, id: 77 }],
            ..KeyspaceEdit::new(0)
        }],
        ..Edit::new()
    };
    let cases = [
        ("an edit first", vec![flush(1, 20).encode()], 0),
        (
            "a second whole state",
            vec![whole.clone(), whole.clone()],
            1,
        ),
        (
            "a drop of no keyspace",
            vec![whole.clone(), flush(1, 20).encode(), drop_of(9)],
            2,
        ),
        (
            "a table removed that is not there",
            vec![whole.clone(), no_table.encode()],
            1,
        ),
        ("half a field", vec![whole.clone(), vec![1, 0, 9]], 1),
    ];
    for (what, payloads, wrong) in cases {
        let (bytes, starts) = of_records(&payloads);
        let error = parse_manifest(&bytes, &CURRENT).expect_err(what);
        assert_eq!(error.kind(), ErrorKind::Corruption, "{what}: {error}");
        assert_eq!(
            (error.file(), error.offset()),
            (Some(&manifest_name(1)[..]), Some(starts[wrong])),
            "{what}: {error}"
        );
    }
}

/// A manifest with another one's name, and one of another store: nothing in it is used.
#[test]
fn a_manifest_of_another_number_or_store_is_refused() {
    let (bytes, _, _) = written(1, 20);
    let renamed = Current {
        number: 2,
        ..CURRENT
    };
    let foreign = Current {
        store_id: StoreId(7),
        ..CURRENT
    };
    for (current, offset, said) in [
        (renamed, 32, "number of another one"),
        (foreign, 16, "another store"),
    ] {
        let error = parse_manifest(&bytes, &current).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
        assert_eq!(
            (error.file(), error.offset()),
            (Some(&manifest_name(current.number)[..]), Some(offset)),
            "{error}"
        );
        assert!(error.to_string().contains(said), "{error}");
        assert!(
            error.expected_value().is_some() && error.found_value().is_some(),
            "{error}"
        );
    }
}

/// The log of a store with version 1 has other records. The store is refused because of its
/// version and not as damaged, although the manifest's bytes have the same form.
#[test]
fn a_manifest_of_version_1_is_refused() {
    let (mut bytes, _, _) = written(1, 20);
    assert!(parse_manifest(&bytes, &CURRENT).is_ok());
    bytes[8] = 1;
    let checksum = crc32c::crc32c(&bytes[..44]);
    bytes[44..48].copy_from_slice(&checksum.to_le_bytes());
    let error = parse_manifest(&bytes, &CURRENT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!(error.expected_value(), Some("2"), "{error}");
    assert_eq!(error.found_value(), Some("1"), "{error}");
    assert!(error.advice_text().is_some(), "{error}");
}

/// After an append whose result is unknown nothing more is written, whatever is called: the error
/// stays the same.
#[test]
fn a_manifest_that_failed_stays_failed() {
    let (memory, _) = memory();
    let faults = FaultStorage::new(Arc::new(memory.clone()), &Runtime::threads());
    let storage: Arc<dyn Storage> = Arc::new(faults.clone());
    let first = Arc::new(first_state());
    let mut manifest =
        Manifest::create(storage, Epoch(0), STORE, first.clone(), Space::Fresh).unwrap();
    faults.add(Rule::on(OpKind::Sync, Fault::Fail(StorageErrorKind::Io)).named("MANIFEST"));
    let error = manifest.commit(&flush(1, 20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}");
    let calls = faults.fired().len();
    let before = memory.read_small(&manifest_name(1)).unwrap();
    for again in [
        manifest.commit(&flush(1, 20)).unwrap_err(),
        manifest.commit(&Edit::new()).unwrap_err(),
    ] {
        assert_eq!(again.to_string(), error.to_string());
    }
    assert_eq!(faults.fired().len(), calls);
    assert_eq!(memory.read_small(&manifest_name(1)).unwrap(), before);
    assert_eq!(
        **manifest.state(),
        *first,
        "what was not acknowledged is not shown"
    );
}

/// The reserve was to become the manifest, and the write into it failed. The file has its old name
/// again, for the next attempt.
#[test]
fn a_reserve_that_could_not_be_filled_is_given_back() {
    let (memory, _) = memory();
    let faults = FaultStorage::new(Arc::new(memory.clone()), &Runtime::threads());
    let storage: Arc<dyn Storage> = Arc::new(faults.clone());
    let reserve = storage.create(Epoch(0), "RESERVE").unwrap();
    reserve.reserve(64 << 10).unwrap();
    reserve.sync().unwrap();
    drop(reserve);
    let create = || {
        Manifest::create(
            storage.clone(),
            Epoch(0),
            STORE,
            Arc::new(first_state()),
            Space::Recycle("RESERVE"),
        )
    };
    for failing in [OpKind::Append, OpKind::Sync] {
        faults.add(Rule::on(failing, Fault::Fail(StorageErrorKind::Io)).named("MANIFEST"));
        let failure = create().unwrap_err();
        assert!(!failure.unsure, "{failing:?}: nothing names it yet");
        let left: Vec<String> = memory.list().unwrap().into_iter().map(|o| o.name).collect();
        assert_eq!(left, ["RESERVE"], "{failing:?}");
    }
    let manifest = create().unwrap();
    assert_eq!(recover(&memory).unwrap().unwrap().state, **manifest.state());
}

/// `CURRENT` names the manifest with the largest number. There is no number for the next one, and
/// the current one is not changed.
#[test]
fn manifest_numbers_are_used_up_and_not_passed() {
    let (_, storage) = memory();
    let last = Current {
        number: u64::MAX,
        store_id: STORE,
        end: 0,
    };
    storage
        .replace(Epoch(0), "CURRENT", &last.encode())
        .unwrap();
    let create = || {
        Manifest::create(
            storage.clone(),
            Epoch(0),
            STORE,
            Arc::new(first_state()),
            Space::Fresh,
        )
    };
    let failure = create().unwrap_err();
    assert!(!failure.unsure);
    assert_eq!(failure.error.kind(), ErrorKind::Corruption);
    assert_eq!(failure.error.file(), Some("CURRENT"), "{}", failure.error);
    assert_eq!(read_current(&*storage).unwrap(), Some(last));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn hostile_bytes_are_an_error(tail in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut bytes = encode_header(STORE, 1).to_vec();
        bytes.extend_from_slice(&tail);
        prop_assert!(parse_manifest(&bytes, &CURRENT).is_err());
        prop_assert!(parse_manifest(&tail, &CURRENT).is_err());
        prop_assert!(Current::decode(&tail).is_err());
    }

    #[test]
    fn a_valid_manifest_with_a_hostile_tail_keeps_its_state(
        tail in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let (bytes, states, ends) = written(1, 20);
        let mut image = bytes[..ends[1]].to_vec();
        image.extend_from_slice(&tail);
        prop_assert_eq!(&parse_manifest(&image, &CURRENT).unwrap().state, &states[1]);
    }
}

/// The words in the block that follows `heading` in the page of the format.
fn documented(heading: &str) -> String {
    let page = include_str!("../../../docs/format/manifest.md");
    let block = page
        .split(heading)
        .nth(1)
        .expect(heading)
        .split("```")
        .nth(1)
        .expect("a block");
    block
        .lines()
        .skip(1)
        .flat_map(|line| line.split('|').next().unwrap().split_whitespace())
        .collect()
}

#[test]
fn the_bytes_are_the_documented_ones() {
    let (bytes, _, ends) = written(1, 20);
    assert_eq!(HEADER_BYTES, 48);
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    assert_eq!(
        hex(&bytes[..ends[1] + SEAL_BYTES]),
        documented("## Example: a manifest"),
        "the page's manifest"
    );
    let current = Current {
        end: ends[0] as u64,
        ..CURRENT
    };
    let pointer = String::from_utf8(current.encode()).unwrap();
    assert_eq!(Current::decode(pointer.as_bytes()).unwrap(), current);
    let old = CURRENT.encode();
    assert_eq!(Current::decode(&old).unwrap(), CURRENT, "version 1 is read");
    assert_eq!(
        pointer.split_whitespace().collect::<String>(),
        documented("## Example: the pointer"),
        "the page's pointer"
    );
}

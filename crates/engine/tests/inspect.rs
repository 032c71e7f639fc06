//! Files of a store are inspected one by one: everything that was written is shown with its
//! position, and a damaged file is shown as far as it is sound.

use std::collections::BTreeMap;
use std::ops::Range;

use siltstone::inspect::{
    FileKind, LogContent, LogFile, LogItem, ManifestFile, ManifestItem, Rest, TableFile, recognise,
    stored_options,
};
use siltstone::{
    Batch, IngestMode, IterOptions, KeyspaceOptions, Options, Store, TableFolder, WriteOptions,
};
use siltstone_storage::{ReadFile, Result as StorageResult, StorageError, StorageErrorKind};

/// Bytes under a name.
struct Held {
    name: String,
    bytes: Vec<u8>,
}

impl ReadFile for Held {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> StorageResult<()> {
        let found = usize::try_from(offset)
            .ok()
            .and_then(|at| self.bytes.get(at..at.checked_add(buf.len())?));
        match found {
            Some(found) => buf.copy_from_slice(found),
            None => {
                let kind = StorageErrorKind::UnexpectedEof;
                return Err(StorageError::new(kind, "read", &self.name, "past the end"));
            }
        }
        Ok(())
    }
}

/// Everything that a file says, a line each, and what is wrong with it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Contents {
    lines: Vec<String>,
    damage: Vec<String>,
    /// Bytes that are covered by checksums: header, records, sections.
    used: u64,
}

fn contents_of(file: &Held, kind: FileKind) -> Contents {
    let mut contents = Contents::default();
    match kind {
        FileKind::Log => log(file, &mut contents),
        FileKind::Manifest => manifest(file, &mut contents),
        FileKind::Table => table(file, &mut contents),
        _ => match siltstone::manifest::Current::decode(&file.bytes) {
            Ok(current) => {
                contents.lines.push(format!("{current:?}"));
                contents.used = file.len();
            }
            Err(error) => contents.damage.push(error.to_string()),
        },
    }
    contents
}

fn log(file: &Held, contents: &mut Contents) {
    let mut log = LogFile::open(file).unwrap();
    match log.header() {
        Ok(header) => contents.lines.push(format!("{header:?}")),
        Err(error) => contents.damage.push(error.to_string()),
    }
    let mut at = 64;
    while let Some(item) = log.next_item().unwrap() {
        match item {
            LogItem::Record(record) => {
                assert!(record.offset >= at && record.end > record.offset);
                at = record.end;
                contents.lines.push(format!("{:?}", record.header));
                for entry in record.entries() {
                    match entry {
                        Ok(entry) => contents.lines.push(format!("{entry:?}")),
                        Err(error) => contents.damage.push(error.to_string()),
                    }
                }
                if !matches!(record.content, LogContent::Batches(_)) {
                    contents.lines.push(format!("{:?}", record.content));
                }
            }
            LogItem::Damage { error, end } => {
                assert!(error.offset().unwrap() >= at && end <= file.len());
                at = end;
                contents.damage.push(error.to_string());
            }
            LogItem::End(end) => {
                contents.used = end.offset;
                contents.lines.push(format!("{end:?}"));
            }
        }
    }
    assert!(log.next_item().unwrap().is_none());
}

fn manifest(file: &Held, contents: &mut Contents) {
    let mut manifest = ManifestFile::open(file).unwrap();
    match manifest.header() {
        Ok(header) => contents.lines.push(format!("{header:?}")),
        Err(error) => contents.damage.push(error.to_string()),
    }
    while let Some(item) = manifest.next_item() {
        match item {
            ManifestItem::Record(record) => {
                contents
                    .lines
                    .push(format!("{} {:?}", record.offset, record.edit));
                contents
                    .damage
                    .extend(record.refused.iter().map(|e| e.to_string()));
            }
            item @ ManifestItem::Seal { .. } => contents.lines.push(format!("{item:?}")),
            ManifestItem::Damage { error, .. } => contents.damage.push(error.to_string()),
            ManifestItem::End(end) => {
                contents.used = end.offset;
                contents.lines.push(format!("{end:?}"));
            }
        }
    }
    assert_eq!(manifest.is_whole(), contents.damage.is_empty());
    contents.lines.push(format!("{:?}", manifest.state()));
}

fn table(file: &Held, contents: &mut Contents) {
    let mut table = TableFile::open(file).unwrap();
    let found = table.found().clone();
    contents.lines.push(format!("{:?}", found.properties));
    contents.lines.push(format!("{:?}", found.range_deletes));
    for (_, error) in &found.parts {
        contents.damage.push(error.to_string());
    }
    for gap in &found.gaps {
        contents.damage.push(gap.damage.to_string());
    }
    for piece in &found.pieces {
        contents
            .lines
            .push(format!("{piece:?} {:?}", table.block(piece).unwrap()));
        let read = table.entries(piece).unwrap();
        for i in 0..read.len() {
            let (key, value) = (read.key(i), read.value(i));
            contents
                .lines
                .push(format!("{key:?} {} {value:?}", read.trailer(i)));
        }
    }
    contents.used = file.len();
}

/// A store that has been through everything that files can record; all its files.
fn store_files() -> BTreeMap<String, Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let options = Options {
        log_segment_bytes: 64 << 10,
        ..Options::default()
    };
    let store = Store::open(&path, options).unwrap();
    let birds = store
        .create_keyspace_with(
            "birds",
            &KeyspaceOptions {
                bloom_bits_per_key: Some(siltstone::ByLevel::all(12)),
                ..KeyspaceOptions::default()
            },
        )
        .unwrap();
    let first = store.keyspace("default").unwrap();
    for n in 0..600u32 {
        first
            .put(format!("key {n:03}").as_bytes(), &[n as u8; 90])
            .unwrap();
    }
    let mut batch = Batch::new();
    batch.delete_range(&first, b"key 1", b"key 2").unwrap();
    batch.delete(&birds, b"wren").unwrap();
    batch.put(&birds, b"robin", b"18 g").unwrap();
    store.write(&batch, WriteOptions::SYNC).unwrap();
    let out = TableFolder::create(folder.path().join("out")).unwrap();
    let tables = first
        .export(IterOptions::prefix(b"key 2"), &out, "some")
        .unwrap();
    let exported = folder.path().join("out").join(tables[0].file.name());
    let exported = std::fs::read(exported).unwrap();
    let tables: Vec<_> = tables.into_iter().map(|t| t.file).collect();
    store.ingest(&[(&birds, tables)], IngestMode::Copy).unwrap();
    store.create_keyspace("dropped").unwrap();
    store.drop_keyspace("dropped").unwrap();
    birds.put(b"last", b"word").unwrap();
    // The log before anything in it is flushed, so that no segment is recycled under our eyes; and
    // the tables after that.
    let mut files = BTreeMap::new();
    let mut take = |suffix: &str| {
        for entry in std::fs::read_dir(&path).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            if name.ends_with(".tbl") == (suffix == ".tbl") {
                files.insert(name, std::fs::read(entry.path()).unwrap());
            }
        }
    };
    take("");
    store.flush().unwrap();
    take(".tbl");
    files.insert("some-00000.table".to_string(), exported);
    store.close().unwrap();
    files
}

/// The files with a kind, as they are recognised.
fn known_files() -> Vec<(Held, FileKind)> {
    let files = store_files().into_iter();
    files
        .filter_map(|(name, bytes)| {
            let file = Held { name, bytes };
            let found = recognise(&file).unwrap()?;
            if !found.by_content {
                // The next segment may have been made ready, or only created so far.
                let is_unused = file.bytes.is_empty() || LogFile::open(&file).unwrap().is_unused();
                assert!(is_unused, "{}", file.name);
                return None;
            }
            Some((file, found.kind))
        })
        .collect()
}

#[test]
fn everything_is_shown_while_a_writer_has_the_store() {
    let files = known_files();
    let count = |kind| files.iter().filter(|(_, k)| *k == kind).count();
    assert!(count(FileKind::Log) >= 2 && count(FileKind::Table) >= 3);
    assert_eq!(
        (count(FileKind::Manifest), count(FileKind::Pointer)),
        (1, 1)
    );
    let mut of_logs = String::new();
    for (file, kind) in &files {
        let contents = contents_of(file, *kind);
        assert_eq!(contents.damage, Vec::<String>::new(), "{}", file.name);
        if *kind == FileKind::Log {
            of_logs += &contents.lines.join("\n");
        }
    }
    for word in [
        "name: \"birds\"",
        "name: \"dropped\"",
        "Drop(",
        "Ingest(",
        "RangeDelete",
        "[108, 97, 115, 116]",
    ] {
        assert!(of_logs.contains(word), "{word} is not in {of_logs}");
    }
}

#[test]
fn records_and_options_of_a_log_are_values() {
    let files = known_files();
    let (mut creates, mut puts, mut rest) = (Vec::new(), 0, Vec::new());
    for (file, _) in files.iter().filter(|(_, kind)| *kind == FileKind::Log) {
        let mut log = LogFile::open(file).unwrap();
        let own = siltstone::log::format::segment_name(log.number().unwrap());
        assert_eq!(own, file.name);
        while let Some(item) = log.next_item().unwrap() {
            match item {
                LogItem::Record(record) => {
                    if let LogContent::Create { name, options, .. } = &record.content {
                        creates.push((name.to_string(), stored_options(options)));
                    }
                    for entry in record.entries() {
                        let entry = entry.unwrap();
                        let at = entry.offset as usize;
                        // The offset is that of the entry's first byte, its kind.
                        assert_eq!(file.bytes[at], entry.entry.kind as u8);
                        puts += u64::from(entry.entry.key.starts_with(b"key "));
                    }
                }
                LogItem::Damage { error, .. } => panic!("{error}"),
                LogItem::End(end) => rest.push(end.rest),
            }
        }
    }
    assert_eq!(creates.len(), 2);
    assert_eq!(creates[0].0, "birds");
    assert_eq!(
        creates[0].1,
        [("bloom_bits_per_key".to_string(), "12".to_string())]
    );
    assert_eq!(puts, 601, "600 puts and a range delete");
    assert!(rest.contains(&Rest::Zeros));
}

struct Draw(u64);

impl Draw {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// Flipped bytes are reported, and most of the rest is still shown.
#[test]
fn damage_is_reported_and_what_lies_behind_it() {
    for (file, kind) in known_files() {
        let sound = contents_of(&file, kind);
        let mut draw = Draw(file.len());
        for round in 0..300 {
            let mut damaged = Held {
                name: file.name.clone(),
                bytes: file.bytes.clone(),
            };
            let mut places = Vec::new();
            for _ in 0..=round % 3 {
                let at = draw.below(sound.used) as usize;
                damaged.bytes[at] ^= 1 << draw.below(8);
                places.push(at);
            }
            let found = contents_of(&damaged, kind);
            let same = damaged.bytes == file.bytes;
            assert!(
                same || found != sound,
                "{}, byte {places:?}: nobody noticed",
                file.name
            );
            // The name alone shows the kind if the magic number is gone.
            assert_eq!(recognise(&damaged).unwrap().map(|r| r.kind), Some(kind));
        }
    }
}

/// A byte of a log's record in the middle costs that record, not those behind it.
#[test]
fn a_log_goes_on_behind_damage() {
    let (file, sound) = known_files()
        .into_iter()
        .filter(|(_, kind)| *kind == FileKind::Log)
        .map(|(file, kind)| {
            let contents = contents_of(&file, kind);
            (file, contents)
        })
        .max_by_key(|(_, contents)| contents.lines.len())
        .unwrap();
    assert!(sound.lines.len() > 40);
    let broken = |range: Range<usize>| {
        let mut bytes = file.bytes.clone();
        bytes[range].iter_mut().for_each(|byte| *byte ^= 0x55);
        let file = Held {
            name: file.name.clone(),
            bytes,
        };
        contents_of(&file, FileKind::Log)
    };
    // The header: nothing is lost of the records, the name has the number.
    let found = broken(20..21);
    assert_eq!(found.damage.len(), 1);
    assert_eq!(found.lines.len(), sound.lines.len() - 1);
    let middle = (sound.used / 2) as usize;
    let found = broken(middle..middle + 8);
    assert_eq!(found.damage.len(), 1, "{:?}", found.damage);
    assert!(found.damage[0].contains("a good one follows at byte"));
    assert!(found.lines.len() >= sound.lines.len() - 6);
}

/// A file of which some bytes cannot be read.
struct Failing {
    held: Held,
    unreadable: Range<u64>,
}

impl ReadFile for Failing {
    fn name(&self) -> &str {
        &self.held.name
    }

    fn len(&self) -> u64 {
        self.held.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> StorageResult<()> {
        let end = offset + buf.len() as u64;
        if offset < self.unreadable.end && self.unreadable.start < end {
            let kind = StorageErrorKind::Io;
            return Err(StorageError::new(kind, "read", self.name(), "a bad sector"));
        }
        self.held.read_at(offset, buf)
    }
}

/// The records before bytes that the medium cannot deliver are shown, and then the error.
#[test]
fn a_log_is_shown_up_to_bytes_that_cannot_be_read() {
    let files = known_files().into_iter();
    let logs = files.filter(|(_, kind)| *kind == FileKind::Log);
    let (held, _) = logs.max_by_key(|(file, _)| file.bytes.len()).unwrap();
    let mut before = Vec::new();
    let mut log = LogFile::open(&held).unwrap();
    while let Some(LogItem::Record(record)) = log.next_item().unwrap() {
        before.push(record.offset..record.end);
    }
    // The first sector of a record in the second half: the others before it lie in whole sectors.
    let bad = before.iter().map(|r| r.start / 512 * 512);
    let bad = bad.filter(|at| *at > 8192).min().unwrap();
    before.retain(|record| record.end <= bad);
    let failing = Failing {
        held,
        unreadable: bad..bad + 512,
    };
    let mut log = LogFile::open(&failing).unwrap();
    assert!(log.header().is_ok());
    let mut seen = Vec::new();
    let error = loop {
        match log.next_item() {
            Ok(Some(LogItem::Record(record))) => seen.push(record.offset..record.end),
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    assert_eq!(seen, before);
    assert!(seen.len() > 10, "{} records", seen.len());
    assert!(error.to_string().contains("a bad sector"), "{error}");
}

#[test]
fn every_truncation_is_reported() {
    for (file, kind) in known_files() {
        let sound = contents_of(&file, kind);
        let step = if sound.used > 6000 { 37 } else { 1 };
        for len in (0..sound.used).step_by(step) {
            let cut = Held {
                name: file.name.clone(),
                bytes: file.bytes[..len as usize].to_vec(),
            };
            let found = contents_of(&cut, kind);
            assert_ne!(found, sound, "{} cut to {len}", file.name);
            if matches!(kind, FileKind::Table | FileKind::Pointer) {
                assert!(!found.damage.is_empty(), "{} cut to {len}", file.name);
            }
        }
    }
}

/// Bytes of one kind read as another.
#[test]
fn foreign_bytes_are_no_file_of_the_kind() {
    let files = known_files();
    for (file, own) in &files {
        for kind in [
            FileKind::Log,
            FileKind::Manifest,
            FileKind::Table,
            FileKind::Pointer,
        ] {
            if kind != *own {
                assert!(!contents_of(file, kind).damage.is_empty(), "{}", file.name);
            }
        }
    }
    let empty = Held {
        name: "x".to_string(),
        bytes: Vec::new(),
    };
    assert!(recognise(&empty).unwrap().is_none());
}

//! A table that is assembled from the blocks of a written table has the same bytes, however the
//! blocks are divided between calls. Calls that do not fit together are refused.

use std::sync::Arc;

use siltstone_storage::{MemoryStorage, Mutex, Runtime, Storage, WriteFile};
use siltstone_table::assembly::{
    AssemblyBuffers, DIRECT_BYTES, EntryCounts, FilterBytes, FinishedBlock, TableAssembler,
};
use siltstone_table::footer::Footer;
use siltstone_table::key::{Kind, hash, trailer};
use siltstone_table::merge::table::InputTable;
use siltstone_table::rangedel::{RangeDelete, joined};
use siltstone_table::writer::{TableSummary, TableWriter, WriterOptions};
use siltstone_table::{Codec, TableError};

const EPOCH: siltstone_storage::Epoch = siltstone_storage::Epoch(1);

type Entry = (Vec<u8>, u64, Vec<u8>);

/// What a table is made of.
#[derive(Clone, Default)]
struct Content {
    options: WriterOptions,
    entries: Vec<Entry>,
    range_deletes: Vec<RangeDelete>,
    left_bound: Option<Vec<u8>>,
    /// The block ends before the entries with these numbers.
    ends: Vec<usize>,
}

fn storage() -> Arc<MemoryStorage> {
    Arc::new(MemoryStorage::new(&Runtime::threads()))
}

fn write(storage: &MemoryStorage, name: &str, content: &Content) -> TableSummary {
    let file = storage.create(EPOCH, name).unwrap();
    let mut writer = TableWriter::new(file, content.options).unwrap();
    for (i, (key, trailer, value)) in content.entries.iter().enumerate() {
        if content.ends.contains(&i) {
            writer.end_block().unwrap();
        }
        writer.add(key, *trailer, value).unwrap();
    }
    writer
        .set_range_deletes(content.range_deletes.clone())
        .unwrap();
    if let Some(bound) = &content.left_bound {
        writer.set_left_bound(bound);
    }
    writer.finish().unwrap()
}

/// A block of a written table: header, end, checksum, and the separator.
type OwnedBlock = (u64, u64, u32, (Vec<u8>, u64));

/// The parts of a written table.
struct Parts {
    bytes: Vec<u8>,
    blocks: Vec<OwnedBlock>,
    blocks_bytes: usize,
    filter: Vec<u8>,
    hashes: Vec<u64>,
    counts: EntryCounts,
}

fn parts(storage: &MemoryStorage, name: &str, content: &Content, summary: &TableSummary) -> Parts {
    let bytes = storage.read_small(name).unwrap();
    let file = storage.open(name).unwrap();
    let footer = Footer::read(&*file).unwrap();
    let table = InputTable::open(file).unwrap();
    let blocks = (0..table.block_count()).map(|i| {
        let place = table.place(i);
        let crc = &bytes[place.end as usize - 4..place.end as usize];
        let crc = u32::from_le_bytes(crc.try_into().unwrap());
        (place.anchor, place.end, crc, table.separator(i))
    });
    let blocks_bytes = footer.blocks_bytes as usize;
    let filter_end = blocks_bytes + (footer.filter_bytes as usize).saturating_sub(4);
    let mut keys: Vec<_> = content.entries.iter().map(|e| e.0.clone()).collect();
    keys.dedup();
    let with_filter = content.options.bits_per_key > 0;
    keys.retain(|_| with_filter);
    let p = &summary.properties;
    let seqs = || content.entries.iter().map(|e| e.1 >> 8);
    Parts {
        blocks: blocks.collect(),
        blocks_bytes,
        filter: bytes[blocks_bytes..filter_end.max(blocks_bytes)].to_vec(),
        hashes: keys.iter().map(|key| hash(key)).collect(),
        counts: EntryCounts {
            entries: p.entries,
            puts: p.puts,
            deletes: p.deletes,
            user_keys: p.user_keys,
            key_bytes: p.key_bytes,
            value_bytes: p.value_bytes,
            smallest_seq: seqs().min().unwrap_or(u64::MAX),
            largest_seq: seqs().max().unwrap_or(0),
            smallest_key: p.smallest_key.clone(),
            largest_key: p.largest_key.clone(),
        },
        bytes,
    }
}

fn push(assembler: &mut TableAssembler, block: &OwnedBlock) -> siltstone_table::Result<()> {
    let (anchor, end, checksum, (separator, separator_trailer)) = block;
    assembler.push_block(&FinishedBlock {
        anchor: *anchor,
        end: *end,
        checksum: *checksum,
        separator,
        separator_trailer: *separator_trailer,
    })
}

/// Assembles the table again. The bytes are appended in pieces of these sizes, the last one as
/// often as needed. Blocks are added when their bytes are there, or before any bytes.
fn assemble(
    file: Arc<dyn WriteFile>,
    content: &Content,
    parts: &Parts,
    pieces: &[usize],
    blocks_first: bool,
    is_filter_built: bool,
    buffers: AssemblyBuffers,
) -> (TableSummary, AssemblyBuffers) {
    let mut assembler = TableAssembler::with_buffers(file, content.options, buffers).unwrap();
    let mut blocks = parts.blocks.iter().peekable();
    let mut rest = &parts.bytes[..parts.blocks_bytes];
    let mut sizes = pieces.iter().copied();
    let mut size = usize::MAX;
    while blocks_first && let Some(block) = blocks.next() {
        push(&mut assembler, block).unwrap();
    }
    while !rest.is_empty() {
        size = sizes.next().unwrap_or(size);
        let (piece, after) = rest.split_at(size.clamp(1, rest.len()));
        assembler.append(piece).unwrap();
        rest = after;
        let bytes = assembler.bytes();
        while let Some(block) = blocks.next_if(|(_, end, ..)| *end <= bytes) {
            push(&mut assembler, block).unwrap();
        }
    }
    assert_eq!(assembler.block_count(), parts.blocks.len());
    assembler.set_entries(parts.counts.clone());
    assembler
        .set_range_deletes(content.range_deletes.clone())
        .unwrap();
    if let Some(bound) = &content.left_bound {
        assembler.set_left_bound(bound);
    }
    assert_eq!(assembler.filter_len(), parts.filter.len() as u64);
    if is_filter_built {
        let filter = FilterBytes::Stored(&parts.filter);
        assembler.write_filter(filter).unwrap();
    } else {
        let filter = FilterBytes::Hashes(&parts.hashes);
        assembler.write_filter(filter).unwrap();
    }
    assembler.finish().unwrap()
}

fn entries(count: u64, value_bytes: impl Fn(u64) -> usize) -> Vec<Entry> {
    let mut all = Vec::new();
    for i in 0..count {
        let key = format!("key {:06} of many", i / 3 * 7).into_bytes();
        let seq = 3 * count - i;
        let kind = if i % 5 == 4 { Kind::Delete } else { Kind::Put };
        let len = if kind == Kind::Put { value_bytes(i) } else { 0 };
        let value = format!("{} of {}; ", i % 5, i / 7).into_bytes();
        let value = value.iter().copied().cycle().take(len).collect();
        all.push((key, trailer(seq, kind), value));
    }
    all
}

fn contents() -> Vec<(&'static str, Content)> {
    let options = WriterOptions {
        write_piece_bytes: 3000,
        keyspace: Some(7),
        ..WriterOptions::default()
    };
    let plain = Content {
        options,
        entries: entries(900, |i| 20 + i as usize % 90),
        ..Content::default()
    };
    let with = |change: &dyn Fn(&mut Content)| {
        let mut content = plain.clone();
        change(&mut content);
        content
    };
    let range_deletes = joined([
        (b"k".to_vec(), b"key 001".to_vec(), 5),
        (b"key 0005".to_vec(), b"l".to_vec(), 10_000),
    ]);
    vec![
        ("plain", plain.clone()),
        ("no filter", with(&|c| c.options.bits_per_key = 0)),
        (
            "range deletes and a left bound",
            with(&|c| {
                c.range_deletes = range_deletes.clone();
                c.left_bound = Some(b"k".to_vec());
            }),
        ),
        (
            "range deletes alone",
            with(&|c| {
                c.entries.clear();
                c.range_deletes = range_deletes.clone();
            }),
        ),
        ("lz4", with(&|c| c.options.codec = Codec::Lz4)),
        (
            "zstd",
            with(&|c| (c.options.codec, c.options.level) = (Codec::Zstd, 3)),
        ),
        (
            "blocks that end between versions",
            with(&|c| c.ends = (1..400).collect()),
        ),
        (
            "small blocks, large pieces",
            with(&|c| {
                c.options.block_size_bytes = 512;
                c.options.write_piece_bytes = 2 << 20;
            }),
        ),
        (
            "large values",
            with(&|c| {
                let large = |i| if i % 4 == 1 { DIRECT_BYTES + 77 } else { 50 };
                c.entries = entries(18, large);
            }),
        ),
        (
            "a large filter",
            with(&|c| {
                c.options.write_piece_bytes = 1 << 20;
                c.options.bits_per_key = 20;
                let key = |i: u64| {
                    (
                        (i * 3).to_be_bytes().to_vec(),
                        trailer(9, Kind::Put),
                        vec![],
                    )
                };
                c.entries = (0..450_000).map(key).collect();
            }),
        ),
    ]
}

#[test]
fn an_assembled_table_has_the_bytes_of_the_written_one() {
    let mut buffers = AssemblyBuffers::default();
    for (what, content) in contents() {
        let storage = storage();
        let summary = write(&storage, "written", &content);
        let parts = parts(&storage, "written", &content, &summary);
        let whole: &[usize] = &[];
        let cuts: [&[usize]; 5] = [
            whole,
            &[1, 2, 3, 5000, 1, 4096],
            &[DIRECT_BYTES, 1, DIRECT_BYTES + 5, 100],
            &[77],
            &[3000],
        ];
        for (i, pieces) in cuts.iter().enumerate() {
            for (blocks_first, is_filter_built) in [(false, true), (true, true), (false, false)] {
                let name = format!("assembled-{i}-{blocks_first}-{is_filter_built}");
                let file = storage.create(EPOCH, &name).unwrap();
                let made = assemble(
                    file,
                    &content,
                    &parts,
                    pieces,
                    blocks_first,
                    is_filter_built,
                    buffers,
                );
                assert_eq!(made.0, summary, "{what}: {name}");
                buffers = made.1;
                let bytes = storage.read_small(&name).unwrap();
                assert!(bytes == parts.bytes, "{what}: {name}");
            }
        }
    }
}

/// A file that notes the addresses and lengths of what is appended.
struct Noted {
    inner: Arc<dyn WriteFile>,
    appended: Mutex<Vec<(usize, usize)>>,
}

impl WriteFile for Noted {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn position(&self) -> u64 {
        self.inner.position()
    }
    fn append(&self, parts: &[&[u8]]) -> siltstone_storage::Result<()> {
        let places = parts.iter().map(|part| (part.as_ptr().addr(), part.len()));
        self.appended.lock().extend(places);
        self.inner.append(parts)
    }
    fn reserve(&self, len: u64) -> siltstone_storage::Result<()> {
        self.inner.reserve(len)
    }
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn sync(&self) -> siltstone_storage::Result<()> {
        self.inner.sync()
    }
    fn truncate_to_position(&self) -> siltstone_storage::Result<()> {
        self.inner.truncate_to_position()
    }
}

/// A large piece is passed to the file where it lies, whether smaller ones wait before it or not.
#[test]
fn large_pieces_are_not_copied() {
    let large = contents();
    let (_, content) = large
        .iter()
        .find(|(what, _)| *what == "large values")
        .unwrap();
    let storage = storage();
    let summary = write(&storage, "written", content);
    let parts = parts(&storage, "written", content, &summary);
    let noted = Arc::new(Noted {
        inner: storage.create(EPOCH, "assembled").unwrap(),
        appended: Runtime::threads().mutex(Vec::new()),
    });
    let pieces = [DIRECT_BYTES, 10, 2 * DIRECT_BYTES, usize::MAX];
    let buffers = AssemblyBuffers::default();
    assemble(
        noted.clone(),
        content,
        &parts,
        &pieces,
        false,
        true,
        buffers,
    );
    let at = parts.bytes.as_ptr().addr();
    let appended = noted.appended.lock().clone();
    let (mut offset, mut direct) = (0, 0);
    for (address, len) in appended {
        if len >= DIRECT_BYTES {
            assert_eq!((address, len), (at + offset, len), "at {offset}");
            direct += 1;
        }
        offset += len;
    }
    assert_eq!((offset, direct), (parts.bytes.len(), 3));
    assert!(storage.read_small("assembled").unwrap() == parts.bytes);
}

/// Checks that the result is an error with this text.
#[track_caller]
fn refused<T>(result: siltstone_table::Result<T>, text: &str) {
    let error = result.err().expect(text);
    assert!(matches!(error, TableError::Misuse(_)), "{error}");
    assert!(error.to_string().contains(text), "{error}");
}

/// A table of a few blocks, and a function that makes an assembler that has got all of its blocks.
fn assembled() -> (Parts, impl Fn(&Parts) -> TableAssembler) {
    let (_, content) = contents().remove(0);
    let storage = storage();
    let summary = write(&storage, "written", &content);
    let parts = parts(&storage, "written", &content, &summary);
    assert!(parts.blocks.len() > 5);
    let make = move |parts: &Parts| {
        let file = self::storage().create(EPOCH, "assembled").unwrap();
        let mut assembler = TableAssembler::new(file, content.options).unwrap();
        assembler
            .append(&parts.bytes[..parts.blocks_bytes])
            .unwrap();
        for block in &parts.blocks {
            push(&mut assembler, block).unwrap();
        }
        assembler.set_entries(parts.counts.clone());
        assembler
    };
    (parts, make)
}

#[test]
fn blocks_that_do_not_follow_each_other_are_refused() {
    let (parts, _) = assembled();
    let make = || {
        let file = storage().create(EPOCH, "assembled").unwrap();
        TableAssembler::new(file, WriterOptions::default()).unwrap()
    };
    let follow = "a block must begin where the last one ends";
    let (first, second) = (&parts.blocks[0], &parts.blocks[1]);
    let mut assembler = make();
    push(&mut assembler, first).unwrap();
    refused(push(&mut assembler, first), follow);
    let mut early = second.clone();
    early.0 = first.1 - 1;
    refused(push(&mut assembler, &early), follow);
    let mut short = second.clone();
    short.1 = short.0 + 35;
    refused(push(&mut assembler, &short), follow);
    let mut backwards = second.clone();
    backwards.1 = first.1;
    refused(push(&mut assembler, &backwards), follow);
    let mut same = second.clone();
    same.3 = first.3.clone();
    refused(
        push(&mut assembler, &same),
        "separators of blocks must ascend",
    );
    // A lower trailer of the same user key comes later.
    same.3.1 -= 1;
    push(&mut assembler, &same).unwrap();
    let mut third = parts.blocks[2].clone();
    third.3.0 = vec![b'z'; 70_000];
    let error = push(&mut assembler, &third).unwrap_err();
    assert!(matches!(error, TableError::Limit { .. }), "{error}");
}

#[test]
fn parts_of_a_table_that_do_not_agree_are_refused() {
    let (parts, make) = assembled();
    let stored = || FilterBytes::Stored(&parts.filter);
    // The honest calls.
    let mut assembler = make(&parts);
    assembler.write_filter(stored()).unwrap();
    // Everything that comes too late.
    refused(assembler.write_filter(stored()), "must be written once");
    refused(assembler.append(b"x"), "before the filter");
    let last = parts.blocks.last().unwrap();
    refused(push(&mut assembler, last), "before the filter");
    assembler.finish().unwrap();
    // Bytes and blocks.
    let mut assembler = make(&parts);
    assembler.append(b"x").unwrap();
    let end = "must end with the appended bytes";
    refused(assembler.write_filter(stored()), end);
    refused(assembler.finish(), end);
    // Filters.
    let of_table = "as many user keys as the table has";
    let wrong = [
        FilterBytes::Stored(&[]),
        FilterBytes::Stored(&parts.filter[64..]),
        FilterBytes::Hashes(&[]),
        FilterBytes::Hashes(&parts.hashes[1..]),
    ];
    for filter in wrong {
        refused(make(&parts).write_filter(filter), of_table);
    }
    let written = "filter must be written after its counts were set";
    refused(make(&parts).finish(), written);
    let mut assembler = make(&parts);
    assembler.write_filter(stored()).unwrap();
    assembler.set_entries(EntryCounts {
        user_keys: 3,
        ..parts.counts.clone()
    });
    refused(assembler.finish(), written);
    // Counts and keys.
    let with_counts = |counts: EntryCounts| {
        let mut assembler = make(&parts);
        assembler.set_entries(counts);
        assembler
    };
    let fragment = || joined([(b"a".to_vec(), b"b".to_vec(), 3)]);
    let bounds = "blocks and bounds of keys if it has entries";
    let mut assembler = with_counts(EntryCounts::default());
    assembler.set_range_deletes(fragment()).unwrap();
    refused(assembler.write_filter(stored()), of_table);
    refused(assembler.finish(), bounds);
    let changes: [fn(&mut EntryCounts); 3] = [
        |c| c.smallest_key = None,
        |c| c.largest_key = None,
        |c| c.user_keys = 0,
    ];
    for change in changes {
        let mut counts = parts.counts.clone();
        change(&mut counts);
        let assembler = with_counts(counts);
        refused(assembler.finish(), bounds);
    }
    let file = storage().create(EPOCH, "assembled").unwrap();
    let mut assembler = TableAssembler::new(file, WriterOptions::default()).unwrap();
    assembler.set_entries(parts.counts.clone());
    refused(assembler.finish(), bounds);
    // Left bound and range deletes.
    let mut assembler = make(&parts);
    assembler.write_filter(stored()).unwrap();
    assembler.set_left_bound(b"z");
    refused(assembler.finish(), "left bound must not lie above");
    let mut reversed = joined([
        (b"a".to_vec(), b"b".to_vec(), 3),
        (b"c".to_vec(), b"d".to_vec(), 4),
    ]);
    reversed.reverse();
    let mut assembler = make(&parts);
    refused(assembler.set_range_deletes(reversed), "in order");
}

#[test]
fn options_and_files_that_do_not_fit_are_refused() {
    let make = |options| TableAssembler::new(storage().create(EPOCH, "t").unwrap(), options);
    let with = |bits_per_key, block_size_bytes| WriterOptions {
        bits_per_key,
        block_size_bytes,
        ..WriterOptions::default()
    };
    let is_limit = |options| matches!(make(options).err(), Some(TableError::Limit { .. }));
    assert!(is_limit(with(21, 4096)) && is_limit(with(10, 1 << 20)));
    refused(make(with(10, 256)), "at least 512 bytes");
    refused(
        make(WriterOptions::default()).unwrap().finish(),
        "an entry or a range delete",
    );
    let file = storage().create(EPOCH, "t").unwrap();
    file.append(&[b"x"]).unwrap();
    let made = TableAssembler::new(file, WriterOptions::default());
    refused(made, "at its file's first byte");
    // Without filter bits, a filter is refused too.
    let mut assembler = make(with(0, 4096)).unwrap();
    refused(
        assembler.write_filter(FilterBytes::Stored(&[0; 64])),
        "as many user keys",
    );
    let mut assembler = make(with(0, 4096)).unwrap();
    refused(
        assembler.write_filter(FilterBytes::Hashes(&[1])),
        "as many user keys",
    );
}

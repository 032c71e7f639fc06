//! A table file of version 2 is compared with the byte tables of `docs/format/table.md`, and with
//! what is written now.
//!
//! `SILTSTONE_WRITE_GOLDEN=1 cargo test -p siltstone-table --test golden` writes the file again,
//! after a change of the format that also changed its version.

use std::path::PathBuf;

use siltstone_storage::{FileStorage, Storage};
use siltstone_table::key::{Kind, MAX_SEQ, hash, trailer};
use siltstone_table::rangedel::joined;
use siltstone_table::{Codec, NoCache, ReaderOptions, TableReader, TableWriter, WriterOptions};

fn golden() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/table-v2.tbl")
}

fn entries() -> Vec<(&'static [u8], u64, &'static [u8])> {
    vec![
        (b"apple", trailer(9, Kind::Put), b"red"),
        (b"apple", trailer(4, Kind::Delete), b""),
        (b"applecart", trailer(5, Kind::Put), b"wood"),
        (b"apricot", trailer(300, Kind::Put), b"orange"),
        (b"banana", trailer(7, Kind::Put), b"yellow"),
        (b"banana", trailer(6, Kind::Put), b"green"),
    ]
}

fn write(dir: &std::path::Path, keyspace: Option<u32>) -> Vec<u8> {
    let storage = FileStorage::open_or_create(dir).unwrap();
    let lease = storage.lease("LOCK").unwrap();
    let mut writer = TableWriter::new(
        storage.create(lease.epoch(), "t.tbl").unwrap(),
        WriterOptions {
            keyspace,
            ..WriterOptions::default()
        },
    )
    .unwrap();
    for (i, (key, trailer, value)) in entries().into_iter().enumerate() {
        if i == 3 || i == 5 {
            writer.end_block().unwrap();
        }
        writer.add(key, trailer, value).unwrap();
    }
    writer
        .set_range_deletes(joined([
            (b"b".to_vec(), b"c".to_vec(), 8),
            (b"ab".to_vec(), b"bb".to_vec(), 2),
        ]))
        .unwrap();
    writer.set_left_bound(b"a");
    writer.finish().unwrap();
    std::fs::read(dir.join("t.tbl")).unwrap()
}

fn uint(bytes: &[u8], at: usize, width: usize) -> u64 {
    bytes[at..at + width]
        .iter()
        .rev()
        .fold(0, |x, b| x << 8 | *b as u64)
}

#[test]
fn written_bytes_are_the_golden_ones() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = write(dir.path(), None);
    if std::env::var_os("SILTSTONE_WRITE_GOLDEN").is_some() {
        std::fs::write(golden(), &bytes).unwrap();
    }
    let want = std::fs::read(golden()).unwrap();
    assert!(
        bytes == want,
        "the format changed: {} bytes, {} in tests/golden",
        bytes.len(),
        want.len()
    );
}

/// The keyspace is one more property. It changes only the lengths after it.
#[test]
fn a_keyspace_is_ten_bytes_of_the_properties() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = write(dir.path(), Some(7));
    let want = std::fs::read(golden()).unwrap();
    let (footer, old_footer) = (bytes.len() - 64, want.len() - 64);
    assert_eq!(footer, old_footer + 10);
    assert_eq!(bytes[..old_footer - 4], want[..old_footer - 4]);
    assert_eq!(
        bytes[old_footer - 4..footer - 4],
        [18, 0, 4, 0, 0, 0, 7, 0, 0, 0]
    );
    assert_eq!(
        uint(&bytes, footer + 32, 8),
        uint(&want, old_footer + 32, 8) + 10
    );
    assert_eq!(
        bytes[footer + 40..footer + 48],
        want[old_footer + 40..old_footer + 48],
        "the digests are equal"
    );
}

#[test]
fn the_golden_file_can_be_read() {
    let storage = FileStorage::open_existing(golden().parent().unwrap()).unwrap();
    let table = TableReader::open(
        storage.open("table-v2.tbl").unwrap(),
        ReaderOptions::default(),
    )
    .unwrap();
    let mut value = Vec::new();
    for (key, trailer, want) in entries() {
        let found = table
            .get(&NoCache, key, hash(key), trailer >> 8, &mut value)
            .unwrap();
        assert_eq!((found, value.as_slice()), (Some(trailer), want));
    }
    assert_eq!(table.covering_seq(b"banana", MAX_SEQ), Some(8));
    assert_eq!(table.covering_seq(b"banana", 7), Some(2));
    assert_eq!(table.covering_seq(b"bb", 7), None);
    assert!(
        siltstone_table::check::check(&table)
            .unwrap()
            .damage
            .is_empty()
    );
}

/// Entries whose values and columns can be compressed.
fn compressible() -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    (0..40u64).map(|i| {
        (
            format!("key {:03} of one kind and of no other", 3 * i).into_bytes(),
            format!("{} of {}; ", i % 5, i / 7).repeat(8).into_bytes(),
        )
    })
}

/// Files that other builds compressed must decode. How well a codec compresses, and so its bytes,
/// may change, so the bytes are not compared.
#[test]
fn compressed_golden_files_can_be_read() {
    for (codec, flags) in [(Codec::Lz4, 8 | 16), (Codec::Zstd, 8 | 16 | 32)] {
        let name = format!("table-v2-{}.tbl", codec.word());
        let path = golden().with_file_name(&name);
        if std::env::var_os("SILTSTONE_WRITE_GOLDEN").is_some() {
            let dir = tempfile::tempdir().unwrap();
            let storage = FileStorage::open_or_create(dir.path()).unwrap();
            let lease = storage.lease("LOCK").unwrap();
            let options = WriterOptions {
                codec,
                level: *codec.levels().end(),
                ..WriterOptions::default()
            };
            let file = storage.create(lease.epoch(), "t.tbl").unwrap();
            let mut writer = TableWriter::new(file, options).unwrap();
            for (key, value) in compressible() {
                writer.add(&key, trailer(7, Kind::Put), &value).unwrap();
            }
            writer.finish().unwrap();
            std::fs::copy(dir.path().join("t.tbl"), &path).unwrap();
        }
        let storage = FileStorage::open_existing(path.parent().unwrap()).unwrap();
        let table =
            TableReader::open(storage.open(&name).unwrap(), ReaderOptions::default()).unwrap();
        assert_eq!(table.properties().codec, codec);
        let mut value = Vec::new();
        for (key, want) in compressible() {
            let found = table
                .get(&NoCache, &key, hash(&key), MAX_SEQ, &mut value)
                .unwrap();
            assert_eq!((found, &value), (Some(trailer(7, Kind::Put)), &want));
        }
        assert!(
            siltstone_table::check::check(&table)
                .unwrap()
                .damage
                .is_empty()
        );
        // There is one block, whose header says how it is compressed.
        let bytes = std::fs::read(&path).unwrap();
        let blocks = uint(&bytes, bytes.len() - 64, 8) as usize;
        let index = blocks + uint(&bytes, bytes.len() - 56, 8) as usize;
        assert_eq!(uint(&bytes, index, 4), 1);
        let anchor = uint(&bytes, index + 24, 4) as usize;
        assert_eq!(bytes[anchor + 6] & 0xf8, flags, "{name}");
    }
}

/// Reads the file according to the byte tables of the page, by arithmetic only.
#[test]
fn bytes_are_at_the_offsets_that_the_page_states() {
    let f = std::fs::read(golden()).unwrap();
    let footer = f.len() - 64;
    assert_eq!(&f[footer + 56..], b"SILTTABL");
    assert_eq!(uint(&f, footer + 48, 4), 2);
    assert_eq!(
        uint(&f, footer + 52, 4),
        crc32c::crc32c(&f[footer..footer + 52]) as u64
    );
    let lengths: Vec<usize> = (0..5)
        .map(|i| uint(&f, footer + 8 * i, 8) as usize)
        .collect();
    assert_eq!(lengths.iter().sum::<usize>() + 64, f.len());
    let mut at = lengths[0];
    for len in &lengths[1..] {
        assert_eq!(
            uint(&f, at + len - 4, 4),
            crc32c::crc32c(&f[at..at + len - 4]) as u64
        );
        at += len;
    }
    // The index.
    let index = lengths[0] + lengths[1];
    assert_eq!(uint(&f, index, 4), 3);
    assert_eq!((uint(&f, index + 4, 2), uint(&f, index + 6, 2)), (0, 4));
    assert_eq!(
        uint(&f, index + 12, 4),
        2,
        "the separator within banana has a trailer, and so has the last block"
    );
    let anchors: Vec<usize> = (0..3)
        .map(|i| uint(&f, index + 16 + 24 + 4 * i, 4) as usize)
        .collect();
    let ends: Vec<usize> = (0..3)
        .map(|i| uint(&f, index + 16 + 24 + 12 + 4 * i, 4) as usize)
        .collect();
    assert_eq!(
        uint(&f, index + 16, 8),
        u64::from_be_bytes(*b"apr\0\0\0\0\0"),
        "apricot up to its first new byte"
    );
    // The range deletes are two that overlap.
    let deletes = index + lengths[2];
    let columns = [
        &[2, 0, 0, 0, 6, 0, 0, 0][..], // two, and six bytes of keys
        &[2, 0, 0, 0, 5, 0, 0, 0],     // ends of the starts
        &[4, 0, 0, 0, 6, 0, 0, 0],     // ends of the ends
        &[2, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0],
        b"abbbbc",
    ];
    assert_eq!(f[deletes..deletes + lengths[3] - 4], columns.concat());
    // The first block has "red", "", "wood", and then its header.
    let h = anchors[0];
    assert_eq!((h, &f[..h]), (7, &b"redwood"[..]));
    assert_eq!(
        (uint(&f, h, 2), uint(&f, h + 2, 2)),
        (3, 5),
        "three entries, prefix apple"
    );
    assert_eq!(
        (f[h + 4], f[h + 5], f[h + 6], f[h + 7]),
        (4, 1, 1 | 2, 2),
        "pads and kinds"
    );
    assert_eq!(uint(&f, h + 8, 8), 4 << 8);
    assert_eq!((uint(&f, h + 16, 4), uint(&f, h + 20, 4)), (7, 0));
    assert_eq!(uint(&f, h + 24, 4), crc32c::crc32c(b"redwood") as u64);
    let columns = [
        &[0, 0, 0, 0, 0, 0, 0, 0][..], // heads of apple, twice
        b"trac",                       // head of applecart
        &[0; 6],                       // tail ends
        &[4, 4, 0],                    // pads
        &[5, 0, 1],                    // sequence numbers from 4
        &[1, 0, 1],                    // kinds
        &[0, 0, 3, 0, 3, 0],           // value starts
        b"apple",
    ];
    let columns = columns.concat();
    assert_eq!(f[h + 32..ends[0] - 4], columns);
    assert_eq!(
        uint(&f, ends[0] - 4, 4),
        crc32c::crc32c(&f[h..ends[0] - 4]) as u64
    );
}

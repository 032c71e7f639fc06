//! Parsers of the crate `siltstone-table`: sections, blocks, whole tables, jobs and outcomes.

use std::sync::Arc;

use siltstone_storage::{ReadFile, Result, StorageError, StorageErrorKind};
use siltstone_table::block::{Block, Decoded, open_stored};
use siltstone_table::exec::part::Part;
use siltstone_table::exec::survivors::Survivors;
use siltstone_table::filter::Filter;
use siltstone_table::footer::{FOOTER_BYTES, Footer};
use siltstone_table::index::{Index, IndexBuilder};
use siltstone_table::job::Job;
use siltstone_table::job::outcome::Outcome;
use siltstone_table::key::hash;
use siltstone_table::properties::Properties;
use siltstone_table::rangedel::RangeDeletes;
use siltstone_table::reader::{NoCache, ReaderOptions, TableReader, Verify};
use siltstone_table::salvage::{Expect, PieceReader};

use super::fixup;

/// A file of these bytes.
pub(super) struct Bytes {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
}

impl ReadFile for Bytes {
    fn name(&self) -> &str {
        &self.name
    }
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let found = from
            .checked_add(buf.len())
            .and_then(|end| self.bytes.get(from..end));
        match found {
            Some(found) => {
                buf.copy_from_slice(found);
                Ok(())
            }
            None => Err(StorageError::new(
                StorageErrorKind::UnexpectedEof,
                "read",
                &self.name,
                "past the end",
            )
            .at(offset)),
        }
    }
}

fn file(bytes: Vec<u8>) -> Arc<Bytes> {
    Arc::new(Bytes {
        name: "fuzzed.tbl".into(),
        bytes,
    })
}

pub(super) fn footer(bytes: &[u8]) {
    let Some(raw) = bytes.first_chunk::<FOOTER_BYTES>() else {
        return;
    };
    // A file with the length that it claims, and one with another length.
    let as_is = Footer::decode(raw, "fuzzed", bytes.len() as u64);
    let mut fields = [0u64; 6];
    for (field, eight) in fields.iter_mut().zip(raw.chunks(8)) {
        *field = u64::from_le_bytes(eight.try_into().expect("eight bytes"));
    }
    let fitting = Footer {
        blocks_bytes: fields[0],
        filter_bytes: fields[1],
        index_bytes: fields[2],
        range_deletes_bytes: fields[3],
        properties_bytes: fields[4],
        digest: fields[5],
    };
    let sum = fields[..5]
        .iter()
        .try_fold(FOOTER_BYTES as u64, |sum, f| sum.checked_add(*f));
    let decoded = Footer::decode(&fitting.encode(), "fuzzed", sum.unwrap_or(7));
    assert_eq!(decoded.is_ok(), sum.is_some());
    for footer in as_is.into_iter().chain(decoded) {
        let again = Footer::decode(&footer.encode(), "fuzzed", footer.file_bytes());
        assert_eq!(again.expect("what decodes encodes"), footer);
    }
}

pub(super) fn index(bytes: &[u8]) {
    let Some((head, rest)) = bytes.split_first_chunk::<8>() else {
        return;
    };
    let blocks_bytes = u64::from_le_bytes(*head);
    let Ok(index) = Index::decode(rest, blocks_bytes) else {
        return;
    };
    let mut again = IndexBuilder::new();
    let mut before = 0;
    for i in 0..index.len() {
        let place = index.place(i);
        assert!(
            place.start == before && place.start <= place.anchor && place.anchor < place.end,
            "block {i} lies at {place:?}"
        );
        before = place.end;
        let (separator, trailer) = index.separator(i);
        let found = index.find(&separator, trailer);
        assert!(found <= i, "block {i} is found at {found}");
        assert_eq!(
            index.find_narrowed(index.narrow(&separator), &separator, trailer),
            found
        );
        again
            .push(place.anchor, place.end, &separator, trailer)
            .expect("what decodes can be built");
    }
    assert!(before <= blocks_bytes);
    let mut encoded = Vec::new();
    again.encode(&mut encoded);
    let again = Index::decode(&encoded, blocks_bytes).expect("what was built decodes");
    assert_eq!(again.len(), index.len());
    for i in 0..index.len() {
        assert_eq!(again.place(i), index.place(i));
        assert_eq!(again.separator(i), index.separator(i));
    }
    for key in [&b""[..], b"\xff", rest] {
        let key = &key[..key.len().min(300)];
        assert!(index.find(key, 0) <= index.len());
    }
}

pub(super) fn filter(bytes: &[u8]) {
    let Some((bits, rest)) = bytes.split_first() else {
        return;
    };
    let Ok(filter) = Filter::decode(rest, *bits) else {
        return;
    };
    let mut encoded = Vec::new();
    filter.encode(&mut encoded);
    assert_eq!(encoded, rest, "a filter has one spelling");
    for key in rest.chunks(9).take(50) {
        let mut filter = filter.clone();
        filter.insert(hash(key));
        assert!(filter.may_contain(hash(key)));
    }
}

pub(super) fn properties(bytes: &[u8]) {
    let Ok(found) = Properties::decode(bytes, "fuzzed", 0) else {
        return;
    };
    let mut encoded = Vec::new();
    found.encode(&mut encoded);
    let again = Properties::decode(&encoded, "fuzzed", 0).expect("what decodes encodes");
    assert_eq!(again, found);
}

pub(super) fn range_deletes(bytes: &[u8]) {
    let Ok(found) = RangeDeletes::decode(bytes) else {
        return;
    };
    let mut encoded = Vec::new();
    found.encode(&mut encoded);
    let again = RangeDeletes::decode(&encoded).expect("what decodes encodes");
    assert_eq!(again.fragments(), found.fragments());
    let newest = |key: &[u8]| {
        let all = found.fragments().iter();
        all.filter(|f| f.start.as_slice() <= key && key < f.end.as_slice())
            .map(|f| f.seq)
            .max()
    };
    for fragment in found.fragments().iter().take(64) {
        for key in [&fragment.start, &fragment.end] {
            assert_eq!(found.covering_seq(key, u64::MAX >> 8), newest(key));
        }
    }
}

/// A block: two bytes say where its header is.
pub(super) fn block(bytes: &[u8]) {
    let Some((anchor, stored)) = bytes.split_first_chunk::<2>() else {
        return;
    };
    let anchor = usize::from(u16::from_le_bytes(*anchor));
    let mut scratch = Vec::new();
    let mut all = Decoded::default();
    for verify in [true, false] {
        let _ = open_stored(stored, anchor, verify, &mut scratch);
        let Ok(block) = Block::new(stored.to_vec(), anchor, verify) else {
            continue;
        };
        let view = block.view();
        let is_good = view.decode_all(&mut all).is_ok();
        let mut key = Vec::new();
        for i in 0..view.len() {
            let got = view.key_into(i, &mut key);
            let trailer = view.trailer(i);
            let range = view.value_range(i);
            let value = view.value(i);
            if is_good {
                assert_eq!(got, Ok(()), "entry {i}");
                assert_eq!(key, all.key(i), "entry {i}");
                assert_eq!(trailer, Ok(all.trailers[i]), "entry {i}");
                let range = range.expect("decode_all took it");
                assert!(value.is_ok_and(|v| v.len() == all.value_range(i).len()));
                assert!(
                    block.value_at(range.0, range.1).is_some() || range.1 == 0,
                    "entry {i}: {range:?}"
                );
            }
            let _ = view.seek(&key, trailer.unwrap_or(0));
            let _ = view.get(&key, u64::MAX);
            let _ = view.locate(&key);
        }
        for key in [&b""[..], b"\xff\xff", stored] {
            let key = &key[..key.len().min(100)];
            let _ = view.seek(key, u64::MAX);
            let _ = view.get(key, u64::MAX);
        }
    }
}

/// Reads a table in all ways.
fn read_table(bytes: Vec<u8>) {
    let options = ReaderOptions {
        verify: Verify::Always,
        map: false,
        ..ReaderOptions::default()
    };
    let Ok(table) = TableReader::open(file(bytes), options) else {
        return;
    };
    let is_sound = siltstone_table::check::check(&table).is_ok_and(|r| r.damage.is_empty());
    let mut entries = Vec::new();
    let mut iter = table.iter(Arc::new(NoCache));
    let mut step = iter.seek_to_first();
    // The index has the number of blocks, and a block its number of entries.
    while step.is_ok() && iter.valid() && entries.len() < 1 << 16 {
        entries.push((iter.key().to_vec(), iter.trailer()));
        let _ = iter.value();
        step = iter.next();
    }
    let whole = step.is_ok();
    assert!(
        whole || !is_sound,
        "a table that `check` finds sound cannot be read: {step:?}"
    );
    let mut value = Vec::new();
    for (key, trailer) in entries.iter().take(200) {
        let found = table.get(&NoCache, key, hash(key), trailer >> 8, &mut value);
        if is_sound {
            let found = found.expect("a sound table answers");
            assert!(
                found.is_some_and(|t| t >> 8 <= trailer >> 8),
                "a sound table has {key:?} with {trailer:#x}, and a get gives {found:x?}"
            );
        }
        let _ = iter.seek(key, *trailer);
        let _ = iter.seek_for_prev(key, *trailer);
    }
    let mut count = 0;
    let mut step = iter.seek_to_last();
    while step.is_ok() && iter.valid() && count < 1 << 16 {
        count += 1;
        step = iter.prev();
    }
    if is_sound {
        assert_eq!(count, entries.len(), "forward and backward");
    }
}

pub(super) fn table(bytes: &[u8]) {
    read_table(bytes.to_vec());
    read_table(fixup::table(bytes));
}

pub(super) fn salvage(bytes: &[u8]) {
    for bytes in [bytes.to_vec(), fixup::table(bytes)] {
        let len = bytes.len() as u64;
        let file = file(bytes);
        let found = match siltstone_table::salvage::salvage(&*file, &Expect::default()) {
            Err(error) if error.is_unsupported() => continue,
            found => found.expect("damage is no error of a salvage"),
        };
        let mut reader = PieceReader::default();
        let mut end = 0;
        for piece in &found.pieces {
            assert!(
                piece.place.start >= end && piece.place.end <= len,
                "pieces in file order: {:?}",
                piece.place
            );
            end = piece.place.end;
            reader
                .read(&*file, piece.place)
                .expect("a piece that was found can be read");
            for i in 0..reader.len() {
                let _ = (reader.key(i), reader.trailer(i), reader.value(i));
            }
        }
    }
}

pub(super) fn job(bytes: &[u8]) {
    let mut fitting = bytes.to_vec();
    fixup::trailing_crc(&mut fitting);
    for bytes in [bytes, &fitting[..]] {
        if let Ok(job) = Job::decode(bytes) {
            let _ = job.check();
            let again = Job::decode(&job.encode()).expect("what decodes encodes");
            assert_eq!(again, job);
            assert_eq!(again.identity(), job.identity());
            if job.check().is_ok() {
                for subjob in 0..job.subjobs().min(1000) {
                    let bounds = job.subjob_bounds(subjob);
                    let _ = job.subjob_soft_cuts(&bounds);
                }
            }
        }
    }
}

pub(super) fn outcome(bytes: &[u8]) {
    let mut fitting = bytes.to_vec();
    fixup::trailing_crc(&mut fitting);
    for bytes in [bytes, &fitting[..]] {
        if let Ok(outcome) = Outcome::decode(bytes) {
            let again = Outcome::decode(&outcome.encode()).expect("what decodes encodes");
            assert_eq!(again, outcome);
        }
    }
}

pub(super) fn survivors(bytes: &[u8]) {
    let mut fitting = bytes.to_vec();
    fixup::trailing_crc(&mut fitting);
    for bytes in [bytes, &fitting[..]] {
        if let Ok((job, survivors)) = Survivors::decode(bytes) {
            let again = Survivors::decode(&survivors.encode(job)).expect("what decodes encodes");
            assert_eq!(again, (job, survivors));
        }
    }
}

pub(super) fn part(bytes: &[u8]) {
    let mut fitting = bytes.to_vec();
    fixup::trailing_crc(&mut fitting);
    for bytes in [bytes, &fitting[..]] {
        if let Ok((job, part)) = Part::decode(bytes) {
            let again = Part::decode(&part.encode(job)).expect("what decodes encodes");
            assert_eq!(again, (job, part));
        }
    }
}

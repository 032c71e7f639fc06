//! Checks a whole table: every checksum, every rule of the format, and that index, filter,
//! properties and digest match the entries. `silt check` and repairs use it, and so do samples of
//! tables that another process made.
//!
//! Threading: reads a shared table with its own buffers. Blocks do not pass through a cache.

use std::cmp::Ordering;

use crate::block::{CHECKSUM_BYTES, Decoded, View, open_stored};
use crate::checksum::Digest;
use crate::coding::Bytes;
use crate::error::{Damage, Result, TableError};
use crate::filter::Filter;
use crate::key::{HIGHEST_TRAILER, Kind, common_prefix, compare_internal, hash, seq_of};
use crate::reader::TableReader;

/// The largest number of damages that a check lists. After that it only counts.
pub const MAX_LISTED: usize = 100;

/// The result of a check.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// The number of sound entries that were read.
    pub entries: u64,
    /// The number of sound blocks that were read.
    pub blocks: u64,
    /// At most [`MAX_LISTED`] damages, in file order.
    pub damage: Vec<Found>,
}

/// One damage of a table.
#[derive(Clone, Debug)]
pub struct Found {
    /// What is wrong.
    pub error: TableError,
    /// The block that cannot be read because of it; `None` if the damage is not in a block.
    pub block: Option<DamagedBlock>,
}

/// A block that cannot be read, and the keys that may be in it, as the index says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedBlock {
    /// The offset of its first byte in the file.
    pub start: u64,
    /// The offset of its end in the file, after the checksum.
    pub end: u64,
    /// A lower bound of its keys.
    pub lower: Vec<u8>,
    /// An upper bound of its keys.
    pub upper: Vec<u8>,
    /// Whether `upper` itself may be in it.
    pub upper_included: bool,
}

impl DamagedBlock {
    /// Describes block `i` of a table.
    fn of(table: &TableReader, i: usize) -> DamagedBlock {
        let index = table.index();
        let place = index.place(i);
        let (upper, trailer) = index.separator(i);
        DamagedBlock {
            start: place.start,
            end: place.end,
            lower: match i.checked_sub(1) {
                Some(before) => index.separator(before).0,
                None => table.properties().smallest_key.clone().unwrap_or_default(),
            },
            // A separator with the highest trailer sorts before all entries of its key.
            upper_included: i + 1 == index.len() || trailer != HIGHEST_TRAILER,
            upper,
        }
    }
}

/// Reads and checks every block and every rule.
///
/// # Errors
/// Only those of the storage. Damage is listed in the report.
pub fn check(table: &TableReader) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    let mut state = State::default();
    let (mut stored, mut scratch, mut all) = (Vec::new(), Vec::new(), Decoded::default());
    for i in 0..table.index().len() {
        let place = table.index().place(i);
        stored.clear();
        stored.resize(place.stored_bytes() as usize, 0);
        table.file().read_at(place.start, &mut stored)?;
        let end = stored.len() - CHECKSUM_BYTES;
        state.digest.push(stored.as_slice().u32(end));
        let anchor = (place.anchor - place.start) as usize;
        let checked = open_stored(&stored, anchor, true, &mut scratch).and_then(|view| {
            view.decode_all(&mut all)?;
            state.block(table, i, &all)?;
            found(&view, &all)
        });
        match checked {
            Ok(()) => {
                report.blocks += 1;
                report.entries += all.len() as u64;
            }
            Err(damage) => {
                state.broken = true;
                let error = damage.in_file(table.name(), place.start);
                report.add(error, Some(DamagedBlock::of(table, i)));
            }
        }
    }
    if !state.broken {
        for damage in state.finish(table) {
            let error = damage.in_file(table.name(), table.footer().blocks_bytes);
            report.add(error, None);
        }
    }
    Ok(report)
}

/// Checks that both searches find every entry at its position. Only a search notices wrong zeros in
/// the heads of short keys.
fn found(view: &View<'_, [u8]>, all: &Decoded) -> std::result::Result<(), Damage> {
    for i in 0..all.len() {
        let (key, trailer) = (all.key(i), all.trailers[i]);
        let sought = view.seek(key, trailer)?;
        let got = view.get(key, trailer)?.map_or(all.len(), |(at, _)| at);
        for place in [sought, got] {
            if place != i {
                let what = "position at which a search finds an entry";
                return Err(Damage::new(what, 0, i as u64, place as u64));
            }
        }
    }
    Ok(())
}

impl CheckReport {
    fn add(&mut self, error: TableError, block: Option<DamagedBlock>) {
        if self.damage.len() < MAX_LISTED {
            self.damage.push(Found { error, block });
        }
    }
}

#[derive(Default)]
struct State {
    digest: Digest,
    broken: bool,
    last_key: Vec<u8>,
    last_trailer: u64,
    entries: u64,
    puts: u64,
    deletes: u64,
    key_bytes: u64,
    value_bytes: u64,
    seqs: Option<(u64, u64)>,
    hashes: Vec<u64>,
    first_key: Option<Vec<u8>>,
}

impl State {
    fn block(
        &mut self,
        table: &TableReader,
        number: usize,
        all: &Decoded,
    ) -> std::result::Result<(), Damage> {
        for i in 0..all.len() {
            let (key, trailer) = (all.key(i), all.trailers[i]);
            let first = self.entries == 0;
            if !first
                && compare_internal(&self.last_key, self.last_trailer, key, trailer)
                    != Ordering::Less
            {
                return Err(Damage::new("order of entries", 0, i as u64, number as u64));
            }
            let shared = common_prefix(&self.last_key, key);
            let same_key = !first && self.last_key == key;
            if i == 0 && number > 0 && !self.broken {
                let separator = if same_key {
                    (self.last_key.clone(), self.last_trailer)
                } else {
                    (key[..shared + 1].to_vec(), HIGHEST_TRAILER)
                };
                if table.index().separator(number - 1) != separator {
                    return Err(Damage::new(
                        "index separator of the block before",
                        0,
                        number as u64,
                        number as u64 - 1,
                    ));
                }
            }
            if !same_key {
                self.hashes.push(hash(key));
            }
            if first {
                self.first_key = Some(key.to_vec());
            }
            self.entries += 1;
            self.puts += (trailer as u8 == Kind::Put as u8) as u64;
            self.deletes += (trailer as u8 == Kind::Delete as u8) as u64;
            self.key_bytes += key.len() as u64;
            self.value_bytes += all.value_range(i).len() as u64;
            let seq = seq_of(trailer);
            let (smallest, largest) = self.seqs.unwrap_or((seq, seq));
            self.seqs = Some((smallest.min(seq), largest.max(seq)));
            self.last_key.clear();
            self.last_key.extend_from_slice(key);
            self.last_trailer = trailer;
        }
        Ok(())
    }

    fn finish(mut self, table: &TableReader) -> Vec<Damage> {
        let mut damage = Vec::new();
        let p = table.properties();
        let n = table.index().len();
        if n > 0 && table.index().separator(n - 1) != (self.last_key.clone(), self.last_trailer) {
            damage.push(Damage::new("index separator of the last block", 0, 0, 0));
        }
        for (what, expected, found) in [
            ("entries in the properties", self.entries, p.entries),
            ("puts in the properties", self.puts, p.puts),
            ("deletes in the properties", self.deletes, p.deletes),
            (
                "user keys in the properties",
                self.hashes.len() as u64,
                p.user_keys,
            ),
            ("key bytes in the properties", self.key_bytes, p.key_bytes),
            (
                "value bytes in the properties",
                self.value_bytes,
                p.value_bytes,
            ),
        ] {
            if expected != found {
                damage.push(Damage::new(what, 0, expected, found));
            }
        }
        let last_key = (n > 0).then_some(self.last_key);
        if p.smallest_key != self.first_key || p.largest_key != last_key {
            damage.push(Damage::new(
                "smallest and largest key in the properties",
                0,
                0,
                0,
            ));
        }
        let range_deletes = table.range_deletes();
        if let Some((smallest, largest)) = range_deletes.seq_range() {
            let (s, l) = self.seqs.unwrap_or((smallest, largest));
            self.seqs = Some((s.min(smallest), l.max(largest)));
            let mut bytes = Vec::new();
            range_deletes.encode(&mut bytes);
            self.digest.push(crate::checksum::crc32c(&bytes));
        }
        if self.seqs != Some((p.smallest_seq, p.largest_seq)) {
            damage.push(Damage::new(
                "sequence range in the properties",
                0,
                self.seqs.map_or(0, |s| s.1),
                p.largest_seq,
            ));
        }
        if let Some(filter) = table.filter()
            && *filter != Filter::build(&self.hashes, p.bits_per_key)
        {
            damage.push(Damage::new(
                "filter",
                0,
                self.hashes.len() as u64,
                filter.memory_bytes() as u64,
            ));
        }
        let (expected, found) = (self.digest.value(), table.footer().digest);
        if expected != found {
            damage.push(Damage::new("digest in the footer", 40, expected, found));
        }
        damage
    }
}

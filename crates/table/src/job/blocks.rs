//! Reads back and checks the blocks of an outcome's table.
//!
//! [`TableBlocks`] checks the blocks that a sample selected, in ascending order: their checksums,
//! the order of entries, and that these are within what the outcome says about the table. It can
//! also check that tables and blocks begin where the layout requires, and that a block contains the
//! entries that it must ([`Contents`]).
//!
//! Threading: one owner.

use siltstone_storage::planted;

use super::contents::Contents;
use super::outcome::OutputTable;
use super::verify::{Failure, Rejected, expect, reject};
use super::{Hex, Job, KeyBounds};
use crate::block::header::{FLAG_FIXED_KEYS, FLAG_KINDS, FLAG_PADS};
use crate::block::{BlockRule, Decoded, Extent, Header, View, open_stored};
use crate::checksum::Digest;
use crate::compress::Codec;
use crate::error::Damage;
use crate::key::{Kind, common_prefix, compare_internal, hash, raw_bytes, seq_of};
use crate::layout::Layout;
use crate::reader::TableReader;
use crate::retain::DropRules;

/// The entry that was last checked.
struct Last {
    key: Vec<u8>,
    trailer: u64,
    /// What the entries of its block up to it decide together.
    extent: Extent,
}

/// Where the block of the last entry lies in the table, in bytes.
#[derive(Clone, Copy, Default)]
struct BlockRange {
    start: u64,
    end: u64,
    padding: u64,
}

/// See the module.
pub(super) struct TableBlocks<'a, 'l> {
    job: &'a Job,
    record: &'a OutputTable,
    table: &'a TableReader,
    range: KeyBounds,
    /// Set only if every block is checked.
    layout: Option<&'a mut Layout<'l>>,
    digest: Digest,
    entries: u64,
    puts: u64,
    raw_bytes: u64,
    last: Option<Last>,
    rule: BlockRule,
    /// The blocks of the last entry and of the current one.
    ranges: (BlockRange, BlockRange),
    /// Buffers for the stored and the uncompressed form of a block.
    stored: Vec<u8>,
    scratch: Vec<u8>,
}

impl<'a, 'l> TableBlocks<'a, 'l> {
    pub fn new(
        job: &'a Job,
        record: &'a OutputTable,
        table: &'a TableReader,
        layout: Option<&'a mut Layout<'l>>,
    ) -> TableBlocks<'a, 'l> {
        TableBlocks {
            job,
            record,
            table,
            range: KeyBounds {
                start: record.left_bound.clone(),
                end: record.right_bound.clone(),
            },
            layout,
            digest: Digest::default(),
            entries: 0,
            puts: 0,
            raw_bytes: 0,
            last: None,
            rule: BlockRule::new(job.limits.block_bytes, job.format.codec != Codec::None),
            ranges: Default::default(),
            stored: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Reads and checks one block. Compares `contents` with it, as table number `number` of its
    /// subjob.
    pub fn check(
        &mut self,
        block: usize,
        number: usize,
        mut contents: Option<&mut Contents<'_>>,
    ) -> Result<(), Failure> {
        let name = self.record.name.as_str();
        let at = self.table.index().place(block);
        let mut stored = std::mem::take(&mut self.stored);
        let mut scratch = std::mem::take(&mut self.scratch);
        stored.clear();
        stored.resize(at.stored_bytes() as usize, 0);
        self.table.file().read_at(at.start, &mut stored)?;
        let mut all = Decoded::default();
        let anchor = (at.anchor - at.start) as usize;
        let damaged = |d: Damage| d.in_file(name, at.start);
        let view = open_stored(&stored, anchor, true, &mut scratch).map_err(damaged)?;
        view.decode_all(&mut all).map_err(damaged)?;
        let header = view.header();
        let range = BlockRange {
            start: at.start,
            end: at.end,
            padding: (header.end - header.padding) as u64,
        };
        self.ranges = (self.ranges.1, range);
        if let Some(contents) = &mut contents
            && !all.is_empty()
        {
            contents.begin_block((number, block), all.key(0))?;
        }
        if let Some(crc) = stored.last_chunk::<4>() {
            self.digest.push(u32::from_le_bytes(*crc));
        }
        for i in 0..all.len() {
            let (key, trailer) = (all.key(i), all.trailers[i]);
            self.check_bounds(key, trailer)?;
            if let Some(contents) = &mut contents {
                let value = view.value(i).map_err(damaged)?;
                contents.compare(name, key, trailer, value)?;
                self.check_lookup(block, &view, i, key, trailer)?;
            } else if !self.table.may_contain(hash(key)) && !planted!(FilterIsBelieved) {
                // Gets would not find it, although it is there.
                return Err(Failure::from(Rejected {
                    reason: format!("table {name}: the filter lacks key {}", Hex(key)),
                }));
            }
            let value_len = all.value_range(i).len();
            let raw = raw_bytes(key.len(), value_len);
            let extent = self.check_layout(key, trailer, value_len, i == 0)?;
            self.entries += 1;
            self.puts += u64::from(trailer as u8 == Kind::Put as u8);
            self.raw_bytes += raw;
            self.last = Some(Last {
                key: key.to_vec(),
                trailer,
                extent,
            });
        }
        if self.layout.is_some() {
            self.check_columns(header)?;
        }
        (self.stored, self.scratch) = (stored, scratch);
        Ok(())
    }

    /// Checks that the columns of the last block have the widths that its entries need. A block
    /// with wider ones could be read, but other executors would end blocks elsewhere.
    fn check_columns(&self, header: &Header) -> Result<(), Rejected> {
        let Some(Last { extent, .. }) = &self.last else {
            return Ok(());
        };
        let kind = match extent.has_kinds() {
            true => 0,
            false => extent.min_trailer & 0xff,
        };
        let has = |flag| u64::from(header.has(flag));
        for (what, expected, found) in [
            (
                "common prefix",
                extent.prefix_len as u64,
                header.prefix_len as u64,
            ),
            (
                "width of heads",
                extent.head_width() as u64,
                header.head_width as u64,
            ),
            (
                "column of pads",
                u64::from(extent.has_pads()),
                has(FLAG_PADS),
            ),
            (
                "fixed length of keys",
                u64::from(extent.has_fixed_keys()),
                has(FLAG_FIXED_KEYS),
            ),
            (
                "column of kinds",
                u64::from(extent.has_kinds()),
                has(FLAG_KINDS),
            ),
            (
                "width of sequence numbers",
                extent.seq_width() as u64,
                header.seq_width as u64,
            ),
            (
                "base of sequence numbers",
                extent.base_seq() << 8 | kind,
                header.base,
            ),
            (
                "width of value starts",
                extent.value_width() as u64,
                header.value_width as u64,
            ),
        ] {
            if found != expected {
                let (name, start) = (&self.record.name, self.ranges.1.start);
                return reject(format!(
                    "table {name}: the block at {start} has {found} as its {what} instead of \
                     {expected}"
                ));
            }
        }
        Ok(())
    }

    /// Checks that an entry comes after the previous one, and is within what the outcome says.
    fn check_bounds(&self, key: &[u8], trailer: u64) -> Result<(), Rejected> {
        let name = &self.record.name;
        if let Some(last) = &self.last
            && compare_internal(&last.key, last.trailer, key, trailer).is_ge()
        {
            return reject(format!(
                "table {name}: entries out of order at {}",
                Hex(key)
            ));
        }
        let (first, last) = match &self.record.keys {
            Some((first, last)) => (&first[..], &last[..]),
            None => (&[][..], &[][..]),
        };
        if !self.range.contains(key) || key < first || key > last {
            return reject(format!(
                "table {name}: key {} is out of its bounds",
                Hex(key)
            ));
        }
        let seq = seq_of(trailer);
        if seq < self.record.min_seq || seq > self.record.max_seq {
            return reject(format!(
                "table {name}: sequence number {seq} is out of its range"
            ));
        }
        Ok(())
    }

    /// Checks that the table or the block begins at this entry if and only if it should. Returns
    /// what the entries of its block up to it decide together.
    fn check_layout(
        &mut self,
        key: &[u8],
        trailer: u64,
        value_len: usize,
        begins_block: bool,
    ) -> Result<Extent, Rejected> {
        let name = &self.record.name;
        let first = Extent::first(key.len(), trailer, value_len);
        let next = self.last.as_ref().map(|last| {
            let shared = common_prefix(&last.key, key);
            let next = last.extent.with(key.len(), trailer, value_len, shared);
            (last.extent, next)
        });
        let extent = match next {
            Some((_, next)) if !begins_block => next,
            _ => first,
        };
        let Some(layout) = self.layout.as_deref_mut() else {
            return Ok(extent);
        };
        let newer = self.last.as_ref().filter(|last| last.key == key);
        let begins_table = newer.is_none() && layout.start_key(key).is_some();
        layout.add(raw_bytes(key.len(), value_len));
        let should = |begins: bool, what: &str| {
            let not = if begins { "" } else { "not " };
            reject(format!(
                "table {name}: key {} should {not}begin {what}",
                Hex(key)
            ))
        };
        if begins_table != self.last.is_none() {
            return should(begins_table, "another table");
        }
        if let Some((now, next)) = next {
            let before = if begins_block {
                self.ranges.0
            } else {
                self.ranges.1
            };
            let end = self.rule.end(before.start, &now, &next);
            if end.is_some() != begins_block {
                return should(!begins_block, "another block");
            }
            let expected = end.map_or(0, |end| end.padding(before.end - before.padding));
            if begins_block && before.padding != expected {
                return reject(format!(
                    "table {name}: the block before key {} has {} bytes of padding instead of {}",
                    Hex(key),
                    before.padding,
                    expected
                ));
            }
        }
        if let Some(newer) = newer
            && self.job.rules.has(DropRules::SHADOWED)
        {
            // Two versions must lie in different stripes.
            let stripe = seq_of(trailer)..seq_of(newer.trailer);
            if !self.job.snapshots.iter().any(|s| stripe.contains(s)) {
                return reject(format!(
                    "table {name}: {} has two versions that no snapshot separates",
                    Hex(key)
                ));
            }
        }
        Ok(extent)
    }

    /// Checks that a lookup of entry `i` of a block finds it: through the filter, the index, and
    /// both searches of its block.
    fn check_lookup(
        &self,
        block: usize,
        view: &View<'_, [u8]>,
        i: usize,
        key: &[u8],
        trailer: u64,
    ) -> Result<(), Failure> {
        let (name, table) = (self.record.name.as_str(), self.table);
        let lost = |by: &str| {
            let key = Hex(key);
            let reason = format!("table {name}: a lookup of key {key} is misled by {by}");
            Failure::Rejected(Rejected { reason })
        };
        if !table.may_contain(hash(key)) {
            return Err(lost("the filter"));
        }
        if table.find_block(key, trailer) != Some(block as u32) {
            return Err(lost("the index"));
        }
        let damaged = |d: Damage| d.in_file(name, table.index().place(block).start);
        let sought = view.seek(key, trailer).map_err(damaged)?;
        let got = view.get(key, trailer).map_err(damaged)?.map(|(at, _)| at);
        if (sought, got) != (i, Some(i)) {
            return Err(lost("the search of its block"));
        }
        Ok(())
    }

    /// After all blocks were checked, checks their digest and the sums over their entries.
    pub fn check_sums(mut self) -> Result<(), Rejected> {
        let (name, record) = (self.record.name.as_str(), self.record);
        let range_deletes = self.table.range_deletes();
        if !range_deletes.is_empty() {
            let mut bytes = Vec::new();
            range_deletes.encode(&mut bytes);
            self.digest.push(crate::checksum::crc32c(&bytes));
        }
        let digest = self.digest.value();
        expect(name, "digest of its blocks", record.digest, digest)?;
        if self.layout.is_some() {
            expect(name, "padding of its last block", 0, self.ranges.1.padding)?;
        }
        let (entries, puts) = (self.entries, self.puts);
        expect(name, "number of entries read back", record.entries, entries)?;
        expect(name, "number of puts read back", record.puts, puts)?;
        expect(
            name,
            "raw bytes read back",
            record.raw_bytes,
            self.raw_bytes,
        )
    }
}

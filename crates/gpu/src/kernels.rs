//! The kernels by their names, with their arguments.
//!
//! The structures here are those of `kernels/*.h`, field by field. Every field has 4 or 8 bytes,
//! and those of 8 bytes lie at multiples of 8, so there is no padding between them: `bytes` of a
//! structure is its fields one after the other. The emulated device compares the length with that
//! of the C structure.
//!
//! Threading: plain values.

use std::marker::PhantomData;

use crate::device::Region;

/// An array in the memory of a device: an address and the number of its items.
pub struct Array<T> {
    at: u64,
    count: u64,
    of: PhantomData<fn() -> T>,
}

impl<T> Clone for Array<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Array<T> {}

impl<T> std::fmt::Debug for Array<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} items at {:#x}", self.count, self.at)
    }
}

impl<T: Item> Array<T> {
    /// The array of `count` items at the beginning of a region.
    pub(crate) fn new(region: Region, count: u64) -> Array<T> {
        debug_assert!(count * T::BYTES <= region.bytes);
        Array {
            at: region.at,
            count,
            of: PhantomData,
        }
    }

    /// The number of items.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The bytes of all items.
    pub fn region(&self) -> Region {
        Region {
            at: self.at,
            bytes: self.count * T::BYTES,
        }
    }

    /// The first `count` items.
    pub fn first(&self, count: u64) -> Array<T> {
        debug_assert!(count <= self.count);
        Array { count, ..*self }
    }

    /// The `count` items from `from` on.
    pub fn part(&self, from: u64, count: u64) -> Array<T> {
        debug_assert!(from + count <= self.count);
        Array {
            at: self.at + from * T::BYTES,
            count,
            of: PhantomData,
        }
    }

    /// The same bytes as an array of other items.
    pub fn cast<U: Item>(&self) -> Array<U> {
        Array {
            at: self.at,
            count: self.count * T::BYTES / U::BYTES,
            of: PhantomData,
        }
    }
}

/// What an array on the device is made of.
pub trait Item: Copy {
    /// The bytes of an item.
    const BYTES: u64;

    /// Appends its bytes.
    fn put(&self, out: &mut Vec<u8>);

    /// Reads it from as many bytes as it has.
    fn get(from: &mut &[u8]) -> Self;
}

fn take<const N: usize>(from: &mut &[u8]) -> [u8; N] {
    match from.split_first_chunk() {
        Some((first, rest)) => {
            *from = rest;
            *first
        }
        None => [0; N],
    }
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Item for $type {
            const BYTES: u64 = size_of::<$type>() as u64;

            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn get(from: &mut &[u8]) -> Self {
                <$type>::from_le_bytes(take(from))
            }
        }
    )*};
}

integers!(u8, u16, u32, u64);

impl<const N: usize> Item for [u8; N] {
    const BYTES: u64 = N as u64;

    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn get(from: &mut &[u8]) -> Self {
        take(from)
    }
}

impl<T> Item for Array<T> {
    const BYTES: u64 = 16;

    fn put(&self, out: &mut Vec<u8>) {
        self.at.put(out);
        self.count.put(out);
    }

    fn get(from: &mut &[u8]) -> Self {
        Array {
            at: u64::get(from),
            count: u64::get(from),
            of: PhantomData,
        }
    }
}

macro_rules! structures {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs)]
        pub struct $name {
            $(pub $field: $type,)*
        }

        impl Item for $name {
            const BYTES: u64 = 0 $(+ <$type as Item>::BYTES)*;

            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
            }

            fn get(from: &mut &[u8]) -> Self {
                $(let $field = <$type as Item>::get(from);)*
                $name { $($field,)* }
            }
        }
    )*};
}

/// A block of an input whose header was checked. Only the kernels look into it.
pub type Block = [u8; 88];
/// A block of an output table. Only the kernels look into it.
pub type OutBlock = [u8; 64];
/// What decides how many bytes some survivors take. Only the kernels look into it.
pub type Extent = [u8; 64];

structures! {
    /// Where a block is among the stored bytes, and which input it is of.
    Place { start: u64, anchor: u64, end: u64, input: u32, unused: u32, }
    /// What the job says about an input.
    Input { min_seq: u64, max_seq: u64, seq_override: u64, has_override: u32, first_block: u32, }
    /// User keys.
    Keys { words: Array<u64>, places: Array<u32>, lens: Array<u16>, }
    /// Heads and numbers of entries.
    Items { high: Array<u64>, low: Array<u64>, entries: Array<u32>, }
    /// What comparing entries needs beside their heads.
    Entries { keys: Keys, trailers: Array<u64>, }
    /// Key ranges.
    Ranges { words: Array<u64>, places: Array<u32>, lens: Array<u32>, ends: Array<u32>, }
    /// The entries that are kept, in order.
    Survivors {
        keys: Keys, trailers: Array<u64>, value_places: Array<u64>, value_lens: Array<u32>,
        shared: Array<u16>, is_new: Array<u8>,
    }
    /// The begin of a table.
    TableStart { earlier_spans_bytes: u64, span_bytes: u64, first: u32, span: u32, }
    /// Where blocks end.
    Rule { block_bytes: u64, is_paged: u32, unused: u32, }
    /// What the chain of blocks is computed from.
    Chain {
        survivors: Survivors, groups: Array<Extent>, tables: Array<u32>, rule: Rule, count: u64,
    }
    /// A part of a block that is decoded or encoded.
    Lz4Part { from: u64, to: u64, from_bytes: u64, to_bytes: u32, is_used: u32, }
    /// What the index needs of a block.
    IndexEntry {
        trailer: u64, bytes: u32, value_bytes: u32, crc: u32, separator_bytes: u32, table: u32,
        unused: u32,
    }
    /// What the properties need of a table.
    TableSums {
        puts: u64, user_keys: u64, key_bytes: u64, value_bytes: u64, smallest_seq: u64,
        largest_seq: u64, filter_word: u64, filter_lines: u64, first: u32, last: u32,
        first_key_len: u32, unused: u32,
    }
}

/// The arguments of a kernel.
pub trait Args: Item {}

macro_rules! arguments {
    ($($name:ident { $($field:ident: $type:ty,)* })*) => {
        structures! { $(
            /// The arguments of a kernel; see its source.
            $name { $($field: $type,)* }
        )* }
        $(impl Args for $name {})*
    };
}

arguments! {
    ScanSums64 { items: Array<u64>, sums: Array<u64>, count: u64, }
    ScanApply64 { items: Array<u64>, sums: Array<u64>, count: u64, }
    ScanSums32 { items: Array<u32>, sums: Array<u64>, count: u64, }
    ScanApply32 { items: Array<u32>, sums: Array<u64>, count: u64, }
    CrcTables { tables: Array<u32>, }
    UnpackHeaders {
        bytes: Array<u8>, places: Array<Place>, blocks: Array<Block>, raw_bytes: Array<u64>,
        entries: Array<u32>, key_words: Array<u64>, errors: Array<u64>, count: u64,
        stored_bytes: u64,
    }
    ChecksumBlocks {
        bytes: Array<u8>, places: Array<Place>, tables: Array<u32>, crcs: Array<u32>, count: u64,
    }
    CompareChecksums {
        bytes: Array<u8>, places: Array<Place>, blocks: Array<Block>, crcs: Array<u32>,
        errors: Array<u64>, count: u64,
    }
    UnpackEntries {
        bytes: Array<u8>, places: Array<Place>, inputs: Array<Input>, blocks: Array<Block>,
        first_entries: Array<u32>, trailers: Array<u64>, key_lens: Array<u16>,
        key_words: Array<u32>, value_places: Array<u64>, value_lens: Array<u32>,
        errors: Array<u64>, count: u64,
    }
    UnpackKeys {
        bytes: Array<u8>, blocks: Array<Block>, first_entries: Array<u32>, keys: Keys,
        heads_high: Array<u64>, heads_low: Array<u64>, prefix: Array<u64>, errors: Array<u64>,
        prefix_len: u32, unused: u32, count: u64,
    }
    CheckOrder {
        keys: Keys, trailers: Array<u64>, first_entries: Array<u32>, errors: Array<u64>,
        inputs: u32, unused: u32, count: u64,
    }
    Clip {
        keys: Keys, bounds: Array<u64>, bound_places: Array<u32>, bound_lens: Array<u32>,
        first_entries: Array<u32>, ranges: Array<u32>, inputs: u32, unused: u32,
    }
    InputEntries {
        first_entries: Array<u32>, inputs: Array<u32>, input_array: Array<Input>, count: u64,
        blocks: u64,
    }
    GatherItems {
        heads_high: Array<u64>, heads_low: Array<u64>, items: Items, firsts: Array<u32>,
        ranges: Array<u32>, entries: Entries, run_starts: Array<u32>, errors: Array<u64>,
        inputs: u32, unused: u32, count: u64,
    }
    OrderItems {
        heads_high: Array<u64>, heads_low: Array<u64>, items: Items, count: u64,
    }
    MergePairs {
        from: Items, to: Items, bounds: Array<u32>, entries: Entries, runs: u32, unused: u32,
        count: u64,
    }
    Judge {
        items: Items, entries: Entries, stripe_ends: Array<u64>, fragments: Ranges,
        fragment_seqs: Array<u64>, stripe_firsts: Array<u32>, older: Ranges,
        verdicts: Array<u8>, kept: Array<u32>, stripes: u32, older_count: u32, rules: u32,
        unused: u32, count: u64,
    }
    MarkKept { verdicts: Array<u8>, kept: Array<u32>, count: u64, }
    CountVerdicts {
        verdicts: Array<u8>, items: Items, keys: Keys, value_lens: Array<u32>,
        counts: Array<u64>, count: u64,
    }
    ListSurvivors {
        kept: Array<u32>, verdicts: Array<u8>, items: Items, entries: Array<u32>, count: u64,
    }
    GatherSurvivors {
        entries: Array<u32>, keys: Keys, trailers: Array<u64>, value_places: Array<u64>,
        value_lens: Array<u32>, survivors: Survivors, raw_bytes: Array<u64>,
        value_bytes: Array<u64>, errors: Array<u64>, count: u64,
    }
    FindCutItem {
        items: Items, keys: Keys, places: Array<u32>, found: Array<u64>, survivor: u64,
        count: u64,
    }
    FindCuts {
        keys: Keys, words: Array<u64>, places: Array<u32>, lens: Array<u32>,
        firsts: Array<u32>, survivors: u64, count: u64,
    }
    WalkSpans {
        firsts: Array<u32>, raw: Array<u64>, earlier: Array<u64>, cuts: u64, survivors: u64,
        min_span_bytes: u64, earlier_spans_bytes: u64, span_bytes: u64,
    }
    BeginTables {
        is_new: Array<u8>, raw: Array<u64>, firsts: Array<u32>, earlier: Array<u64>,
        begins: Array<u32>, cuts: u64, survivors: u64, table_bytes: u64, delay_bytes: u64,
        span_bytes: u64,
    }
    ListTables {
        numbers: Array<u32>, raw: Array<u64>, firsts: Array<u32>, earlier: Array<u64>,
        starts: Array<TableStart>, cuts: u64, survivors: u64, span_bytes: u64,
    }
    GroupSurvivors { survivors: Survivors, groups: Array<Extent>, count: u64, }
    GroupExtents { groups: Array<Extent>, count: u64, level: u32, unused: u32, }
    BlockEnds { chain: Chain, nexts: Array<u32>, bytes: Array<u32>, }
    BeginJumps { chain: Chain, nexts: Array<u32>, bytes: Array<u32>, jumps: Array<u32>, }
    DoubleJumps { from: Array<u32>, to: Array<u32>, count: u64, }
    FollowChain {
        chain: Chain, starts: Array<TableStart>, nexts: Array<u32>, bytes: Array<u32>,
        jumps: Array<u32>, begins: Array<u32>, jumped: Array<u32>, table_count: u64,
    }
    ExpandJumps {
        nexts: Array<u32>, jumped: Array<u32>, begins: Array<u32>, count: u64, blocks: u64,
    }
    ListBlocks {
        begins: Array<u32>, firsts: Array<u32>, block_bytes: Array<u32>, places: Array<u64>,
        bytes: Array<u32>, survivors: u64, blocks: u64,
    }
    PlanBlocks {
        survivors: Survivors, tables: Array<u32>, firsts: Array<u32>, block_bytes: Array<u32>,
        places: Array<u64>, blocks: Array<OutBlock>, count: u64,
    }
    MeasureTails {
        survivors: Survivors, begins: Array<u32>, blocks: Array<OutBlock>, tails: Array<u32>,
        count: u64,
    }
    PackColumns {
        survivors: Survivors, tails: Array<u32>, value_starts: Array<u64>,
        blocks: Array<OutBlock>, out: Array<u8>, count: u64,
    }
    PackValues {
        bytes: Array<u8>, survivors: Survivors, value_starts: Array<u64>,
        blocks: Array<OutBlock>, out: Array<u8>, count: u64,
    }
    PackChecksums {
        blocks: Array<OutBlock>, out: Array<u8>, tables: Array<u32>, crcs: Array<u32>,
        count: u64,
    }
    MeasureSeparators {
        survivors: Survivors, blocks: Array<OutBlock>, crcs: Array<u32>,
        entries: Array<IndexEntry>, separator_bytes: Array<u32>, count: u64,
    }
    WriteSeparators {
        survivors: Survivors, blocks: Array<OutBlock>, places: Array<u32>, out: Array<u8>,
        count: u64,
    }
    BeginSums {
        starts: Array<TableStart>, survivors: Survivors, sums: Array<TableSums>, tables: u64,
        survivor_count: u64,
    }
    SumTables {
        survivors: Survivors, tables: Array<u32>, sums: Array<TableSums>, count: u64,
    }
    SetFilterBits {
        survivors: Survivors, tables: Array<u32>, sums: Array<TableSums>, filters: Array<u32>,
        count: u64, probes: u32, unused: u32,
    }
    WriteFirstKeys {
        survivors: Survivors, sums: Array<TableSums>, places: Array<u32>, out: Array<u8>,
        tables: u64,
    }
    ListStoredParts {
        bytes: Array<u8>, places: Array<Place>, blocks: Array<Block>, raw_bytes: Array<u64>,
        parts: Array<Lz4Part>, count: u64, raw: u64,
    }
    Lz4Decode { bytes: Array<u8>, parts: Array<Lz4Part>, errors: Array<u64>, count: u64, }
    ListOutputParts {
        blocks: Array<OutBlock>, parts: Array<Lz4Part>, large: Array<u64>, count: u64,
    }
    Lz4Encode {
        from: Array<u8>, to: Array<u8>, parts: Array<Lz4Part>, tables: Array<u16>,
        sizes: Array<u32>, first: u64, count: u64, table_bits: u32, is_large: u32,
    }
    MeasureStored {
        blocks: Array<OutBlock>, sizes: Array<u32>, places: Array<u64>, stored: Array<OutBlock>,
        count: u64,
    }
    PlaceParts {
        raw: Array<u8>, encoded: Array<u8>, parts: Array<Lz4Part>, blocks: Array<OutBlock>,
        stored: Array<OutBlock>, out: Array<u8>, count: u64,
    }
    ChecksumRegion {
        bytes: Array<u8>, tables: Array<u32>, crcs: Array<u32>, slot: u64,
    }
}

//! Where tables begin: the layout of a run as a pure function of its surviving entries.
//!
//! Between two neighbouring *hard* cuts lies a subjob, between two neighbouring cuts of any kind a *span*. All sizes
//! are raw (user key + value + 12). A span weighs `max(its raw bytes, M)`; a span without entries between two entries
//! weighs `M`. For an entry that is the newest surviving version of its user key let `S` be the weight of all earlier
//! spans of the subjob, counted from the span of its first entry, and `w` the raw bytes in the span before it. Its
//! table number is `floor((S + max(0, w - D)) / T)`. A table begins at a subjob's first entry and wherever the number
//! changes; numbers that skip are closed up; all versions of a user key share a table.
//!
//! Every sum only grows, so that the number is an inclusive scan: [`Layout`] streams it with the next multiple of `T`
//! as a threshold and no look-ahead; a GPU computes it with prefix sums (`tests/layout.rs` does, with code of its
//! own, and compares). [`LayoutState`] is what going on after the last finished table needs: the next table's first
//! user key, and `S` and `w` there. It cannot be derived from the sizes of the tables before it.
//!
//! Invariants: `S + w` never shrinks; all sums are u64 and saturate (a job cannot hold 2^64 bytes).
//!
//! Threading: one owner; no I/O.

use crate::key::ENTRY_OVERHEAD_BYTES;

/// The numbers that decide where tables begin. All in raw bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutLimits {
    /// `T`: target size of a table; a power of two.
    pub table_bytes: u64,
    /// `M`: the least weight of a span.
    pub min_span_bytes: u64,
    /// `D`: how far a span's entries may go on before they count towards a new table.
    pub delay_bytes: u64,
}

impl LayoutLimits {
    /// The limits for tables of `table_bytes`: `M = T / 32`; `D = T / 2`, or 0 without soft cuts.
    pub fn new(table_bytes: u64, has_soft_cuts: bool) -> LayoutLimits {
        LayoutLimits {
            table_bytes,
            min_span_bytes: table_bytes / 32,
            delay_bytes: if has_soft_cuts { table_bytes / 2 } else { 0 },
        }
    }
}

/// Where a layout goes on: at the first entry of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutState {
    /// The table's first user key.
    pub first_key: Vec<u8>,
    /// `S` there, in bytes.
    pub earlier_spans_bytes: u64,
    /// `w` there, in bytes.
    pub span_bytes: u64,
    /// How many tables of the subjob come before it.
    pub table: u32,
}

/// The start of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableStart<'a> {
    /// Its place in the subjob, from 0, without gaps.
    pub table: u32,
    /// The soft cut that its range deletes reach down to: the largest one at or below its first key, if the table
    /// starts that cut's span. `None`: its first user key (or, for table 0, the subjob's bound) is its left bound.
    pub left_cut: Option<&'a [u8]>,
}

/// Streams the layout of one subjob.
///
/// For every user key in order: [`Layout::start_key`] once, then [`Layout::add`] for each of its surviving versions.
#[derive(Clone, Debug)]
pub struct Layout<'a> {
    limits: LayoutLimits,
    /// The subjob's soft cuts, strictly ascending.
    cuts: &'a [Vec<u8>],
    /// How many cuts are at or below the current key: the current span.
    span: usize,
    /// `S` of the current span.
    earlier_spans_bytes: u64,
    /// `w` of the next entry.
    span_bytes: u64,
    /// A table begins at the first user key where `S + max(0, w - D)` reaches this.
    threshold: u64,
    /// Tables begun so far.
    tables: u32,
    started: bool,
    /// Set by a resumption: the next key begins a table whatever the sums say.
    at_table_start: bool,
}

impl<'a> Layout<'a> {
    /// The layout of a subjob from its first entry on. `cuts` are its soft cuts, strictly ascending; those outside
    /// the subjob may be among them.
    pub fn new(limits: LayoutLimits, cuts: &'a [Vec<u8>]) -> Layout<'a> {
        debug_assert!(limits.table_bytes > 0);
        debug_assert!(cuts.windows(2).all(|w| w[0] < w[1]));
        Layout {
            limits,
            cuts,
            span: 0,
            earlier_spans_bytes: 0,
            span_bytes: 0,
            threshold: 0,
            tables: 0,
            started: false,
            at_table_start: false,
        }
    }

    /// The layout going on at the first entry of a table that [`Layout::state`] was asked for.
    pub fn resume(limits: LayoutLimits, cuts: &'a [Vec<u8>], state: &LayoutState) -> Layout<'a> {
        let mut layout = Layout::new(limits, cuts);
        layout.span = cuts.partition_point(|cut| cut.as_slice() <= state.first_key.as_slice());
        layout.earlier_spans_bytes = state.earlier_spans_bytes;
        layout.span_bytes = state.span_bytes;
        layout.tables = state.table;
        layout.started = true;
        layout.at_table_start = true;
        layout
    }

    /// What going on at `first_key` needs; to be asked right after [`Layout::start_key`] said that it starts a table.
    pub fn state(&self, first_key: &[u8]) -> LayoutState {
        LayoutState {
            first_key: first_key.to_vec(),
            earlier_spans_bytes: self.earlier_spans_bytes,
            span_bytes: self.span_bytes,
            table: self.tables - 1,
        }
    }

    /// `S + max(0, w - D)`.
    #[inline]
    fn position_bytes(&self) -> u64 {
        self.earlier_spans_bytes
            .saturating_add(self.span_bytes.saturating_sub(self.limits.delay_bytes))
    }

    /// Moves past the cuts at or below `key`.
    #[cold]
    fn enter_span(&mut self, key: &[u8]) {
        let rest = &self.cuts[self.span..];
        let passed = rest.partition_point(|cut| cut.as_slice() <= key);
        let min = self.limits.min_span_bytes;
        if self.started {
            let weight = self.span_bytes.max(min);
            let empty = (passed as u64 - 1).saturating_mul(min);
            self.earlier_spans_bytes = self
                .earlier_spans_bytes
                .saturating_add(weight)
                .saturating_add(empty);
        }
        self.span_bytes = 0;
        self.span += passed;
    }

    /// Announces the next user key, whose newest surviving version comes next. Says whether a table begins with it.
    #[inline]
    pub fn start_key(&mut self, key: &[u8]) -> Option<TableStart<'a>> {
        if let Some(cut) = self.cuts.get(self.span)
            && cut.as_slice() <= key
        {
            self.enter_span(key);
        }
        if self.started && !self.at_table_start && self.position_bytes() < self.threshold {
            return None;
        }
        Some(self.start_table())
    }

    #[cold]
    fn start_table(&mut self) -> TableStart<'a> {
        let size = self.limits.table_bytes;
        let number = self.position_bytes() / size;
        self.threshold = (number + 1).saturating_mul(size);
        self.started = true;
        self.at_table_start = false;
        let table = self.tables;
        self.tables += 1;
        let left_cut = match self.span {
            span if span > 0 && self.span_bytes == 0 => Some(self.cuts[span - 1].as_slice()),
            _ => None,
        };
        TableStart { table, left_cut }
    }

    /// Counts a surviving version of the current user key: `raw_bytes` as [`crate::key::raw_bytes`] gives them.
    #[inline]
    pub fn add(&mut self, raw_bytes: u64) {
        debug_assert!(raw_bytes >= ENTRY_OVERHEAD_BYTES);
        self.span_bytes = self.span_bytes.saturating_add(raw_bytes);
    }
}

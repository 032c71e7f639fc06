//! Where tables begin: the layout of a run is a pure function of its surviving entries.
//!
//! A subjob lies between two neighbouring *hard* cuts, and a *span* between two neighbouring cuts
//! of any kind. All sizes are raw (user key + value + 12). A span weighs `max(its raw bytes, M)`,
//! and a span without entries between two entries weighs `M`. For an entry that is the newest
//! surviving version of its user key, let `S` be the weight of all earlier spans of the subjob,
//! counted from the span of its first entry, and let `w` be the raw bytes before it in its span.
//! Its table number is `floor((S + max(0, w - D)) / T)`. A table begins at a subjob's first entry
//! and wherever this number changes. If numbers are skipped, the tables are still numbered
//! consecutively. All versions of a user key are in one table.
//!
//! All sums only grow, so the number is an inclusive scan. [`Layout`] computes it as a stream, with
//! the next multiple of `T` as a threshold and without look-ahead. A GPU computes it with prefix
//! sums (`tests/layout.rs` does so with separate code, and compares). [`LayoutState`] is what
//! continuing after the last finished table requires: the next table's first user key, and `S` and
//! `w` there. It cannot be derived from the sizes of the earlier tables.
//!
//! Invariants: `S + w` never decreases. All sums are u64 and saturate (a job cannot hold 2^64
//! bytes).
//!
//! Threading: a layout has one owner and does no I/O.

use crate::key::ENTRY_OVERHEAD_BYTES;

/// The parameters that decide where tables begin, in raw bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutLimits {
    /// `T`: the target size of a table, a power of two.
    pub table_bytes: u64,
    /// `M`: the smallest weight of a span.
    pub min_span_bytes: u64,
    /// `D`: how many bytes of a span's entries do not count towards a new table.
    pub delay_bytes: u64,
}

impl LayoutLimits {
    /// The limits for tables of `table_bytes`: `M = T / 32`, and `D = T / 2`, or 0 without soft
    /// cuts.
    pub fn new(table_bytes: u64, has_soft_cuts: bool) -> LayoutLimits {
        LayoutLimits {
            table_bytes,
            min_span_bytes: table_bytes / 32,
            delay_bytes: if has_soft_cuts { table_bytes / 2 } else { 0 },
        }
    }
}

/// The state in which a layout is resumed, at the first entry of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutState {
    /// The first user key of the table.
    pub first_key: Vec<u8>,
    /// `S` at this key, in bytes.
    pub earlier_spans_bytes: u64,
    /// `w` at this key, in bytes.
    pub span_bytes: u64,
    /// The number of tables of the subjob before this one.
    pub table: u32,
}

/// The start of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableStart<'a> {
    /// The table's number in the subjob, from 0, without gaps.
    pub table: u32,
    /// The soft cut that its range deletes extend down to: the largest one at or below its first
    /// key, if the table starts that cut's span. If it is `None`, the left bound is the table's
    /// first user key (for table 0, the subjob's bound).
    pub left_cut: Option<&'a [u8]>,
}

/// Computes the layout of one subjob as a stream.
///
/// For every user key in order, call [`Layout::start_key`] once and then [`Layout::add`] for each
/// of its surviving versions.
#[derive(Clone, Debug)]
pub struct Layout<'a> {
    limits: LayoutLimits,
    /// The soft cuts of the subjob, strictly ascending.
    cuts: &'a [Vec<u8>],
    /// The number of cuts at or below the current key, which identifies the current span.
    span: usize,
    /// `S` of the current span.
    earlier_spans_bytes: u64,
    /// `w` at the next entry.
    span_bytes: u64,
    /// The next table begins at the first user key where `S + max(0, w - D)` is above this.
    last_bytes: u64,
    /// The number of tables that have begun.
    tables: u32,
    started: bool,
    /// Set when the layout is resumed: the next key begins a table whatever the sums are.
    at_table_start: bool,
}

impl<'a> Layout<'a> {
    /// The layout of a subjob from its first entry on. `cuts` are its soft cuts, strictly
    /// ascending. Cuts outside the subjob are allowed.
    pub fn new(limits: LayoutLimits, cuts: &'a [Vec<u8>]) -> Layout<'a> {
        debug_assert!(limits.table_bytes > 0);
        debug_assert!(cuts.windows(2).all(|w| w[0] < w[1]));
        Layout {
            limits,
            cuts,
            span: 0,
            earlier_spans_bytes: 0,
            span_bytes: 0,
            last_bytes: 0,
            tables: 0,
            started: false,
            at_table_start: false,
        }
    }

    /// The layout of the rest of a subjob, from the first entry of a table for which
    /// [`Layout::state`] was called.
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

    /// The state for resuming at `first_key`. Call it directly after [`Layout::start_key`] returned
    /// that a table starts there.
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

    /// Moves past the cuts that are at or below `key`.
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

    /// Starts the next user key, whose newest surviving version comes next. Returns the table that
    /// begins with it, if one does.
    #[inline]
    pub fn start_key(&mut self, key: &[u8]) -> Option<TableStart<'a>> {
        if let Some(cut) = self.cuts.get(self.span)
            && cut.as_slice() <= key
        {
            self.enter_span(key);
        }
        if self.started && !self.at_table_start && self.position_bytes() <= self.last_bytes {
            return None;
        }
        Some(self.start_table())
    }

    #[cold]
    fn start_table(&mut self) -> TableStart<'a> {
        let size = self.limits.table_bytes;
        let number = self.position_bytes() / size;
        // All sums saturate, so nothing is above the largest number.
        let next = number
            .checked_add(1)
            .and_then(|next| next.checked_mul(size));
        self.last_bytes = next.map_or(u64::MAX, |next| next - 1);
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

    /// Counts a surviving version of the current user key. `raw_bytes` comes from
    /// [`crate::key::raw_bytes`].
    #[inline]
    pub fn add(&mut self, raw_bytes: u64) {
        debug_assert!(raw_bytes >= ENTRY_OVERHEAD_BYTES);
        self.span_bytes = self.span_bytes.saturating_add(raw_bytes);
    }
}

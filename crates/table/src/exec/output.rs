//! The output side of a subjob: tables that begin where the layout says, each with its part of the
//! range deletes.
//!
//! A fragment belongs to every table whose range `[left bound, next left bound)` it touches, and is
//! clipped to that range. The outermost tables extend to the subjob's bounds. So the tables of a
//! run stay disjoint, including their range deletes.
//!
//! Threading: each subjob has one owner. The list of created objects is shared.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use siltstone_storage::planted;
use siltstone_storage::{Mutex, Runtime, StorageError, StorageErrorKind, WriteFile};

use super::part::{Part, Point};
use super::{ExecContext, ExecError};
use crate::assembly::{AssemblyBuffers, TableAssembler, TableSummary, WriterOptions};
use crate::error::Result as TableResult;
use crate::job::outcome::{Counters, OutputTable};
use crate::job::{Job, KeyBounds};
use crate::layout::{LayoutState, TableStart};
use crate::rangedel::{self, RangeDelete};
use crate::writer::{TableWriter, WriterBuffers};

/// The names of objects that a run has created.
pub(super) struct Created {
    names: Mutex<Vec<String>>,
    /// A sync failed. What it lost may not show when the table is read.
    sync_failed: AtomicBool,
}

impl Created {
    pub fn new(runtime: &Runtime) -> Created {
        Created {
            names: runtime.mutex(Vec::new()),
            sync_failed: AtomicBool::new(false),
        }
    }

    /// Notes that a sync failed, and reports it to the listener.
    pub fn note_failed_sync(&self, ctx: &ExecContext) {
        self.sync_failed.store(true, Ordering::Relaxed);
        ctx.note_failed_sync();
    }

    pub fn has_failed_sync(&self) -> bool {
        self.sync_failed.load(Ordering::Relaxed)
    }

    pub fn note(&self, name: &str) {
        self.names.lock().push(name.to_string());
    }

    /// Deletes all objects except those in `kept`, if the storage allows it. Nothing refers to
    /// them, and any that remain are orphans.
    pub fn delete_all_but(&self, ctx: &ExecContext, kept: &BTreeSet<&str>) {
        let names = std::mem::take(&mut *self.names.lock());
        let names = names.iter().map(String::as_str);
        delete_names(names.filter(|name| !kept.contains(name)), ctx);
    }
}

/// Deletes objects to which nothing refers. If the storage cannot be reached, each call waits for
/// its whole time limit, so the first call that fails in this way ends the loop. Objects that
/// remain can be recognised as orphans by their names (E4).
pub(super) fn delete_names<'a>(names: impl IntoIterator<Item = &'a str>, ctx: &ExecContext) {
    for name in names {
        let deleted = ctx.outputs.delete(ctx.epoch, name);
        if deleted.is_err_and(|error| error.kind == StorageErrorKind::Unreachable) {
            break;
        }
    }
}

/// Makes one table of a subjob: of entries, or of blocks that are finished already.
pub(super) trait BuildTable: Sized {
    /// The buffers of a finished table, for the next one.
    type Buffers: Default;

    /// Begins a table.
    fn begin(
        file: Arc<dyn WriteFile>,
        options: WriterOptions,
        buffers: Self::Buffers,
    ) -> TableResult<Self>;

    /// Ends the table, with these range deletes.
    fn end(
        self,
        left_bound: &[u8],
        fragments: Vec<RangeDelete>,
    ) -> TableResult<(TableSummary, Self::Buffers)>;

    /// Its memory, in bytes.
    fn buffer_bytes(&self) -> u64;
}

impl BuildTable for TableWriter {
    type Buffers = WriterBuffers;

    fn begin(
        file: Arc<dyn WriteFile>,
        options: WriterOptions,
        buffers: WriterBuffers,
    ) -> TableResult<TableWriter> {
        TableWriter::with_buffers(file, options, buffers)
    }

    fn end(
        mut self,
        left_bound: &[u8],
        fragments: Vec<RangeDelete>,
    ) -> TableResult<(TableSummary, WriterBuffers)> {
        self.set_left_bound(left_bound);
        self.set_range_deletes(fragments)?;
        self.finish_with_buffers()
    }

    fn buffer_bytes(&self) -> u64 {
        TableWriter::buffer_bytes(self)
    }
}

impl BuildTable for TableAssembler {
    type Buffers = AssemblyBuffers;

    fn begin(
        file: Arc<dyn WriteFile>,
        options: WriterOptions,
        buffers: AssemblyBuffers,
    ) -> TableResult<TableAssembler> {
        TableAssembler::with_buffers(file, options, buffers)
    }

    fn end(
        mut self,
        left_bound: &[u8],
        fragments: Vec<RangeDelete>,
    ) -> TableResult<(TableSummary, AssemblyBuffers)> {
        self.set_left_bound(left_bound);
        self.set_range_deletes(fragments)?;
        self.finish()
    }

    fn buffer_bytes(&self) -> u64 {
        TableAssembler::buffer_bytes(self)
    }
}

/// A table being written.
struct OpenTable<T> {
    table: T,
    file: Arc<dyn WriteFile>,
    name: String,
    left_bound: Vec<u8>,
}

/// The tables of a subjob.
pub(super) struct Output<'a, T: BuildTable = TableWriter> {
    job: &'a Job,
    bounds: KeyBounds,
    /// Surviving fragments that do not begin in a finished table.
    fragments: std::iter::Peekable<std::vec::IntoIter<RangeDelete>>,
    /// The remainders of the fragments that the end of the last table cut. They begin at that end.
    cut: Vec<RangeDelete>,
    ctx: &'a ExecContext,
    created: &'a Created,
    open: Option<OpenTable<T>>,
    buffers: T::Buffers,
    /// The finished tables, and where to continue.
    part: &'a mut Part,
    finished_bytes: u64,
}

impl<'a, T: BuildTable> Output<'a, T> {
    /// The tables of the subjob of `part`, which has these bounds and these fragments.
    pub fn new(
        job: &'a Job,
        bounds: KeyBounds,
        fragments: Vec<RangeDelete>,
        ctx: &'a ExecContext,
        created: &'a Created,
        part: &'a mut Part,
    ) -> Output<'a, T> {
        let mut output = Output {
            job,
            bounds,
            fragments: fragments.into_iter().peekable(),
            cut: Vec::new(),
            ctx,
            created,
            open: None,
            buffers: T::Buffers::default(),
            part,
            finished_bytes: 0,
        };
        // The next table does not get the fragments that finished tables have.
        if let Point::Table { left_bound, .. } = &output.part.next {
            let left_bound = left_bound.clone();
            output.take_fragments(Some(&left_bound));
        }
        output
    }

    /// Finishes the previous table and begins one at the layout's first key. `counters` are the
    /// counts of entries read and dropped before it.
    #[cold]
    pub fn start_table(
        &mut self,
        start: TableStart<'_>,
        layout: LayoutState,
        counters: Counters,
    ) -> Result<(), ExecError> {
        let left_bound = match (start.table, start.left_cut) {
            (0, _) => self.bounds.start.clone(),
            (_, Some(cut)) => cut.to_vec(),
            (_, None) => layout.first_key.clone(),
        };
        self.finish_table(Some(&left_bound))?;
        if start.table > 0 {
            self.part.next = Point::Table {
                layout,
                left_bound: left_bound.clone(),
                counters,
            };
            self.ctx.note_finished(self.part);
        }
        self.create(start.table, left_bound)
    }

    fn create(&mut self, table: u32, left_bound: Vec<u8>) -> Result<(), ExecError> {
        let name = self.job.table_name(self.part.subjob, table);
        let created = self.ctx.outputs.create(self.ctx.epoch, &name);
        // A failed call may have created the object, so its name is noted in this case too. If the
        // name was taken, the object belongs to somebody else and may be a table that the store
        // refers to. It must not be deleted with the outputs of this run.
        let is_taken = |error: &StorageError| error.kind == StorageErrorKind::AlreadyExists;
        if !created.as_ref().is_err_and(is_taken) || planted!(TakenNameIsDeleted) {
            self.created.note(&name);
        }
        let file = created?;
        let options = WriterOptions {
            block_size_bytes: self.job.limits.block_bytes,
            codec: self.job.format.codec,
            level: self.job.format.level,
            bits_per_key: self.job.format.bits_per_key,
            keyspace: Some(self.job.keyspace),
            ..WriterOptions::default()
        };
        let buffers = std::mem::take(&mut self.buffers);
        self.open = Some(OpenTable {
            table: T::begin(file.clone(), options, buffers)?,
            file,
            name,
            left_bound,
        });
        Ok(())
    }

    /// The open table, if there is one.
    pub fn table(&mut self) -> Option<&mut T> {
        self.open.as_mut().map(|open| &mut open.table)
    }

    /// The number of bytes given to the storage so far, including those of the open table.
    pub fn bytes_written(&self) -> u64 {
        let open = self.open.as_ref().map_or(0, |open| open.file.position());
        self.finished_bytes + open
    }

    /// The memory of the open table, in bytes.
    pub fn buffer_bytes(&self) -> u64 {
        self.open.as_ref().map_or(0, |o| o.table.buffer_bytes())
    }

    /// Takes the parts of fragments that lie before `end`.
    fn take_fragments(&mut self, end: Option<&[u8]>) -> Vec<RangeDelete> {
        let mut taken = std::mem::take(&mut self.cut);
        while let Some(fragment) = self
            .fragments
            .next_if(|f| end.is_none_or(|end| f.start.as_slice() < end))
        {
            taken.push(fragment);
        }
        // Remainders of cut fragments begin at the table's left bound, and other fragments may
        // begin there too.
        rangedel::sort(&mut taken);
        let Some(end) = end else { return taken };
        for fragment in taken.iter_mut().filter(|f| f.end.as_slice() > end) {
            self.cut.push(RangeDelete {
                start: end.to_vec(),
                ..fragment.clone()
            });
            fragment.end = end.to_vec();
        }
        taken
    }

    /// Finishes the current table. Its range ends at `right_bound`, or with the subjob if that is
    /// `None`.
    fn finish_table(&mut self, right_bound: Option<&[u8]>) -> Result<(), ExecError> {
        let Some(open) = self.open.take() else {
            return Ok(());
        };
        let right_bound = match right_bound {
            Some(bound) => Some(bound.to_vec()),
            None => self.bounds.end.clone(),
        };
        let fragments = self.take_fragments(right_bound.as_deref());
        let (summary, buffers) = open.table.end(&open.left_bound, fragments)?;
        self.buffers = buffers;
        open.file
            .sync()
            .inspect_err(|_| self.created.note_failed_sync(self.ctx))?;
        let p = summary.properties;
        let keys = p.smallest_key.clone().zip(p.largest_key.clone());
        let deletes = summary
            .range_delete_start
            .as_deref()
            .zip(summary.range_delete_end.as_deref());
        let Some(bounds) = OutputTable::bounds_of(keys.as_ref(), deletes) else {
            return Err(crate::TableError::Misuse(
                "a table without entries and range deletes was begun",
            )
            .into());
        };
        self.ctx
            .progress
            .bytes_out
            .fetch_add(summary.file_bytes, Ordering::Relaxed);
        self.ctx.progress.tables.fetch_add(1, Ordering::Relaxed);
        self.finished_bytes += summary.file_bytes;
        self.part.tables.push(OutputTable {
            name: open.name,
            subjob: self.part.subjob,
            raw_bytes: p.raw_bytes(),
            file_bytes: summary.file_bytes,
            entries: p.entries,
            puts: p.puts,
            deletes: p.deletes,
            fragments: p.range_deletes,
            keys,
            left_bound: open.left_bound,
            right_bound,
            bounds,
            min_seq: p.smallest_seq,
            max_seq: p.largest_seq,
            digest: summary.digest,
        });
        Ok(())
    }

    /// Finishes the last table, and completes the part. If there are no entries, makes a table for
    /// the fragments alone. `counters` are the counts of what was read and dropped. Returns them
    /// with those of what was written, and the number of bytes that were written here.
    pub fn finish(mut self, mut counters: Counters) -> Result<(Counters, u64), ExecError> {
        if self.open.is_none() && self.part.tables.is_empty() && self.fragments.peek().is_some() {
            self.create(0, self.bounds.start.clone())?;
        }
        self.finish_table(None)?;
        for table in &self.part.tables {
            counters.entries_written += table.entries;
            counters.bytes_written += table.file_bytes;
        }
        self.part.next = Point::End(counters);
        self.ctx.note_finished(self.part);
        Ok((counters, self.finished_bytes))
    }
}

impl Output<'_, TableWriter> {
    /// Adds a surviving entry to the current table.
    #[inline(always)]
    pub fn add(&mut self, key: &[u8], trailer: u64, value: &[u8]) -> Result<(), ExecError> {
        let Some(open) = &mut self.open else {
            return Err(crate::TableError::Misuse("an entry came before its table").into());
        };
        open.table.add_inlined(key, trailer, value)?;
        Ok(())
    }
}

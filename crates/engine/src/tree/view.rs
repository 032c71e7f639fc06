//! Views: the data that reads of a keyspace use, as one immutable value.
//!
//! A [`KeyspaceView`] is the list of sources, newest first (memtables and level-0 runs, which have
//! disjoint ranges of sequence numbers), and then levels 1 to 6. [`KeyspaceCore`] has the present
//! view, which a reader pins with one atomic load.
//!
//! Invariants (RFC 1, section 5):
//! - **V1** Sources are ordered from the newest to the oldest, and their ranges are disjoint.
//! - **V2** An installed source takes the slot of the sources that it replaces. A view is always
//!   rebuilt from the sources that are unsettled now and the version that the manifest has, ordered
//!   by their ranges, so a run cannot get into another slot.
//!
//! A view belongs to a keyspace and not to the store: a read concerns one keyspace, a snapshot is
//! only a number, and a job that dropped an entry from a view knew the snapshot (V6). So rotating
//! one of a thousand keyspaces copies one list.
//!
//! Threading: views are immutable. Replacing one takes the keyspace's lock `change`, under which no
//! I/O happens.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use arc_swap::{ArcSwap, ArcSwapOption};
use siltstone_storage::{Instant, Mutex, Runtime};
use siltstone_table::exec::Progress;

use crate::formats::log::Position;
use crate::formats::version::{KeyspaceVersion, Level, Run, SeqRange};
use crate::tree::gaps::Gaps;
use crate::tree::memtable::{ArenaPool, Memtable};
use crate::tree::pending::pending_bytes;
use crate::tree::pick::depth;
use crate::tree::pinning::{FirstPosition, NO_POSITION, Present};
use crate::tree::settings::Settings;
use crate::tree::tables::{TableHandle, TableSet};
use crate::tree::watch::Watch;
use crate::types::error::{Error, Result};
use crate::types::limits::KeyspaceId;
use crate::types::pressure::{self, Limits, Load};

/// The `hi` of a source that still takes writes.
pub(crate) const OPEN: u64 = u64::MAX;

/// A flush that runs.
struct RunningFlush {
    begun: Instant,
    progress: Arc<Progress>,
}

/// A memtable in its slot.
pub(crate) struct MemSource {
    /// Identifies the memtable while the store is open.
    pub(crate) id: u64,
    pub(crate) mem: Arc<Memtable>,
    /// The number before its first number.
    pub(crate) lo: u64,
    hi: AtomicU64,
    /// Where the log ended before the memtable's first record. The leader sets it before it
    /// appends.
    first_position: FirstPosition,
    /// The end of its last record in the log.
    last: AtomicU64,
    /// A flush of this memtable is running. This is set and cleared under the lock of the schedule.
    pub(crate) flushing: AtomicBool,
    /// What its flush has done so far, while one runs.
    flush: ArcSwapOption<RunningFlush>,
    /// The bytes beyond which its flush has progressed, as [`MemSource::follow_flush`] found last.
    flushed_bytes: AtomicU64,
    /// The number of its flushes in a row whose tables were rejected.
    pub(crate) rejections: AtomicU32,
    /// A flush of it to the second location of tables has failed, so it goes to location 0.
    pub(crate) stays_at_0: AtomicBool,
    /// Its values stay in memory, because they could not be left in the log.
    pub(crate) keeps_values: AtomicBool,
    /// This memtable must not be flushed: its data was replayed and waits for room, or a test holds
    /// it back.
    pub(crate) held: AtomicBool,
}

impl MemSource {
    pub(crate) fn new(id: u64, mem: Arc<Memtable>, lo: u64) -> Arc<Self> {
        Arc::new(MemSource {
            id,
            mem,
            lo,
            hi: AtomicU64::new(OPEN),
            first_position: FirstPosition::new(),
            last: AtomicU64::new(0),
            flushing: AtomicBool::new(false),
            flush: ArcSwapOption::empty(),
            flushed_bytes: AtomicU64::new(0),
            rejections: AtomicU32::new(0),
            stays_at_0: AtomicBool::new(false),
            keeps_values: AtomicBool::new(false),
            held: AtomicBool::new(false),
        })
    }

    /// The same memtable in the same slot, with some of its values in the log: `mem` has the same
    /// entries. This one is sealed, and no flush of it runs.
    pub(crate) fn log_backed(&self, mem: Memtable) -> Arc<Self> {
        let copied = MemSource::new(self.id, Arc::new(mem), self.lo);
        copied.seal(self.hi.load(Ordering::Acquire));
        if let Some(first) = self.first_position() {
            copied.hold_log(first);
        }
        copied.set_last_position(self.last_position());
        let rejections = self.rejections.load(Ordering::Acquire);
        copied.rejections.store(rejections, Ordering::Release);
        let held = self.held.load(Ordering::Acquire);
        copied.held.store(held, Ordering::Release);
        copied
    }

    /// Its slot. `hi` is [`OPEN`] while the memtable is active.
    pub(crate) fn seqs(&self) -> SeqRange {
        SeqRange::new(self.lo, self.hi.load(Ordering::Acquire))
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.hi.load(Ordering::Acquire) != OPEN
    }

    pub(crate) fn seal(&self, hi: u64) {
        debug_assert!(!self.is_sealed());
        self.hi.store(hi, Ordering::Release);
    }

    /// A flush of the memtable begins.
    pub(crate) fn begin_flush(&self, begun: Instant, progress: &Arc<Progress>) {
        let progress = progress.clone();
        self.flushed_bytes.store(0, Ordering::Relaxed);
        self.flush
            .store(Some(Arc::new(RunningFlush { begun, progress })));
    }

    /// The flush has failed.
    pub(crate) fn end_flush(&self) {
        self.flush.store(None);
        self.flushed_bytes.store(0, Ordering::Relaxed);
    }

    /// Brings [`MemSource::flushed_bytes`] up to date. `bytes_per_s` is how fast the slowest of the
    /// last flushes was, if one has ended.
    pub(crate) fn follow_flush(&self, now: Instant, bytes_per_s: Option<u64>) {
        let Some(flush) = &*self.flush.load() else {
            return;
        };
        let used = u128::from(self.mem.used_bytes());
        let read = u128::from(flush.progress.bytes_in.load(Ordering::Relaxed));
        let read = used * read / u128::from(self.mem.raw_bytes().max(1));
        // What was read runs ahead of the disk: the table has to be written and synced. An eighth
        // is kept for the end of a flush that takes longer than usual, so that writers go on then.
        let ns = now.since(flush.begun).as_nanos();
        let usual = bytes_per_s.map(|rate| u128::from(rate) * ns / 1_000_000_000 * 7 / 8);
        let flushed = usual.unwrap_or(read).min(read).min(used * 99 / 100);
        self.flushed_bytes.store(flushed as u64, Ordering::Relaxed);
    }

    /// The bytes of the memtable that its flush has done, for the admission of writers. They are
    /// freed when the flush is installed.
    pub(crate) fn flushed_bytes(&self) -> u64 {
        self.flushed_bytes.load(Ordering::Relaxed)
    }

    /// Holds the log, because the leader is about to append a record for this memtable at `end`,
    /// where the log ends now, or after it.
    pub(crate) fn hold_log(&self, end: Position) {
        self.first_position.hold(end.to_u64());
    }

    /// Releases the log if the memtable has no entries. Only the leader calls this, after an append
    /// failed and wrote nothing.
    pub(crate) fn release_log_if_empty(&self) {
        if self.mem.is_empty() {
            self.first_position.release();
        }
    }

    /// The first position of the log that the memtable needs. `None` if it does not need the log.
    pub(crate) fn first_position(&self) -> Option<Position> {
        Some(self.first_position.position())
            .filter(|word| *word != NO_POSITION)
            .map(Position::from_u64)
    }

    /// Notes that the leader appended a record that ends here.
    pub(crate) fn set_last_position(&self, position: Position) {
        self.last.store(position.to_u64(), Ordering::Release);
    }

    /// The end of its last record in the log. It does not change once the memtable is sealed.
    pub(crate) fn last_position(&self) -> Position {
        Position::from_u64(self.last.load(Ordering::Acquire))
    }
}

/// A sorted set of tables, with the handle of each table at the same index.
pub(crate) struct LevelView {
    pub(crate) level: Level,
    pub(crate) handles: Vec<Arc<TableHandle>>,
    /// Whether any table has range deletes.
    pub(crate) has_range_deletes: bool,
}

impl LevelView {
    /// `upper` says whether this is level 0 or 1, whose tables stay open.
    fn new(level: &Level, tables: &TableSet, upper: bool) -> Arc<LevelView> {
        let handle = |meta| {
            let handle = tables.handle(meta);
            handle.set_upper(upper);
            handle
        };
        Arc::new(LevelView {
            handles: level.tables().iter().map(handle).collect(),
            has_range_deletes: level.tables().iter().any(|t| t.range_deletes > 0),
            level: level.clone(),
        })
    }
}

/// A level-0 run in its slot.
pub(crate) struct RunView {
    pub(crate) seqs: SeqRange,
    pub(crate) tables: Arc<LevelView>,
    /// The run belongs to an ingest whose edit is not installed yet.
    pub(crate) pending: bool,
}

impl RunView {
    pub(crate) fn new(run: &Run, tables: &TableSet, pending: bool) -> Arc<RunView> {
        Arc::new(RunView {
            seqs: run.seqs,
            tables: LevelView::new(&run.tables, tables, true),
            pending,
        })
    }
}

/// One source of a view.
#[derive(Clone)]
pub(crate) enum Source {
    Memtable(Arc<MemSource>),
    Run(Arc<RunView>),
}

impl Source {
    pub(crate) fn seqs(&self) -> SeqRange {
        match self {
            Source::Memtable(m) => m.seqs(),
            Source::Run(r) => r.seqs,
        }
    }

    /// Whether the manifest does not have the source yet.
    pub(crate) fn is_unsettled(&self) -> bool {
        match self {
            Source::Memtable(_) => true,
            Source::Run(r) => r.pending,
        }
    }
}

/// The level-0 runs among these sources.
fn runs_of(sources: &[Source]) -> impl Iterator<Item = &Arc<RunView>> {
    sources.iter().filter_map(|source| match source {
        Source::Run(run) => Some(run),
        Source::Memtable(_) => None,
    })
}

/// See the module.
pub(crate) struct KeyspaceView {
    /// Newest first. The first one is the active memtable.
    pub(crate) sources: Vec<Source>,
    /// Levels 1 to 6, empty ones included.
    pub(crate) levels: Vec<Arc<LevelView>>,
    /// The tables that the manifest has.
    pub(crate) version: Arc<KeyspaceVersion>,
    pub(crate) sealed_count: usize,
    /// Of the sealed memtables, those whose values are in the log.
    pub(crate) log_backed_count: usize,
    /// The bytes that these take in memory.
    pub(crate) log_backed_bytes: u64,
    pub(crate) run_count: usize,
    /// The most runs of level 0 that have a table over one key.
    pub(crate) l0_depth: usize,
}

impl KeyspaceView {
    /// The view of these unsettled sources and of the version. Levels that are equal in `old` are
    /// shared with it.
    pub(crate) fn build(
        unsettled: Vec<Source>,
        version: Arc<KeyspaceVersion>,
        tables: &TableSet,
        old: Option<&KeyspaceView>,
    ) -> Arc<Self> {
        let mut sources = unsettled;
        let old_runs = old.map(|o| o.version.runs()).unwrap_or_default();
        sources.extend(version.runs().iter().map(|run| {
            // Runs and sources are in the order of their numbers, newest first.
            let lo = run.seqs.lo;
            let at = old_runs.partition_point(|r| r.seqs.lo > lo);
            let is_same = old_runs.get(at).is_some_and(|r| Arc::ptr_eq(r, run));
            let shared = old.filter(|_| is_same).and_then(|o| {
                let from = o.sources.partition_point(|s| s.seqs().lo > lo);
                let mut near = o.sources[from..].iter().take_while(|s| s.seqs().lo == lo);
                near.find(|s| matches!(s, Source::Run(r) if !r.pending && r.seqs == run.seqs))
            });
            shared
                .cloned()
                .unwrap_or_else(|| Source::Run(RunView::new(run, tables, false)))
        }));
        sources.sort_by_key(|s| std::cmp::Reverse(s.seqs().lo));
        debug_assert!(
            sources.windows(2).all(|w| w[0].seqs().lo >= w[1].seqs().hi),
            "sources overlap"
        );
        let levels = version
            .levels()
            .enumerate()
            .map(|(i, (number, level))| match old {
                Some(old) if Arc::ptr_eq(old.version.level(number), level) => old.levels[i].clone(),
                _ => LevelView::new(level, tables, number == 1),
            })
            .collect();
        let run_count = sources
            .iter()
            .filter(|s| matches!(s, Source::Run(_)))
            .count();
        let sealed_count = (sources.len() - run_count).saturating_sub(1);
        let (mut log_backed_count, mut log_backed_bytes) = (0, 0);
        for source in &sources {
            if let Source::Memtable(m) = source
                && m.mem.is_log_backed()
            {
                log_backed_count += 1;
                log_backed_bytes += m.mem.used_bytes();
            }
        }
        let same_runs = old.filter(|old| {
            let (now, before) = (runs_of(&sources), runs_of(&old.sources));
            old.run_count == run_count && now.zip(before).all(|(a, b)| Arc::ptr_eq(a, b))
        });
        let l0_depth = match same_runs {
            Some(old) => old.l0_depth,
            None => depth(runs_of(&sources).map(|run| &run.tables.level)),
        };
        Arc::new(KeyspaceView {
            sources,
            levels,
            version,
            sealed_count,
            log_backed_count,
            log_backed_bytes,
            run_count,
            l0_depth,
        })
    }

    pub(crate) fn active(&self) -> &Arc<MemSource> {
        match &self.sources[0] {
            Source::Memtable(m) => m,
            Source::Run(_) => unreachable!("the first source of a view is its active memtable"),
        }
    }

    /// Bytes that lookups have read in vain, by table. Left out are tables of which none were read,
    /// tables below level 0 of which less was read than a compaction costs at least, and the
    /// deepest level, where lookups end.
    pub(crate) fn seek_bytes(&self) -> BTreeMap<u64, u64> {
        let is_filled = |level: &Arc<LevelView>| !level.handles.is_empty();
        let deepest = self.levels.iter().rposition(is_filled);
        let above = &self.levels[..deepest.unwrap_or(0)];
        let runs = self.sources.iter().filter_map(|source| match source {
            Source::Run(run) => Some(&run.tables.handles),
            Source::Memtable(_) => None,
        });
        let count_of = |handle: &Arc<TableHandle>, least: fn(&TableHandle) -> u64| {
            let bytes = handle.seek_bytes();
            (bytes > 0 && bytes >= least(handle)).then_some((handle.meta.id, bytes))
        };
        let in_runs = runs.flatten().filter_map(|h| count_of(h, |_| 1));
        let in_levels = above.iter().flat_map(|level| &level.handles);
        let least = |handle: &TableHandle| handle.meta.file_bytes.saturating_mul(2);
        in_runs
            .chain(in_levels.filter_map(|h| count_of(h, least)))
            .collect()
    }

    /// Sealed memtables, newest first.
    pub(crate) fn sealed(&self) -> impl DoubleEndedIterator<Item = &Arc<MemSource>> {
        self.sources[1..].iter().filter_map(|s| match s {
            Source::Memtable(m) => Some(m),
            Source::Run(_) => None,
        })
    }

    pub(crate) fn unsettled(&self) -> Vec<Source> {
        self.sources
            .iter()
            .filter(|s| s.is_unsettled())
            .cloned()
            .collect()
    }

    /// All sorted sets of tables with the numbers of their levels: every run of level 0, and then
    /// levels 1 to 6.
    pub(crate) fn level_views(&self) -> impl Iterator<Item = (usize, &Arc<LevelView>)> {
        let runs = self.sources.iter().filter_map(|s| match s {
            Source::Run(r) => Some((0, &r.tables)),
            Source::Memtable(_) => None,
        });
        runs.chain(self.levels.iter().enumerate().map(|(i, l)| (i + 1, l)))
    }
}

/// A keyspace can be read and written.
const LIVE: u8 = 0;
/// The keyspace was dropped.
const DROPPED: u8 = 1;
/// The keyspace's store was closed.
const CLOSED: u8 = 2;

/// How large the memtables of a keyspace are, if the policy `adoc` has changed that.
pub(crate) struct TunedMemtables {
    /// They have `memtable_bytes` times two to this power.
    pub(crate) shift: i8,
    /// Their memory.
    pub(crate) arenas: ArenaPool,
}

/// A keyspace of an open store. It lives as long as a handle on it exists.
pub(crate) struct KeyspaceCore {
    pub(crate) id: KeyspaceId,
    pub(crate) name: String,
    /// [`LIVE`], [`DROPPED`] or [`CLOSED`].
    state: AtomicU8,
    /// Whether the manifest has it. Edits that change the keyspace must come after the edit that
    /// creates it (RFC 1, section 7).
    created: AtomicBool,
    view: ArcSwap<KeyspaceView>,
    settings: ArcSwap<Settings>,
    /// What [`pressure::is_calm`] says of the present view and settings.
    calm: AtomicBool,
    /// Bytes that compactions have to read until no level is due.
    pending_bytes: AtomicU64,
    /// Free bytes where tables are, if they may not suffice for compactions; else the maximum.
    free_bytes: AtomicU64,
    /// Bytes of the largest compaction that may be due.
    job_bytes: AtomicU64,
    /// The writers that wait because of its load.
    waiting: AtomicUsize,
    /// Callers wait for the flushes of memtables up to this id.
    wanted_flush: AtomicU64,
    /// `None` except under the policy `adoc`.
    tuned: ArcSwapOption<TunedMemtables>,
    /// What the detector says of it.
    pub(crate) watch: Watch,
    /// Intervals in which cursors found no live key.
    pub(crate) gaps: Arc<Gaps>,
    /// Held while the view is replaced, and never over I/O.
    pub(crate) change: Mutex<()>,
}

impl KeyspaceCore {
    pub(crate) fn new(
        runtime: &Runtime,
        id: KeyspaceId,
        name: &str,
        view: Arc<KeyspaceView>,
        settings: Arc<Settings>,
    ) -> Arc<Self> {
        let core = KeyspaceCore {
            id,
            name: name.to_string(),
            state: AtomicU8::new(LIVE),
            created: AtomicBool::new(false),
            view: ArcSwap::new(view),
            settings: ArcSwap::new(settings),
            calm: AtomicBool::new(false),
            pending_bytes: AtomicU64::new(0),
            free_bytes: AtomicU64::new(u64::MAX),
            job_bytes: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            wanted_flush: AtomicU64::new(0),
            tuned: ArcSwapOption::empty(),
            watch: Watch::new(runtime),
            gaps: Arc::new(Gaps::new(runtime)),
            change: runtime.mutex(()),
        };
        core.renew_debt();
        core.renew_calm();
        Arc::new(core)
    }

    /// Whether no writer needs to be slowed down or stopped, however much the log holds. If false,
    /// [`pressure::decide`] decides.
    #[inline]
    pub(crate) fn is_calm(&self) -> bool {
        self.calm.load(Ordering::Relaxed)
    }

    /// Computes [`KeyspaceCore::is_calm`] anew. The caller holds `change`, or nobody else knows the
    /// keyspace yet.
    fn renew_calm(&self) {
        let (view, settings) = (self.view.load(), self.settings.load());
        let load = Load {
            sealed_memtable_count: view.sealed_count as u64,
            l0_depth: view.l0_depth as u64,
            pending_bytes: self.pending_bytes(),
            ..Load::default()
        };
        let has_space = self.free_bytes.load(Ordering::Relaxed) == u64::MAX;
        let calm = has_space && pressure::is_calm(&load, &settings.limits);
        self.calm.store(calm, Ordering::Relaxed);
    }

    /// Computes [`KeyspaceCore::pending_bytes`] anew. The caller is as for
    /// [`KeyspaceCore::renew_calm`].
    fn renew_debt(&self) {
        let (view, settings) = (self.view.load(), self.settings.load());
        let pending = pending_bytes(&view.version, &settings.pick);
        self.pending_bytes.store(pending, Ordering::Relaxed);
        let all = |bytes: u64, level: &Level| bytes.saturating_add(level.file_bytes());
        let runs = view.version.runs().iter().map(|run| &run.tables);
        let levels = view.version.levels().map(|(_, level)| &**level);
        let bytes = runs.chain(levels).fold(0, all);
        let level0 = view
            .version
            .runs()
            .iter()
            .map(|run| &run.tables)
            .fold(0, all);
        let job = settings.pick.max_job_bytes.max(level0 / 8).min(bytes);
        self.job_bytes.store(job, Ordering::Relaxed);
    }

    /// An estimate of the bytes that compactions have to read until no level is due.
    #[inline]
    pub(crate) fn pending_bytes(&self) -> u64 {
        self.pending_bytes.load(Ordering::Relaxed)
    }

    /// Notes the free bytes that count for writers. They count only if they are fewer than three
    /// times the largest compaction.
    pub(crate) fn set_free_bytes(&self, free: Option<u64>) {
        let free = free.filter(|free| self.is_short_of(*free));
        let free = free.unwrap_or(u64::MAX);
        if self.free_bytes.load(Ordering::Relaxed) != free {
            let _change = self.change.lock();
            self.free_bytes.store(free, Ordering::Relaxed);
            self.renew_calm();
        }
    }

    /// Whether these free bytes may not suffice for its compactions.
    pub(crate) fn is_short_of(&self, free: u64) -> bool {
        free < self.job_bytes.load(Ordering::Relaxed).saturating_mul(3)
    }

    /// Free bytes where tables are, if they may not suffice for compactions, and the bytes of the
    /// largest compaction.
    #[inline]
    pub(crate) fn short_space(&self) -> (Option<u64>, u64) {
        let free = self.free_bytes.load(Ordering::Relaxed);
        let free = Some(free).filter(|free| *free != u64::MAX);
        (free, self.job_bytes.load(Ordering::Relaxed))
    }

    /// The number of writers that wait because of its load.
    #[inline]
    pub(crate) fn waiting_count(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Somebody waits until the sealed memtables up to this id are flushed.
    pub(crate) fn want_flush(&self, id: u64) {
        self.wanted_flush.fetch_max(id, Ordering::AcqRel);
    }

    /// The largest id that was passed to [`KeyspaceCore::want_flush`]. The flushes of memtables up to
    /// this id are not deferred.
    pub(crate) fn wanted_flush(&self) -> u64 {
        self.wanted_flush.load(Ordering::Acquire)
    }

    /// Counts a writer that waits, until the result is dropped.
    pub(crate) fn count_waiting(&self) -> impl Drop + '_ {
        struct Counted<'a>(&'a AtomicUsize);
        impl Drop for Counted<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Counted(&self.waiting)
    }

    /// Sets how large the memtables are that will be made. `None`: as the settings say.
    pub(crate) fn set_tuned_memtables(&self, tuned: Option<TunedMemtables>) {
        self.tuned.store(tuned.map(Arc::new));
    }

    /// See [`TunedMemtables::shift`].
    pub(crate) fn memtable_shift(&self) -> i8 {
        self.tuned.load().as_ref().map_or(0, |tuned| tuned.shift)
    }

    /// The pool of the memory of the memtables that will be made.
    pub(crate) fn arenas(&self) -> ArenaPool {
        match &*self.tuned.load() {
            Some(tuned) => tuned.arenas.clone(),
            None => self.settings.load().arenas.clone(),
        }
    }

    /// The limits of its writers.
    pub(crate) fn limits(&self) -> Limits {
        let limits = self.settings.load().limits;
        match &*self.tuned.load() {
            Some(tuned) => Limits {
                memtable_bytes: tuned.arenas.arena_bytes() as u64,
                ..limits
            },
            None => limits,
        }
    }

    /// Brings what the flushes of sealed memtables have done up to date.
    pub(crate) fn follow_flushes(&self, now: Instant, bytes_per_s: Option<u64>) {
        for source in self.view.load().sealed() {
            source.follow_flush(now, bytes_per_s);
        }
    }

    /// The present view.
    #[inline]
    pub(crate) fn view(&self) -> arc_swap::Guard<Arc<KeyspaceView>> {
        self.view.load()
    }

    /// Its settings, for a caller that drops them before it calls anything that may wait.
    #[inline]
    pub(crate) fn settings(&self) -> arc_swap::Guard<Arc<Settings>> {
        self.settings.load()
    }

    /// Its settings, to keep. A caller that needs several values loads them once.
    pub(crate) fn load_settings(&self) -> Arc<Settings> {
        self.settings.load_full()
    }

    pub(crate) fn set_settings(&self, settings: Arc<Settings>) {
        let _change = self.change.lock();
        self.settings.store(settings);
        self.renew_debt();
        self.renew_calm();
    }

    /// The present view, to keep.
    pub(crate) fn pin(&self) -> Arc<KeyspaceView> {
        self.view.load_full()
    }

    /// Replaces the view by the one that `f` makes from the present one.
    pub(crate) fn replace_view(&self, f: impl FnOnce(&Arc<KeyspaceView>) -> Arc<KeyspaceView>) {
        let _change = self.change.lock();
        let before = self.view.load_full();
        let next = f(&before);
        let has_same_tables = Arc::ptr_eq(&before.version, &next.version);
        self.view.store(next);
        if !has_same_tables {
            self.renew_debt();
        }
        self.renew_calm();
    }

    pub(crate) fn is_dropped(&self) -> bool {
        self.state.load(Ordering::Acquire) == DROPPED
    }

    pub(crate) fn is_created(&self) -> bool {
        self.created.load(Ordering::Acquire)
    }

    pub(crate) fn set_created(&self) {
        self.created.store(true, Ordering::Release);
    }

    pub(crate) fn set_dropped(&self) {
        self.state.store(DROPPED, Ordering::Release);
    }

    /// Takes the memtables out of the view, because the store was closed and all its tasks have
    /// ended. The log has their entries, and a read that has pinned them can finish.
    pub(crate) fn close(&self, tables: &TableSet) {
        // The mark comes before the view, as for a drop: a read that pins the new view finds it.
        let closed = self
            .state
            .compare_exchange(LIVE, CLOSED, Ordering::AcqRel, Ordering::Acquire);
        let view = self.pin();
        let is_empty = view.sealed_count == 0 && view.active().mem.is_empty();
        if closed.is_err() || is_empty {
            return;
        }
        // If there is no memory for an empty memtable, the old ones stay until the last handle is
        // dropped.
        let Ok(mem) = crate::tree::settings::first_memtable(&self.settings()) else {
            return;
        };
        self.replace_view(|view| {
            let runs = |source: &Source| matches!(source, Source::Run(_));
            let mut unsettled = view.unsettled();
            unsettled.retain(runs);
            let active = view.active();
            let empty = MemSource::new(active.id, mem, active.lo);
            unsettled.push(Source::Memtable(empty));
            KeyspaceView::build(unsettled, view.version.clone(), tables, Some(view))
        });
    }

    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        match self.state.load(Ordering::Acquire) {
            LIVE => Ok(()),
            state => Err(self.refusal(state)),
        }
    }

    #[cold]
    fn refusal(&self, state: u8) -> Error {
        match state {
            CLOSED => crate::types::error::closed(),
            _ => crate::types::error::dropped_keyspace(&format!("`{}`", self.name)),
        }
    }
}

/// The present view, for as long as a read takes.
impl Present for KeyspaceCore {
    type View = arc_swap::Guard<Arc<KeyspaceView>>;

    #[inline]
    fn view(&self) -> Self::View {
        self.view.load()
    }

    #[inline]
    fn is_present(&self, view: &Self::View) -> bool {
        Arc::ptr_eq(&self.view.load(), view)
    }
}

/// The present view, to keep.
pub(crate) struct Kept<'a>(pub(crate) &'a KeyspaceCore);

impl Present for Kept<'_> {
    type View = Arc<KeyspaceView>;

    fn view(&self) -> Self::View {
        self.0.pin()
    }

    fn is_present(&self, view: &Self::View) -> bool {
        Arc::ptr_eq(&self.0.view.load(), view)
    }
}

//! A subjob on the GPU: pieces, one after the other, and the tables that they make.
//!
//! A piece is as large as the memory of its lane allows. How much memory it takes is known only
//! while it is computed, so a piece that does not fit is begun again with half of its bytes:
//! nothing is written before its blocks are complete. The last table of a piece is not finished
//! unless the piece is the last one, because the next entries may belong to it: the next piece
//! begins with that table's first key.
//!
//! Threading: one owner. The lane of a finished piece may be given to the task that writes it.

use std::sync::atomic::Ordering;

use siltstone_table::compress::Codec;
use siltstone_table::exec::plan::{PlannedInput, SubjobPlan, check_block};
use siltstone_table::exec::{ExecContext, ExecError};
use siltstone_table::job::outcome::Counters;
use siltstone_table::job::{DropRules, Job, KeyBounds};
use siltstone_table::layout::LayoutState;

use crate::error::{GpuError, Result, check};
use crate::host::{self, HostKeys};
use crate::kernels::{FindCutItem, Rule};
use crate::lane::Work;
use crate::layout::{self, Tables};
use crate::pack::{self, Packed};
use crate::piece::{PieceInput, inputs_of};
use crate::retain::{self, Counts, Kept, Verdicts};
use crate::sort::{self, Sorted};
use crate::strategy::{HostUnits, Strategy, Transfer};
use crate::unpack::{self, Unpacked};
use crate::upload::{self, How};

/// A first piece has at most this share of the lane's memory as uncompressed bytes of inputs. The
/// other memory is for arrays of entries, keys and outputs.
const MEMORY_SHARE: u64 = 12;

/// What is checked by the host, beside what always is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checks {
    /// The checksums of all output blocks are computed again on the way to the file.
    pub outputs: bool,
    /// And those of all input blocks on the way to the GPU.
    pub inputs: bool,
}

/// How a job is computed, apart from what it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    pub strategy: Strategy,
    pub transfer: Transfer,
    /// Up to this many runs are sorted by rank.
    pub rank_runs_max: usize,
}

/// A subjob in work. See the module.
pub(crate) struct SubjobRun<'a> {
    job: &'a Job,
    plan: SubjobPlan<'a>,
    /// The lane in which the next piece is computed.
    pub work: Work,
    checks: Checks,
    tuning: Tuning,
    /// The number of pieces that were finished.
    pub pieces: u64,
    /// The number of tables in them.
    tables: u32,
    /// The bytes of inputs that progress has not counted yet.
    uncounted_bytes: u64,
    /// Where the next piece begins, and the state of the layout there, if the layout has begun.
    start: Vec<u8>,
    state: Option<LayoutState>,
    /// The size of a piece that usually fits.
    usual_bytes: u64,
    /// Whether the device reads no more files of this subjob by itself.
    goes_through_host: bool,
    counters: Counters,
    /// How many entries all pieces read, if that is known.
    all_entries: Option<u64>,
}

/// A finished piece.
pub(crate) struct Done {
    /// The counts of the subjob up to its end.
    pub counters: Counters,
    /// Its tables, if it has any. Their blocks are in the memory of the lane.
    pub made: Option<(Tables, Packed)>,
    /// Whether it is the last piece.
    pub is_last: bool,
}

/// The sizes that were tried for a piece, in bytes of inputs.
struct Sizes {
    /// What is tried next.
    target: u64,
    /// A piece of this many bytes has no whole table.
    too_small: u64,
    /// A piece of this many bytes does not fit.
    too_large: u64,
}

impl Sizes {
    fn new(target: u64) -> Sizes {
        Sizes {
            target,
            too_small: 0,
            too_large: u64::MAX,
        }
    }

    fn does_not_fit(&mut self, bytes: u64) {
        self.too_large = bytes;
        self.target = self.too_small + (bytes - self.too_small.min(bytes)) / 2;
    }

    fn is_too_small(&mut self, bytes: u64) {
        self.too_small = bytes;
        self.target = match self.too_large {
            u64::MAX => self.target.max(bytes).saturating_mul(2),
            too_large => bytes + (too_large - bytes.min(too_large)) / 2,
        };
    }

    /// Raises the target until its piece is larger than those that were too small: pieces end with
    /// blocks, so a piece may be the same for many targets. Returns whether there is such a piece,
    /// and it is not known to be too large. Each try narrows the bounds, so the tries end.
    fn find_new(&mut self, bytes_of: impl Fn(u64) -> u64) -> bool {
        loop {
            let bytes = bytes_of(self.target);
            if bytes > self.too_small || bytes >= self.too_large {
                return bytes < self.too_large;
            }
            let next = match self.too_large {
                u64::MAX => self.target.saturating_mul(2),
                too_large => self.target + too_large.saturating_sub(self.target) / 2,
            };
            if next == self.target {
                return false;
            }
            self.target = next;
        }
    }
}

/// What follows a piece.
enum Next {
    /// Nothing: the subjob is complete.
    End,
    /// The next piece begins with this key, and with a table that begins there, if the layout has
    /// begun.
    Piece(Vec<u8>, Option<LayoutState>),
    /// The piece has no whole table, so it must be larger.
    Larger,
}

/// A piece whose blocks are on the device.
struct Piece {
    counts: Counts,
    next: Next,
    made: Option<(Tables, Packed)>,
}

impl<'a> SubjobRun<'a> {
    fn ctx(&self) -> &ExecContext {
        &self.work.ctx
    }

    /// A subjob that continues where its plan says.
    pub fn new(
        job: &'a Job,
        plan: SubjobPlan<'a>,
        work: Work,
        (checks, tuning): (Checks, Tuning),
    ) -> SubjobRun<'a> {
        let all_bytes = plan.stored_bytes();
        let all_entries = entries_of(&plan);
        let state = plan.continues_at.clone();
        SubjobRun {
            job,
            checks,
            tuning,
            pieces: 0,
            tables: state.as_ref().map_or(0, |state| state.table),
            uncounted_bytes: all_bytes,
            start: match &state {
                Some(state) => state.first_key.clone(),
                None => plan.bounds.start.clone(),
            },
            state,
            usual_bytes: (work.free_bytes() / MEMORY_SHARE).max(1),
            goes_through_host: false,
            all_entries,
            counters: Counters {
                bytes_read: plan.counters.bytes_read + all_bytes,
                ..plan.counters
            },
            plan,
            work,
        }
    }

    /// Computes the next piece in the present lane.
    pub fn next_piece(&mut self) -> Result<Done> {
        let mut sizes = Sizes::new(self.usual_bytes);
        let start = self.start.clone();
        let state = self.state.clone();
        // Of the last try that did not fit.
        let mut missing_bytes = 0;
        loop {
            let (keys, bytes) = self.piece_from(&start, sizes.target);
            let is_last = keys.end == self.plan.bounds.end;
            match self.piece(&keys, is_last, state.as_ref()) {
                Ok(Piece {
                    next: Next::Larger, ..
                }) => sizes.is_too_small(bytes),
                Ok(piece) => {
                    // The next piece probably needs as much memory for its bytes.
                    self.usual_bytes = self.usual_bytes.min(sizes.target);
                    return self.finished(piece);
                }
                Err(GpuError::NoRoom { wanted_bytes }) => {
                    sizes.does_not_fit(bytes);
                    missing_bytes = wanted_bytes;
                }
                Err(error) => return Err(error),
            }
            self.work.wait()?;
            self.work.release_all();
            if !sizes.find_new(|target| self.piece_from(&start, target).1) {
                return Err(no_room(sizes.too_large, missing_bytes));
            }
        }
    }

    /// Counts a piece, and notes where the next one begins.
    fn finished(&mut self, piece: Piece) -> Result<Done> {
        let c = piece.counts;
        let all = &mut self.counters;
        all.entries_read += c.entries;
        all.raw_bytes_read += c.raw_bytes;
        all.shadowed += c.shadowed;
        all.covered += c.covered;
        all.tombstones += c.tombstones;
        let entries = &self.ctx().progress.entries;
        entries.fetch_add(c.entries, Ordering::Relaxed);
        self.pieces += 1;
        if let Some((_, packed)) = &piece.made {
            self.tables += packed.sums.len() as u32;
        }
        let is_last = match piece.next {
            Next::End | Next::Larger => true,
            Next::Piece(key, state) => {
                (self.start, self.state) = (key, state);
                false
            }
        };
        if is_last {
            self.check_entries()?;
        }
        Ok(Done {
            counters: self.counters,
            made: piece.made,
            is_last,
        })
    }

    /// Fails if an entry was in no piece, or in two. Which blocks a piece reads is decided by the
    /// index and the properties of each table, and those may contradict the blocks.
    fn check_entries(&self) -> Result<()> {
        let found = self.counters.entries_read;
        match self.all_entries {
            Some(all) if all != found => Err(ExecError::declined(format!(
                "the inputs have {all} entries, and {found} were read"
            ))
            .into()),
            _ => Ok(()),
        }
    }

    /// The key range of a piece that begins at `start` and has about `target` bytes of inputs,
    /// uncompressed, and its bytes.
    fn piece_from(&self, start: &[u8], target: u64) -> (KeyBounds, u64) {
        let bounds_to = |end: Option<Vec<u8>>| KeyBounds {
            start: start.to_vec(),
            end,
        };
        let bytes_of = |keys: &KeyBounds| -> u64 {
            let runs = self.plan.runs_in(keys);
            let inputs = runs.iter().flatten();
            inputs.map(uncompressed_bytes).fold(0, u64::saturating_add)
        };
        let whole = bounds_to(self.plan.bounds.end.clone());
        let all = bytes_of(&whole);
        if all <= target {
            return (whole, all);
        }
        // Pieces end at separators of the input that has the most blocks in the range.
        let runs = self.plan.runs_in(&whole);
        let longest = runs
            .iter()
            .flatten()
            .max_by_key(|input| input.blocks().len());
        let Some((table, blocks)) = longest.and_then(|i| Some((i.table()?, i.blocks()))) else {
            return (whole, all);
        };
        let is_inside =
            |key: &[u8]| key > start && self.plan.bounds.end.as_deref().is_none_or(|end| key < end);
        let end_at = |block: usize| bounds_to(Some(table.separator(block).0));
        // The first block whose separator is after the start of the piece.
        let first = blocks
            .clone()
            .find(|block| is_inside(&table.separator(*block).0));
        let Some(first) = first else {
            return (whole, all);
        };
        let (mut low, mut high) = (first, blocks.end);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            let keys = end_at(middle);
            let fits = keys.end.as_deref().is_some_and(is_inside) && bytes_of(&keys) <= target;
            match fits {
                true => low = middle,
                false => high = middle,
            }
        }
        let keys = end_at(low);
        let bytes = bytes_of(&keys);
        (keys, bytes)
    }

    /// Computes a piece.
    fn piece(
        &mut self,
        keys: &KeyBounds,
        is_last: bool,
        state: Option<&LayoutState>,
    ) -> Result<Piece> {
        let next_start = keys.end.clone().unwrap_or_default();
        let next = |state: Option<&LayoutState>| match is_last {
            true => Next::End,
            false => Next::Piece(next_start.clone(), state.cloned()),
        };
        let inputs = inputs_of(self.plan.runs_in(keys));
        if inputs.is_empty() {
            return Ok(Piece {
                counts: Counts::default(),
                next: next(state),
                made: None,
            });
        }
        let unpacked = self.load(&inputs)?;
        let (sorted, verdicts) = self.sort_and_judge(&inputs, &unpacked)?;
        let kept = retain::gather(&mut self.work, &unpacked, &sorted, verdicts)?;
        if kept.count == 0 {
            let counts = retain::count(
                &mut self.work,
                &unpacked,
                &sorted,
                kept.verdicts,
                sorted.count,
            )?;
            return Ok(Piece {
                counts,
                next: next(state),
                made: None,
            });
        }
        let cuts = self.job.subjob_soft_cuts(&self.plan.bounds);
        let limits = self.job.limits.layout;
        let tables = layout::tables(&mut self.work, &kept, limits, cuts, state)?;
        let mut count = tables.host_starts.len();
        let (mut survivors, mut items) = (kept.count, sorted.count);
        let mut next = next(None);
        if !is_last {
            count -= 1;
            if count == 0 {
                return Ok(Piece {
                    counts: Counts::default(),
                    next: Next::Larger,
                    made: None,
                });
            }
            let cut = tables.host_starts[count];
            survivors = u64::from(cut.first);
            items = self.item_of(&unpacked, &sorted, &kept, survivors)?;
            let first_key = self.key_of(&kept, survivors)?;
            let state = LayoutState {
                first_key: first_key.clone(),
                earlier_spans_bytes: cut.earlier_spans_bytes,
                span_bytes: cut.span_bytes,
                table: self.tables + count as u32,
            };
            next = Next::Piece(first_key, Some(state));
        }
        let counts = retain::count(&mut self.work, &unpacked, &sorted, kept.verdicts, items)?;
        let rule = Rule {
            block_bytes: self.job.limits.block_bytes,
            is_paged: u32::from(
                self.job.format.codec == Codec::None && self.job.limits.block_bytes >= 4096,
            ),
            unused: 0,
        };
        let of = (count as u64, survivors);
        let blocks = layout::blocks(&mut self.work, &kept, &tables, of, rule)?;
        let format = &self.job.format;
        let packed = pack::pack(
            &mut self.work,
            &unpacked,
            &kept,
            &tables,
            &blocks,
            of,
            format,
        )?;
        Ok(Piece {
            counts,
            next,
            made: Some((tables, packed)),
        })
    }

    /// Copies the blocks of the inputs to the device, and unpacks them there.
    ///
    /// A piece that the device has read by itself, and that is not as it should be, is read again
    /// through memory of the host, and so are all later pieces of the subjob: the transfer may have
    /// been wrong, and the device does not decode large compressed parts. So the errors of blocks
    /// and files are those of the host.
    fn load(&mut self, inputs: &[PieceInput]) -> Result<Unpacked> {
        let verify = self.job.format.verify;
        let mut how = How {
            verify,
            is_checked: self.checks.inputs && verify,
            transfer: self.tuning.transfer,
        };
        if how.transfer == Transfer::Direct && !self.goes_through_host {
            let direct = How {
                verify: true,
                ..how
            };
            match self.load_as(inputs, direct) {
                Err(error) if is_of_transfer(&error) => {}
                loaded => return loaded,
            }
            self.work.wait()?;
            self.work.release_all();
            self.goes_through_host = true;
            let repeated = &self.work.lane.direct_counts().repeated_pieces;
            repeated.fetch_add(1, Ordering::Relaxed);
            how.is_checked = verify;
        }
        if how.transfer == Transfer::Direct {
            how.transfer = Transfer::Pipeline;
        }
        let loaded = self.load_as(inputs, how);
        loaded.map_err(|error| self.explain(error, inputs))
    }

    fn load_as(&mut self, inputs: &[PieceInput], how: How) -> Result<Unpacked> {
        let work = &mut self.work;
        let frame = unpack::prepare(work, inputs, &self.plan.prefix)?;
        let uploaded = upload::upload(work, inputs, how, &mut self.uncounted_bytes)?;
        unpack::unpack(work, inputs, frame, uploaded, how.verify)
    }

    /// Sorts the entries and judges them, on the device or on the host.
    fn sort_and_judge(
        &mut self,
        inputs: &[PieceInput],
        unpacked: &Unpacked,
    ) -> Result<(Sorted, Verdicts)> {
        let work = &mut self.work;
        let retain = &self.plan.retain;
        let collects_nothing = self.job.rules == DropRules::QUICK;
        let keys = match self.tuning.strategy.host_units(collects_nothing) {
            HostUnits::None => None,
            _ => Some(HostKeys::download(work, unpacked)?),
        };
        let sorted = match (&keys, self.tuning.strategy) {
            (Some(keys), Strategy::Luda) => {
                host::sort(work, inputs, unpacked, keys, self.plan.prefix.len())?
            }
            _ => sort::sort(work, inputs, unpacked, self.tuning.rank_runs_max)?,
        };
        let verdicts = match &keys {
            Some(keys) => host::judge(work, retain, keys, &sorted)?,
            None => retain::judge(work, retain, unpacked, &sorted)?,
        };
        Ok((sorted, verdicts))
    }

    /// The first item with the user key of a survivor that begins a user key.
    fn item_of(
        &mut self,
        unpacked: &Unpacked,
        sorted: &Sorted,
        kept: &Kept,
        survivor: u64,
    ) -> Result<u64> {
        let found = self.work.take(1)?;
        let args = FindCutItem {
            items: sorted.items,
            keys: unpacked.entries.keys,
            places: kept.places,
            found,
            survivor,
            count: sorted.count,
        };
        self.work.launch("find_cut_item", 1, &args)?;
        let item = self.work.read(found)?[0];
        check(item < sorted.count, "the entry before which a piece ends")?;
        Ok(item)
    }

    /// The user key of a survivor.
    fn key_of(&mut self, kept: &Kept, survivor: u64) -> Result<Vec<u8>> {
        let keys = kept.survivors.keys;
        let place = u64::from(self.work.read(keys.places.part(survivor, 1))?[0]);
        let len = usize::from(self.work.read(keys.lens.part(survivor, 1))?[0]);
        let count = len.div_ceil(8) as u64;
        check(
            place + count <= keys.words.count(),
            "the place of a table's first key",
        )?;
        let words = keys.words.part(place, count);
        let mut key: Vec<u8> = self.work.read(words.cast())?;
        key.truncate(len);
        Ok(key)
    }

    /// The error of the CPU's check of a block that the GPU found to be damaged.
    fn explain(&self, error: GpuError, inputs: &[PieceInput]) -> GpuError {
        let GpuError::BadBlock { input, block } = error else {
            return error;
        };
        let input = inputs
            .iter()
            .map(|i| &i.planned)
            .find(|i| i.number == input);
        let Some((planned, table)) = input.and_then(|i| Some((i, i.table()?))) else {
            return GpuError::Mismatch("a block of an input that there is not".into());
        };
        let place = table.place(block);
        let mut stored = vec![0; place.stored_bytes() as usize];
        if let Err(error) = table.file().read_at(place.start, &mut stored) {
            return error.into();
        }
        match check_block(planned, block, &stored, self.job.format.verify) {
            Err(error) => error.declined_if_unsupported().into(),
            Ok(()) => GpuError::Mismatch(format!(
                "block {block} of {} is damaged on the GPU, and sound in the file",
                planned.name
            )),
        }
    }
}

/// Whether a piece that was read directly may succeed if it is read in another way.
fn is_of_transfer(error: &GpuError) -> bool {
    match error {
        GpuError::NoRoom { .. } | GpuError::Exec(ExecError::Cancelled) => false,
        GpuError::Device(error) => !error.is_sticky(),
        GpuError::BadBlock { .. } | GpuError::Mismatch(_) | GpuError::Exec(_) => true,
    }
}

/// The number of entries of a subjob, if it reads each of its tables as a whole.
fn entries_of(plan: &SubjobPlan<'_>) -> Option<u64> {
    let of_input = |input: &PlannedInput| {
        let table = input.table()?;
        let (first, last) = table.key_bounds()?;
        let bounds = &input.bounds;
        let is_whole = bounds.contains(first) && bounds.contains(last);
        is_whole.then_some(table.properties().entries)
    };
    let mut inputs = plan.runs.iter().flatten();
    inputs.try_fold(0u64, |sum, input| sum.checked_add(of_input(input)?))
}

/// About how many bytes the blocks of an input take uncompressed.
fn uncompressed_bytes(input: &PlannedInput) -> u64 {
    let Some(table) = input.table() else {
        return 0;
    };
    let stored = table.stored_bytes(&input.bounds);
    let properties = table.properties();
    if properties.codec == Codec::None {
        return stored;
    }
    let all = u128::from(table.file_bytes()).max(1);
    let raw = u128::from(stored) * u128::from(properties.raw_bytes()) / all;
    u64::try_from(raw).unwrap_or(u64::MAX).max(stored)
}

fn no_room(bytes: u64, wanted_bytes: u64) -> GpuError {
    ExecError::declined(format!(
        "a table does not fit into the GPU's memory: {bytes} bytes of inputs were too many \
         ({wanted_bytes} more bytes were needed); give it more memory (the option `--gpu-memory` \
         of `silt`, or `GpuOptions` of a program), or make tables smaller (`table_bytes`)"
    ))
    .into()
}

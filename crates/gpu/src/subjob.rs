//! A subjob on the GPU: pieces, one after the other, and the tables that they make.
//!
//! A piece is as large as the memory of its lane allows. How much memory it takes is known only
//! while it is computed, so a piece that does not fit is begun again with half of its bytes: nothing
//! is written before its blocks are complete. The last table of a piece is not finished unless the
//! piece is the last one, because the next entries may belong to it: the next piece begins with that
//! table's first key.
//!
//! Threading: see `lane`.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use siltstone_storage::planted;
use siltstone_table::assembly::{EntryCounts, FilterBytes, FinishedBlock};
use siltstone_table::checksum::crc32c;
use siltstone_table::compress::Codec;
use siltstone_table::exec::SubjobOutput;
use siltstone_table::exec::plan::{SubjobPlan, check_block};
use siltstone_table::exec::{ExecContext, ExecError};
use siltstone_table::job::outcome::Counters;
use siltstone_table::job::{Job, KeyBounds};
use siltstone_table::layout::{LayoutState, TableStart};

use crate::device::Event;
use crate::error::{GpuError, Result};
use crate::kernels::{Array, FindCutItem, IndexEntry, Place, Rule};
use crate::lane::{SLACK_BYTES, Work};
use crate::layout::{self, Tables};
use crate::pack::{self, Packed};
use crate::piece::{PieceInput, inputs_of};
use crate::retain::{self, Counts, Kept};
use crate::sort::{self, Sorted};
use crate::unpack::{self, Unpacked};

/// A first piece has at most this share of the lane's memory as stored bytes of inputs. Arrays of
/// entries, keys and outputs take the rest.
const MEMORY_SHARE: u64 = 12;

/// What is checked by the host, beside what always is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checks {
    /// The checksums of all output blocks are computed again on the way to the file.
    pub outputs: bool,
    /// And those of all input blocks on the way to the GPU.
    pub inputs: bool,
}

/// A subjob in work. See the module.
pub(crate) struct SubjobRun<'a, 'b> {
    pub job: &'a Job,
    pub plan: SubjobPlan<'a>,
    pub work: Work<'b>,
    pub checks: Checks,
    pub rank_runs_max: usize,
    /// The number of pieces that were finished.
    pub pieces: u64,
    /// The number of tables that were begun.
    pub tables: u32,
    /// The bytes of inputs that progress has not counted yet.
    pub uncounted_bytes: u64,
}

/// The sizes that were tried for a piece, in bytes of inputs.
struct Sizes {
    /// What is tried next.
    target: u64,
    /// A piece of so many bytes has no whole table.
    too_small: u64,
    /// A piece of so many bytes does not fit.
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

    /// Whether a piece of so many bytes can still be what is wanted. Each try narrows the bounds,
    /// so the tries end.
    fn is_new(&self, bytes: u64) -> bool {
        self.too_small < bytes && bytes < self.too_large
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

impl SubjobRun<'_, '_> {
    fn ctx(&self) -> &ExecContext {
        self.work.ctx
    }

    /// Runs the subjob to its end.
    pub fn run(&mut self, output: &mut SubjobOutput<'_>) -> Result<Counters> {
        let mut counters = self.plan.counters;
        let all_bytes = self.plan.stored_bytes();
        counters.bytes_read += all_bytes;
        self.uncounted_bytes = all_bytes;
        let mut start = self.plan.bounds.start.clone();
        let mut state = self.plan.continues_at.clone();
        if let Some(state) = &state {
            start.clone_from(&state.first_key);
            self.tables = state.table;
        }
        let usual = (self.work.free_bytes() / MEMORY_SHARE).max(1);
        let mut sizes = Sizes::new(usual);
        loop {
            let target = sizes.target;
            let (keys, bytes) = self.piece_from(&start, target);
            let is_last = keys.end == self.plan.bounds.end;
            let mark = self.work.mark();
            let piece = self.piece(&keys, is_last, state.as_ref());
            let piece = match piece {
                Err(GpuError::NoRoom { wanted_bytes }) => {
                    self.work.wait()?;
                    self.work.release(mark);
                    sizes.does_not_fit(bytes);
                    let next = self.piece_from(&start, sizes.target).1;
                    if !sizes.is_new(next) {
                        return Err(no_room(bytes, wanted_bytes));
                    }
                    continue;
                }
                piece => piece?,
            };
            if let Next::Larger = piece.next {
                self.work.release(mark);
                sizes.is_too_small(bytes);
                let next = self.piece_from(&start, sizes.target).1;
                if !sizes.is_new(next) {
                    return Err(no_room(bytes, 0));
                }
                continue;
            }
            self.pieces += 1;
            let c = piece.counts;
            counters.entries_read += c.entries;
            counters.raw_bytes_read += c.raw_bytes;
            counters.shadowed += c.shadowed;
            counters.covered += c.covered;
            counters.tombstones += c.tombstones;
            let entries = &self.ctx().progress.entries;
            entries.fetch_add(c.entries, Ordering::Relaxed);
            if let Some((tables, packed)) = &piece.made {
                self.write(tables, packed, counters, output)?;
            }
            self.work.wait()?;
            self.work.release(mark);
            sizes = Sizes::new(usual.min(sizes.target));
            match piece.next {
                Next::End | Next::Larger => return Ok(counters),
                Next::Piece(key, layout) => (start, state) = (key, layout),
            }
        }
    }

    /// The key range of a piece that begins at `start` and has about `target` bytes of inputs, and
    /// its bytes.
    fn piece_from(&self, start: &[u8], target: u64) -> (KeyBounds, u64) {
        let bounds_to = |end: Option<Vec<u8>>| KeyBounds {
            start: start.to_vec(),
            end,
        };
        let bytes_of = |keys: &KeyBounds| -> u64 {
            let runs = self.plan.runs_in(keys);
            let bytes = runs.iter().flatten().filter_map(|input| {
                let table = input.table()?;
                Some(table.stored_bytes(&input.bounds))
            });
            bytes.sum()
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
        let (bytes, places) = self.upload(&inputs)?;
        let prefix = self.plan.prefix.clone();
        let verify = self.job.format.verify;
        let unpacked = unpack::unpack(&mut self.work, &inputs, &prefix, bytes, &places, verify);
        let unpacked = unpacked.map_err(|error| self.explain(error, &inputs))?;
        let sorted = sort::sort(&mut self.work, &inputs, &unpacked, self.rank_runs_max)?;
        let verdicts = retain::judge(&mut self.work, &self.plan.retain, &unpacked, &sorted)?;
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
        let bits = self.job.format.bits_per_key;
        let packed = pack::pack(&mut self.work, &unpacked, &kept, &tables, &blocks, of, bits)?;
        Ok(Piece {
            counts,
            next,
            made: Some((tables, packed)),
        })
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
        Ok(self.work.read(found)?[0])
    }

    /// The user key of a survivor.
    fn key_of(&mut self, kept: &Kept, survivor: u64) -> Result<Vec<u8>> {
        let keys = kept.survivors.keys;
        let place = u64::from(self.work.read(keys.places.part(survivor, 1))?[0]);
        let len = usize::from(self.work.read(keys.lens.part(survivor, 1))?[0]);
        let words = keys.words.part(place, len.div_ceil(8) as u64);
        let mut key: Vec<u8> = self.work.read(words.cast())?;
        key.truncate(len);
        Ok(key)
    }

    /// Reads the blocks of the inputs, and copies them to the device.
    fn upload(&mut self, inputs: &[PieceInput]) -> Result<(Array<u8>, Vec<Place>)> {
        let mut places = Vec::new();
        let mut all = 0;
        let mut regions = Vec::with_capacity(inputs.len());
        for (number, input) in inputs.iter().enumerate() {
            let Some(table) = input.planned.table() else {
                return Err(ExecError::declined("a stream cannot be read by a GPU").into());
            };
            let Some(last) = input.blocks.clone().next_back() else {
                continue;
            };
            let from = table.place(input.blocks.start).start;
            for block in input.blocks.clone() {
                let place = table.place(block);
                places.push(Place {
                    start: all + place.start - from,
                    anchor: all + place.anchor - from,
                    end: all + place.end - from,
                    input: number as u32,
                    unused: 0,
                });
            }
            let len = table.place(last).end - from;
            regions.push((number, from, all, len));
            all += len;
        }
        let bytes: Array<u8> = self.work.take(all + SLACK_BYTES)?;
        let mut flying: VecDeque<(usize, Event)> = VecDeque::new();
        let buffers = self.work.lane.ring.len();
        let mut buffer = 0;
        for (number, from, at, len) in regions {
            let Some(table) = inputs[number].planned.table() else {
                continue;
            };
            let mut done = 0;
            while done < len {
                if flying.len() == buffers
                    && let Some((_, event)) = flying.pop_front()
                {
                    self.work.take_event(event)?;
                }
                let room = self.work.lane.ring[buffer].len() as u64;
                let chunk = room.min(len - done);
                let to = &mut self.work.lane.ring[buffer].bytes_mut()?[..chunk as usize];
                table.file().read_at(from + done, to)?;
                let to = bytes.part(at + done, chunk);
                let event = self.work.copy_in(buffer, chunk as usize, to)?;
                flying.push_back((buffer, event));
                buffer = (buffer + 1) % buffers;
                done += chunk;
                self.count_read(chunk);
                self.spend(chunk)?;
            }
        }
        for (_, event) in flying {
            self.work.take_event(event)?;
        }
        Ok((bytes, places))
    }

    /// Counts bytes that were read. Bytes that are read again for the next piece count once.
    fn count_read(&mut self, bytes: u64) {
        let bytes = bytes.min(self.uncounted_bytes);
        self.uncounted_bytes -= bytes;
        let progress = &self.ctx().progress;
        progress.bytes_in.fetch_add(bytes, Ordering::Relaxed);
        progress.beat();
    }

    /// Reports bytes to the throttle, and ends a job that was cancelled.
    fn spend(&self, bytes: u64) -> Result<()> {
        let ctx = self.ctx();
        if let Some(throttle) = &ctx.throttle {
            throttle.spent(bytes, &|| ctx.cancel.is_cancelled());
        }
        match ctx.cancel.is_cancelled() {
            true => Err(ExecError::Cancelled.into()),
            false => Ok(()),
        }
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

    /// Writes the tables of a piece.
    fn write(
        &mut self,
        tables: &Tables,
        packed: &Packed,
        counters: Counters,
        output: &mut SubjobOutput<'_>,
    ) -> Result<()> {
        let cuts = self.job.subjob_soft_cuts(&self.plan.bounds);
        let (mut index, mut separators) = (&packed.index[..], &packed.separators[..]);
        let mut filters = &packed.filters[..];
        let mut at = 0;
        for (number, sums) in packed.sums.iter().enumerate() {
            let begin = tables.host_starts[number];
            let first_key = &packed.first_keys[number];
            let left_cut = match begin.span {
                span if span > 0 && begin.span_bytes == 0 => Some(&cuts[span as usize - 1][..]),
                _ => None,
            };
            let start = TableStart {
                table: self.tables,
                left_cut,
            };
            let state = LayoutState {
                first_key: first_key.clone(),
                earlier_spans_bytes: begin.earlier_spans_bytes,
                span_bytes: begin.span_bytes,
                table: self.tables,
            };
            output.start_table(start, state, counters)?;
            self.tables += 1;
            let entries = u64::from(sums.last - sums.first) + 1;
            let own_count = index.partition_point(|entry| entry.table as usize <= number);
            let (own, rest) = index.split_at(own_count);
            index = rest;
            let bytes: u64 = own.iter().map(|entry| u64::from(entry.bytes)).sum();
            self.download(packed.out.part(at, bytes), own, output)?;
            at += bytes;
            let missing = || GpuError::Mismatch("a table was not begun".into());
            let table = output.table().ok_or_else(missing)?;
            let mut end = 0;
            let mut last_separator = &[][..];
            for entry in own {
                let (separator, rest) = separators.split_at(entry.separator_bytes as usize);
                separators = rest;
                last_separator = separator;
                let anchor = end + u64::from(entry.value_bytes);
                end += u64::from(entry.bytes);
                table.push_block(&FinishedBlock {
                    anchor,
                    end,
                    checksum: entry.crc,
                    separator,
                    separator_trailer: entry.trailer,
                })?;
            }
            table.set_entries(EntryCounts {
                entries,
                puts: sums.puts,
                deletes: entries - sums.puts,
                user_keys: sums.user_keys,
                key_bytes: sums.key_bytes,
                value_bytes: sums.value_bytes,
                smallest_seq: sums.smallest_seq,
                largest_seq: sums.largest_seq,
                smallest_key: Some(first_key.clone()),
                largest_key: Some(last_separator.to_vec()),
            });
            let len = table.filter_len();
            if len > 0 {
                let (own, rest) = filters.split_at(len as usize);
                filters = rest;
                table.write_filter(FilterBytes::Stored(own))?;
            }
        }
        Ok(())
    }

    /// Copies the blocks of a table from the device to its file, through the ring.
    fn download(
        &mut self,
        from: Array<u8>,
        index: &[IndexEntry],
        output: &mut SubjobOutput<'_>,
    ) -> Result<()> {
        let buffers = self.work.lane.ring.len();
        let mut flying: VecDeque<(usize, u64, Event)> = VecDeque::new();
        let (mut asked, mut buffer) = (0, 0);
        let mut checking = Checking::new(index);
        while asked < from.count() || !flying.is_empty() {
            if asked < from.count() && flying.len() < buffers {
                let room = self.work.lane.ring[buffer].len() as u64;
                let chunk = room.min(from.count() - asked);
                let event = self.work.copy_out(from.part(asked, chunk), buffer)?;
                flying.push_back((buffer, chunk, event));
                asked += chunk;
                buffer = (buffer + 1) % buffers;
                continue;
            }
            let Some((full, chunk, event)) = flying.pop_front() else {
                break;
            };
            self.work.take_event(event)?;
            let bytes = &self.work.lane.ring[full].bytes()?[..chunk as usize];
            if self.checks.outputs && !planted!(GpuBlocksAreBelieved) {
                checking.add(bytes)?;
            }
            let missing = || GpuError::Mismatch("a table was not begun".into());
            output.table().ok_or_else(missing)?.append(bytes)?;
            self.spend(chunk)?;
        }
        Ok(())
    }
}

fn no_room(bytes: u64, wanted_bytes: u64) -> GpuError {
    ExecError::declined(format!(
        "a table does not fit into the GPU's memory: {bytes} bytes of inputs were too many \
         ({wanted_bytes} more bytes were needed)"
    ))
    .into()
}

/// Computes the checksums of blocks that arrive in pieces.
struct Checking<'a> {
    index: &'a [IndexEntry],
    /// The bytes of the present block so far.
    block: Vec<u8>,
}

impl Checking<'_> {
    fn new(index: &[IndexEntry]) -> Checking<'_> {
        Checking {
            index,
            block: Vec::new(),
        }
    }

    fn add(&mut self, mut bytes: &[u8]) -> Result<()> {
        while let Some(entry) = self.index.first() {
            let missing = entry.bytes as usize - self.block.len();
            if bytes.len() < missing {
                break;
            }
            let (first, rest) = bytes.split_at(missing);
            bytes = rest;
            match self.block.is_empty() {
                true => check_output(entry, first)?,
                false => {
                    self.block.extend_from_slice(first);
                    check_output(entry, &self.block)?;
                    self.block.clear();
                }
            }
            self.index = &self.index[1..];
        }
        self.block.extend_from_slice(bytes);
        Ok(())
    }
}

/// Compares the checksums of an output block with those that the GPU computed.
fn check_output(entry: &IndexEntry, block: &[u8]) -> Result<()> {
    let (values, columns) = block.split_at(entry.value_bytes as usize);
    let word = |at: usize| {
        let bytes = columns.get(at..at + 4).and_then(|b| b.first_chunk::<4>());
        bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
    };
    let end = columns.len() - 4;
    let found = crc32c(&columns[..end]);
    if found != entry.crc || word(end) != entry.crc || word(24) != crc32c(values) {
        return Err(GpuError::Mismatch(format!(
            "an output block has the checksum {:08x} on the GPU and {found:08x} here",
            entry.crc
        )));
    }
    Ok(())
}

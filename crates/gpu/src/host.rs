//! The units that some strategies leave to the host: sorting and collecting.
//!
//! `luda` sorts and collects on the host, `cooperative` only collects. Both get the keys from the
//! device and send back what it needs. The host's side uses the loser tree and the rules of the
//! table crate, as the host's executor does, so that the strategies differ in nothing else.
//!
//! Threading: one owner.

use siltstone_table::exec::{ExecContext, ExecError};
use siltstone_table::merge::tree::{EXHAUSTED, Head, LoserTree, head_is_whole, head_of};
use siltstone_table::retain::{Retain, Verdict};

use crate::buffers::Buffers;
use crate::error::{Result, check};
use crate::kernels::{Array, Items, MarkKept, OrderItems};
use crate::lane::Work;
use crate::piece::{Found, PieceInput};
use crate::sort::Sorted;
use crate::unpack::Unpacked;

/// The keys and trailers of all entries of a piece.
pub(crate) struct HostKeys {
    /// Its own memory, and that of the order and the verdicts that are made of it.
    _buffers: Buffers,
    words: Vec<u8>,
    places: Vec<u32>,
    lens: Vec<u16>,
    trailers: Vec<u64>,
}

impl HostKeys {
    /// Copies them from the device.
    pub fn download(work: &mut Work, unpacked: &Unpacked) -> Result<HostKeys> {
        let keys = unpacked.entries.keys;
        let places: Vec<u32> = work.read(keys.places)?;
        let lens: Vec<u16> = work.read(keys.lens)?;
        let words = u64::from(places.last().copied().unwrap_or(0));
        let follow =
            |(w, len): (&[u32], &u16)| w[1].checked_sub(w[0]) == Some(u32::from(*len).div_ceil(8));
        let is_possible = words <= keys.words.count() && places.windows(2).zip(&lens).all(follow);
        check(is_possible, "the places of keys")?;
        // For each entry a place, a length, a trailer, a number in the order, and a verdict.
        let entry_bytes = 4 + 2 + 8 + 4 + 1;
        let mut buffers = Buffers::new(&work.ctx.progress);
        buffers.set(8 * words + entry_bytes * places.len() as u64);
        Ok(HostKeys {
            _buffers: buffers,
            words: work.read(keys.words.first(words).cast())?,
            places,
            lens,
            trailers: work.read(unpacked.entries.trailers)?,
        })
    }

    /// Whether entry `b` must not follow entry `a`: its key is less, or it is equal and the trailer
    /// is larger.
    fn is_before(&self, b: u32, a: u32) -> bool {
        let trailer = |entry: u32| self.trailers[entry as usize];
        let order = self.key(b).cmp(self.key(a));
        order.then_with(|| trailer(a).cmp(&trailer(b))).is_lt()
    }

    fn key(&self, entry: u32) -> &[u8] {
        let place = 8 * self.places[entry as usize] as usize;
        &self.words[place..place + usize::from(self.lens[entry as usize])]
    }
}

/// A run that is merged.
struct Run<'a> {
    keys: &'a HostKeys,
    prefix_len: usize,
    /// The ranges of its entries that are left, in the order of their keys.
    ranges: std::slice::Chunks<'a, u32>,
    next: u32,
    end: u32,
    head: Head,
    /// An entry that comes before the one before it, which is of the table before.
    disordered: Option<u32>,
}

impl Run<'_> {
    /// Moves to the next entry, if there is one.
    fn advance(&mut self) {
        self.next += 1;
        self.settle();
    }

    fn settle(&mut self) {
        // The device has compared the entries of each table. Here those at borders are compared.
        let last = self.end.checked_sub(1);
        let mut is_at_border = false;
        while self.next >= self.end {
            match self.ranges.next() {
                // The end of a table without entries would not be that of the last one.
                Some(&[from, to]) if from == to => {}
                Some(&[from, to]) => {
                    is_at_border = last.is_some();
                    (self.next, self.end) = (from, to);
                }
                _ => {
                    self.head = EXHAUSTED;
                    return;
                }
            }
        }
        if let Some(last) = last.filter(|_| is_at_border)
            && self.keys.is_before(self.next, last)
        {
            self.disordered = Some(self.next);
        }
        let key = self.keys.key(self.next);
        self.head = head_of(key.get(self.prefix_len..).unwrap_or_default());
    }
}

fn before(runs: &[Run<'_>], a: u32, b: u32) -> bool {
    let (x, y) = (&runs[a as usize], &runs[b as usize]);
    let keys = match head_is_whole(x.head) {
        true => std::cmp::Ordering::Equal,
        false => x.keys.key(x.next).cmp(y.keys.key(y.next)),
    };
    let trailer = |run: &Run<'_>| run.keys.trailers[run.next as usize];
    keys.then_with(|| trailer(y).cmp(&trailer(x)))
        .then(a.cmp(&b))
        .is_lt()
}

/// After so many entries, a job shows that it is alive, and ends if it was cancelled: sorting and
/// judging a piece may take seconds, in which it neither waits for the device nor moves bytes.
const LOOK_ENTRIES: usize = 1 << 16;

/// Looks after each [`LOOK_ENTRIES`] entries, of which `done` are behind.
fn look(ctx: &ExecContext, done: usize) -> Result<()> {
    if !done.is_multiple_of(LOOK_ENTRIES) {
        return Ok(());
    }
    ctx.progress.beat();
    match ctx.cancel.is_cancelled() {
        true => Err(ExecError::Cancelled.into()),
        false => Ok(()),
    }
}

/// The entries within bounds in the order of the output. `ranges` has two numbers for each input,
/// and `begins` the inputs that begin a run.
fn merge(
    ctx: &ExecContext,
    keys: &HostKeys,
    prefix_len: usize,
    ranges: &[u32],
    begins: &[usize],
) -> Result<Vec<u32>> {
    let mut runs: Vec<Run<'_>> = Vec::with_capacity(begins.len());
    for (number, begin) in begins.iter().enumerate() {
        let end = begins.get(number + 1).copied();
        let end = end.unwrap_or(ranges.len() / 2);
        let mut run = Run {
            keys,
            prefix_len,
            ranges: ranges[2 * begin..2 * end].chunks(2),
            next: 0,
            end: 0,
            head: EXHAUSTED,
            disordered: None,
        };
        run.settle();
        runs.push(run);
    }
    let heads: Vec<Head> = runs.iter().map(|run| run.head).collect();
    let mut tree = LoserTree::new(&heads, |a, b| before(&runs, a, b));
    let mut order = Vec::new();
    while !tree.is_exhausted() {
        look(ctx, order.len())?;
        let winner = tree.winner();
        order.push(runs[winner].next);
        runs[winner].advance();
        let head = runs[winner].head;
        tree.replace(head, &runs[..], before);
    }
    match runs.iter().find_map(|run| run.disordered) {
        Some(entry) => Err(Found::out_of_order(entry.into())),
        None => Ok(order),
    }
}

/// The entries within bounds in the order of the output, merged here and copied to the device.
pub(crate) fn sort(
    work: &mut Work,
    inputs: &[PieceInput],
    unpacked: &Unpacked,
    keys: &HostKeys,
    prefix_len: usize,
) -> Result<Sorted> {
    let begins: Vec<usize> = (0..inputs.len())
        .filter(|i| inputs[*i].begins_run)
        .collect();
    let order = merge(&work.ctx, keys, prefix_len, &unpacked.host_ranges, &begins)?;
    let count = order.len() as u64;
    let entries = work.upload(&order)?;
    let items = Items {
        high: work.take(count + 1)?,
        low: work.take(count + 1)?,
        entries,
    };
    let args = OrderItems {
        heads_high: unpacked.heads_high,
        heads_low: unpacked.heads_low,
        items,
        count,
    };
    work.launch("order_items", count, &args)?;
    Ok(Sorted { items, count })
}

/// The verdicts on all items, judged here and copied to the device: as `retain::judge`.
pub(crate) fn judge(
    work: &mut Work,
    retain: &Retain,
    keys: &HostKeys,
    sorted: &Sorted,
) -> Result<(Array<u8>, Array<u32>)> {
    let order: Vec<u32> = work.read(sorted.items.entries.first(sorted.count))?;
    // The last stripe ends with the largest sequence number that an input has.
    let largest_seq = retain.stripes().ends().last().copied().unwrap_or(0);
    let is_possible = |entry: &u32| {
        let trailer = keys.trailers.get(*entry as usize);
        trailer.is_some_and(|trailer| trailer >> 8 <= largest_seq)
    };
    let count = keys.places.len() as u64;
    check(
        sorted.count < count && order.iter().all(is_possible),
        "the order of entries",
    )?;
    // A piece may be computed more than once, so each time begins with fresh rules.
    let mut retain = Retain::new(
        retain.rules(),
        retain.stripes().clone(),
        retain.older(),
        retain.fragments().to_vec(),
    );
    let mut last: Option<&[u8]> = None;
    let mut verdicts = Vec::with_capacity(order.len() + 1);
    for entry in order {
        look(&work.ctx, verdicts.len())?;
        let key = keys.key(entry);
        if last != Some(key) {
            retain.start_key(key);
            last = Some(key);
        }
        let trailer = keys.trailers[entry as usize];
        verdicts.push(match retain.judge(key, trailer) {
            Verdict::Keep => 0u8,
            Verdict::Shadowed => 1,
            Verdict::Covered => 2,
            Verdict::Tombstone => 3,
        });
    }
    // An array needs an item that a kernel may name.
    verdicts.push(0);
    let verdicts = work.upload(&verdicts)?;
    let kept = work.take(sorted.count + 1)?;
    let args = MarkKept {
        verdicts,
        kept,
        count: sorted.count,
    };
    work.launch("mark_kept", sorted.count, &args)?;
    Ok((verdicts, kept))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use siltstone_storage::{Epoch, MemoryStorage, Runtime};
    use siltstone_table::exec::InputMap;

    use super::*;
    use crate::error::GpuError;

    fn context() -> ExecContext {
        let runtime = Runtime::threads();
        let storage = Arc::new(MemoryStorage::new(&runtime));
        ExecContext::new(runtime, Arc::new(InputMap::new()), storage, Epoch(1))
    }

    /// Keys of one letter, with one sequence number for all.
    fn keys_of(ctx: &ExecContext, letters: &[u8]) -> HostKeys {
        let count = letters.len();
        HostKeys {
            _buffers: Buffers::new(&ctx.progress),
            words: letters
                .iter()
                .flat_map(|l| [*l, 0, 0, 0, 0, 0, 0, 0])
                .collect(),
            places: (0..=count as u32).collect(),
            lens: vec![1; count + 1],
            trailers: vec![1 << 8 | 1; count + 1],
        }
    }

    #[test]
    fn runs_of_several_tables_are_merged() {
        let ctx = context();
        // Two runs: `ac`, a table without entries, `g`; and `bh`.
        let keys = keys_of(&ctx, b"acgbh");
        let ranges = [0, 2, 2, 2, 2, 3, 3, 5];
        let order = merge(&ctx, &keys, 0, &ranges, &[0, 3]).unwrap();
        assert_eq!(order, [0, 3, 1, 2, 4]);
        // The second table of a run begins below the end of the first one.
        let keys = keys_of(&ctx, b"acbbh");
        let wrong = merge(&ctx, &keys, 0, &ranges, &[0, 3]).unwrap_err();
        assert!(
            matches!(wrong, GpuError::Exec(ExecError::Declined { .. })),
            "{wrong:?}"
        );
    }

    #[test]
    fn a_merge_shows_that_it_is_alive_and_can_be_cancelled() {
        let ctx = context();
        let count = 3 * LOOK_ENTRIES;
        let keys = keys_of(&ctx, &vec![b'a'; count]);
        let ranges = [0, count as u32];
        let begun = ctx.progress.signs_of_life();
        assert_eq!(merge(&ctx, &keys, 0, &ranges, &[0]).unwrap().len(), count);
        assert_eq!(ctx.progress.signs_of_life() - begun, 3);
        ctx.cancel.cancel();
        let ended = merge(&ctx, &keys, 0, &ranges, &[0]).unwrap_err();
        assert!(
            matches!(ended, GpuError::Exec(ExecError::Cancelled)),
            "{ended:?}"
        );
    }
}

//! The phase that decides what is kept, and gathers it.
//!
//! Threading: see `lane`.

use siltstone_storage::planted;
use siltstone_table::retain::{KeyRange, RangeDelete, RangeEnd, Retain};

use crate::error::{Result, check};
use crate::kernels::{
    Array, CountVerdicts, GatherSurvivors, Judge, Keys, ListSurvivors, Ranges, Survivors,
};
use crate::lane::{Batch, Slot, Work};
use crate::piece::Found;
use crate::sort::Sorted;
use crate::unpack::{KeyList, Unpacked};

/// The number of items that a thread of `count_verdicts` counts: `COUNT_GROUP` of the kernels.
pub(crate) const COUNT_GROUP: u64 = 256;

/// What a job reads and drops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub entries: u64,
    pub raw_bytes: u64,
    pub shadowed: u64,
    pub covered: u64,
    pub tombstones: u64,
}

/// The verdict on each item, and how many are kept before it.
pub(crate) type Verdicts = (Array<u8>, Array<u32>);

/// The entries that are kept.
pub(crate) struct Kept {
    pub survivors: Survivors,
    pub count: u64,
    /// The prefix sums of their raw bytes and of the lengths of their values.
    pub raw: Array<u64>,
    pub value_starts: Array<u64>,
    /// The verdict on each item, and the prefix sums of those that are kept.
    pub verdicts: Array<u8>,
    pub places: Array<u32>,
}

/// Ranges of keys as arrays of a batch.
struct RangeSlots {
    words: Slot<u64>,
    places: Slot<u32>,
    lens: Slot<u32>,
    ends: Slot<u32>,
}

impl RangeSlots {
    fn add<'r>(
        batch: &mut Batch,
        ranges: impl Iterator<Item = (&'r [u8], Option<&'r [u8]>, u32)>,
    ) -> RangeSlots {
        let (mut keys, mut ends) = (KeyList::default(), Vec::new());
        for (start, end, how) in ranges {
            keys.push(start);
            match end {
                Some(end) => keys.push(end),
                None => keys.push_none(),
            }
            ends.push(how);
        }
        keys.words.push(0);
        RangeSlots {
            words: batch.add(&keys.words),
            places: batch.add(&keys.places),
            lens: batch.add(&keys.lens),
            ends: batch.add(&ends),
        }
    }

    fn of(&self, batch: Array<u8>) -> Ranges {
        Ranges {
            words: self.words.of(batch),
            places: self.places.of(batch),
            lens: self.lens.of(batch),
            ends: self.ends.of(batch),
        }
    }
}

fn row_of_older(range: &KeyRange) -> (&[u8], Option<&[u8]>, u32) {
    match &range.end {
        RangeEnd::Before(end) => (&range.start, Some(end), 0),
        RangeEnd::With(end) => (&range.start, Some(end), 1),
        RangeEnd::Unbounded => (&range.start, None, 2),
    }
}

/// The fragments by stripe, in the order of their starts, and the first one of each stripe.
fn by_stripe(retain: &Retain) -> (Vec<&RangeDelete>, Vec<u32>) {
    let stripes = retain.stripes();
    let mut sorted: Vec<(usize, &RangeDelete)> = retain
        .fragments()
        .iter()
        .map(|fragment| (stripes.of(fragment.seq), fragment))
        .collect();
    // The fragments of a stripe do not overlap, so their starts differ.
    sorted.sort_by(|a, b| (a.0, &a.1.start).cmp(&(b.0, &b.1.start)));
    let firsts = (0..=stripes.ends().len())
        .map(|stripe| sorted.partition_point(|(of, _)| *of < stripe) as u32)
        .collect();
    (
        sorted.into_iter().map(|(_, fragment)| fragment).collect(),
        firsts,
    )
}

/// Judges all items.
pub(crate) fn judge(
    work: &mut Work,
    retain: &Retain,
    unpacked: &Unpacked,
    sorted: &Sorted,
) -> Result<Verdicts> {
    let count = sorted.count;
    let stripes = retain.stripes().ends().len() as u32;
    let (fragments, firsts) = by_stripe(retain);
    let mut batch = Batch::default();
    let ends = batch.add(retain.stripes().ends());
    let rows = fragments
        .iter()
        .map(|f| (&f.start[..], Some(&f.end[..]), 0));
    let ranges = RangeSlots::add(&mut batch, rows);
    let seqs: Vec<u64> = fragments.iter().map(|f| f.seq).collect();
    let seqs = batch.add(&seqs);
    let firsts = batch.add(&firsts);
    let older = RangeSlots::add(&mut batch, retain.older().iter().map(row_of_older));
    let batch = work.upload_batch(&batch)?;
    let verdicts = work.take(count + 1)?;
    let places = work.take(count + 1)?;
    let args = Judge {
        items: sorted.items,
        entries: unpacked.entries,
        stripe_ends: ends.of(batch),
        fragments: ranges.of(batch),
        fragment_seqs: seqs.of(batch),
        stripe_firsts: firsts.of(batch),
        older: older.of(batch),
        verdicts,
        kept: places,
        stripes: stripes * u32::from(!planted!(GpuForgetsStripes)),
        older_count: retain.older().len() as u32,
        rules: u32::from(retain.rules().0),
        unused: 0,
        count,
    };
    work.launch("judge", count, &args)?;
    Ok((verdicts, places))
}

/// Counts the first `count` items and what is dropped of them.
pub(crate) fn count(
    work: &mut Work,
    unpacked: &Unpacked,
    sorted: &Sorted,
    verdicts: Array<u8>,
    count: u64,
) -> Result<Counts> {
    let counts = work.take_zeros(4)?;
    let args = CountVerdicts {
        verdicts,
        items: sorted.items,
        keys: unpacked.entries.keys,
        value_lens: unpacked.value_lens,
        counts,
        count,
    };
    work.launch("count_verdicts", count.div_ceil(COUNT_GROUP), &args)?;
    let found = work.read(counts)?;
    let [shadowed, covered, tombstones, raw] = [found[0], found[1], found[2], found[3]];
    let dropped = shadowed.saturating_add(covered).saturating_add(tombstones);
    let is_possible = dropped <= count && (12 * count..=count << 32).contains(&raw);
    check(is_possible, "the number of entries that are dropped")?;
    Ok(Counts {
        entries: count,
        raw_bytes: raw,
        shadowed,
        covered,
        tombstones,
    })
}

/// Gathers what is kept, according to the verdicts.
pub(crate) fn gather(
    work: &mut Work,
    unpacked: &Unpacked,
    sorted: &Sorted,
    (verdicts, places): (Array<u8>, Array<u32>),
) -> Result<Kept> {
    work.scan32(places, sorted.count)?;
    let found = work.read(places.part(sorted.count, 1))?;
    let count = u64::from(found[0]);
    check(count <= sorted.count, "the number of entries that are kept")?;
    let entries = work.take(count + 1)?;
    let args = ListSurvivors {
        kept: places,
        verdicts,
        items: sorted.items,
        entries,
        count: sorted.count,
    };
    work.launch("list_survivors", sorted.count, &args)?;
    let keys = unpacked.entries.keys;
    let survivors = Survivors {
        keys: Keys {
            words: keys.words,
            places: work.take(count + 1)?,
            lens: work.take(count + 1)?,
        },
        trailers: work.take(count + 1)?,
        value_places: work.take(count + 1)?,
        value_lens: work.take(count + 1)?,
        shared: work.take(count + 1)?,
        is_new: work.take(count + 1)?,
    };
    let (raw, value_starts) = (work.take(count + 1)?, work.take(count + 1)?);
    let errors = work.take(1)?;
    work.fill(errors, 0xff)?;
    let args = GatherSurvivors {
        entries,
        keys,
        trailers: unpacked.entries.trailers,
        value_places: unpacked.value_places,
        value_lens: unpacked.value_lens,
        survivors,
        raw_bytes: raw,
        value_bytes: value_starts,
        errors,
        count,
    };
    work.launch("gather_survivors", count, &args)?;
    work.scan64(raw, count)?;
    work.scan64(value_starts, count)?;
    let found = work.download(&[errors.cast()])?;
    Found::new(&found).check_entries()?;
    Ok(Kept {
        survivors,
        count,
        raw,
        value_starts,
        verdicts,
        places,
    })
}

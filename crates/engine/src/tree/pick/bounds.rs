//! A job's parameters besides the inputs of a choice: the keys at which its outputs are cut, the
//! keys at which it is split into subjobs, and the ranges that older data may have.
//!
//! Threading: pure functions.

use super::*;
use siltstone_storage::planted;

/// Soft cuts for outputs on level `to` within `range`: the starts of the tables of the next level,
/// in strictly ascending order, strictly inside the range. There are none for the bottom level.
pub fn soft_cuts(version: &KeyspaceVersion, to: u8, range: &KeyRange) -> Vec<Key> {
    if to >= BOTTOM_LEVEL {
        return Vec::new();
    }
    let tables = version.level(to + 1).overlapping_tables(range);
    let starts = tables.iter().map(|t| match &t.points {
        Some((smallest, _)) => smallest,
        None => &t.bounds.start,
    });
    let mut cuts: Vec<Key> = starts
        .filter(|key| key[..] > range.start[..] && range.end.reaches(key))
        .cloned()
        .collect();
    cuts.dedup();
    cuts
}

/// How a job is cut into subjobs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Division {
    /// Into at most this many subjobs of about equal input bytes.
    Equal(usize),
    /// Into two subjobs, of which the first has this share of the input bytes, between 0 and 1.
    InTwo {
        /// The share of the first subjob.
        first_share: f64,
    },
}

/// Hard cuts that divide a choice into subjobs, each of at least about `min_bytes` input bytes.
/// They are in strictly ascending order, strictly inside the choice's range.
///
/// `anchors` may return keys inside a table, in ascending order, that divide its bytes into equal
/// parts (from its index). If it returns none, only table boundaries are used.
pub fn hard_cuts(
    choice: &Choice,
    division: Division,
    min_bytes: u64,
    anchors: &dyn Fn(&TableMeta) -> Vec<Key>,
) -> Vec<Key> {
    let parallel = match division {
        Division::Equal(parallel) => parallel,
        Division::InTwo { .. } => 2,
    };
    let parts = (parallel as u64).min(choice.input_bytes / min_bytes.max(1));
    if parts < 2 {
        return Vec::new();
    }
    // Pieces of bytes, each between two keys. A cut may be placed where a piece starts.
    let mut pieces: Vec<(Key, End, u64)> = Vec::new();
    for table in choice.tables() {
        let inside = anchors(table);
        let inside: Vec<&Key> = inside
            .iter()
            .filter(|key| table.bounds.contains(key) && **key != table.bounds.start)
            .collect();
        let share = table.file_bytes / (inside.len() as u64 + 1);
        let mut start = &table.bounds.start;
        for key in inside {
            if key > start {
                pieces.push((start.clone(), End::Excluded(key.clone()), share));
                start = key;
            }
        }
        pieces.push((start.clone(), table.bounds.end.clone(), share));
    }
    let mut keys: Vec<&Key> = pieces.iter().map(|(start, _, _)| start).collect();
    keys.sort_unstable();
    keys.dedup();
    // The bytes of a piece are spread evenly over the intervals between keys that it spans.
    // `change[i]` is the number of bytes that interval i has more than the one before it.
    let mut change = vec![0.0f64; keys.len() + 1];
    for (start, end, bytes) in &pieces {
        let from = keys.partition_point(|key| *key < start);
        let to = keys.partition_point(|key| end.reaches(key)).max(from + 1);
        let each = *bytes as f64 / (to - from) as f64;
        change[from] += each;
        change[to] -= each;
    }
    let all = choice.input_bytes as f64;
    if let Division::InTwo { first_share } = division {
        let least = min_bytes as f64;
        let wanted = (all * first_share).clamp(least, all - least);
        let sums = change.iter().scan((0.0, 0.0), |(each, before), change| {
            let sum = *before;
            *each += change;
            *before += *each;
            Some(sum)
        });
        let inside = keys.iter().zip(sums);
        let leaves_enough = |sum: f64| sum >= least / 2.0 && sum <= all - least / 2.0;
        let inside =
            inside.filter(|(key, sum)| key[..] > choice.range.start[..] && leaves_enough(*sum));
        let nearest = inside.min_by(|(_, a), (_, b)| {
            let distance = |sum: &f64| (wanted - sum).abs();
            distance(a).total_cmp(&distance(b))
        });
        return nearest.into_iter().map(|(key, _)| (*key).clone()).collect();
    }
    let step = all / parts as f64;
    let (mut each, mut before, mut cuts) = (0.0, 0.0, Vec::new());
    for (i, key) in keys.iter().enumerate() {
        // The cut is placed at the key that is nearest to the wanted sum.
        let wanted = step * (cuts.len() + 1) as f64;
        let next = each + change[i];
        let is_nearest = before >= wanted || (wanted - before) < (before + next - wanted);
        let leaves_enough = before >= step / 2.0 && before <= all - step / 2.0;
        if is_nearest
            && leaves_enough
            && (cuts.len() as u64) < parts - 1
            && key[..] > choice.range.start[..]
        {
            cuts.push((*key).clone());
        }
        each = next;
        before += each;
    }
    cuts
}

/// The key ranges within the choice's range that data outside the job and older than its inputs may
/// have: deeper levels, older runs that are not inputs, and the whole range if an unsettled source
/// is older than the newest input. They are disjoint, in ascending order. Outside of these ranges a
/// tombstone may be dropped.
///
/// The outputs of running jobs lie within the bounds of their inputs, so their inputs count
/// instead.
pub fn older_ranges(
    version: &KeyspaceVersion,
    choice: &Choice,
    unsettled: &[SeqRange],
) -> Vec<KeyRange> {
    let newest = choice
        .inputs
        .iter()
        .filter_map(|input| input.run)
        .map(|(_, seqs)| seqs.hi)
        .max();
    if newest.is_some_and(|newest| unsettled.iter().any(|u| !u.is_empty() && u.lo < newest)) {
        return vec![choice.range.clone()];
    }
    let inputs: BTreeSet<u64> = choice.tables().map(|t| t.id).collect();
    let mut ranges = Ranges::default();
    let mut count = |tables: &[Arc<TableMeta>]| {
        for table in tables.iter().filter(|t| !inputs.contains(&t.id)) {
            if let Some(range) = table.bounds.common(&choice.range) {
                ranges.add(&range);
            }
        }
    };
    if let Some(newest) = newest.filter(|_| !planted!(OlderRunIsIgnored)) {
        for run in version.runs().iter().filter(|run| run.seqs.hi < newest) {
            count(run.tables.overlapping_tables(&choice.range));
        }
    }
    for level in (choice.from + 1).min(choice.to).max(1)..=BOTTOM_LEVEL {
        count(version.level(level).overlapping_tables(&choice.range));
    }
    ranges.ranges
}

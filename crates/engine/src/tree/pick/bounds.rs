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

/// Hard cuts that split a choice into at most `parallel` subjobs of about equal input bytes, each
/// of at least `min_bytes`. They are in strictly ascending order, strictly inside the choice's
/// range.
///
/// `anchors` may return keys inside a table, in ascending order, that divide its bytes into equal
/// parts (from its index). If it returns none, only table boundaries are used.
pub fn hard_cuts(
    choice: &Choice,
    parallel: usize,
    min_bytes: u64,
    anchors: &dyn Fn(&TableMeta) -> Vec<Key>,
) -> Vec<Key> {
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
    let step = choice.input_bytes as f64 / parts as f64;
    let (mut each, mut before, mut cuts) = (0.0, 0.0, Vec::new());
    let end = choice.input_bytes as f64 - step / 2.0;
    for (i, key) in keys.iter().enumerate() {
        // The cut is placed at the key that is nearest to the wanted sum.
        let wanted = step * (cuts.len() + 1) as f64;
        let next = each + change[i];
        let is_nearest = before >= wanted || (wanted - before) < (before + next - wanted);
        let leaves_enough = before >= step / 2.0 && before <= end;
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

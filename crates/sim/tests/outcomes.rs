//! Outcomes of executors that lie in a way that fits: the tables are sound, and they and the record
//! of the outcome say the same. What is compared with the inputs, and which blocks are read, is
//! drawn from a seed, and each of these lies shows whatever is drawn. (Row 13 of
//! `docs/reliability.md`, the half of what a device computes)

#[path = "../../table/tests/common/mod.rs"]
mod tables;

use siltstone_sim::coverage::Coverage;
use siltstone_sim::rng::Rng;
use siltstone_sim::trials::seeds;
use siltstone_table::exec::CancelToken;
use siltstone_table::job::outcome::Outcome;
use siltstone_table::job::ranges::{RangeSample, verify_ranges};
use siltstone_table::job::verify::{Sample, verify_outcome};
use tables::forged::{Honest, forge, forge_sections, honest};
use tables::read_table;

/// Compares ranges of the outcome with the inputs. Returns why it is rejected, if it is.
fn ranges(h: &Honest, outcome: &Outcome, sample: RangeSample) -> Option<String> {
    let cancel = CancelToken::new();
    let checked = verify_ranges(&h.job, outcome, &h.inputs, &*h.storage, sample, &cancel);
    let checked = checked.expect("sound inputs");
    checked.err().map(|rejected| rejected.reason)
}

/// A table whose filter has no key, so that gets find none.
fn filter_is_empty(h: &Honest, table: usize, seed: u64) -> Option<String> {
    let lied = forge_sections(h, table, |bits, _| bits.fill(0));
    let sample = Sample::Share {
        per_mille: 20,
        most: 8,
        seed,
    };
    let checked = h.verify(&lied, sample);
    checked.err().map(|rejected| rejected.to_string())
}

/// A table whose first or last key is that of another entry, so that readers and the next
/// compaction skip what lies outside.
fn end_is_another_key(h: &Honest, table: usize, rng: &mut Rng) -> Option<String> {
    let content = read_table(&*h.storage, &h.outcome.tables[table].name);
    let keys: Vec<Vec<u8>> = content
        .sorted()
        .into_iter()
        .map(|(key, _, _)| key)
        .collect();
    let is_first = rng.chance(50);
    let other = match is_first {
        true => keys.iter().find(|key| **key != keys[0]),
        false => keys.iter().rev().find(|key| **key != keys[keys.len() - 1]),
    };
    let other = other.expect("two keys").clone();
    let set = |first: &mut Vec<u8>, last: &mut Vec<u8>| match is_first {
        true => first.clone_from(&other),
        false => last.clone_from(&other),
    };
    let mut lied = forge_sections(h, table, |_, properties| {
        let keys = properties.smallest_key.as_mut();
        let (first, last) = keys.zip(properties.largest_key.as_mut()).expect("keys");
        set(first, last);
    });
    let (first, last) = lied.tables[table].keys.as_mut().expect("keys");
    set(first, last);
    ranges(h, &lied, RangeSample::drawn(rng.draw()))
}

/// A table in which every value is another one.
fn values_are_others(h: &Honest, table: usize, seed: u64) -> Option<String> {
    let lied = forge(h, table, |entries, _| {
        for (_, _, value) in entries.iter_mut() {
            value.iter_mut().for_each(|byte| *byte ^= 0x55);
        }
    });
    ranges(h, &lied, RangeSample::drawn(seed))
}

/// A table that lacks its first entry, or any other. All of it is compared.
fn an_entry_is_missing(h: &Honest, table: usize, rng: &mut Rng) -> Option<String> {
    let (is_first, drawn) = (rng.chance(50), rng.draw());
    let lied = forge(h, table, |entries, _| {
        let at = if is_first {
            0
        } else {
            drawn as usize % entries.len()
        };
        entries.remove(at);
    });
    ranges(h, &lied, RangeSample::All)
}

/// A subjob of which all entries are said to have been dropped.
fn a_subjob_is_missing(h: &Honest, seed: u64) -> Option<String> {
    let mut lied = h.outcome.clone();
    lied.tables.retain(|table| table.subjob == 0);
    let c = &mut lied.counters;
    c.entries_written = lied.tables.iter().map(|table| table.entries).sum();
    c.bytes_written = lied.tables.iter().map(|table| table.file_bytes).sum();
    c.shadowed = c.entries_read - c.entries_written - c.covered - c.tombstones;
    verify_outcome(&h.job, &lied).expect("counts that fit");
    ranges(h, &lied, RangeSample::drawn(seed))
}

fn trial(seed: u64) -> Coverage {
    let mut coverage = Coverage::default();
    let mut rng = Rng::new(seed ^ 0x11E5);
    let h = honest();
    let drawn = rng.draw();
    // What is honest is accepted.
    h.verify(&h.outcome, Sample::All)
        .expect("an honest outcome");
    assert_eq!(ranges(&h, &h.outcome, RangeSample::drawn(drawn)), None);
    let table = rng.index(h.outcome.tables.len());
    let (lie, said, rejected) = match rng.below(5) {
        0 => ("filter", "filter lacks", filter_is_empty(&h, table, drawn)),
        1 => {
            let rejected = end_is_another_key(&h, table, &mut rng);
            ("end", "first or last key", rejected)
        }
        2 => (
            "values",
            "differs from",
            values_are_others(&h, table, drawn),
        ),
        3 => ("entry", "lacks", an_entry_is_missing(&h, table, &mut rng)),
        _ => (
            "subjob",
            "none of the subjob lacks",
            a_subjob_is_missing(&h, drawn),
        ),
    };
    let rejected = rejected.unwrap_or_else(|| panic!("{lie} of table {table}: it is believed"));
    assert!(
        rejected.contains(said),
        "{lie} of table {table}: {rejected}"
    );
    coverage.add(&format!("lies.{lie}"));
    coverage
}

/// Each seed is one lie of an executor about a job of two subjobs. (Row 13)
#[test]
fn outcome_lies() {
    let wanted = [
        "lies.filter",
        "lies.end",
        "lies.values",
        "lies.entry",
        "lies.subjob",
    ];
    seeds("outcome_lies", 1, 200, &wanted, trial);
}

//! Executors whose tables are consistent and wrong: what no check of the tables alone can find,
//! [`verify_ranges`] finds by deriving ranges of them anew from the inputs.

mod common;

use std::sync::Arc;

use common::cases::*;
use common::forged::*;
use common::*;
use proptest::prelude::*;
use siltstone_storage::Storage;
use siltstone_table::exec::{CancelToken, CpuExecutor, ExecContext, ExecError, Executor};
use siltstone_table::job::fragments::verify_range_deletes;
use siltstone_table::job::outcome::Outcome;
use siltstone_table::job::ranges::{RangeSample, RangesChecked, verify_ranges};
use siltstone_table::job::verify::{
    AskStorage, Rejected, Sample, Synced, verify_outcome, verify_tables,
};
use siltstone_table::key::{Kind, trailer};

impl Honest {
    fn ranges(&self, outcome: &Outcome, sample: RangeSample) -> Result<RangesChecked, Rejected> {
        let storage = &*self.storage;
        let cancel = CancelToken::new();
        verify_ranges(&self.job, outcome, &self.inputs, storage, sample, &cancel).unwrap()
    }

    /// Asserts that every other check accepts the outcome.
    fn is_consistent(&self, what: &str, outcome: &Outcome) {
        self.verify(outcome, Sample::All)
            .unwrap_or_else(|e| panic!("{what}: {e}"));
        verify_range_deletes(&self.job, outcome, &self.inputs, &*self.storage)
            .unwrap()
            .unwrap_or_else(|e| panic!("{what}: {e}"));
    }
}

/// The sequence numbers at which [`honest`] has a delete that it keeps, in a table.
fn kept_delete(entries: &Entries) -> usize {
    let is_delete = |e: &(Vec<u8>, u64, Vec<u8>)| e.1 as u8 == Kind::Delete as u8;
    entries.iter().position(is_delete).unwrap()
}

type Entries = Vec<(Vec<u8>, u64, Vec<u8>)>;

/// A lie: its name, the change of a table's entries, and a part of the reason why it is rejected.
type Lie = (&'static str, fn(&mut Entries), &'static str);

fn lies() -> Vec<Lie> {
    vec![
        (
            "two values swapped",
            |e| {
                // The lengths are equal, so neither counts nor the layout change.
                let put = |e: &(Vec<u8>, u64, Vec<u8>)| e.1 as u8 == Kind::Put as u8;
                let (a, b) = (0..e.len())
                    .flat_map(|a| (a + 1..e.len()).map(move |b| (a, b)))
                    .find(|&(a, b)| {
                        let same_len = e[a].2.len() == e[b].2.len();
                        put(&e[a]) && put(&e[b]) && same_len && e[a].2 != e[b].2
                    })
                    .unwrap();
                let value = e[a].2.clone();
                e[a].2 = std::mem::replace(&mut e[b].2, value);
            },
            "differs from",
        ),
        ("an entry missing", |e| drop(e.remove(7)), "lacks the"),
        (
            "the first entry missing",
            |e| drop(e.remove(0)),
            "lacks the",
        ),
        ("the last entry missing", |e| drop(e.pop()), "lacks the"),
        (
            "a delete dropped that hides older data",
            |e| {
                let at = kept_delete(e);
                e.remove(at);
            },
            "lacks the delete",
        ),
        (
            "an entry more",
            |e| {
                let mut key = e[5].0.clone();
                key.push(b'x');
                let seq = e[5].1;
                e.insert(6, (key, seq, e[5].2.clone()));
            },
            "does not keep",
        ),
        (
            "an entry more behind the last",
            |e| {
                let (mut key, seq, value) = e.last().unwrap().clone();
                key.push(b'x');
                e.push((key, seq, value));
            },
            "does not keep",
        ),
        (
            "another number",
            |e| {
                // Between the smallest and the largest of the table.
                let mut seqs: Vec<u64> = e.iter().map(|e| e.1 >> 8).collect();
                seqs.sort_unstable();
                let middle = seqs[seqs.len() / 2];
                let at = e
                    .iter()
                    .position(|e| e.1 >> 8 != middle && seqs[0] < e.1 >> 8)
                    .unwrap();
                e[at].1 = trailer(middle, Kind::Put);
                e[at].2.resize(40, 1);
            },
            "",
        ),
        (
            "a delete that is a put of nothing",
            |e| {
                let at = kept_delete(e);
                e[at].1 = trailer(e[at].1 >> 8, Kind::Put);
            },
            "",
        ),
    ]
}

#[test]
fn consistent_lies_are_found_by_the_inputs() {
    for (what, lie, says) in lies() {
        let h = honest();
        for table in 0..h.outcome.tables.len() {
            let h = honest();
            // The control: a forged table without a change is accepted.
            let same = forge(&h, table, |_, _| {});
            h.ranges(&same, RangeSample::All).unwrap();
            let lied = forge(&h, table, |entries, _| lie(entries));
            // Without this lie's rejection it would be installed. (A moved first or last key, or a
            // byte more or less, may show in the layout.)
            let shows_elsewhere = h.verify(&lied, Sample::All).is_err();
            let is_subtle = what.contains("swapped") || what.contains("a put of nothing");
            assert!(!(is_subtle && shows_elsewhere), "{what}");
            let rejected = h.ranges(&lied, RangeSample::All).expect_err(what);
            assert!(rejected.reason.contains(says), "{what}: {rejected}");
            assert!(
                rejected.reason.contains(&h.outcome.tables[table].name),
                "{what}: {rejected}"
            );
        }
    }
}

/// Gets ask the filter first, so a key that it lacks is lost to them.
#[test]
fn a_filter_that_lacks_keys_is_found() {
    let h = honest();
    let same = forge_sections(&h, 0, |_, _| {});
    h.verify(&same, Sample::All).unwrap();
    let empty = forge_sections(&h, 0, |bits, _| bits.fill(0));
    for sample in [
        Sample::All,
        Sample::Share {
            per_mille: 20,
            most: 8,
            seed: 1,
        },
    ] {
        let rejected = h.verify(&empty, sample).unwrap_err();
        assert!(rejected.reason.contains("filter lacks key"), "{rejected}");
    }
}

/// Readers skip a table by its first and last key, and the next compaction takes no entries outside
/// them. The lie is told in the table and in the outcome alike.
#[test]
fn a_first_or_last_key_that_is_not_that_of_an_entry_is_found() {
    let drawn = RangeSample::Drawn {
        per_mille: 20,
        seed: 7,
    };
    let lie = |is_first: bool| {
        let h = honest();
        let table = h.outcome.tables.len() - 1;
        let content = read_table(&*h.storage, &h.outcome.tables[table].name);
        let entries = content.sorted();
        let keys: Vec<&Vec<u8>> = entries.iter().map(|(key, _, _)| key).collect();
        let other = match is_first {
            true => keys.iter().find(|key| **key != keys[0]),
            false => keys.iter().rev().find(|key| **key != keys[keys.len() - 1]),
        };
        let other = other.unwrap().to_vec();
        let set = |keys: (&mut Vec<u8>, &mut Vec<u8>)| match is_first {
            true => *keys.0 = other.clone(),
            false => *keys.1 = other.clone(),
        };
        let mut outcome = forge_sections(&h, table, |_, p| {
            let keys = p.smallest_key.as_mut().zip(p.largest_key.as_mut());
            set(keys.unwrap());
        });
        let record = &mut outcome.tables[table];
        let (first, last) = record.keys.as_mut().unwrap();
        set((first, last));
        let rejected = h.ranges(&outcome, drawn).unwrap_err();
        assert!(rejected.reason.contains("first or last key"), "{rejected}");
    };
    lie(true);
    lie(false);
    let h = honest();
    h.ranges(&h.outcome, drawn).unwrap();
}

/// The lies of one entry, in the middle of a table whose layout does not change by them, pass all
/// other checks.
#[test]
fn a_missing_and_an_added_entry_pass_all_other_checks() {
    let mut passed = 0;
    for (what, lie, _) in lies() {
        let h = honest();
        // The last table of the last subjob: a size that differs changes no other table.
        let table = h.outcome.tables.len() - 1;
        let lied = forge(&h, table, |entries, _| lie(entries));
        if h.verify(&lied, Sample::All).is_ok() {
            h.is_consistent(what, &lied);
            passed += 1;
        }
        h.ranges(&lied, RangeSample::All).expect_err(what);
    }
    assert!(passed >= 7, "{passed}");
}

#[test]
fn places_that_are_drawn_find_what_is_wrong_everywhere() {
    for seed in 0..60 {
        let h = honest();
        let sample = RangeSample::drawn(seed);
        let checked = h.ranges(&h.outcome, sample).unwrap();
        let tables = h.outcome.tables.len() as u64;
        assert!(
            checked.places >= tables && checked.entries > 0,
            "{checked:?}"
        );
        // Every value of one table belongs to another key, in the same order of lengths.
        let table = seed as usize % h.outcome.tables.len();
        let lied = forge(&h, table, |entries, _| {
            for e in entries.iter_mut() {
                e.2.iter_mut().for_each(|b| *b ^= 0x55);
            }
        });
        h.is_consistent("all values", &lied);
        let rejected = h.ranges(&lied, sample).expect_err("all values");
        assert!(rejected.reason.contains("differs from"), "{rejected}");
    }
}

/// A job of two runs with values of 4 to 6 KiB, which is run honestly.
fn with_large_values() -> Honest {
    let runtime = siltstone_storage::Runtime::threads();
    let storage = Arc::new(siltstone_storage::MemoryStorage::new(&runtime));
    let mut inputs = siltstone_table::exec::InputMap::new();
    let mut job = a_job(3000);
    job.limits = siltstone_table::job::OutputLimits::new(64 << 10, 8 << 10, true);
    for run in 0..2u64 {
        let mut content = Content::default();
        for i in 0..60u64 {
            let seq = run * 1000 + i + 1;
            let key = format!("k{:04}", i * 2 + run * (i % 2)).into_bytes();
            let len = (4 << 10) + (i * 37 % 2048) as usize;
            let value = (0..len).map(|at| (at as u64 * 31 + seq) as u8).collect();
            content.entries.push((key, trailer(seq, Kind::Put), value));
        }
        let input = table_input(&mut inputs, &storage, &format!("in-{run}.tbl"), &content);
        job.inputs.push(siltstone_table::job::Input {
            run: run as u32,
            ..input
        });
    }
    Honest::of(runtime, storage, inputs, job)
}

/// Large values are not read as a whole, and still every place shows a table of which all of them
/// are wrong, or of which an entry is missing there.
#[test]
fn of_large_values_windows_are_compared() {
    let h = with_large_values();
    let whole = h.ranges(&h.outcome, RangeSample::All).unwrap();
    for seed in 0..60 {
        let h = with_large_values();
        let sample = RangeSample::drawn(seed);
        let checked = h.ranges(&h.outcome, sample).unwrap();
        let tables = h.outcome.tables.len() as u64;
        assert!(checked.places >= tables && checked.entries > 0);
        // Whole blocks of the same places would have at least one value of each side.
        let most = checked.places * ((8 << 10) + 1024);
        assert!(
            checked.bytes < most.min(whole.bytes),
            "{checked:?} {whole:?}"
        );
        let table = seed as usize % h.outcome.tables.len();
        let lied = forge(&h, table, |entries, _| {
            for e in entries.iter_mut() {
                e.2.iter_mut().for_each(|b| *b ^= 0x55);
            }
        });
        let rejected = h.ranges(&lied, sample).expect_err("all values");
        assert!(rejected.reason.contains("differs from"), "{rejected}");
        let lied = forge(&h, table, |entries, _| {
            for e in entries.iter_mut() {
                e.2.pop();
            }
        });
        let rejected = h.ranges(&lied, sample).expect_err("all lengths");
        assert!(rejected.reason.contains("differs from"), "{rejected}");
    }
    // Every second entry of a table is missing.
    let found = (0..60).filter(|seed| {
        let h = with_large_values();
        let lied = forge(&h, 1, |entries, _| {
            let mut is_kept = false;
            entries.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
        });
        h.ranges(&lied, RangeSample::drawn(*seed)).is_err()
    });
    let found = found.count();
    assert!(found > 50, "{found} of 60");
}

/// The size of values is that of the inputs, so an executor that says that its values are large is
/// still compared as a whole.
#[test]
fn an_executor_does_not_choose_that_windows_are_compared() {
    // All places are drawn, many times over.
    let sample = |seed| RangeSample::Drawn {
        per_mille: 1_000_000,
        seed,
    };
    let claim = |mut outcome: Outcome| {
        let tables = outcome.tables.iter_mut();
        tables.for_each(|table| table.raw_bytes = table.entries * (1 << 20));
        outcome
    };
    let h = honest();
    let checked = h.ranges(&h.outcome, sample(0)).unwrap();
    assert_eq!(h.ranges(&claim(h.outcome.clone()), sample(0)), Ok(checked));
    for seed in 0..20 {
        let h = honest();
        let lied = forge(&h, 0, |entries, _| {
            let is_put = |e: &&mut (Vec<u8>, u64, Vec<u8>)| e.1 as u8 == Kind::Put as u8;
            entries.iter_mut().find(is_put).unwrap().2[0] ^= 1;
        });
        let rejected = h.ranges(&claim(lied), sample(seed)).unwrap_err();
        assert!(rejected.reason.contains("differs from"), "{rejected}");
    }
}

/// Where a place has small values, all of them are compared, even if those of the inputs are large
/// on average.
#[test]
fn a_place_with_small_values_is_compared_as_a_whole() {
    let mixed = || {
        let runtime = siltstone_storage::Runtime::threads();
        let storage = Arc::new(siltstone_storage::MemoryStorage::new(&runtime));
        let mut inputs = siltstone_table::exec::InputMap::new();
        let mut job = a_job(3000);
        job.limits = siltstone_table::job::OutputLimits::new(4 << 10, 512, true);
        let mut content = Content::default();
        for i in 0..400u64 {
            // The first keys have large values.
            let len = if i < 40 { 64 << 10 } else { 40 };
            let key = format!("k{i:04}").into_bytes();
            let put = (key, trailer(i + 1, Kind::Put), vec![i as u8; len]);
            content.entries.push(put);
        }
        let input = table_input(&mut inputs, &storage, "in-0.tbl", &content);
        job.inputs.push(input);
        Honest::of(runtime, storage, inputs, job)
    };
    for seed in 0..10 {
        let h = mixed();
        let sample = RangeSample::Drawn {
            per_mille: 1_000_000,
            seed,
        };
        h.ranges(&h.outcome, sample).unwrap();
        let last = h.outcome.tables.len() - 1;
        let lied = forge(&h, last, |entries, _| entries[3].2[5] ^= 1);
        let rejected = h.ranges(&lied, sample).unwrap_err();
        assert!(rejected.reason.contains("differs from"), "{rejected}");
    }
}

/// Over many seeds, one wrong block is found about as often as its share of the places says, so the
/// places depend on the seed.
#[test]
fn places_depend_on_the_seed() {
    let h = honest();
    let table = 0;
    let lied = forge(&h, table, |entries, _| {
        let at = entries.len() / 2;
        entries[at].2.iter_mut().for_each(|b| *b ^= 1);
    });
    let sample = |seed| RangeSample::Drawn { per_mille: 1, seed };
    let found = (0..200).filter(|seed| h.ranges(&lied, sample(*seed)).is_err());
    let found = found.count();
    assert!((3..150).contains(&found), "{found} of 200");
    // The same seed, the same places.
    assert_eq!(
        h.ranges(&h.outcome, sample(7)).unwrap(),
        h.ranges(&h.outcome, sample(7)).unwrap()
    );
}

/// An executor that says of a whole subjob, or of a whole part of a table, that all was dropped.
#[test]
fn a_range_without_outputs_is_compared_too() {
    let h = honest();
    let mut lied = h.outcome.clone();
    // The second subjob has no tables. Its entries count as shadowed. Range deletes are kept, so
    // the job is made one without any there.
    lied.tables.retain(|t| t.subjob == 0);
    let c = &mut lied.counters;
    c.entries_written = lied.tables.iter().map(|t| t.entries).sum();
    c.bytes_written = lied.tables.iter().map(|t| t.file_bytes).sum();
    c.shadowed = c.entries_read - c.entries_written - c.covered - c.tombstones;
    verify_outcome(&h.job, &lied).unwrap();
    for seed in 0..40 {
        let rejected = h.ranges(&lied, RangeSample::drawn(seed)).unwrap_err();
        let reason = &rejected.reason;
        assert!(reason.contains("none of the subjob lacks"), "{rejected}");
    }
    h.ranges(&lied, RangeSample::All).unwrap_err();
    // A table of which three quarters are missing in one piece, so that nearly all of its blocks
    // are right.
    let h = honest();
    let table = h.outcome.tables.len() - 1;
    let lied = forge(&h, table, |entries, _| {
        let n = entries.len();
        entries.drain(n / 8..n - n / 8);
    });
    let found = (0..40).filter(|seed| h.ranges(&lied, RangeSample::drawn(*seed)).is_err());
    let found = found.count();
    assert!(found >= 30, "{found} of 40");
}

#[test]
fn failures_of_storage_and_inputs_are_no_lies() {
    let h = honest();
    let storage = &*h.storage;
    let cancel = CancelToken::new();
    let check = |h: &Honest, cancel: &CancelToken| {
        let sample = RangeSample::All;
        verify_ranges(&h.job, &h.outcome, &h.inputs, &*h.storage, sample, cancel)
    };
    check(&h, &cancel).unwrap().unwrap();
    cancel.cancel();
    let cancelled = check(&h, &cancel);
    assert!(
        matches!(cancelled, Err(ExecError::Cancelled)),
        "{cancelled:?}"
    );
    // A damaged output, and one that is gone, are the executor's.
    let name = h.outcome.tables[1].name.clone();
    let mut bytes = storage.read_small(&name).unwrap();
    bytes[9] ^= 1;
    storage.replace(epoch(), &name, &bytes).unwrap();
    let rejected = h.ranges(&h.outcome, RangeSample::All).unwrap_err();
    assert!(rejected.reason.contains("checksum"), "{rejected}");
    storage.delete(epoch(), &name).unwrap();
    h.ranges(&h.outcome, RangeSample::All).unwrap_err();
    // A damaged input is not.
    let mut h = honest();
    let mut bytes = h.storage.read_small("in-1.tbl").unwrap();
    bytes[9] ^= 1;
    h.storage.replace(epoch(), "in-1.tbl", &bytes).unwrap();
    h.inputs
        .add_table(0, "in-1.tbl", h.storage.open("in-1.tbl").unwrap());
    let failed = check(&h, &CancelToken::new());
    assert!(matches!(failed, Err(ExecError::Failed(_))), "{failed:?}");
}

#[test]
fn the_storage_says_what_is_synced() {
    let h = honest();
    let asked = AskStorage {
        storage: &*h.storage,
        epoch: epoch(),
    };
    verify_tables(&h.job, &h.outcome, &*h.storage, &asked, Sample::None)
        .unwrap()
        .unwrap();
    let table = &h.outcome.tables[0];
    assert!(!asked.is_synced(&table.name, table.file_bytes + 1).unwrap());
    assert!(!asked.is_synced("none.tbl", 1).unwrap());
    // A table that was not synced is synced by the question.
    let bytes = h.storage.read_small(&table.name).unwrap();
    h.storage.delete(epoch(), &table.name).unwrap();
    let file = h.storage.create(epoch(), &table.name).unwrap();
    file.append(&[&bytes]).unwrap();
    h.storage.sync_dir(epoch()).unwrap();
    assert!(asked.is_synced(&table.name, table.file_bytes).unwrap());
    let after = h
        .storage
        .crash(siltstone_storage::CrashPolicy::LoseUnsynced);
    assert_eq!(after.read_small(&table.name).unwrap(), bytes);
    // A storage that fails is no lie.
    use siltstone_storage::fault::{Fault, Rule};
    use siltstone_storage::{FaultStorage, Runtime, StorageErrorKind};
    let faults = FaultStorage::new(h.storage.clone(), &Runtime::threads());
    faults.add(Rule::on_changes(Fault::Fail(StorageErrorKind::Io)));
    let asked = AskStorage {
        storage: &faults,
        epoch: epoch(),
    };
    verify_tables(&h.job, &h.outcome, &faults, &asked, Sample::None).unwrap_err();
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(debug_assertions) { 250 } else { 4000 },
        ..ProptestConfig::default()
    })]

    /// Honest outcomes pass, whatever is compared, also over streams. What is read is counted.
    #[test]
    fn honest_outcomes_pass(case in a_case(), seed in any::<u64>(), per_mille in 0u32..1500) {
        let w = world(&case);
        let outcome = CpuExecutor::new().run(&w.job, &w.context()).unwrap();
        let cancel = CancelToken::new();
        for sample in [RangeSample::All, RangeSample::Drawn { per_mille, seed }] {
            let checked =
                verify_ranges(&w.job, &outcome, &*w.inputs, &*w.storage, sample, &cancel);
            let checked = checked.unwrap().unwrap();
            let with_entries = outcome.tables.iter().filter(|t| t.entries > 0).count() as u64;
            prop_assert!(checked.places >= with_entries);
            prop_assert_eq!(checked.entries > 0, outcome.counters.entries_written > 0);
            if sample == RangeSample::All {
                prop_assert_eq!(checked.entries, outcome.counters.entries_written);
            }
        }
    }

    /// One entry that is changed, missing or new is found if all ranges are compared.
    #[test]
    fn any_one_lie_is_found(
        case in a_case(),
        at in any::<prop::sample::Index>(),
        how in 0u8..4,
    ) {
        let w = world(&case);
        let outcome = CpuExecutor::new().run(&w.job, &w.context()).unwrap();
        prop_assume!(outcome.counters.entries_written > 0);
        let with_entries: Vec<usize> =
            (0..outcome.tables.len()).filter(|t| outcome.tables[*t].entries > 0).collect();
        let table = with_entries[at.index(with_entries.len())];
        let h = Honest {
            storage: w.storage.clone(),
            inputs: (*w.inputs).clone(),
            job: w.job.clone(),
            outcome,
        };
        let alone = h.outcome.tables[table].entries == 1;
        let lied = forge(&h, table, |entries, _| {
            let i = at.index(entries.len());
            match how {
                0 if !alone => drop(entries.remove(i)),
                1 => {
                    let mut key = entries[i].0.clone();
                    key.push(0);
                    let new = (key, entries[i].1, entries[i].2.clone());
                    let after = entries.iter().position(|e| e.0 > new.0);
                    if entries.iter().all(|e| e.0 != new.0) {
                        entries.insert(after.unwrap_or(entries.len()), new);
                    } else {
                        entries[i].2.push(3);
                    }
                }
                2 => entries[i].1 ^= 1,
                _ => entries[i].2.push(7),
            }
        });
        h.ranges(&lied, RangeSample::All).unwrap_err();
    }
}

/// What is read for a sample is about the share that was asked for.
#[test]
fn a_sample_reads_its_share() {
    let runtime = siltstone_storage::Runtime::threads();
    let storage = Arc::new(siltstone_storage::MemoryStorage::new(&runtime));
    let mut inputs = siltstone_table::exec::InputMap::new();
    let mut job = a_job(100_000);
    job.limits = siltstone_table::job::OutputLimits::new(1 << 20, 512, false);
    let mut bytes = 0;
    for run in 0..2u64 {
        let mut content = Content::default();
        for i in 0..20_000u64 {
            let key = format!("k{:06}", i * 2 + run).into_bytes();
            let seq = run * 50_000 + i + 1;
            content
                .entries
                .push((key, trailer(seq, Kind::Put), vec![1; 80]));
        }
        let input = table_input(&mut inputs, &storage, &format!("in-{run}.tbl"), &content);
        bytes += input.len_bytes;
        let run = run as u32;
        job.inputs
            .push(siltstone_table::job::Input { run, ..input });
    }
    let ctx = ExecContext::new(runtime, Arc::new(inputs.clone()), storage.clone(), epoch());
    let outcome = CpuExecutor::new().run(&job, &ctx).unwrap();
    bytes += outcome.tables.iter().map(|t| t.file_bytes).sum::<u64>();
    let sample = RangeSample::drawn(5);
    let cancel = CancelToken::new();
    let checked = verify_ranges(&job, &outcome, &inputs, &*storage, sample, &cancel);
    let checked = checked.unwrap().unwrap();
    let share = checked.bytes as f64 / bytes as f64;
    assert!((0.01..0.04).contains(&share), "{share} of {bytes} bytes");
}

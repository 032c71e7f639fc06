//! An executor that lies: a wrong statement in an outcome is found, and the outcome is rejected.
//! Also tests of jobs and outcomes as bytes.

mod common;

use std::sync::Arc;

use common::forged::*;
use common::*;
use proptest::prelude::*;
use siltstone_storage::{MemoryStorage, Runtime, Storage, StorageError};
use siltstone_table::block::Header;
use siltstone_table::exec::{CpuExecutor, ExecContext, ExecError, Executor, Side, SplitExecutor};
use siltstone_table::job::fragments::verify_range_deletes;
use siltstone_table::job::outcome::{Outcome, OutputTable};
use siltstone_table::job::verify::{Sample, Synced, TrustSyncs, verify_outcome, verify_tables};
use siltstone_table::job::{Extension, Job, KeyBounds, KeyRange, OutputLimits, OutputPrefix};
use siltstone_table::reader::{ReaderOptions, TableReader};
use siltstone_table::retain::RangeDelete;

#[test]
fn an_honest_outcome_is_accepted() {
    let h = honest();
    for sample in [
        Sample::None,
        Sample::Blocks(1),
        Sample::Blocks(3),
        Sample::All,
    ] {
        h.verify(&h.outcome, sample).unwrap();
    }
}

/// A lie: its name, and the change that it makes to an honest outcome.
type Lie = (&'static str, fn(&mut Outcome));

#[test]
fn lies_about_structure_are_found_without_reading() {
    let h = honest();
    let lies: &[Lie] = &[
        ("another attempt", |o| o.output.attempt += 1),
        ("another epoch", |o| o.output.epoch += 1),
        ("another job", |o| o.job ^= 1),
        ("another name", |o| o.tables[0].name = "in-0.tbl".into()),
        ("tables swapped", |o| o.tables.swap(0, 1)),
        ("a table twice", |o| o.tables.insert(1, o.tables[0].clone())),
        ("a table left out", |o| drop(o.tables.remove(1))),
        ("the last table left out", |o| drop(o.tables.pop())),
        ("an entry more", |o| o.tables[0].entries += 1),
        ("a put for a delete", |o| o.tables[0].puts -= 1),
        ("more read", |o| o.counters.entries_read += 1),
        ("more dropped", |o| o.counters.shadowed += 1),
        ("more written", |o| o.counters.entries_written += 1),
        ("fewer bytes", |o| o.counters.bytes_written -= 1),
        ("more bytes than the manifest takes", |o| {
            o.tables[0].raw_bytes = 1 << 45
        }),
        ("raw bytes below the entries", |o| {
            o.tables[0].raw_bytes = 11
        }),
        ("numbers beyond the inputs", |o| o.tables[0].max_seq = 3001),
        ("numbers below the inputs", |o| o.tables[0].min_seq = 0),
        ("numbers upside down", |o| {
            o.tables[0].min_seq = o.tables[0].max_seq + 1
        }),
        ("first key after the last", |o| {
            let keys = o.tables[0].keys.clone().unwrap();
            o.tables[0].keys = Some((keys.1, keys.0));
        }),
        ("a last key in the next table", |o| {
            let next = o.tables[1].keys.clone().unwrap().1;
            o.tables[0].keys.as_mut().unwrap().1 = next;
        }),
        ("bounds too narrow", |o| {
            o.tables[0].bounds.start = b"k0399".to_vec()
        }),
        ("bounds too wide", |o| {
            o.tables[1].bounds.start = b"a".to_vec()
        }),
        ("a right bound moved", |o| {
            o.tables[0].right_bound = Some(b"k9999".to_vec())
        }),
        ("no right bound", |o| o.tables[0].right_bound = None),
        ("a left bound that is not a cut", |o| {
            o.tables[1].left_bound.push(0)
        }),
        ("a first left bound", |o| {
            o.tables[0].left_bound = b"a".to_vec()
        }),
        ("another subjob", |o| o.tables[0].subjob = 1),
        ("a subjob too many", |o| {
            o.tables.last_mut().unwrap().subjob = 7
        }),
        ("a value log", |o| o.dropped_value_bytes.push((1, 1))),
        ("a count that no job has", |o| {
            o.counters.bytes_read = u64::MAX
        }),
        ("counts that overflow", |o| o.counters.shadowed = u64::MAX),
        ("entries that overflow", |o| o.tables[0].entries = u64::MAX),
    ];
    for (what, lie) in lies {
        let mut outcome = h.outcome.clone();
        lie(&mut outcome);
        let verdict = verify_outcome(&h.job, &outcome);
        assert!(verdict.is_err(), "accepted: {what}");
    }
}

#[test]
fn drops_that_the_job_does_not_allow_are_rejected() {
    let h = honest();
    assert!(h.outcome.counters.shadowed > 0);
    let mut job = h.job.clone();
    job.rules = siltstone_table::job::DropRules::QUICK;
    let mut outcome = h.outcome.clone();
    outcome.job = job.identity();
    assert!(
        verify_outcome(&job, &outcome)
            .unwrap_err()
            .reason
            .contains("does not allow")
    );
}

#[test]
fn lies_about_tables_are_found_by_opening_them() {
    let h = honest();
    let lies: &[Lie] = &[
        ("another digest", |o| o.tables[0].digest ^= 1),
        ("another length", |o| {
            o.tables[0].file_bytes += 1;
            o.counters.bytes_written += 1;
        }),
        ("other raw bytes", |o| o.tables[0].raw_bytes += 1),
        ("a narrower sequence range", |o| o.tables[0].min_seq += 1),
        ("a fragment less", |o| {
            let t = o.tables.iter_mut().find(|t| t.fragments > 0).unwrap();
            t.fragments += 1;
        }),
        ("another last key", |o| {
            let t = &mut o.tables[0];
            let last = t.keys.as_mut().unwrap();
            last.1.truncate(last.1.len() - 1);
            t.bounds = KeyRange::inclusive(&last.0, &last.1);
        }),
    ];
    for (what, lie) in lies {
        let mut outcome = h.outcome.clone();
        lie(&mut outcome);
        assert!(
            h.verify(&outcome, Sample::None).is_err(),
            "accepted: {what}"
        );
    }
}

/// The owner of the storage knows which objects were synced.
struct Durable(MemoryStorage);

impl Synced for Durable {
    fn is_synced(&self, name: &str, len_bytes: u64) -> Result<bool, StorageError> {
        Ok(self.0.open(name).is_ok_and(|f| f.len() == len_bytes))
    }
}

#[test]
fn what_is_not_synced_is_not_installed() {
    let h = honest();
    // The tables of an honest executor survive an immediate power loss completely.
    let durable = Durable(
        h.storage
            .crash(siltstone_storage::CrashPolicy::LoseUnsynced),
    );
    verify_tables(&h.job, &h.outcome, &*h.storage, &durable, Sample::None)
        .unwrap()
        .unwrap();
    verify_tables(&h.job, &h.outcome, &durable.0, &TrustSyncs, Sample::All)
        .unwrap()
        .unwrap();
    // A table is rewritten without a sync.
    let name = &h.outcome.tables[1].name;
    let bytes = h.storage.read_small(name).unwrap();
    h.storage.delete(epoch(), name).unwrap();
    h.storage.sync_dir(epoch()).unwrap();
    h.storage
        .create(epoch(), name)
        .unwrap()
        .append(&[&bytes])
        .unwrap();
    let durable = Durable(
        h.storage
            .crash(siltstone_storage::CrashPolicy::LoseUnsynced),
    );
    let verdict = verify_tables(&h.job, &h.outcome, &*h.storage, &durable, Sample::None).unwrap();
    assert!(verdict.unwrap_err().reason.contains("not synced"));
}

#[test]
fn forged_tables_are_found_by_reading_them() {
    let h = honest();
    let table = h
        .outcome
        .tables
        .iter()
        .position(|t| t.fragments == 0 && t.entries > 20)
        .unwrap();
    // The control: a forged table without a change is accepted.
    let same = forge(&h, table, |_, _| {});
    h.verify(&same, Sample::All).unwrap();
    // A bit of a value is flipped, and the digest is not recomputed. Only the block shows it.
    let name = h.outcome.tables[table].name.clone();
    let mut bytes = h.storage.read_small(&name).unwrap();
    bytes[3] ^= 1;
    h.storage.delete(epoch(), &name).unwrap();
    h.storage
        .create(epoch(), &name)
        .unwrap()
        .append(&[&bytes])
        .unwrap();
    h.verify(&same, Sample::None).unwrap();
    let verdict = h.verify(&same, Sample::Blocks(2)).unwrap_err();
    assert!(verdict.reason.contains("checksum"), "{verdict}");
    // One table has far too many bytes. The layout is computed again and shows it.
    let h = honest();
    let fat = forge(&h, table, |entries, _| {
        entries.iter_mut().for_each(|e| e.2 = vec![1; 2000])
    });
    let verdict = h.verify(&fat, Sample::All).unwrap_err();
    assert!(
        verdict.reason.contains("should begin another table"),
        "{verdict}"
    );
}

/// Blocks that can be read, and that the layout does not have: a block that ends earlier, one
/// without its padding, and one whose sequence numbers count from another base.
#[test]
fn blocks_that_differ_from_the_layout_are_found() {
    let limits = || OutputLimits::new(1 << 13, 4 << 10, true);
    let probe = honest_with(limits());
    let open = |h: &Honest, table: usize| {
        let file = h
            .storage
            .open_finished(&h.outcome.tables[table].name)
            .unwrap();
        TableReader::open(file, ReaderOptions::default()).unwrap()
    };
    // A table whose first block is padded, and the number of its entries.
    let padded = |table: usize| {
        let reader = open(&probe, table);
        let place = reader.index().place(0);
        let mut bytes = vec![0; place.end as usize];
        reader.file().read_at(0, &mut bytes).unwrap();
        let header = Header::parse(&bytes[..], place.anchor as usize).unwrap();
        (header.padding < header.end && reader.range_deletes().is_empty()).then_some(header.n)
    };
    let tables = 0..probe.outcome.tables.len();
    let (table, n) = tables
        .into_iter()
        .find_map(|t| Some((t, padded(t)?)))
        .unwrap();
    let verdict_of = |forged: &dyn Fn(&Honest) -> Outcome| {
        let h = honest_with(limits());
        let outcome = forged(&h);
        h.verify(&outcome, Sample::All).map_err(|r| r.reason)
    };
    // The controls.
    verdict_of(&|h| forge(h, table, |_, _| {})).unwrap();
    verdict_of(&|h| forge_block(h, table, 0, |_, _| {})).unwrap();
    for (end, expected) in [
        (n - 1, "should not begin another block"),
        (n, "has 0 bytes of padding instead of"),
    ] {
        let reason = verdict_of(&|h| forge_with_end(h, table, |_, _| {}, Some(end))).unwrap_err();
        assert!(reason.contains(expected), "{reason}");
    }
    let rebase = |columns: &mut [u8], h: &Header| {
        assert!(h.seq_width >= 2 && h.base >= 256);
        columns[8..16].copy_from_slice(&(h.base - 256).to_le_bytes());
        for seq in columns[h.seqs..h.kinds].chunks_mut(h.seq_width) {
            let mut wide = [0; 8];
            wide[..seq.len()].copy_from_slice(seq);
            let moved = u64::from_le_bytes(wide) + 1;
            seq.copy_from_slice(&moved.to_le_bytes()[..seq.len()]);
        }
    };
    let reason = verdict_of(&|h| forge_block(h, table, 0, rebase)).unwrap_err();
    assert!(reason.contains("base of sequence numbers"), "{reason}");
}

/// An executor changes a range delete, with correct counts, checksums and bounds. Entries that were
/// not deleted would be lost, or deleted ones would come back.
#[test]
fn forged_range_deletes_are_found_by_comparing_them_with_the_inputs() {
    let table = 0;
    let h = honest();
    let compare = |h: &Honest, outcome: &Outcome| {
        verify_range_deletes(&h.job, outcome, &h.inputs, &*h.storage).unwrap()
    };
    let of_first = read_table(&*h.storage, &h.outcome.tables[table].name).range_deletes;
    let with = |h: &Honest| {
        let has = |t: &OutputTable| t.fragments >= 2;
        h.outcome.tables.iter().position(has).unwrap()
    };
    assert!(
        of_first.is_empty(),
        "the test needs a table without any, too"
    );
    type Lie = (&'static str, fn(&mut Vec<RangeDelete>), &'static str);
    let lies: &[Lie] = &[
        (
            "too wide",
            |r| r[0].start = b"k0379".to_vec(),
            "in place of",
        ),
        ("too narrow", |r| r[0].start.push(0), "in place of"),
        ("a smaller number", |r| r[0].seq -= 1, "in place of"),
        ("a larger number", |r| r[1].seq += 1, "in place of"),
        ("missing", |r| drop(r.remove(0)), "lacks"),
        (
            "one more",
            |r| {
                r.push(RangeDelete {
                    start: b"k0390".to_vec(),
                    end: b"k0391".to_vec(),
                    seq: 77,
                })
            },
            "",
        ),
    ];
    for (what, lie, says) in lies {
        let h = honest();
        let table = with(&h);
        // The control: a forged table without a change is accepted.
        let same = forge(&h, table, |_, _| {});
        h.verify(&same, Sample::All).unwrap();
        compare(&h, &same).unwrap();
        let lied = forge(&h, table, |_, range_deletes| lie(range_deletes));
        // No check of the tables alone can find the change.
        h.verify(&lied, Sample::All).unwrap();
        let verdict = compare(&h, &lied).expect_err(what);
        assert!(verdict.reason.contains(says), "{what}: {verdict}");
    }
    let one_more = forge(&h, table, |_, range_deletes| {
        range_deletes.push(RangeDelete {
            start: b"k0010".to_vec(),
            end: b"k0011".to_vec(),
            seq: 900,
        })
    });
    h.verify(&one_more, Sample::All).unwrap();
    let verdict = compare(&h, &one_more).unwrap_err();
    assert!(verdict.reason.contains("never written"), "{verdict}");
    // A job with only range deletes, for which no table was made.
    let mut job = h.job.clone();
    job.hard_cuts.clear();
    job.soft_cuts.clear();
    let nothing = Outcome {
        output: job.output.clone(),
        job: job.identity(),
        ..Outcome::default()
    };
    verify_outcome(&job, &nothing).unwrap();
    let verdict = verify_range_deletes(&job, &nothing, &h.inputs, &*h.storage).unwrap();
    assert!(verdict.unwrap_err().reason.contains("no table has"));
}

#[test]
fn jobs_and_outcomes_round_trip() {
    let h = honest();
    let mut job = h.job.clone();
    job.inputs[1].seq_override = Some(9);
    job.inputs[2].clip = KeyBounds {
        start: b"a".to_vec(),
        end: Some(b"b".to_vec()),
    };
    job.older.push(KeyRange::before(b"x", b"z"));
    job.older.push(KeyRange::inclusive(b"x", b"x"));
    job.extensions.push(Extension {
        name: "ttl".into(),
        version: 3,
        params: vec![1, 2],
    });
    let bytes = job.encode();
    assert_eq!(Job::decode(&bytes).unwrap(), job);
    let bytes = h.outcome.encode();
    assert_eq!(Outcome::decode(&bytes).unwrap(), h.outcome);
    // The output prefix is not part of the identity; everything else is.
    let mut other = h.job.clone();
    other.output.attempt += 1;
    assert_eq!(other.identity(), h.job.identity());
    let changes: &[fn(&mut Job)] = &[
        |j| j.now_us += 1,
        |j| j.published += 1,
        |j| j.snapshots.push(5),
        |j| drop(j.soft_cuts.pop()),
        |j| drop(j.older.pop()),
        |j| j.rules.0 = 0,
        |j| j.format.bits_per_key = 8,
        |j| j.inputs[0].digest ^= 1,
        |j| j.keyspace += 1,
    ];
    for change in changes {
        let mut other = h.job.clone();
        change(&mut other);
        assert_ne!(other.identity(), h.job.identity());
    }
}

proptest! {
    #[test]
    fn damaged_jobs_and_outcomes_are_refused(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
        fix in any::<bool>(),
    ) {
        let mut job = a_job(10);
        job.hard_cuts = vec![b"m".to_vec()];
        job.older = vec![KeyRange::everything()];
        let whole = job.encode();
        let mut bytes = whole.clone();
        for (at, byte) in &flips {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        if fix {
            // With a valid checksum there is no panic, whatever the result is.
            let end = bytes.len() - 4;
            let crc = siltstone_table::checksum::crc32c(&bytes[..end]);
            bytes[end..].copy_from_slice(&crc.to_le_bytes());
            if let Ok(job) = Job::decode(&bytes) {
                let _ = job.check();
            }
        } else if bytes != whole {
            prop_assert!(Job::decode(&bytes).is_err());
        }
        prop_assert!(Job::decode(&whole[..cut.index(whole.len())]).is_err());
        prop_assert!(Outcome::decode(&whole).is_err());
    }
}

/// An executor whose outcomes name another table than the first one that it made.
struct NamesAnother(CpuExecutor);

impl Executor for NamesAnother {
    fn name(&self) -> &str {
        "liar"
    }

    fn side(&self) -> Side {
        Side::Host
    }

    fn run(&self, job: &Job, ctx: &ExecContext) -> Result<Outcome, ExecError> {
        let mut outcome = self.0.run(job, ctx)?;
        outcome.tables[0].name = "in-0.tbl".into();
        Ok(outcome)
    }
}

/// The parts of a divided job are checked before a table is renamed or deleted.
#[test]
fn a_divided_job_touches_no_file_that_a_lie_names() {
    for liar in 0..2 {
        let h = honest();
        let side = |side| -> Arc<dyn Executor> {
            match side == liar {
                true => Arc::new(NamesAnother(CpuExecutor::new())),
                false => Arc::new(CpuExecutor::new()),
            }
        };
        let runtime = Runtime::threads();
        let split = SplitExecutor::new(&runtime, "split", side(0), side(1));
        let mut job = h.job.clone();
        job.output.attempt = 90;
        let inputs = Arc::new(h.inputs.clone());
        let ctx = ExecContext::new(runtime, inputs, h.storage.clone(), epoch());
        let before = h.storage.list().unwrap();
        let outcome = split.run(&job, &ctx).unwrap();
        verify_outcome(&job, &outcome).unwrap_err();
        let after = h.storage.list().unwrap();
        assert!(before.iter().all(|object| after.contains(object)));
        // The tables of the honest part are gone.
        let honest = OutputPrefix {
            attempt: 90 | u64::from(liar == 0) << 31,
            ..job.output.clone()
        };
        let left = after.iter().filter(|o| o.name.starts_with(&honest.text()));
        assert_eq!(left.count(), 0);
    }
}

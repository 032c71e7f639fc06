//! Plans of subjobs as executors outside the crate see them: what a plan and its pieces say, and
//! the errors for damaged blocks, which are those of the host's executor.

mod common;

use std::sync::Arc;

use common::cases::*;
use common::*;
use proptest::prelude::*;
use siltstone_storage::{MemoryStorage, Runtime, Storage};
use siltstone_table::TableError;
use siltstone_table::exec::part::Point;
use siltstone_table::exec::plan::{JobPlan, Origin, PlannedInput, check_block};
use siltstone_table::exec::{CpuExecutor, ExecContext, ExecError, Executor, InputMap};
use siltstone_table::job::{Input, Job, KeyBounds};
use siltstone_table::key::{Kind, trailer};
use siltstone_table::layout::LayoutState;

fn key(i: u64) -> Vec<u8> {
    format!("k{i:04}").into_bytes()
}

fn content(seqs: impl Iterator<Item = u64>) -> Content {
    let put = |seq: u64| (key(seq % 100), trailer(seq, Kind::Put), vec![seq as u8; 30]);
    Content {
        entries: seqs.map(put).collect(),
        range_deletes: Vec::new(),
    }
}

struct World {
    runtime: Runtime,
    storage: Arc<MemoryStorage>,
    job: Job,
}

/// A job of one newer table and of a run of two older ones.
fn world() -> World {
    let runtime = Runtime::threads();
    let storage = Arc::new(MemoryStorage::new(&runtime));
    let mut job = a_job(1000);
    let inputs = [
        ("right.tbl", 2, content(150..200)),
        ("left.tbl", 2, content(101..140)),
        ("new.tbl", 1, content(200..300)),
    ];
    for (name, run, content) in inputs {
        let input = table_input(&mut InputMap::new(), &storage, name, &content);
        job.inputs.push(Input { run, ..input });
    }
    World {
        runtime,
        storage,
        job,
    }
}

impl World {
    fn context(&self) -> ExecContext {
        let mut inputs = InputMap::new();
        for input in &self.job.inputs {
            let file = self.storage.open(&input.name).unwrap();
            inputs.add_table(input.location, &input.name, file);
        }
        let outputs = self.storage.clone();
        ExecContext::new(self.runtime.clone(), Arc::new(inputs), outputs, epoch())
    }
}

/// The names of the inputs of runs, without their extension.
fn names(runs: &[Vec<PlannedInput>]) -> Vec<Vec<&str>> {
    let mut all = Vec::new();
    for run in runs {
        let names = run.iter().map(|input| input.name.trim_end_matches(".tbl"));
        all.push(names.collect());
    }
    all
}

fn range(start: &[u8], end: Option<&[u8]>) -> KeyBounds {
    KeyBounds {
        start: start.to_vec(),
        end: end.map(<[u8]>::to_vec),
    }
}

#[test]
fn a_plan_says_which_inputs_a_subjob_reads() {
    let mut w = world();
    w.job.hard_cuts = vec![key(75)];
    let plan = JobPlan::open(&w.job, &w.context()).unwrap();
    assert!(plan.are_tables());
    let first = plan.subjob(&w.job, 0, &Point::Start).unwrap().unwrap();
    let second = plan.subjob(&w.job, 1, &Point::Start).unwrap().unwrap();
    assert_eq!((first.subjob, second.subjob), (0, 1));
    assert_eq!(second.bounds, range(&key(75), None));
    // Runs are in the order of their numbers, and inputs of a run in that of their keys.
    assert_eq!(names(&first.runs), [vec!["new"], vec!["left", "right"]]);
    assert_eq!(names(&second.runs), [vec!["new"], vec!["right"]]);
    assert_eq!(
        (&first.prefix[..], &second.prefix[..]),
        (&b"k00"[..], &b"k00"[..])
    );
    let right = &second.runs[1][0];
    let table = right.table().unwrap();
    assert!(Arc::ptr_eq(table, plan.table(0).unwrap()));
    assert_eq!(
        (right.number, right.seqs, right.seq_override),
        (0, (150, 199), None)
    );
    assert_eq!(right.bounds, range(&key(75), None));
    assert_eq!(right.blocks(), table.blocks_of(&right.bounds));
    assert!(right.blocks().start > 0 && right.blocks().end == table.block_count());
    assert!(matches!(right.origin, Origin::Table(_)));
    assert_eq!(
        second.stored_bytes(),
        plan.table_bytes(&w.job, &second.bounds)
    );
    // The rules, as the job states them.
    assert_eq!(first.retain.rules(), w.job.rules);
    assert_eq!(first.retain.stripes().ends(), [1000]);
    assert!(first.retain.older().is_empty() && first.retain.fragments().is_empty());
    // A piece has only inputs with keys in it, and everything else of its subjob.
    let keys = range(&key(20), Some(&key(40)));
    let piece = plan
        .piece(&w.job, 0, &Point::Start, &keys)
        .unwrap()
        .unwrap();
    assert_eq!(names(&piece.runs), [vec!["new"], vec!["left"]]);
    assert!(piece.runs.iter().flatten().all(|i| i.bounds == keys));
    assert_eq!(
        (&piece.bounds, &piece.prefix),
        (&first.bounds, &first.prefix)
    );
    assert_eq!(names(&first.runs_in(&keys)), names(&piece.runs));
    assert!(first.runs_in(&range(&key(75), None)).is_empty());
    // A subjob that continues reads nothing before its first key.
    let layout = LayoutState {
        first_key: key(80),
        earlier_spans_bytes: 5,
        span_bytes: 6,
        table: 3,
    };
    let next = Point::Table {
        layout: layout.clone(),
        left_bound: key(79),
        counters: Default::default(),
    };
    let rest = plan.subjob(&w.job, 1, &next).unwrap().unwrap();
    assert!(
        rest.runs
            .iter()
            .flatten()
            .all(|i| i.bounds == range(&key(80), None))
    );
    assert_eq!(rest.bounds, second.bounds);
    assert_eq!(rest.continues_at, Some(layout));
    // A complete subjob has no plan, and a job has no other subjobs.
    let end = Point::End(Default::default());
    assert!(plan.subjob(&w.job, 1, &end).unwrap().is_none());
    let none = plan.subjob(&w.job, 2, &Point::Start).err();
    assert!(matches!(none, Some(ExecError::Declined { .. })));
    w.job.hard_cuts.push(key(1));
    let malformed = JobPlan::open(&w.job, &w.context()).err();
    assert!(matches!(malformed, Some(ExecError::Declined { .. })));
}

/// The first error of [`check_block`] among the blocks of all inputs, if there is one.
fn first_damage(w: &World) -> Option<String> {
    let plan = JobPlan::open(&w.job, &w.context()).unwrap();
    let plan = plan.subjob(&w.job, 0, &Point::Start).unwrap().unwrap();
    for input in plan.runs.iter().flatten() {
        let table = input.table().unwrap();
        for block in input.blocks() {
            let place = table.place(block);
            let mut stored = vec![0; place.stored_bytes() as usize];
            table.file().read_at(place.start, &mut stored).unwrap();
            if let Err(error) = check_block(input, block, &stored, w.job.format.verify) {
                return Some(format!("{error:?}"));
            }
        }
    }
    None
}

#[test]
fn a_damaged_block_has_the_error_of_the_host() {
    let mut w = world();
    let name = "right.tbl";
    let whole = w.storage.read_small(name).unwrap();
    let plan = JobPlan::open(&w.job, &w.context()).unwrap();
    let table = plan.table(0).unwrap();
    let blocks = table.place(table.block_count() - 1).end as usize;
    assert_eq!(first_damage(&w), None);
    for verify in [true, false] {
        w.job.format.verify = verify;
        let mut errors = std::collections::BTreeSet::new();
        for at in (0..blocks).step_by(3) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            w.storage.replace(epoch(), name, &bytes).unwrap();
            w.job.output.attempt += 1;
            let outcome = CpuExecutor::new().run(&w.job, &w.context());
            let found = first_damage(&w);
            match (&outcome, &found) {
                (Err(host), Some(found)) => assert_eq!(&format!("{host:?}"), found, "byte {at}"),
                // Without checksums, a merge may find keys out of order, and values are not known.
                (_, None) => assert!(!verify, "byte {at}"),
                (Ok(_), Some(found)) => panic!("byte {at}: {found}"),
            }
            errors.extend(found);
        }
        assert!(errors.len() > 5, "{errors:?}");
        w.storage.replace(epoch(), name, &whole).unwrap();
    }
    // Numbers that the job does not allow, and bytes that are no block of the input.
    w.job.inputs[0].max_seq = 198;
    w.job.output.attempt += 1;
    let host = CpuExecutor::new().run(&w.job, &w.context()).unwrap_err();
    assert!(
        host.to_string().contains("largest sequence number"),
        "{host}"
    );
    assert_eq!(first_damage(&w), Some(format!("{host:?}")));
    let plan = JobPlan::open(&w.job, &w.context()).unwrap();
    let plan = plan.subjob(&w.job, 0, &Point::Start).unwrap().unwrap();
    let input = &plan.runs[1][1];
    let last = input.table().unwrap().block_count();
    for (block, len) in [(0, 3), (last, 0)] {
        let error = check_block(input, block, &vec![0; len], true).unwrap_err();
        assert!(
            matches!(error, ExecError::Failed(TableError::Misuse(_))),
            "{error}"
        );
    }
}

/// An entry out of order is found by the host's merge. A foreign one has the same words for it.
#[test]
fn disorder_has_the_error_of_the_host() {
    let mut w = world();
    w.job.format.verify = false;
    let name = "right.tbl";
    let mut bytes = w.storage.read_small(name).unwrap();
    let plan = JobPlan::open(&w.job, &w.context()).unwrap();
    let anchor = plan.table(0).unwrap().place(0).anchor as usize;
    // The second key becomes less than the first one, in its last byte.
    let first: [u8; 4] = bytes[anchor + 32..anchor + 36].try_into().unwrap();
    let first = u32::from_le_bytes(first);
    let less = first - (1 << (first.trailing_zeros() / 8 * 8));
    bytes[anchor + 36..anchor + 40].copy_from_slice(&less.to_le_bytes());
    w.storage.replace(epoch(), name, &bytes).unwrap();
    let host = CpuExecutor::new().run(&w.job, &w.context()).unwrap_err();
    let plan = JobPlan::open(&w.job, &w.context()).unwrap();
    let plan = plan.subjob(&w.job, 0, &Point::Start).unwrap().unwrap();
    let input = &plan.runs[1][1];
    let own = input.disorder(trailer(151, Kind::Put));
    assert_eq!(format!("{host:?}"), format!("{own:?}"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 200 } else { 2000 }))]

    /// Pieces that fill a subjob read all of its keys once, and their blocks at least once.
    #[test]
    fn pieces_fill_a_subjob(case in a_case(), cuts in prop::collection::btree_set(0u8..42, 0..5)) {
        let case = Case { inputs_as_streams: vec![false; 12], ..case };
        let w = common::cases::world(&case);
        let plan = JobPlan::open(&w.job, &w.context()).unwrap();
        let mut starts = vec![Vec::new()];
        starts.extend(cuts.iter().map(|n| vec![b'k', *n]));
        for subjob in 0..w.job.subjobs() {
            let whole = plan.subjob(&w.job, subjob, &Point::Start).unwrap().unwrap();
            let mut read = vec![Vec::new(); w.job.inputs.len()];
            for (i, start) in starts.iter().enumerate() {
                let keys = range(start, starts.get(i + 1).map(Vec::as_slice));
                let piece = plan.piece(&w.job, subjob, &Point::Start, &keys).unwrap().unwrap();
                prop_assert_eq!(&piece.surviving, &whole.surviving);
                prop_assert_eq!(piece.retain.fragments(), whole.retain.fragments());
                prop_assert_eq!(piece.counters, whole.counters);
                for input in piece.runs.iter().flatten() {
                    let content = read_table(&*w.storage, &input.name);
                    let inside = content.keys().into_iter().filter(|k| input.bounds.contains(k));
                    read[input.number as usize].extend(inside);
                }
            }
            for input in whole.runs.iter().flatten() {
                let content = read_table(&*w.storage, &input.name);
                let mut keys = content.keys();
                keys.retain(|k| input.bounds.contains(k));
                prop_assert_eq!(&read[input.number as usize], &keys);
            }
        }
    }
}

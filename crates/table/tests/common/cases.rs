//! Random jobs: contents as the engine would have them, and the job that merges them.

use std::sync::Arc;

use proptest::prelude::*;
use siltstone_storage::{MemoryStorage, Runtime, Storage};
use siltstone_table::exec::{ExecContext, InputMap};
use siltstone_table::job::{DropRules, Job, KeyRange};
use siltstone_table::key::{Kind, trailer};
use siltstone_table::retain::RangeDelete;

use super::*;

/// Contents as the engine would have them: older data outside the job, and the runs of the job.
#[derive(Clone, Debug)]
pub struct Case {
    pub older: Content,
    pub runs: Vec<Content>,
    pub snapshots: Vec<u64>,
    pub published: u64,
    pub rules: DropRules,
    pub hard: Vec<Vec<u8>>,
    pub soft: Vec<Vec<u8>>,
    pub table_log: u32,
    pub inputs_as_streams: Vec<bool>,
    pub declare_everything: bool,
}

fn a_key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => (0u8..40).prop_map(|n| vec![b'k', n]),
        2 => (0u8..40, 0u8..3).prop_map(|(n, m)| vec![b'k', n, m]),
        1 => (0u8..4).prop_map(|n| [&b"k\x10 a long common prefix of keys "[..], &[n]].concat()),
        1 => Just(vec![]),
    ]
}

#[derive(Clone, Debug)]
enum Op {
    Put(Vec<u8>, usize),
    Delete(Vec<u8>),
    DeleteRange(Vec<u8>, Vec<u8>),
    /// The following entries belong to a newer run.
    NextRun,
    Snapshot,
}

fn an_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (a_key(), prop_oneof![9 => 0usize..60, 1 => 0usize..3000])
            .prop_map(|(k, n)| Op::Put(k, n)),
        5 => a_key().prop_map(Op::Delete),
        2 => (a_key(), a_key()).prop_map(|(a, b)| Op::DeleteRange(a, b)),
        2 => Just(Op::NextRun),
        2 => Just(Op::Snapshot),
    ]
}

pub fn a_case() -> impl Strategy<Value = Case> {
    let rules = prop_oneof![
        5 => Just(DropRules::ALL),
        1 => Just(DropRules::QUICK),
        1 => Just(DropRules::SHADOWED),
        1 => Just(DropRules::COVERED),
        1 => Just(DropRules::SHADOWED.with(DropRules::TOMBSTONES)),
        1 => Just(DropRules::COVERED.with(DropRules::FRAGMENTS)),
    ];
    let cuts =
        || prop::collection::btree_set(a_key().prop_filter("inside", |k| !k.is_empty()), 0..4);
    (
        prop::collection::vec(an_op(), 0..25),
        prop::collection::vec(an_op(), 0..150),
        rules,
        cuts(),
        cuts(),
        9u32..13,
        prop::collection::vec(any::<bool>(), 12),
        any::<bool>(),
    )
        .prop_map(
            |(
                older_ops,
                ops,
                rules,
                hard,
                soft,
                table_log,
                inputs_as_streams,
                declare_everything,
            )| {
                let mut seq = 0;
                let mut older = Content::default();
                let mut runs = vec![Content::default()];
                let mut snapshots = vec![];
                for op in &older_ops {
                    apply(&mut older, op, &mut seq);
                }
                for op in &ops {
                    match op {
                        Op::NextRun if runs.len() < 10 => runs.push(Content::default()),
                        Op::Snapshot => snapshots.push(seq),
                        op => apply(runs.last_mut().unwrap(), op, &mut seq),
                    }
                }
                let hard: Vec<_> = hard.into_iter().collect();
                let soft = soft.into_iter().filter(|c| !hard.contains(c)).collect();
                Case {
                    older,
                    runs,
                    snapshots,
                    published: seq,
                    rules,
                    hard,
                    soft,
                    table_log,
                    inputs_as_streams,
                    declare_everything,
                }
            },
        )
}

fn apply(content: &mut Content, op: &Op, seq: &mut u64) {
    *seq += 1;
    match op {
        Op::Put(k, n) => {
            let value = (0..*n).map(|i| (*seq as usize * 31 + i) as u8).collect();
            content
                .entries
                .push((k.clone(), trailer(*seq, Kind::Put), value));
        }
        Op::Delete(k) => content
            .entries
            .push((k.clone(), trailer(*seq, Kind::Delete), vec![])),
        Op::DeleteRange(a, b) if a < b => {
            content.range_deletes.push(RangeDelete {
                start: a.clone(),
                end: b.clone(),
                seq: *seq,
            });
        }
        _ => {}
    }
}

/// The older ranges that the engine would declare: exactly those of the existing data.
pub fn exact_ranges(older: &Content) -> Vec<KeyRange> {
    let keys = older
        .entries
        .iter()
        .map(|e| KeyRange::inclusive(&e.0, &e.0));
    keys.chain(
        older
            .range_deletes
            .iter()
            .map(|r| KeyRange::before(&r.start, &r.end)),
    )
    .collect()
}

pub struct World {
    pub runtime: Runtime,
    pub storage: Arc<MemoryStorage>,
    pub inputs: Arc<InputMap>,
    pub job: Job,
}

/// Writes the inputs of a case into a storage, and makes the job of the case. The runs for which
/// `is_stream` returns true are streams instead of tables.
pub fn job_of(
    case: &Case,
    storage: &Arc<impl Storage + ?Sized>,
    is_stream: impl Fn(usize) -> bool,
) -> (Job, InputMap) {
    let mut inputs = InputMap::new();
    let mut job = a_job(case.published);
    job.rules = case.rules;
    job.snapshots = case.snapshots.clone();
    job.hard_cuts = case.hard.clone();
    job.soft_cuts = case.soft.clone();
    job.limits =
        siltstone_table::job::OutputLimits::new(1 << case.table_log, 512, !case.soft.is_empty());
    job.older = if case.declare_everything {
        vec![KeyRange::everything()]
    } else {
        exact_ranges(&case.older)
    };
    for (i, run) in case.runs.iter().enumerate() {
        if run.is_empty() {
            continue;
        }
        let input = if is_stream(i) {
            stream_input(&mut inputs, &format!("stream-{i}"), run)
        } else {
            table_input(&mut inputs, storage, &format!("in-{i}.tbl"), run)
        };
        job.inputs.push(siltstone_table::job::Input {
            run: i as u32,
            ..input
        });
    }
    (job, inputs)
}

pub fn world(case: &Case) -> World {
    let runtime = Runtime::threads();
    let storage = Arc::new(MemoryStorage::new(&runtime));
    let (job, inputs) = job_of(case, &storage, |i| case.inputs_as_streams[i]);
    World {
        runtime,
        storage,
        inputs: Arc::new(inputs),
        job,
    }
}

impl World {
    pub fn context(&self) -> ExecContext {
        ExecContext::new(
            self.runtime.clone(),
            self.inputs.clone(),
            self.storage.clone(),
            epoch(),
        )
    }
}

//! One seed gives one trace of decisions and storage calls: it is run twice, in two processes, on
//! both back ends. Another seed gives another trace, and a clock that is read without the runtime
//! is detected.

use siltstone_sim::coverage::Coverage;
use siltstone_sim::trials::{Trace, options_trial, trace, trace_with_gpu};
use siltstone_storage::Runtime;
use siltstone_storage::sim::Backend;

const CHILD: &str = "SILT_REPLAY_CHILD";

fn of(seed: u64, backend: Backend) -> Trace {
    trace(seed, backend, |_| {})
}

#[test]
fn one_seed_is_one_trace() {
    let (mut stalls, mut work) = (0, 0);
    for seed in 1..4 {
        let first = of(seed, Backend::Coroutines);
        assert_eq!(
            first,
            of(seed, Backend::Coroutines),
            "seed {seed} run twice"
        );
        assert_eq!(first, of(seed, Backend::Threads), "seed {seed} on threads");
        let other = of(seed + 100, Backend::Coroutines);
        assert_ne!(
            first.storage,
            other.storage,
            "seeds {seed} and {}",
            seed + 100
        );
        let jobs = [
            "store.flush_count",
            "store.compaction_count",
            "store.trivial_move_count",
        ];
        work += jobs.iter().map(|j| first.coverage.of(j)).sum::<u64>();
        stalls += first.coverage.of("delay.SealedMemtables") + first.coverage.of("delay.L0Stop");
    }
    assert!(stalls > 0, "no seed stalls");
    assert!(work > 10, "the seeds have {work} jobs");
}

/// The same with a GPU, whose device has an order and faults of its own.
#[test]
fn one_seed_is_one_trace_with_a_gpu() {
    let mut reached = Coverage::default();
    for seed in 1..9 {
        let first = trace_with_gpu(seed, Backend::Coroutines);
        let again = trace_with_gpu(seed, Backend::Coroutines);
        assert_eq!(first, again, "seed {seed} run twice");
        let threads = trace_with_gpu(seed, Backend::Threads);
        assert_eq!(first, threads, "seed {seed} on threads");
        reached.merge(&first.coverage);
    }
    let wanted = ["gpu.believed", "gpu.several_pieces", "gpu.declined"];
    assert!(reached.missing(&wanted).is_empty(), "{reached}");
}

/// A seed's run depends neither on earlier runs in its process nor on concurrent ones. (Cache keys
/// came from one counter for the whole process, so a seed evicted other blocks, and a failure among
/// many seeds could not be repeated alone.)
#[test]
fn runs_share_nothing() {
    for seed in 10..20 {
        let first = options_trial(seed);
        let beside = std::thread::scope(|scope| {
            let others = [50, 51].map(|more| scope.spawn(move || options_trial(seed + more)));
            let again = options_trial(seed);
            for other in others {
                other.join().expect("another seed");
            }
            again
        });
        assert_eq!(first, beside, "seed {seed}");
    }
}

/// The test below runs this in a process of its own; otherwise it does nothing.
#[test]
fn child() {
    if let Ok(seed) = std::env::var(CHILD) {
        let found = of(seed.parse().expect("a seed"), Backend::Coroutines);
        println!("\ntrace {} {}", found.schedule, found.storage);
    }
}

#[test]
fn two_processes_agree() {
    let here = of(7, Backend::Coroutines);
    let output = std::process::Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD, "7")
        .output()
        .expect("this test, once more");
    let text = String::from_utf8_lossy(&output.stdout);
    let line = format!("trace {} {}", here.schedule, here.storage);
    assert!(
        text.lines().any(|l| l == line),
        "expected `{line}` in\n{text}"
    );
}

#[test]
fn a_clock_behind_the_runtimes_back_is_caught() {
    let meddle = |runtime: &Runtime| {
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .expect("after 1970");
        for _ in 0..now.subsec_nanos() / 10 % 61 {
            runtime.yield_point();
        }
    };
    let traces: Vec<u64> = (0..8)
        .map(|_| trace(1, Backend::Coroutines, meddle).schedule)
        .collect();
    assert!(traces.iter().any(|t| *t != traces[0]), "{traces:?}");
}

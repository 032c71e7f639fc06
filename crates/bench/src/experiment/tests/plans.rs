use proptest::prelude::*;

use super::*;
use crate::experiment::{Number, PlanError, StoreUse};
use crate::settings::{Abilities, Amount, Distribution, Kind, ValueBytes, Workload};

#[test]
fn a_file_is_read_with_its_products() {
    let experiment = small();
    assert_eq!(experiment.name, "small");
    assert_eq!(experiment.paper.year, Some(2025));
    assert_eq!(experiment.notes, ["One.", "Two."]);
    let labels: Vec<&str> = experiment
        .runs
        .iter()
        .map(|run| run.label.as_str())
        .collect();
    assert_eq!(
        labels,
        [
            "fill 128",
            "fill 1KiB",
            "readrandom 128",
            "readrandom 1KiB",
            "readmissing 128",
            "readmissing 1KiB"
        ]
    );
    let read = experiment.run("readrandom 1KiB").unwrap();
    assert_eq!(read.settings.workload, Workload::ReadRandom);
    assert_eq!(read.settings.value_bytes, ValueBytes::Fixed(1024));
    assert_eq!(read.settings.records, 10_000);
    assert_eq!(read.settings.engine.memtable_bytes, 8 << 20);
    assert_eq!(read.store, Some(1));
    assert_eq!(
        experiment.runs[0].without_values.as_deref(),
        Some("it fills the store")
    );
}

#[test]
fn values_and_ratios_belong_to_their_runs() {
    let experiment = small();
    let values = &experiment.run("readrandom 128").unwrap().values;
    let of = |name: &str| {
        values
            .iter()
            .find(|value| value.metric.name() == name)
            .unwrap()
    };
    assert_eq!(of("p99_us").operation, Some(Kind::Get));
    assert_eq!(of("p99_us").paper, Number::Exact(5.5));
    assert_eq!(of("ops_per_s").operation, None);
    assert_eq!(of("ops_per_s").paper.to_string(), "1000 to 2000");
    let ratio = &experiment.ratios[0];
    assert_eq!((ratio.of, ratio.to), (4, 2));
    assert_eq!(experiment.ratios[1].operation, Some(Kind::GetMissing));
    assert_eq!(experiment.claims[0].paper.middle(), 4.15);
}

#[test]
fn a_plan_has_everything_decided() {
    let plan = small().plan(Some(1.0)).unwrap();
    assert!(plan.runs.iter().all(|run| run.shrunk.is_empty()));
    assert_eq!(plan.scale_note(), None);
    let stores: Vec<usize> = plan.runs.iter().map(|run| run.store).collect();
    assert_eq!(stores, [0, 0, 0, 1, 1, 1]);
    let indexes: Vec<usize> = plan.runs.iter().map(|run| run.index).collect();
    assert_eq!(indexes, [0, 2, 4, 1, 3, 5]);
    let last: Vec<bool> = plan.runs.iter().map(|run| run.is_last_use).collect();
    assert_eq!(last, [false, false, true, false, false, true]);
    assert_eq!(plan.runs[0].store_use, StoreUse::Makes);
    assert_eq!(plan.runs[4].store_use, StoreUse::Reads(1));
    let fill = &plan.runs[0].settings;
    assert_eq!(fill.amount, Some(Amount::Operations(10_000)));
    assert_eq!(fill.distribution, Some(Distribution::Uniform));
    assert_eq!(plan.seconds_at_least(), 80.0);
}

#[test]
fn a_smaller_scale_is_said_beside_the_result() {
    let plan = small().plan(None).unwrap();
    assert_eq!(plan.scale, 0.5);
    let fill: Vec<String> = plan.runs[0]
        .shrunk
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        fill,
        [
            "records: 5000 instead of 10000",
            "amount: 5000 instead of 10000"
        ]
    );
    let read: Vec<String> = plan.runs[1]
        .shrunk
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        read,
        [
            "records: 5000 instead of 10000",
            "amount: 10s instead of 20s"
        ]
    );
    assert_eq!(
        plan.scale_note().unwrap(),
        "Scaled to 0.5 of the paper's records and times; memtables and caches are as in the file. \
         At least 40s of runs."
    );
}

#[test]
fn a_scale_that_is_no_part_of_the_whole_is_refused() {
    for scale in [0.0, -1.0, 1.5, f64::NAN, f64::INFINITY] {
        assert!(
            matches!(small().plan(Some(scale)), Err(PlanError::Scale(_))),
            "{scale}"
        );
    }
}

#[test]
fn a_run_that_is_too_short_for_its_phases_is_refused() {
    let text = SMALL.replace(
        "amount = \"20s\"",
        "amount = \"20s\"\narrival = \"phases:10s@0,10s@9\"",
    );
    let experiment = Experiment::parse("x.toml", &text).unwrap();
    experiment.plan(Some(1.0)).unwrap();
    let error = experiment.plan(Some(0.4)).unwrap_err().to_string();
    assert_eq!(
        error,
        "run `readrandom 128` at scale 0.4: `arrival` is phases:10s@0,10s@9; no operation arrives \
         within 8s"
    );
}

#[test]
fn the_estimate_grows_with_what_is_written() {
    let plan = small().plan(Some(1.0)).unwrap();
    let fill = plan.runs[3].estimate;
    assert_eq!(fill.user_bytes, 10_000 * (16 + 1024));
    assert!(fill.written_bytes >= 3 * fill.user_bytes);
    assert!(fill.store_bytes > fill.user_bytes);
    let read = plan.runs[4].estimate;
    assert_eq!((read.user_bytes, read.written_bytes), (0, 0));
    assert_eq!(read.store_bytes, fill.store_bytes);
    assert_eq!(plan.disk_bytes(), fill.store_bytes);
    assert_eq!(
        plan.written_bytes(),
        plan.runs[0].estimate.written_bytes + fill.written_bytes
    );
}

proptest! {
    #[test]
    fn every_scale_gives_settings_that_can_be_run(scale in 1e-12..1.0f64) {
        let plan = small().plan(Some(scale)).unwrap();
        for run in &plan.runs {
            prop_assert!(run.settings.check(&Abilities::ALL).is_ok());
            prop_assert!(run.settings.records >= 1);
            prop_assert_eq!(&run.settings.resolved(), &run.settings);
        }
    }
}

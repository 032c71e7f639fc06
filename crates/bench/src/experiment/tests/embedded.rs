use std::collections::BTreeSet;
use std::path::Path;

use super::*;
use crate::experiment::embedded::FILES;
use crate::experiment::{Metric, Ratio, embedded_names, other_names};

#[test]
fn the_list_equals_the_folder() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments");
    let files: BTreeSet<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| name.strip_suffix(".toml").map(str::to_string))
        .collect();
    let list: Vec<&str> = embedded_names().collect();
    assert_eq!(list, files.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn every_file_is_read_and_planned() {
    for (name, text) in FILES {
        let experiment = Experiment::parse(&format!("experiments/{name}.toml"), text)
            .unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(experiment.name, name);
        for scale in [None, Some(1.0), Some(0.001)] {
            let plan = experiment
                .plan(scale)
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(plan.runs.len(), experiment.runs.len());
        }
        let disk_bytes = experiment.plan(None).unwrap().disk_bytes();
        assert!(
            disk_bytes < 20 << 30,
            "{name} needs {disk_bytes} bytes at its own scale"
        );
        assert!(
            text.lines().all(|line| line.chars().count() <= 100),
            "{name} has long lines"
        );
    }
}

/// The engine reads its own settings when it opens a store; a typo there must not wait until then.
#[test]
fn the_engine_knows_its_own_settings() {
    use crate::engine::{Driver, SiltstoneDriver};
    for name in embedded_names() {
        for run in Experiment::named(name).unwrap().runs {
            let settings = SiltstoneDriver.settings(&run.settings.engine);
            assert_eq!(settings.get("error"), None, "{name}, run `{}`", run.label);
            for (own, value) in &run.settings.engine.own {
                assert!(settings.contains_key(own), "{name}: {own} = {value}");
            }
        }
    }
}

#[test]
fn every_experiment_says_what_it_compares() {
    for name in embedded_names() {
        let experiment = Experiment::named(name).unwrap();
        let has_numbers = experiment.runs.iter().any(|run| !run.values.is_empty());
        let has_more = !experiment.claims.is_empty() || !experiment.ratios.is_empty();
        assert!(has_numbers || has_more, "{name}");
        assert!(!experiment.notes.is_empty(), "{name}");
    }
}

#[test]
fn a_misspelt_experiment_gets_the_nearest_name_and_the_list() {
    let error = Experiment::named("prockstore-fig8").unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with(
            "there is no experiment `prockstore-fig8`; did you mean `prockstore-fig9`?; those \
             that there are: gpu-compaction-fig11, "
        ),
        "{text}"
    );
    assert!(
        Experiment::named("nothing-like-it")
            .unwrap_err()
            .nearest
            .is_none()
    );
    // The list has the other names, too.
    assert!(
        text.contains(", prockstore-fig13, prockstore-fig14, prockstore-fig15, prockstore-fig16, "),
        "{text}"
    );
}

/// Figs. 14 and 15 of ProckStore show the tail latency of the runs of Figs. 12 and 13.
#[test]
fn another_name_has_the_runs_of_an_experiment_and_the_rows_of_its_own_figure() {
    for (name, of, _) in other_names() {
        assert!(embedded_names().all(|known| known != name), "{name}");
        let all = Experiment::named(of).unwrap();
        let found = Experiment::named(name).unwrap();
        assert_eq!(found.name, name);
        assert_eq!(found.runs.len(), all.runs.len());
        for (own, run) in found.runs.iter().zip(&all.runs) {
            assert_eq!((&own.label, &own.settings), (&run.label, &run.settings));
        }
        assert!(
            (6..all.ratios.len()).contains(&found.ratios.len()),
            "{name}"
        );
        let is_tail = |ratio: &Ratio| matches!(ratio.metric, Metric::P90Us | Metric::P99Us);
        assert!(found.ratios.iter().all(is_tail), "{name}");
        let tails = all.ratios.iter().filter(|ratio| is_tail(ratio)).count();
        assert_eq!(found.ratios.len(), tails, "{name} has all of them");
    }
    let error = Experiment::named("prockstore-fig145").unwrap_err();
    assert_eq!(error.nearest, Some("prockstore-fig14"));
}

#[test]
fn values_of_the_papers_are_those_of_their_tables() {
    let table = Experiment::named("gpu-compaction-fig11").unwrap();
    let values = &table.run("256 bytes").unwrap().values;
    assert!(values.iter().any(|value| {
        value.metric.name() == "p99_us" && value.paper == crate::experiment::Number::Exact(1005.193)
    }));
    let table = Experiment::named("hpdk-fig6").unwrap();
    let a = table.run("ycsb-a 1KiB").unwrap();
    assert_eq!(a.values.len(), 4);
    assert_eq!(a.settings.records, 20 << 20);
}

/// LevelDB and HPDK flush and compact with one thread. Of several threads of siltstone the first
/// one only flushes, so there is one more than the paper has for compactions. A divided compaction
/// would take yet another one.
#[test]
fn compactions_have_as_many_threads_as_in_the_paper() {
    let mut checked = 0;
    for name in embedded_names() {
        let expected: &[u32] = match name {
            _ if name.starts_with("gpu-compaction-") || name.starts_with("hpdk-") => &[1],
            _ if name.starts_with("kv-csd-") => &[3],
            "kvaccel-table4" => &[2, 3, 5],
            _ => continue,
        };
        let mut found = BTreeSet::new();
        for run in Experiment::named(name).unwrap().runs {
            let engine = &run.settings.engine;
            let subjobs_max = engine.own.get("subjobs_max").map(String::as_str);
            assert_eq!(subjobs_max, Some("1"), "{name}, run `{}`", run.label);
            found.insert(engine.background_threads);
        }
        assert!(found.iter().eq(expected), "{name}: {found:?}");
        checked += 1;
    }
    assert_eq!(checked, 9);
}

#[test]
fn mixes_have_the_ratios_of_the_paper() {
    let experiment = Experiment::named("kvaccel-table4").unwrap();
    for (workload, read_ratio) in [("B", 0.1), ("C", 0.2)] {
        let label = format!("{workload}, flush and compaction threads: 5");
        let settings = &experiment.run(&label).unwrap().settings;
        assert_eq!((settings.read_ratio, settings.threads), (read_ratio, 2));
    }
}

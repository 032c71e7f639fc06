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
            "there is no experiment `prockstore-fig8`; did you mean `prockstore-fig9`?; the \
             names are: gpu-compaction-fig10, "
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

/// Figs. 14 and 15 of ProckStore show the tail latency of the runs of Figs. 12 and 13. Fig. 10 and
/// Table I of the paper about GPUs have the compactions and the latencies of the runs of Fig. 11.
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
        let is_tail = |ratio: &Ratio| match name {
            "gpu-compaction-fig10" => ratio.metric == Metric::CompactionBytesPerS,
            "gpu-compaction-table1" => {
                matches!(ratio.metric, Metric::P99Us | Metric::P999Us)
            }
            _ => matches!(ratio.metric, Metric::P90Us | Metric::P99Us),
        };
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
    let values = &table.run("cpu, 256 bytes").unwrap().values;
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
    assert_eq!(checked, 10);
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

/// The runs of the paper about GPUs, and this engine's own, by the names of their settings.
#[test]
fn experiments_on_a_gpu_have_the_runs_of_the_paper_and_ours() {
    use crate::settings::{Abilities, Settings};
    let names = embedded_names().filter(|name| name.starts_with("gpu-compaction-"));
    let names: Vec<&str> = names.collect();
    assert_eq!(
        names,
        [
            "gpu-compaction-fig11",
            "gpu-compaction-fig13",
            "gpu-compaction-fig14",
            "gpu-compaction-table2"
        ]
    );
    for name in names {
        let experiment = Experiment::named(name).unwrap();
        let way = |settings: &Settings| match settings.gpu.is_used() {
            true => format!("{}+{}", settings.gpu.strategy, settings.gpu.transfer),
            false => "cpu".to_string(),
        };
        let found: BTreeSet<String> = experiment.runs.iter().map(|r| way(&r.settings)).collect();
        let mut expected = BTreeSet::from([
            "full+direct",
            "full+pipeline",
            "hierarchical+direct",
            "hierarchical+pipeline",
            "luda+plain",
        ]);
        if name != "gpu-compaction-fig13" {
            expected.insert("cpu");
        }
        assert!(
            found.iter().map(String::as_str).eq(expected),
            "{name}: {found:?}"
        );
        for run in &experiment.runs {
            run.settings.check(&Abilities::ALL).unwrap();
            assert!(run.label.contains(&way(&run.settings)), "{}", run.label);
            // Measuring how busy a GPU is costs time, so runs that are timed do not.
            let profiles = name == "gpu-compaction-fig13";
            assert_eq!(run.settings.gpu.profiles, profiles, "{name}");
            let metrics = run.values.iter().map(|value| value.metric);
            let is_timed = |metric: Metric| metric != Metric::GpuUtilisationPeak;
            assert!(!(profiles && metrics.into_iter().any(is_timed)));
        }
        assert!(experiment.claims.is_empty(), "{name}");
    }
}

/// The rows of the claims in the specification, at the four sizes of values.
#[test]
fn ratios_of_a_gpu_are_those_of_the_paper() {
    let found = |name: &str, metric: Metric, of: &str, to: &str, end: &str| -> Vec<f64> {
        let experiment = Experiment::named(name).unwrap();
        let label = |way: &str, bytes: u32| format!("{way}, {bytes} bytes{end}");
        let paper = |bytes: u32| {
            let index = |way| {
                let label = label(way, bytes);
                experiment.runs.iter().position(|run| run.label == label)
            };
            let (of, to) = (index(of).unwrap(), index(to).unwrap());
            let mut ratios = experiment.ratios.iter();
            let is_it = |r: &&Ratio| (r.of, r.to, r.metric) == (of, to, metric);
            let ratio = ratios.find(is_it).unwrap();
            assert!(ratio.what.is_some());
            ratio.paper.middle()
        };
        [32, 64, 128, 256].map(paper).to_vec()
    };
    let fig11 = |metric, of, to| found("gpu-compaction-fig11", metric, of, to, "");
    let (merges, writes) = (Metric::CompactionBytesPerS, Metric::OpsPerS);
    let (direct, pipeline) = ("hierarchical+direct", "hierarchical+pipeline");
    for of in [direct, "full+direct"] {
        assert_eq!(fig11(merges, of, "cpu"), [3.61, 3.28, 2.76, 2.30]);
        assert_eq!(fig11(merges, of, "luda+plain"), [2.24, 2.15, 1.78, 1.49]);
        assert_eq!(fig11(writes, of, "cpu"), [1.89, 2.27, 2.34, 1.99]);
        assert_eq!(fig11(writes, of, "luda+plain"), [1.25, 1.51, 1.51, 1.29]);
        let mix = |to| found("gpu-compaction-fig14", writes, of, to, ", reads 0.01");
        assert_eq!(mix("cpu"), [1.53, 1.74, 1.98, 2.02]);
        assert_eq!(mix("luda+plain"), [1.07, 1.18, 1.30, 1.30]);
        let tails = fig11(Metric::P999Us, of, "cpu");
        assert_eq!(tails, [0.0121, 0.0129, 0.8645, 0.9739]);
        for (metric, expected) in [
            (Metric::MeanUs, [1.0028, 1.044, 1.0672, 0.8749]),
            (Metric::P99Us, [0.9962, 1.098, 1.1701, 0.8617]),
        ] {
            let of = format!("read {of}");
            let reads = found("gpu-compaction-table2", metric, &of, "read cpu", "");
            assert_eq!(reads, expected);
        }
    }
    assert_eq!(fig11(merges, "luda+plain", "cpu"), [1.61, 1.52, 1.55, 1.55]);
    assert_eq!(
        fig11(merges, direct, pipeline),
        [1.6128, 1.667, 1.5965, 1.4029]
    );
    assert_eq!(
        fig11(writes, direct, pipeline),
        [1.0806, 1.2199, 1.5161, 1.3294]
    );
}

#[test]
fn experiments_on_a_gpu_have_a_short_name() {
    for figure in ["fig10", "fig11", "fig13", "fig14", "table1", "table2"] {
        let name = format!("gpu-{figure}");
        let short = Experiment::named(&name).unwrap();
        let whole = Experiment::named(&format!("gpu-compaction-{figure}")).unwrap();
        assert_eq!(
            (short.title, short.runs.len()),
            (whole.title, whole.runs.len())
        );
    }
    assert!(Experiment::named("gpu-fig99").is_err());
    assert!(Experiment::named("gpu-compaction").is_err());
}

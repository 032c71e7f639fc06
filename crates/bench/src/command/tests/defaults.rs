//! The defaults that some workloads have of their own.

use super::{Begin, list, list_from, said};
use crate::engine::NullDriver;
use crate::settings::{Arrival, Settings, Workload};

/// A setting of all runs of a call, the fill that is done first included.
fn of_all(words: &str, setting: &str) -> Vec<String> {
    let list = list(words);
    let steps = list.steps.iter();
    steps
        .map(|step| step.settings.get(setting).unwrap())
        .collect()
}

#[test]
fn they_are_settings_that_differ_from_the_usual_ones() {
    let mut count = 0;
    for workload in Workload::ALL {
        for (name, text) in workload.own_defaults() {
            let mut settings = Settings::default();
            settings.set(name, text).unwrap();
            assert_ne!(settings, Settings::default(), "{workload} {name}");
            assert_eq!(settings.get(name).unwrap(), *text, "{workload} {name}");
            count += 1;
        }
    }
    assert_eq!(count, 12);
}

#[test]
fn records_of_ycsb_have_1_kib_and_so_has_the_fill_before_them() {
    assert_eq!(of_all("ycsb-a", "value_bytes"), ["1KiB", "1KiB"]);
    let given = "ycsb-load,ycsb-e --value-bytes 100";
    assert_eq!(of_all(given, "value_bytes"), ["100", "100"]);
    assert!(list(given).notes.is_empty());
    // Two stores.
    let words = "fillseq,readrandom,ycsb-load,ycsb-a";
    let sizes = ["128", "128", "1KiB", "1KiB"];
    assert_eq!(of_all(words, "value_bytes"), sizes);
    let notes = ["--value-bytes is 1KiB, the default of ycsb-load"];
    assert_eq!(list(words).notes, notes);
}

#[test]
fn mixgraph_has_the_published_sizes_of_keys_and_values() {
    for (words, count) in [("mixgraph", 2), ("fillseq,readseq,mixgraph,peaks", 4)] {
        let values = of_all(words, "value_bytes");
        assert_eq!(values, vec!["pareto:1KiB"; count], "{words}");
        assert_eq!(of_all(words, "key_bytes"), vec!["48"; count], "{words}");
    }
    let given = "mixgraph --key-bytes 16 --value-bytes 64";
    assert_eq!(of_all(given, "value_bytes"), ["64", "64"]);
    assert_eq!(of_all(given, "key_bytes"), ["16", "16"]);
}

#[test]
fn peaks_write_more_in_a_second_than_most_compactions_can_take() {
    let ratios = of_all("readrandomwriterandom,peaks", "read_ratio");
    assert_eq!(ratios, ["0.9", "0.9", "0.5"]);
    assert_eq!(of_all("peaks --read-ratio 0", "read_ratio"), ["0", "0"]);
    let list = list("peaks");
    let settings = &list.steps[1].settings;
    let Arrival::Phases(phases) = settings.arrival() else {
        panic!("peaks have no phases");
    };
    let written_bytes_per_s: Vec<f64> = phases
        .iter()
        .map(|(_, rate)| rate * (1.0 - settings.read_ratio) * settings.entry_bytes())
        .collect();
    assert_eq!(written_bytes_per_s.len(), 2);
    assert!(written_bytes_per_s[0] > 70e6, "{written_bytes_per_s:?}");
    assert!(written_bytes_per_s[1] < 10e6, "{written_bytes_per_s:?}");
}

#[test]
fn a_queue_is_soon_full() {
    let words = "fillseq,queue,readrandom";
    assert_eq!(of_all(words, "records"), ["1000000", "10000", "10000"]);
    assert_eq!(of_all("queue --records 300", "records"), ["300"]);
}

#[test]
fn a_store_of_an_earlier_call_keeps_its_records_and_sizes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let fill = "fillseq --engine null --value-bytes 20 --records 100";
    said(&format!("{fill} --folder {path}")).1.unwrap();
    let begin = Begin::Given(crate::run::store::known(&NullDriver, folder.path()));
    let list = list_from(&format!("mixgraph,peaks --folder {path}"), &begin).unwrap();
    for step in &list.steps {
        let settings = &step.settings;
        assert_eq!((settings.records, settings.key_bytes), (100, 16));
        assert_eq!(settings.get("value_bytes").unwrap(), "20");
    }
    assert_eq!(list.notes, ["--read-ratio is 0.5, the default of peaks"]);
}

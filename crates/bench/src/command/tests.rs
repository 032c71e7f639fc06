//! The options, and what a call refuses before it makes a store.

mod defaults;
#[cfg(feature = "emulate")]
mod gpu;
mod signals;

use std::path::Path;

use clap::Parser;

use super::list::{Begin, List, quoted};
use super::*;
use crate::engine::{FirstGpu, NullDriver, SiltstoneDriver};
use crate::record::Record;
use crate::settings::{Amount, Distribution, all_settings};

#[derive(Debug, Parser)]
struct Runs {
    #[command(flatten)]
    args: RunArgs,
}

#[derive(Debug, Parser)]
struct Paper {
    #[command(flatten)]
    args: PaperArgs,
}

fn runs(words: &str) -> RunArgs {
    let words = ["bench"].into_iter().chain(words.split_whitespace());
    Runs::try_parse_from(words).unwrap().args
}

fn wrong(words: &str) -> String {
    let words = ["bench"].into_iter().chain(words.split_whitespace());
    Runs::try_parse_from(words).unwrap_err().to_string()
}

fn drivers() -> Vec<Box<dyn Driver>> {
    vec![Box::new(SiltstoneDriver), Box::new(NullDriver)]
}

/// Calls `act` with a program of two engines that nobody stops.
fn with_program<T>(act: impl FnOnce(&Program<'_>) -> T) -> T {
    act(&Program {
        command: "silt bench",
        drivers: &drivers(),
        file: None,
        gpus: &FirstGpu,
        stopped: &|| false,
    })
}

fn list_from(words: &str, begin: &Begin) -> Result<List> {
    with_program(|program| List::of(program, &SiltstoneDriver, &runs(words), begin))
}

fn list(words: &str) -> List {
    list_from(words, &Begin::Fresh).unwrap()
}

fn refused_list(words: &str) -> String {
    list_from(words, &Begin::Fresh).unwrap_err().to_string()
}

fn names(list: &List) -> Vec<&str> {
    let steps = list.steps.iter();
    steps.map(|step| step.settings.workload.name()).collect()
}

/// What a call writes to standard output, and how it ends.
fn said(words: &str) -> (String, Result<()>) {
    let mut out = Vec::new();
    let result = with_program(|program| bench(program, &runs(words), &mut out));
    (String::from_utf8(out).unwrap(), result)
}

#[test]
fn every_setting_but_the_workload_has_an_option() {
    use clap::CommandFactory;
    let command = Runs::command();
    for setting in all_settings() {
        let option = command.get_arguments().find(|a| a.get_id() == setting.name);
        if setting.name == "workload" || setting.name.starts_with("gpu.") {
            assert!(option.is_none());
            continue;
        }
        let option = option.unwrap_or_else(|| panic!("{setting:?} has no option"));
        let long = format!("--{}", option.get_long().unwrap());
        assert_eq!(long, setting.option());
        let help = option.get_long_help().unwrap().to_string();
        assert!(
            help.starts_with(setting.meaning.trim_end_matches('.')),
            "{help}"
        );
        assert_ne!(option.get_value_names().unwrap()[0], "VALUE", "{setting:?}");
    }
    command.debug_assert();
}

#[test]
fn options_set_settings() {
    let list = list(
        "fillrandom --records 1K --value-bytes uniform:16..1KiB --for 2K --sync --bloom-bits 12 \
         --own block_bytes=8192 --own subjobs_max=2 --mmap-reads=false",
    );
    let settings = &list.steps[0].settings;
    assert_eq!((settings.records, settings.sync), (1000, true));
    assert_eq!(settings.amount(), Amount::Operations(2000));
    assert_eq!(settings.engine.bloom_bits, 12);
    assert_eq!(settings.engine.mmap_reads, Some(false));
    assert_eq!(settings.engine.own.len(), 2);
}

#[test]
fn a_wrong_text_is_answered_with_what_is_expected() {
    for (words, expected) in [
        (
            "--value-bytes 12q",
            "'12q' for '--value-bytes <SIZES>': expected a size",
        ),
        ("--distribution zipfain", "did you mean `zipfian`?"),
        ("--compression lz5", "did you mean `lz4`?"),
        (
            "fillrandm",
            "did you mean `fillrandom`? expected fillseq, fillrandom",
        ),
        ("papr prockstore-fig9", "did you mean `paper`?"),
        ("--vaule-bytes 12", "--value-bytes"),
        ("--sync=perhaps", "expected true or false"),
        ("--own subjobs_max", "NAME=VALUE"),
    ] {
        let error = wrong(words);
        assert!(error.contains(expected), "{words}: {error}");
    }
}

#[test]
fn commas_and_blanks_separate_workloads() {
    let list = list("fillseq,readseq readrandom");
    assert_eq!(names(&list), ["fillseq", "readseq", "readrandom"]);
    assert!(list.steps.iter().all(|step| step.is_asked));
}

#[test]
fn without_workloads_a_store_is_filled_and_read() {
    let all = names(&list("")).join(" ");
    assert_eq!(all, "fillrandom readrandom readmissing seekrandom readseq");
}

#[test]
fn a_temporary_store_is_filled_before_it_is_read() {
    let read = list("readrandom --records 1K --sync");
    assert_eq!(names(&read), ["fillrandom", "readrandom"]);
    let fill = &read.steps[0];
    assert!(!fill.is_asked && !fill.settings.sync);
    // No record is left out.
    assert_eq!(fill.settings.amount(), Amount::EveryRecord);
    assert_eq!(fill.settings.distribution(), Distribution::Permutation);
    assert_eq!(names(&list("ycsb-a")), ["ycsb-load", "ycsb-a"]);
}

#[test]
fn a_folder_without_a_store_is_refused_with_the_command_that_fills_it() {
    let begin = Begin::Given(None);
    let words = "readrandom,readseq --records 1K --folder /x/y";
    let error = list_from(words, &begin).unwrap_err();
    assert!(matches!(error, CommandError::Failed(_)));
    assert_eq!(
        error.to_string(),
        "`readrandom` reads a store that a fill has made, and /x/y has none; give: silt bench \
         fillrandom,readrandom,readseq --records=1K --folder /x/y"
    );
}

#[test]
fn workloads_with_other_keys_are_refused() {
    let error = refused_list("fillrandom,ycsb-a");
    assert!(
        error.contains("give: silt bench fillrandom,ycsb-load,ycsb-a"),
        "{error}"
    );
    let error = refused_list("ycsb-a,readrandom");
    assert!(error.contains("ycsb-a,fillrandom,readrandom"), "{error}");
}

#[test]
fn an_option_that_a_workload_cannot_follow_is_ignored_there_and_named() {
    let list = list("fillseq,readrandom --for 3s --distribution zipfian:0.9");
    let (fill, read) = (&list.steps[0].settings, &list.steps[1].settings);
    assert_eq!(fill.amount(), Amount::EveryRecord);
    assert_eq!(read.amount(), Amount::Seconds(3.0));
    assert_eq!(read.distribution(), Distribution::Zipfian(0.9));
    assert_eq!(
        list.notes,
        [
            "fillseq ignores --distribution zipfian:0.9: `fillseq` draws no records",
            "fillseq ignores --for 3s: `fillseq` ends when its work is done, so it takes no time; \
             give a number of records instead"
        ]
    );
}

#[test]
fn an_option_that_no_workload_can_follow_is_refused() {
    for words in ["fillseq --for 3s", "fillseq,ingest --for 3s"] {
        let error = refused_list(words);
        assert!(
            error.starts_with("`--for 3s`: `fillseq` ends when"),
            "{error}"
        );
    }
    let error = refused_list("fillrandom --records 0");
    assert!(
        error.starts_with("`--records 0`: it must be from 1"),
        "{error}"
    );
    let error = refused_list("fillrandom --own subjobs_mox=2");
    assert!(
        error.contains("subjobs_mox") && error.contains("subjobs_max"),
        "{error}"
    );
}

#[test]
fn the_data_of_a_given_store_is_the_default() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let small = "--engine null --value-bytes 20";
    said(&format!("fillseq {small} --records 100 --folder {path}"))
        .1
        .unwrap();
    let begin = Begin::Given(crate::run::store::known(&NullDriver, folder.path()));
    let words = |more: &str| format!("{more} --folder {path}");
    let adopted = list_from(&words("readrandom,overwrite --key-bytes 24"), &begin).unwrap();
    for step in &adopted.steps {
        let settings = &step.settings;
        assert_eq!((settings.records, settings.key_bytes), (100, 24));
        assert_eq!(settings.get("value_bytes").unwrap(), "20");
    }
    // A fill makes another store.
    let filled = list_from(&words("fillseq,readrandom"), &begin).unwrap();
    assert!(
        filled
            .steps
            .iter()
            .all(|step| step.settings.records == 1_000_000)
    );
    let error = list_from(&words("ycsb-c"), &begin).unwrap_err().to_string();
    assert!(
        error.contains("`ycsb-c` has other keys than the store in the folder"),
        "{error}"
    );
}

#[test]
fn an_engine_that_is_not_there_is_refused_with_those_that_are() {
    let (_, result) = said("fillseq --engine siltstoen");
    assert_eq!(
        result.unwrap_err().to_string(),
        "`silt bench` has no engine `siltstoen`; did you mean `siltstone`?; its engines are \
         siltstone, null"
    );
}

#[test]
fn a_store_that_cannot_fit_is_refused_before_the_run() {
    let (out, result) = said("fillseq --records 60G --value-bytes 64KiB --key-bytes 24");
    let error = result.unwrap_err().to_string();
    assert!(
        error.contains("free, and the store may take") && out.is_empty(),
        "{error}"
    );
}

#[test]
fn json_is_one_record_a_line_and_nothing_else() {
    let (out, result) = said("readrandom,readseq --records 200 --for 300 --engine null --json");
    result.unwrap();
    let records: Vec<Record> = out.lines().map(|l| Record::from_json(l).unwrap()).collect();
    let names: Vec<&str> = records.iter().map(|r| &r.workload[..]).collect();
    assert_eq!(names, ["readrandom", "readseq"]);
    assert_eq!(records[0].operations, 300);
}

#[test]
fn people_get_tables_and_a_summary() {
    let (out, result) = said("fillseq,readseq,readmissing --records 200 --for 100 --engine null");
    result.unwrap();
    for words in [
        "  machine     ",
        "\nfillseq on null",
        "\nreadseq on null",
        "p99.9       max\n",
        "\n  readmissing     ",
    ] {
        assert!(out.contains(words), "{words}: {out}");
    }
    assert!(out.lines().all(|line| line.chars().count() <= 100), "{out}");
}

#[test]
fn a_call_that_is_stopped_has_no_record() {
    let mut out = Vec::new();
    let program = Program {
        command: "silt bench",
        drivers: &drivers(),
        file: None,
        gpus: &FirstGpu,
        stopped: &|| true,
    };
    let result = bench(&program, &runs("fillseq --engine null --json"), &mut out);
    let error = result.unwrap_err();
    assert!(matches!(&error, CommandError::Interrupted(text) if text == "during `fillseq`"));
    assert!(out.is_empty());
}

#[test]
fn words_are_quoted_for_a_shell() {
    assert_eq!(quoted("/tmp/a-b_c.d"), "/tmp/a-b_c.d");
    assert_eq!(quoted("a b's"), "'a b'\\''s'");
    assert_eq!(quoted(""), "''");
}

/// An experiment of two runs on one store.
const EXPERIMENT: &str = r#"
title = "A small one"
compares = "A fill with reads."
notes = ["It is a test."]

[paper]
system = "LevelDB"
title = "A paper"
venue = "A journal"
year = 2025
figure = "Fig. 1"

[hardware]
paper = "A large machine."
here = "This machine."

[settings]
records = 4000
value_bytes = 20

[[run]]
label = "fill"
workload = "fillseq"
without_values = "it fills the store"

[[run]]
label = "read"
workload = "readrandom"
amount = 2000
store = "fill"

[[run]]
label = "miss"
workload = "readmissing"
amount = 1000
store = "fill"

[[value]]
run = "read"
system = "LevelDB 1.23"
source = "Fig. 1(a)"
ops_per_s = 1000
get.p99_us = [5, 10]

[[ratio]]
of = "read"
to = "miss"
metric = "ops_per_s"
paper = 0.5
system = "LevelDB"
source = "Fig. 1(b)"

[[claim]]
what = "a GPU is faster"
paper = 4.15
needs = "compaction on a GPU"
source = "Fig. 2"
"#;

fn experiment_in(folder: &Path, text: &str) -> String {
    let file = folder.join("small.toml");
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_string()
}

fn paper_said(words: &str) -> (String, Result<()>) {
    let words = ["paper"].into_iter().chain(words.split_whitespace());
    let args = Paper::try_parse_from(words).unwrap().args;
    let mut out = Vec::new();
    let result = with_program(|program| paper(program, &args, &mut out));
    (String::from_utf8(out).unwrap(), result)
}

#[test]
fn an_experiment_is_shown_beside_the_paper() {
    let folder = tempfile::tempdir().unwrap();
    let file = experiment_in(folder.path(), EXPERIMENT);
    let (out, result) = paper_said(&format!("{file} --scale 0.5 --engine null"));
    result.unwrap();
    let flat = out.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        "small: A small one",
        "hardware A large machine.",
        "stands in This machine.",
        "Scaled to 0.5",
        "2 of 3: read (readrandom on null) shrunk records: 2000 instead of 4000; amount: 1000 \
         instead of 2000 measured ",
        "values the paper has none: it fills the store",
        "ops_per_s 1.00 kops/s ",
        "LevelDB 1.23",
        "get.p99_us 5.00us to 10.0us ",
        "source Fig. 1(a)",
        "ops_per_s of `read` by that of `miss`; paper 0.50x, ours ",
        "a GPU is faster: 4.15; needs compaction on a GPU",
    ] {
        assert!(flat.contains(words), "{words}: {out}");
    }
    assert!(out.lines().all(|line| line.chars().count() <= 100), "{out}");
}

#[test]
fn an_experiment_as_json_has_the_papers_values_in_each_record() {
    let folder = tempfile::tempdir().unwrap();
    let file = experiment_in(folder.path(), EXPERIMENT);
    let (out, result) = paper_said(&format!("{file} --scale 0.5 --engine null --json"));
    result.unwrap();
    let lines: Vec<serde_json::Value> = out
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!(lines.len(), 4, "{out}");
    let record = Record::from_json(&lines[1].to_string()).unwrap();
    assert_eq!(
        (&record.workload[..], record.operations),
        ("readrandom", 1000)
    );
    assert_eq!(record.stand_ins[0], "This machine.");
    let beside = &lines[1]["experiment"];
    assert_eq!(beside["run"], "read");
    let value = &beside["values"][1];
    assert_eq!(value["figure"], "ops_per_s");
    let ours = value["ours"].as_f64().unwrap();
    assert_eq!(record.ops_per_s, Some(ours));
    assert_eq!(value["ratio_low"].as_f64().unwrap(), ours / 1000.0);
    assert_eq!(beside["shrunk"][0]["paper"], "4000");
    assert_eq!(lines[3]["ratios"][0]["of"], "read");
    assert_eq!(lines[3]["not_measured"][0]["needs"], "compaction on a GPU");
}

/// Two stores whose values have different sizes, and a ratio between runs on them.
const TWO_STORES: &str = r#"
title = "Two stores"
compares = "Values of two sizes."
rounds = 3
[paper]
system = "HPDK"
title = "A paper"
venue = "A journal"
figure = "Fig. 1"
[hardware]
paper = "A large machine."
here = "This machine."
[settings]
records = 2000
[[run]]
label = "fill {value_bytes}"
workload = "fillrandom"
value_bytes = [32, 64, 128]
without_values = "it fills the store"
[[run]]
label = "read {value_bytes}"
workload = "readrandom"
value_bytes = [32, 64, 128]
amount = 100
store = "fill {value_bytes}"
without_values = "it has a ratio"
[[ratio]]
of = "read 128"
to = "read 32"
metric = "ops_per_s"
paper = 0.5
system = "HPDK"
source = "Fig. 1"
"#;

#[test]
fn runs_of_a_ratio_change_their_order_from_round_to_round() {
    let folder = tempfile::tempdir().unwrap();
    let file = experiment_in(folder.path(), TWO_STORES);
    let (out, result) = paper_said(&format!("{file} --engine null --json"));
    result.unwrap();
    let lines = out.lines().map(|line| serde_json::from_str(line).unwrap());
    let order = lines.filter_map(|line: serde_json::Value| {
        let (round, run) = (&line["experiment"]["round"], &line["experiment"]["run"]);
        Some(format!("{} {}", round.as_u64()?, run.as_str()?))
    });
    let order: Vec<String> = order.collect();
    // Each store is filled before it is read. No ratio has the runs with 64 bytes, which are a
    // group of their own.
    let expected = [
        "1 fill 32",
        "1 read 32",
        "1 fill 128",
        "1 read 128",
        "1 fill 64",
        "1 read 64", //
        "2 fill 128",
        "2 read 128",
        "2 fill 32",
        "2 read 32",
        "2 fill 64",
        "2 read 64", //
        "3 fill 128",
        "3 read 128",
        "3 fill 32",
        "3 read 32",
        "3 fill 64",
        "3 read 64",
    ];
    assert_eq!(order, expected);
}

#[test]
fn stores_of_an_experiment_are_deleted_after_their_last_run() {
    let folder = tempfile::tempdir().unwrap();
    let file = experiment_in(folder.path(), EXPERIMENT);
    let stores = folder.path().join("stores");
    let words = format!("{file} --scale 0.1 --folder {}", stores.display());
    paper_said(&words).1.unwrap();
    assert_eq!(std::fs::read_dir(&stores).unwrap().count(), 0);
    paper_said(&format!("{words} --keep")).1.unwrap();
    let kept = stores.join("small-store1");
    assert!(kept.join("siltstone.population").exists());
    // Another call fills the store anew. What no benchmark made stays.
    std::fs::write(kept.join("notes.txt"), "mine").unwrap();
    paper_said(&words).1.unwrap();
    let left: Vec<_> = std::fs::read_dir(&kept).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn typing_errors_in_an_experiment_are_refused_with_their_position() {
    let folder = tempfile::tempdir().unwrap();
    let text = EXPERIMENT.replace("ops_per_s = 1000", "ops_per_sec = 1000");
    let file = experiment_in(folder.path(), &text);
    let error = paper_said(&file).1.unwrap_err();
    let line = text
        .lines()
        .position(|l| l.contains("ops_per_sec"))
        .unwrap()
        + 1;
    let text = error.to_string();
    assert!(matches!(error, CommandError::Failed(_)), "{text}");
    assert!(text.starts_with(&format!("{file}:{line}:1: ")), "{text}");
    assert!(text.contains("did you mean `ops_per_s`?"), "{text}");
    let error = paper_said("prokstore-fig16").1.unwrap_err();
    assert!(matches!(error, CommandError::Usage(_)));
    assert!(
        error
            .to_string()
            .contains("did you mean `prockstore-fig16`?"),
        "{error}"
    );
    let error = paper_said("--scale 0.1").1.unwrap_err().to_string();
    assert!(
        error.contains("which experiment? `silt bench paper` lists"),
        "{error}"
    );
}

#[test]
fn experiments_are_listed_with_their_titles() {
    let (out, result) = paper_said("");
    result.unwrap();
    let line =
        "prockstore-fig16        Random writes by the number of sub-compactions (ProckStore)";
    assert!(out.contains(line), "{out}");
    assert!(
        out.contains(
            "\nprockstore-fig14        the runs of prockstore-fig12, with only the ratios of Fig. \
             14\n"
        ),
        "{out}"
    );
    assert!(out.lines().all(|line| line.chars().count() <= 100), "{out}");
    let (json, _) = paper_said("--json");
    assert_eq!(
        json.lines().count(),
        crate::experiment::embedded_names().count()
    );
    assert!(out.contains("gpu-compaction-fig10    "), "{out}");
}

#[test]
fn an_engine_that_cannot_do_a_run_is_refused_before_the_first_one() {
    let folder = tempfile::tempdir().unwrap();
    let text = EXPERIMENT.replace("amount = 2000", "amount = 2000\nworkload = \"fillsync\"");
    let text = text.replace("workload = \"readrandom\"\n", "");
    let text = text
        .replacen("\nstore = \"fill\"", "", 1)
        .replace("get.p99_us", "put.p99_us");
    let file = experiment_in(folder.path(), &text);
    let (out, result) = paper_said(&format!("{file} --engine null"));
    let error = result.unwrap_err().to_string();
    assert!(error.contains("null cannot do the run `read`"), "{error}");
    assert!(out.is_empty());
}

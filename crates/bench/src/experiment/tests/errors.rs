use proptest::prelude::*;

use super::*;

#[test]
fn a_misspelt_name_is_refused_with_its_position_and_the_nearest_name() {
    for (from, to, expected) in [
        (
            "key_bytes = 16",
            "vaule_bytes = 16",
            "experiments/x.toml:19:1: unknown setting `vaule_bytes`; did you mean `value_bytes`?",
        ),
        (
            "engine.memtable_bytes",
            "engine.memtabel_bytes",
            "experiments/x.toml:20:8: unknown setting `engine.memtabel_bytes`; did you mean \
             `engine.memtable_bytes`?",
        ),
        (
            "engine.memtable_bytes",
            "engine.own.rocksbd.x",
            "experiments/x.toml:20:20: unknown engine `rocksbd` in `engine.own.rocksbd.x`; did you \
             mean `rocksdb`?",
        ),
        (
            "engine.memtable_bytes",
            "  memtable_bytes",
            "experiments/x.toml:20:3: unknown setting `memtable_bytes`; did you mean \
             `engine.memtable_bytes`?",
        ),
        (
            "without_values",
            "wihtout_values",
            "experiments/x.toml:26:1: unknown key `wihtout_values` in [[run]]; did you mean \
             `without_values`?",
        ),
        (
            "notes",
            "ntoes",
            "experiments/x.toml:3:1: unknown key `ntoes` in the file; did you mean `notes`?",
        ),
        (
            "[paper]",
            "[papers]",
            "experiments/x.toml:6:2: unknown key `papers` in the file; did you mean `paper`?",
        ),
        (
            "venue =",
            "veneu =",
            "experiments/x.toml:9:1: unknown key `veneu` in [paper]; did you mean `venue`?",
        ),
        (
            "here =",
            "their_place =",
            "experiments/x.toml:15:1: unknown key `their_place` in [hardware]",
        ),
        (
            "get.p99_us",
            "get.p99us",
            "experiments/x.toml:39:5: unknown key `p99us` in [[value]]; did you mean `p99_us`?",
        ),
        (
            "get.p99_us",
            "gte.p99_us",
            "experiments/x.toml:39:1: unknown key `gte` in [[value]]; did you mean `get`?",
        ),
        (
            "metric = \"ops_per_s\"",
            "metric = \"ops_pre_s\"",
            "experiments/x.toml:45:10: unknown metric `ops_pre_s`; did you mean `ops_per_s`?",
        ),
        (
            "operation = \"get_missing\"",
            "operation = \"get_mising\"",
            "experiments/x.toml:54:13: unknown operation `get_mising`; did you mean `get_missing`?",
        ),
        (
            "needs =",
            "need =",
            "experiments/x.toml:62:1: unknown key `need` in [[claim]]; did you mean `needs`?",
        ),
    ] {
        assert_eq!(refused(from, to), expected);
    }
}

#[test]
fn a_value_of_the_wrong_kind_is_refused() {
    for (from, to, expected) in [
        (
            "workload = \"fillrandom\"",
            "workload = \"fillrandm\"",
            "; did you mean `fillrandom`?",
        ),
        (
            "\"1KiB\"]\nwithout",
            "\"1KB\"]\nwithout",
            "experiments/x.toml:25:21: `value_bytes`: found `1KB`, expected a size such as 128 or \
             1KiB, uniform:FROM..TO or pareto:MOST, for example uniform:16..1KiB",
        ),
        (
            "key_bytes = 16",
            "key_bytes = {}",
            "experiments/x.toml:19:13: `key_bytes` is of type table, expected a text, a number or \
             true or false",
        ),
        (
            "key_bytes = 16",
            "key_bytes = []",
            "experiments/x.toml:19:13: `key_bytes` is an empty list, expected at least one value",
        ),
        (
            "key_bytes = 16",
            "key_bytes = -16",
            "experiments/x.toml:19:13: `key_bytes`: found `-16`, expected a size such as 128, 1KiB \
             or 64MiB",
        ),
        (
            "scale = 0.5",
            "scale = 2",
            "experiments/x.toml:4:9: `scale` must be above 0 and at most 1",
        ),
        (
            "scale = 0.5",
            "scale = \"half\"",
            "experiments/x.toml:4:9: `scale` in the file is of type string, expected a number \
             above 0",
        ),
        (
            "year = 2025",
            "year = 20.5",
            "experiments/x.toml:10:8: `year` in [paper] is no year",
        ),
        (
            "system = \"A\"",
            "system = 7",
            "experiments/x.toml:7:10: `system` in [paper] is of type integer, expected a text",
        ),
        (
            "system = \"A\"",
            "system = \"\"",
            "experiments/x.toml:7:10: `system` in [paper] is empty",
        ),
        (
            "[1000, 2000]",
            "[2000, 1000]",
            "experiments/x.toml:40:13: `ops_per_s` is a range, expected two numbers, the lower \
             first",
        ),
        (
            "get.p99_us = 5.5",
            "get.write_amplification = 5.5",
            "experiments/x.toml:39:5: `write_amplification` is a figure of the whole run, so it \
             cannot be that of `get` alone",
        ),
        (
            "title = \"Reads by size\"\n",
            "",
            "experiments/x.toml:1:1: the file has no `title`",
        ),
        (
            "[hardware]",
            "[[hardware]]",
            "experiments/x.toml:13:1: `hardware` in the file is of type array, expected a table",
        ),
    ] {
        let found = refused(from, to);
        assert!(found.ends_with(expected), "{found}\n{expected}");
    }
}

#[test]
fn toml_that_cannot_be_read_is_refused_with_its_position() {
    let found = refused("scale = 0.5", "scale = 0.5.");
    assert!(found.starts_with("experiments/x.toml:4:"), "{found}");
    let found = refused("scale = 0.5", "scale = 0.5\nscale = 1");
    assert!(found.starts_with("experiments/x.toml:5:"), "{found}");
    assert_eq!(
        Experiment::parse("x.toml", "title = 1")
            .unwrap_err()
            .to_string(),
        "x.toml:1:1: the file has no table `[[run]]`"
    );
}

#[test]
fn labels_are_unique_and_stores_exist() {
    for (from, to, expected) in [
        (
            "label = \"fill {value_bytes}\"",
            "label = \"fill\"",
            "experiments/x.toml:23:9: two runs have the label `fill`; `value_bytes` is a list, so \
             write `{value_bytes}` into the label",
        ),
        (
            "label = \"{workload} {value_bytes}\"",
            "label = \"fill {value_bytes}\"",
            "experiments/x.toml:29:9: two runs have the label `fill 128`",
        ),
        (
            "label = \"fill {value_bytes}\"",
            "label = \"fill {value_byte}\"",
            "experiments/x.toml:23:9: `{value_byte}` in `fill {value_byte}` is no setting; did you \
             mean `value_bytes`?",
        ),
        (
            "label = \"fill {value_bytes}\"",
            "label = \"fill {value_bytes\"",
            "experiments/x.toml:23:9: `fill {value_bytes` has a `{` without a `}`",
        ),
        (
            "store = \"fill {value_bytes}\"",
            "store = \"fil {value_bytes}\"",
            "experiments/x.toml:33:9: no earlier run has the label `fil 128`; did you mean \
             `fill 128`?",
        ),
        (
            "store = \"fill {value_bytes}\"",
            "store = \"readmissing 128\"",
            "experiments/x.toml:33:9: `readmissing 128` is not an earlier run, so its store is not \
             filled yet",
        ),
        (
            "store = \"fill {value_bytes}\"",
            "store = \"fresh\"",
            "experiments/x.toml:33:9: `readrandom` needs a filled store; say which run fills it: \
             `store = \"LABEL\"`",
        ),
        (
            "store = \"fill {value_bytes}\"\n",
            "",
            "experiments/x.toml:30:13: `readrandom` needs a filled store; say which run fills it: \
             `store = \"LABEL\"`",
        ),
        (
            "without_values = \"it fills the store\"",
            "store = \"fill 128\"",
            "experiments/x.toml:26:9: `fillrandom` begins with an empty store; leave `store` out, \
             or write `store = \"fresh\"`",
        ),
        (
            "store = \"fill {value_bytes}\"",
            "store = \"fill 128\"",
            "experiments/x.toml:31:21: `value_bytes` is 1KiB, and the store of `fill 128` was \
             filled with 128",
        ),
        (
            "amount = \"20s\"",
            "records = 99",
            "experiments/x.toml:32:11: `records` is 99, and the store of `fill 128` was filled \
             with 10000",
        ),
        (
            "amount = \"20s\"",
            "engine.bloom_bits = 4",
            "experiments/x.toml:32:21: `engine.bloom_bits` is 4, and the store of `fill 128` was \
             filled with 10",
        ),
        (
            "workload = [\"readrandom\", \"readmissing\"]",
            "workload = [\"ycsb-c\"]",
            "experiments/x.toml:33:9: `ycsb-c` has other keys than `fillrandom`, which `fill 128` \
             does; YCSB's workloads need a store of `ycsb-load`, and the others one of a fill",
        ),
    ] {
        assert_eq!(refused(from, to), expected);
    }
}

#[test]
fn settings_that_contradict_each_other_are_refused_in_their_line() {
    for (from, to, expected) in [
        (
            "amount = \"20s\"",
            "amount = \"0s\"",
            "experiments/x.toml:32:10: run `readrandom 128`: `amount` is 0s; a time must be above \
             0s and at most 720h",
        ),
        (
            "records = \"10K\"",
            "records = \"10K\"\nthreads = 0",
            "experiments/x.toml:19:11: run `fill 128`: `threads` is 0; it must be from 1 to 1024",
        ),
        (
            "workload = \"fillrandom\"",
            "workload = \"fillseq\"\namount = \"5s\"",
            "experiments/x.toml:25:10: run `fill 128`: `amount` is 5s; `fillseq` ends when its \
             work is done, so it takes no time; give a number of records instead",
        ),
    ] {
        assert_eq!(refused(from, to), expected);
    }
}

#[test]
fn values_and_ratios_are_those_of_runs() {
    for (from, to, expected) in [
        (
            "run = \"readrandom 128\"",
            "run = \"readrandon 128\"",
            "experiments/x.toml:36:7: no run has the label `readrandon 128`; did you mean \
             `readrandom 128`?",
        ),
        (
            "of = \"readmissing 128\"",
            "of = \"readmissing 129\"",
            "experiments/x.toml:43:6: no run has the label `readmissing 129`; did you mean \
             `readmissing 128`?",
        ),
        (
            "of = \"readmissing 128\"",
            "of = \"readrandom 128\"",
            "experiments/x.toml:44:6: the ratio is that of `readrandom 128` to itself",
        ),
        (
            "without_values = \"it fills the store\"\n",
            "",
            "experiments/x.toml:23:9: run `fill 128` has no value of the paper; add a `[[value]]` \
             or a `[[ratio]]`, or say why in `without_values`",
        ),
        (
            "amount = \"20s\"",
            "without_values = \"none\"",
            "experiments/x.toml:32:18: all runs of this table have values or ratios of the paper, \
             so `without_values` is wrong",
        ),
        (
            "[[ratio]]",
            "[[value]]\nrun = \"readrandom 128\"\nsystem = \"B 1.0\"\nsource = \"y\"\n\
             ops_per_s = 1\n\n\
             [[ratio]]",
            "experiments/x.toml:46:1: `ops_per_s` of B 1.0 is given twice for this run",
        ),
        (
            "paper = 2\n",
            "",
            "experiments/x.toml:42:1: [[ratio]] has no `paper`",
        ),
        (
            "get.p99_us = 5.5\nops_per_s = [1000, 2000]\n",
            "",
            "experiments/x.toml:35:1: [[value]] has no value, for example `p99_us = 5`",
        ),
    ] {
        assert_eq!(refused(from, to), expected);
    }
}

#[test]
fn too_many_runs_are_refused() {
    let many: Vec<String> = (1..=17).map(|n| n.to_string()).collect();
    let lists = format!("threads = [{0}]\nseed = [{0}]", many.join(", "));
    let found = refused("engine.memtable_bytes = \"8MiB\"", &lists);
    assert_eq!(
        found,
        "experiments/x.toml:23:1: the lists make 578 runs, expected at most 256"
    );
}

#[test]
fn columns_count_characters() {
    let found = refused("notes = [\"One.\", \"Two.\"]", "notes = [\"Größe\", 2]");
    assert_eq!(
        found,
        "experiments/x.toml:3:19: `notes` in the file is of type integer, expected a list of texts"
    );
}

proptest! {
    #[test]
    fn no_damage_makes_the_parser_panic(
        at in 0..SMALL.len(), cut in 0usize..40, put in "\\PC{0,6}",
    ) {
        let end = (at + cut).min(SMALL.len());
        let parts = SMALL.get(..at).zip(SMALL.get(end..));
        let damaged = parts.map(|(before, after)| format!("{before}{put}{after}"));
        if let Some(Err(error)) = damaged.map(|text| Experiment::parse("x.toml", &text)) {
            prop_assert!(error.line >= 1 && error.column >= 1);
            prop_assert!(!error.message.is_empty());
        }
    }
}

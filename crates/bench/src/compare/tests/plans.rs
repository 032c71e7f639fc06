use super::{SMALL, refused, row, small};
use crate::compare::Plan;
use crate::experiment::Metric;
use crate::settings::Workload;

#[test]
fn a_plan_is_read_with_its_settings() {
    let plan = small();
    assert_eq!(
        (plan.name.as_str(), plan.title.as_str()),
        ("small", "Small")
    );
    assert_eq!(plan.engines.len(), 3);
    assert_eq!(plan.engines[2].driver, "rocksdb");
    assert_eq!(plan.owner(2), 1);
    assert_eq!(plan.stores[0].title, "Values of 128 bytes");
    let names: Vec<&str> = plan.rows.iter().map(|row| row.name.as_str()).collect();
    let expected = [
        "overwrite",
        "seekrandom-10",
        "seekrandom-100",
        "fillrandom",
        "fillseq",
        "readwhilewriting",
    ];
    assert_eq!(names, expected);
    let seek = &plan.rows[2];
    assert_eq!(
        (seek.engines.len(), seek.pairs, seek.settings.nexts),
        (3, 2, 100)
    );
    assert_eq!(seek.settings.records, 10_000);
    assert_eq!(plan.rows[5].metric, Metric::P99Us);
    assert_eq!(plan.rows[5].memory_limit, Some(64 << 20));
    assert!(plan.rows[4].tenths && !plan.rows[3].tenths);
}

#[test]
fn an_engine_s_settings_come_last() {
    let plan = small();
    let seek = &plan.rows[1];
    assert_eq!(plan.settings(seek, 0).engine.mmap_reads, None);
    assert_eq!(plan.settings(seek, 2).engine.mmap_reads, Some(true));
    assert_eq!(plan.settings(seek, 2).engine.memtable_bytes, 8 << 20);
    assert_eq!(
        plan.fill_settings(&plan.stores[0], 1).workload,
        Workload::FillRandom
    );
}

#[test]
fn writes_are_judged_until_idle_and_reads_until_the_last_one() {
    let plan = small();
    let metric = |name: &str| plan.rows[row(&plan, name)].metric;
    assert_eq!(metric("fillrandom"), Metric::OpsPerSUntilIdle);
    assert_eq!(metric("overwrite"), Metric::OpsPerSUntilIdle);
    assert_eq!(metric("seekrandom-10"), Metric::OpsPerS);
}

#[test]
fn an_earlier_siltstone_takes_part_where_siltstone_does() {
    let mut plan = small();
    assert!(plan.add_before());
    assert!(!plan.add_before(), "once only");
    let before = plan.engine_named("before").unwrap();
    assert_eq!(plan.engines[before].driver, "siltstone");
    assert!(plan.rows.iter().all(|row| row.engines.contains(&before)));
    assert_eq!(plan.stores[0].expected["before"], 1_000.0);
    let text = SMALL
        .replace("\"siltstone\"", "\"leveldb\"")
        .replace("siltstone =", "leveldb =");
    assert!(!Plan::parse("x.toml", &text).unwrap().add_before());
}

#[test]
fn what_is_wrong_is_refused_with_its_position_and_the_nearest_name() {
    for (from, to, expected) in [
        (
            "title = \"Small\"",
            "titel = \"Small\"",
            "x.toml:1:1: unknown key `titel`",
        ),
        (
            "[[engine]]\nname = \"rocksdb\"",
            "[[engine]]\nname = \"siltstone\"",
            "two engines have the name `siltstone`",
        ),
        (
            "\"rocksdb-mmap\"",
            "\"RocksDB\"",
            "becomes part of file names",
        ),
        ("\"rocksdb-mmap\"", "\"before\"", "--against"),
        (
            "shares = \"rocksdb\"",
            "shares = \"rocksbd\"",
            "did you mean `rocksdb`",
        ),
        (
            "engine.mmap_reads = true",
            "engine.mmap_read = true",
            "did you mean `engine.mmap_reads`",
        ),
        (
            "engine.mmap_reads = true",
            "threads = 4",
            "all engines do the same work",
        ),
        (
            "workload = \"fillrandom\"\nrecords",
            "workload = \"readseq\"\nrecords",
            "`readseq` does not fill",
        ),
        (
            "store = \"128\"\nworkload = \"overwrite\"",
            "store = \"182\"\nworkload = \"overwrite\"",
            "there is no store `182`",
        ),
        (
            "workload = \"overwrite\"",
            "workload = \"overwrit\"",
            "overwrite",
        ),
        (
            "engines = [\"siltstone\", \"rocksdb\"]\namount",
            "engines = [\"siltstoen\"]\namount",
            "did you mean `siltstone`",
        ),
        (
            "engines = [\"siltstone\", \"rocksdb\"]\namount",
            "amount",
            "`rocksdb-mmap` reads the stores of another engine, and `overwrite` writes",
        ),
        (
            "amount = 1_000",
            "records = 5",
            "only a row that fills may differ",
        ),
        ("pairs = 2", "pairs = 0", "a whole number from 1 to 100"),
        ("pairs = 2", "pears = 2", "did you mean `pairs`"),
        ("tenths = true", "tenths = 1", "true or false"),
        (
            "metric = \"p99_us\"",
            "metric = \"p99\"",
            "there is no metric `p99`",
        ),
        (
            "metric = \"p99_us\"",
            "metric = \"p99_us\"\nalso = [\"max\"]",
            "there is no metric `max`",
        ),
        (
            "metric = \"p99_us\"",
            "metric = \"p99_us\"\nalso = [\"p99_us\"]",
            "the row has `p99_us` already",
        ),
        (
            "metric = \"p99_us\"",
            "also = \"p99_us\"",
            "a list of names",
        ),
        (
            "memory_limit = \"64MiB\"",
            "memory_limit = \"much\"",
            "`memory_limit`",
        ),
        (
            "name = \"{workload}-{nexts}\"",
            "name = \"{workload}\"",
            "two rows of a store have the name `seekrandom`",
        ),
        (
            "expected = { siltstone = 5_000 }",
            "expected = { siltston = 5_000 }",
            "did you mean `siltstone`",
        ),
        (
            "workload = \"readwhilewriting\"\namount = \"2s\"",
            "workload = \"ycsb-c\"",
            "`ycsb-c` has other keys",
        ),
        (
            "amount = 1_000\n",
            "amount = 1_000\nthreads = 0\n",
            "`threads` is 0",
        ),
    ] {
        let message = refused(from, to);
        assert!(message.contains(expected), "{to}: {message}");
        assert!(message.starts_with("plans/x.toml:"), "{message}");
    }
}

#[test]
fn a_list_may_stand_in_a_row_only() {
    let message = refused("key_bytes = 16", "key_bytes = [16, 20]");
    assert!(message.contains("which only a row may have"), "{message}");
    let message = refused("value_bytes = 128", "value_bytes = [128, 256]");
    assert!(message.contains("which only a row may have"), "{message}");
}

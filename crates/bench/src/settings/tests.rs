use proptest::prelude::*;

use super::*;

/// Settings that differ from the default in everything.
fn unusual() -> Settings {
    let mut settings = Settings::default();
    for (name, text) in [
        ("workload", "readrandomwriterandom"),
        ("records", "10M"),
        ("key_bytes", "24"),
        ("value_bytes", "uniform:16..1KiB"),
        ("compression_ratio", "0.5"),
        ("distribution", "zipfian:0.9"),
        ("amount", "2min"),
        ("arrival", "phases:10s@200000,10s@20000"),
        ("threads", "4"),
        ("batch", "100"),
        ("nexts", "50"),
        ("read_ratio", "0.25"),
        ("sync", "true"),
        ("write_rate", "20K"),
        ("cache", "cold"),
        ("seed", "7"),
        ("operation_seed", "3"),
        ("engine.memtable_bytes", "8MiB"),
        ("engine.cache_bytes", "1GiB"),
        ("engine.bloom_bits", "12"),
        ("engine.compression", "lz4"),
        ("engine.background_threads", "3"),
        ("engine.mmap_reads", "true"),
        ("engine.own.block_bytes", "32768"),
        ("topology.files", "held"),
        ("topology.link", "1Gbit"),
        ("topology.host_cores", "0"),
        ("topology.device_cores", "1"),
        ("topology.slots", "2"),
        ("topology.parallelism", "4"),
        ("topology.nice", "5"),
        ("gpu.strategy", "luda"),
        ("gpu.transfer", "direct"),
        ("gpu.profiles", "true"),
    ] {
        settings.set(name, text).unwrap();
    }
    settings
}

#[test]
fn every_field_has_a_setting_and_every_setting_returns() {
    let settings = unusual();
    let mut copy = Settings::default();
    for setting in all_settings() {
        assert_ne!(setting.show(&settings), setting.show(&copy), "{setting:?}");
        setting.set(&mut copy, &setting.show(&settings)).unwrap();
    }
    assert_eq!(copy, settings);
    let json = serde_json::to_value(&settings).unwrap();
    for setting in all_settings() {
        let pointer = format!("/{}", setting.name.replace('.', "/"));
        assert!(json.pointer(&pointer).is_some(), "{pointer}");
    }
    let engine = json["engine"].as_object().unwrap().len();
    let topology = json["topology"].as_object().unwrap().len();
    let gpu = json["gpu"].as_object().unwrap().len();
    assert_eq!(
        json.as_object().unwrap().len() - 3 + engine + topology + gpu,
        all_settings().len()
    );
}

#[test]
fn json_has_numbers_for_plain_numbers_and_texts_for_the_rest() {
    let json = serde_json::to_value(unusual()).unwrap();
    assert_eq!(json["records"], 10_000_000);
    assert_eq!(json["engine"]["memtable_bytes"], 8 << 20);
    assert_eq!(json["workload"], "readrandomwriterandom");
    assert_eq!(json["value_bytes"], "uniform:16..1KiB");
    assert_eq!(json["amount"], "2min");
    assert_eq!(json["arrival"], "phases:10s@200000,10s@20000");
    assert_eq!(json["cache"], "cold");
    assert_eq!(json["write_rate"], 20_000.0);
    let back: Settings = serde_json::from_value(json).unwrap();
    assert_eq!(back, unusual());
}

#[test]
fn serde_reads_texts_and_integers_of_toml() {
    let text = "workload = \"ycsb-a\"\nrecords = \"1M\"\nvalue_bytes = 1024\namount = 500\n\
                write_rate = \"20K\"\n[engine]\nmemtable_bytes = \"64MiB\"\n\
                cache_bytes = 1048576\n";
    let settings: Settings = toml::from_str(text).unwrap();
    assert_eq!(settings.workload, Workload::YcsbA);
    assert_eq!(settings.records, 1_000_000);
    assert_eq!(settings.value_bytes, ValueBytes::Fixed(1024));
    assert_eq!(settings.amount, Some(Amount::Operations(500)));
    assert_eq!(settings.engine.memtable_bytes, 64 << 20);
    assert_eq!(settings.engine.cache_bytes, 1 << 20);
    assert_eq!(settings.write_rate, Some(20_000.0));
    let whole: Settings = toml::from_str("write_rate = 500").unwrap();
    assert_eq!(whole.write_rate, Some(500.0));
    let error = toml::from_str::<Settings>("records = \"many\"").unwrap_err();
    assert!(
        error
            .to_string()
            .contains("found `many`, expected a whole number")
    );
}

#[test]
fn a_misspelt_name_gets_the_nearest_one() {
    let mut settings = Settings::default();
    for (name, text) in [
        (
            "vaule_bytes",
            "unknown setting `vaule_bytes`; did you mean `value_bytes`?",
        ),
        (
            "memtable_bytes",
            "unknown setting `memtable_bytes`; did you mean `engine.memtable_bytes`?",
        ),
        ("colour", "unknown setting `colour`"),
    ] {
        assert_eq!(settings.set(name, "1").unwrap_err().to_string(), text);
    }
    let error = settings
        .set("workload", "fillrandm")
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("`workload`: found `fillrandm`, expected fillseq, "),
        "{error}"
    );
    assert!(
        error.ends_with(" or queue; did you mean `fillrandom`?"),
        "{error}"
    );
    assert_eq!(
        settings
            .set("threads", "5000000000")
            .unwrap_err()
            .to_string(),
        "`threads`: found `5000000000`, expected a whole number such as 1000, 1_000_000 or 1M"
    );
}

#[test]
fn lists_survive_in_the_engines_own_settings() {
    let mut settings = Settings::default();
    settings
        .set("engine.own", "compression=[none,lz4],l0_stop_count=12")
        .unwrap();
    assert_eq!(settings.engine.own["compression"], "[none,lz4]");
    assert_eq!(settings.engine.own["l0_stop_count"], "12");
    assert!(settings.set("engine.own", "no pair").is_err());
}

#[test]
fn options_have_the_names_of_the_command_line() {
    let options: Vec<String> = all_settings().iter().map(Setting::option).collect();
    for option in ["--value-bytes", "--for", "--memtable-bytes", "--arrival"] {
        assert!(options.contains(&option.to_string()), "{option}");
    }
    let mut unique = options.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), options.len());
}

#[test]
fn every_workload_can_be_run_with_the_default_settings() {
    for workload in Workload::ALL {
        let settings = Settings {
            workload: *workload,
            ..Settings::default()
        };
        settings.check(&Abilities::ALL).unwrap();
        let resolved = settings.resolved();
        resolved.check(&Abilities::ALL).unwrap();
        assert_eq!(resolved, resolved.resolved());
    }
}

#[test]
fn fillsync_syncs_and_takes_a_time() {
    let settings = Settings {
        workload: Workload::FillSync,
        ..Settings::default()
    };
    let resolved = settings.resolved();
    assert!(resolved.sync && !settings.sync);
    assert_eq!(resolved.amount, Some(Amount::Seconds(10.0)));
    let fill = Settings::default().resolved();
    assert!(!fill.sync);
}

/// What the check says of the default settings with these changes.
fn refusal(changes: &[(&str, &str)]) -> String {
    let mut settings = Settings::default();
    for (name, text) in changes {
        settings.set(name, text).unwrap();
    }
    match settings.check(&Abilities::ALL) {
        Ok(()) => "accepted".into(),
        Err(refusal) => refusal.to_string(),
    }
}

#[test]
fn what_cannot_be_carried_out_is_refused() {
    for (changes, expected) in [
        (
            &[("records", "0")][..],
            "`records` is 0; it must be from 1 to 68719476736",
        ),
        (
            &[("threads", "0")],
            "`threads` is 0; it must be from 1 to 1024",
        ),
        (
            &[("key_bytes", "4")],
            "`key_bytes` is 4; it must be from 8 to 1024",
        ),
        (
            &[("key_bytes", "8"), ("records", "60M")],
            "`key_bytes` is 8; the numbers of 60000000 records need keys of 9 bytes",
        ),
        (
            &[
                ("workload", "queue"),
                ("key_bytes", "8"),
                ("records", "40M"),
                ("amount", "40M"),
            ],
            "`key_bytes` is 8; the numbers of 80000000 records need keys of 9 bytes",
        ),
        (
            &[("value_bytes", "65MiB")],
            "`value_bytes` is 65MiB; a value has at most 64MiB",
        ),
        (
            &[("value_bytes", "uniform:2KiB..1KiB")],
            "`value_bytes` is uniform:2KiB..1KiB; the smallest size must not be above the largest \
             one",
        ),
        (
            &[("compression_ratio", "0")],
            "`compression_ratio` is 0; it must be above 0 and at most 1",
        ),
        (
            &[("read_ratio", "1.5")],
            "`read_ratio` is 1.5; it must be from 0 to 1",
        ),
        (
            &[("write_rate", "0")],
            "`write_rate` is 0; it must be from 10^-6 to 10^12 operations a second",
        ),
        (
            &[("distribution", "zipfian:1")],
            "`distribution` is zipfian:1; the exponent must be above 0 and below 1",
        ),
        (
            &[("workload", "fillseq"), ("distribution", "latest")],
            "`distribution` is latest; `fillseq` draws no records",
        ),
        (
            &[("amount", "every-record"), ("distribution", "zipfian")],
            "`distribution` is zipfian:0.99; records that are drawn independently are not each \
             drawn once, which `amount = \"every-record\"` asks for; leave the distribution out, \
             or give a number",
        ),
        (
            &[("amount", "0")],
            "`amount` is 0; it must be at least 1 operation",
        ),
        (
            &[("amount", "0s")],
            "`amount` is 0s; a time must be above 0s and at most 720h",
        ),
        (
            &[("workload", "fillseq"), ("amount", "10s")],
            "`amount` is 10s; `fillseq` ends when its work is done, so it takes no time; give a \
             number of records instead",
        ),
        (
            &[("workload", "ycsb-load"), ("amount", "2M")],
            "`amount` is 2000000; `ycsb-load` puts each record once, and there are 1000000 records",
        ),
        (
            &[("workload", "seekrandom"), ("amount", "every-record")],
            "`amount` is every-record; `seekrandom` takes a time or a number of operations",
        ),
        (
            &[("arrival", "phases:10s@0,5s@0"), ("amount", "60s")],
            "`arrival` is phases:10s@0,5s@0; nothing ever arrives",
        ),
        (
            &[("arrival", "phases:10s@0,5s@9"), ("amount", "8s")],
            "`arrival` is phases:10s@0,5s@9; no operation arrives within 8s",
        ),
        (
            &[("arrival", "constant:0")],
            "`arrival` is constant:0; a phase or rate must be from 10^-6 to 10^12 operations a \
             second",
        ),
        (
            &[("arrival", "constant:0.01")],
            "`arrival` is constant:0.01; 1000000 operations take more than 720h at this rate",
        ),
        (
            &[("workload", "compact"), ("arrival", "poisson:10")],
            "`arrival` is poisson:10; `compact` has no single operations that could arrive",
        ),
        (
            &[("workload", "fillbatch"), ("batch", "0")],
            "`batch` is 0; it must be at least 1, and all its values together at most 1GiB",
        ),
        (
            &[("engine.memtable_bytes", "1KiB")],
            "`engine.memtable_bytes` is 1KiB; it must be from 64KiB to 4GiB",
        ),
    ] {
        assert_eq!(refusal(changes), expected, "{changes:?}");
    }
}

#[test]
fn seconds_that_are_no_number_are_refused() {
    let settings = Settings {
        amount: Some(Amount::Seconds(f64::NAN)),
        ..Settings::default()
    };
    assert_eq!(
        settings.check(&Abilities::ALL).unwrap_err().setting,
        "amount"
    );
}

#[test]
fn an_engine_is_asked_only_what_it_can_do() {
    let weak = Abilities {
        unsynced: Promise::Memory,
        sync: false,
        reverse: false,
        ingest: false,
        multi_get: false,
        compact: false,
        threads: false,
    };
    for (name, setting) in [
        ("readreverse", "workload"),
        ("ingest", "workload"),
        ("multireadrandom", "workload"),
        ("compact", "workload"),
        ("fillsync", "workload"),
        ("fillrandom", "threads"),
    ] {
        let mut settings = Settings::default();
        settings.set("workload", name).unwrap();
        settings.threads = 2;
        assert_eq!(
            settings.check(&weak).unwrap_err().setting,
            setting,
            "{name}"
        );
        settings.threads = if setting == "threads" { 1 } else { 2 };
        let abilities = if setting == "threads" {
            weak
        } else {
            Abilities::ALL
        };
        settings.check(&abilities).unwrap();
    }
    let mut synced = Settings::default();
    synced.set("sync", "true").unwrap();
    assert_eq!(synced.check(&weak).unwrap_err().setting, "sync");
    synced.set("workload", "readwhilewriting").unwrap();
    synced.set("sync", "false").unwrap();
    synced.threads = 8;
    synced.check(&weak).unwrap();
}

proptest! {
    #[test]
    fn numbers_never_make_the_check_panic(
        records in any::<u64>(), count in any::<u64>(), key_bytes in any::<u32>(),
        seconds in any::<f64>(), rate in any::<f64>(), ratio in any::<f64>(),
        timed in any::<bool>(),
        workload in 0..Workload::ALL.len(), most in any::<u32>(), batch in any::<u32>(),
    ) {
        let settings = Settings {
            workload: Workload::ALL[workload],
            records,
            key_bytes,
            value_bytes: ValueBytes::Uniform(0, most),
            batch,
            read_ratio: ratio,
            compression_ratio: ratio,
            amount: Some(if timed { Amount::Seconds(seconds) } else { Amount::Operations(count) }),
            arrival: Arrival::Phases(vec![(seconds, rate)]),
            distribution: Some(Distribution::Hotspot(ratio, seconds)),
            ..Settings::default()
        };
        let _ = settings.check(&Abilities::ALL);
    }
}

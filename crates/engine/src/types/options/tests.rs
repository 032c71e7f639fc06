//! The registry, the TOML file and the stored form agree with each other.

use super::*;
use crate::types::options::stored::StoredOptions;

fn unusual() -> Options {
    let mut options = Options {
        sync: SyncMode::Interval(Duration::from_millis(20)),
        memtable_bytes: 100_000,
        map_tables: false,
        bloom_bits_per_key: ByLevel::of(&[12, 0, 8]).unwrap(),
        compression: ByLevel::of(&[Compression::None, Compression::Zstd(9)]).unwrap(),
        ..Options::default()
    };
    let own = KeyspaceOptions {
        table_bytes: Some(1 << 20),
        compression: Some(Compression::Lz4.into()),
        ..KeyspaceOptions::default()
    };
    options.keyspaces.insert("birds".into(), own.clone());
    options.keyspaces.insert("odd \"name\"\n.".into(), own);
    options
        .keyspaces
        .insert(String::new(), KeyspaceOptions::default());
    options
}

/// The rustdoc of the fields of `Options` has the range and the default that `silt options` prints.
/// It is a literal, because no macro can compute it.
#[test]
fn the_documentation_of_each_field_has_its_range_and_default() {
    for s in SETTINGS {
        let range = s.range();
        let range = match s.limits.words.is_some() || range.starts_with("a power of two") {
            true => range,
            false => format!("from {range}"),
        };
        let default = match (s.unit, s.show(&s.default_value())) {
            ("folder", _) => "empty".to_string(),
            (_, text) => text,
        };
        // Backticks, quotes and the case of the first letter may differ.
        let plain = |text: &str| text.replace(['`', '"'], "").to_lowercase();
        let default = match default.as_str() {
            "\"0 B\"" => "0",
            default => default,
        };
        let expected = format!("{range}; default {default}.");
        assert_eq!(plain(s.documented), plain(&expected), "{}", s.name);
    }
}

#[test]
fn names_and_tags_are_unique_and_defaults_possible() {
    let mut names: Vec<_> = SETTINGS.iter().map(|s| s.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), SETTINGS.len());
    let mut tags: Vec<_> = SETTINGS
        .iter()
        .filter_map(|s| s.keyspace.as_ref())
        .map(|k| k.tag)
        .collect();
    tags.sort_unstable();
    let count = tags.len();
    tags.dedup();
    assert_eq!(tags.len(), count);
    Options::default().validate().unwrap();
    for s in SETTINGS {
        assert_eq!(
            s.scope == Scope::Keyspace,
            s.keyspace.is_some(),
            "{}",
            s.name
        );
        assert!(
            s.meaning().ends_with('.') && s.meaning().len() > 20,
            "{}",
            s.name
        );
        // The default survives a conversion to a value and back.
        let mut options = unusual();
        options.set(s.name, &s.default_value()).unwrap();
        assert_eq!(s.value(&options), s.default_value(), "{}", s.name);
    }
}

#[test]
fn toml_reads_back_what_it_wrote() {
    for options in [Options::default(), unusual()] {
        let text = options.to_toml();
        let back = Options::from_toml(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(back, options, "{text}");
        for s in SETTINGS {
            let at = text
                .find(&format!("\n{} = ", s.name))
                .unwrap_or_else(|| panic!("no {}", s.name));
            let comment = text[..at].rsplit('\n').next().unwrap();
            for part in [s.meaning(), s.unit, &s.range(), &s.show(&s.default_value())] {
                assert!(
                    comment.starts_with('#') && comment.contains(part),
                    "{comment}: {part}"
                );
            }
        }
    }
    assert_eq!(Options::from_toml("").unwrap(), Options::default());
    let few = Options::from_toml("memtable_bytes = \"1 MiB\"\n[keyspaces.a]\nl0_stop_count = 50")
        .unwrap();
    assert_eq!(few.memtable_bytes, 1 << 20);
    assert_eq!(few.keyspaces["a"].l0_stop_count, Some(50));
}

#[test]
fn bad_toml_is_refused_with_what_to_do() {
    for (text, named) in [
        ("memtable_bytes", "line 1"),
        ("\n\nmemtable_bytes = = 3", "line 3"),
        ("memtable_byte = 3", "did you mean `memtable_bytes`"),
        ("memtable_bytes = -3", "memtable_bytes"),
        ("memtable_bytes = 1.5", "memtable_bytes"),
        ("memtable_bytes = true", "64 KiB to 4 GiB"),
        ("memtable_bytes = \"3 apples\"", "3 apples"),
        ("table_bytes = 100000", "power of two"),
        ("level_factor = 5000000000", "level_factor"),
        ("compression = \"zstd:20\"", "zstd:19"),
        ("compression = []", "compression"),
        ("compression = [\"none\", \"snappy\"]", "snappy"),
        ("bloom_bits_per_key = [10, 21]", "bloom_bits_per_key"),
        ("sync = \"sometimes\"", "sometimes"),
        ("sync = \"1 us\"", "sync"),
        ("l0_stop_count = 3", "l0_slowdown_count"),
        ("log_bytes_max = \"64 MiB\"", "two segments"),
        ("keyspaces = 3", "keyspaces"),
        ("[keyspaces]\na = 3", "keyspaces.a"),
        ("[keyspaces.a]\nlog_bytes_max = 3", "an option of the store"),
        (
            "[keyspaces.a]\nl0_stop_coun = 3",
            "did you mean `l0_stop_count`",
        ),
        (
            "[keyspaces.a]\nl0_stop_count = 3\nl0_trigger_count = 4",
            "keyspace `a`",
        ),
    ] {
        let error = Options::from_toml(text).expect_err(text);
        assert_eq!(error.kind(), crate::ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(named), "{text}: {error}");
    }
}

#[test]
fn stored_options_read_back_and_unknown_ones_are_kept() {
    let own = KeyspaceSettings {
        compression: ByLevel::of(&[Compression::None, Compression::ZSTD]).unwrap(),
        ..unusual().keyspace_defaults()
    }
    .all_set();
    let mut stored = StoredOptions::new();
    stored.set(999, b"kept");
    stored.set(tag::L0_STOP_COUNT, &7u64.to_le_bytes());
    own.store_into(&mut stored);
    let stored = StoredOptions::decode(&stored.encode()).unwrap();
    assert_eq!(KeyspaceOptions::from_stored(&stored).unwrap(), own);
    let mut none = stored.clone();
    KeyspaceOptions::default().store_into(&mut none);
    assert_eq!(none.iter().collect::<Vec<_>>(), [(999, &b"kept"[..])]);
    // Every stored value that is damaged, too short or out of range is refused; the error names it.
    for (tag, _) in stored.iter().filter(|(tag, _)| *tag != 999) {
        for bytes in [&[][..], &[1; 3], &[0xff; 8], &[0xff; 100]] {
            let mut bad = stored.clone();
            bad.set(tag, bytes);
            // Three bytes are the filter bits of three levels.
            if tag == self::tag::FILTER_BITS_BY_LEVEL && bytes.len() == 3 {
                continue;
            }
            let error = KeyspaceOptions::from_stored(&bad).expect_err("refused");
            assert_eq!(
                error.kind(),
                crate::ErrorKind::Unsupported,
                "{tag} {bytes:?}"
            );
        }
    }
}

#[test]
fn defaults_give_way_to_what_was_set() {
    let base = Options {
        l0_trigger_count: 16,
        l0_slowdown_count: 20,
        l0_stop_count: 36,
        ..Options::default()
    }
    .keyspace_defaults();
    let none = None::<u32>;
    for (set, counts) in [
        ((none, none, none), (16, 20, 36)),
        ((none, none, Some(8)), (8, 8, 8)),
        ((Some(30), none, none), (30, 30, 36)),
        ((Some(50), none, none), (50, 50, 50)),
        ((none, Some(3), none), (3, 3, 36)),
        ((none, Some(40), none), (16, 40, 40)),
        ((Some(2), none, Some(5)), (2, 5, 5)),
        ((Some(2), Some(3), Some(4)), (2, 3, 4)),
        // No `validate` accepts these, but the settings in force must still be in order.
        ((Some(9), Some(3), Some(4)), (4, 4, 4)),
    ] {
        let own = KeyspaceOptions {
            l0_trigger_count: set.0,
            l0_slowdown_count: set.1,
            l0_stop_count: set.2,
            ..KeyspaceOptions::default()
        };
        let all = own.over(&base);
        let found = (
            all.l0_trigger_count,
            all.l0_slowdown_count,
            all.l0_stop_count,
        );
        assert_eq!(found, counts, "{set:?}");
    }
    let sizes = |table, level1| {
        let own = KeyspaceOptions {
            table_bytes: table,
            level1_bytes: level1,
            ..KeyspaceOptions::default()
        };
        let all = own.over(&base);
        (all.table_bytes, all.level1_bytes)
    };
    assert_eq!(sizes(None, Some(3 << 20)), (2 << 20, 3 << 20));
    assert_eq!(sizes(Some(1 << 30), None), (1 << 30, 1 << 30));
    assert_eq!(sizes(None, None), (64 << 20, 256 << 20));
}

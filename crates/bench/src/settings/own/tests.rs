use super::*;
use crate::settings::Settings;

fn given(pairs: &[(&str, &str)]) -> EngineSettings {
    let mut settings = Settings::default();
    for (name, value) in pairs {
        settings.set(&format!("{OWN_PREFIX}{name}"), value).unwrap();
    }
    settings.engine
}

#[test]
fn an_engine_gets_its_own_settings_over_the_common_ones() {
    let settings = given(&[
        ("block_size", "4096"),
        ("checksum", "crc32c"),
        ("rocksdb.block_size", "16384"),
        ("rocksdb.max_write_buffer_number", "4"),
        ("leveldb.block_size", "8192"),
    ]);
    let own = |engine| settings.for_engine(engine).own;
    let pairs = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        let pairs = pairs.iter();
        pairs.map(|(a, b)| (a.to_string(), b.to_string())).collect()
    };
    assert_eq!(
        own("rocksdb"),
        pairs(&[
            ("block_size", "16384"),
            ("checksum", "crc32c"),
            ("max_write_buffer_number", "4"),
        ])
    );
    assert_eq!(
        own("leveldb"),
        pairs(&[("block_size", "8192"), ("checksum", "crc32c")])
    );
    assert_eq!(
        own("fjall"),
        pairs(&[("block_size", "4096"), ("checksum", "crc32c")])
    );
    // What a driver got is the same if it is asked for again.
    let once = settings.for_engine("rocksdb");
    assert_eq!(once.for_engine("rocksdb"), once);
}

#[test]
fn an_unknown_engine_is_refused_with_the_nearest_name() {
    let mut settings = Settings::default();
    let error = settings.set("engine.own.rocksbd.x", "1").unwrap_err();
    assert_eq!(
        error.to_string(),
        "unknown engine `rocksbd` in `engine.own.rocksbd.x`; did you mean `rocksdb`?"
    );
    let error = settings.set("engine.own", "a=1,pebbel.b=2").unwrap_err();
    let text = error.to_string();
    assert!(text.contains("found `pebbel.b`"), "{text}");
    assert!(text.ends_with("did you mean `pebble`?"), "{text}");
    let file = "[engine.own.levelbd]\nblock_size = 1\n";
    let text = toml::from_str::<Settings>(file).unwrap_err().to_string();
    assert!(text.contains("did you mean `leveldb`?"), "{text}");
    assert_eq!(settings, Settings::default());
}

#[test]
fn texts_toml_and_json_return_settings_of_one_engine() {
    let mut settings = Settings::default();
    let text = "block_size=4096,rocksdb.compression=[none,lz4],rocksdb.max_write_buffer_number=4";
    settings.set("engine.own", text).unwrap();
    assert_eq!(settings.get("engine.own").unwrap(), text);
    let name = "engine.own.rocksdb.max_write_buffer_number";
    assert_eq!(settings.get(name).unwrap(), "4");

    let json = serde_json::to_string(&settings).unwrap();
    assert_eq!(serde_json::from_str::<Settings>(&json).unwrap(), settings);

    let file = "[engine.own]\nblock_size = 4096\n[engine.own.rocksdb]\n\
                compression = \"[none,lz4]\"\nmax_write_buffer_number = 4\n";
    assert_eq!(toml::from_str::<Settings>(file).unwrap(), settings);
    let written = toml::to_string(&settings.engine).unwrap();
    let back: EngineSettings = toml::from_str(&written).unwrap();
    assert_eq!(back, settings.engine);
}

#[test]
fn settings_of_reads_do_not_shape_the_files() {
    let settings = given(&[
        ("block_size", "4096"),
        ("rocksdb.allow_mmap_reads", "true"),
        ("rocksdb.block_cache_bytes", "1"),
        ("rocksdb.max_write_buffer_number", "4"),
        ("fjall.x", "1"),
    ]);
    let shape = settings.shape("rocksdb");
    let names: Vec<&str> = shape.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "engine.bloom_bits",
            "engine.compression",
            "engine.memtable_bytes",
            "engine.own.block_size",
            "engine.own.max_write_buffer_number",
        ]
    );
    assert_eq!(shape["engine.memtable_bytes"], "64MiB");
}

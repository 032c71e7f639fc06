use super::*;

fn put_and_get(engine: &dyn Engine, numbers: impl Iterator<Item = u64>) {
    let mut session = engine.session().unwrap();
    for number in numbers {
        let (key, value) = (number.to_be_bytes(), [number as u8; 100]);
        session.put(&key, &value, number % 4000 == 0).unwrap();
        let is_found = session.get(&key, &mut |found| assert_eq!(found, value));
        assert!(is_found.unwrap());
    }
}

/// The settings of a store with this size of the map, or with the default.
fn settings(map_size: Option<&str>) -> EngineSettings {
    let own = map_size.map(|size| ("map_size".to_string(), size.to_string()));
    EngineSettings {
        own: own.into_iter().collect(),
        ..EngineSettings::default()
    }
}

#[test]
fn the_map_is_generous_unless_its_size_is_given_and_takes_no_space() {
    for (given, expected) in [(None, MAP_SIZE as u64), (Some("4194304"), 4 << 20)] {
        let settings = settings(given);
        assert_eq!(
            LmdbDriver.settings(&settings)["map_size"],
            expected.to_string()
        );
        let folder = tempfile::tempdir().unwrap();
        let engine = LmdbDriver.open(folder.path(), &settings).unwrap();
        put_and_get(&*engine, 0..100);
        assert_eq!(engine.figures().others["map_size_bytes"], expected);
        engine.close().unwrap();
        let by_name = &siltstone_bench::measure::files::purpose_by_name;
        let sizes = siltstone_bench::measure::files::sizes(folder.path(), by_name).unwrap();
        assert_eq!(sizes.tables.bytes, expected);
        assert!(sizes.tables.allocated_bytes < 1 << 20, "{sizes:?}");
    }
}

#[test]
fn a_map_that_cannot_be_made_is_told_with_its_setting() {
    let folder = tempfile::tempdir().unwrap();
    let error = LmdbDriver.open(folder.path(), &settings(Some("4611686018427387904")));
    let text = error.err().expect("it is refused").to_string();
    assert!(
        text.contains("4611686018427387904") && text.contains("map_size"),
        "{text}"
    );
}

#[test]
fn the_map_grows_while_threads_read_and_write() {
    let folder = tempfile::tempdir().unwrap();
    let engine = LmdbDriver
        .open(folder.path(), &settings(Some("1048576")))
        .unwrap();
    let engine = &*engine;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || put_and_get(engine, (thread..80_000).step_by(4)));
        }
        scope.spawn(|| (0..1000).for_each(|_| assert!(!engine.figures().others.is_empty())));
    });
    let mut numbers = 80_000..160_000u64;
    let mut next = |key: &mut Vec<u8>, value: &mut Vec<u8>| {
        *value = vec![0; 100];
        numbers
            .next()
            .map(|number| *key = number.to_be_bytes().into())
            .is_some()
    };
    engine.ingest(&mut next).unwrap();
    let figures = engine.figures();
    assert_eq!(figures.others["entries"], 160_000);
    assert!(figures.others["map_size_bytes"] >= 16 << 20);
}

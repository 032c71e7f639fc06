//! Stores measurements of many sensors: keys that are ordered by sensor and time, a keyspace with a
//! compression of its own, reads of the newest values first, and old data that is deleted at once.
#![allow(missing_docs)] // `run` is public for that test.

use std::path::Path;

use siltstone::{
    Batch, Compression, IterOptions, KeyspaceOptions, Options, Result, Store, WriteOptions,
};

const SENSORS: u32 = 20;
const MINUTES: u64 = 1_440;

/// Big-endian numbers are ordered as numbers: the values of a sensor lie together, in the order of
/// time.
fn key(sensor: u32, minute: u64) -> Vec<u8> {
    let mut key = sensor.to_be_bytes().to_vec();
    key.extend_from_slice(&minute.to_be_bytes());
    key
}

fn minute_of(key: &[u8]) -> u64 {
    u64::from_be_bytes(key[4..12].try_into().expect("twelve bytes"))
}

pub fn run(path: &Path) -> Result<()> {
    let store = Store::open(path, Options::default())?;
    let measured = store.create_keyspace_with(
        "measured",
        &KeyspaceOptions {
            // The upper levels are soon rewritten, and nearly all data is in the deepest one.
            compression: Some(
                siltstone::ByLevel::of(&[Compression::None, Compression::Lz4, Compression::ZSTD])
                    .expect("one to seven values"),
            ),
            ..KeyspaceOptions::default()
        },
    )?;

    // One batch for each minute: either all sensors' values of a minute are stored, or none.
    let mut batch = Batch::new();
    for minute in 0..MINUTES {
        batch.clear();
        for sensor in 0..SENSORS {
            let celsius = 15.0 + f64::from(sensor) + (minute as f64 / 240.0).sin() * 5.0;
            batch.put(&measured, &key(sensor, minute), &celsius.to_le_bytes())?;
        }
        store.write(&batch, WriteOptions::default())?;
    }

    // The newest three values of sensor 7, the newest first.
    for pair in measured.prefix(&7u32.to_be_bytes())?.rev().take(3) {
        let (key, value) = pair?;
        let celsius = f64::from_le_bytes(value[..8].try_into().expect("eight bytes"));
        println!("sensor 7, minute {}: {celsius:.2} C", minute_of(&key));
    }

    // The mean of an hour, without an allocation for each value.
    let mut cursor = measured.cursor(IterOptions::range(key(7, 600)..key(7, 660)))?;
    cursor.seek_to_first()?;
    let (mut sum, mut count) = (0.0, 0);
    while cursor.valid() {
        sum += f64::from_le_bytes(cursor.value()[..8].try_into().expect("eight bytes"));
        count += 1;
        cursor.next()?;
    }
    assert_eq!(count, 60);
    println!(
        "mean of minutes 600 to 659: {:.2} C",
        sum / f64::from(count)
    );

    // One seek finds a sensor's first value at or after some minute.
    let mut cursor = measured.cursor(IterOptions::default())?;
    cursor.seek(&key(3, 1_000))?;
    assert_eq!(minute_of(cursor.key()), 1_000);

    // Half a day is enough: one range delete for each sensor, whatever it covers.
    for sensor in 0..SENSORS {
        measured.delete_range(&key(sensor, 0), &key(sensor, MINUTES / 2))?;
    }
    let kept = measured.iter()?.count() as u64;
    assert_eq!(kept, u64::from(SENSORS) * MINUTES / 2);
    let about = measured.approximate_size(&IterOptions::prefix(&7u32.to_be_bytes()))?;
    println!(
        "{kept} values kept; sensor 7 takes about {} bytes",
        about.raw_bytes.value
    );
    store.close()
}

fn main() -> Result<()> {
    let folder = std::env::args()
        .nth(1)
        .unwrap_or("time_series.store".into());
    run(Path::new(&folder))
}

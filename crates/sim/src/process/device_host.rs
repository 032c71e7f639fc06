//! A host whose store is in a folder of this machine, and whose compactions run on a device that
//! shares the folder. A trial runs it in its own process, or as a child process that it kills.
//!
//! [`main`] is the program `device_host`. It writes for as long as somebody reads its output, and
//! prints the number of each write that was acknowledged.
//!
//! Invariant: the number of a write decides its key and its value. So the numbers of the
//! acknowledged writes say what the store contains.
//!
//! Threading: one thread.

use std::io::Write;
use std::path::Path;

use siltstone::{Options, Result, ScheduleOptions};
use siltstone_device::{DeviceStore, Placement, open};
use siltstone_storage::link::Address;

use crate::rng::Rng;

/// The number of keys that are written.
pub const KEYS: u64 = 2000;

/// The number of the key of a write.
pub fn key_of(seed: u64, write: u64) -> u64 {
    Rng::new(seed ^ write.wrapping_mul(0x9E6C_63D0_876A_3F35)).below(KEYS)
}

/// The key with this number.
pub fn key(number: u64) -> Vec<u8> {
    format!("key-{number:05}").into_bytes()
}

/// The value that a write puts. It begins with the number of the write.
pub fn value(write: u64) -> Vec<u8> {
    let mut bytes = write.to_le_bytes().to_vec();
    bytes.resize(300 + (write % 400) as usize, write as u8);
    bytes
}

/// The number of the write that put this value. `None` if no write puts a value so short.
pub fn write_of(value: &[u8]) -> Option<u64> {
    let number = value.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*number))
}

/// Opens the store in a folder. Its compactions run on the device at this address, if there is one,
/// and otherwise on the cores of this process. With `fallback`, these cores also run what the
/// device has failed with. Memtables and tables are small, so there are many compactions.
///
/// # Errors
/// As [`open`].
///
/// # Panics
/// If the address is malformed.
pub fn open_store(folder: &Path, device: Option<&str>, fallback: bool) -> Result<DeviceStore> {
    let device = device.map(|address| address.parse::<Address>().expect("an address"));
    let policy = match device {
        Some(_) => "near-data",
        None => "default",
    };
    let mut schedule = ScheduleOptions::policy(policy).expect("a policy");
    schedule.fallback = fallback;
    let options = Options {
        memtable_bytes: 128 << 10,
        table_bytes: 64 << 10,
        level1_bytes: 256 << 10,
        log_segment_bytes: 128 << 10,
        log_bytes_max: 8 << 20,
        l0_trigger_count: 2,
        schedule,
        ..Options::default()
    };
    let placement = Placement {
        devices: device.into_iter().collect(),
        ..Placement::default()
    };
    open(&folder.display().to_string(), options, &placement)
}

/// Runs the program with these arguments: the folder of the store, the address of the device, the
/// seed, and the number of the first write. Returns the exit status.
pub fn main(words: &[String]) -> i32 {
    match run(words) {
        Ok(()) => 0,
        Err(wrong) => {
            eprintln!("device_host: {wrong}");
            1
        }
    }
}

fn run(words: &[String]) -> std::result::Result<(), String> {
    let [folder, device, seed, first] = words else {
        return Err("expected STORE DEVICE SEED FIRST".into());
    };
    let number = |word: &str| word.parse::<u64>().map_err(|e| format!("{word}: {e}"));
    let (seed, first) = (number(seed)?, number(first)?);
    let text = |error: siltstone::Error| error.to_string();
    let store = open_store(Path::new(folder), Some(device), true).map_err(text)?;
    let keyspace = store.default_keyspace().map_err(text)?;
    let mut out = std::io::stdout().lock();
    for write in first.. {
        let put = keyspace.put(key(key_of(seed, write)), value(write));
        put.map_err(text)?;
        // A line is written with one system call, so a kill leaves no part of one.
        if writeln!(out, "{write}").is_err() {
            break;
        }
    }
    Ok(())
}

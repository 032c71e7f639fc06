//! What a child does with its store.
//!
//! Threading: the main thread writes; in `bursts` and `keyspaces` another thread works beside it.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::db::{self, Db, Put};
use crate::samples::{Figures, Random, Samples, Values, core_wait_s, cpu_s, key};
use crate::{Arguments, Result, Scenario};

/// Runs the scenario in this process, and prints a line of JSON.
pub fn run(arguments: &Arguments, engine: &str) -> Result<()> {
    let folder = Path::new(&arguments.folder).join("store");
    let _ = std::fs::remove_dir_all(&folder);
    let _ = std::fs::remove_dir_all(folder.with_extension("second"));
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let keyspaces = match arguments.scenario {
        Scenario::Keyspaces => 8,
        _ => 1,
    };
    let store = db::open(arguments, engine, &folder, keyspaces)?;
    let mut figures = Figures::new();
    match arguments.scenario {
        Scenario::Fill => fill(arguments, &*store, &mut figures)?,
        Scenario::Open => open(arguments, &*store, &mut figures)?,
        Scenario::Bursts => bursts(arguments, &*store, &mut figures)?,
        Scenario::Keyspaces => keyspaces_beside(arguments, &*store, &mut figures)?,
    }
    for (cause, ms) in store.waits() {
        figures.insert(format!("waits.{cause}_ms"), ms);
    }
    figures.retain(|_, figure| figure.is_finite());
    drop(store);
    let _ = std::fs::remove_dir_all(&folder);
    let _ = std::fs::remove_dir_all(folder.with_extension("second"));
    let line = serde_json::to_string(&figures).map_err(|e| e.to_string())?;
    println!("{line}");
    Ok(())
}

/// The bytes of an entry.
fn entry_bytes(arguments: &Arguments) -> u64 {
    16 + arguments.value_bytes as u64
}

/// Puts `count` random records of `records` as fast as it can.
fn put_closed(
    put: &mut Put<'_>,
    random: &mut Random,
    values: &Values,
    (records, count): (u64, u64),
) -> Result<(Samples, Duration)> {
    let begun = Instant::now();
    let mut samples = Samples::new(begun, count as usize);
    let mut last = begun;
    for number in 0..count {
        put(&key(random.next() % records), values.get(number))?;
        let now = Instant::now();
        samples.add(now - last, now);
        last = now;
    }
    Ok((samples, last - begun))
}

/// The records that readers of a fill find, and which are put before it.
const READ_RECORDS: u64 = 500_000;

fn fill(arguments: &Arguments, store: &dyn Db, figures: &mut Figures) -> Result<()> {
    let count = arguments.fill_mb * 1_000_000 / entry_bytes(arguments);
    let (mut put, values) = (store.put(0)?, Values::new(arguments.value_bytes));
    let read_records = count.min(READ_RECORDS);
    if arguments.readers > 0 {
        for record in 0..read_records {
            put(&key(record), values.get(record))?;
        }
        store.settle()?;
    }
    let (cpu, waited, begun) = (cpu_s(), core_wait_s(), Instant::now());
    let stop = AtomicBool::new(false);
    let (samples, took) = std::thread::scope(|scope| -> Result<_> {
        let read = |seed| {
            let stop = &stop;
            scope.spawn(move || gets_timed(store, read_records, seed, stop))
        };
        let readers: Vec<_> = (0..u64::from(arguments.readers)).map(read).collect();
        let put = put_closed(&mut put, &mut Random(1), &values, (count, count));
        stop.store(true, Ordering::Relaxed);
        for (number, reader) in readers.into_iter().enumerate() {
            let (samples, took) = reader
                .join()
                .map_err(|_| "a reader panicked".to_string())??;
            samples.figures(&format!("reader{number}."), took, figures);
        }
        put
    })?;
    let waited = (core_wait_s() - waited) * 100.0 / took.as_secs_f64();
    figures.insert("waited_for_a_core_percent".into(), waited);
    samples.figures("", took, figures);
    store.settle()?;
    let settled = begun.elapsed().as_secs_f64();
    figures.insert("ops_per_s_until_idle".into(), count as f64 / settled);
    figures.insert("cpu_s".into(), cpu_s() - cpu);
    Ok(())
}

fn open(arguments: &Arguments, store: &dyn Db, figures: &mut Figures) -> Result<()> {
    let count = arguments.fill_mb * 1_000_000 / entry_bytes(arguments);
    let (mut put, values) = (store.put(0)?, Values::new(arguments.value_bytes));
    let (mut random, cpu, begun) = (Random(1), cpu_s(), Instant::now());
    let mut samples = Samples::new(begun, count as usize);
    for number in 0..count {
        let due = begun + Duration::from_nanos(number * 1_000_000_000 / arguments.rate);
        wait_until(due);
        put(&key(random.next() % count), values.get(number))?;
        let now = Instant::now();
        samples.add(now.saturating_duration_since(due), now);
    }
    let took = begun.elapsed();
    samples.figures("", took, figures);
    store.settle()?;
    figures.insert(
        "settled_after_s".into(),
        (begun.elapsed() - took).as_secs_f64(),
    );
    figures.insert("cpu_s".into(), cpu_s() - cpu);
    Ok(())
}

/// Sleeps while there is much time, and spins at the end.
fn wait_until(due: Instant) {
    loop {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        match left > Duration::from_micros(200) {
            true => std::thread::sleep(left - Duration::from_micros(100)),
            false => std::hint::spin_loop(),
        }
    }
}

/// The time for which gets are measured when the store has settled.
const SETTLED: Duration = Duration::from_secs(3);

fn bursts(arguments: &Arguments, store: &dyn Db, figures: &mut Figures) -> Result<()> {
    let memory = 4 * arguments.memtable_bytes;
    let values = Values::new(arguments.value_bytes);
    let records = memory / entry_bytes(arguments);
    let mut random = Random(1);
    let mut put = store.put(0)?;
    for record in 0..records {
        put(&key(record), values.get(record))?;
    }
    store.settle()?;
    for factor in [1, 4, 16] {
        let count = factor * records;
        let stop = AtomicBool::new(false);
        let (burst, during, calm) = std::thread::scope(|scope| -> Result<_> {
            let during = scope.spawn(|| gets(store, records, &stop));
            let burst = put_closed(&mut put, &mut random, &values, (records * 16, count));
            stop.store(true, Ordering::Relaxed);
            let during = during
                .join()
                .map_err(|_| "the reader panicked".to_string())?;
            let begun = Instant::now();
            store.settle()?;
            Ok((burst?, during?, begun.elapsed()))
        })?;
        let (samples, took) = burst;
        samples.figures(&format!("x{factor}."), took, figures);
        figures.insert(format!("x{factor}.gets_per_s"), during);
        figures.insert(format!("x{factor}.settled_after_s"), calm.as_secs_f64());
        let stop = AtomicBool::new(false);
        let settled = std::thread::scope(|scope| {
            let settled = scope.spawn(|| gets(store, records, &stop));
            std::thread::sleep(SETTLED);
            stop.store(true, Ordering::Relaxed);
            settled
                .join()
                .map_err(|_| "the reader panicked".to_string())?
        })?;
        figures.insert(format!("x{factor}.gets_per_s_settled"), settled);
    }
    let ratio = figures["x16.ops_per_s"] * 100.0 / figures["x1.ops_per_s"];
    figures.insert("x16_rate_percent_of_x1".into(), ratio);
    Ok(())
}

/// Reads records that exist until `stop`: 64 gets, and then a pause of 2 ms, so that the reader
/// leaves its core to the store. Returns how many gets a second there were outside of the pauses.
fn gets(store: &dyn Db, records: u64, stop: &AtomicBool) -> Result<f64> {
    let (mut get, mut random) = (store.get(0)?, Random(99));
    let (mut took, mut count) = (Duration::ZERO, 0u64);
    while !stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        for _ in 0..64 {
            let record = random.next() % records;
            if !get(&key(record))? {
                return Err(format!("record {record} is not found"));
            }
        }
        took += begun.elapsed();
        count += 64;
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(count as f64 / took.as_secs_f64().max(1e-9))
}

/// As [`gets`], and times each of them.
fn gets_timed(
    store: &dyn Db,
    records: u64,
    seed: u64,
    stop: &AtomicBool,
) -> Result<(Samples, Duration)> {
    let (mut get, mut random) = (store.get(0)?, Random(99 + seed));
    let begun = Instant::now();
    let mut samples = Samples::new(begun, 0);
    let mut last = begun;
    while !stop.load(Ordering::Relaxed) {
        let record = random.next() % records;
        if !get(&key(record))? {
            return Err(format!("record {record} is not found"));
        }
        let now = Instant::now();
        samples.add(now - last, now);
        last = now;
    }
    Ok((samples, last - begun))
}

/// Operations a second of the seven keyspaces, half of them puts.
const QUIET_RATE: u64 = 2000;

/// How long they are measured alone, and beside the eighth.
const QUIET_FOR: Duration = Duration::from_secs(15);

/// Does what becomes due in the seven keyspaces, for a time. Returns also for which part of the
/// time this thread waited for a core, in percent.
fn quiet(arguments: &Arguments, store: &dyn Db) -> Result<(Samples, Samples, f64)> {
    let waited = core_wait_s();
    let values = Values::new(arguments.value_bytes);
    let mut puts = (1..8).map(|k| store.put(k)).collect::<Result<Vec<_>>>()?;
    let mut gets = (1..8).map(|k| store.get(k)).collect::<Result<Vec<_>>>()?;
    let begun = Instant::now();
    let mut samples = (Samples::new(begun, 0), Samples::new(begun, 0));
    let mut random = Random(5);
    for number in 0.. {
        let due = begun + Duration::from_nanos(number * 1_000_000_000 / QUIET_RATE);
        if due - begun > QUIET_FOR {
            break;
        }
        wait_until(due);
        let (at, record) = (random.next() as usize % 7, random.next() % 100_000);
        let samples = match number % 2 {
            0 => {
                puts[at](&key(record), values.get(number))?;
                &mut samples.0
            }
            _ => {
                gets[at](&key(record))?;
                &mut samples.1
            }
        };
        let now = Instant::now();
        samples.add(now.saturating_duration_since(due), now);
    }
    let waited = (core_wait_s() - waited) * 100.0 / QUIET_FOR.as_secs_f64();
    Ok((samples.0, samples.1, waited))
}

fn keyspaces_beside(arguments: &Arguments, store: &dyn Db, figures: &mut Figures) -> Result<()> {
    let (puts, gets, waited) = quiet(arguments, store)?;
    puts.figures("alone.put_", QUIET_FOR, figures);
    gets.figures("alone.get_", QUIET_FOR, figures);
    figures.insert("alone.waited_for_a_core_percent".into(), waited);
    let stop = AtomicBool::new(false);
    let values = Values::new(arguments.value_bytes);
    let (written, beside) = std::thread::scope(|scope| -> Result<_> {
        let writer = scope.spawn(|| -> Result<Samples> {
            let (mut put, mut random) = (store.put(0)?, Random(1));
            let mut last = Instant::now();
            let mut samples = Samples::new(last, 0);
            while !stop.load(Ordering::Relaxed) {
                put(&key(random.next() % 100_000_000), values.get(random.0))?;
                let now = Instant::now();
                samples.add(now - last, now);
                last = now;
            }
            Ok(samples)
        });
        let beside = quiet(arguments, store);
        stop.store(true, Ordering::Relaxed);
        let written = writer
            .join()
            .map_err(|_| "the writer panicked".to_string())??;
        Ok((written, beside?))
    })?;
    written.figures("overloaded.", QUIET_FOR, figures);
    beside.0.figures("beside.put_", QUIET_FOR, figures);
    beside.1.figures("beside.get_", QUIET_FOR, figures);
    figures.insert("beside.waited_for_a_core_percent".into(), beside.2);
    for kind in ["put", "get"] {
        let of = |when: &str| figures[&format!("{when}.{kind}_p999_us")];
        let ratio = of("beside") / of("alone");
        figures.insert(format!("{kind}_p999_beside_by_alone"), ratio);
    }
    store.settle()
}

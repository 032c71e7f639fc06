//! The bound of a wait: with `stall_policy = "redirect"`, writers wait for memory and never for a
//! compaction (RFC 13, B1 and B4).
//!
//! A seed draws how fast the storage is ([`RatedStorage`]), how large memtables are, and how many
//! keyspaces and writers there are. Writers write without a pause, far faster than the storage is,
//! and compactions get less done than is due all the time. No put may wait longer than the bound
//! allows, which is computed from what the seed drew, and while all writers write, each keyspace is
//! admitted evenly. When the writers have ended, all work that is due gets done, and the detector
//! stops saying that a stall is ahead.
//!
//! Threading: as all trials.

use std::sync::Arc;
use std::time::Duration;

use siltstone::{Components, Keyspace, Options, StallPolicy, Store, SyncMode};
use siltstone_storage::rated::{RatedStorage, Rates};
use siltstone_storage::{Instant, JoinHandle, MemoryStorage, Runtime};

use super::{STEPS, simulate_counted};
use crate::coverage::Coverage;
use crate::rng::Rng;

/// What a seed draws.
#[derive(Clone, Debug)]
struct Drawn {
    rates: Rates,
    memtable_bytes: u64,
    sealed_memtables_max: u32,
    background_tasks: u32,
    keyspaces: u64,
    /// The writers of each keyspace.
    writers: u64,
    /// The largest batch, in bytes.
    batch_bytes: u64,
    /// The bytes that each keyspace is given.
    all_bytes: u64,
    /// The bytes of the log up to which memtables leave values there.
    redirect_log_bytes_max: u64,
}

impl Drawn {
    fn draw(rng: &mut Rng) -> Drawn {
        let memtable_bytes = *rng.pick(&[64 << 10, 128 << 10, 256 << 10]);
        let keyspaces = 1 + rng.below(3);
        Drawn {
            rates: Rates {
                write_bytes_per_s: *rng.pick(&[512 << 10, 2 << 20, 8 << 20]),
                read_bytes_per_s: *rng.pick(&[0, 0, 16 << 20]),
                queued_bytes_max: *rng.pick(&[0, 64 << 10, 512 << 10]),
                sync_time: Duration::from_micros(*rng.pick(&[0, 200, 5000])),
            },
            memtable_bytes,
            sealed_memtables_max: 1 + rng.below(4) as u32,
            background_tasks: 1 + rng.below(3) as u32,
            keyspaces,
            writers: 1 + rng.below(3),
            batch_bytes: *rng.pick(&[1 << 10, 8 << 10, memtable_bytes / 2, memtable_bytes * 2]),
            all_bytes: memtable_bytes * (16 + rng.below(24)),
            redirect_log_bytes_max: *rng.pick(&[0, 8 * memtable_bytes, 8 << 30]),
        }
    }

    fn options(&self) -> Options {
        Options {
            sync: SyncMode::Never,
            stall_policy: StallPolicy::Redirect,
            memtable_bytes: self.memtable_bytes,
            sealed_memtables_max: self.sealed_memtables_max,
            background_tasks: self.background_tasks,
            // Compactions have much to do: every level is small.
            table_bytes: 64 << 10,
            level1_bytes: 128 << 10,
            level_factor: 4,
            l0_trigger_count: 2,
            // Other policies would stop writers here.
            l0_slowdown_count: 4,
            l0_stop_count: 200,
            log_segment_bytes: 1 << 20,
            log_bytes_max: 1 << 30,
            redirect_log_bytes_max: self.redirect_log_bytes_max,
            ..Options::default()
        }
    }

    /// The calls that wait for the storage at the same time: those of the log, and of each flush
    /// and compaction.
    fn streams(&self) -> u64 {
        2 + u64::from(self.background_tasks)
    }

    /// How long the flush of one memtable takes at most beside everything else.
    fn flush_time(&self) -> Duration {
        let bytes = self.memtable_bytes * self.streams() * self.keyspaces;
        let bytes = bytes + self.rates.queued_bytes_max;
        let written = Duration::from_micros(bytes * 1_000_000 / self.rates.write_bytes_per_s);
        written + self.log_read_time()
    }

    /// How long it takes to read a memtable that leaves its values in the log: for its flush, and
    /// before that to find the values, where up to four times its bytes are read because of other
    /// keyspaces.
    fn log_read_time(&self) -> Duration {
        let memtable = self.memtable_bytes.max(self.batch_bytes);
        let bytes = self.keyspaces * 5 * memtable * self.streams();
        match (self.redirect_log_bytes_max, self.rates.read_bytes_per_s) {
            (0, _) | (_, 0) => Duration::ZERO,
            (_, rate) => Duration::from_micros(bytes * 1_000_000 / rate),
        }
    }

    /// The longest time that a put may wait.
    ///
    /// A writer waits until storage has taken the batches of its keyspace that are before it, one
    /// memtable of its keyspace and the flush that runs already. The storage is shared by the log,
    /// the flushes and the compactions, which all have an append waiting at any time, so a flush
    /// gets one part of so many; and the keyspaces share the flushes. If values are in the log, the
    /// two memtables that are waited for are read there first.
    fn bound(&self) -> Duration {
        let streams = self.streams();
        let memtable = self.memtable_bytes.max(self.batch_bytes);
        let before = self.writers * self.batch_bytes + 2 * memtable;
        let bytes = self.keyspaces * before * streams * 10 / 8;
        let taken = bytes + streams * self.rates.queued_bytes_max;
        let us = taken * 1_000_000 / self.rates.write_bytes_per_s;
        // The syncs of the log, of a table and its folder, and of the manifest, for each flush that
        // is waited for.
        let syncs = 8 * (1 + self.keyspaces as u32);
        Duration::from_micros(us) + self.log_read_time() * 2 + self.rates.sync_time * syncs + SLACK
    }
}

impl Drawn {
    /// How long a keyspace waited at most until a quarter of a memtable was admitted, in tenths of
    /// the time that a whole one takes on average. `None` if this says nothing: because batches are
    /// large, or because the memory was not used up for long.
    fn evenness(&self, ends: &[(Instant, u64)]) -> Option<u128> {
        if self.batch_bytes > self.memtable_bytes / 8 {
            return None;
        }
        let memory = self.memtable_bytes * (2 + u64::from(self.sealed_memtables_max));
        let mut admitted = 0;
        let begin = ends.iter().position(|(_, bytes)| {
            admitted += bytes;
            admitted > memory
        })?;
        let ends = &ends[begin..];
        let bytes: u64 = ends.iter().skip(1).map(|(_, bytes)| bytes).sum();
        let (first, last) = (ends.first()?.0, ends.last()?.0);
        if bytes < 4 * self.memtable_bytes {
            return None;
        }
        let mean = last.since(first).as_nanos() * u128::from(self.memtable_bytes);
        let mut mean = mean / u128::from(bytes);
        if self.redirect_log_bytes_max > 0 {
            // While values are left in the log, writers are faster than flushes; afterwards they
            // are as fast as these.
            mean = mean.max(self.flush_time().as_nanos());
        }
        let (mut longest, mut from, mut within) = (0, 0, 0);
        for (end, bytes) in &ends[1..] {
            within += bytes;
            while within >= self.memtable_bytes / 4 {
                longest = longest.max(end.since(ends[from].0).as_nanos());
                from += 1;
                within -= ends[from].1;
            }
        }
        Some(longest * 10 / mean.max(1))
    }
}

/// The longest time until a quarter of a memtable is admitted, in tenths of the time that a whole
/// one takes on average. It is that long because compactions fill the queue of the storage, and an
/// append of the log then waits until several memtables have left it. (Of 2,000 seeds two are above
/// three times the average, both of stores that may have one sealed memtable.)
const EVEN_TENTHS: u128 = 50;

/// Writers that wait ask again after 100 ms, if nobody notifies them.
const SLACK: Duration = Duration::from_millis(150);

/// How much longer than it takes to write everything ten times the store may take until it is idle.
const IDLE_SLACK: Duration = Duration::from_secs(60);

/// A writer's puts: how many there were, the longest wait, and when each ended with how many bytes.
#[derive(Clone, Debug, Default)]
struct Puts {
    count: u64,
    longest: Duration,
    ends: Vec<(Instant, u64)>,
}

/// The number of a keyspace, the number of one of its writers, and the writer.
type Writer = (usize, u64, JoinHandle<Result<Puts, String>>);

/// Writes until the keyspace has got its bytes.
fn write(
    runtime: &Runtime,
    keyspace: &Keyspace,
    drawn: &Drawn,
    writer: u64,
    rng: &mut Rng,
) -> Result<Puts, String> {
    let mut puts = Puts::default();
    let mut left = drawn.all_bytes / drawn.writers;
    while left > 0 {
        let len = drawn.batch_bytes / 2 + rng.below(drawn.batch_bytes / 2);
        let key = key(writer, puts.count);
        let start = runtime.now();
        let put = keyspace.put(&key, &vec![writer as u8; len as usize]);
        put.map_err(|e| format!("put {} of writer {writer}: {e}", puts.count))?;
        let end = runtime.now();
        puts.longest = puts.longest.max(end.since(start));
        puts.ends.push((end, len));
        puts.count += 1;
        left = left.saturating_sub(len);
    }
    Ok(puts)
}

/// Keys of writers lie between each other, so that runs of level 0 overlap.
fn key(writer: u64, number: u64) -> Vec<u8> {
    let spread = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut key = spread.to_be_bytes().to_vec();
    key.extend(writer.to_be_bytes());
    key.extend(number.to_be_bytes());
    key
}

/// Runs one seed.
///
/// # Panics
/// If a put waits too long, if the store does not become idle, or at a wrong answer.
pub fn waits_trial(seed: u64) -> Coverage {
    simulate_counted(seed, STEPS * 4, move |runtime| {
        let mut rng = Rng::new(seed ^ 0x3A17);
        let drawn = Drawn::draw(&mut rng);
        let with_context = |e: String| format!("{drawn:?}: {e}");
        trial(&runtime, &drawn, &mut rng).map_err(with_context)
    })
}

fn trial(runtime: &Runtime, drawn: &Drawn, rng: &mut Rng) -> Result<Coverage, String> {
    let mut coverage = Coverage::default();
    let storage = RatedStorage::new(Arc::new(MemoryStorage::new(runtime)), runtime, drawn.rates);
    let components = Components::on(Arc::new(storage), runtime.clone());
    let store = Store::open_with(components, drawn.options()).map_err(|e| e.to_string())?;
    let mut keyspaces = Vec::new();
    for i in 0..drawn.keyspaces {
        let created = store.create_keyspace(&format!("k{i}"));
        keyspaces.push(created.map_err(|e| e.to_string())?);
    }
    let mut tasks: Vec<Writer> = Vec::new();
    for (at, keyspace) in keyspaces.iter().enumerate() {
        for writer in 0..drawn.writers {
            let (runtime, keyspace, drawn) = (runtime.clone(), keyspace.clone(), drawn.clone());
            let mut rng = rng.fork(at as u64 * 16 + writer);
            let of_writer = runtime.clone();
            let run = move || write(&of_writer, &keyspace, &drawn, writer, &mut rng);
            let task = runtime.spawn("writer", run).map_err(|e| e.to_string())?;
            tasks.push((at, writer, task));
        }
    }
    let bound = drawn.bound();
    let (mut done, mut all_ends) = (Vec::new(), Vec::new());
    for (at, writer, task) in tasks {
        let puts = task.join().map_err(|_| "a writer ended".to_string())??;
        if puts.longest > bound {
            return Err(format!(
                "a put of writer {writer} of keyspace {at} waited {:?}, and the bound is {bound:?}",
                puts.longest
            ));
        }
        let share = puts.longest.as_micros() * 10 / bound.as_micros();
        coverage.add(&format!("waits.{share}_tenths_of_the_bound"));
        done.push((at, writer, puts.count));
        all_ends.push((at, puts.ends));
    }
    let first_end = all_ends.iter().filter_map(|(_, ends)| ends.last());
    let until = first_end.map(|(end, _)| *end).min();
    for at in 0..keyspaces.len() {
        let own = all_ends.iter().filter(|(of, _)| *of == at);
        let mut ends: Vec<_> = own.flat_map(|(_, ends)| ends.iter().copied()).collect();
        ends.retain(|(end, _)| Some(*end) <= until);
        ends.sort_unstable_by_key(|(end, _)| *end);
        if let Some(tenths) = drawn.evenness(&ends) {
            coverage.add(&format!("waits.{tenths}_tenths_of_even_time"));
            if tenths > EVEN_TENTHS {
                return Err(format!(
                    "keyspace {at} was admitted a quarter of a memtable in {tenths} tenths of the \
                     time that a whole one takes on average"
                ));
            }
        }
    }
    let stats = store.stats();
    for (cause, total) in &stats.delay_totals {
        if total.count > 0 {
            coverage.add(&format!("waits.{}", cause.word()));
        }
    }
    if stats.counter("compaction_count") > 0 {
        coverage.add("waits.beside_compactions");
    }
    if stats.counter("log_backed_memtable_count") > 0 {
        coverage.add("waits.values_in_the_log");
    }
    if stats.counter("compaction_pause_count") > 0 {
        coverage.add("waits.compactions_paused");
    }
    becomes_idle(runtime, &store, drawn)?;
    for (at, writer, count) in done {
        for number in 0..count {
            let found = keyspaces[at].get(&key(writer, number));
            let found = found.map_err(|e| e.to_string())?;
            if found.is_none_or(|value| value[..] != vec![writer as u8; value.len()][..]) {
                return Err(format!(
                    "put {number} of writer {writer} of keyspace {at} is lost"
                ));
            }
        }
    }
    store.close().map_err(|e| e.to_string())?;
    Ok(coverage)
}

/// All work that is due is done within a time that can be computed, and then nothing is ahead.
fn becomes_idle(runtime: &Runtime, store: &Store, drawn: &Drawn) -> Result<(), String> {
    let start = runtime.now();
    store.wait_until_idle().map_err(|e| e.to_string())?;
    let took = runtime.now().since(start);
    let bytes = drawn.keyspaces * drawn.all_bytes * 10;
    let most = Duration::from_micros(bytes * 1_000_000 / drawn.rates.write_bytes_per_s);
    if took > most + IDLE_SLACK {
        return Err(format!("the store was idle only after {took:?}"));
    }
    // The detector looks at ten seconds, and maintenance asks it once a second.
    runtime.sleep(Duration::from_secs(13));
    for keyspace in store.stats().keyspaces {
        let pressure = keyspace.pressure;
        if pressure.is_behind || pressure.stall_ahead.is_some() {
            return Err(format!("{} is idle and has {pressure:?}", keyspace.name));
        }
    }
    Ok(())
}

//! The third section: a writer process is killed with SIGKILL in the middle of its work, and
//! everything that was acknowledged to it must be in the store.
//!
//! After each kill, the store must hold a prefix of the operations of each lane, with whole
//! operations in both keyspaces: at least those that were acknowledged, and at most one more (the
//! one that was being written). The particles must be unchanged.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use siltstone::check::{CheckStorages, check};
use siltstone::{IterOptions, Keyspace, Options, Store};
use siltstone_storage::FileStorage;

use super::particles::Particles;
use super::plan::Plan;
use super::script::{self, KEYS, KEYSPACES, LANES, Model};
use super::writer::{Figure, MESSAGE_BYTES, Message, WHOLE_BYTES};
use super::{Draw, reads, say, wrong};
use crate::failure::Failure;
use crate::output::{count, duration, plural};
use crate::report::model::{Kill, PhaseKind};
use crate::report::record::{Recorder, Sampler};

/// The maximum time from the writer's start to its first acknowledgement.
const START_MAX: Duration = Duration::from_secs(60);
/// The number of keys that are read one by one after each kill.
const POINTS: u64 = 2_000;

/// The results of the section.
pub struct Crashed {
    /// The kills, one by one.
    pub kills: Vec<Kill>,
    /// The number of batches that were acknowledged.
    pub acknowledged: u64,
    /// The slowest open after a kill.
    pub slowest_open: Duration,
}

/// The messages that the writer sent before it died.
#[derive(Clone, Copy, Debug, Default)]
struct Said {
    acknowledged: [u64; LANES],
    jobs: u8,
    flushes: u32,
    compactions: u32,
}

/// A child that dies with its owner.
struct Writer(Child);

impl Drop for Writer {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the section.
pub fn run(
    plan: &Plan,
    path: &Path,
    particles: &Particles,
    recorder: &Arc<Recorder>,
) -> Result<Crashed, Failure> {
    say!(
        "\n3  kill -9: a writer process dies {} times in the middle of its work",
        plan.kills
    )?;
    say!(
        "   Sync mode never: nothing waits for the disk. Each batch writes to two keyspaces; its \
        acknowledgement leaves through a pipe."
    )?;
    recorder.phase(PhaseKind::Verify, "opening");
    // The writer processes report the figures of their stores; this process reports its reads.
    let sampler = Sampler::start(recorder, None);
    let store = open(plan, path)?;
    for name in KEYSPACES {
        store.open_keyspace(name)?;
    }
    store.close()?;
    let mut model = Model::new(plan.seed);
    let mut draw = Draw::new(&[plan.seed, 3]);
    let mut crashed = Crashed {
        kills: Vec::new(),
        acknowledged: 0,
        slowest_open: Duration::ZERO,
    };
    for round in 1..=plan.kills {
        let span = plan
            .kill_after_max
            .saturating_sub(plan.kill_after_min)
            .as_micros() as u64;
        let after = plan.kill_after_min + Duration::from_micros(draw.below(span + 1));
        recorder.phase(PhaseKind::Kill, format!("writer {round}"));
        let said = write_and_kill(plan, path, &model, after, recorder)?;
        recorder.mark(
            "✕",
            format!(
                "kill {round}, {} after the first acknowledgement",
                duration(after)
            ),
        );
        recorder.phase(
            PhaseKind::Verify,
            format!("after kill {round}: opened and compared"),
        );
        let start = Instant::now();
        let store = open(plan, path)?;
        let opening = start.elapsed();
        crashed.slowest_open = crashed.slowest_open.max(opening);
        let stats = store.stats();
        let replayed = stats.counter("replayed_record_count");
        let before: u64 = model.done.iter().sum();
        let pairs = verify(plan, &store, &mut model, &said, recorder)?;
        for _ in 0..POINTS / 4 {
            let (dump, id) = (
                draw.below(particles.dump_count()),
                draw.below(particles.particle_count()),
            );
            reads::compare_point(plan.seed, &store.default_keyspace()?, particles, dump, id)?;
        }
        recorder.read(POINTS / 4);
        store.close()?;
        let acknowledged = said.acknowledged.iter().sum::<u64>() - before;
        let there = model.done.iter().sum::<u64>() - before;
        crashed.acknowledged += acknowledged;
        let micros = |d: Duration| u64::try_from(d.as_micros()).unwrap_or(u64::MAX);
        crashed.kills.push(Kill {
            after_us: micros(after),
            job_count: said.jobs.into(),
            flush_count: said.flushes.into(),
            compaction_count: said.compactions.into(),
            acknowledged_count: acknowledged,
            found_count: there,
            compared_count: pairs,
            open_us: micros(opening),
            replayed_record_count: replayed,
            discarded_log_bytes: stats.counter("discarded_log_bytes"),
        });
        say!(
            "   kill {round} after {}, {} running, {} and {} done: {} batches acknowledged, {} \
            there, {} pairs compared;\n\
             {:10}opened in {}, {} replayed",
            duration(after),
            plural(said.jobs.into(), "job"),
            plural(said.flushes.into(), "flush").replace("flushs", "flushes"),
            plural(said.compactions.into(), "compaction"),
            count(acknowledged),
            count(there),
            count(pairs),
            "",
            duration(opening),
            plural(replayed, "log record"),
        )?;
    }
    recorder.phase(PhaseKind::Verify, "all particles, and every checksum");
    let store = open(plan, path)?;
    let start = Instant::now();
    let pairs = reads::compare_dumps(
        plan.seed,
        store.default_keyspace()?.cursor(IterOptions::default())?,
        particles,
        recorder,
    )?;
    store.close()?;
    say!(
        "   and the particles: {} pairs compared, all as they were ({})",
        count(pairs),
        duration(start.elapsed())
    )?;
    let start = Instant::now();
    let storage = FileStorage::open_existing(path).map_err(siltstone::Error::from)?;
    let report = check(&CheckStorages::on(&storage), &mut |_| {})?;
    if let Some(problem) = report.problems.first() {
        return Err(wrong(
            format_args!("`silt check` finds damage: {problem}"),
            plan.seed,
        ));
    }
    say!(
        "   and every checksum and invariant: {} tables and {} blocks are sound ({})",
        count(report.table_count),
        count(report.block_count),
        duration(start.elapsed())
    )?;
    sampler.stop();
    Ok(crashed)
}

fn open(plan: &Plan, path: &Path) -> Result<Store, Failure> {
    Ok(Store::open(
        path,
        Options {
            create_if_missing: false,
            ..plan.options()
        },
    )?)
}

/// Starts the writer, kills it `after` its first acknowledgement, and returns the messages that it
/// sent until then.
fn write_and_kill(
    plan: &Plan,
    path: &Path,
    model: &Model,
    after: Duration,
    recorder: &Arc<Recorder>,
) -> Result<Said, Failure> {
    let program = std::env::current_exe().map_err(|e| Failure::io("finding this program", &e))?;
    let next: Vec<String> = model.done.iter().map(u64::to_string).collect();
    let mut child = Command::new(program)
        .arg("demo-writer")
        .arg(path)
        .args(["--seed", &plan.seed.to_string(), "--next", &next.join(",")])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| Failure::io("starting the writer", &e))?;
    let pipe = child.stdout.take();
    let mut writer = Writer(child);
    let pipe = pipe.ok_or_else(|| Failure::Other("the writer has no pipe".to_string()))?;
    let (first, started) = mpsc::channel();
    let mut said = Said {
        acknowledged: model.done,
        ..Said::default()
    };
    let recorder = recorder.clone();
    let opening = recorder.opened();
    let listener = std::thread::spawn(move || {
        listen(pipe, &mut said, &first, |figure| match figure {
            Figure::Moment(moment) => recorder.add(opening, moment),
            Figure::Delay(delay) => recorder.delay(opening, delay),
        })
        .map(|()| said)
    });
    let begun = started.recv_timeout(START_MAX).is_ok();
    if begun {
        std::thread::sleep(after);
    }
    writer
        .0
        .kill()
        .map_err(|e| Failure::io("killing the writer", &e))?;
    let status = writer
        .0
        .wait()
        .map_err(|e| Failure::io("waiting for the writer", &e))?;
    // The pipe ends with the writer, so all of its messages are received.
    let said = listener
        .join()
        .map_err(|_| Failure::Other("the listener failed".to_string()))??;
    match (begun, status.signal()) {
        (true, Some(9)) => Ok(said),
        (false, Some(9)) => Err(Failure::Other(format!(
            "the writer acknowledged nothing within {START_MAX:?}"
        ))),
        _ => Err(Failure::Other(format!(
            "the writer ended by itself: {status}; seed {}",
            plan.seed
        ))),
    }
}

/// Receives messages until the pipe ends, and notifies the caller of the first acknowledgement.
fn listen(
    mut pipe: impl Read,
    said: &mut Said,
    first: &mpsc::Sender<()>,
    mut receive: impl FnMut(Figure),
) -> Result<(), Failure> {
    let mut bytes = vec![0; 64 << 10];
    let nonsense = || Failure::Other("the writer sent something that is not a message".to_string());
    let mut filled = 0;
    loop {
        let n = pipe
            .read(&mut bytes[filled..])
            .map_err(|e| Failure::io("the writer's pipe", &e))?;
        if n == 0 {
            // A message is written as a whole or not at all.
            return if filled == 0 {
                Ok(())
            } else {
                Err(Failure::Other(
                    "the writer's last message is torn".to_string(),
                ))
            };
        }
        filled += n;
        let mut whole = 0;
        while let Some((message, rest)) = bytes[whole..filled].split_first_chunk::<MESSAGE_BYTES>()
        {
            let mut length = MESSAGE_BYTES;
            match Message::decode(message) {
                Some(Message::Acknowledged { lane, count }) if usize::from(lane) < LANES => {
                    said.acknowledged[usize::from(lane)] = count;
                    let _ = first.send(());
                }
                Some(Message::State {
                    jobs,
                    flushes,
                    compactions,
                }) => {
                    (said.jobs, said.flushes, said.compactions) = (jobs, flushes, compactions);
                }
                Some(Message::Figure { bytes }) if bytes as usize <= WHOLE_BYTES => {
                    // The rest of the message comes with the next read.
                    let Some(json) = rest.get(..bytes as usize) else {
                        break;
                    };
                    receive(serde_json::from_slice(json).map_err(|_| nonsense())?);
                    length += json.len();
                }
                _ => return Err(nonsense()),
            }
            whole += length;
        }
        bytes.copy_within(whole..filled, 0);
        filled -= whole;
    }
}

/// Compares the store with the script, advances the model to the state of the store, and returns
/// the number of compared pairs.
fn verify(
    plan: &Plan,
    store: &Store,
    model: &mut Model,
    said: &Said,
    recorder: &Recorder,
) -> Result<u64, Failure> {
    let keyspaces = [store.keyspace(KEYSPACES[0])?, store.keyspace(KEYSPACES[1])?];
    for lane in 0..LANES {
        let there = operations(&keyspaces[0], lane, plan.seed)?;
        let acknowledged = said.acknowledged[lane];
        if there < acknowledged || there > acknowledged + 1 {
            return Err(wrong(
                format_args!(
                    "of lane {lane}, {acknowledged} batches were acknowledged and {there} are in \
                    the store"
                ),
                plan.seed,
            ));
        }
        model.advance(lane, there);
    }
    let mut pairs = 0;
    for (index, keyspace) in keyspaces.iter().enumerate() {
        let mut cursor = keyspace.cursor(IterOptions::default())?;
        cursor.seek_to_first()?;
        for (key, value) in model.pairs(index) {
            if !cursor.valid() || cursor.key() != key || cursor.value() != value {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let found = cursor
                    .valid()
                    .then(|| (text(cursor.key()), text(cursor.value())));
                return Err(wrong(
                    format_args!(
                        "{} holds {found:?} where ({}, {}) must be",
                        KEYSPACES[index],
                        text(&key),
                        text(&value)
                    ),
                    plan.seed,
                ));
            }
            pairs += 1;
            recorder.read(1);
            cursor.next()?;
        }
        if cursor.valid() {
            let key = String::from_utf8_lossy(cursor.key()).into_owned();
            return Err(wrong(
                format_args!("{} holds `{key}`, which was deleted", KEYSPACES[index]),
                plan.seed,
            ));
        }
    }
    let mut draw = Draw::new(&[plan.seed, model.done[0]]);
    for _ in 0..POINTS {
        let (lane, index, number) = (
            draw.below(LANES as u64) as usize,
            draw.below(2) as usize,
            draw.below(u64::from(KEYS)),
        );
        let found = keyspaces[index].get(&script::key(lane, number as u32))?;
        if found != model.get(lane, index, number as u32) {
            return Err(wrong(
                format_args!("a read of key {number} of lane {lane} differs from the scan"),
                plan.seed,
            ));
        }
    }
    Ok(pairs)
}

/// The number of operations of a lane that are in the store.
fn operations(keyspace: &Keyspace, lane: usize, seed: u64) -> Result<u64, Failure> {
    match keyspace.get(&script::marker(lane))? {
        None => Ok(0),
        Some(value) => std::str::from_utf8(&value)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| wrong(format_args!("the marker of lane {lane} is {value:?}"), seed)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{DemoArgs, GpuUseArgs};
    use siltstone::{Batch, WriteOptions};

    const SEED: u64 = 11;
    const WRITTEN: [u64; LANES] = [60, 40];

    fn plan() -> Plan {
        Plan::of(&DemoArgs {
            device: false,
            policy: None,
            gpu: GpuUseArgs::default(),
            quick: true,
            store: None,
            report: None,
            seed: SEED,
            pairs: Some(2_000),
            kills: None,
        })
    }

    fn written() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), plan().options()).unwrap();
        let keyspaces = KEYSPACES.map(|name| store.open_keyspace(name).unwrap());
        let mut batch = Batch::new();
        for (lane, count) in WRITTEN.into_iter().enumerate() {
            for n in 0..count {
                script::batch(SEED, lane, n, &keyspaces, &mut batch).unwrap();
                store.write(&batch, WriteOptions::default()).unwrap();
            }
        }
        (dir, store)
    }

    fn verified(store: &Store, acknowledged: [u64; LANES]) -> Result<u64, String> {
        let said = Said {
            acknowledged,
            ..Said::default()
        };
        let recorder = Recorder::new();
        verify(&plan(), store, &mut Model::new(SEED), &said, &recorder).map_err(|e| e.to_string())
    }

    #[test]
    fn what_is_there_may_be_one_batch_more_and_never_one_less() {
        let (_dir, store) = written();
        assert!(verified(&store, [60, 40]).unwrap() > 500);
        verified(&store, [59, 39]).unwrap();
        for wrong in [[61, 40], [60, 41], [58, 40], [60, 38]] {
            let said = verified(&store, wrong).unwrap_err();
            assert!(
                said.contains("acknowledged") && said.contains("seed 11"),
                "{said}"
            );
        }
    }

    #[test]
    fn every_difference_is_found() {
        let lane = 1;
        let mut model = Model::new(SEED);
        (0..LANES).for_each(|lane| model.advance(lane, WRITTEN[lane]));
        let number = |there: bool| {
            (0..KEYS)
                .find(|n| model.get(lane, 1, *n).is_some() == there)
                .unwrap()
        };
        let (present, absent) = (
            script::key(lane, number(true)),
            script::key(lane, number(false)),
        );
        let mut changed = model.get(lane, 1, number(true)).unwrap();
        changed[7] ^= 1;
        let damages: [&dyn Fn(&Keyspace); 3] = [
            &|keyspace| keyspace.delete(&present).unwrap(),
            &|keyspace| keyspace.put(&present, &changed).unwrap(),
            &|keyspace| keyspace.put(&absent, b"more").unwrap(),
        ];
        for (i, damage) in damages.iter().enumerate() {
            let (_dir, store) = written();
            damage(&store.keyspace(KEYSPACES[1]).unwrap());
            let said = verified(&store, WRITTEN).unwrap_err();
            assert!(
                said.contains("ledger-b") && said.contains("seed 11"),
                "{i}: {said}"
            );
        }
    }
}

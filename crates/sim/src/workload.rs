//! What is done to a store, from a seed: clients that mix all operations.
//!
//! What it is: [`Plan`] is a seed's draw (keys, weights, options); [`Client`] is one writer and reader that works through its own random operations
//! against the [`World`] that it shares with others. Every read is compared with the model at the number at which it was made.
//!
//! Invariants: a client announces what it writes before it writes it (see [`crate::observe`]); everything decided comes from the seed.
//!
//! Threading: clients are tasks of the simulated runtime.

mod plan;
mod reads;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use siltstone::{ErrorKind, IngestMode, IterOptions, Keyspace, KeyspaceOptions, Snapshot};

use crate::checker::Check;
use crate::model::{Bytes, Op};
use crate::rng::Rng;
use crate::world::{Errors, Promise, World};
use plan::{Action, NAMES, draw_own_of_one, draw_setting, draw_table_options};

pub use plan::{Plan, draw_options};

use Action as A;

/// How tables outside are ingested.
const MODES: [IngestMode; 3] = [IngestMode::Link, IngestMode::Copy, IngestMode::Move];

/// One task that works on the store.
pub struct Client {
    world: Arc<World>,
    rng: Rng,
    /// Where its operations lie in the run: which work, which client.
    place: (u32, u32),
    snapshots: Vec<Snapshot>,
    cursors: Vec<reads::HeldCursor>,
}

impl Client {
    /// A client with its own random numbers, and its place in the run (for [`crate::reduce`]).
    pub fn new(world: &Arc<World>, rng: Rng, place: (u32, u32)) -> Client {
        Client {
            world: world.clone(),
            rng,
            place,
            snapshots: Vec::new(),
            cursors: Vec::new(),
        }
    }

    /// Does `count` operations, or as many as it can before the store is closed.
    ///
    /// # Errors
    /// The first wrong answer or unexpected error.
    pub fn work(&mut self, count: u64) -> Check {
        match self.work_through(count) {
            Err(e) if self.world.is_closed(&e) => {
                self.world.reach("client.told_of_a_close");
                Ok(())
            }
            done => done,
        }
    }

    fn work_through(&mut self, count: u64) -> Check {
        // Each operation has numbers of its own, so that one that is left out changes no other.
        let numbers = self.rng.clone();
        for i in 0..count {
            self.rng = numbers.clone().fork(i);
            let action = self.world.plan.action(&mut self.rng);
            let place = (self.place.0, self.place.1, i as u32);
            let world = &self.world;
            if !world.plan.in_force.keeps(place, || format!("{action:?}")) {
                continue;
            }
            self.act(action)
                .map_err(|e| format!("operation {i}, {action:?}: {e}"))?;
            self.world.reach(&format!("op.{action:?}"));
        }
        // What was held to the end is looked at once more.
        while !self.snapshots.is_empty() {
            self.read_snapshot()?;
            self.snapshots.pop();
        }
        while let Some(mut held) = self.cursors.pop() {
            self.step(&mut held)?;
        }
        Ok(())
    }

    fn keyspace(&mut self) -> std::result::Result<Option<Keyspace>, String> {
        let names = self.world.store.keyspaces();
        if names.is_empty() {
            return Ok(None);
        }
        let name = self.rng.pick(&names).clone();
        match self.world.store.keyspace(&name) {
            Ok(keyspace) => Ok(Some(keyspace)),
            Err(e) => self
                .world
                .allow(&e, &[ErrorKind::NotFound], "keyspace")
                .map(|()| None),
        }
    }

    fn act(&mut self, action: Action) -> Check {
        let world = self.world.clone();
        match action {
            A::Put | A::Delete | A::DeleteRange => {
                let Some(keyspace) = self.keyspace()? else {
                    return Ok(());
                };
                let id = keyspace.id();
                let op = match action {
                    A::Put => Op::Put(
                        id,
                        world.plan.key(&mut self.rng),
                        world.plan.value(&mut self.rng),
                    ),
                    A::Delete => Op::Delete(id, world.plan.key(&mut self.rng)),
                    _ => {
                        let (start, end) = world.plan.range(&mut self.rng);
                        if start == end {
                            return Ok(());
                        }
                        Op::DeleteRange(id, start, end)
                    }
                };
                world.write(vec![op.clone()], false, |_, _| match &op {
                    Op::Put(_, key, value) => keyspace.put(key, value),
                    Op::Delete(_, key) => keyspace.delete(key),
                    Op::DeleteRange(_, start, end) => keyspace.delete_range(start, end),
                })
            }
            A::Batch => self.batch(),
            A::Get => self.get(),
            A::MultiGet => self.multi_get(),
            A::Scan => {
                let Some(keyspace) = self.keyspace()? else {
                    return Ok(());
                };
                let snapshot = world.store.snapshot();
                self.compare(&keyspace, &snapshot)
            }
            A::TakeSnapshot => {
                if self.snapshots.len() < 4 {
                    self.snapshots.push(world.store.snapshot());
                }
                Ok(())
            }
            A::ReadSnapshot => self.read_snapshot(),
            A::DropSnapshot => {
                if !self.snapshots.is_empty() {
                    let at = self.rng.index(self.snapshots.len());
                    drop(self.snapshots.swap_remove(at));
                }
                Ok(())
            }
            A::OpenCursor => self.open_cursor(),
            A::StepCursor => {
                if self.cursors.is_empty() {
                    return Ok(());
                }
                let at = self.rng.index(self.cursors.len());
                let mut held = self.cursors.swap_remove(at);
                self.step(&mut held)?;
                self.cursors.push(held);
                Ok(())
            }
            A::RefreshCursor => {
                if self.cursors.is_empty() {
                    return Ok(());
                }
                let at = self.rng.index(self.cursors.len());
                let mut held = self.cursors.swap_remove(at);
                self.refresh(&mut held)?;
                self.cursors.push(held);
                Ok(())
            }
            A::DropCursor => {
                if !self.cursors.is_empty() {
                    let at = self.rng.index(self.cursors.len());
                    drop(self.cursors.swap_remove(at));
                }
                Ok(())
            }
            A::Create => {
                let name = *self.rng.pick(&NAMES);
                let own = match self.rng.chance(30) {
                    true => draw_own_of_one(&mut self.rng, 64 << 10),
                    false => KeyspaceOptions::default(),
                };
                world.create(name, &own).map(|_| ())
            }
            A::DropKeyspace => {
                let Some(keyspace) = self.keyspace()? else {
                    return Ok(());
                };
                world.drop_keyspace(&keyspace)
            }
            A::Ingest => {
                let Some(keyspace) = self.keyspace()? else {
                    return Ok(());
                };
                let entries = self.entries();
                world.ingest_own(&keyspace, entries)
            }
            A::IngestFiles => self.ingest_files(),
            A::Export => self.export(),
            A::Checkpoint => world.checkpoint(),
            A::SetOption => {
                let (setting, value) = draw_setting(&mut self.rng);
                world.set_option(setting, value)
            }
            A::SetKeyspace => self.set_keyspace(),
            A::Verify => world.verify(),
            A::Approximate => self.approximate(),
            A::Prefix => self.prefix(),
            A::DeleteAlone => self.delete_alone(),
            A::Flush | A::FlushStore => {
                let Some(keyspace) = self.keyspace()? else {
                    return Ok(());
                };
                self.flush(&keyspace, action == A::Flush)
            }
            A::CompactRange => {
                let Some(keyspace) = self.keyspace()? else {
                    return Ok(());
                };
                let (start, end) = world.plan.range(&mut self.rng);
                let whole = self.rng.chance(60);
                let result = if whole {
                    keyspace.compact_range(None, None)
                } else {
                    keyspace.compact_range(Some(&start), Some(&end))
                };
                result.or_else(|e| world.allow(&e, &[ErrorKind::KeyspaceDropped], "compact_range"))
            }
            A::SyncLog => {
                let number = world.store.snapshot().number();
                let _begun = world.begin(Promise::SyncLog);
                match world.store.sync_log() {
                    Ok(()) => {
                        world.synced(number);
                        Ok(())
                    }
                    Err(e) => world.allow(&e, &[], "sync_log"),
                }
            }
            A::HoldFlush => {
                let Some(keyspace) = self.keyspace()? else {
                    return Ok(());
                };
                let held = match world.store.core_for_tests().seal_and_hold(&keyspace) {
                    Ok(held) => held,
                    Err(e) => return world.allow(&e, &[ErrorKind::KeyspaceDropped], "seal"),
                };
                if held {
                    world.reach("memtable.held");
                    let pause = Duration::from_micros(self.rng.below(40_000));
                    self.later(pause, move |world| {
                        world.store.core_for_tests().release(&keyspace);
                    })
                } else {
                    Ok(())
                }
            }
            A::PauseCompaction => {
                world.store.core_for_tests().pause_compaction(true);
                let pause = Duration::from_micros(self.rng.below(40_000));
                self.later(pause, |world| {
                    world.store.core_for_tests().pause_compaction(false)
                })
            }
            A::WaitIdle => {
                world.store.core_for_tests().pause_compaction(false);
                // Held memtables are let go by their own tasks, others may pause compaction again: no wait for idleness without a bound.
                Ok(())
            }
            A::DeleteObsolete => {
                world.store.core_for_tests().delete_obsolete();
                match world.errors {
                    Errors::Fatal => world.slots_meet(),
                    // What an open replayed and had no room for is beside the slots of the new life.
                    Errors::Expected | Errors::Damaged => Ok(()),
                }
            }
        }
    }

    /// Flushes a keyspace, or all of the store.
    fn flush(&mut self, keyspace: &Keyspace, of_one: bool) -> Check {
        let world = self.world.clone();
        let _begun = world.begin(Promise::Flush);
        let number = world.store.snapshot().number();
        let result = match of_one {
            true => keyspace.flush(),
            false => world.store.flush(),
        };
        match result {
            // What was seen before survives a loss of power, in every sync mode, whichever keyspace it is in.
            Ok(()) => {
                world.synced(number);
                world.reach("flush.promised");
                Ok(())
            }
            Err(e) => world.allow(&e, &[ErrorKind::KeyspaceDropped], "flush"),
        }
    }

    /// A range delete in a memtable of its own, half of the time where no key is: what comes of it is a table without entries, or one that is
    /// nothing but that.
    fn delete_alone(&mut self) -> Check {
        let world = self.world.clone();
        let Some(keyspace) = self.keyspace()? else {
            return Ok(());
        };
        let (start, end) = match self.rng.chance(50) {
            true => world.plan.gap(&mut self.rng),
            false => world.plan.range(&mut self.rng),
        };
        if start >= end {
            return Ok(());
        }
        self.flush(&keyspace, true)?;
        let op = Op::DeleteRange(keyspace.id(), start.clone(), end.clone());
        world.write(vec![op], false, |_, _| keyspace.delete_range(&start, &end))?;
        self.flush(&keyspace, true)
    }

    /// Does something after a while, in a task of its own.
    fn later(&self, pause: Duration, then: impl FnOnce(&World) + Send + 'static) -> Check {
        let world = self.world.clone();
        let spawned = world.runtime.clone().spawn("later", move || {
            world.runtime.sleep(pause);
            then(&world);
        });
        spawned.map(|_| ()).map_err(|e| e.to_string())
    }

    fn batch(&mut self) -> Check {
        let world = self.world.clone();
        let mut ids = Vec::new();
        for _ in 0..1 + self.rng.below(3) {
            ids.extend(self.keyspace()?.map(|k| k.id()));
        }
        if ids.is_empty() {
            return Ok(());
        }
        let count = if self.rng.chance(4) {
            100 + self.rng.below(150)
        } else {
            1 + self.rng.below(8)
        };
        let ops: Vec<Op> = (0..count)
            .map(|_| {
                let id = *self.rng.pick(&ids);
                world.plan.op(id, &mut self.rng)
            })
            .collect();
        if ids.iter().any(|id| *id != ids[0]) {
            world.reach("batch.over_keyspaces");
        }
        let sync = self.rng.chance(world.plan.sync_percent);
        world.write_batch(ops, sync)
    }

    /// Entries for a table: few keys, in order, some of them deletes.
    fn entries(&mut self) -> Vec<(Bytes, Option<Bytes>)> {
        let plan = self.world.plan.clone();
        let mut entries: BTreeMap<Bytes, Option<Bytes>> = BTreeMap::new();
        for _ in 0..1 + self.rng.below(20) {
            let value = (!self.rng.chance(15)).then(|| plan.value(&mut self.rng));
            entries.insert(plan.key(&mut self.rng), value);
        }
        entries.into_iter().collect()
    }

    /// Tables built outside, for one keyspace or several, overlapping or not.
    fn ingest_files(&mut self) -> Check {
        let world = self.world.clone();
        let mut parts = Vec::new();
        for _ in 0..1 + self.rng.below(3) {
            let Some(keyspace) = self.keyspace()? else {
                continue;
            };
            let mut files = Vec::new();
            for _ in 0..1 + self.rng.below(3) {
                let entries = self.entries();
                let options = draw_table_options(&mut self.rng);
                files.extend(world.build(&entries, options)?.unwrap_or_default());
            }
            if self.rng.chance(40) {
                files = world.copied(files)?;
            }
            parts.push((keyspace, files));
        }
        let how = *self.rng.pick(&MODES);
        world.ingest(&parts, how).map(|_| ())
    }

    /// A range as a snapshot sees it, taken in by another keyspace, or by the same one above what was written since.
    fn export(&mut self) -> Check {
        let world = self.world.clone();
        let (Some(from), Some(to)) = (self.keyspace()?, self.keyspace()?) else {
            return Ok(());
        };
        let (lower, upper) = world.plan.range(&mut self.rng);
        let range = match self.rng.below(3) {
            0 => IterOptions::default(),
            _ => IterOptions::range(&lower[..]..&upper[..]),
        };
        let fresh = world.store.snapshot();
        let snapshot = match self.snapshots.last() {
            Some(held) if self.rng.chance(30) => held,
            _ => &fresh,
        };
        let Some(files) = world.export(&from, snapshot, range.clone())? else {
            return Ok(());
        };
        if self.rng.chance(30) {
            world.ingest_elsewhere(&from, snapshot, &range, &files)?;
        }
        let (count, how) = (files.len(), *self.rng.pick(&MODES));
        let files = match self.rng.chance(40) {
            true => world.copied(files)?,
            false => files,
        };
        if world.ingest(&[(to, files)], how)?.is_some() && count > 0 {
            world.reach("export.ingested");
        }
        Ok(())
    }

    fn set_keyspace(&mut self) -> Check {
        let world = self.world.clone();
        let Some(keyspace) = self.keyspace()? else {
            return Ok(());
        };
        if self.rng.chance(30) {
            let set = keyspace.own_options().values();
            if !set.is_empty() {
                let name = self.rng.pick(&set).0;
                return world.set_keyspace(&keyspace, &KeyspaceOptions::default(), &[name]);
            }
        }
        let own = draw_own_of_one(&mut self.rng, 64 << 10);
        world.set_keyspace(&keyspace, &own, &[])
    }
}

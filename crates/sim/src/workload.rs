//! Clients that mix all operations of a store, decided by a seed.
//!
//! [`Plan`] has the draws of a seed before anything runs: keys, weights, options. [`Client`] is one
//! writer and reader that works through its own random operations against the [`World`] that it
//! shares with others. Every read is compared with the model at the number at which it was made.
//!
//! Invariants: a client announces a write before it writes (see [`crate::observe`]). The seed
//! decides everything, so the order of random draws must not change.
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

/// The ways in which tables from outside are ingested.
const MODES: [IngestMode; 3] = [IngestMode::Link, IngestMode::Copy, IngestMode::Move];

/// One task that works on the store.
pub struct Client {
    world: Arc<World>,
    rng: Rng,
    /// The part of the run to which the client belongs, and its index in that part.
    place: (u32, u32),
    snapshots: Vec<Snapshot>,
    cursors: Vec<reads::HeldCursor>,
}

impl Client {
    /// A client with its own random numbers. [`crate::reduce`] identifies it by its position in the
    /// run.
    pub fn new(world: &Arc<World>, rng: Rng, place: (u32, u32)) -> Client {
        Client {
            world: world.clone(),
            rng,
            place,
            snapshots: Vec::new(),
            cursors: Vec::new(),
        }
    }

    /// Does `count` operations, or fewer if the store is closed before.
    ///
    /// # Errors
    /// The first wrong answer or unexpected error.
    pub fn work(&mut self, count: u64) -> Check {
        match self.work_through(count) {
            Err(e) if self.world.is_closed(&e) => {
                self.world.reach("client.met_a_close");
                Ok(())
            }
            done => done,
        }
    }

    fn work_through(&mut self, count: u64) -> Check {
        // Each operation has its own random numbers, so leaving one out does not change the others.
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
        // Snapshots and cursors that are held to the end are read once more.
        while !self.snapshots.is_empty() {
            self.read_snapshot()?;
            self.snapshots.pop();
        }
        while let Some(mut held) = self.cursors.pop() {
            self.step(&mut held)?;
        }
        Ok(())
    }

    /// One of the keyspaces, if there is any.
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

    /// Does one operation.
    fn act(&mut self, action: Action) -> Check {
        match action {
            A::Put | A::Delete | A::DeleteRange => self.write_one(action),
            A::DeleteAlone => self.delete_alone(),
            A::Batch => self.batch(),
            A::Get => self.get(),
            A::MultiGet => self.multi_get(),
            A::Scan => self.scan(),
            A::Prefix => self.prefix(),
            A::Approximate => self.approximate(),
            A::TakeSnapshot => self.take_snapshot(),
            A::ReadSnapshot => self.read_snapshot(),
            A::DropSnapshot => self.drop_snapshot(),
            A::OpenCursor => self.open_cursor(),
            A::StepCursor => self.with_a_cursor(Client::step),
            A::RefreshCursor => self.with_a_cursor(Client::refresh),
            A::DropCursor => self.drop_cursor(),
            A::Create => self.create(),
            A::DropKeyspace => self.drop_keyspace(),
            A::SetKeyspace => self.set_keyspace(),
            A::SetOption => {
                let (setting, value) = draw_setting(&mut self.rng);
                self.world.set_option(setting, value)
            }
            A::Ingest => self.ingest_own(),
            A::IngestFiles => self.ingest_files(),
            A::Export => self.export(),
            A::Checkpoint => self.world.checkpoint(),
            A::Verify => self.world.verify(),
            A::Flush | A::FlushStore => {
                let Some(keyspace) = self.keyspace()? else {
                    return Ok(());
                };
                self.flush(&keyspace, action == A::Flush)
            }
            A::SyncLog => self.sync_log(),
            A::CompactRange => self.compact_range(),
            A::HoldFlush => self.hold_flush(),
            A::PauseCompaction => self.pause_compaction(),
            A::WaitIdle => {
                self.world.store.test_hooks().pause_compaction(false);
                // This does not wait. Held memtables are released by their own tasks and other
                // tasks may pause compactions again, so a wait might never end.
                Ok(())
            }
            A::DeleteObsolete => self.delete_obsolete(),
        }
    }

    /// A put, a delete or a range delete as one write.
    fn write_one(&mut self, action: Action) -> Check {
        let world = self.world.clone();
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

    /// Reads all of a keyspace and compares it.
    fn scan(&mut self) -> Check {
        let Some(keyspace) = self.keyspace()? else {
            return Ok(());
        };
        let snapshot = self.world.store.snapshot();
        self.compare(&keyspace, &snapshot)
    }

    fn take_snapshot(&mut self) -> Check {
        if self.snapshots.len() < 4 {
            self.snapshots.push(self.world.store.snapshot());
        }
        Ok(())
    }

    fn drop_snapshot(&mut self) -> Check {
        if !self.snapshots.is_empty() {
            let at = self.rng.index(self.snapshots.len());
            drop(self.snapshots.swap_remove(at));
        }
        Ok(())
    }

    /// Calls `work` with one of the open cursors, which stays open.
    fn with_a_cursor(
        &mut self,
        work: impl FnOnce(&mut Client, &mut reads::HeldCursor) -> Check,
    ) -> Check {
        if self.cursors.is_empty() {
            return Ok(());
        }
        let at = self.rng.index(self.cursors.len());
        let mut held = self.cursors.swap_remove(at);
        work(self, &mut held)?;
        self.cursors.push(held);
        Ok(())
    }

    fn drop_cursor(&mut self) -> Check {
        if !self.cursors.is_empty() {
            let at = self.rng.index(self.cursors.len());
            drop(self.cursors.swap_remove(at));
        }
        Ok(())
    }

    /// Creates a keyspace, sometimes with its own options.
    fn create(&mut self) -> Check {
        let name = *self.rng.pick(&NAMES);
        let own = match self.rng.chance(30) {
            true => draw_own_of_one(&mut self.rng, 64 << 10),
            false => KeyspaceOptions::default(),
        };
        self.world.create(name, &own).map(|_| ())
    }

    fn drop_keyspace(&mut self) -> Check {
        let Some(keyspace) = self.keyspace()? else {
            return Ok(());
        };
        self.world.drop_keyspace(&keyspace)
    }

    /// Ingests one table that the store itself wrote.
    fn ingest_own(&mut self) -> Check {
        let Some(keyspace) = self.keyspace()? else {
            return Ok(());
        };
        let entries = self.entries();
        self.world.ingest_own(&keyspace, entries)
    }

    /// Compacts a range of a keyspace, or all of it.
    fn compact_range(&mut self) -> Check {
        let world = self.world.clone();
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

    /// Syncs the log. Everything that was visible before survives a loss of power.
    fn sync_log(&mut self) -> Check {
        let world = self.world.clone();
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

    /// Seals a memtable and holds back its flush for a while.
    fn hold_flush(&mut self) -> Check {
        let world = self.world.clone();
        let Some(keyspace) = self.keyspace()? else {
            return Ok(());
        };
        let held = match world.store.test_hooks().seal_and_hold(&keyspace) {
            Ok(held) => held,
            Err(e) => return world.allow(&e, &[ErrorKind::KeyspaceDropped], "seal"),
        };
        if held {
            world.reach("memtable.held");
            let pause = Duration::from_micros(self.rng.below(40_000));
            self.later(pause, move |world| {
                world.store.test_hooks().release(&keyspace);
            })
        } else {
            Ok(())
        }
    }

    /// Pauses compactions for a while.
    fn pause_compaction(&mut self) -> Check {
        self.world.store.test_hooks().pause_compaction(true);
        let pause = Duration::from_micros(self.rng.below(40_000));
        self.later(pause, |world| {
            world.store.test_hooks().pause_compaction(false)
        })
    }

    /// Deletes files that are no longer needed. Also checks that the sources of each keyspace cover
    /// all numbers, unless calls fail.
    fn delete_obsolete(&mut self) -> Check {
        let world = &self.world;
        world.store.test_hooks().delete_obsolete();
        match world.errors {
            Errors::Fatal => world.slots_meet(),
            // Recovery may have replayed data that found no space, and its numbers are not in any
            // slot of this life.
            Errors::Expected | Errors::Outages | Errors::Damaged => Ok(()),
        }
    }

    /// Flushes one keyspace, or the whole store.
    fn flush(&mut self, keyspace: &Keyspace, of_one: bool) -> Check {
        let world = self.world.clone();
        world.choose_location(&mut self.rng.clone().fork(6));
        let _begun = world.begin(Promise::Flush);
        let number = world.store.snapshot().number();
        let result = match of_one {
            true => keyspace.flush(),
            false => world.store.flush(),
        };
        match result {
            // Everything that was visible before survives a loss of power, in every sync mode and
            // in every keyspace.
            Ok(()) => {
                world.synced(number);
                world.reach("flush.promised");
                Ok(())
            }
            Err(e) => world.allow(&e, &[ErrorKind::KeyspaceDropped], "flush"),
        }
    }

    /// A range delete in a memtable of its own, half of the time over a range without keys. Its
    /// flush gives a table without entries, which holds at most this range delete.
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

    /// Calls `then` after a pause, in a task of its own.
    fn later(&self, pause: Duration, then: impl FnOnce(&World) + Send + 'static) -> Check {
        let world = self.world.clone();
        let spawned = world.runtime.clone().spawn("later", move || {
            world.runtime.sleep(pause);
            then(&world);
        });
        spawned.map(|_| ()).map_err(|e| e.to_string())
    }

    /// Writes a batch of random operations on up to three keyspaces.
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

    /// The entries of a table: a few keys in order, some of them deleted.
    fn entries(&mut self) -> Vec<(Bytes, Option<Bytes>)> {
        let plan = self.world.plan.clone();
        let mut entries: BTreeMap<Bytes, Option<Bytes>> = BTreeMap::new();
        for _ in 0..1 + self.rng.below(20) {
            let value = (!self.rng.chance(15)).then(|| plan.value(&mut self.rng));
            entries.insert(plan.key(&mut self.rng), value);
        }
        entries.into_iter().collect()
    }

    /// Ingests tables that were built outside into one keyspace or several. They may overlap.
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

    /// Exports a range as a snapshot sees it, and ingests it into another keyspace, or into the
    /// same one, above later writes.
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

    /// Changes the own options of a keyspace, or unsets one of them.
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

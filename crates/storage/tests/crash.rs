//! What a power loss may lose and what it must keep, over thousands of seeds; and that every
//! permitted loss happens.

use std::collections::BTreeMap;

use siltstone_storage::{
    CrashPolicy, CrashReport, Epoch, MemoryStorage, OpKind, Runtime, Storage, StorageErrorKind,
    WriteFile,
};
use std::sync::Arc;

/// A separate generator, so that these tests do not depend on the crate's.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// What must be there after a crash. The test computes it from the rules of the trait alone.
#[derive(Default, Clone)]
struct Promised {
    /// Objects whose names a directory sync covered and nothing touched since, with the bytes that
    /// a sync covered.
    objects: BTreeMap<String, Vec<u8>>,
    /// The contents of `CURRENT`, once a `replace` has returned.
    current: Option<Vec<u8>>,
}

/// A writer, the bytes that were written through it, and how many of them are synced.
type Open = (Arc<dyn WriteFile>, Vec<u8>, usize);

struct Life {
    storage: MemoryStorage,
    epoch: Epoch,
    /// Open writers by name.
    open: BTreeMap<String, Open>,
    /// Names whose creation or rename is not yet covered by a directory sync.
    fresh: Vec<String>,
    promised: Promised,
    next: u64,
}

impl Life {
    fn new() -> Life {
        let storage = MemoryStorage::new(&Runtime::threads());
        let epoch = storage.lease("writer").unwrap().epoch();
        let promised = Promised::default();
        Life {
            storage,
            epoch,
            open: BTreeMap::new(),
            fresh: Vec::new(),
            promised,
            next: 0,
        }
    }

    fn pick(&self, rng: &mut Rng) -> Option<String> {
        let names: Vec<_> = self.open.keys().cloned().collect();
        (!names.is_empty()).then(|| names[rng.below(names.len() as u64) as usize].clone())
    }

    fn step(&mut self, rng: &mut Rng) {
        let (s, e) = (self.storage.clone(), self.epoch);
        match rng.below(20) {
            0..=1 => {
                let name = format!("{:06}", self.next);
                self.next += 1;
                self.open
                    .insert(name.clone(), (s.create(e, &name).unwrap(), Vec::new(), 0));
                self.fresh.push(name);
            }
            2..=10 => {
                let Some(name) = self.pick(rng) else { return };
                let (w, bytes, _) = self.open.get_mut(&name).unwrap();
                let len = if rng.below(4) == 0 {
                    rng.below(9000)
                } else {
                    rng.below(300)
                };
                let part = vec![1 + rng.below(255) as u8; len as usize];
                w.append(&[&part]).unwrap();
                bytes.extend_from_slice(&part);
            }
            11..=12 => {
                let Some(name) = self.pick(rng) else { return };
                let (w, bytes, synced) = self.open.get_mut(&name).unwrap();
                w.sync().unwrap();
                *synced = bytes.len();
                if let Some(promised) = self.promised.objects.get_mut(&name) {
                    promised.clone_from(bytes);
                }
            }
            13 => {
                s.sync_dir(e).unwrap();
                for name in self.fresh.drain(..) {
                    if let Some((_, bytes, synced)) = self.open.get(&name) {
                        self.promised
                            .objects
                            .insert(name, bytes[..*synced].to_vec());
                    }
                }
            }
            14 => {
                let Some(name) = self.pick(rng) else { return };
                self.open[&name].0.reserve(rng.below(30_000)).unwrap();
            }
            15 => {
                let Some(name) = self.pick(rng) else { return };
                let new = format!("{:06}", self.next);
                self.next += 1;
                s.rename(e, &name, &new).unwrap();
                let kept = self.open.remove(&name).unwrap();
                self.promised.objects.remove(&name);
                self.open.insert(new.clone(), kept);
                self.fresh.retain(|n| *n != name);
                self.fresh.push(new);
            }
            16 => {
                let Some(name) = self.pick(rng) else { return };
                s.delete(e, &name).unwrap();
                self.open.remove(&name);
                self.promised.objects.remove(&name);
                self.fresh.retain(|n| *n != name);
            }
            17 => {
                // The new name holds the old bytes until they are overwritten.
                let Some(name) = self.pick(rng) else { return };
                let new = format!("{:06}", self.next);
                self.next += 1;
                let w = s.recycle(e, &name, &new).unwrap();
                self.open.remove(&name);
                self.promised.objects.remove(&name);
                self.fresh.retain(|n| *n != name);
                self.open.insert(new.clone(), (w, Vec::new(), 0));
                self.fresh.push(new);
            }
            18 => {
                let bytes = vec![rng.below(256) as u8; rng.below(6000) as usize];
                s.replace(e, "CURRENT", &bytes).unwrap();
                self.promised.current = Some(bytes);
            }
            _ => {
                let Some(name) = self.pick(rng) else { return };
                let (w, ..) = &self.open[&name];
                w.truncate_to_position().unwrap();
            }
        }
    }

    /// Checks S1 and S2.
    fn check(promised: &Promised, image: &MemoryStorage, what: &str) {
        for (name, bytes) in &promised.objects {
            let found = image
                .read_small(name)
                .unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(
                found.len() >= bytes.len(),
                "{what}: {name} has {} of {} bytes",
                found.len(),
                bytes.len()
            );
            assert!(
                found[..bytes.len()] == bytes[..],
                "{what}: {name} lost synced bytes"
            );
        }
        if let Some(current) = &promised.current {
            assert_eq!(&image.read_small("CURRENT").unwrap(), current, "{what}");
        }
    }
}

#[test]
fn synced_is_kept_and_every_permitted_loss_happens() {
    let mut totals: BTreeMap<&str, u64> = BTreeMap::new();
    let mut lose_all = CrashReport::default();
    for seed in 1..=1000u64 {
        let mut rng = Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let mut life = Life::new();
        for step in 0..80 {
            life.step(&mut rng);
            if step % 5 != 0 {
                continue;
            }
            let crash_seed = seed * 1000 + step;
            let what = format!("seed {seed} step {step}");
            for policy in [
                CrashPolicy::Seeded(crash_seed),
                CrashPolicy::LoseUnsynced,
                CrashPolicy::KeepUnsynced,
            ] {
                let (image, report) = life.storage.crash_in(&Runtime::threads(), policy);
                Life::check(&life.promised, &image, &format!("{what} {policy:?}"));
                match policy {
                    CrashPolicy::Seeded(_) => {
                        for (name, count) in report.counts() {
                            *totals.entry(name).or_default() += count;
                        }
                    }
                    CrashPolicy::LoseUnsynced => {
                        lose_all.pages_kept_count +=
                            report.pages_kept_count + report.creates_kept_count;
                    }
                    CrashPolicy::KeepUnsynced => {
                        assert_eq!((report.pages_lost_count, report.creates_lost_count), (0, 0));
                        assert_eq!(
                            image.list().unwrap(),
                            life.storage.list().unwrap(),
                            "{what}"
                        );
                    }
                }
                // A crash image is durable, whatever happens next.
                let again = image.crash(CrashPolicy::Seeded(crash_seed + 1));
                assert_eq!(again.list().unwrap(), image.list().unwrap());
            }
            // A kill keeps the written bytes, and syncs nothing.
            let killed = life.storage.kill();
            for (name, (_, bytes, _)) in &life.open {
                assert!(
                    killed.read_small(name).unwrap().starts_with(bytes),
                    "{what} {name}"
                );
            }
            Life::check(
                &life.promised,
                &killed.crash(CrashPolicy::Seeded(crash_seed)),
                &format!("{what} killed"),
            );
        }
    }
    assert_eq!(lose_all.pages_kept_count, 0);
    // These happen during a call, which only a journal knows.
    let within = ["reserves_cut", "writes_cut", "writes_scattered"];
    for (name, count) in &totals {
        assert!(
            *count > 0 || within.contains(name),
            "{name} never happened: {totals:?}"
        );
    }
    println!("{totals:?}");
}

#[test]
fn crash_images_are_a_function_of_the_seed() {
    let mut rng = Rng(99);
    let mut life = Life::new();
    for _ in 0..200 {
        life.step(&mut rng);
    }
    let contents = |s: &MemoryStorage| -> Vec<_> {
        s.list()
            .unwrap()
            .into_iter()
            .map(|o| (s.read_small(&o.name).unwrap(), o))
            .collect()
    };
    let mut different = 0;
    for seed in 0..100 {
        let (a, b) = (CrashPolicy::Seeded(seed), CrashPolicy::Seeded(seed + 1));
        assert_eq!(
            contents(&life.storage.crash(a)),
            contents(&life.storage.crash(a))
        );
        different +=
            u64::from(contents(&life.storage.crash(a)) != contents(&life.storage.crash(b)));
    }
    assert!(different > 50, "{different}");
}

/// Each prefix of a journal gives the storage of that moment, and marks keep their positions.
#[test]
fn every_prefix_of_a_journal_keeps_what_was_promised_by_then() {
    for seed in 1..=20u64 {
        let mut rng = Rng(seed.wrapping_mul(0xD134_2543_DE82_EF95) | 1);
        let mut life = Life::new();
        life.storage.start_journal();
        let mut promised = Vec::new();
        for step in 0..60 {
            life.step(&mut rng);
            assert_eq!(
                life.storage.mark(format!("{step}")),
                life.storage.journal_len()
            );
            promised.push(life.promised.clone());
        }
        let mut replay = life.storage.replay();
        for n in 0..=replay.len() {
            replay.advance_to(n);
            let Some(mark) = replay.marks_so_far().last() else {
                continue;
            };
            assert!(mark.at <= n);
            // Promises may shrink (by a delete), so they are compared only at a mark, where no
            // later change has been applied.
            if mark.at == n {
                let what = format!("seed {seed} after {n} changes");
                let step: usize = mark.label.parse().unwrap();
                for crash_seed in 0..3 {
                    let (image, _) =
                        replay.crash(CrashPolicy::Seeded(seed * 7919 + n * 3 + crash_seed));
                    Life::check(&promised[step], &image, &what);
                }
            }
            assert!(replay.kind(n).is_none_or(OpKind::is_change));
        }
        let end = replay.kill_in(&Runtime::threads());
        assert_eq!(end.list().unwrap(), life.storage.list().unwrap());
    }
}

fn reached(mut case: impl FnMut(u64) -> bool, what: &str) {
    assert!(
        (0..2000).any(&mut case),
        "{what}: never happened in 2000 seeds"
    );
}

/// The crash patterns that have broken stores, each by name.
#[test]
fn well_known_crash_patterns_are_reached() {
    let setup = || {
        let s = MemoryStorage::new(&Runtime::threads());
        let e = s.lease("writer").unwrap().epoch();
        let w = s.create(e, "1.log").unwrap();
        w.append(&[&vec![b'o'; 3 * 4096]]).unwrap();
        w.sync().unwrap();
        s.sync_dir(e).unwrap();
        (s, e, w)
    };
    // A recycled segment: old bytes under the new name, and the new bytes under the old name.
    let (s, e, _) = setup();
    let w = s.recycle(e, "1.log", "2.log").unwrap();
    w.append(&[&[b'n'; 100]]).unwrap();
    let first = |s: &MemoryStorage, name: &str| s.read_small(name).ok().map(|b| b[0]);
    reached(
        |i| first(&s.crash(CrashPolicy::Seeded(i)), "2.log") == Some(b'o'),
        "old bytes under the new name",
    );
    reached(
        |i| first(&s.crash(CrashPolicy::Seeded(i)), "1.log") == Some(b'n'),
        "new bytes under the old name",
    );
    // The first record is lost and a later one kept, between pages and within one page.
    let (s, _, _) = setup();
    let w = s.create(Epoch(1), "3.log").unwrap();
    s.sync_dir(Epoch(1)).unwrap();
    for b in [b'A', b'B', b'C', b'D'] {
        w.append(&[&vec![b; 2048]]).unwrap();
    }
    let at = |i: u64, offsets: [usize; 2]| {
        let bytes = s.crash(CrashPolicy::Seeded(i)).read_small("3.log").unwrap();
        offsets.map(|p| bytes.get(p).copied().unwrap_or(0))
    };
    reached(
        |i| at(i, [0, 4096]) == [0, b'C'],
        "the first page lost, the second kept",
    );
    reached(
        |i| at(i, [0, 2048]) == [0, b'B'],
        "torn: the first sectors lost, the later kept",
    );
    reached(
        |i| at(i, [0, 2048]) == [b'A', 0],
        "torn or older: the first kept, the later lost",
    );
    // A rename is lost while a later delete is kept.
    let (s, e, _) = setup();
    drop(s.create(e, "doomed").unwrap());
    s.sync_dir(e).unwrap();
    s.rename(e, "1.log", "2.log").unwrap();
    s.delete(e, "doomed").unwrap();
    let names = |i| -> Vec<String> {
        s.crash(CrashPolicy::Seeded(i))
            .list()
            .unwrap()
            .into_iter()
            .map(|o| o.name)
            .collect()
    };
    reached(
        |i| names(i) == ["1.log"],
        "the rename lost, the delete kept",
    );
    reached(
        |i| names(i) == ["2.log", "doomed"],
        "the rename kept, the delete lost",
    );
    // Reserved space reads as zeros or as old bytes of other objects, or is lost.
    let (s, e, w) = setup();
    drop(w);
    s.delete(e, "1.log").unwrap();
    s.sync_dir(e).unwrap();
    let w = s.create(e, "4.log").unwrap();
    s.sync_dir(e).unwrap();
    w.reserve(4096).unwrap();
    let log = |i| s.crash(CrashPolicy::Seeded(i)).read_small("4.log").unwrap();
    reached(|i| log(i).is_empty(), "the reserved length lost");
    reached(|i| log(i) == [0; 4096], "zeros");
    reached(|i| log(i) == [b'o'; 4096], "old bytes");
}

#[test]
fn a_fenced_writer_changes_nothing_that_lasts() {
    let s = MemoryStorage::new(&Runtime::threads());
    let old = s.lease("writer").unwrap();
    s.replace(old.epoch(), "CURRENT", b"old").unwrap();
    s.set_leases_expire(true);
    let new = s.lease("writer").unwrap();
    s.replace(new.epoch(), "CURRENT", b"new").unwrap();
    // The paused host continues.
    assert_eq!(
        s.replace(old.epoch(), "CURRENT", b"old again")
            .unwrap_err()
            .kind,
        StorageErrorKind::Fenced
    );
    for seed in 0..20 {
        assert_eq!(
            s.crash(CrashPolicy::Seeded(seed))
                .read_small("CURRENT")
                .unwrap(),
            b"new"
        );
    }
}

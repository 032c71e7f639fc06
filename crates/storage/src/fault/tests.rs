use super::*;
use crate::memory::{CrashPolicy, MemoryStorage};

fn setup() -> (MemoryStorage, FaultStorage, Epoch) {
    let runtime = Runtime::threads();
    let memory = MemoryStorage::new(&runtime);
    let faults = FaultStorage::new(Arc::new(memory.clone()), &runtime);
    let epoch = faults.lease("writer").unwrap().epoch();
    (memory, faults, epoch)
}

fn kind<T>(result: Result<T>) -> StorageErrorKind {
    result.err().expect("this call must fail").kind
}

const IO: Fault = Fault::Fail(StorageErrorKind::Io);

/// A fixed run of 9 changing calls and 3 reading ones. It stops at the first error.
fn scenario(s: &FaultStorage, e: Epoch) -> Result<()> {
    let w = s.create(e, "a")?;
    w.reserve(8192)?;
    w.append(&[b"hello"])?;
    w.truncate_to_position()?;
    w.sync()?;
    s.rename(e, "a", "b")?;
    s.sync_dir(e)?;
    s.replace(e, "CURRENT", b"b")?;
    let mut buf = [0; 5];
    s.open("b")?.read_at(0, &mut buf)?;
    s.open("b")?.map()?;
    s.delete(e, "b")
}

#[test]
fn every_nth_change_can_fail() {
    let (_, s, e) = setup();
    let before = s.counts().changes();
    scenario(&s, e).unwrap();
    let total = s.counts().changes() - before;
    assert_eq!(total, 9);
    for n in 0..total + 2 {
        for for_good in [false, true] {
            let (_, s, e) = setup();
            let rule = Rule::on_changes(Fault::Fail(StorageErrorKind::NoSpace)).nth(n);
            s.add(if for_good { rule.for_good() } else { rule });
            let result = scenario(&s, e);
            assert_eq!(result.is_err(), n < total, "{n}");
            if n < total {
                assert_eq!(kind(result), StorageErrorKind::NoSpace);
                assert_eq!(s.fired_count(0), 1);
                assert_eq!(s.create(e, "later").is_err(), for_good);
            } else {
                assert!(s.fired().is_empty());
            }
        }
    }
}

#[test]
fn kind_name_and_times() {
    let (_, s, e) = setup();
    s.add(Rule::on(OpKind::Create, IO).named("log").nth(1).times(2));
    assert!(s.create(e, "table").is_ok());
    assert!(s.create(e, "log1").is_ok());
    assert!(s.create(e, "log2").is_err());
    s.disarm();
    assert!(s.create(e, "log3").is_ok());
    s.arm();
    assert!(s.create(e, "log4").is_err());
    assert!(s.create(e, "log5").is_ok());
    let fired = s.fired();
    assert_eq!(fired.len(), 2);
    assert_eq!(
        (fired[1].rule, fired[1].kind, fired[1].name.as_str()),
        (0, OpKind::Create, "log4")
    );
    s.clear();
    assert!(s.fired().is_empty());
    assert_eq!(s.counts().of(OpKind::Create), 6);
}

#[test]
fn a_short_append_leaves_a_prefix() {
    let (_, s, e) = setup();
    let w = s.create(e, "a").unwrap();
    w.append(&[b"0123"]).unwrap();
    s.add(Rule::on(
        OpKind::Append,
        Fault::ShortAppend {
            per_mille: 500,
            kind: StorageErrorKind::NoSpace,
        },
    ));
    let err = w.append(&[b"ab", b"cdef"]).unwrap_err();
    assert_eq!(
        (err.kind, err.offset, w.position()),
        (StorageErrorKind::NoSpace, Some(7), 4)
    );
    assert_eq!(s.read_small("a").unwrap(), b"0123abc");
    w.append(&[b"XY"]).unwrap();
    assert_eq!(s.read_small("a").unwrap(), b"0123XYc");
}

#[test]
fn no_later_sync_saves_what_a_failed_sync_lost() {
    let (m, s, e) = setup();
    let w = s.create(e, "a").unwrap();
    s.sync_dir(e).unwrap();
    s.add(Rule::on(OpKind::Sync, IO));
    w.append(&[b"lost"]).unwrap();
    assert_eq!(kind(w.sync()), StorageErrorKind::Io);
    w.sync().unwrap();
    assert_eq!(s.read_small("a").unwrap(), b"lost", "it is still visible");
    // The second sync made the length durable, but the bytes are lost.
    assert_eq!(
        m.crash(CrashPolicy::KeepUnsynced).read_small("a").unwrap(),
        [0; 4]
    );
    s.add(Rule::on(OpKind::SyncDir, IO));
    drop(s.create(e, "b").unwrap());
    assert!(s.sync_dir(e).is_err());
    s.sync_dir(e).unwrap();
    assert!(s.open("b").is_ok());
    assert_eq!(
        kind(m.crash(CrashPolicy::KeepUnsynced).open("b")),
        StorageErrorKind::NotFound
    );
}

#[test]
fn a_call_may_take_effect_and_fail() {
    let (m, s, e) = setup();
    let after = Fault::FailAfter(StorageErrorKind::Io);
    s.add(Rule::on(OpKind::Replace, after));
    s.add(Rule::on(OpKind::Sync, after));
    s.add(Rule::on(OpKind::Append, after));
    s.add(Rule::on(OpKind::SyncDir, after));
    assert!(s.replace(e, "CURRENT", b"new").is_err());
    assert_eq!(
        m.crash(CrashPolicy::LoseUnsynced)
            .read_small("CURRENT")
            .unwrap(),
        b"new"
    );
    let w = s.create(e, "a").unwrap();
    assert!(w.append(&[b"x"]).is_err());
    assert_eq!((w.position(), w.len()), (0, 1));
    assert!(w.sync().is_err());
    assert!(s.sync_dir(e).is_err());
    assert_eq!(
        m.crash(CrashPolicy::LoseUnsynced).read_small("a").unwrap(),
        b"x"
    );
}

#[test]
fn reads_that_touch_a_bad_sector_fail() {
    let (_, s, e) = setup();
    s.create(e, "a").unwrap().append(&[&[7; 100]]).unwrap();
    let r = s.open("a").unwrap();
    let fault = Fault::Unreadable { start: 20, end: 30 };
    s.add(Rule::on_reads(fault).named("a").for_good());
    let mut buf = [0; 10];
    for (at, is_bad) in [(0, false), (10, false), (11, true), (29, true), (30, false)] {
        let read = r.read_at(at, &mut buf);
        let kind = read.err().map(|error| error.kind);
        assert_eq!(kind, is_bad.then_some(StorageErrorKind::Io), "at {at}");
    }
    assert!(r.map().unwrap().is_some());
}

#[test]
fn flips_short_reads_and_failed_maps() {
    let (_, s, e) = setup();
    s.create(e, "a").unwrap().append(&[&[0; 100]]).unwrap();
    let r = s.open("a").unwrap();
    let flip = s.add(
        Rule::on_reads(Fault::FlipAt {
            offset: 50,
            mask: 0x81,
        })
        .named("a")
        .for_good(),
    );
    let mut buf = [0; 10];
    r.read_at(45, &mut buf).unwrap();
    assert_eq!(buf, [0, 0, 0, 0, 0, 0x81, 0, 0, 0, 0]);
    r.read_at(0, &mut buf).unwrap();
    assert_eq!(buf, [0; 10]);
    let map = r.map().unwrap().unwrap();
    assert_eq!((map.read_u8(49), map.read_u8(50)), (Some(0), Some(0x81)));
    assert_eq!(s.fired_count(flip), 3);
    s.clear();
    s.add(Rule::on_reads(Fault::FlipRandom { seed: 7 }).for_good());
    let mut offsets = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let mut all = [0; 100];
        r.read_at(0, &mut all).unwrap();
        assert_eq!(all.iter().map(|b| b.count_ones()).sum::<u32>(), 1);
        offsets.insert(all.iter().position(|b| *b != 0));
    }
    assert!(offsets.len() > 5);
    s.clear();
    s.add(Rule::on(OpKind::Read, Fault::ShortRead));
    assert_eq!(
        kind(r.read_at(0, &mut buf)),
        StorageErrorKind::UnexpectedEof
    );
    r.read_at(0, &mut buf).unwrap();
    s.add(Rule::on(OpKind::Map, Fault::FailedMap));
    assert!(r.map().unwrap().unwrap().failed());
    assert!(!r.map().unwrap().unwrap().failed());
}

#[test]
fn different_runs_have_different_traces() {
    let run = |text: &[u8], fail: bool| {
        let (_, s, e) = setup();
        s.start_trace(true);
        let w = s.create(e, "a").unwrap();
        if fail {
            s.add(Rule::on(OpKind::Append, IO));
        }
        let _ = w.append(&[text]);
        let _ = s.read_small("a");
        (s.trace_digest().unwrap(), s.trace_log())
    };
    assert_eq!(run(b"x", false), run(b"x", false));
    assert_ne!(run(b"x", false).0, run(b"y", false).0);
    assert_ne!(run(b"x", false).0, run(b"x", true).0);
    let (_, log) = run(b"x", true);
    assert_eq!(log.len(), 4, "{log:?}");
    assert!(
        log[1].starts_with("1 append \"a\" at 0 len 1") && log[1].ends_with(" Io"),
        "{log:?}"
    );
}

#[test]
fn delays_use_the_runtime() {
    let (_, s, e) = setup();
    let before = s.shared.runtime.now();
    s.add(Rule::on_any(Fault::Delay(Duration::from_millis(2))).times(2));
    drop(s.create(e, "a").unwrap());
    s.list().unwrap();
    assert!(s.shared.runtime.now().since(before) >= Duration::from_millis(4));
    assert_eq!(s.fired().len(), 2);
}

#[test]
fn only_rewriting_saves_what_a_failed_sync_by_name_lost() {
    let (memory, s, e) = setup();
    let w = s.create(e, "000001.log").unwrap();
    w.append(&[&[7; 9000]]).unwrap();
    drop(w);
    s.sync_dir(e).unwrap();
    s.add(Rule::on(OpKind::Sync, IO).times(2));
    assert_eq!(kind(s.sync_object(e, "000001.log")), StorageErrorKind::Io);
    s.sync_object(e, "other").unwrap_err();
    s.sync_object(e, "000001.log").unwrap();
    assert_eq!(
        s.read_small("000001.log").unwrap(),
        [7; 9000],
        "it is still visible"
    );
    let after_power = memory.crash(CrashPolicy::LoseUnsynced);
    assert_ne!(
        after_power.read_small("000001.log").unwrap(),
        [7; 9000],
        "a second sync saved what the first one lost"
    );
    s.rewrite_object(e, "000001.log").unwrap();
    let after_power = memory.crash(CrashPolicy::LoseUnsynced);
    assert_eq!(after_power.read_small("000001.log").unwrap(), [7; 9000]);
}

#[test]
fn rules_apply_to_the_sync_of_a_storages_path() {
    let (_, s, e) = setup();
    s.add(Rule::on(OpKind::SyncDir, IO).named(PLACE));
    s.sync_dir(e).unwrap();
    assert_eq!(kind(s.sync_parents(e)), StorageErrorKind::Io);
    s.sync_parents(e).unwrap();
}

/// An outage until `end`, in which each call waits for a second.
fn outage(effect: Effect, end: crate::Instant) -> Rule {
    let limit = Duration::from_secs(1);
    Rule::on_any(Fault::Unreachable { limit, effect })
        .for_good()
        .until(end)
}

/// Runs `play` on the simulated runtime, whose clock the outages need.
fn simulated(play: impl FnOnce(&Runtime, MemoryStorage, FaultStorage) + Send + 'static) {
    let run = crate::sim::run(crate::sim::SimConfig::new(1), |runtime: Runtime| {
        let memory = MemoryStorage::new(&runtime);
        let faults = FaultStorage::new(Arc::new(memory.clone()), &runtime);
        play(&runtime, memory, faults);
    });
    run.result.unwrap();
}

#[test]
fn an_outage_fails_calls_after_their_limit_and_ends() {
    simulated(|runtime, memory, s| {
        let e = s.lease("writer").unwrap().epoch();
        let w = s.create(e, "a").unwrap();
        let began = runtime.now();
        s.add(outage(Effect::None, began + Duration::from_millis(2500)));
        assert_eq!(kind(w.append(&[b"x"])), StorageErrorKind::Unreachable);
        assert_eq!(kind(s.create(e, "b")), StorageErrorKind::Unreachable);
        assert_eq!(runtime.now().since(began), Duration::from_secs(2));
        // The outage ends before this call's limit.
        w.append(&[b"y"]).unwrap();
        assert_eq!(runtime.now().since(began), Duration::from_millis(2500));
        w.sync().unwrap();
        s.sync_dir(e).unwrap();
        let image = memory.crash(CrashPolicy::LoseUnsynced);
        assert_eq!(image.read_small("a").unwrap(), b"y");
    });
}

#[test]
fn a_sync_that_does_not_reach_the_storage_loses_nothing() {
    simulated(|runtime, memory, s| {
        let e = s.lease("writer").unwrap().epoch();
        let w = s.create(e, "a").unwrap();
        w.append(&[b"x"]).unwrap();
        s.add(outage(
            Effect::None,
            runtime.now() + Duration::from_millis(2100),
        ));
        assert_eq!(kind(w.sync()), StorageErrorKind::Unreachable);
        assert_eq!(kind(s.sync_dir(e)), StorageErrorKind::Unreachable);
        let early = memory.crash(CrashPolicy::LoseUnsynced);
        assert!(early.list().unwrap().is_empty());
        w.sync().unwrap();
        s.sync_dir(e).unwrap();
        let image = memory.crash(CrashPolicy::LoseUnsynced);
        assert_eq!(image.read_small("a").unwrap(), b"x");
    });
}

#[test]
fn a_call_without_an_answer_may_take_effect_and_an_append_never_does() {
    simulated(|runtime, memory, s| {
        let e = s.lease("writer").unwrap().epoch();
        let w = s.create(e, "a").unwrap();
        w.append(&[b"x"]).unwrap();
        let rule = s.add(outage(
            Effect::Taken,
            runtime.now() + Duration::from_secs(60),
        ));
        assert_eq!(kind(w.append(&[b"y"])), StorageErrorKind::Unreachable);
        assert_eq!(kind(w.sync()), StorageErrorKind::Unreachable);
        assert_eq!(kind(s.create(e, "b")), StorageErrorKind::Unreachable);
        assert_eq!(kind(s.rename(e, "a", "c")), StorageErrorKind::Unreachable);
        assert_eq!(kind(s.sync_dir(e)), StorageErrorKind::Unreachable);
        assert_eq!(s.fired_count(rule), 5);
        // The creation was undone, because nobody waits for it.
        let names: Vec<_> = memory.list().unwrap().into_iter().map(|o| o.name).collect();
        assert_eq!(names, ["c"]);
        let image = memory.crash(CrashPolicy::LoseUnsynced);
        assert_eq!(image.read_small("c").unwrap(), b"x");
    });
}

//! What workloads draw, and what they write.

use std::collections::BTreeSet;
use std::path::Path;

use super::spy::{Event, Spy};
use super::{run_in, small};
use crate::record::{Context, Record};
use crate::settings::{Amount, Promise, Settings, Workload};

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn puts(events: &[Event]) -> Pairs {
    let put = |event: &Event| match event {
        Event::Put { key, value, .. } => Some((key.clone(), value.clone())),
        _ => None,
    };
    events.iter().filter_map(put).collect()
}

fn keys(pairs: &Pairs) -> Vec<Vec<u8>> {
    pairs.iter().map(|(key, _)| key.clone()).collect()
}

/// The keys of the workload's calls, in their order.
fn gets(spy: &Spy, folder: &Path, settings: &Settings) -> Vec<Vec<u8>> {
    run_in(spy, folder, settings);
    let key = |event: &Event| match event {
        Event::Get(key) => Some(key.clone()),
        _ => None,
    };
    spy.events().iter().filter_map(key).collect()
}

#[test]
fn fillsync_syncs_every_put_and_promises_what_it_did() {
    let folder = tempfile::tempdir().unwrap();
    for (workload, is_synced, promise) in [
        (Workload::FillSync, true, Promise::Power),
        (Workload::FillRandom, false, Promise::Process),
    ] {
        let spy = Spy::default();
        let settings = Settings {
            amount: Some(Amount::Operations(40)),
            ..small(workload)
        };
        assert!(!settings.sync);
        let found = run_in(&spy, folder.path(), &settings);
        let events = spy.events();
        let is_as_told =
            |event: &&Event| matches!(event, Event::Put { sync, .. } if *sync == is_synced);
        assert_eq!(events.iter().filter(is_as_told).count(), 40, "{workload}");
        let record = Record::of(&spy, &settings, &found, &Context::default());
        assert_eq!(record.promise, Some(promise));
        assert_eq!(record.settings["sync"], is_synced);
    }
}

#[test]
fn no_workload_and_no_round_repeats_the_draws_of_another() {
    let folder = tempfile::tempdir().unwrap();
    let spy = Spy::default();
    let round = |workload, operation_seed| Settings {
        operation_seed,
        ..small(workload)
    };
    run_in(&spy, folder.path(), &small(Workload::FillRandom));
    let filled = keys(&puts(&spy.events()));
    let present: BTreeSet<_> = filled.iter().cloned().collect();
    let mut all = vec![filled];
    for operation_seed in [1, 2] {
        all.push(gets(
            &spy,
            folder.path(),
            &round(Workload::ReadRandom, operation_seed),
        ));
        run_in(
            &spy,
            folder.path(),
            &round(Workload::Overwrite, operation_seed),
        );
        all.push(keys(&puts(&spy.events())));
    }
    // A read draws only what is there, so the draws of the fill would be found with no other
    // between them.
    for (number, a) in all.iter().enumerate() {
        for b in &all[..number] {
            let common = a.iter().zip(b).filter(|(a, b)| a == b).count();
            assert!(common < 20, "{common} of {} calls are the same", a.len());
            let begins = |a: &[Vec<u8>], b: &[Vec<u8>]| a.windows(3).any(|three| three == &b[..3]);
            assert!(!begins(a, b) && !begins(b, a));
        }
    }
    assert!(all[1].iter().all(|key| present.contains(key)));
    // Equal seeds give equal operations.
    let again = gets(&spy, folder.path(), &round(Workload::ReadRandom, 2));
    assert_eq!(again.len(), 1500);
}

#[test]
fn equal_seeds_write_the_same_and_other_seeds_do_not() {
    let written = |seed, operation_seed| {
        let folder = tempfile::tempdir().unwrap();
        let spy = Spy::default();
        let settings = Settings {
            seed,
            operation_seed,
            ..small(Workload::FillRandom)
        };
        run_in(&spy, folder.path(), &settings);
        puts(&spy.events())
    };
    let first = written(1, 1);
    assert_eq!(first, written(1, 1));
    assert_ne!(keys(&first), keys(&written(1, 2)));
    assert_ne!(first, written(2, 1));
}

#[test]
fn what_overwrites_differs_from_what_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let spy = Spy::default();
    let mut seen = BTreeSet::new();
    for workload in [
        Workload::FillSeq,
        Workload::Overwrite,
        Workload::Overwrite,
        Workload::Open,
        Workload::ReadRandomWriteRandom,
    ] {
        run_in(&spy, folder.path(), &small(workload));
        let written: BTreeSet<_> = puts(&spy.events()).into_iter().collect();
        assert!(!written.is_empty(), "{workload}");
        let repeated = written.intersection(&seen).count();
        assert_eq!(repeated, 0, "{workload}");
        seen.extend(written);
    }
}

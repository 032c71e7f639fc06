//! The workload `open`.

use super::spy::{Event, Habit, Spy};
use super::{Control, run, run_in, small};
use crate::settings::Workload;

#[test]
fn the_log_is_filled_with_a_larger_memtable_and_replayed_with_the_usual_one() {
    let folder = tempfile::tempdir().unwrap();
    let spy = Spy::default();
    let settings = small(Workload::Open);
    run_in(&spy, folder.path(), &small(Workload::FillSeq));
    spy.events();
    let found = run_in(&spy, folder.path(), &settings);
    let mut memtable = 0;
    let (mut puts, mut bytes) = (0, 0);
    let mut opened = Vec::new();
    for event in spy.events() {
        match event {
            Event::Open(engine) => {
                memtable = engine.memtable_bytes;
                opened.push(memtable);
            }
            Event::Put { key, value, .. } => {
                assert_eq!(memtable, 4 * settings.engine.memtable_bytes);
                puts += 1;
                bytes += (key.len() + value.len()) as u64;
            }
            _ => {}
        }
    }
    assert!(puts > 1000);
    let usual = settings.engine.memtable_bytes;
    assert_eq!(opened, [usual, 4 * usual, usual, usual]);
    let open = found.open.unwrap();
    assert_eq!(open.log_bytes, bytes);
    assert!(open.until_first_read >= found.measured.until_last);
}

#[test]
fn a_log_that_was_flushed_is_not_measured() {
    let folder = tempfile::tempdir().unwrap();
    let spy = Spy::with(Habit::FlushAfter(500));
    run_in(&Spy::default(), folder.path(), &small(Workload::FillSeq));
    let settings = small(Workload::Open);
    let result = run(&spy, folder.path(), &settings, &Control::default(), &|_| {});
    let text = result.map(drop).unwrap_err().to_string();
    assert!(text.contains("tables while its log was filled"), "{text}");
}

#[test]
fn what_was_in_the_log_is_known_to_later_runs() {
    let folder = tempfile::tempdir().unwrap();
    let spy = Spy::default();
    let filled = run_in(&spy, folder.path(), &small(Workload::FillRandom));
    let opened = run_in(&spy, folder.path(), &small(Workload::Open));
    assert!(opened.records > filled.records);
    let read = run_in(&spy, folder.path(), &small(Workload::ReadSeq));
    assert_eq!(Some(read.measured.counts.operations), opened.records);
}

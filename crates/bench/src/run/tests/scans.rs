//! Scans beside a thread that writes.

use std::sync::atomic::AtomicBool;

use crate::engine::{Entries, Result, Session, Write};
use crate::generate::keys::{Keys, MAX_KEY_BYTES};
use crate::generate::pick::{Distribution, Pick};
use crate::generate::random::Stream;
use crate::generate::sizes::Sizes;
use crate::generate::values::Values;
use crate::measure::{Meter, Role};
use crate::run::operations::{Failure, Operation, Seek, Tools, Versions};
use crate::run::population::Population;

const RECORDS: u64 = 10;

/// While a scan runs, another thread puts record 1. The scan gives what it is told to.
struct Beside<'a> {
    population: &'a Population,
    keys: &'a Keys,
    values: &'a Values,
    given: &'a [u64],
}

impl Session for Beside<'_> {
    fn write(&mut self, _writes: &[Write<'_>], _sync: bool) -> Result<()> {
        Ok(())
    }
    fn get(&mut self, _key: &[u8], _found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        Ok(false)
    }
    fn scan(&mut self, _from: Option<&[u8]>, entries: &mut Entries<'_>) -> Result<()> {
        self.population.add(1);
        let (mut key, mut value) = ([0; MAX_KEY_BYTES], Vec::new());
        for &record in self.given {
            self.values.write(record, 0, &mut value);
            if !entries(self.keys.present(record, &mut key), &value) {
                break;
            }
        }
        Ok(())
    }
    fn scan_reverse(&mut self, _from: Option<&[u8]>, _entries: &mut Entries<'_>) -> Result<()> {
        Ok(())
    }
}

/// What a seek of five entries from record 0 says if the scan gives these records, where the even
/// ones were there before.
fn seek(given: &[u64]) -> std::result::Result<(), String> {
    let population = Population::new();
    (0..RECORDS)
        .step_by(2)
        .for_each(|record| population.add(record));
    let keys = Keys::decimal(16, RECORDS).unwrap();
    let values = Values::new(Sizes::Fixed(100), 1.0, 1).unwrap();
    let stream = Stream::new(1, 0, 1).unwrap();
    let meter = Meter::new();
    let stop = AtomicBool::new(false);
    let mut tools = Tools {
        session: Box::new(Beside {
            population: &population,
            keys: &keys,
            values: &values,
            given,
        }),
        keys: &keys,
        values: &values,
        population: &population,
        random: stream.random(),
        sync: false,
        versions: Versions::new(0, 0),
        recorder: meter.recorder(Role::Measured),
        stop: &stop,
        key: Box::new([0; MAX_KEY_BYTES]),
        value: Vec::new(),
        before: Vec::new(),
    };
    let mut operation = Seek {
        pick: Pick::new(&Distribution::Sequential, stream).unwrap(),
        records: RECORDS,
        left: 1,
        nexts: 5,
        others_write: true,
    };
    match operation.step(&mut tools) {
        Ok(_) => Ok(()),
        Err(Failure::Wrong(what)) => Err(what),
        Err(Failure::Engine(error)) => panic!("{error}"),
    }
}

#[test]
fn a_record_that_comes_while_a_scan_runs_may_be_found_or_not() {
    assert_eq!(seek(&[0, 2, 4, 6, 8]), Ok(()));
    assert_eq!(seek(&[0, 1, 2, 4, 6]), Ok(()));
}

#[test]
fn a_scan_beside_a_writer_finds_what_was_there_before_it_began() {
    let left_out = seek(&[0, 4, 6, 8]).unwrap_err();
    assert!(left_out.contains("record 2 comes next"), "{left_out}");
    let ended = seek(&[0, 2, 4]).unwrap_err();
    assert!(ended.contains("ended before record 6"), "{ended}");
    let repeated = seek(&[0, 0, 2, 4, 6]).unwrap_err();
    assert!(repeated.contains("out of order"), "{repeated}");
}

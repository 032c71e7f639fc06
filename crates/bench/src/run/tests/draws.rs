//! Which records are drawn, and what is done with them.

use std::collections::BTreeSet;

use super::spy::{Event, Spy};
use super::{SiltstoneDriver, kinds, run_in, small};
use crate::generate::acknowledged::Acknowledged;
use crate::generate::pick::Pick;
use crate::run::operations::Shared;
use crate::run::team::{self, Member};
use crate::settings::{Amount, Kind, Settings, Workload};

/// The most frequent record of many draws below `records`, among the first `of` records.
fn hottest(pick: &mut Pick, records: u64, of: u64) -> u64 {
    let mut counts = vec![0u32; of as usize];
    for _ in 0..20_000 {
        let record = pick.next(records);
        if let Some(count) = counts.get_mut(record as usize) {
            *count += 1;
        }
    }
    (0..of)
        .max_by_key(|record| counts[*record as usize])
        .unwrap()
}

#[test]
fn hot_records_stay_while_records_are_inserted() {
    for (records, amount, inserts) in [
        (2000, Amount::Seconds(10.0), 1000),
        // The store has more records than the setting, because an earlier run inserted them.
        (3000, Amount::Operations(1000), 100),
    ] {
        let settings = Settings {
            amount: Some(amount),
            ..small(Workload::YcsbE)
        };
        assert_eq!(settings.records, 2000);
        let shared = Shared {
            records: Acknowledged::new(records),
        };
        let member = Member {
            thread: 0,
            threads: 1,
        };
        let mut pick = team::pick(&settings, &shared, member).unwrap();
        let before = hottest(&mut pick, shared.records.count(), records);
        (0..inserts).for_each(|_| shared.records.begin().acknowledge());
        assert_eq!(shared.records.count(), records + inserts);
        let after = hottest(&mut pick, shared.records.count(), records);
        assert_eq!(before, after, "{amount}, {records} records");
    }
}

#[test]
fn peaks_read_and_write() {
    let folder = tempfile::tempdir().unwrap();
    let driver = SiltstoneDriver;
    run_in(&driver, folder.path(), &small(Workload::FillSeq));
    let settings = Settings {
        read_ratio: 0.5,
        ..small(Workload::Peaks)
    };
    let found = run_in(&driver, folder.path(), &settings);
    assert_eq!(kinds(&found), [Kind::Put, Kind::Get]);
    let puts = found.measured.latency[&Kind::Put].count();
    // Half of 1500 operations, with five standard deviations.
    assert!((650..850).contains(&puts), "{puts}");
}

#[test]
fn reads_of_every_record_are_as_many_as_the_setting_says() {
    for (fill, has_all) in [(Workload::FillSeq, true), (Workload::FillRandom, false)] {
        let folder = tempfile::tempdir().unwrap();
        let spy = Spy::default();
        run_in(&spy, folder.path(), &small(fill));
        let settings = Settings {
            amount: Some(Amount::EveryRecord),
            ..small(Workload::ReadRandom)
        };
        let found = run_in(&spy, folder.path(), &settings);
        assert_eq!(found.measured.counts.operations, 2000, "{fill}");
        let events = spy.events();
        let key = |event: &Event| match event {
            Event::Get(key) => Some(key.clone()),
            _ => None,
        };
        // Where records were left out, others come twice.
        let different: BTreeSet<_> = events.iter().filter_map(key).collect();
        assert_eq!(different.len() == 2000, has_all, "{fill}");
    }
}

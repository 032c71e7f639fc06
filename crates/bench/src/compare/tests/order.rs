use super::{SMALL, row, small};
use crate::compare::{Plan, Process, Step};

fn process(plan: &Plan, name: &str, engine: usize, round: u32) -> Process {
    Process {
        row: row(plan, name),
        engine,
        round,
    }
}

#[test]
fn rounds_are_interleaved_and_rows_that_write_come_last() {
    let plan = small();
    let all: Vec<String> = plan.processes().into_iter().map(|p| plan.id(p)).collect();
    let expected = [
        "128.fillseq.siltstone.1",
        "128.fillseq.rocksdb.1",
        "128.fillrandom.siltstone.1",
        "128.fillrandom.rocksdb.1",
        "128.fillrandom.rocksdb.2",
        "128.fillrandom.siltstone.2",
        "128.fillrandom.siltstone.3",
        "128.fillrandom.rocksdb.3",
        "128.seekrandom-10.rocksdb.1",
        "128.seekrandom-10.siltstone.1",
        "128.seekrandom-10.rocksdb-mmap.1",
        "128.seekrandom-10.rocksdb-mmap.2",
        "128.seekrandom-10.siltstone.2",
        "128.seekrandom-10.rocksdb.2",
    ];
    assert_eq!(all[..expected.len()], expected);
    let last: Vec<&String> = all.iter().rev().take(6).rev().collect();
    assert_eq!(
        last,
        [
            "128.overwrite.siltstone.1",
            "128.overwrite.rocksdb.1",
            "128.overwrite.rocksdb.2",
            "128.overwrite.siltstone.2",
            "128.readwhilewriting.siltstone.1",
            "128.readwhilewriting.rocksdb.1",
        ]
    );
}

/// A plan whose row has this many engines beside the first one, and this many rounds.
fn with_others(others: usize, pairs: u32) -> Plan {
    let mut text = "title = \"x\"\n[[engine]]\nname = \"siltstone\"\n".to_string();
    for other in 0..others {
        text.push_str(&format!("[[engine]]\nname = \"e{other}\"\n"));
    }
    text.push_str("[[store]]\nname = \"s\"\nworkload = \"fillrandom\"\nrecords = 1000\n");
    text.push_str("[[row]]\nstore = \"s\"\nworkload = \"fillrandom\"\n");
    text.push_str(&format!("pairs = {pairs}\n"));
    Plan::parse("plans/x.toml", &text).unwrap()
}

/// For each other engine: in how many rounds it is next to the first one, and in how many of them
/// it is before the first one.
fn neighbours(plan: &Plan, others: usize) -> Vec<(u32, u32)> {
    let all = plan.processes();
    let mut found = vec![(0, 0); others];
    for round in all.chunks(others + 1) {
        assert!(round.iter().all(|process| process.round == round[0].round));
        let first = round
            .iter()
            .position(|process| process.engine == 0)
            .unwrap();
        for (position, process) in round.iter().enumerate() {
            if position != first {
                let (next, before) = &mut found[process.engine - 1];
                *next += u32::from(position.abs_diff(first) == 1);
                *before += u32::from(position < first);
            }
        }
    }
    found
}

#[test]
fn each_engine_is_next_to_the_first_one_equally_often() {
    for others in 1..=7usize {
        let pairs = others as u32 * 2;
        let found = neighbours(&with_others(others, pairs), others);
        for (next, before) in &found {
            let expected = if others == 1 { 2 } else { 4 };
            assert_eq!(*next, expected, "{others} others: {found:?}");
            assert_eq!(before * 2, pairs, "{others} others: {found:?}");
        }
    }
    // In the rounds that the standard comparison has, it is as even as can be.
    for (others, pairs, least) in [(6, 5, 1), (5, 5, 2), (5, 3, 1), (4, 5, 2), (4, 3, 1)] {
        let found = neighbours(&with_others(others, pairs), others);
        assert!(found.iter().all(|(next, _)| *next >= least), "{found:?}");
    }
}

#[test]
fn every_process_finds_the_store_that_the_others_find() {
    let plan = small();
    let overwrite = Step::Row(row(&plan, "overwrite"));
    let needs = |name: &str, round| plan.needs(process(&plan, name, 1, round));
    assert_eq!(needs("fillrandom", 1), None);
    assert_eq!(needs("seekrandom-100", 2), Some(vec![Step::Fill]));
    assert_eq!(needs("overwrite", 1), Some(vec![Step::Fill]));
    assert_eq!(needs("overwrite", 2), Some(vec![Step::Fill, overwrite]));
    let after = vec![Step::Fill, overwrite, overwrite];
    assert_eq!(needs("readwhilewriting", 1), Some(after.clone()));
    assert_eq!(plan.history_text(&after), "fill, overwrite, overwrite");
    let leaves = |name: &str| plan.leaves(process(&plan, name, 1, 1));
    assert_eq!(leaves("fillrandom"), Some(vec![Step::Fill]));
    assert_eq!(leaves("fillseq"), None);
    assert_eq!(leaves("overwrite"), Some(vec![Step::Fill, overwrite]));
    assert_eq!(leaves("seekrandom-10"), Some(vec![Step::Fill]));
}

#[test]
fn each_round_of_a_compaction_finds_the_store_that_the_first_one_found() {
    let compact = "store = \"128\"\nworkload = \"compact\"\npairs = 2\n\
         engines = [\"siltstone\", \"rocksdb\"]\n\n[[row]]\nstore = \"128\"\n\
         workload = \"overwrite\"";
    let text = SMALL.replace("store = \"128\"\nworkload = \"overwrite\"", compact);
    let plan = Plan::parse("plans/x.toml", &text).unwrap();
    let step = Step::Row(row(&plan, "compact"));
    for round in 1..=2 {
        let compaction = process(&plan, "compact", 1, round);
        assert_eq!(plan.needs(compaction), Some(vec![Step::Fill]));
        assert_eq!(plan.leaves(compaction), Some(vec![Step::Fill, step]));
    }
    let later = process(&plan, "overwrite", 1, 1);
    assert_eq!(plan.needs(later), Some(vec![Step::Fill, step]));
    // The second round fills the store again: 10,000 records at 500 a second, and 1.6 s for the
    // process.
    let preparation = |round| {
        let all = [1, 2].map(|round| process(&plan, "compact", 1, round));
        let forecast = plan.forecast(&all[..round], |_| Some(vec![Step::Fill]));
        forecast.seconds
    };
    let second = preparation(2) - preparation(1) - plan.seconds(process(&plan, "compact", 1, 2));
    assert!((second - 21.6).abs() < 0.01, "{second}");
}

#[test]
fn an_engine_that_took_no_part_in_a_row_that_writes_has_its_writes_done() {
    let both = "engines = [\"siltstone\", \"rocksdb\"]\namount = 1_000";
    let text = SMALL.replace(both, "engines = [\"siltstone\"]\namount = 1_000");
    let plan = Plan::parse("plans/x.toml", &text).unwrap();
    let last = |engine| process(&plan, "readwhilewriting", engine, 1);
    assert_eq!(plan.needs(last(0)), plan.needs(last(1)));
    assert_eq!(plan.needs(last(1)).unwrap().len(), 3);
    // Two overwrites of 1000 records at the assumed rate, and 1.6 s for each process.
    let fill = vec![Step::Fill];
    let seconds = |known: Vec<Step>| plan.forecast(&[last(1)], |_| Some(known.clone())).seconds;
    let needed = plan.needs(last(1)).unwrap();
    let more = seconds(fill) - seconds(needed);
    assert!((more - 3.22).abs() < 0.001, "{more}");
}

#[test]
fn an_uninterrupted_run_never_prepares_a_store_that_a_row_fills() {
    let plan = small();
    let mut histories = std::collections::BTreeMap::new();
    for process in plan.processes() {
        let owner = plan.owner(process.engine);
        if let Some(needs) = plan.needs(process) {
            assert_eq!(histories.get(&owner), Some(&needs), "{}", plan.id(process));
        }
        if let Some(leaves) = plan.leaves(process) {
            histories.insert(owner, leaves);
        }
    }
}

#[test]
fn a_store_is_deleted_after_its_last_use() {
    let plan = small();
    let all = plan.processes();
    let last = |name: &str, engine, round| {
        let process = process(&plan, name, engine, round);
        let position = all.iter().position(|p| *p == process).unwrap();
        plan.is_last_use(process, &all[position + 1..])
    };
    assert!(last("fillseq", 0, 1), "it has a store of its own");
    assert!(!last("fillrandom", 0, 3));
    assert!(!last("seekrandom-100", 2, 2), "rocksdb goes on with it");
    assert!(!last("overwrite", 1, 2));
    assert!(last("readwhilewriting", 0, 1));
}

#[test]
fn a_fill_of_another_kind_has_a_store_of_its_own() {
    let plan = small();
    let name = |name: &str| plan.store_name(process(&plan, name, 0, 1));
    assert_eq!(name("fillseq"), "128.fillseq");
    assert_eq!(name("fillrandom"), "128");
    assert_eq!(name("overwrite"), "128");
}

#[test]
fn the_forecast_has_the_time_of_all_rows_and_the_fills_that_are_missing() {
    let plan = small();
    let all = plan.processes();
    let forecast = plan.forecast(&all, |_| None);
    assert_eq!(forecast.rows.len(), plan.rows.len());
    let seconds = |name: &str| {
        let rows = forecast.rows.iter();
        let found = rows.clone().find(|f| f.row == row(&plan, name));
        found.unwrap().seconds
    };
    // Three rounds of 10 s and 20 s, 1.6 s for each process, and little for the pages.
    let fill = seconds("fillrandom");
    assert!((99.6..99.7).contains(&fill), "{fill}");
    // Two rounds, three engines, two seconds and 1.6 more for each process.
    let seek = seconds("seekrandom-10");
    assert!((seek - 21.6).abs() < 1e-9, "{seek}");

    let reads: Vec<Process> = all
        .iter()
        .copied()
        .filter(|p| p.row == row(&plan, "seekrandom-10"))
        .collect();
    let with_fills = plan.forecast(&reads, |_| None).seconds;
    let filled = plan.forecast(&reads, |_| Some(vec![Step::Fill])).seconds;
    assert!((filled - 21.6).abs() < 1e-9, "{filled}");
    // One fill of siltstone, and one of rocksdb, which the engine with maps reads too.
    assert!((with_fills - filled - 33.2).abs() < 0.1, "{with_fills}");
}

#[test]
fn the_disk_holds_the_stores_of_all_engines_and_one_more() {
    let plan = small();
    let forecast = plan.forecast(&plan.processes(), |_| None);
    let beside = 768 << 20;
    let records = 10_000.0 * 144.0 * 0.632 * 1.6;
    let two = 2 * (beside + records as u64);
    assert!(forecast.disk_bytes >= two, "{}", forecast.disk_bytes);
    assert!(
        forecast.disk_bytes < two + two / 2,
        "{}",
        forecast.disk_bytes
    );
    let fillseq = forecast.rows[0];
    assert!(fillseq.disk_bytes < two, "{}", fillseq.disk_bytes);
}

#[test]
fn no_process_is_ended_before_it_can_be_done() {
    assert_eq!(Plan::deadline_s(1.0), 300.0);
    assert_eq!(Plan::deadline_s(1000.0), 8000.0);
}

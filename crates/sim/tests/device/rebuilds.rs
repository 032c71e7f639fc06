//! Jobs for which the host decides what is kept and the device makes the tables, over links that
//! are cut and carry requests twice or late. Neither side is killed, so every such job succeeds
//! with the tables of the host's cores. Each piece of the survivors is taken once, in order, and
//! waits while the device has no room for it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use siltstone_device::{ClientOptions, Device, FolderWanted, SeparatedExecutor};
use siltstone_sim::coverage::Coverage;
use siltstone_sim::remote::{Act, Ghost, Machine, Tap, address};
use siltstone_sim::rng::Rng;
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::link::{MemoryNetwork, Network};
use siltstone_storage::{Epoch, MemoryStorage, OpKind, Runtime, Storage};
use siltstone_table::exec::{CpuExecutor, Executor};

use super::jobs::{Faults, INPUT, MOMENTS, Work, add_rule, context, faulty, work, write_input};
use super::tables::files;
use super::{good_link, simulated};

/// Draws a job of one to three subjobs.
fn a_work(runtime: &Runtime, rng: &mut Rng, coverage: &mut Coverage) -> Work {
    let entries = 300 + rng.below(1500) as u16;
    let mut work = work(runtime, entries);
    let cuts = rng.below(3) as u16;
    if cuts > 0 {
        coverage.add("rebuilds.divided");
    }
    let cut = |n: u16| (n * (entries / (cuts + 1))).to_be_bytes().to_vec();
    work.job.hard_cuts = (1..=cuts).map(cut).collect();
    work
}

/// The tables that the host's cores make.
pub fn expected(runtime: &Runtime, work: &Work) -> Vec<Vec<u8>> {
    let own = Arc::new(MemoryStorage::new(runtime));
    write_input(&*own, Epoch(3), work).expect("free");
    let of: Arc<dyn Storage> = own.clone();
    let here = context(runtime, &of, Epoch(3)).expect("the input");
    let outcome = CpuExecutor.run(&work.job, &here).expect("a sound job");
    files(&*own, &outcome)
}

pub fn trial(seed: u64) -> Coverage {
    simulated(seed, 6_000_000, move |runtime| {
        let mut rng = Rng::new(seed ^ 0x2EB1);
        let mut coverage = Coverage::default();
        let network = MemoryNetwork::new(&runtime);
        network.set_faults(good_link());
        let acts = [Act::Cut, Act::CutWithin, Act::Double];
        let tap = Tap::new(&runtime, &network, seed, &acts);
        let nth = 1 + rng.below(20);
        tap.aim(*rng.pick(&acts), *rng.pick(&MOMENTS), "survivors", nth);
        let faults = Faults::default();
        let machine = Machine::start(&runtime, &tap, faulty(&runtime, &faults));
        let folder = FolderWanted::Named {
            name: "db".into(),
            create: true,
        };
        let link: Arc<dyn Network> = Arc::new(tap.clone());
        let options = ClientOptions {
            time_limit: Duration::from_secs(60),
            ..ClientOptions::default()
        };
        let device = Device::connect(&runtime, link, address(), folder, options);
        let device = device.expect("a session");
        let storage: Arc<dyn Storage> = device.storage();
        let lease = storage.lease("store").expect("free");
        let work = a_work(&runtime, &mut rng, &mut coverage);
        write_input(&*storage, lease.epoch(), &work).expect("room");
        if rng.chance(50) {
            // The device makes tables more slowly than the host plans them, so there is no room for
            // survivors.
            let delay = Fault::Delay(Duration::from_millis(300));
            let rule = Rule::on(OpKind::Append, delay).ending(".tbl").for_good();
            add_rule(&faults, rule);
            coverage.add("rebuilds.slow");
        }
        let is_over = Arc::new(runtime.mutex(false));
        let ghost = {
            let (rt, is_over) = (runtime.clone(), is_over.clone());
            let mut ghost = Ghost::new(&runtime, &tap, seed);
            let haunt = move || {
                while !*is_over.lock() {
                    ghost.haunt(20);
                    rt.sleep(Duration::from_millis(20));
                }
                ghost.into_coverage()
            };
            runtime.spawn("ghost", haunt).expect("a task")
        };
        let executor = SeparatedExecutor::new(&device).always();
        let executor = executor.cut_into(1 + rng.index(4), 4 + rng.index(12));
        let here = context(&runtime, &storage, lease.epoch()).expect("the input");
        let outcome = executor.run(&work.job, &here);
        let outcome = outcome.expect("a link with faults fails no job");
        coverage.add("rebuilds.done");
        assert!(files(&*storage, &outcome) == expected(&runtime, &work));
        *is_over.lock() = true;
        coverage.merge(&ghost.join().expect("the ghost's task"));
        tap.end();
        runtime.sleep(Duration::from_secs(5));
        let of_outcome = outcome.tables.iter().map(|table| table.name.clone());
        let of_outcome: BTreeSet<String> = of_outcome.chain([INPUT.to_string()]).collect();
        let listed = machine.folders().folder("db").list().expect("a list");
        let listed: BTreeSet<String> = listed.into_iter().map(|object| object.name).collect();
        assert_eq!(listed, of_outcome);
        device.close();
        assert_eq!(machine.watch().wrong(), Vec::<String>::new());
        coverage.merge(&tap.coverage());
        coverage
    })
}

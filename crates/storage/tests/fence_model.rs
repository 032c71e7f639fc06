//! Exhaustive tests of leases and epochs (rule S3), with holders that are paused anywhere for any
//! time.
//!
//! Every holder has a program of storage calls, one of which takes the lease. All interleavings of
//! two or three programs run on the real [`MemoryStorage`]; a holder is paused while the others
//! run. After every call the result is compared with the rule. While leases expire, a lease is
//! always granted, with an epoch above all earlier ones. A changing call succeeds if and only if
//! its epoch is the newest; otherwise it is `Fenced`, and nothing in the storage has changed. While
//! leases do not expire, one is granted if and only if nobody holds it.
//!
//! To show that the comparison finds violations, one test lets one kind of call carry the newest
//! epoch instead of its holder's, as if the storage did not fence it. For each kind, some
//! interleaving must detect it.

#[path = "common/fences.rs"]
mod fences;

use std::sync::Arc;

use fences::{
    Contents, KEEPER, Place, RECYCLER, SHORT, Seen, Step, WITH_EPOCH, WRITER, contents, play,
};
use siltstone_storage::{Lease, MemoryStorage, Runtime, Storage};

/// The storage in memory, whose leases expire at once.
struct Memory(Arc<MemoryStorage>);

impl Place for Memory {
    fn storage(&self, _: usize) -> Arc<dyn Storage> {
        self.0.clone()
    }
    fn lease(&self, _: usize, _: bool) -> siltstone_storage::Result<Box<dyn Lease>> {
        self.0.lease("store")
    }
    fn contents(&self) -> Contents {
        contents(&self.0)
    }
}

/// Runs all interleavings.
fn explore(programs: &[&[Step]], expire: bool, unfenced: Option<Step>) -> Result<Seen, String> {
    fn go(
        programs: &[&[Step]],
        order: &mut Vec<usize>,
        left: &mut [usize],
        run: &mut impl FnMut(&[usize]) -> Result<(), String>,
    ) -> Result<(), String> {
        if left.iter().all(|count| *count == 0) {
            return run(order);
        }
        for number in 0..programs.len() {
            if left[number] > 0 {
                left[number] -= 1;
                order.push(number);
                let result = go(programs, order, left, run);
                order.pop();
                left[number] += 1;
                result?;
            }
        }
        Ok(())
    }
    let mut seen = Seen::default();
    let mut left: Vec<usize> = programs.iter().map(|program| program.len()).collect();
    go(programs, &mut Vec::new(), &mut left, &mut |order| {
        let storage = Arc::new(MemoryStorage::new(&Runtime::threads()));
        storage.set_leases_expire(expire);
        play(
            &Memory(storage),
            programs,
            order,
            expire,
            unfenced,
            &mut seen,
        )
    })?;
    Ok(seen)
}

#[test]
fn only_the_newest_epoch_changes_anything() {
    let pairs = [[WRITER, WRITER], [WRITER, KEEPER], [KEEPER, RECYCLER]];
    for pair in pairs {
        let seen = explore(&pair, true, None).unwrap_or_else(|e| panic!("{e}"));
        assert!(seen.runs > 1000 && seen.fenced > 100 && seen.taken_over > 100);
    }
    let seen = explore(&SHORT, true, None).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(seen.runs, 34_650);
    println!(
        "{} interleavings of three, {} leases taken over, {} fenced",
        seen.runs, seen.taken_over, seen.fenced
    );
}

#[test]
fn a_lease_that_does_not_expire_has_one_holder() {
    for pair in [[WRITER, KEEPER], [KEEPER, RECYCLER]] {
        let seen = explore(&pair, false, None).unwrap_or_else(|e| panic!("{e}"));
        assert!(seen.refused > 100 && seen.taken_over == 0);
    }
}

#[test]
fn a_call_that_is_not_fenced_is_found() {
    let all: [&[Step]; 4] = [WRITER, KEEPER, RECYCLER, SHORT[2]];
    for unfenced in WITH_EPOCH {
        let found = all.iter().any(|program| {
            program.contains(&unfenced)
                && explore(&[program, &[Step::Lease]], true, Some(unfenced)).is_err()
        });
        assert!(found, "{unfenced:?} without a fence is not noticed");
    }
}

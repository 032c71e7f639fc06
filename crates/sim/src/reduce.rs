//! Reduces a failing seed: fewer operations, fewer and shorter keys, smaller values. The result is
//! printed as a test that can be pasted into the sources.
//!
//! A [`Cut`] says which parts of a run are left out. Each operation of a client draws from random
//! numbers of its own, so leaving one out does not change the others. [`reduce`] leaves out as much
//! as it can while the seed still fails: first all clients of a life, then smaller and smaller
//! groups of operations (ddmin). Then it tries short keys and small values.
//!
//! Invariants: the same seed and cut give the same run. A run with a cut may fail differently than
//! the whole run; the printed text says how.
//!
//! Threading: each thread has its own cut. A simulated run has a thread of its own, to which the
//! cut is passed ([`InForce`]).

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, MutexGuard};

/// One operation of a run: the call of `Run::work` (from 0), the client, and the number of its
/// operation.
pub type Place = (u32, u32, u32);

/// The part of a run that is executed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Only these operations. `None` for all.
    pub only: Option<BTreeSet<Place>>,
    /// Keys are replaced by short ones, in the same order.
    pub short_keys: bool,
    /// The maximum size of values in bytes. 0 means that values have their drawn sizes.
    pub value_bytes_max: u64,
}

/// A cut that is in force, and the operations that were done under it.
#[derive(Clone, Debug, Default)]
pub struct InForce {
    /// The cut.
    pub cut: Cut,
    done: Arc<Mutex<BTreeMap<Place, String>>>,
}

thread_local! {
    static IN_FORCE: RefCell<InForce> = RefCell::new(InForce::default());
    /// The number of all calls of `Run::work` so far.
    static NAMES: RefCell<BTreeMap<Place, String>> = const { RefCell::new(BTreeMap::new()) };
}

impl InForce {
    /// The cut of this thread.
    pub fn present() -> InForce {
        IN_FORCE.with_borrow(Clone::clone)
    }

    /// Makes this the cut of the calling thread. The thread of a simulated run calls this.
    pub fn take_along(self) {
        IN_FORCE.set(self);
    }

    fn done(&self) -> MutexGuard<'_, BTreeMap<Place, String>> {
        self.done.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Whether the cut keeps an operation. If so, the operation is recorded.
    pub(crate) fn keeps(&self, place: Place, what: impl FnOnce() -> String) -> bool {
        let only = self.cut.only.as_ref();
        let kept = only.is_none_or(|only| only.contains(&place));
        if kept {
            self.done().insert(place, what());
        }
        kept
    }
}

impl Cut {
    /// A cut that leaves only these operations.
    pub fn only(places: &[Place]) -> Cut {
        Cut {
            only: Some(places.iter().copied().collect()),
            ..Cut::default()
        }
    }

    /// Runs `trial` with this cut.
    pub fn during<T>(&self, trial: impl FnOnce() -> T) -> T {
        self.watched(trial).0
    }

    /// Runs `trial` with this cut, and returns the operations that were done.
    fn watched<T>(&self, trial: impl FnOnce() -> T) -> (T, BTreeSet<Place>) {
        struct Back(InForce);
        impl Drop for Back {
            fn drop(&mut self) {
                IN_FORCE.set(std::mem::take(&mut self.0));
            }
        }
        let own = InForce {
            cut: self.clone(),
            ..InForce::default()
        };
        let _back = Back(IN_FORCE.replace(own.clone()));
        let value = trial();
        let done = own.done().clone();
        let places = done.keys().copied().collect();
        NAMES.with_borrow_mut(|names| names.extend(done));
        (value, places)
    }
}

impl fmt::Display for Cut {
    /// The cut as Rust code.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Cut {{")?;
        writeln!(f, "            short_keys: {},", self.short_keys)?;
        writeln!(f, "            value_bytes_max: {},", self.value_bytes_max)?;
        let Some(only) = &self.only else {
            return write!(f, "            only: None,\n        }}");
        };
        let names = NAMES.with_borrow(Clone::clone);
        writeln!(f, "            ..siltstone_sim::reduce::Cut::only(&[")?;
        for place in only {
            let what = names.get(place);
            let what = what.map_or(String::new(), |what| format!(" // {what}"));
            writeln!(f, "                {place:?},{what}")?;
        }
        write!(f, "            ])\n        }}")
    }
}

/// Reduces a failing run. `fails` runs it under the cut in force and returns the failure, if it
/// fails. Returns the smallest cut that was found and its failure, or `None` if the whole run does
/// not fail. It runs `fails` at most `runs_max` times.
pub fn reduce(runs_max: u64, fails: impl Fn() -> Option<String>) -> Option<(Cut, String)> {
    let mut left = runs_max;
    let mut attempt = |cut: &Cut| {
        left = left.checked_sub(1)?;
        let (failure, done) = cut.watched(&fails);
        Some((failure?, done))
    };
    let mut best = Cut::default();
    let (mut how, mut places): (String, BTreeSet<Place>) = attempt(&best)?;
    best.only = Some(places.clone());
    // Groups of operations, from halves down to single ones.
    let mut parts = 2;
    while places.len() > 1 {
        let size = places.len().div_ceil(parts);
        let all: Vec<Place> = places.iter().copied().collect();
        let smaller = all.chunks(size).find_map(|out| {
            let out: BTreeSet<&Place> = out.iter().collect();
            let only: BTreeSet<Place> = all.iter().filter(|p| !out.contains(p)).copied().collect();
            let cut = Cut {
                only: Some(only),
                ..best.clone()
            };
            let (failure, done) = attempt(&cut)?;
            Some((cut, failure, done))
        });
        match smaller {
            Some((cut, failure, done)) => {
                best = cut;
                (how, places) = (failure, done);
                parts = (parts - 1).max(2);
            }
            None if size == 1 => break,
            None => parts = (parts * 2).min(places.len()),
        }
    }
    best.only = Some(places);
    let short = Cut {
        short_keys: true,
        ..best.clone()
    };
    if let Some((failure, _)) = attempt(&short) {
        (best, how) = (short, failure);
    }
    for value_bytes_max in [8, 100, 1000] {
        let small = Cut {
            value_bytes_max,
            ..best.clone()
        };
        if let Some((failure, _)) = attempt(&small) {
            (best, how) = (small, failure);
            break;
        }
    }
    Some((best, how))
}

/// A reduced seed as a test that can be pasted into `crates/sim/tests/trials.rs`.
pub fn as_test(trial: &str, seed: u64, cut: &Cut, how: &str) -> String {
    let mut text = String::new();
    // Leave out the stack, and the middle of long lines (options, which the seed determines
    // anyway).
    let is_frame = |line: &str| {
        let line = line.trim_start();
        line.starts_with("at ")
            || line
                .split(':')
                .next()
                .is_some_and(|n| n.parse::<u32>().is_ok())
    };
    for line in how.lines().filter(|line| !is_frame(line)).take(6) {
        let all: Vec<char> = line.chars().collect();
        let line: String = match all.len() {
            0..500 => all.iter().collect(),
            len => all[..120]
                .iter()
                .chain(&[' ', '.', '.', ' '])
                .chain(&all[len - 360..])
                .collect(),
        };
        let _ = writeln!(text, "    /// {line}");
    }
    let _ = write!(
        text,
        "    #[test]\n    fn {trial}_{seed}() {{\n        let cut = \
        siltstone_sim::reduce::{cut};\n        cut.during(|| {trial}({seed}));\n    }}\n"
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of 40 operations that fails if two particular operations are done, unless values are
    /// tiny.
    fn fails() -> Option<String> {
        // This runs in a thread of its own, like a simulated run.
        let own = InForce::present();
        let run = std::thread::spawn(move || {
            own.take_along();
            let own = InForce::present();
            let done = (0..40).filter(|i| own.keeps((0, i % 3, *i), || format!("op {i}")));
            (done.collect::<Vec<u32>>(), own.cut)
        });
        let (done, cut) = run.join().unwrap();
        let small = cut.value_bytes_max != 0 && cut.value_bytes_max < 50;
        (done.contains(&7) && done.contains(&31) && !small).then(|| format!("{} done", done.len()))
    }

    #[test]
    fn what_is_not_needed_is_left_out() {
        let (cut, how) = reduce(1000, fails).unwrap();
        assert_eq!(how, "2 done");
        let wanted = Cut {
            short_keys: true,
            value_bytes_max: 100,
            ..Cut::only(&[(0, 1, 7), (0, 1, 31)])
        };
        assert_eq!(cut, wanted);
        assert_eq!(InForce::present().cut, Cut::default());
        let test = as_test("a_trial", 9, &cut, &how);
        assert!(test.contains("(0, 1, 31), // op 31"), "{test}");
        assert!(test.contains("cut.during(|| a_trial(9));"), "{test}");
        let long = format!(
            "life 0, {}: the end\n   3: main\n      at here\nmore",
            "x".repeat(900)
        );
        let test = as_test("a_trial", 9, &cut, &long);
        assert!(
            test.contains(": the end\n    /// more\n    #[test]"),
            "{test}"
        );
    }

    #[test]
    fn what_does_not_fail_is_not_reduced() {
        assert_eq!(reduce(10, || None), None);
        // The reduction ends when its runs are used up.
        assert!(reduce(3, fails).is_some());
    }
}

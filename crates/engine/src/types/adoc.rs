//! The tuning of the policy `adoc`: how many compactions run at once, and how large memtables are.
//!
//! ADOC (Yu et al., FAST 2023) sees a stall as an overflow of data between two parts of the tree:
//! from memtables to level 0, from level 0 to level 1, or below. It answers by shifting threads and
//! the size of memtables, and slows writers down only where this is not enough. [`tune`] is one
//! step of that, which maintenance takes once a second.
//!
//! Threading: a pure function.

use crate::types::pressure::{Limits, Load};

/// The smallest and the largest memtable, as powers of two of `memtable_bytes`.
pub const SHIFTS: std::ops::RangeInclusive<i8> = -2..=3;

/// What ADOC has set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Tuning {
    /// The most compactions that run at once on the host.
    pub compactions: u32,
    /// A memtable has `memtable_bytes` times two to this power.
    pub memtable_shift: i8,
}

/// An overflow, in the order in which they are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Overflow {
    /// Memtables fill faster than they are flushed.
    Memory,
    /// Compactions have too much to read.
    Pending,
    /// Level 0 gets deep.
    Level0,
}

/// The overflow of a keyspace with this load, if there is one.
pub fn overflow(load: &Load, limits: &Limits) -> Option<Overflow> {
    let causes = [
        (
            load.sealed_memtable_count > 0
                && load.sealed_memtable_count + 1 >= limits.sealed_memtables,
            Overflow::Memory,
        ),
        (
            load.pending_bytes >= (limits.pending_slowdown / 2).max(1),
            Overflow::Pending,
        ),
        (load.l0_depth >= limits.l0_slowdown, Overflow::Level0),
    ];
    causes
        .into_iter()
        .find(|(is, _)| *is)
        .map(|(_, cause)| cause)
}

/// The next tuning. Without an overflow it goes one step back towards `usual`. `compactions_max` is
/// at least 1.
pub fn tune(
    now: Tuning,
    overflow: Option<Overflow>,
    usual: Tuning,
    compactions_max: u32,
) -> Tuning {
    let toward = |now: i64, usual: i64| now + (usual - now).signum();
    let (compactions, shift) = (i64::from(now.compactions), i64::from(now.memtable_shift));
    let (compactions, shift) = match overflow {
        // Flushes need the disk and the cores more than compactions do, and a larger memtable takes
        // the burst.
        Some(Overflow::Memory) => (compactions - 1, shift + 1),
        Some(Overflow::Pending) => (compactions + 1, shift - 1),
        Some(Overflow::Level0) => (compactions + 1, shift),
        None => (
            toward(compactions, usual.compactions.into()),
            toward(shift, usual.memtable_shift.into()),
        ),
    };
    let (least, most) = (i64::from(*SHIFTS.start()), i64::from(*SHIFTS.end()));
    Tuning {
        compactions: compactions.clamp(1, compactions_max.max(1).into()) as u32,
        memtable_shift: shift.clamp(least, most) as i8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::options::{Options, StallPolicy};

    const USUAL: Tuning = Tuning {
        compactions: 2,
        memtable_shift: 0,
    };

    fn limits() -> Limits {
        let options = Options {
            stall_policy: StallPolicy::Adoc,
            ..Options::default()
        };
        Limits::of(&options.keyspace_defaults(), &options)
    }

    #[test]
    fn the_first_overflow_decides() {
        let of = |load: Load| overflow(&load, &limits());
        assert_eq!(of(Load::default()), None);
        let deep = Load {
            l0_depth: 20,
            ..Load::default()
        };
        assert_eq!(of(deep), Some(Overflow::Level0));
        let pending = Load {
            pending_bytes: 32 << 30,
            ..deep
        };
        assert_eq!(of(pending), Some(Overflow::Pending));
        let full = Load {
            sealed_memtable_count: 2,
            ..pending
        };
        assert_eq!(of(full), Some(Overflow::Memory));
    }

    #[test]
    fn tuning_stays_in_its_bounds_and_comes_back() {
        let mut now = USUAL;
        let step = |now: &mut Tuning, overflow| *now = tune(*now, overflow, USUAL, 4);
        for _ in 0..9 {
            step(&mut now, Some(Overflow::Memory));
        }
        assert_eq!((now.compactions, now.memtable_shift), (1, 3));
        for _ in 0..9 {
            step(&mut now, Some(Overflow::Pending));
        }
        assert_eq!((now.compactions, now.memtable_shift), (4, -2));
        step(&mut now, Some(Overflow::Level0));
        assert_eq!((now.compactions, now.memtable_shift), (4, -2));
        step(&mut now, None);
        assert_eq!((now.compactions, now.memtable_shift), (3, -1));
        for _ in 0..9 {
            step(&mut now, None);
        }
        assert_eq!(now, USUAL);
    }
}

//! How fast a keyspace that is slowed down takes batches: bytes a second that fall with the distance to its limits, shared fairly.
//!
//! What it is: a [`RateLimit`] is a keyspace's admission while `stall_policy` is `slowdown` and
//! [`crate::types::pressure::decide`] says `Slow`. Its rate is `base * 4/5^(debt - debt at the
//! beginning) * (1 - pressure)`: *base* is the speed at which writers filled memtables before they
//! were slowed down, *debt* counts what is not in a level yet (sealed memtables and level-0 runs),
//! *pressure* is how far the load has come from where slowing begins to where writers stop. So it
//! begins with hardly any delay, and each memtable that is filled faster than one is compacted
//! takes a fifth of the speed away, until both are alike. (RocksDB's write controller multiplies
//! its rate by 0.8 and 1.25 as debt grows and shrinks, from a configured speed. Here each unit of
//! debt counts once in both directions: the rate depends on where the store is, not on how it came
//! there, and needs no setting.)
//!
//! Bytes are paid for after they were admitted: who finds no debt goes at once, and the next ones wait for it. Among those who wait, the one goes
//! first whose batch would have been through first had each had a channel of its own (start-time fair queueing): a writer of large batches
//! gets as many bytes as one of small ones, and nobody starves, because everybody's turn is fixed when he comes.
//!
//! Invariants: over any span of time, what is admitted is at most the highest rate in it times the span, [`BURST`] of it, and one batch. The
//! rate never falls below [`LEAST_BYTES_PER_S`].
//!
//! Threading: plain values, under the lock of `Stalls`; time comes from the caller.

use std::collections::BTreeSet;
use std::time::Duration;

use siltstone_storage::Instant;

use crate::types::pressure::Nearness;

/// What may be admitted at once after a pause, as time at the full rate.
const BURST: Duration = Duration::from_millis(5);

/// Debt that nobody waits for, as time: waits shorter than this cost more than they slow.
const IGNORED: Duration = Duration::from_millis(1);

/// How long nobody must have been slowed down for the next slowdown to begin anew, from what writers did since.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(1);

/// The rate's lower bound: a writer makes progress whatever the debt.
const LEAST_BYTES_PER_S: u64 = 16 << 10;

/// The base's bounds and its value before any memtable was filled, in memtables a second. Without the upper one a memtable that was filled in no
/// time at all would mean that nothing is slowed.
const BASE_MEMTABLES_PER_S: std::ops::RangeInclusive<f64> = 0.25..=16.0;
const UNMEASURED_MEMTABLES_PER_S: f64 = 1.0;

/// Memtables whose filling is remembered; the fastest counts, because most are filled with pauses.
const REMEMBERED: usize = 4;

/// What a batch costs beside its bytes, so that empty ones are not free.
const BATCH_BYTES: u64 = 64;

const NANOS: i128 = 1_000_000_000;

/// What a writer is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Go on; the bytes are counted.
    Go,
    /// Ask again after this long, or when somebody else went.
    Wait(Duration),
}

/// A writer's place among those who wait: when it would be through, and a number of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64, u64);

/// A slowdown, from its first writer on.
#[derive(Clone, Copy)]
struct Episode {
    base_bytes_per_s: u64,
    debt_count: u64,
    asked: Instant,
}

/// See the module.
pub(crate) struct RateLimit {
    /// Bytes a second at which the last memtables were filled while nobody was slowed.
    filled: Vec<u64>,
    /// When the present memtable began.
    began: Instant,
    /// Whether somebody was slowed since.
    slowed: bool,
    episode: Option<Episode>,
    /// Bytes times 10^9; negative is debt.
    tokens: i128,
    tokens_at: Instant,
    /// The turn of who went last.
    turn: u64,
    next_number: u64,
    waiting: BTreeSet<Ticket>,
}

impl RateLimit {
    pub(crate) fn new(now: Instant) -> RateLimit {
        RateLimit {
            filled: Vec::new(),
            began: now,
            slowed: false,
            episode: None,
            tokens: 0,
            tokens_at: now,
            turn: 0,
            next_number: 0,
            waiting: BTreeSet::new(),
        }
    }

    /// A memtable with this many bytes was sealed.
    pub(crate) fn sealed(&mut self, now: Instant, bytes: u64) {
        let ns = now.since(self.began).as_nanos().max(1);
        if !self.slowed {
            if self.filled.len() == REMEMBERED {
                self.filled.remove(0);
            }
            let speed = u128::from(bytes) * NANOS as u128 / ns;
            self.filled.push(speed.min(u128::from(u64::MAX)) as u64);
        }
        self.began = now;
        self.slowed = false;
    }

    /// Bytes a second for writers who are this near to the limits. Begins a slowdown if none goes on.
    pub(crate) fn rate(&mut self, now: Instant, near: &Nearness) -> u64 {
        let memtables = |count: f64| (near.memtable_bytes as f64 * count) as u64;
        let base = match self.episode {
            Some(episode) if now.since(episode.asked) <= FORGOTTEN_AFTER => episode,
            _ => {
                let measured = self.filled.iter().max().copied();
                let unmeasured = memtables(UNMEASURED_MEMTABLES_PER_S);
                let (low, high) = (BASE_MEMTABLES_PER_S.start(), BASE_MEMTABLES_PER_S.end());
                Episode {
                    base_bytes_per_s: measured
                        .unwrap_or(unmeasured)
                        .clamp(memtables(*low), memtables(*high)),
                    debt_count: near.debt_count,
                    asked: now,
                }
            }
        };
        self.episode = Some(Episode { asked: now, ..base });
        self.slowed = true;
        // Beyond this many units the rate is at its bounds anyway.
        const STEPS_MAX: u64 = 40;
        let mut rate = u128::from(base.base_bytes_per_s);
        for _ in 0..near
            .debt_count
            .saturating_sub(base.debt_count)
            .min(STEPS_MAX)
        {
            rate = rate * 4 / 5;
        }
        for _ in 0..base
            .debt_count
            .saturating_sub(near.debt_count)
            .min(STEPS_MAX)
        {
            rate = rate * 5 / 4;
        }
        let left = 1000 - near.pressure_permille.min(1000);
        ((rate * u128::from(left) / 1000) as u64).max(LEAST_BYTES_PER_S)
    }

    /// Whether a writer with a batch of `bytes` may go on. The first time it gets a ticket, which it must bring again until it is told to go or
    /// gives it back.
    pub(crate) fn ask(
        &mut self,
        now: Instant,
        near: &Nearness,
        bytes: u64,
        ticket: &mut Option<Ticket>,
    ) -> Turn {
        let rate = i128::from(self.rate(now, near));
        let passed = now.since(self.tokens_at).as_nanos() as i128;
        let full = rate * BURST.as_nanos() as i128;
        self.tokens = (self.tokens + rate * passed).min(full);
        self.tokens_at = now;
        let cost = bytes.saturating_add(BATCH_BYTES);
        // Who has not begun to wait yet ignores a little debt, so that batches of a few bytes do not each wait a few microseconds.
        let ignored = match ticket {
            None if self.waiting.is_empty() => rate * IGNORED.as_nanos() as i128,
            _ => 0,
        };
        let own = *ticket.get_or_insert_with(|| {
            self.next_number += 1;
            let own = Ticket(self.turn.saturating_add(cost), self.next_number);
            self.waiting.insert(own);
            own
        });
        if self.waiting.first() != Some(&own) {
            // Whoever goes tells the others.
            return Turn::Wait(FORGOTTEN_AFTER / 2);
        }
        if self.tokens < -ignored {
            let ns = (-self.tokens / rate + 1).min(NANOS / 10);
            return Turn::Wait(Duration::from_nanos(ns as u64));
        }
        self.tokens -= i128::from(cost) * NANOS;
        self.turn = own.0;
        self.give_back(ticket);
        Turn::Go
    }

    /// The writer goes for another reason, or not at all. True if somebody else waits.
    pub(crate) fn give_back(&mut self, ticket: &mut Option<Ticket>) -> bool {
        if let Some(own) = ticket.take() {
            self.waiting.remove(&own);
        }
        !self.waiting.is_empty()
    }

    /// Whether nobody waits here.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn near(pressure_permille: u32, debt_count: u64) -> Nearness {
        Nearness {
            pressure_permille,
            debt_count,
            memtable_bytes: 64 * MIB,
        }
    }

    fn at_ms(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    /// Writers that each have the next batch ready as soon as one is through; who got how many bytes until `end`.
    fn admitted(
        rate_limit: &mut RateLimit,
        near: &Nearness,
        batches: &[u64],
        end: Instant,
    ) -> Vec<u64> {
        let mut now = rate_limit.tokens_at;
        let mut bytes = vec![0; batches.len()];
        let mut tickets = vec![None; batches.len()];
        while now < end {
            let mut wait = Duration::from_millis(100);
            let mut went = true;
            while went {
                went = false;
                for (i, batch) in batches.iter().enumerate() {
                    match rate_limit.ask(now, near, *batch, &mut tickets[i]) {
                        Turn::Go => (bytes[i] += batch, went = true).1,
                        Turn::Wait(turn) => wait = wait.min(turn),
                    }
                }
            }
            now = now + wait;
        }
        bytes
    }

    #[test]
    fn the_rate_falls_with_the_distance_and_comes_back() {
        let mut rate_limit = RateLimit::new(at_ms(0));
        // Two memtables: 32 MiB/s, then 64 MiB/s; the faster counts.
        rate_limit.sealed(at_ms(2000), 64 * MIB);
        rate_limit.sealed(at_ms(3000), 64 * MIB);
        let mut last = u64::MAX;
        let way = [
            (59, 20),
            (118, 21),
            (176, 22),
            (176, 24),
            (900, 30),
            (999, 36),
        ];
        let down: Vec<u64> = way
            .iter()
            .map(|(pressure, debt)| rate_limit.rate(at_ms(3000), &near(*pressure, *debt)))
            .collect();
        assert_eq!(down[0], 64 * MIB * 941 / 1000);
        for rate in &down {
            assert!(*rate < last, "{down:?}");
            last = *rate;
        }
        assert!(down[5] >= LEAST_BYTES_PER_S);
        // It depends on where the store is, not on how it came there.
        for ((pressure, debt), rate) in way.iter().zip(&down) {
            assert_eq!(rate_limit.rate(at_ms(3500), &near(*pressure, *debt)), *rate);
        }
        // Less debt than at the beginning: faster than the base.
        assert!(rate_limit.rate(at_ms(3600), &near(0, 18)) > 64 * MIB);
        assert_eq!(
            rate_limit.rate(at_ms(3600), &near(1000, 60)),
            LEAST_BYTES_PER_S
        );
    }

    #[test]
    fn what_was_filled_while_slowed_says_nothing_of_the_writers() {
        let mut rate_limit = RateLimit::new(at_ms(0));
        rate_limit.sealed(at_ms(1000), 64 * MIB);
        rate_limit.rate(at_ms(1000), &near(100, 20));
        rate_limit.sealed(at_ms(20_000), 64 * MIB);
        // A second later it begins anew, with the same base.
        assert_eq!(rate_limit.rate(at_ms(30_000), &near(0, 30)), 64 * MIB);
        // Neither an endless speed nor none at all is a base.
        let mut rate_limit = RateLimit::new(at_ms(0));
        rate_limit.sealed(at_ms(0), 64 * MIB);
        assert_eq!(rate_limit.rate(at_ms(0), &near(0, 20)), 16 * 64 * MIB);
        let mut rate_limit = RateLimit::new(at_ms(0));
        rate_limit.sealed(at_ms(3_600_000), 64 * MIB);
        assert_eq!(rate_limit.rate(at_ms(3_600_000), &near(0, 20)), 16 * MIB);
    }

    #[test]
    fn what_is_admitted_follows_the_rate() {
        for (pressure, debt) in [(0, 20), (500, 20), (900, 20)] {
            let mut rate_limit = RateLimit::new(at_ms(0));
            let near = near(pressure, debt);
            let bytes: u64 = admitted(&mut rate_limit, &near, &[100_000], at_ms(10_000))
                .iter()
                .sum();
            let expected = 10 * 64 * MIB * u64::from(1000 - pressure) / 1000;
            let error = bytes.abs_diff(expected);
            assert!(error < expected / 50, "{pressure}: {bytes} for {expected}");
        }
    }

    #[test]
    fn writers_get_the_same_bytes_whatever_their_batches() {
        let mut rate_limit = RateLimit::new(at_ms(0));
        let bytes = admitted(
            &mut rate_limit,
            &near(900, 20),
            &[1_000, 10_000, 100_000, 1_000_000],
            at_ms(20_000),
        );
        let (least, most) = (bytes.iter().min().unwrap(), bytes.iter().max().unwrap());
        assert!(most - least <= 2_000_000, "{bytes:?}");
        assert!(*least > 20_000_000, "{bytes:?}");
    }

    #[test]
    fn a_pause_buys_a_burst_and_no_more() {
        let mut rate_limit = RateLimit::new(at_ms(0));
        let near = near(500, 20);
        let rate = rate_limit.rate(at_ms(0), &near);
        let mut went = 0;
        let mut ticket = None;
        // (The slowdown goes on, so the rate stays what it was.)
        while rate_limit.ask(at_ms(900), &near, 1000, &mut ticket) == Turn::Go {
            went += 1000;
        }
        let most = rate * (BURST + IGNORED).as_millis() as u64 / 1000 + 2000;
        assert!(went <= most && went > most / 2, "{went} of {most}");
        assert!(!rate_limit.give_back(&mut ticket) && rate_limit.is_idle());
        assert_eq!(ticket, None);
    }
}

//! The write rate of a keyspace whose writers are slowed down: how many bytes a second it admits,
//! and in which order its writers get them.
//!
//! A [`WriteRate`] is used when [`crate::types::pressure::decide`] says `Slow` or `Pace`. With
//! `Pace` (`stall_policy` is `redirect`) the rate is a part of the rate of the flushes. With `Slow`
//! (`slowdown` and `adoc`) it is
//! `base * (4/5)^(debt - debt at the beginning) * (1 - pressure)`. *Base* is the speed at which
//! writers filled memtables before they were slowed down. *Debt* is the number of sealed memtables
//! and level-0 runs. *Pressure* is how far the load has come from the threshold where slowing
//! begins to the one where writers stop. So a slowdown begins with hardly any delay, and each
//! memtable that is filled faster than one is compacted takes a fifth of the speed away, until both
//! are equally fast. (RocksDB's write controller multiplies a configured rate by 0.8 and 1.25 as
//! debt grows and shrinks. Here each unit of debt counts once in both directions: the rate depends
//! on the present load and not on how it came about, and it needs no setting.)
//!
//! A batch is paid for after it was admitted ([`TokenBucket`]): a writer that finds no debt goes on
//! at once, and the writers after it wait until the debt is paid. Writers that wait are served in
//! the order in which their batches would be through if each writer had a channel of its own
//! (start-time fair queueing). So a writer of large batches gets as many bytes as a writer of small
//! ones, and nobody starves, because a writer's turn is fixed when it begins to wait.
//!
//! Invariants: in any period, at most the highest rate times the period is admitted, plus [`BURST`]
//! at that rate and one batch. The rate never falls below [`LEAST_BYTES_PER_S`].
//!
//! Threading: a plain value under the lock of `Stalls`. The caller passes the time.

use std::collections::BTreeSet;
use std::time::Duration;

use siltstone_storage::Instant;

use crate::types::pressure::{Nearness, StallCause};
use siltstone_storage::token_bucket::TokenBucket;

/// The most tokens that a pause saves up, as time at the full rate.
const BURST: Duration = Duration::from_millis(5);

/// Nobody waits for fewer missing tokens than these, as time at the full rate. Writers notice short
/// waits least, and a wait of this time costs a few hundredths of it; a shorter one costs more than
/// it slows.
const IGNORED: Duration = Duration::from_micros(200);

/// A slowdown ends when nobody has been slowed down for this long. The next one measures its base
/// anew.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(1);

/// The lower bound of the rate: a writer makes progress whatever the debt is.
const LEAST_BYTES_PER_S: u64 = 16 << 10;

/// The bounds of the base, in memtables a second. Without the upper bound, a memtable that was
/// filled in no time at all would mean that nobody is slowed down.
const BASE_MEMTABLES_PER_S: std::ops::RangeInclusive<f64> = 0.25..=16.0;

/// The upper bound of the base is at least this. Small memtables are filled and flushed many times
/// a second, and a bound of a few of them a second would keep writers waiting while one is flushed.
const BASE_BYTES_PER_S: u64 = 64 << 20;

/// The base before any memtable was filled, in memtables a second.
const UNMEASURED_MEMTABLES_PER_S: f64 = 1.0;

/// The number of memtables whose speed is remembered. The fastest one counts, because most are
/// filled with pauses.
const REMEMBERED: usize = 4;

/// What a batch costs beside its bytes, so that small batches are not nearly free.
const BATCH_BYTES: u64 = 64;

/// The longest time that the batches after a large one pay for it.
const DEBT_MAX: Duration = Duration::from_secs(1);

/// The longest time after which a writer that waits asks again.
const ASK_INTERVAL: Duration = Duration::from_millis(100);

/// The tokens that a batch of `bytes` costs.
fn cost(bytes: u64) -> u64 {
    bytes.saturating_add(BATCH_BYTES)
}

/// The answer to a writer that asks whether it may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It may go on, and its bytes are paid for.
    Go,
    /// It may go on without paying.
    GoFree,
    /// It must ask again after this time, or when another writer has gone on.
    Wait(Duration),
}

/// A writer's position among those who wait: the virtual time at which its batch would be through,
/// and a unique number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64, u64);

/// A slowdown, which begins with the first writer that is slowed down.
#[derive(Clone, Copy)]
struct Episode {
    base_bytes_per_s: u64,
    debt_count: u64,
    asked: Instant,
}

/// See the module.
pub(crate) struct WriteRate {
    /// The bytes a second at which the last memtables were filled, of those during which nobody was
    /// slowed down.
    filled: Vec<u64>,
    /// When the active memtable began.
    began: Instant,
    /// Whether somebody was slowed down since.
    slowed: bool,
    episode: Option<Episode>,
    /// Bytes that may be admitted now.
    tokens: TokenBucket,
    /// The virtual time of the writer that went on last.
    turn: u64,
    next_number: u64,
    waiting: BTreeSet<Ticket>,
    /// When a writer was last limited to a part of the rate of the flushes, or stopped.
    pub(crate) paced: Option<Instant>,
    /// Why that was, and the limit that was reached.
    pub(crate) last: (StallCause, u64),
}

impl WriteRate {
    pub(crate) fn new(now: Instant) -> WriteRate {
        WriteRate {
            filled: Vec::new(),
            began: now,
            slowed: false,
            episode: None,
            tokens: TokenBucket::new(now, BURST),
            turn: 0,
            next_number: 0,
            waiting: BTreeSet::new(),
            paced: None,
            last: (StallCause::MemtableSlowdown, 0),
        }
    }

    /// A memtable with this many bytes was sealed.
    pub(crate) fn sealed(&mut self, now: Instant, bytes: u64) {
        let ns = now.since(self.began).as_nanos().max(1);
        if !self.slowed {
            if self.filled.len() == REMEMBERED {
                self.filled.remove(0);
            }
            let speed = u128::from(bytes) * 1_000_000_000 / ns;
            self.filled.push(speed.min(u128::from(u64::MAX)) as u64);
        }
        self.began = now;
        self.slowed = false;
    }

    /// The bytes a second for writers that are this near to the limits. Begins a slowdown if there
    /// is none.
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
                        .clamp(memtables(*low), memtables(*high).max(BASE_BYTES_PER_S)),
                    debt_count: near.debt_count,
                    asked: now,
                }
            }
        };
        self.episode = Some(Episode { asked: now, ..base });
        self.slowed = true;
        // With this many units, the rate is at its bounds.
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

    /// Whether a writer with a batch of `bytes` may go on, with writers that are this near to the
    /// limits.
    pub(crate) fn ask(
        &mut self,
        now: Instant,
        near: &Nearness,
        bytes: u64,
        ticket: &mut Option<Ticket>,
    ) -> Turn {
        let rate = self.rate(now, near);
        self.ask_at(now, rate, bytes, ticket)
    }

    /// As [`WriteRate::ask_at`], but those behind a large batch pay for one second of it at most.
    pub(crate) fn ask_for_flushes(
        &mut self,
        now: Instant,
        rate: u64,
        bytes: u64,
        ticket: &mut Option<Ticket>,
    ) -> Turn {
        let turn = self.ask_at(now, rate, bytes, ticket);
        self.tokens
            .limit_debt(DEBT_MAX, rate.max(LEAST_BYTES_PER_S));
        turn
    }

    /// Whether a writer with a batch of `bytes` may go on at this rate, in bytes a second. The
    /// first call fills in the `ticket`, and the writer passes it again until it may go on or calls
    /// [`WriteRate::give_back`]. A writer that has not begun to wait ignores a few missing tokens,
    /// `ignored` as time at the full rate, so that small batches do not wait a few microseconds
    /// each.
    fn ask_at(&mut self, now: Instant, rate: u64, bytes: u64, ticket: &mut Option<Ticket>) -> Turn {
        let rate = rate.max(LEAST_BYTES_PER_S);
        self.slowed = true;
        self.tokens.fill(now, rate);
        let ignored = match ticket {
            None if self.waiting.is_empty() => IGNORED,
            _ => Duration::ZERO,
        };
        let own = self.line_up(bytes, ticket);
        if self.waiting.first() != Some(&own) {
            // The writer before it wakes the others when it goes on.
            return Turn::Wait(FORGOTTEN_AFTER / 2);
        }
        if self.tokens.owes_more_than(ignored, rate) {
            return Turn::Wait(self.tokens.debt_takes(rate).min(ASK_INTERVAL));
        }
        self.tokens.spend(cost(bytes));
        self.turn = own.0;
        self.give_back(ticket);
        Turn::Go
    }

    /// Gives a writer its place among those who wait, unless it has one.
    pub(crate) fn line_up(&mut self, bytes: u64, ticket: &mut Option<Ticket>) -> Ticket {
        *ticket.get_or_insert_with(|| {
            self.next_number += 1;
            let own = Ticket(self.turn.saturating_add(cost(bytes)), self.next_number);
            self.waiting.insert(own);
            own
        })
    }

    /// Whether a writer with a batch of `bytes` may go on although nothing is limited: when those
    /// before it have gone on.
    pub(crate) fn next_in_line(&mut self, bytes: u64, ticket: &mut Option<Ticket>) -> Turn {
        let own = self.line_up(bytes, ticket);
        if self.waiting.first() != Some(&own) {
            // The writer before it wakes the others when it goes on.
            return Turn::Wait(FORGOTTEN_AFTER / 2);
        }
        self.turn = own.0;
        self.give_back(ticket);
        Turn::GoFree
    }

    /// A batch that was admitted was not written.
    pub(crate) fn refund(&mut self, bytes: u64) {
        self.tokens.give_back(cost(bytes));
    }

    /// The writer waits no longer. Returns true if another writer waits.
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

    /// Simulates writers that each have the next batch ready as soon as one is admitted. Returns
    /// the bytes that each of them got until `end`.
    fn admitted(
        write_rate: &mut WriteRate,
        near: &Nearness,
        batches: &[u64],
        end: Instant,
    ) -> Vec<u64> {
        let mut now = at_ms(0);
        let mut bytes = vec![0; batches.len()];
        let mut tickets = vec![None; batches.len()];
        while now < end {
            let mut wait = Duration::from_millis(100);
            let mut went = true;
            while went {
                went = false;
                for (i, batch) in batches.iter().enumerate() {
                    match write_rate.ask(now, near, *batch, &mut tickets[i]) {
                        Turn::Go | Turn::GoFree => (bytes[i] += batch, went = true).1,
                        Turn::Wait(turn) => wait = wait.min(turn),
                    }
                }
            }
            now = now + wait;
        }
        bytes
    }

    #[test]
    fn small_memtables_may_be_filled_many_times_a_second() {
        let rate = |memtable_bytes: u64| {
            let mut write_rate = WriteRate::new(at_ms(0));
            // Filled within 1 ms, by writers that nobody slowed down.
            write_rate.sealed(at_ms(1), memtable_bytes);
            let near = Nearness {
                memtable_bytes,
                ..near(0, 2)
            };
            write_rate.rate(at_ms(1), &near)
        };
        assert_eq!(rate(64 << 10), 1000 * (64 << 10));
        assert_eq!(rate(MIB), BASE_BYTES_PER_S);
        assert_eq!(rate(8 * MIB), 16 * 8 * MIB);
    }

    #[test]
    fn the_rate_falls_with_the_distance_and_comes_back() {
        let mut write_rate = WriteRate::new(at_ms(0));
        // Two memtables: 32 MiB/s, then 64 MiB/s; the faster counts.
        write_rate.sealed(at_ms(2000), 64 * MIB);
        write_rate.sealed(at_ms(3000), 64 * MIB);
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
            .map(|(pressure, debt)| write_rate.rate(at_ms(3000), &near(*pressure, *debt)))
            .collect();
        assert_eq!(down[0], 64 * MIB * 941 / 1000);
        for rate in &down {
            assert!(*rate < last, "{down:?}");
            last = *rate;
        }
        assert!(down[5] >= LEAST_BYTES_PER_S);
        // The rate depends on the present load, not on how it came about.
        for ((pressure, debt), rate) in way.iter().zip(&down) {
            assert_eq!(write_rate.rate(at_ms(3500), &near(*pressure, *debt)), *rate);
        }
        // Less debt than at the beginning: faster than the base.
        assert!(write_rate.rate(at_ms(3600), &near(0, 18)) > 64 * MIB);
        assert_eq!(
            write_rate.rate(at_ms(3600), &near(1000, 60)),
            LEAST_BYTES_PER_S
        );
    }

    #[test]
    fn what_was_filled_while_slowed_says_nothing_of_the_writers() {
        let mut write_rate = WriteRate::new(at_ms(0));
        write_rate.sealed(at_ms(1000), 64 * MIB);
        write_rate.rate(at_ms(1000), &near(100, 20));
        write_rate.sealed(at_ms(20_000), 64 * MIB);
        // Ten seconds later another slowdown begins, with the same base.
        assert_eq!(write_rate.rate(at_ms(30_000), &near(0, 30)), 64 * MIB);
        // The base has an upper and a lower bound.
        let mut write_rate = WriteRate::new(at_ms(0));
        write_rate.sealed(at_ms(0), 64 * MIB);
        assert_eq!(write_rate.rate(at_ms(0), &near(0, 20)), 16 * 64 * MIB);
        let mut write_rate = WriteRate::new(at_ms(0));
        write_rate.sealed(at_ms(3_600_000), 64 * MIB);
        assert_eq!(write_rate.rate(at_ms(3_600_000), &near(0, 20)), 16 * MIB);
    }

    #[test]
    fn what_is_admitted_follows_the_rate() {
        for (pressure, debt) in [(0, 20), (500, 20), (900, 20)] {
            let mut write_rate = WriteRate::new(at_ms(0));
            let near = near(pressure, debt);
            let bytes: u64 = admitted(&mut write_rate, &near, &[100_000], at_ms(10_000))
                .iter()
                .sum();
            let expected = 10 * 64 * MIB * u64::from(1000 - pressure) / 1000;
            let error = bytes.abs_diff(expected);
            assert!(error < expected / 50, "{pressure}: {bytes} for {expected}");
        }
    }

    #[test]
    fn writers_get_the_same_bytes_whatever_their_batches() {
        let mut write_rate = WriteRate::new(at_ms(0));
        let bytes = admitted(
            &mut write_rate,
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
        let mut write_rate = WriteRate::new(at_ms(0));
        let near = near(500, 20);
        let rate = write_rate.rate(at_ms(0), &near);
        let mut went = 0;
        let mut ticket = None;
        // (The slowdown goes on, so the rate is the same.)
        while write_rate.ask(at_ms(900), &near, 1000, &mut ticket) == Turn::Go {
            went += 1000;
        }
        let most = rate * (BURST + IGNORED).as_micros() as u64 / 1_000_000 + 2000;
        assert!(went <= most && went > most / 2, "{went} of {most}");
        assert!(!write_rate.give_back(&mut ticket) && write_rate.is_idle());
        assert_eq!(ticket, None);
    }
}

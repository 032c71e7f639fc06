//! Puts what the recorders send together, by second and in total.
//!
//! Invariant: a second is closed, which frees its histograms, only when every recorder that has
//! begun and not ended has gone on to a later one. Then nothing more can come for it.
//!
//! Threading: belongs to the sampler.

use std::collections::BTreeMap;

use super::{Counts, Measured, Second, SecondLatency};
use crate::measure::latency::Latencies;
use crate::measure::recorder::{Message, Role, Tally};
use crate::settings::Kind;

/// A second for which more may come.
#[derive(Debug, Default)]
struct Open {
    second: Second,
    latency: BTreeMap<Kind, Latencies>,
}

/// What has come so far.
#[derive(Debug, Default)]
pub(super) struct Collector {
    /// The current second of each recorder that runs.
    running: BTreeMap<u64, u64>,
    open: BTreeMap<u64, Open>,
    /// Empty histograms that are used again.
    spare: Vec<Latencies>,
    measured: Measured,
}

impl Collector {
    /// Takes a message in.
    pub(super) fn take(&mut self, message: Message) {
        match message {
            Message::Begin { recorder, second } => {
                self.running.insert(recorder, second);
            }
            Message::Tally {
                recorder,
                role,
                second,
                next,
                mut tally,
                back,
            } => {
                self.add(role, second, &tally);
                tally.clear();
                // The recorder may have ended.
                let _ = back.send(tally);
                match next {
                    Some(next) => self.running.insert(recorder, next),
                    None => self.running.remove(&recorder),
                };
                self.close_complete();
            }
            Message::Stop => {}
        }
    }

    fn add(&mut self, role: Role, second: u64, tally: &Tally) {
        self.add_to_total(role, tally);
        let open = self.open.entry(second).or_default();
        open.second.second = second;
        match role {
            Role::Measured => open.second.operations += tally.operations,
            Role::Beside => open.second.beside_operations += tally.operations,
        }
        open.second.written_bytes += tally.written_bytes;
        open.second.read_bytes += tally.read_bytes;
        for (kind, latencies) in by_kind(&tally.latency) {
            let fresh = || self.spare.pop().unwrap_or_default();
            let all = open.latency.entry(kind).or_insert_with(fresh);
            all.merge(latencies);
        }
    }

    fn add_to_total(&mut self, role: Role, tally: &Tally) {
        let total = &mut self.measured;
        let counts = match role {
            Role::Measured => &mut total.counts,
            Role::Beside => &mut total.beside,
        };
        *counts = Counts {
            operations: counts.operations + tally.operations,
            written_bytes: counts.written_bytes + tally.written_bytes,
            read_bytes: counts.read_bytes + tally.read_bytes,
        };
        total.errors += tally.errors;
        total.wrong_answers += tally.wrong_answers;
        if let Some(cpu_s) = tally.cpu_s {
            *total.workload_cpu_s.get_or_insert(0.0) += cpu_s;
        }
        for (kind, latencies) in by_kind(&tally.latency) {
            total.latency.entry(kind).or_default().merge(latencies);
            if role == Role::Measured {
                total.all.merge(latencies);
                total.until_last = total.until_last.max(tally.last_end);
            }
        }
        if let Some((kind, latencies)) = &tally.censored {
            if let Some(kind) = kind {
                total.latency.entry(*kind).or_default().merge(latencies);
            }
            if role == Role::Measured {
                total.all.merge(latencies);
                total.censored_operations += latencies.count();
            }
        }
        for (kind, latencies) in by_kind(&tally.service) {
            total.service.entry(kind).or_default().merge(latencies);
        }
    }

    /// Closes the seconds for which nothing more can come.
    fn close_complete(&mut self) {
        let first_running = self.running.values().min().copied();
        while let Some(entry) = self.open.first_entry()
            && first_running.is_some_and(|running| *entry.key() < running)
        {
            let open = entry.remove();
            self.close(open);
        }
    }

    fn close(&mut self, open: Open) {
        let mut second = open.second;
        for (kind, mut latencies) in open.latency {
            if let Some(found) = of_second(&latencies) {
                second.latency.insert(kind.name().to_string(), found);
            }
            latencies.clear();
            self.spare.push(latencies);
        }
        self.measured.seconds.push(second);
    }

    /// Everything that came. Seconds in which nothing ended are missing from the series.
    pub(super) fn finish(mut self) -> Measured {
        while let Some((_, open)) = self.open.pop_first() {
            self.close(open);
        }
        self.measured
    }
}

/// The latencies that there are.
fn by_kind(all: &[Option<Box<Latencies>>]) -> impl Iterator<Item = (Kind, &Latencies)> {
    let all = Kind::ALL.into_iter().zip(all);
    all.filter_map(|(kind, latencies)| {
        let latencies = latencies.as_deref()?;
        (!latencies.is_empty()).then_some((kind, latencies))
    })
}

fn of_second(latencies: &Latencies) -> Option<SecondLatency> {
    Some(SecondLatency {
        count: latencies.count(),
        p50_us: latencies.quantile_us(0.5)?,
        p99_us: latencies.quantile_us(0.99)?,
        max_us: latencies.longest_us()?,
    })
}

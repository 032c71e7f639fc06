//! Rates per second between two samples of a writer.

use std::time::Duration;

use siltstone::Stats;

use crate::failure::Failure;
use crate::output::{Out, bytes, count, duration, outln, rate};

use super::source::{Sample, StatsSource};

/// Differences of counters over the time between two samples.
pub struct Rates {
    time: Duration,
    puts: u64,
    batches: u64,
    gets: u64,
    get_hits: u64,
    seeks: u64,
    user_bytes: u64,
    log_bytes: u64,
    flush_bytes: u64,
    compaction_in_bytes: u64,
    compaction_out_bytes: u64,
    ingest_bytes: u64,
    delays: Vec<(&'static str, u64, u64)>,
    waiting: u64,
    /// Bytes of links, by counter.
    link: Vec<(String, u64)>,
}

impl Sample {
    /// Whether this equals the sample of `other`: the writer has not written the file since.
    pub fn is_same_as(&self, other: &Sample) -> bool {
        match (&self.source, &other.source) {
            (StatsSource::Written(a), StatsSource::Written(b)) => {
                (a.pid, a.written_us) == (b.pid, b.written_us)
            }
            _ => false,
        }
    }
}

/// Whether the store was opened again between two samples: its counters have begun anew.
fn was_reopened(old: &Stats, new: &Stats) -> bool {
    let mut counters = new.counters.iter();
    counters.any(|(name, n)| name.ends_with("_count") && *n < old.counter(name))
}

impl Rates {
    /// None unless both are of one open of one writer, in this order.
    pub fn between(old: &Sample, new: &Sample) -> Option<Rates> {
        let (StatsSource::Written(before), StatsSource::Written(after)) =
            (&old.source, &new.source)
        else {
            return None;
        };
        let time_us = after.written_us.checked_sub(before.written_us)?;
        if before.pid != after.pid || time_us == 0 || was_reopened(&old.stats, &new.stats) {
            return None;
        }
        let of = |name: &str| {
            new.stats
                .counter(name)
                .saturating_sub(old.stats.counter(name))
        };
        let delays = new.stats.delay_totals.iter().map(|(cause, total)| {
            let before = old.stats.delay_totals.iter().find(|(c, _)| c == cause);
            let before = before.map_or_else(Default::default, |(_, total)| *total);
            (
                cause.word(),
                total.count.saturating_sub(before.count),
                total.total_us.saturating_sub(before.total_us),
            )
        });
        Some(Rates {
            time: Duration::from_micros(time_us),
            puts: of("put_count"),
            batches: of("batch_count"),
            gets: of("get_count"),
            get_hits: of("get_hit_count"),
            seeks: of("seek_count"),
            user_bytes: of("user_bytes"),
            log_bytes: of("log_bytes"),
            flush_bytes: of("flush_out_bytes"),
            compaction_in_bytes: of("compaction_in_bytes"),
            compaction_out_bytes: of("compaction_out_bytes"),
            ingest_bytes: of("ingest_bytes"),
            delays: delays.filter(|(_, n, us)| n + us > 0).collect(),
            waiting: new.stats.waiting_writer_count,
            link: {
                let names = new.stats.counters.keys();
                let links = names.filter(|name| name.starts_with("link_"));
                links.map(|name| (name.to_string(), of(name))).collect()
            },
        })
    }

    /// Prints lines: calls, bytes by cause, bytes of links by purpose, delays.
    pub fn print(&self, out: &mut Out) -> Result<(), Failure> {
        let n = |n: u64| rate(n, self.time);
        let b = |n: u64| bytes((n as f64 / self.time.as_secs_f64()) as u64);
        let hits = match self.gets {
            0 => String::new(),
            gets => format!(" ({}% hits)", self.get_hits * 100 / gets),
        };
        outln!(
            out,
            "a second   puts {}, batches {}, gets {}{hits}, seeks {}",
            n(self.puts),
            n(self.batches),
            n(self.gets),
            n(self.seeks)
        )?;
        let ingest = match self.ingest_bytes {
            0 => String::new(),
            bytes => format!(", ingest {}", b(bytes)),
        };
        outln!(
            out,
            "           user {}, log {}, flush {}, compaction {} in and {} out{ingest}",
            b(self.user_bytes),
            b(self.log_bytes),
            b(self.flush_bytes),
            b(self.compaction_in_bytes),
            b(self.compaction_out_bytes)
        )?;
        let link = |name: &str| self.link.iter().find(|(n, _)| n == name);
        let link = |name: &str| link(name).map_or(0, |(_, bytes)| *bytes);
        let names = self.link.iter().map(|(name, _)| name.clone());
        for line in super::jobs::link_lines(link, b, names) {
            outln!(out, "           link {line}")?;
        }
        if self.delays.is_empty() && self.waiting == 0 {
            return outln!(out, "           no delays");
        }
        let delays: Vec<String> = self
            .delays
            .iter()
            .map(|(cause, begun, us)| {
                format!(
                    "{cause} {} begun, {} waited",
                    count(*begun),
                    duration(Duration::from_micros(*us))
                )
            })
            .collect();
        outln!(
            out,
            "           in these {}: {}; {} writers wait now",
            duration(self.time),
            if delays.is_empty() {
                "no delay ended".to_string()
            } else {
                delays.join("; ")
            },
            count(self.waiting)
        )
    }
}

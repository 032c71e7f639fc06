//! Refuses settings that a run cannot carry out to its end.
//!
//! Invariant: what is accepted ends by itself within [`SECONDS_MAX`], draws only records that the
//! store can have, and asks nothing of the engine that it cannot do.
//!
//! Threading: pure functions.

use crate::generate::keys::Keys;
use crate::generate::rate::{Phase, Rate};

use super::{
    Abilities, Amount, Arrival, Distribution, Settings, ValueBytes, Workload, seconds_text,
    size_text,
};

/// The most records that a store can have in a benchmark: 2^36.
pub const RECORDS_MAX: u64 = 1 << 36;
/// The most bytes of a value: 64 MiB.
pub const VALUE_BYTES_MAX: u32 = 64 << 20;
/// The longest run in seconds: 30 days.
const SECONDS_MAX: f64 = 30.0 * 24.0 * 3600.0;
/// The most bytes of all values of a batch: 1 GiB.
const BATCH_BYTES_MAX: u64 = 1 << 30;
const THREADS_MAX: u32 = 1024;
/// What the distribution of mixgraph's sizes has at least.
const PARETO_BYTES_MIN: u32 = 1;

/// Why settings were refused. It names the setting that is best changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{setting}` is {found}; {expected}")]
pub struct Refusal {
    /// The name of the setting, as in TOML files.
    pub setting: &'static str,
    /// Its value.
    pub found: String,
    /// What is expected of it, or what it does not go together with, as a sentence without a full
    /// stop.
    pub expected: String,
}

pub(super) type Checked = Result<(), Refusal>;

impl Settings {
    /// Refuses what a run cannot carry out to its end on an engine with these abilities.
    ///
    /// # Errors
    /// The first setting that is out of its range or contradicts another one.
    pub fn check(&self, abilities: &Abilities) -> Checked {
        self.check_engine()?;
        self.check_topology()?;
        self.check_gpu()?;
        self.check_data()?;
        self.check_numbers()?;
        self.check_abilities(abilities)?;
        self.check_distribution()?;
        self.check_amount()?;
        self.check_arrival()?;
        self.check_keys()
    }

    /// Refuses with the value of the setting.
    fn require(
        &self,
        accepted: bool,
        setting: &'static str,
        expected: impl Into<String>,
    ) -> Checked {
        if accepted {
            return Ok(());
        }
        Err(Refusal {
            setting,
            found: self.get(setting).unwrap_or_default(),
            expected: expected.into(),
        })
    }

    fn check_engine(&self) -> Checked {
        let engine = &self.engine;
        self.require(
            (64 << 10..=4 << 30).contains(&engine.memtable_bytes),
            "engine.memtable_bytes",
            "it must be from 64KiB to 4GiB",
        )?;
        self.require(
            engine.cache_bytes <= 1 << 40,
            "engine.cache_bytes",
            "it must be at most 1TiB",
        )?;
        self.require(
            engine.bloom_bits <= 20,
            "engine.bloom_bits",
            "it must be at most 20",
        )?;
        self.require(
            (1..=64).contains(&engine.background_threads),
            "engine.background_threads",
            "it must be from 1 to 64",
        )
    }

    fn check_data(&self) -> Checked {
        self.require(
            (1..=RECORDS_MAX).contains(&self.records),
            "records",
            format!("it must be from 1 to {RECORDS_MAX}"),
        )?;
        let (least, most) = match self.value_bytes {
            ValueBytes::Fixed(bytes) => (bytes, bytes),
            ValueBytes::Uniform(least, most) => (least, most),
            ValueBytes::Pareto(most) => (PARETO_BYTES_MIN, most),
        };
        self.require(
            most <= VALUE_BYTES_MAX,
            "value_bytes",
            format!("a value has at most {}", size_text(VALUE_BYTES_MAX.into())),
        )?;
        self.require(
            least <= most,
            "value_bytes",
            "the smallest size must not be above the largest one",
        )?;
        self.require(
            self.compression_ratio > 0.0 && self.compression_ratio <= 1.0,
            "compression_ratio",
            "it must be above 0 and at most 1",
        )
    }

    fn check_numbers(&self) -> Checked {
        self.require(
            (1..=THREADS_MAX).contains(&self.threads),
            "threads",
            format!("it must be from 1 to {THREADS_MAX}"),
        )?;
        let batch_bytes = u64::from(self.batch) * u64::from(self.value_bytes.most());
        let has_batches = matches!(
            self.workload,
            Workload::FillBatch | Workload::MultiReadRandom
        );
        self.require(
            !has_batches || (self.batch >= 1 && batch_bytes <= BATCH_BYTES_MAX),
            "batch",
            format!(
                "it must be at least 1, and all its values together at most {}",
                size_text(BATCH_BYTES_MAX)
            ),
        )?;
        self.require(
            (0.0..=1.0).contains(&self.read_ratio),
            "read_ratio",
            "it must be from 0 to 1",
        )?;
        let is_rate = |rate: f64| Rate::Constant(rate).check().is_ok();
        self.require(
            self.write_rate.is_none_or(is_rate),
            "write_rate",
            "it must be from 10^-6 to 10^12 operations a second",
        )
    }

    fn check_abilities(&self, abilities: &Abilities) -> Checked {
        let missing = match self.workload {
            Workload::ReadReverse if !abilities.reverse => Some("iterate backward"),
            Workload::Ingest if !abilities.ingest => Some("ingest tables"),
            Workload::MultiReadRandom if !abilities.multi_get => Some("read many keys in a call"),
            Workload::Compact if !abilities.compact => Some("compact on request"),
            Workload::FillSync if !abilities.sync => Some("sync a write"),
            _ => None,
        };
        self.require(
            missing.is_none(),
            "workload",
            format!("the engine cannot {}", missing.unwrap_or_default()),
        )?;
        self.require(
            abilities.sync || !self.sync || !self.workload.writes(),
            "sync",
            "the engine cannot sync a write",
        )?;
        let writers_are_one =
            !self.workload.writes() || self.workload.has_background_writer() || self.threads == 1;
        self.require(
            abilities.threads || writers_are_one,
            "threads",
            "the engine takes writes of one thread only",
        )
    }

    fn check_distribution(&self) -> Checked {
        self.require(
            self.distribution.is_none() || self.workload.draws_records(),
            "distribution",
            format!("`{}` draws no records", self.workload),
        )?;
        let (accepted, expected) = match self.distribution() {
            Distribution::Zipfian(exponent) => (
                exponent > 0.0 && exponent < 1.0,
                "the exponent must be above 0 and below 1",
            ),
            Distribution::Hotspot(records, operations) => (
                (0.0..=1.0).contains(&records) && (0.0..=1.0).contains(&operations),
                "both fractions must be from 0 to 1",
            ),
            _ => (true, ""),
        };
        self.require(accepted, "distribution", expected)
    }

    fn check_amount(&self) -> Checked {
        let workload = self.workload;
        match self.amount() {
            Amount::Seconds(seconds) => {
                self.require(
                    seconds > 0.0 && seconds <= SECONDS_MAX,
                    "amount",
                    format!(
                        "a time must be above 0s and at most {}",
                        seconds_text(SECONDS_MAX)
                    ),
                )?;
                self.require(
                    !workload.puts_each_record_once()
                        && !matches!(workload, Workload::Compact | Workload::Open),
                    "amount",
                    format!(
                        "`{workload}` ends when its work is done, so it takes no time; give a \
                         number of records instead"
                    ),
                )
            }
            Amount::Operations(count) => self.check_count(count),
            Amount::EveryRecord => self.check_every_record(),
        }
    }

    fn check_count(&self, count: u64) -> Checked {
        let workload = self.workload;
        self.require(count >= 1, "amount", "it must be at least 1 operation")?;
        self.require(
            !workload.puts_each_record_once() || count <= self.records,
            "amount",
            format!(
                "`{workload}` puts each record once, and there are {} records",
                self.records
            ),
        )?;
        self.require(
            !matches!(workload, Workload::Compact | Workload::Open) || count == 1,
            "amount",
            format!("`{workload}` is done once"),
        )?;
        self.require(
            workload != Workload::Ingest || count == self.records,
            "amount",
            "`ingest` adds all records",
        )
    }

    fn check_every_record(&self) -> Checked {
        let workload = self.workload;
        self.require(
            workload.can_do_every_record(),
            "amount",
            format!("`{workload}` takes a time or a number of operations"),
        )?;
        let each_once = match self.distribution {
            None | Some(Distribution::Sequential | Distribution::Permutation) => true,
            Some(_) => false,
        };
        self.require(
            each_once,
            "distribution",
            "records that are drawn independently are not each drawn once, which \
             `amount = \"every-record\"` asks for; leave the distribution out, or give a number",
        )
    }

    fn check_arrival(&self) -> Checked {
        let Some(rate) = self.rate() else {
            return Ok(());
        };
        self.require(
            self.workload.has_single_operations(),
            "arrival",
            format!(
                "`{}` has no single operations that could arrive",
                self.workload
            ),
        )?;
        let refused = rate.check().err().map(|error| {
            let unit = if error.parameter == "seconds" {
                "s"
            } else {
                " operations a second"
            };
            match error.parameter {
                "phases" => "there must be a phase".to_string(),
                _ if error.expected.starts_with("such that") => "nothing ever arrives".into(),
                _ => format!("a phase or rate must be {}{unit}", error.expected),
            }
        });
        self.require(refused.is_none(), "arrival", refused.unwrap_or_default())?;
        self.check_end(&rate)
    }

    /// Refuses an open loop in whose time nothing arrives, or whose operations never all arrive.
    fn check_end(&self, rate: &Rate) -> Checked {
        if let Some(count) = self.operations() {
            let seconds = count as f64 / rate.mean_per_second();
            return self.require(
                seconds <= SECONDS_MAX,
                "arrival",
                format!(
                    "{count} operations take more than {} at this rate",
                    seconds_text(SECONDS_MAX)
                ),
            );
        }
        let Amount::Seconds(seconds) = self.amount() else {
            return Ok(());
        };
        self.require(
            arrivals_within(rate, seconds) >= 1.0,
            "arrival",
            format!("no operation arrives within {}", seconds_text(seconds)),
        )
    }

    /// The rate of an open loop.
    fn rate(&self) -> Option<Rate> {
        match self.arrival() {
            Arrival::Closed => None,
            Arrival::Constant(rate) | Arrival::Poisson(rate) => Some(Rate::Constant(rate)),
            Arrival::Phases(phases) => {
                let phase = |(seconds, per_second)| Phase {
                    seconds,
                    per_second,
                };
                Some(Rate::Phases(phases.into_iter().map(phase).collect()))
            }
        }
    }

    /// Refuses keys whose digits are too few for the numbers of all records. YCSB's keys are
    /// hashes, whose size does not depend on settings.
    fn check_keys(&self) -> Checked {
        if self.workload.has_hashed_keys() {
            return Ok(());
        }
        let added = match (self.workload.inserts(), self.operations()) {
            (true, Some(count)) => count,
            (true, None) => RECORDS_MAX,
            (false, _) => 0,
        };
        let records = self.records.saturating_add(added);
        let size = self.key_bytes as usize;
        let refused = Keys::decimal(size, records).err();
        let expected = refused.map(|error| match error.parameter {
            "size" => "it must be from 8 to 1024".to_string(),
            _ => format!(
                "the numbers of {records} records need keys of {} bytes",
                digits(records.saturating_mul(2).saturating_add(1)).max(8)
            ),
        });
        self.require(
            expected.is_none(),
            "key_bytes",
            expected.unwrap_or_default(),
        )
    }
}

/// The decimal digits of a number.
fn digits(number: u64) -> u32 {
    number.checked_ilog10().unwrap_or(0) + 1
}

/// The operations that arrive within this time, on average.
fn arrivals_within(rate: &Rate, seconds: f64) -> f64 {
    let Rate::Phases(phases) = rate else {
        return rate.mean_per_second() * seconds;
    };
    let cycle: f64 = phases.iter().map(|phase| phase.seconds).sum();
    let cycles = (seconds / cycle).floor();
    let mut left = seconds - cycles * cycle;
    let mut arrivals = cycles * cycle * rate.mean_per_second();
    for phase in phases {
        arrivals += left.min(phase.seconds).max(0.0) * phase.per_second;
        left -= phase.seconds;
    }
    arrivals
}

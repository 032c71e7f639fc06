//! What each workload does with its store, and what it does if a setting is not given. The run loop
//! and the experiments ask here, so that they need not know the names of workloads.

use super::{Amount, Arrival, Distribution, Settings, ValueBytes, Workload};

/// The seconds of workloads that could go on for ever, if nothing else is said.
const DEFAULT_SECONDS: f64 = 10.0;
/// Two peaks and two valleys of SILK's `LongPeakTest`, in seconds.
const PEAKS_SECONDS: f64 = 120.0;
/// How much faster than in SILK operations arrive in `peaks`. Half of them are reads, so the writes
/// alone have the rate of SILK's operations: about 74 MB/s of records of 1 KiB in a peak.
const PEAKS_RATE_FACTOR: f64 = 2.0;

impl Workload {
    /// Whether the workload begins with an empty store. All others need one that was filled, whose
    /// keys and values have the same settings.
    pub fn makes_store(self) -> bool {
        use Workload as W;
        matches!(
            self,
            W::FillSeq
                | W::FillRandom
                | W::FillSync
                | W::FillBatch
                | W::Ingest
                | W::YcsbLoad
                | W::Queue
        )
    }

    /// Whether the workload changes what is in the store, so that a later workload finds other
    /// records or values.
    pub fn writes(self) -> bool {
        use Workload as W;
        let writes_too = matches!(
            self,
            W::Overwrite
                | W::ReadWhileWriting
                | W::SeekRandomWhileWriting
                | W::ReadRandomWriteRandom
                | W::DeleteRandom
                | W::Peaks
                | W::Mixgraph
                // It writes what is then replayed.
                | W::Open
        );
        self.makes_store() || writes_too || (self.is_ycsb() && self != W::YcsbC)
    }

    /// Whether this is YCSB's load or one of its six core workloads.
    pub fn is_ycsb(self) -> bool {
        (Workload::YcsbLoad..=Workload::YcsbF).contains(&self)
    }

    /// Whether keys are those of YCSB: `user` and a hash. A store that was filled with such keys is
    /// of no use to other workloads, and the other way round.
    pub fn has_hashed_keys(self) -> bool {
        self.is_ycsb()
    }

    /// Whether the workload adds new records to a filled store.
    pub fn inserts(self) -> bool {
        matches!(self, Workload::YcsbD | Workload::YcsbE | Workload::Queue)
    }

    /// Whether one more thread writes while the threads of the workload read.
    pub fn has_background_writer(self) -> bool {
        matches!(
            self,
            Workload::ReadWhileWriting | Workload::SeekRandomWhileWriting
        )
    }

    /// Whether records are drawn, so that a distribution may be given.
    pub fn draws_records(self) -> bool {
        use Workload as W;
        let in_order = matches!(
            self,
            W::FillSeq
                | W::ReadSeq
                | W::ReadReverse
                | W::Compact
                | W::Ingest
                | W::Open
                | W::YcsbLoad
                | W::Queue
        );
        !in_order
    }

    /// Whether the workload is a number of operations that can start one by one. The others do one
    /// long thing, for which there is no rate.
    pub fn has_single_operations(self) -> bool {
        use Workload as W;
        !matches!(
            self,
            W::ReadSeq | W::ReadReverse | W::Compact | W::Ingest | W::Open
        )
    }

    /// Whether the workload puts each record at most once, so that it ends when all are there.
    pub fn puts_each_record_once(self) -> bool {
        use Workload as W;
        matches!(self, W::FillSeq | W::Ingest | W::YcsbLoad)
    }

    /// Whether `every-record` is an amount of this workload.
    pub fn can_do_every_record(self) -> bool {
        use Workload as W;
        let others = matches!(
            self,
            W::FillRandom
                | W::FillSync
                | W::FillBatch
                | W::Overwrite
                | W::DeleteRandom
                | W::ReadRandom
                | W::ReadMissing
                | W::ReadSeq
                | W::ReadReverse
        );
        self.puts_each_record_once() || others
    }

    /// How records are drawn if nothing else is said.
    pub fn default_distribution(self) -> Distribution {
        use Workload as W;
        match self {
            W::YcsbA | W::YcsbB | W::YcsbC | W::YcsbE | W::YcsbF => Distribution::Zipfian(0.99),
            W::YcsbD => Distribution::Latest,
            W::Mixgraph => Distribution::Mixgraph,
            other if other.draws_records() => Distribution::Uniform,
            _ => Distribution::Sequential,
        }
    }

    /// How much is done with a store of this number of records if nothing else is said.
    pub fn default_amount(self, records: u64) -> Amount {
        use Workload as W;
        match self {
            W::FillSeq | W::Ingest | W::YcsbLoad | W::ReadSeq | W::ReadReverse => {
                Amount::EveryRecord
            }
            W::FillRandom | W::FillBatch | W::Overwrite | W::DeleteRandom => {
                Amount::Operations(records)
            }
            W::YcsbA | W::YcsbB | W::YcsbC | W::YcsbD | W::YcsbE | W::YcsbF => {
                Amount::Operations(records)
            }
            W::Compact | W::Open => Amount::Operations(1),
            W::Peaks => Amount::Seconds(PEAKS_SECONDS),
            _ => Amount::Seconds(DEFAULT_SECONDS),
        }
    }

    /// When operations start, for the workload that is about this. The phases are those of SILK's
    /// `LongPeakTest`, with a higher rate.
    pub fn default_arrival(self) -> Option<Arrival> {
        use crate::generate::rate::{Phase, SILK_PEAK, SILK_VALLEY};
        let faster = |phase: Phase| (phase.seconds, PEAKS_RATE_FACTOR * phase.per_second);
        let phases = [SILK_PEAK, SILK_VALLEY].map(faster);
        (self == Workload::Peaks).then(|| Arrival::Phases(phases.to_vec()))
    }

    /// Settings that a call of `silt bench` gives the workload if the user does not: their names,
    /// and their values as texts. Those of records, keys and values hold for all workloads of the
    /// store. Experiments and comparisons say what they measure, and do not have them.
    pub fn own_defaults(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Workload::YcsbLoad
            | Workload::YcsbA
            | Workload::YcsbB
            | Workload::YcsbC
            | Workload::YcsbD
            | Workload::YcsbE
            | Workload::YcsbF => &[("value_bytes", "1KiB")],
            Workload::Peaks => &[("value_bytes", "1KiB"), ("read_ratio", "0.5")],
            Workload::Mixgraph => &[("value_bytes", "pareto:1KiB"), ("key_bytes", "48")],
            Workload::Queue => &[("records", "10000")],
            _ => &[],
        }
    }
}

impl ValueBytes {
    /// The largest size in bytes.
    pub fn most(self) -> u32 {
        match self {
            ValueBytes::Fixed(most) | ValueBytes::Uniform(_, most) | ValueBytes::Pareto(most) => {
                most
            }
        }
    }

    /// The mean size in bytes. That of the Pareto distribution is the one of mixgraph without its
    /// limits, theta + sigma / (1 - k), but at most the largest size.
    pub fn mean(self) -> f64 {
        use crate::generate::mixgraph::PREFIX_DIST;
        match self {
            ValueBytes::Fixed(bytes) => bytes.into(),
            ValueBytes::Uniform(least, most) => (f64::from(least) + f64::from(most)) / 2.0,
            ValueBytes::Pareto(most) => {
                let pareto = PREFIX_DIST.value;
                (pareto.theta + pareto.sigma / (1.0 - pareto.k)).min(most.into())
            }
        }
    }
}

impl Settings {
    /// The bytes of a key and a value together, on average. YCSB's keys have up to 23 bytes,
    /// whatever `key_bytes` says.
    pub fn entry_bytes(&self) -> f64 {
        const YCSB_KEY_BYTES: f64 = 23.0;
        let key = match self.workload.has_hashed_keys() {
            true => YCSB_KEY_BYTES,
            false => self.key_bytes.into(),
        };
        key + self.value_bytes.mean()
    }

    /// How records are drawn: as was said, or else as the workload does it. A workload that does
    /// something with every record draws a permutation of them instead of independent numbers.
    pub fn distribution(&self) -> Distribution {
        let own = || match (self.amount(), self.workload.default_distribution()) {
            (Amount::EveryRecord, Distribution::Uniform) => Distribution::Permutation,
            (_, distribution) => distribution,
        };
        self.distribution.unwrap_or_else(own)
    }

    /// How much is done: what was said, or else what the workload does.
    pub fn amount(&self) -> Amount {
        let own = || self.workload.default_amount(self.records);
        self.amount.unwrap_or_else(own)
    }

    /// When operations start. A workload that is about bursts takes its own for a closed loop.
    pub fn arrival(&self) -> Arrival {
        match &self.arrival {
            Arrival::Closed => self.workload.default_arrival().unwrap_or(Arrival::Closed),
            given => given.clone(),
        }
    }

    /// Whether each write waits until it is durable: as was said, or because the workload is about
    /// this.
    pub fn is_synced(&self) -> bool {
        self.sync || self.workload == Workload::FillSync
    }

    /// With everything written down that the workload decides. Settings that are resolved say the
    /// same as before.
    pub fn resolved(&self) -> Settings {
        Settings {
            sync: self.is_synced(),
            distribution: self.workload.draws_records().then(|| self.distribution()),
            amount: Some(self.amount()),
            arrival: self.arrival(),
            ..self.clone()
        }
    }

    /// The operations of all threads together, if a number decides the end of the run.
    pub fn operations(&self) -> Option<u64> {
        match self.amount() {
            Amount::Operations(count) => Some(count),
            Amount::EveryRecord => Some(self.records),
            Amount::Seconds(_) => None,
        }
    }
}

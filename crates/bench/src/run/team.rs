//! Which operations each thread of a workload does.
//!
//! Threads 0 to `threads - 1` do what the workload is about and are measured. The workloads
//! `readwhilewriting` and `seekrandomwhilewriting` have one more, which writes as long as the
//! others run and is measured under its own kinds.
//!
//! Threading: one thread makes all operations; each then belongs to the thread that it is for.

use super::error::RunError;
use super::once::{Compact, Ingest};
use super::operations::{
    Batches, Deletes, Fill, Letter, Mixgraph, MultiRead, Operation, Queue, Read, ReadAll,
    ReadsAndWrites, Seek, Shared, Ycsb,
};
use crate::engine::Engine;
use crate::generate::ParameterError;
use crate::generate::keys::Keys;
use crate::generate::mixgraph::{MixgraphOperations, PREFIX_DIST};
use crate::generate::pick::{Distribution as Draw, Pick};
use crate::generate::random::{Stream, seed_of_operations};
use crate::generate::sizes::Sizes;
use crate::generate::values::Values;
use crate::generate::zipfian::YCSB_THETA;
use crate::settings::{Amount, Distribution, Settings, ValueBytes, Workload};

/// The lanes of random numbers of one thread.
mod lane {
    /// Which operation comes next.
    pub const OPERATIONS: u32 = 0;
    /// Which record it is about.
    pub const RECORDS: u32 = 1;
    /// When it starts.
    pub const ARRIVALS: u32 = 2;
    /// Which records are written into the log before an open.
    pub const LOG: u32 = 9;
}

pub(super) use lane::ARRIVALS as ARRIVALS_LANE;
pub(super) use lane::LOG as LOG_LANE;
pub(super) use lane::OPERATIONS as OPERATIONS_LANE;

/// The keys of a run.
pub(super) fn keys(settings: &Settings) -> Result<Keys, ParameterError> {
    if settings.workload.has_hashed_keys() {
        return Keys::ycsb(0);
    }
    Keys::decimal(settings.key_bytes as usize, last_record(settings))
}

/// Every record of the run has a lower number.
fn last_record(settings: &Settings) -> u64 {
    let added = match (settings.workload, settings.amount()) {
        (Workload::Queue, Amount::Operations(count)) => count,
        (Workload::Queue, _) => super::population::Population::RECORDS_MAX,
        _ => 0,
    };
    settings.records.saturating_add(added)
}

/// The values of a run.
pub(super) fn values(settings: &Settings) -> Result<Values, ParameterError> {
    let sizes = match settings.value_bytes {
        ValueBytes::Fixed(bytes) => Sizes::Fixed(bytes as usize),
        ValueBytes::Uniform(min, max) => Sizes::Uniform {
            min: min as usize,
            max: max as usize,
        },
        ValueBytes::Pareto(max) => match PREFIX_DIST.sizes() {
            Sizes::Pareto {
                distribution, min, ..
            } => Sizes::Pareto {
                distribution,
                min: min.min(max as usize),
                max: max as usize,
            },
            other => other,
        },
    };
    Values::new(sizes, settings.compression_ratio, settings.seed)
}

/// The number of records for which hot records are chosen. They stay where they are while records
/// are inserted, until there are more than this.
fn expected_records(settings: &Settings, shared: &Shared) -> u64 {
    if !settings.workload.is_ycsb() {
        return settings.records;
    }
    // An earlier run may have inserted records, and a load may have left some out.
    let existing = shared.records.count();
    let inserts = match settings.amount() {
        _ if !settings.workload.inserts() => 0,
        // As in YCSB, twice as many as there will be on average: 5% of the operations insert.
        Amount::Operations(count) => count / 10,
        // Nobody knows how many there will be, so the store may grow to twice its size.
        Amount::Seconds(_) | Amount::EveryRecord => existing,
    };
    // YCSB's generator covers the numbers from 0 to the number of records, both included.
    existing.saturating_add(inserts).saturating_add(1)
}

/// How the records of a run are drawn.
fn draw(settings: &Settings, shared: &Shared) -> Draw {
    let expected_records = expected_records(settings, shared);
    match settings.distribution() {
        Distribution::Sequential => Draw::Sequential,
        Distribution::Permutation => Draw::Permutation,
        Distribution::Uniform => Draw::Uniform,
        Distribution::Zipfian(theta) => Draw::ScrambledZipfian {
            theta,
            expected_records,
        },
        Distribution::Latest => Draw::Latest { theta: YCSB_THETA },
        Distribution::Mixgraph => Draw::Mixgraph {
            parameters: PREFIX_DIST,
            expected_records,
        },
        Distribution::Hotspot(data_fraction, operation_fraction) => Draw::Hotspot {
            data_fraction,
            operation_fraction,
        },
    }
}

/// The operations of all measured threads together; `u64::MAX` if time decides.
pub(super) fn total_operations(settings: &Settings) -> u64 {
    match settings.amount() {
        Amount::Operations(count) => count,
        Amount::EveryRecord => settings.records,
        Amount::Seconds(_) => u64::MAX,
    }
}

/// A thread of a workload.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member {
    /// Its number, from 0.
    pub thread: u32,
    /// The number of measured threads.
    pub threads: u32,
}

impl Member {
    /// Whether the thread only writes while the others are measured.
    pub fn is_background(&self) -> bool {
        self.thread >= self.threads
    }

    /// The stream of random numbers of one of its lanes. The thread in the background has a place
    /// of its own behind the others. Another workload and another round have other streams: reads
    /// that repeat the draws of the fill would read the records in the order in which they were
    /// written.
    pub fn stream(&self, settings: &Settings, lane: u32) -> Result<Stream, ParameterError> {
        let threads = self.threads.max(self.thread + 1);
        let (seed, round) = (settings.seed, settings.operation_seed);
        let seed = seed_of_operations(seed, round, settings.workload.name());
        Ok(Stream::new(seed, self.thread, threads)?.lane(lane))
    }

    /// Its share of the operations of all measured threads.
    fn share(&self, total: u64) -> u64 {
        if total == u64::MAX || self.is_background() {
            return u64::MAX;
        }
        let (thread, threads) = (u64::from(self.thread), u64::from(self.threads));
        total / threads + u64::from(thread < total % threads)
    }
}

/// The draws of one thread from the records that the store has at the start, and from those that
/// are inserted.
///
/// # Errors
/// Parameters that make no sense.
pub(super) fn pick(
    settings: &Settings,
    shared: &Shared,
    member: Member,
) -> Result<Pick, ParameterError> {
    let stream = member.stream(settings, lane::RECORDS)?;
    Pick::new(&draw(settings, shared), stream)
}

/// The operations of one thread.
///
/// # Errors
/// Parameters that make no sense.
pub(super) fn operation<'a>(
    settings: &Settings,
    engine: &'a dyn Engine,
    shared: &'a Shared,
    member: Member,
) -> Result<Box<dyn Operation + Send + 'a>, RunError> {
    use Workload as W;
    let pick = pick(settings, shared, member)?;
    let records = settings.records;
    let left = member.share(total_operations(settings));
    let fill = |pick| Fill {
        pick,
        records,
        left,
    };
    if member.is_background() {
        return Ok(Box::new(fill(pick)));
    }
    Ok(match settings.workload {
        W::FillSeq | W::FillRandom | W::FillSync | W::Overwrite | W::YcsbLoad => {
            Box::new(fill(pick))
        }
        W::FillBatch => Box::new(Batches::new(fill(pick), settings.batch as usize)),
        W::DeleteRandom => Box::new(Deletes {
            pick,
            records,
            left,
        }),
        W::ReadRandom | W::ReadMissing | W::ReadWhileWriting => Box::new(Read {
            pick,
            ahead: None,
            records,
            left,
            absent: settings.workload == W::ReadMissing,
        }),
        W::MultiReadRandom => Box::new(MultiRead::new(pick, records, left, settings.batch)),
        W::ReadSeq | W::ReadReverse => Box::new(ReadAll {
            records,
            reverse: settings.workload == W::ReadReverse,
            entries_left: (settings.amount() != Amount::EveryRecord).then_some(left),
        }),
        W::SeekRandom | W::SeekRandomWhileWriting => Box::new(Seek {
            pick,
            records,
            left,
            nexts: u64::from(settings.nexts),
            others_write: settings.workload == W::SeekRandomWhileWriting,
        }),
        W::ReadRandomWriteRandom | W::Peaks => Box::new(ReadsAndWrites {
            pick,
            records,
            left,
            read_ratio: settings.read_ratio,
        }),
        W::Mixgraph => Box::new(Mixgraph {
            operations: MixgraphOperations::new(&PREFIX_DIST)?,
            pick,
            records,
            left,
        }),
        W::Queue => Box::new(Queue {
            head: u64::from(member.thread),
            tail: u64::from(member.thread),
            step: u64::from(member.threads),
            length: (records / u64::from(member.threads)).max(1),
            left,
        }),
        W::YcsbA | W::YcsbB | W::YcsbC | W::YcsbD | W::YcsbE | W::YcsbF => {
            let letter = match settings.workload {
                W::YcsbA => Letter::A,
                W::YcsbB => Letter::B,
                W::YcsbC => Letter::C,
                W::YcsbD => Letter::D,
                W::YcsbE => Letter::E,
                _ => Letter::F,
            };
            Box::new(Ycsb {
                letter,
                shared,
                pick,
                left,
            })
        }
        W::Compact | W::Open => Box::new(Compact {
            engine,
            is_done: false,
        }),
        W::Ingest => Box::new(Ingest {
            engine,
            records,
            is_done: false,
        }),
    })
}

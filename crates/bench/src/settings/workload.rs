//! The workloads by name.

/// What a run does. The names are those of db_bench and YCSB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Workload {
    /// Puts every record once, in the order of keys.
    FillSeq,
    /// Puts records that are drawn at random: with the uniform distribution as many as there are
    /// records, some of them several times.
    FillRandom,
    /// As `fillrandom`, and each put waits until it is durable.
    FillSync,
    /// As `fillrandom`, in batches.
    FillBatch,
    /// As `fillrandom`, on a store that has all records.
    Overwrite,
    /// Reads random records that are in the store.
    ReadRandom,
    /// Reads keys that are not in the store and lie between those that are.
    ReadMissing,
    /// Reads the whole store in the order of keys.
    ReadSeq,
    /// Reads the whole store backward.
    ReadReverse,
    /// Seeks random records with a new iterator and reads the next entries.
    SeekRandom,
    /// Reads many random records with each call.
    MultiReadRandom,
    /// Reads random records while one more thread overwrites.
    ReadWhileWriting,
    /// Seeks while one more thread overwrites.
    SeekRandomWhileWriting,
    /// Reads and overwrites random records in a given ratio, in each thread.
    ReadRandomWriteRandom,
    /// Deletes random records.
    DeleteRandom,
    /// Compacts the whole store.
    Compact,
    /// Adds all records as sorted tables.
    Ingest,
    /// Closes and opens the store, with a log that has to be replayed.
    Open,
    /// YCSB: inserts all records, in hashed order.
    YcsbLoad,
    /// YCSB A: half reads, half updates, zipfian.
    YcsbA,
    /// YCSB B: 95% reads, 5% updates, zipfian.
    YcsbB,
    /// YCSB C: reads, zipfian.
    YcsbC,
    /// YCSB D: 95% reads of the latest records, 5% inserts.
    YcsbD,
    /// YCSB E: 95% scans of 1 to 100 entries, 5% inserts, zipfian.
    YcsbE,
    /// YCSB F: half reads, half read-modify-writes, zipfian.
    YcsbF,
    /// Bursts of reads and writes with more writes than compaction can take, then calm, as in SILK
    /// (ATC 2019).
    Peaks,
    /// Gets, puts and scans with the skew of keys and values of a production store, as `mixgraph`
    /// of db_bench (FAST 2020).
    Mixgraph,
    /// Puts at the tail of a queue and deletes at its head. The queue has as many records as the
    /// setting says.
    Queue,
}

impl Workload {
    /// What the workload does, in a few words for help.
    pub fn summary(self) -> &'static str {
        match self {
            Workload::FillSeq => "puts every record once, in key order",
            Workload::FillRandom => "puts random records, some of them twice",
            Workload::FillSync => "as fillrandom, and syncs each put",
            Workload::FillBatch => "as fillrandom, in batches",
            Workload::Overwrite => "overwrites random records",
            Workload::ReadRandom => "gets random records",
            Workload::ReadMissing => "gets keys that the store does not have",
            Workload::ReadSeq => "scans the whole store",
            Workload::ReadReverse => "scans the whole store backward",
            Workload::SeekRandom => "seeks random records and reads the next ones",
            Workload::MultiReadRandom => "gets many random records with each call",
            Workload::ReadWhileWriting => "readrandom beside a thread that overwrites",
            Workload::SeekRandomWhileWriting => "seekrandom beside a thread that overwrites",
            Workload::ReadRandomWriteRandom => "gets and overwrites random records",
            Workload::DeleteRandom => "deletes random records",
            Workload::Compact => "compacts the whole store",
            Workload::Ingest => "adds all records as sorted tables",
            Workload::Open => "opens a store and replays its log",
            Workload::YcsbLoad => "inserts all records with the keys of YCSB",
            Workload::YcsbA => "half reads, half updates, zipfian",
            Workload::YcsbB => "95% reads, 5% updates, zipfian",
            Workload::YcsbC => "only reads, zipfian",
            Workload::YcsbD => "95% reads of the latest records, 5% inserts",
            Workload::YcsbE => "95% scans, 5% inserts, zipfian",
            Workload::YcsbF => "half reads, half read-modify-writes, zipfian",
            Workload::Peaks => "half reads, half puts, in bursts as in SILK",
            Workload::Mixgraph => "gets, puts and scans of a production store",
            Workload::Queue => "puts at the tail, deletes at the head",
        }
    }
}

//! The contents of a report as plain data, independent of its presentation. They can be stored as
//! JSON and drawn later.
//!
//! Units are the last word of a name. Times are relative to the beginning of the run, unless their
//! documentation says otherwise.

use serde::{Deserialize, Serialize};

/// A whole report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The title.
    pub title: String,
    /// The result, in a sentence or two.
    pub verdict: String,
    /// The time when it was made, in seconds since 1970, UTC.
    pub made_unix_s: u64,
    /// The most important figures.
    pub headlines: Vec<Headline>,
    /// The timeline.
    pub timeline: Timeline,
    /// The latencies of calls and jobs.
    pub latencies: Vec<Latency>,
    /// The bytes that were written, by cause.
    pub writes: Vec<Writes>,
    /// Kills of a writer, and the recoveries after them.
    pub kills: Vec<Kill>,
    /// The data, if it was a plasma.
    pub plasma: Option<Plasma>,
    /// Machine, program, settings.
    pub facts: Vec<Facts>,
}

/// One of the most important figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Headline {
    /// What it is.
    pub label: String,
    /// The figure with its unit.
    pub value: String,
    /// What it means, or how it was measured.
    pub note: String,
}

/// A titled list of facts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// The title.
    pub title: String,
    /// Names and values.
    pub rows: Vec<(String, String)>,
    /// A longer text, printed unchanged; empty if there is none.
    pub text: String,
}

/// The timeline of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// How long the run was.
    pub length_s: f64,
    /// The phases of the run, in order.
    pub phases: Vec<Phase>,
    /// The time of each opening of a store; a sample names its opening by its index here.
    pub opened_s: Vec<f64>,
    /// Samples of the stores, in order of time.
    pub samples: Vec<Sample>,
    /// The number of pairs that were read since the beginning, at several times.
    pub reads: Vec<(f64, u64)>,
    /// Delays of writers.
    pub delays: Vec<Delayed>,
    /// The totals of all delays by cause, also of those that are not among `delays`.
    pub delay_totals: Vec<DelayTotal>,
    /// Marked events: the kills.
    pub marks: Vec<Mark>,
}

/// A span of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// What was done.
    pub name: String,
    /// Its kind.
    pub kind: PhaseKind,
    /// Beginning.
    pub from_s: f64,
    /// End.
    pub to_s: f64,
}

/// Kinds of phases; each has its colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PhaseKind {
    /// The store was idle.
    #[default]
    Rest,
    /// Writers were writing.
    Write,
    /// Readers were reading.
    Read,
    /// Writers that will be killed were writing.
    Kill,
    /// A store was opened again and its contents were compared.
    Verify,
}

/// A sample of a store. Its counters start at the opening.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// When.
    pub at_s: f64,
    /// Index into [`Timeline::opened_s`].
    pub opening: usize,
    /// What was counted.
    #[serde(flatten)]
    pub counts: Counts,
}

/// The counters of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Entries written.
    pub written_count: u64,
    /// Bytes that users gave to write.
    pub user_bytes: u64,
    /// Bytes written to the log.
    pub log_bytes: u64,
    /// Bytes that flushes wrote.
    pub flush_bytes: u64,
    /// Bytes that compactions wrote.
    pub compaction_bytes: u64,
    /// Bytes that compactions read.
    pub compaction_read_bytes: u64,
    /// Bytes in memtables now.
    pub memtable_bytes: u64,
    /// Bytes of tables now, by level.
    pub level_bytes: Vec<u64>,
}

/// A delay of a writer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Delayed {
    /// Beginning.
    pub from_s: f64,
    /// Its length.
    pub length_us: u64,
    /// The name of its cause.
    pub cause: String,
    /// The keyspace that caused it.
    pub keyspace: String,
    /// The numbers behind it, in words.
    pub why: String,
}

/// All delays of one cause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DelayTotal {
    /// The name of the cause.
    pub cause: String,
    /// How many.
    pub count: u64,
    /// The sum of their lengths.
    pub total_us: u64,
    /// The longest.
    pub max_us: u64,
}

/// An event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// When.
    pub at_s: f64,
    /// A character or two.
    pub label: String,
    /// What it was.
    pub what: String,
}

/// How long something took, as percentiles.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// What was timed.
    pub name: String,
    /// More about it.
    pub what: String,
    /// Observations.
    pub count: u64,
    /// Their mean.
    pub mean_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Ascending shares of the observations, below 1, each with the time that this share took at
    /// most.
    pub points: Vec<(f64, u64)>,
}

impl Latency {
    /// The time that a share of the observations took at most, if it is among the points.
    pub fn at(&self, share: f64) -> Option<u64> {
        let point = self.points.iter().find(|(q, _)| (q - share).abs() < 1e-9);
        point.map(|(_, ns)| *ns)
    }
}

/// The bytes that one store wrote, by cause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Writes {
    /// The store and the time, in words.
    pub name: String,
    /// Bytes that users gave to write.
    pub user_bytes: u64,
    /// Bytes written to the log.
    pub log_bytes: u64,
    /// Bytes that flushes wrote.
    pub flush_bytes: u64,
    /// Bytes that compactions wrote.
    pub compaction_bytes: u64,
    /// Bytes that compactions read.
    pub compaction_read_bytes: u64,
}

/// A kill of a writer, and the recovery after it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kill {
    /// The time from its first acknowledgement to the kill.
    pub after_us: u64,
    /// The jobs that ran at its last message.
    pub job_count: u64,
    /// Its flushes.
    pub flush_count: u64,
    /// Its compactions.
    pub compaction_count: u64,
    /// Batches that were acknowledged to it.
    pub acknowledged_count: u64,
    /// The batches of it that the store held after the kill.
    pub found_count: u64,
    /// The number of pairs that were compared.
    pub compared_count: u64,
    /// The time that the open took.
    pub open_us: u64,
    /// The number of log records that the open replayed.
    pub replayed_record_count: u64,
    /// The bytes at the log's end that were not a whole record.
    pub discarded_log_bytes: u64,
}

/// A plasma in a store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plasma {
    /// Particles of a dump.
    pub particle_count: u64,
    /// Pairs that were read for the pictures.
    pub pair_count: u64,
    /// How long reading them took.
    pub reading_us: u64,
    /// Length of the domain, in plasma units.
    pub length: f64,
    /// Velocity at the upper edge of pictures; that at the lower is its negative.
    pub velocity: f64,
    /// The results of each dump in the store.
    pub dumps: Vec<Dump>,
    /// Time and energy of the electric field at every step, from the simulation.
    pub field_energy: Vec<(f64, f64)>,
    /// The growth of the wave, if it could be fitted.
    pub growth: Option<Growth>,
}

/// A dump, as it is in the store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Dump {
    /// Its time, in plasma units.
    pub time: f64,
    /// Field energy, from the fields of its records.
    pub field_energy: f64,
    /// Mean kinetic energy of a particle.
    pub kinetic_energy: f64,
    /// The largest speed along x.
    pub speed_max: f64,
    /// Columns of the picture.
    pub columns: usize,
    /// The numbers of particles by velocity (row, fastest first) and position (column), row by row.
    /// They are not in the JSON, because a picture has a million of them.
    #[serde(skip)]
    pub counts: Vec<u32>,
}

/// The growth of the field's amplitude, per unit of plasma time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Growth {
    /// Beginning of the fit.
    pub from: f64,
    /// Its end.
    pub to: f64,
    /// The fitted rate.
    pub measured: f64,
    /// The rate of linear theory for cold beams.
    pub theory: f64,
}

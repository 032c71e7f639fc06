//! What a report tells, as plain data: nothing of how it looks. It can be stored as JSON and drawn
//! later.
//!
//! Units are the last word of a name. Times without another word count from the beginning of the
//! run.

use serde::{Deserialize, Serialize};

/// A whole report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// What it is a report of.
    pub title: String,
    /// What came out, in a sentence or two.
    pub verdict: String,
    /// When it was made: seconds since 1970, UTC.
    pub made_unix_s: u64,
    /// The figures to see first.
    pub headlines: Vec<Headline>,
    /// What happened when.
    pub timeline: Timeline,
    /// How long calls and jobs took.
    pub latencies: Vec<Latency>,
    /// What was written, and why.
    pub writes: Vec<Writes>,
    /// Kills of a writer, and what came after.
    pub kills: Vec<Kill>,
    /// The data, if it was a plasma.
    pub plasma: Option<Plasma>,
    /// Machine, program, settings.
    pub facts: Vec<Facts>,
}

/// A figure to see first.
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
    /// Of what.
    pub title: String,
    /// Names and values.
    pub rows: Vec<(String, String)>,
    /// A longer text, printed as it is; empty if there is none.
    pub text: String,
}

/// What happened when.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// How long the run was.
    pub length_s: f64,
    /// What was going on, in order.
    pub phases: Vec<Phase>,
    /// When each opening of a store was; a sample names its opening by its place here.
    pub opened_s: Vec<f64>,
    /// The stores at moments, in order of time.
    pub samples: Vec<Sample>,
    /// Pairs that were read since the beginning, at moments.
    pub reads: Vec<(f64, u64)>,
    /// Delays of writers.
    pub delays: Vec<Delayed>,
    /// All delays by cause, those too that are not among `delays`.
    pub delay_totals: Vec<DelayTotal>,
    /// Events worth a mark: the kills.
    pub marks: Vec<Mark>,
}

/// A span of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// What was done.
    pub name: String,
    /// Of which kind that is.
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
    /// The store had nothing to do.
    #[default]
    Rest,
    /// Writers were at work.
    Write,
    /// Readers were at work.
    Read,
    /// Writers were at work that will be killed.
    Kill,
    /// A store was opened again and compared.
    Verify,
}

/// A moment of a store. Counts are since its opening.
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

/// What is counted of a store.
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
    /// The word of its cause.
    pub cause: String,
    /// Whose load it was.
    pub keyspace: String,
    /// The numbers behind it, in words.
    pub why: String,
}

/// All delays of one cause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DelayTotal {
    /// The word of the cause.
    pub cause: String,
    /// How many.
    pub count: u64,
    /// How long together.
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
    /// Shares below 1 of the observations, growing, and the time that this share took at most.
    pub points: Vec<(f64, u64)>,
}

impl Latency {
    /// The time that a share of the observations took at most, if it is among the points.
    pub fn at(&self, share: f64) -> Option<u64> {
        let point = self.points.iter().find(|(q, _)| (q - share).abs() < 1e-9);
        point.map(|(_, ns)| *ns)
    }
}

/// What one store wrote, by cause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Writes {
    /// Which store, when.
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

/// A kill of a writer, and what came after.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kill {
    /// How long after its first acknowledgement it was killed.
    pub after_us: u64,
    /// Jobs that ran when it last spoke.
    pub job_count: u64,
    /// Its flushes.
    pub flush_count: u64,
    /// Its compactions.
    pub compaction_count: u64,
    /// Batches that were acknowledged to it.
    pub acknowledged_count: u64,
    /// Batches of it that the store held after.
    pub found_count: u64,
    /// Pairs that were compared.
    pub compared_count: u64,
    /// How long opening took.
    pub open_us: u64,
    /// Log records that opening replayed.
    pub replayed_record_count: u64,
    /// Bytes at the log's end that were no whole record.
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
    /// What was found in the store, dump by dump.
    pub dumps: Vec<Dump>,
    /// Time and energy of the electric field at every step, as the simulation had it.
    pub field_energy: Vec<(f64, f64)>,
    /// The growth of the wave, if it could be fitted.
    pub growth: Option<Growth>,
}

/// A dump, as the store holds it.
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
    /// Particles by velocity (row, fastest first) and position (column), row by row. Not stored: a
    /// picture is worth a million numbers.
    #[serde(skip)]
    pub counts: Vec<u32>,
}

/// How fast the field's amplitude grew, a unit of plasma time.
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

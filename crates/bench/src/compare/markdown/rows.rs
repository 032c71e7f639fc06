//! What each row of a store does, in plain words.
//!
//! Threading: pure functions.

use super::Shown;
use super::number::{count, three};
use super::text::{bullet, paragraph};
use crate::settings::{
    Amount, Arrival, Cache, Distribution, Settings, Workload, all_settings, size_text,
};

/// The settings that have words of their own here. Others are given by their names where they
/// differ from those of the fill.
const IN_WORDS: [&str; 12] = [
    "workload",
    "records",
    "distribution",
    "amount",
    "arrival",
    "threads",
    "batch",
    "nexts",
    "read_ratio",
    "sync",
    "write_rate",
    "cache",
];

/// A list with an entry for each of these rows.
pub(super) fn list(shown: &Shown<'_>, rows: &[usize]) -> String {
    let mut out = paragraph("What each row does:");
    for row in rows {
        out.push_str(&bullet(&text(shown, *row)));
    }
    out.push('\n');
    out
}

fn text(shown: &Shown<'_>, row: usize) -> String {
    let plan = &shown.results.plan;
    let spec = &plan.rows[row];
    let (own, fill) = (&spec.settings, &plan.stores[spec.store].fill);
    let mut parts = vec![what(own)];
    match own.workload.makes_store() {
        true if plan.fills_the_store(spec) => parts.push("this is the fill of the store".into()),
        true => parts.push(format!(
            "a store of its own for {}",
            counted(own.records, "record", "records")
        )),
        false => {}
    }
    parts.extend(how(&own.resolved(), &fill.resolved()));
    if let Some(bytes) = spec.memory_limit {
        parts.push(format!(
            "{} of memory, page cache included",
            size_text(bytes)
        ));
    }
    parts.push(counted(spec.pairs.into(), "round", "rounds"));
    format!("`{}`: {}.", spec.name, parts.join("; "))
}

/// The number and its noun: `one` is the singular of the noun, and `many` its plural.
fn counted(number: u64, one: &str, many: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        _ => format!("{} {many}", count(number)),
    }
}

/// What is done with which records.
fn what(settings: &Settings) -> String {
    use Workload as W;
    let drawn = drawn(settings);
    let nexts = counted(settings.nexts.into(), "entry", "entries");
    let batch = counted(settings.batch.into(), "record", "records");
    let again = match settings.amount() {
        Amount::EveryRecord => "",
        _ => ", again and again",
    };
    let reads = three(settings.read_ratio * 100.0);
    let mixed = format!("reads and puts records {drawn}, and {reads}% are reads");
    match settings.workload {
        W::FillSeq => "puts records in the order of keys".into(),
        W::FillRandom | W::Overwrite => format!("puts records {drawn}"),
        W::FillSync => format!("puts records {drawn}, and syncs each put"),
        W::FillBatch => format!("puts records {drawn}, in batches of {batch}"),
        W::ReadRandom => format!("reads records that the store has, {drawn}"),
        W::ReadMissing => format!("reads keys that the store does not have, {drawn}"),
        W::ReadSeq => format!("reads the whole store in the order of keys{again}"),
        W::ReadReverse => format!("reads the whole store backward{again}"),
        W::SeekRandom => {
            format!("seeks records {drawn}, each with a new iterator, and reads {nexts} from there")
        }
        W::MultiReadRandom => {
            format!("reads records that the store has, {drawn}, {batch} with each call")
        }
        W::ReadWhileWriting => format!(
            "reads records that the store has, {drawn}, while one more thread {}",
            beside(settings)
        ),
        W::SeekRandomWhileWriting => format!(
            "seeks records {drawn}, each with a new iterator, and reads {nexts} from there, while \
             one more thread {}",
            beside(settings)
        ),
        W::ReadRandomWriteRandom => mixed,
        W::DeleteRandom => format!("deletes records {drawn}"),
        W::Compact => "compacts the whole store".into(),
        W::Ingest => "adds all records as sorted tables".into(),
        W::Open => "opens the store, with a log that has to be replayed".into(),
        W::YcsbLoad => "puts each record once, in hashed order".into(),
        W::YcsbA => format!("half reads and half updates of records {drawn}"),
        W::YcsbB => format!("95% reads and 5% updates of records {drawn}"),
        W::YcsbC => format!("reads records {drawn}"),
        W::YcsbD => format!("95% reads of records {drawn}, and 5% inserts"),
        W::YcsbE => {
            format!("95% scans of 1 to 100 entries from records {drawn} on, and 5% inserts")
        }
        W::YcsbF => format!("half reads and half read-modify-writes of records {drawn}"),
        W::Peaks => format!("{mixed}, in bursts with calm between them"),
        W::Mixgraph => format!("gets, puts and scans, with records {drawn}"),
        W::Queue => "puts at the tail of a queue and deletes at its head".into(),
    }
}

/// How records are drawn.
fn drawn(settings: &Settings) -> String {
    match settings.distribution() {
        Distribution::Uniform => "drawn at random".into(),
        Distribution::Permutation => "in random order".into(),
        Distribution::Sequential => "one after the other".into(),
        other => format!("drawn by `{other}`"),
    }
}

/// What the thread beside the readers does.
fn beside(settings: &Settings) -> String {
    match settings.write_rate {
        Some(rate) => format!("puts {} records a second", three(rate)),
        None => "puts records as fast as it can".into(),
    }
}

/// How much is done and how. Other settings than the amount and the page cache are left out where
/// they are those of the fill.
fn how(own: &Settings, fill: &Settings) -> Vec<String> {
    let mut parts: Vec<String> = amount(own).into_iter().collect();
    if own.threads > 1 || own.threads != fill.threads {
        parts.push(counted(own.threads.into(), "thread", "threads"));
    }
    if own.arrival != Arrival::Closed {
        parts.push(format!("operations are due by `{}`", own.arrival));
    }
    // `fillsync` says it by itself.
    if own.sync != fill.sync && own.workload != Workload::FillSync {
        parts.push(match own.sync {
            true => "each write is synced".into(),
            false => "writes are not synced".into(),
        });
    }
    // The files of a fill are new.
    if !own.workload.makes_store() {
        parts.push(cache(own.cache).into());
    }
    for setting in all_settings() {
        let (value, other) = (setting.show(own), setting.show(fill));
        if value != other && !IN_WORDS.contains(&setting.name) {
            parts.push(format!("`{} = {value}`", setting.name));
        }
    }
    parts
}

fn amount(settings: &Settings) -> Option<String> {
    use Workload as W;
    let is_scan = matches!(settings.workload, W::ReadSeq | W::ReadReverse);
    let operations = |number| Some(counted(number, "operation", "operations"));
    match settings.amount() {
        _ if matches!(settings.workload, W::Compact | W::Open) => None,
        Amount::Seconds(seconds) => Some(format!("{seconds} s")),
        Amount::EveryRecord if is_scan => Some("once".into()),
        Amount::EveryRecord => operations(settings.records),
        Amount::Operations(number) => operations(number),
    }
}

fn cache(cache: Cache) -> &'static str {
    match cache {
        Cache::AsIs => "the page cache is as the process before left it",
        Cache::Warm => "all files are read into the page cache first",
        Cache::Cold => "no file is in the page cache at first",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_row_follow_from_its_settings() {
        let fill = Settings::default();
        let rows: [(&[(&str, &str)], &str); 6] = [
            (
                &[
                    ("workload", "readrandom"),
                    ("amount", "10s"),
                    ("cache", "warm"),
                ],
                "reads records that the store has, drawn at random; 10 s; all files are read into \
                 the page cache first",
            ),
            (
                &[("workload", "fillbatch"), ("records", "3_000_000")],
                "puts records drawn at random, in batches of 1,000 records; 3,000,000 operations",
            ),
            (
                &[
                    ("workload", "readwhilewriting"),
                    ("write_rate", "20K"),
                    ("cache", "cold"),
                    ("threads", "4"),
                    ("engine.own.siltstone.x", "1"),
                ],
                "reads records that the store has, drawn at random, while one more thread puts \
                 20,000 records a second; 10 s; 4 threads; no file is in the page cache at first; \
                 `engine.own = siltstone.x=1`",
            ),
            (
                &[
                    ("workload", "seekrandom"),
                    ("nexts", "1"),
                    ("distribution", "zipfian:0.99"),
                    ("amount", "1"),
                ],
                "seeks records drawn by `zipfian:0.99`, each with a new iterator, and reads 1 \
                 entry from there; 1 operation; the page cache is as the process before left it",
            ),
            (
                &[("workload", "fillsync"), ("threads", "4")],
                "puts records drawn at random, and syncs each put; 10 s; 4 threads",
            ),
            (
                &[("workload", "readseq")],
                "reads the whole store in the order of keys; once; the page cache is as the \
                 process before left it",
            ),
        ];
        for (changes, expected) in rows {
            let mut own = fill.clone();
            for (name, text) in changes {
                own.set(name, text).unwrap();
            }
            let mut parts = vec![what(&own)];
            parts.extend(how(&own.resolved(), &fill.resolved()));
            assert_eq!(parts.join("; "), expected);
        }
    }

    #[test]
    fn the_settings_in_words_exist() {
        for name in IN_WORDS {
            assert!(all_settings().iter().any(|setting| setting.name == name));
        }
    }
}

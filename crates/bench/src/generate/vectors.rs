//! The generators against the file with which the Go program of Pebble compares its own
//! (`bench-compare/pebble/testdata/generators.json`). As long as both agree with it, both programs
//! do the same operations on the same data, bit for bit.
//!
//! The file has the parameters of each case and what came out. If a generator is changed on
//! purpose, the file and the Go program have to be changed as well.

use std::path::PathBuf;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::arrival::{Arrivals, Spacing};
use super::hash::mix;
use super::keys::{Keys, MAX_KEY_BYTES};
use super::permutation::Permutation;
use super::pick::{Distribution, Pick};
use super::random::{Random, Stream, seed_of_operations};
use super::rate::Rate;
use super::sizes::Sizes;
use super::values::Values;
use super::zipfian::YCSB_THETA;

fn path() -> PathBuf {
    let crate_folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    crate_folder.join("../../bench-compare/pebble/testdata/generators.json")
}

/// A list of the file, which must have at least one case.
fn cases<T: DeserializeOwned>(name: &str) -> Vec<T> {
    let text = std::fs::read_to_string(path()).unwrap_or_else(|error| {
        panic!(
            "{}: {error}. This file is a part of the repository, beside the folder `crates`; it \
             has the outputs of the generators that the Go program for Pebble must have too. The \
             test needs a complete checkout; `git checkout -- bench-compare/pebble/testdata` \
             brings the file back",
            path().display()
        )
    });
    let mut file: Value = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{} is not JSON: {error}", path().display()));
    let cases: Vec<T> = serde_json::from_value(file[name].take()).unwrap_or_else(|error| {
        let file = path();
        panic!(
            "{}: the list `{name}` has another form than this test knows: {error}",
            file.display()
        )
    });
    assert!(
        !cases.is_empty(),
        "{}: the list `{name}` is empty",
        path().display()
    );
    cases
}

/// Numbers of 64 bits are texts, because JSON readers keep 53 bits only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Number(u64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Number, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Number).map_err(serde::de::Error::custom)
    }
}

fn numbers(count: usize, mut next: impl FnMut(u64) -> u64) -> Vec<Number> {
    (0..count as u64).map(|index| Number(next(index))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[derive(Debug, Deserialize)]
struct RandomCase {
    seed: Number,
    thread: u32,
    lane: Option<u32>,
    bits: Vec<Number>,
    below: Vec<Below>,
    unit_bits: Number,
    fill_3_and_26: String,
}

#[derive(Debug, Deserialize)]
struct Below {
    n: Number,
    drawn: Number,
}

#[test]
fn random_numbers_are_those_of_the_file() {
    for case in cases::<RandomCase>("random") {
        let mut random = Random::new(case.seed.0, case.thread);
        if let Some(lane) = case.lane {
            random = random.lane(lane);
        }
        let bits = numbers(case.bits.len(), |_| random.bits());
        assert_eq!(bits, case.bits, "{case:?}");
        for below in &case.below {
            assert_eq!(
                random.below(below.n.0),
                below.drawn.0,
                "{below:?} of {case:?}"
            );
        }
        assert_eq!(random.unit().to_bits(), case.unit_bits.0, "{case:?}");
        let mut bytes = [0; 29];
        random.fill(&mut bytes[..3]);
        random.fill(&mut bytes[3..]);
        assert_eq!(hex(&bytes), case.fill_3_and_26, "{case:?}");
    }
}

#[derive(Debug, Deserialize)]
struct KeyCase {
    bytes: usize,
    record: Number,
    present: String,
    absent: String,
}

#[test]
fn keys_are_those_of_the_file() {
    let mut buffer = [0; MAX_KEY_BYTES];
    for case in cases::<KeyCase>("keys") {
        let record = case.record.0;
        let keys = Keys::decimal(case.bytes, record + 1).unwrap();
        assert_eq!(
            keys.present(record, &mut buffer),
            case.present.as_bytes(),
            "{case:?}"
        );
        assert_eq!(
            keys.absent(record, &mut buffer),
            case.absent.as_bytes(),
            "{case:?}"
        );
        let number = keys.number(case.absent.as_bytes());
        assert_eq!(number, Some(2 * record + 1), "{case:?}");
    }
}

#[derive(Debug, Deserialize)]
struct ValueCase {
    bytes: usize,
    ratio: f64,
    seed: Number,
    record: Number,
    version: Number,
    checksum: Number,
    /// Only short values are in the file.
    value: Option<String>,
}

/// The checksum of the file: [`mix`] over words of eight bytes, the last one filled with zeros.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(bytes.len() as u64, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        mix(hash ^ u64::from_le_bytes(word))
    })
}

#[test]
fn values_are_those_of_the_file() {
    for case in cases::<ValueCase>("values") {
        let values = Values::new(Sizes::Fixed(case.bytes), case.ratio, case.seed.0).unwrap();
        let mut value = Vec::new();
        values.write(case.record.0, case.version.0, &mut value);
        assert_eq!(value.len(), case.bytes, "{case:?}");
        assert_eq!(checksum(&value), case.checksum.0, "{case:?}");
        if let Some(expected) = &case.value {
            assert_eq!(hex(&value), *expected, "{case:?}");
        }
    }
}

#[derive(Debug, Deserialize)]
struct PermutationCase {
    n: Number,
    seed: Number,
    first: Vec<Number>,
}

#[test]
fn orders_are_those_of_the_file() {
    for case in cases::<PermutationCase>("permutations") {
        let order = Permutation::new(case.n.0, case.seed.0).unwrap();
        let first = numbers(case.first.len(), |position| order.at(position));
        assert_eq!(first, case.first, "{case:?}");
    }
}

#[derive(Debug, Deserialize)]
struct PickCase {
    distribution: String,
    seed: Number,
    thread: u32,
    threads: u32,
    lane: u32,
    items: Number,
    drawn: Vec<Number>,
}

#[test]
fn draws_are_those_of_the_file() {
    for case in cases::<PickCase>("picks") {
        let distribution = match case.distribution.as_str() {
            "sequential" => Distribution::Sequential,
            "uniform" => Distribution::Uniform,
            "permutation" => Distribution::Permutation,
            other => panic!("{}: unknown distribution `{other}`", path().display()),
        };
        let stream = Stream::new(case.seed.0, case.thread, case.threads).unwrap();
        let mut pick = Pick::new(&distribution, stream.lane(case.lane)).unwrap();
        let drawn = numbers(case.drawn.len(), |_| pick.next(case.items.0));
        assert_eq!(drawn, case.drawn, "{case:?}");
    }
}

#[derive(Debug, Deserialize)]
struct SeedCase {
    seed: Number,
    operation_seed: Number,
    workload: String,
    mixed: Number,
}

#[test]
fn seeds_of_operations_are_those_of_the_file() {
    for case in cases::<SeedCase>("operation_seeds") {
        let mixed = seed_of_operations(case.seed.0, case.operation_seed.0, &case.workload);
        assert_eq!(mixed, case.mixed.0, "{case:?}");
    }
}

#[derive(Debug, Deserialize)]
struct YcsbKeyCase {
    record: Number,
    present: String,
}

#[test]
fn keys_of_ycsb_are_those_of_the_file() {
    let mut buffer = [0; MAX_KEY_BYTES];
    let keys = Keys::ycsb(0).unwrap();
    for case in cases::<YcsbKeyCase>("ycsb_keys") {
        let present = keys.present(case.record.0, &mut buffer);
        assert_eq!(present, case.present.as_bytes(), "{case:?}");
    }
}

/// Many draws from distributions whose formulas have powers and logarithms: a difference in the
/// last bit changes few draws, so all of them are in the checksum.
#[derive(Debug, Deserialize)]
struct SkewedCase {
    distribution: String,
    expected_records: Number,
    seed: Number,
    thread: u32,
    threads: u32,
    lane: u32,
    /// The records at the first draw. After each draw of ten there is one more.
    items: Number,
    count: u64,
    first: Vec<Number>,
    checksum: Number,
}

#[test]
fn skewed_draws_are_those_of_the_file() {
    for case in cases::<SkewedCase>("skewed_picks") {
        let theta = YCSB_THETA;
        let expected_records = case.expected_records.0;
        let distribution = match case.distribution.as_str() {
            "scrambled_zipfian" => Distribution::ScrambledZipfian {
                theta,
                expected_records,
            },
            "latest" => Distribution::Latest { theta },
            other => panic!("{}: unknown distribution `{other}`", path().display()),
        };
        let stream = Stream::new(case.seed.0, case.thread, case.threads).unwrap();
        let mut pick = Pick::new(&distribution, stream.lane(case.lane)).unwrap();
        let draws = (0..case.count).map(|draw| pick.next(case.items.0 + draw / 10));
        let (mut first, mut checksum) = (Vec::new(), 0);
        for draw in draws {
            if first.len() < case.first.len() {
                first.push(Number(draw));
            }
            checksum = mix(checksum ^ draw);
        }
        assert_eq!(first, case.first, "{case:?}");
        assert_eq!(checksum, case.checksum.0, "{case:?}");
    }
}

#[derive(Debug, Deserialize)]
struct ArrivalCase {
    per_second: f64,
    thread: u32,
    threads: u32,
    /// Each of this number of arrivals is in the list.
    step: usize,
    nanoseconds: Vec<Number>,
}

#[test]
fn arrivals_are_those_of_the_file() {
    for case in cases::<ArrivalCase>("arrivals") {
        let rate = Rate::Constant(case.per_second);
        let stream = Stream::new(1, case.thread, case.threads).unwrap();
        let arrivals = Arrivals::new(&rate, Spacing::Even, stream).unwrap();
        let times = arrivals.step_by(case.step).take(case.nanoseconds.len());
        let times: Vec<Number> = times.map(Number).collect();
        assert_eq!(times, case.nanoseconds, "{case:?}");
    }
}

//! Settings with parameters: `zipfian:0.99`, `uniform:16..1KiB`, `poisson:50000`, and how serde
//! reads and writes them.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use super::{
    TextError, parse_count, parse_number, parse_rate, parse_seconds, parse_size, seconds_text,
    size_text,
};
use crate::settings::{
    Amount, Arrival, Cache, Compression, Cores, Distribution, Files, Link, ValueBytes, Workload,
};

/// The word before the first colon, and what follows it.
fn word_and_rest(text: &str) -> (&str, Option<&str>) {
    match text.trim().split_once(':') {
        Some((word, rest)) => (word, Some(rest)),
        None => (text.trim(), None),
    }
}

const VALUE_FORMS: &str =
    "a size such as 128 or 1KiB, uniform:FROM..TO or pareto:MOST, for example uniform:16..1KiB";

/// A size of at most 4 GiB.
fn small_size(text: &str) -> Option<u32> {
    parse_size(text).ok()?.try_into().ok()
}

impl FromStr for ValueBytes {
    type Err = TextError;

    fn from_str(text: &str) -> Result<ValueBytes, TextError> {
        let found = match word_and_rest(text) {
            (_, None) => small_size(text).map(ValueBytes::Fixed),
            ("uniform", Some(range)) => range.split_once("..").and_then(|(from, to)| {
                Some(ValueBytes::Uniform(small_size(from)?, small_size(to)?))
            }),
            ("pareto", Some(most)) => small_size(most).map(ValueBytes::Pareto),
            _ => None,
        };
        let error = || TextError::new(text, VALUE_FORMS).with_nearest(&["uniform", "pareto"]);
        found.ok_or_else(error)
    }
}

impl fmt::Display for ValueBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |bytes: u32| size_text(bytes.into());
        match *self {
            ValueBytes::Fixed(bytes) => f.pad(&size(bytes)),
            ValueBytes::Uniform(from, to) => write!(f, "uniform:{}..{}", size(from), size(to)),
            ValueBytes::Pareto(most) => write!(f, "pareto:{}", size(most)),
        }
    }
}

const DISTRIBUTIONS: &[&str] = &[
    "uniform",
    "zipfian",
    "latest",
    "mixgraph",
    "hotspot",
    "sequential",
    "permutation",
];
const DISTRIBUTION_FORMS: &str = "uniform, zipfian:EXPONENT, latest, mixgraph, \
     hotspot:RECORDS:OPERATIONS, sequential or permutation, for example zipfian:0.99 or \
     hotspot:0.2:0.8";

/// The exponent of YCSB's zipfian distributions.
const YCSB_EXPONENT: f64 = 0.99;
/// The fractions of YCSB's hotspot distribution.
const YCSB_HOTSPOT: (f64, f64) = (0.2, 0.8);

impl FromStr for Distribution {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Distribution, TextError> {
        let found = match word_and_rest(text) {
            ("sequential", None) => Some(Distribution::Sequential),
            ("permutation", None) => Some(Distribution::Permutation),
            ("uniform", None) => Some(Distribution::Uniform),
            ("latest", None) => Some(Distribution::Latest),
            ("mixgraph", None) => Some(Distribution::Mixgraph),
            ("zipfian", None) => Some(Distribution::Zipfian(YCSB_EXPONENT)),
            ("zipfian", Some(exponent)) => parse_number(exponent).ok().map(Distribution::Zipfian),
            ("hotspot", None) => Some(Distribution::Hotspot(YCSB_HOTSPOT.0, YCSB_HOTSPOT.1)),
            ("hotspot", Some(parts)) => parts.split_once(':').and_then(|(data, operations)| {
                let (data, operations) = (parse_number(data), parse_number(operations));
                Some(Distribution::Hotspot(data.ok()?, operations.ok()?))
            }),
            _ => None,
        };
        let error = || TextError::new(text, DISTRIBUTION_FORMS).with_nearest(DISTRIBUTIONS);
        found.ok_or_else(error)
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Distribution::Sequential => f.pad("sequential"),
            Distribution::Permutation => f.pad("permutation"),
            Distribution::Uniform => f.pad("uniform"),
            Distribution::Zipfian(exponent) => write!(f, "zipfian:{exponent}"),
            Distribution::Latest => f.pad("latest"),
            Distribution::Mixgraph => f.pad("mixgraph"),
            Distribution::Hotspot(data, operations) => write!(f, "hotspot:{data}:{operations}"),
        }
    }
}

const ARRIVALS: &[&str] = &["closed", "constant", "poisson", "phases"];
const ARRIVAL_FORMS: &str = "closed, constant:RATE, poisson:RATE or phases:TIME@RATE,..., for \
     example poisson:50000 or phases:10s@200000,10s@20000";

/// One phase: its seconds and its operations a second.
fn phase(text: &str) -> Option<(f64, f64)> {
    let (seconds, rate) = text.split_once('@')?;
    Some((parse_seconds(seconds).ok()?, parse_rate(rate).ok()?))
}

impl FromStr for Arrival {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Arrival, TextError> {
        let rate = |rate: &str| parse_rate(rate).ok();
        let found = match word_and_rest(text) {
            ("closed", None) => Some(Arrival::Closed),
            ("constant", Some(text)) => rate(text).map(Arrival::Constant),
            ("poisson", Some(text)) => rate(text).map(Arrival::Poisson),
            ("phases", Some(phases)) => {
                let phases: Option<Vec<_>> = phases.split(',').map(phase).collect();
                phases.map(Arrival::Phases)
            }
            _ => None,
        };
        let error = || TextError::new(text, ARRIVAL_FORMS).with_nearest(ARRIVALS);
        found.ok_or_else(error)
    }
}

impl fmt::Display for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Arrival::Closed => f.pad("closed"),
            Arrival::Constant(rate) => write!(f, "constant:{rate}"),
            Arrival::Poisson(rate) => write!(f, "poisson:{rate}"),
            Arrival::Phases(phases) => {
                f.write_str("phases:")?;
                for (i, (seconds, rate)) in phases.iter().enumerate() {
                    let comma = if i == 0 { "" } else { "," };
                    write!(f, "{comma}{}@{rate}", seconds_text(*seconds))?;
                }
                Ok(())
            }
        }
    }
}

const EVERY_RECORD: &str = "every-record";
const AMOUNT_FORMS: &str =
    "a time such as 10s, a number of operations such as 1000000 or 1M, or every-record";

impl FromStr for Amount {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Amount, TextError> {
        if text.trim() == EVERY_RECORD {
            return Ok(Amount::EveryRecord);
        }
        let time = || parse_seconds(text).map(Amount::Seconds);
        let found = parse_count(text)
            .map(Amount::Operations)
            .or_else(|_| time());
        found.map_err(|_| TextError::new(text, AMOUNT_FORMS).with_nearest(&[EVERY_RECORD]))
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Amount::Operations(count) => write!(f, "{count}"),
            Amount::Seconds(seconds) => f.pad(&seconds_text(seconds)),
            Amount::EveryRecord => f.pad(EVERY_RECORD),
        }
    }
}

/// Reads a text, or a whole number as its digits.
struct TextOrNumber;

impl Visitor<'_> for TextOrNumber {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a whole number")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        Ok(text.into())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<String, E> {
        Ok(number.to_string())
    }
}

/// serde writes and reads the text form.
macro_rules! serde_as_text {
    ($($type:ty),+) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                let text = deserializer.deserialize_any(TextOrNumber)?;
                text.parse().map_err(D::Error::custom)
            }
        }
    )+};
}

serde_as_text!(
    Workload,
    Compression,
    Cache,
    ValueBytes,
    Distribution,
    Arrival,
    Amount,
    Files,
    Link,
    Cores
);

/// A number of bytes: serde writes the number, and reads a number or a size.
pub(in crate::settings) fn size<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<u64>,
{
    number(deserializer, parse_size)
}

/// A count: serde writes the number, and reads a number or a count.
pub(in crate::settings) fn count<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<u64>,
{
    number(deserializer, parse_count)
}

/// A rate that need not be given: serde writes the number, and reads a number or a rate.
pub(in crate::settings) fn optional_rate<'de, D>(deserializer: D) -> Result<Option<f64>, D::Error>
where
    D: Deserializer<'de>,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Given {
        Number(f64),
        Text(String),
    }
    match Option::<Given>::deserialize(deserializer)? {
        None => Ok(None),
        Some(Given::Number(rate)) => Ok(Some(rate)),
        Some(Given::Text(text)) => parse_rate(&text).map(Some).map_err(D::Error::custom),
    }
}

fn number<'de, D, T>(
    deserializer: D,
    parse: fn(&str) -> Result<u64, TextError>,
) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<u64>,
{
    let text = deserializer.deserialize_any(TextOrNumber)?;
    let number = parse(&text).map_err(D::Error::custom)?;
    let too_large = || D::Error::custom(format!("`{text}` is too large for this setting"));
    T::try_from(number).map_err(|_| too_large())
}

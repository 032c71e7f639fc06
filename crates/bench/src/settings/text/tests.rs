use proptest::prelude::*;

use super::*;
use crate::settings::{Amount, Arrival, Cache, Compression, Distribution, ValueBytes, Workload};

fn positive() -> impl Strategy<Value = f64> {
    prop_oneof![
        (0u32..100_000).prop_map(f64::from),
        0.0..1e6f64,
        (0u64..10_000_000).prop_map(|n| n as f64 / 1000.0),
        0.0..1e300f64,
    ]
}

fn value_bytes() -> impl Strategy<Value = ValueBytes> {
    let size = || prop_oneof![any::<u32>(), (0u32..4096).prop_map(|n| n << 10)];
    prop_oneof![
        size().prop_map(ValueBytes::Fixed),
        size().prop_map(ValueBytes::Pareto),
        (size(), size()).prop_map(|(from, to)| ValueBytes::Uniform(from, to)),
    ]
}

fn distribution() -> impl Strategy<Value = Distribution> {
    prop_oneof![
        Just(Distribution::Sequential),
        Just(Distribution::Permutation),
        Just(Distribution::Uniform),
        Just(Distribution::Latest),
        Just(Distribution::Mixgraph),
        positive().prop_map(Distribution::Zipfian),
        (positive(), positive()).prop_map(|(a, b)| Distribution::Hotspot(a, b)),
    ]
}

fn arrival() -> impl Strategy<Value = Arrival> {
    prop_oneof![
        Just(Arrival::Closed),
        positive().prop_map(Arrival::Constant),
        positive().prop_map(Arrival::Poisson),
        prop::collection::vec((positive(), positive()), 1..4).prop_map(Arrival::Phases),
    ]
}

fn amount() -> impl Strategy<Value = Amount> {
    prop_oneof![
        Just(Amount::EveryRecord),
        any::<u64>().prop_map(Amount::Operations),
        positive().prop_map(Amount::Seconds),
    ]
}

/// The value is read from its text, and from the JSON of its text.
fn returns<T>(value: T) -> Result<(), TestCaseError>
where
    T: std::fmt::Display + std::fmt::Debug + std::str::FromStr<Err = TextError> + PartialEq,
    T: serde::Serialize + serde::de::DeserializeOwned,
{
    let text = value.to_string();
    prop_assert_eq!(
        &text
            .parse::<T>()
            .map_err(|e| TestCaseError::fail(e.to_string()))?,
        &value
    );
    let json = serde_json::to_string(&value).unwrap();
    prop_assert_eq!(json.trim_matches('"'), &text);
    prop_assert_eq!(&serde_json::from_str::<T>(&json).unwrap(), &value);
    Ok(())
}

/// If the text is that of a value, the value returns from its own text.
fn returns_if_read<T>(text: &str) -> Result<(), TestCaseError>
where
    T: std::fmt::Display + std::fmt::Debug + std::str::FromStr<Err = TextError> + PartialEq,
    T: serde::Serialize + serde::de::DeserializeOwned,
{
    text.parse::<T>().map_or(Ok(()), returns)
}

proptest! {
    #[test]
    fn sizes_of_values_return(value in value_bytes()) { returns(value)?; }

    #[test]
    fn distributions_return(value in distribution()) { returns(value)?; }

    #[test]
    fn arrivals_return(value in arrival()) { returns(value)?; }

    #[test]
    fn amounts_return(value in amount()) { returns(value)?; }

    #[test]
    fn numbers_return(bytes in any::<u64>(), shift in 0u32..50, seconds in positive()) {
        for bytes in [bytes, bytes >> shift << shift] {
            prop_assert_eq!(parse_size(&size_text(bytes)), Ok(bytes));
            prop_assert_eq!(parse_count(&bytes.to_string()), Ok(bytes));
        }
        prop_assert_eq!(parse_seconds(&seconds_text(seconds)), Ok(seconds));
    }

    #[test]
    fn no_text_makes_a_parser_panic(text in "[0-9a-zA-Z_.:@, µ]{0,24}|\\PC{0,12}") {
        // A text is refused, or it is a number that can be written again, or a value that returns.
        if let Ok(bytes) = parse_size(&text) {
            prop_assert_eq!(parse_size(&size_text(bytes)), Ok(bytes));
        }
        if let Ok(count) = parse_count(&text) {
            prop_assert_eq!(parse_count(&count.to_string()), Ok(count));
        }
        for number in [parse_seconds(&text), parse_rate(&text)].into_iter().flatten() {
            prop_assert!(number.is_finite() && number >= 0.0, "{}", number);
        }
        returns_if_read::<ValueBytes>(&text)?;
        returns_if_read::<Distribution>(&text)?;
        returns_if_read::<Arrival>(&text)?;
        returns_if_read::<Amount>(&text)?;
        returns_if_read::<Workload>(&text)?;
    }
}

#[test]
fn words_return() {
    for workload in Workload::ALL {
        returns(*workload).unwrap();
    }
    for (codec, cache) in Compression::ALL.iter().zip(Cache::ALL) {
        returns(*codec).unwrap();
        returns(*cache).unwrap();
    }
}

#[test]
fn the_texts_of_the_command_line_are_read() {
    assert_eq!("1KiB".parse(), Ok(ValueBytes::Fixed(1024)));
    assert_eq!("1 kib".parse(), Ok(ValueBytes::Fixed(1024)));
    assert_eq!(
        "uniform:16..1KiB".parse(),
        Ok(ValueBytes::Uniform(16, 1024))
    );
    assert_eq!("pareto:2KiB".parse(), Ok(ValueBytes::Pareto(2048)));
    assert_eq!("zipfian:0.99".parse(), Ok(Distribution::Zipfian(0.99)));
    assert_eq!("zipfian".parse(), Ok(Distribution::Zipfian(0.99)));
    assert_eq!(
        "hotspot:0.2:0.8".parse(),
        Ok(Distribution::Hotspot(0.2, 0.8))
    );
    assert_eq!("poisson:50K".parse(), Ok(Arrival::Poisson(50_000.0)));
    let phases = vec![(10.0, 200_000.0), (10.0, 20_000.0)];
    assert_eq!(
        "phases:10s@200000,10s@20000".parse(),
        Ok(Arrival::Phases(phases))
    );
    assert_eq!("60s".parse(), Ok(Amount::Seconds(60.0)));
    assert_eq!("2min".parse(), Ok(Amount::Seconds(120.0)));
    assert_eq!("500ms".parse(), Ok(Amount::Seconds(0.5)));
    assert_eq!("1_000_000".parse(), Ok(Amount::Operations(1_000_000)));
    assert_eq!("1M".parse(), Ok(Amount::Operations(1_000_000)));
    assert_eq!("every-record".parse(), Ok(Amount::EveryRecord));
}

#[test]
fn the_shortest_form_is_written() {
    for (bytes, text) in [
        (0, "0"),
        (128, "128"),
        (1024, "1KiB"),
        (1536, "1536"),
        (64 << 20, "64MiB"),
    ] {
        assert_eq!(size_text(bytes), text);
    }
    for (seconds, text) in [
        (0.5, "0.5s"),
        (10.0, "10s"),
        (120.0, "2min"),
        (3600.0, "1h"),
    ] {
        assert_eq!(seconds_text(seconds), text);
    }
}

#[test]
fn an_error_says_what_was_found_and_expected() {
    let size = parse_size("64MB").unwrap_err();
    assert_eq!(
        size.to_string(),
        "found `64MB`, expected a size such as 128, 1KiB or 64MiB"
    );
    let codec = "lz5".parse::<Compression>().unwrap_err();
    assert_eq!(
        codec.to_string(),
        "found `lz5`, expected none, lz4 or zstd; did you mean `lz4`?"
    );
    let distribution = "zipfain:0.9".parse::<Distribution>().unwrap_err();
    assert!(
        distribution
            .to_string()
            .ends_with("did you mean `zipfian`?")
    );
    assert_eq!(
        "zipfian:x".parse::<Distribution>().unwrap_err().nearest,
        None
    );
}

#[test]
fn numbers_of_other_notations_are_refused() {
    for text in [
        "",
        " ",
        "-1",
        "1.5KiB",
        "_1",
        "1_",
        "1__0",
        "0x10",
        "1e6",
        "99999999999TiB",
    ] {
        assert!(parse_size(text).is_err(), "{text}");
        assert!(parse_count(text).is_err(), "{text}");
    }
    for text in ["10", "s", "1.s", ".5s", "nans", "infs", "-1s", "10 years"] {
        assert!(parse_seconds(text).is_err(), "{text}");
    }
}

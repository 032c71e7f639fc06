//! The generators give the outputs in `bench-compare/pebble/testdata/generators.json`. The Go program
//! for Pebble has the same test, so both programs do the same operations on the same data.

use serde_json::Value;

use super::hash::mix;
use super::keys::{Keys, MAX_KEY_BYTES};
use super::permutation::Permutation;
use super::pick::{Distribution, Pick};
use super::random::{Random, Stream, seed_of_operations};
use super::sizes::Sizes;
use super::values::Values;

/// The cases of one kind.
fn cases(kind: &str) -> Vec<Value> {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../bench-compare/pebble/testdata/generators.json"
    );
    let all: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let cases = all[kind].as_array().unwrap().clone();
    assert!(!cases.is_empty());
    cases
}

/// Numbers of 64 bits are texts, and others numbers.
fn number(value: &Value) -> u64 {
    let text = value.as_str().map(|text| text.parse().unwrap());
    text.or_else(|| value.as_u64()).unwrap()
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(number).collect()
}

fn draw(count: usize, next: impl FnMut() -> u64) -> Vec<u64> {
    std::iter::repeat_with(next).take(count).collect()
}

#[test]
fn random_numbers_are_the_known_ones() {
    for case in cases("random") {
        let mut random = Random::new(number(&case["seed"]), number(&case["thread"]) as u32);
        if let Some(lane) = case["lane"].as_u64() {
            random = random.lane(lane as u32);
        }
        let bits = numbers(&case["bits"]);
        assert_eq!(draw(bits.len(), || random.bits()), bits);
        for below in case["below"].as_array().unwrap() {
            assert_eq!(random.below(number(&below["n"])), number(&below["drawn"]));
        }
        assert_eq!(random.unit().to_bits(), number(&case["unit_bits"]));
        let mut bytes = [0; 29];
        random.fill(&mut bytes[..3]);
        random.fill(&mut bytes[3..]);
        assert_eq!(hex(&bytes), case["fill_3_and_26"].as_str().unwrap());
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn seeds_of_operations_are_the_known_ones() {
    for case in cases("operation_seeds") {
        let (seed, round) = (number(&case["seed"]), number(&case["operation_seed"]));
        let mixed = seed_of_operations(seed, round, case["workload"].as_str().unwrap());
        assert_eq!(mixed, number(&case["mixed"]), "{case}");
    }
}

#[test]
fn keys_are_the_known_ones() {
    for case in cases("keys") {
        let record = number(&case["record"]);
        let keys = Keys::decimal(number(&case["bytes"]) as usize, record + 1).unwrap();
        let mut buffer = [0; MAX_KEY_BYTES];
        let present = case["present"].as_str().unwrap().as_bytes();
        assert_eq!(keys.present(record, &mut buffer), present);
        let absent = case["absent"].as_str().unwrap().as_bytes();
        assert_eq!(keys.absent(record, &mut buffer), absent);
    }
}

#[test]
fn values_are_the_known_ones() {
    for case in cases("values") {
        let sizes = Sizes::Fixed(number(&case["bytes"]) as usize);
        let ratio = case["ratio"].as_f64().unwrap();
        let values = Values::new(sizes, ratio, number(&case["seed"])).unwrap();
        let mut value = Vec::new();
        let (record, version) = (number(&case["record"]), number(&case["version"]));
        values.write(record, version, &mut value);
        let checksum = value.chunks(8).fold(value.len() as u64, |hash, chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            mix(hash ^ u64::from_le_bytes(word))
        });
        assert_eq!(checksum, number(&case["checksum"]), "{case}");
        if let Some(known) = case["value"].as_str() {
            assert_eq!(hex(&value), known);
        }
    }
}

#[test]
fn orders_and_draws_are_the_known_ones() {
    for case in cases("permutations") {
        let order = Permutation::limited(number(&case["n"]), number(&case["seed"]));
        let first = numbers(&case["first"]);
        let mut position = 0..;
        let found = draw(first.len(), || order.at(position.next().unwrap()));
        assert_eq!(found, first);
    }
    for case in cases("picks") {
        let distribution = match case["distribution"].as_str().unwrap() {
            "sequential" => Distribution::Sequential,
            "uniform" => Distribution::Uniform,
            "permutation" => Distribution::Permutation,
            other => panic!("unknown distribution {other}"),
        };
        let of = |name: &str| number(&case[name]) as u32;
        let stream = Stream::new(number(&case["seed"]), of("thread"), of("threads")).unwrap();
        let mut pick = Pick::new(&distribution, stream.lane(of("lane"))).unwrap();
        let (items, drawn) = (number(&case["items"]), numbers(&case["drawn"]));
        assert_eq!(draw(drawn.len(), || pick.next(items)), drawn, "{case}");
    }
}

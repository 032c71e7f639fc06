//! Tests of values: what they contain, how they compress, and that every damage is found.

use super::super::pareto::Pareto;
use super::*;
use proptest::prelude::*;

fn fixed(bytes: usize, ratio: f64) -> Values {
    Values::new(Sizes::Fixed(bytes), ratio, 1).unwrap()
}

fn value(values: &Values, record: u64, version: u64) -> Vec<u8> {
    let mut value = Vec::new();
    values.write(record, version, &mut value);
    value
}

/// Values one after the other, as they lie in a block without its keys.
fn block(values: &Values, bytes: usize) -> Vec<u8> {
    let mut block = Vec::new();
    for record in 0.. {
        if block.len() >= bytes {
            break;
        }
        block.extend_from_slice(&value(values, record, 0));
    }
    block
}

fn lz4(bytes: &[u8]) -> f64 {
    lz4_flex::block::compress(bytes).len() as f64 / bytes.len() as f64
}

fn zstd(bytes: &[u8]) -> f64 {
    zstd::bulk::compress(bytes, 3).unwrap().len() as f64 / bytes.len() as f64
}

#[test]
fn blocks_compress_to_the_ratio_asked_for() {
    for bytes in [64, 100, 128, 400, 1024, 4096, 100_000] {
        for ratio in [0.25, 0.5, 0.75, 1.0] {
            if bytes < 100 && ratio < 0.5 {
                continue;
            }
            let values = fixed(bytes, ratio);
            for block_bytes in [32 << 10, 1 << 20] {
                let block = block(&values, block_bytes);
                let (lz4, zstd) = (lz4(&block), zstd(&block));
                let text = format!("{bytes} bytes, {ratio}: lz4 {lz4:.3}, zstd {zstd:.3}");
                assert!((lz4 - ratio).abs() < 0.06, "{text}");
                assert!((zstd - ratio).abs() < 0.06, "{text}");
            }
        }
    }
}

#[test]
fn sizes_that_vary_compress_to_the_ratio_too() {
    let values = Values::new(Sizes::Uniform { min: 50, max: 1000 }, 0.5, 3).unwrap();
    let block = block(&values, 1 << 20);
    assert!((lz4(&block) - 0.5).abs() < 0.06, "{}", lz4(&block));
    assert!((zstd(&block) - 0.5).abs() < 0.06, "{}", zstd(&block));
}

#[test]
fn incompressible_values_do_not_repeat_each_other_in_a_large_window() {
    // zstd sees 8 MiB here, which is 128 times the pool.
    for bytes in [100, 1000, 300_000] {
        let block = block(&fixed(bytes, 1.0), 8 << 20);
        let compressed = zstd::bulk::compress(&block, 9).unwrap().len();
        assert!(
            compressed as f64 > 0.999 * block.len() as f64,
            "{bytes}: {compressed}"
        );
    }
}

#[test]
fn versions_of_a_record_do_not_repeat_each_other() {
    let values = fixed(1000, 1.0);
    let block: Vec<u8> = (0..500)
        .flat_map(|version| value(&values, 7, version))
        .collect();
    assert!(zstd(&block) > 0.999);
}

#[test]
fn the_same_seed_gives_the_same_values_and_another_seed_others() {
    let [a, b, c] = [1, 1, 2].map(|seed| Values::new(Sizes::Fixed(100), 0.5, seed).unwrap());
    assert_eq!(value(&a, 5, 3), value(&b, 5, 3));
    assert_ne!(value(&a, 5, 3), value(&c, 5, 3));
}

/// Guards the format: values of an earlier run stay readable.
#[test]
fn the_contents_never_change() {
    let hash = |values: &Values| {
        let bytes: Vec<u8> = (0..50)
            .flat_map(|record| value(values, record, record * 3))
            .collect();
        bytes.chunks(8).fold(0u64, |hash, chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            mix(hash ^ u64::from_le_bytes(word))
        })
    };
    let small = [hash(&fixed(5, 1.0)), hash(&fixed(100, 0.5))];
    let uniform = Values::new(
        Sizes::Uniform {
            min: 0,
            max: 200_000,
        },
        1.0,
        9,
    )
    .unwrap();
    let reference = [5_790_655_313_415_571_059, 14_014_887_352_885_482_641];
    assert_eq!(small, reference);
    assert_eq!(hash(&uniform), 8_608_861_974_566_104_468);
}

#[test]
fn a_value_of_another_record_or_version_is_found() {
    let values = fixed(100, 1.0);
    let seven = value(&values, 7, 2);
    assert_eq!(values.identity(&seven), Some((7, 2)));
    assert_eq!(values.verify(7, None, &seven), Ok(()));
    assert_eq!(values.verify(7, Some(2), &seven), Ok(()));
    let record = Mismatch::Record {
        expected: 8,
        found: 7,
    };
    assert_eq!(values.verify(8, None, &seven), Err(record));
    let version = Mismatch::Version {
        record: 7,
        expected: 3,
        found: 2,
    };
    assert_eq!(values.verify(7, Some(3), &seven), Err(version));
}

#[test]
fn a_wrong_size_is_found() {
    let values = fixed(100, 1.0);
    let mut cut = value(&values, 7, 0);
    cut.pop();
    let size = Mismatch::Size {
        record: 7,
        version: 0,
        expected: 100,
        found: 99,
    };
    assert_eq!(values.verify(7, None, &cut), Err(size));
    assert!(values.verify(7, Some(0), &[]).is_err());
    assert!(values.verify(7, None, &[]).is_err());
}

#[test]
fn a_mismatch_says_what_differed_and_where() {
    let values = fixed(100, 1.0);
    let mut bytes = value(&values, 7, 2);
    bytes[42] ^= 0xff;
    let message = values.verify(7, None, &bytes).unwrap_err().to_string();
    assert!(message.contains("record 7, version 2"), "{message}");
    assert!(message.contains("at offset 42"), "{message}");
}

#[test]
fn every_changed_byte_of_a_short_value_is_found() {
    for bytes in 8..50 {
        let values = fixed(bytes, 0.7);
        for at in 0..bytes {
            let mut damaged = value(&values, 9, 1);
            damaged[at] ^= 1;
            assert!(
                values.verify(9, Some(1), &damaged).is_err(),
                "{at} of {bytes}"
            );
        }
    }
}

#[test]
fn small_values_of_different_versions_and_records_differ() {
    for bytes in 4..8 {
        let values = fixed(bytes, 1.0);
        let mut all: Vec<_> = (0..1600).map(|i| value(&values, i / 16, i % 16)).collect();
        assert!(values.verify(3, Some(19), &value(&values, 3, 3)).is_ok());
        assert!(values.verify(3, Some(4), &value(&values, 3, 3)).is_err());
        assert!(values.verify(3, None, &value(&values, 4, 0)).is_err());
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 1600);
    }
}

#[test]
fn senseless_ratios_are_refused() {
    for ratio in [0.0, -1.0, 1.01, f64::NAN] {
        assert!(Values::new(Sizes::Fixed(1), ratio, 1).is_err());
    }
}

#[test]
fn writing_into_a_used_buffer_does_not_allocate() {
    let values = Values::new(Sizes::Uniform { min: 0, max: 5000 }, 0.5, 1).unwrap();
    let mut buffer = Vec::with_capacity(values.max_bytes());
    let place = buffer.as_ptr();
    (0..1000).for_each(|record| values.write(record, 0, &mut buffer));
    assert_eq!(buffer.as_ptr(), place);
}

fn any_sizes() -> impl Strategy<Value = Sizes> {
    let distribution = Pareto {
        theta: 0.0,
        k: 0.2615,
        sigma: 25.45,
    };
    prop_oneof![
        (0usize..3000).prop_map(Sizes::Fixed),
        (0usize..20, 0usize..3000).prop_map(|(min, span)| Sizes::Uniform {
            min,
            max: min + span
        }),
        Just(Sizes::Pareto {
            distribution,
            min: 1,
            max: 2000
        }),
        (60_000usize..300_000).prop_map(Sizes::Fixed),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_value_verifies_for_its_record_and_version(
        sizes in any_sizes(), ratio in 0.1f64..=1.0, record: u64, version: u64,
    ) {
        let values = Values::new(sizes, ratio, 5).unwrap();
        let bytes = value(&values, record, version);
        prop_assert_eq!(bytes.len(), values.size(record, version));
        prop_assert_eq!(values.verify(record, Some(version), &bytes), Ok(()));
        prop_assert_eq!(values.verify(record, None, &bytes), Ok(()));
    }

    #[test]
    fn every_changed_byte_is_found(
        bytes in 1usize..3000, record: u64, version: u64, at: prop::sample::Index, bit in 0u32..8,
    ) {
        let values = fixed(bytes, 0.7);
        let mut damaged = value(&values, record, version);
        let at = at.index(bytes);
        damaged[at] ^= 1 << bit;
        let found = values.verify(record, Some(version), &damaged);
        prop_assert!(found.is_err());
        if at >= HEADER_BYTES {
            let located = matches!(found, Err(Mismatch::Byte { offset, .. }) if offset == at);
            prop_assert!(located, "{:?}", found);
            prop_assert!(values.verify(record, None, &damaged).is_err());
        }
    }
}

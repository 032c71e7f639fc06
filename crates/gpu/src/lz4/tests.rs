//! Decoder and encoder on the emulated device, against `lz4_flex`.

use std::sync::Arc;

use siltstone_storage::{Epoch, MemoryStorage, Runtime};
use siltstone_table::exec::{ExecContext, InputMap};

use super::*;
use crate::device::Device;
use crate::device::emulated::EmulatedDevice;
use crate::lane::{LaneSizes, Pool};

/// Runs `test` in a lane of an emulated device.
fn in_lane<T>(memory_bytes: u64, seed: u64, test: impl FnOnce(&mut Work) -> T) -> T {
    let runtime = Runtime::threads();
    let device: Arc<dyn Device> = Arc::new(EmulatedDevice::new(&runtime, memory_bytes, seed));
    let sizes = LaneSizes {
        memory_bytes,
        staging_bytes: 1 << 20,
        ring_bytes: 4096,
        ring_count: 2,
    };
    let pool = Pool::open(&device, &runtime, sizes, 1, None).unwrap();
    let storage = Arc::new(MemoryStorage::new(&runtime));
    let inputs = Arc::new(InputMap::new());
    let ctx = ExecContext::new(runtime, inputs, storage, Epoch(1));
    test(&mut pool.take(&ctx).unwrap())
}

/// Random numbers from a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// A stored part, and the length that the header says it has uncompressed.
struct Case {
    stored: Vec<u8>,
    len: usize,
}

/// What stands where nothing may be written.
const GUARD: u8 = 0xee;

/// Decodes all cases on the device, and compares with `lz4_flex`: what is accepted, and the bytes.
/// Returns how many were accepted.
fn compare_decoders(cases: &[Case], seed: u64) -> usize {
    let (mut bytes, mut parts) = (Vec::new(), Vec::new());
    for case in cases {
        bytes.extend_from_slice(&case.stored);
        bytes.push(GUARD);
    }
    let mut from = 0;
    for case in cases {
        bytes.resize(bytes.len().next_multiple_of(8) + 8, GUARD);
        let none = Lz4Part {
            from: 0,
            to: 0,
            from_bytes: 0,
            to_bytes: 0,
            is_used: 0,
        };
        let part = Lz4Part {
            from,
            to: bytes.len() as u64,
            from_bytes: case.stored.len() as u64,
            to_bytes: case.len as u32,
            is_used: 1,
        };
        parts.extend([part, none]);
        from += case.stored.len() as u64 + 1;
        bytes.resize(bytes.len() + case.len, GUARD);
    }
    bytes.resize(bytes.len() + 64, GUARD);
    let memory_bytes = 2 * bytes.len() as u64 + 200 * cases.len() as u64 + (4 << 20);
    let (errors, found) = in_lane(memory_bytes, seed, |work| {
        let array = work.upload(&bytes).unwrap();
        let parts = work.upload(&parts).unwrap();
        let errors: Array<u64> = work.take(cases.len() as u64).unwrap();
        work.fill(errors, 0xff).unwrap();
        for case in 0..cases.len() as u64 {
            let args = Lz4Decode {
                bytes: array,
                parts: parts.part(2 * case, 2),
                errors: errors.part(case, 1),
                count: 1,
            };
            work.launch_blocks("lz4_decode", 1, 2, &args).unwrap();
        }
        (work.read(errors).unwrap(), work.read(array).unwrap())
    });
    let mut accepted = 0;
    for (number, case) in cases.iter().enumerate() {
        let mut want = vec![0; case.len];
        let decoded = lz4_flex::block::decompress_into(&case.stored, &mut want);
        let is_sound = matches!(decoded, Ok(len) if len == case.len);
        let text = || format!("case {number}: {:02x?} to {} bytes", case.stored, case.len);
        let error = if is_sound { u64::MAX } else { 1 };
        assert_eq!(errors[number], error, "{}, {decoded:?}", text());
        let at = parts[2 * number].to as usize;
        if is_sound {
            accepted += 1;
            assert_eq!(found[at..at + case.len], want, "{}", text());
        }
        // The last word of a result is filled with zeros.
        let whole = case.len.next_multiple_of(8);
        bytes[at..at + whole].copy_from_slice(&found[at..at + whole]);
    }
    // Nothing was written elsewhere.
    assert!(bytes == found, "the guards have other bytes");
    accepted
}

/// Sequences of the format with lengths and distances that mostly fit, and now and then do not.
fn random_sequences(random: &mut Random) -> Case {
    let (mut stored, mut len) = (Vec::new(), 0);
    let put_length = |stored: &mut Vec<u8>, mut length: usize| {
        while length >= 255 {
            stored.push(255);
            length -= 255;
        }
        stored.push(length as u8);
    };
    let is_wrong = |random: &mut Random| random.below(40) == 0;
    for _ in 0..random.below(12) {
        let literals = match random.below(8) {
            0 => random.below(600),
            _ => random.below(18),
        };
        let matched = match random.below(8) {
            0 => random.below(1000),
            _ => random.below(20),
        };
        stored.push((literals.min(15) << 4 | matched.min(15)) as u8);
        if literals >= 15 {
            put_length(&mut stored, literals - 15);
        }
        stored.extend(random.bytes(literals));
        len += literals;
        let distance = match is_wrong(random) {
            true => random.below(1 << 16),
            false if random.below(2) == 0 => 1 + random.below(len.min(20)),
            false => 1 + random.below(len),
        };
        stored.extend_from_slice(&(distance as u16).to_le_bytes());
        if matched >= 15 {
            put_length(&mut stored, matched - 15);
        }
        len += matched + 4;
    }
    // The last sequence may have a length of a match in its token.
    let literals = random.below(20);
    stored.push((literals.min(15) << 4 | random.below(16)) as u8);
    if literals >= 15 {
        put_length(&mut stored, literals - 15);
    }
    stored.extend(random.bytes(literals));
    len += literals;
    if is_wrong(random) {
        len = (len + random.below(9)).saturating_sub(4);
    }
    Case { stored, len }
}

#[test]
fn the_decoder_accepts_what_lz4_flex_accepts() {
    let mut random = Random(1);
    let mut cases = Vec::new();
    for (stored, len) in [
        (vec![], 0),
        (vec![0], 0),
        (vec![15], 0),
        (vec![0], 1),
        (vec![0, 0], 0),
        (vec![0xf0], 15),
        (vec![0xf0, 255], 300),
        (vec![0x10, 7], 1),
        (vec![0x10, 7, 1, 0], 5),
        (vec![0x10, 7, 1, 0, 0], 5),
        (vec![0x10, 7, 0, 0, 0], 5),
        (vec![0x10, 7, 2, 0, 0], 5),
        (vec![0x1f, 7, 1, 0, 255, 255, 3, 0], 533),
        (vec![0x1f, 7, 1, 0, 255, 255, 3, 0x10, 9], 534),
    ] {
        cases.push(Case { stored, len });
    }
    cases.extend((0..4000).map(|_| random_sequences(&mut random)));
    for _ in 0..2000 {
        let (len, most) = (random.below(40), random.below(200));
        let mut stored = random.bytes(len);
        // Small numbers are more often lengths and distances that fit.
        stored.iter_mut().for_each(|byte| *byte %= 1 + most as u8);
        let len = random.below(60);
        cases.push(Case { stored, len });
    }
    let accepted = compare_decoders(&cases, 7);
    assert!((2000..5000).contains(&accepted), "{accepted}");
}

#[test]
fn parts_that_are_cut_or_changed_are_judged_as_lz4_flex_does() {
    let mut random = Random(2);
    let mut cases = Vec::new();
    for kind in KINDS {
        let raw = data(&mut random, kind, 700);
        let stored = lz4_flex::block::compress(&raw);
        let add = |stored: &[u8], len| Case {
            stored: stored.to_vec(),
            len,
        };
        for len in [raw.len(), raw.len() - 1, raw.len() + 1, 0] {
            cases.push(add(&stored, len));
        }
        cases.extend((0..stored.len()).map(|len| add(&stored[..len], raw.len())));
        cases.push(add(&[&stored[..], &[0]].concat(), raw.len()));
        for _ in 0..600 {
            let mut changed = stored.clone();
            let bit = random.below(8 * stored.len());
            changed[bit / 8] ^= 1 << (bit % 8);
            cases.push(add(&changed, raw.len()));
        }
        // A larger one, whole.
        let raw = data(&mut random, kind, 70_000);
        cases.push(add(&lz4_flex::block::compress(&raw), raw.len()));
    }
    let accepted = compare_decoders(&cases, 3);
    assert!(accepted > 2 * KINDS.len(), "{accepted}");
}

/// How the bytes of a part look.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Words of a small language, some more frequent than others.
    Text,
    /// Records with named fields.
    Fields,
    /// Fixed structures of numbers, of which some ascend.
    Numbers,
    /// Keys of a column: short, with growing numbers.
    Tails,
    /// Half random, half repeated.
    Halves,
    Zeros,
    Noise,
}

const KINDS: [Kind; 7] = [
    Kind::Text,
    Kind::Fields,
    Kind::Numbers,
    Kind::Tails,
    Kind::Halves,
    Kind::Zeros,
    Kind::Noise,
];

fn data(random: &mut Random, kind: Kind, len: usize) -> Vec<u8> {
    let syllables = [
        "sil", "t", "sto", "ne", "ra", "in", "wa", "ter", "la", "yer", "ro", "ck",
    ];
    let word_of = |number: usize| -> String {
        let mut mixed = Random(number as u64);
        let count = 1 + mixed.below(3);
        (0..count).map(|_| syllables[mixed.below(12)]).collect()
    };
    let mut out = Vec::new();
    let mut number = random.below(1 << 20);
    while out.len() < len {
        match kind {
            Kind::Text => {
                let most = 1 << (1 + random.below(11));
                out.extend(word_of(random.below(most)).bytes());
                out.push(if random.below(9) == 0 { b'.' } else { b' ' });
            }
            Kind::Fields => {
                number += random.below(50);
                let name = word_of(random.below(500));
                let text = format!(
                    "{{\"id\":{number},\"name\":\"{name}\",\"email\":\"{name}{}@example.com\",\
                     \"score\":{},\"active\":{}}}",
                    random.below(100),
                    random.below(100_000),
                    random.below(2) == 0,
                );
                out.extend(text.bytes());
            }
            Kind::Numbers => {
                number += 1 + random.below(3);
                out.extend_from_slice(&(number as u64).to_le_bytes());
                out.extend_from_slice(&(random.below(1000) as u32).to_le_bytes());
                out.extend_from_slice(&[0, 1, 2, 3]);
                out.extend_from_slice(&(random.below(256) as u64).to_le_bytes());
            }
            Kind::Tails => {
                number += 1 + random.below(20);
                out.extend(format!("{number:010}").bytes());
            }
            Kind::Halves => {
                let bytes = random.bytes(32);
                out.extend_from_slice(&bytes);
                out.extend_from_slice(&bytes);
            }
            Kind::Zeros => out.push(0),
            Kind::Noise => out.push(random.next() as u8),
        }
    }
    out.truncate(len);
    out
}

/// Encodes parts on the device. A part that stays as it is has no bytes.
fn encode_on_device(raws: &[Vec<u8>], memory_bytes: u64, seed: u64) -> Vec<Vec<u8>> {
    let (mut bytes, mut parts, mut to) = (Vec::new(), Vec::new(), 0);
    for raw in raws {
        let most = (raw.len() - raw.len() / 8) as u32;
        parts.push(Lz4Part {
            from: bytes.len() as u64,
            to,
            from_bytes: raw.len() as u64,
            to_bytes: most,
            is_used: u32::from(raw.len() >= 64),
        });
        bytes.extend_from_slice(raw);
        to += u64::from(most).next_multiple_of(8) + 8;
    }
    bytes.resize(bytes.len() + SLACK_BYTES as usize, 0xaa);
    in_lane(memory_bytes, seed, |work| {
        let from = work.upload(&bytes).unwrap();
        let array = work.upload(&parts).unwrap();
        let out = work.take(to).unwrap();
        work.fill(out, GUARD).unwrap();
        let sizes = work.take(raws.len() as u64).unwrap();
        encode_parts(work, from, out, array, sizes, false).unwrap();
        encode_parts(work, from, out, array, sizes, true).unwrap();
        let sizes: Vec<u32> = work.read(sizes).unwrap();
        let out: Vec<u8> = work.read(out).unwrap();
        let result = |(part, size): (&Lz4Part, &u32)| {
            let (begin, end) = (part.to as usize, part.to as usize + *size as usize);
            assert!(*size <= part.to_bytes);
            let after = (part.to as usize + part.to_bytes as usize).next_multiple_of(8);
            assert!(out[after..after + 8].iter().all(|byte| *byte == GUARD));
            out[begin..end].to_vec()
        };
        parts.iter().zip(&sizes).map(result).collect()
    })
}

/// The length of which a token has `nibble`.
fn length_of(nibble: u8, stored: &[u8], at: &mut usize) -> usize {
    let mut length = usize::from(nibble);
    let mut goes_on = nibble == 15;
    while goes_on {
        let byte = stored[*at];
        *at += 1;
        length += usize::from(byte);
        goes_on = byte == 255;
    }
    length
}

/// Checks what the format says of the end of a block: the last five bytes are literals, and the
/// last match begins at least twelve bytes before the end.
fn check_end(stored: &[u8], len: usize) {
    let (mut at, mut done, mut last_match) = (0, 0, None);
    loop {
        let token = stored[at];
        at += 1;
        let literals = length_of(token >> 4, stored, &mut at);
        at += literals;
        done += literals;
        if at == stored.len() {
            assert!(literals >= 5 && done == len);
            assert!(last_match.is_none_or(|begin| begin + 12 <= len));
            return;
        }
        at += 2;
        last_match = Some(done);
        done += 4 + length_of(token & 15, stored, &mut at);
    }
}

#[test]
fn encoded_parts_decode_and_are_as_small_as_those_of_lz4_flex() {
    let mut random = Random(3);
    for kind in KINDS {
        for len in [100, 500, 2000, 4096, 8192, 32_768, 100_000] {
            let count = (200_000 / len).clamp(2, 200);
            let raws: Vec<Vec<u8>> = (0..count).map(|_| data(&mut random, kind, len)).collect();
            // With little memory, some rounds are needed.
            let memory_bytes = (2 << 20) + 3 * (len * count) as u64;
            let encoded = encode_on_device(&raws, memory_bytes, len as u64);
            let (mut own, mut flex) = (0, 0);
            for (raw, stored) in raws.iter().zip(&encoded) {
                let most = raw.len() - raw.len() / 8;
                let other = lz4_flex::block::compress(raw).len();
                own += if stored.is_empty() {
                    raw.len()
                } else {
                    stored.len()
                };
                flex += if other > most { raw.len() } else { other };
                if !stored.is_empty() {
                    let mut back = vec![0; raw.len()];
                    let decoded = lz4_flex::block::decompress_into(stored, &mut back);
                    assert_eq!(decoded.unwrap(), raw.len());
                    assert!(back == *raw);
                    check_end(stored, raw.len());
                }
            }
            let all = (len * count) as f64;
            println!(
                "{kind:?}, parts of {len} bytes: {:.3}, lz4_flex {:.3}, {:.3} times as large",
                own as f64 / all,
                flex as f64 / all,
                own as f64 / flex as f64
            );
            assert!(
                own as f64 <= 1.05 * flex as f64,
                "{kind:?} {len}: {own} {flex}"
            );
        }
    }
}

#[test]
fn parts_of_all_small_lengths_are_encoded() {
    let mut random = Random(4);
    let mut raws = Vec::new();
    for len in 64..200 {
        raws.extend(KINDS.map(|kind| data(&mut random, kind, len)));
    }
    let encoded = encode_on_device(&raws, 4 << 20, 5);
    let mut compressed = 0;
    for (raw, stored) in raws.iter().zip(&encoded) {
        if !stored.is_empty() {
            compressed += 1;
            assert!(stored.len() <= raw.len() - raw.len() / 8);
            assert_eq!(
                lz4_flex::block::decompress(stored, raw.len()).unwrap(),
                *raw
            );
            check_end(stored, raw.len());
        }
    }
    assert!(
        compressed > raws.len() / 3,
        "{compressed} of {}",
        raws.len()
    );
}

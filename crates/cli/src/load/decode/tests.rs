//! Tests of decoding.

use std::io::Write;

use flate2::write::GzEncoder;

use super::*;

const TEXT: Expected = Expected::Text { is_guess: true };

/// Returns one byte at a time.
struct Slow<'a>(&'a [u8]);

impl Read for Slow<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = buffer.len().min(1);
        self.0.read(&mut buffer[..len])
    }
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn zstd(text: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 3).unwrap();
    encoder.include_checksum(true).unwrap();
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn utf16(text: &str, big: bool) -> Vec<u8> {
    let units = ['\u{feff}'].into_iter().chain(text.chars());
    let units: String = units.collect();
    let bytes = |unit: u16| match big {
        true => unit.to_be_bytes(),
        false => unit.to_le_bytes(),
    };
    units.encode_utf16().flat_map(bytes).collect()
}

/// The decoded bytes of an input, and the error that stopped it, for pieces of any size.
fn read(input: &[u8]) -> (Vec<u8>, String) {
    let all = |input: Box<dyn Read + '_>| {
        let mut found = Vec::new();
        let error = match decoded(input, TEXT) {
            Ok(mut decoded) => {
                let error = decoded.bytes.read_to_end(&mut found).err();
                match decoded.trailing.get() {
                    0 => error,
                    len => return (found, format!("{len} trailing bytes")),
                }
            }
            Err(Undecodable::Io(error)) => Some(error),
            Err(Undecodable::Refused(refusal)) => return (found, refusal.what),
        };
        (found, error.map(|e| e.to_string()).unwrap_or_default())
    };
    let whole = all(Box::new(input));
    let slow = all(Box::new(Slow(input)));
    assert_eq!(whole.0, slow.0, "the same bytes");
    assert_eq!(
        whole.1.is_empty(),
        slow.1.is_empty(),
        "{} {}",
        whole.1,
        slow.1
    );
    whole
}

fn text(lines: u64) -> Vec<u8> {
    (0..lines)
        .flat_map(|n| format!("{n},Zoë 😀 {}\n", n * 7919).into_bytes())
        .collect()
}

#[test]
fn what_was_compressed_or_encoded_is_read() {
    for lines in [0, 1, 10, 20_000] {
        let plain = text(lines);
        let as_text = std::str::from_utf8(&plain).unwrap();
        for bytes in [
            plain.clone(),
            gzip(&plain),
            zstd(&plain),
            utf16(as_text, true),
            utf16(as_text, false),
            gzip(&utf16(as_text, false)),
            zstd(&utf16(as_text, true)),
        ] {
            assert_eq!(read(&bytes), (plain.clone(), String::new()), "{lines}");
        }
    }
    // The format that `pzstd` writes; it was mistaken for binary data.
    let skipped = b"\x50\x2a\x4d\x18\x04\0\0\0size";
    let frame = [&skipped[..], &zstd(&text(700))].concat();
    assert_eq!(read(&frame.repeat(2)), (text(700).repeat(2), String::new()));
    // Several members and frames, one after the other.
    let twice = [text(700), text(700)].concat();
    for encode in [gzip, zstd] {
        let bytes = [encode(&text(700)), encode(b""), encode(&text(700))].concat();
        assert_eq!(read(&bytes), (twice.clone(), String::new()));
    }
}

#[test]
fn what_is_cut_off_or_damaged_is_never_an_end() {
    let plain = text(2_000);
    for encode in [gzip, zstd] {
        let whole = [encode(&plain), encode(&plain)].concat();
        let first = encode(&plain).len();
        for cut in (1..whole.len())
            .step_by(97)
            .chain([first + 1, first + 5, whole.len() - 1])
        {
            // A cut between two members cannot be distinguished from an end.
            if cut == first || cut < 4 {
                continue;
            }
            let (found, error) = read(&whole[..cut]);
            assert!(
                error.contains("cut off"),
                "{cut} of {}: {error}",
                whole.len()
            );
            assert!(plain.repeat(2).starts_with(&found));
        }
        let mut seen = 0;
        for at in (20..whole.len()).step_by(211) {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            let (found, error) = read(&damaged);
            // A flipped bit may be unused; the decoded text is never another one.
            assert!(!error.is_empty() || found == plain.repeat(2), "{at}");
            seen += usize::from(!error.is_empty());
        }
        assert!(seen > 10, "{seen}");
        let (found, error) = read(&[encode(&plain), b"garbage at the end".to_vec()].concat());
        assert_eq!((found, &error[..]), (plain.clone(), "18 trailing bytes"));
        // The padding of a tape.
        let (found, error) = read(&[encode(&plain), vec![0; 100_000]].concat());
        assert_eq!((found, &error[..]), (plain.clone(), ""));
        let padded = [encode(&plain), vec![0; 3], b"x".to_vec()].concat();
        assert_eq!(read(&padded).1, "4 trailing bytes");
    }
}

#[test]
fn utf16_that_is_none_is_named_by_its_byte() {
    let le = |units: &[u16]| -> Vec<u8> { units.iter().flat_map(|u| u.to_le_bytes()).collect() };
    let (found, error) = read(&le(&[0xfeff, 0x61, 0xd800, 0x62]));
    assert_eq!(found, b"a");
    assert!(
        error.contains("surrogate") && error.contains("byte 4"),
        "{error}"
    );
    let (_, error) = read(&le(&[0xfeff, 0x61, 0xd800]));
    assert!(
        error.contains("surrogate") && error.contains("byte 4"),
        "{error}"
    );
    let mut odd = le(&[0xfeff, 0x61, 0x62]);
    odd.pop();
    let (found, error) = read(&odd);
    assert_eq!(found, b"a");
    assert!(
        error.contains("within a character") && error.contains("byte 4"),
        "{error}"
    );
}

/// A gigabyte of zeros: it is read in pieces, and nothing is kept.
#[test]
fn a_bomb_is_read_in_pieces() {
    let mut bomb = zstd::Encoder::new(Vec::new(), 1).unwrap();
    for _ in 0..256 {
        bomb.write_all(&[b'x'; 1 << 20]).unwrap();
    }
    let bomb = bomb.finish().unwrap();
    assert!(bomb.len() < 100_000, "{}", bomb.len());
    let mut decoded = decoded(&bomb[..], TEXT).unwrap();
    let (mut total, mut piece) = (0, vec![0; 1 << 16]);
    loop {
        let len = decoded.bytes.read(&mut piece).unwrap();
        if len == 0 {
            break;
        }
        total += len;
        assert!(piece[..len].iter().all(|b| *b == b'x'));
    }
    assert_eq!(total, 256 << 20);
    assert_eq!(decoded.read.get(), bomb.len() as u64);
}

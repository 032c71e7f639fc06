//! Tests of the CSV reader.

use siltstone::batch::MAX_KEY_BYTES;

use super::super::testing::{Read, all, pair};
use super::*;

fn read_by(buffer: usize, text: &[u8]) -> Vec<Read> {
    all(&mut Csv::new(b',', 1 << 20), text, buffer)
}

fn read(text: &[u8]) -> Vec<Read> {
    let found = read_by(1 << 16, text);
    for buffer in [1, 2, 3, 7] {
        assert_eq!(read_by(buffer, text), found, "buffer of {buffer}");
    }
    found
}

#[test]
fn plain_records() {
    assert_eq!(read(b""), []);
    assert_eq!(
        read(b"a,b,c\r\nd\n\n\r\ne,\nf"),
        [
            pair(b"a", b"b,c"),
            pair(b"d", b""),
            pair(b"e", b""),
            pair(b"f", b"")
        ]
    );
    assert_eq!(read(b",x\n"), [pair(b"", b"x")]);
    assert_eq!(read(b"a\"b,c\"d\n"), [pair(b"a\"b", b"c\"d")]);
    assert_eq!(read(b"\xff,\0\n"), [pair(b"\xff", b"\0")]);
}

#[test]
fn quoted_records() {
    assert_eq!(read(b"\"a,b\",c\n"), [pair(b"a,b", b"c")]);
    assert_eq!(
        read(b"\"say \"\"hi\"\"\",\"x\"\"y\"\n"),
        [pair(b"say \"hi\"", b"\"x\"\"y\"")]
    );
    assert_eq!(
        read(b"\"two\r\nlines\",\"and\ntwo\"\r\nnext,1"),
        [pair(b"two\r\nlines", b"\"and\ntwo\""), pair(b"next", b"1")]
    );
    assert_eq!(
        read(b"\"\",x\n\"\"\"\",y\n\"\"\"a\"\r\n"),
        [pair(b"", b"x"), pair(b"\"", b"y"), pair(b"\"a", b"")]
    );
}

#[test]
fn columns_of_keys_and_values() {
    let text = b"a,\"b\"\"b\",c\n\"d\",e,\"f,f\"\n";
    let read = |key: KeyFrom<usize>, value: ValueFrom<usize>| {
        let mut csv = Csv::new(b',', 1000);
        (csv.key_from, csv.value_from) = (key, value);
        all(&mut csv, text, 3)
    };
    let columns = |columns: &[usize]| KeyFrom::Parts(columns.to_vec());
    assert_eq!(
        read(columns(&[1, 0]), ValueFrom::Rest),
        [pair(b"b\"b/a", b"c"), pair(b"e/d", b"\"f,f\"")]
    );
    assert_eq!(
        read(columns(&[2]), ValueFrom::Rest),
        [pair(b"c", b"a,\"b\"\"b\""), pair(b"f,f", b"\"d\",e")]
    );
    // A column alone is its text, several stay CSV.
    assert_eq!(
        read(columns(&[0]), ValueFrom::Parts(vec![2])),
        [pair(b"a", b"c"), pair(b"d", b"f,f")]
    );
    assert_eq!(
        read(columns(&[0]), ValueFrom::Parts(vec![2, 1])),
        [pair(b"a", b"c,\"b\"\"b\""), pair(b"d", b"\"f,f\",e")]
    );
    assert_eq!(
        read(KeyFrom::Number, ValueFrom::Whole),
        [
            pair(b"000000000001", b"a,\"b\"\"b\",c"),
            pair(b"000000000002", b"\"d\",e,\"f,f\"")
        ]
    );
    let found = read(columns(&[3]), ValueFrom::Whole);
    let bad = found[1].as_ref().unwrap_err();
    assert_eq!((bad.record, bad.line, bad.offset), (2, Some(2), 11));
    assert!(bad.what.contains("column 4") && bad.what.contains('3'));
    let mut csv = Csv::new(b',', 1000);
    let mut source = Source::with_buffer(&text[..], 2);
    assert_eq!(
        csv.names(&mut source).unwrap(),
        Ok(vec![b"a".to_vec(), b"b\"b".to_vec(), b"c".to_vec()])
    );
}

#[test]
fn bad_records_are_named_and_reading_goes_on() {
    let found = read(b"a,1\n\"b\"x,2\nc,3\n");
    let bad = found[1].as_ref().unwrap_err();
    assert_eq!((bad.record, bad.line, bad.offset), (2, Some(2), 4));
    assert!(bad.what.contains("closing quote"), "{}", bad.what);
    assert_eq!(
        (&found[0], &found[2]),
        (&pair(b"a", b"1"), &pair(b"c", b"3"))
    );

    let found = read(b"a,\"x\ny\"\n\"torn,\nmore\n");
    let bad = found[1].as_ref().unwrap_err();
    assert_eq!(
        bad.to_string(),
        "record 2 (line 3) at byte 8: a quote that opens in line 3 is never closed"
    );
    assert_eq!(found.len(), 2);

    let long = [&vec![b'k'; MAX_KEY_BYTES + 1][..], b",v\n"].concat();
    let found = read(&[&long[..], b"z,9\n"].concat());
    assert!(found[0].as_ref().unwrap_err().what.contains("65536"));
    assert_eq!(found[1], pair(b"z", b"9"));
    // Quotes count double in the input and once in the key.
    let fits = [b"\"", &b"\"\"".repeat(MAX_KEY_BYTES)[..], b"\",v"].concat();
    assert_eq!(
        read_by(1 << 16, &fits),
        [pair(&b"\"".repeat(MAX_KEY_BYTES), b"v")]
    );
}

/// A record was too long or not by how much of it had been read at once (libFuzzer, `cli_load`).
#[test]
fn a_record_is_too_long_whatever_the_buffer() {
    for end in [&b"\n"[..], b"\r\n", b""] {
        let of = |len: usize| [&vec![b'k'; len][..], end].concat();
        let is_good = |len: usize, buffer: usize| {
            let found = all(&mut Csv::new(b',', 20), &of(len), buffer);
            assert_eq!(found.len(), 1, "{len} bytes, {end:?}, buffer of {buffer}");
            match &found[0] {
                Ok(_) => true,
                Err(bad) => {
                    assert!(bad.what.contains("more than 20 bytes"), "{}", bad.what);
                    false
                }
            }
        };
        for buffer in [1, 3, 20, 21, 22, 23, 1 << 10] {
            for len in [1, 19, 20, 21, 22, 23, 24, 100] {
                assert_eq!(is_good(len, buffer), len <= 20, "{len}, {end:?}, {buffer}");
            }
        }
    }
    // The line that the message names is the same, too.
    let text = b"\"aaaaaaaaaaaaaaaaaa\nbb\",\"cc\n\"\nd,1\n";
    let read = |buffer| all(&mut Csv::new(b',', 20), text, buffer);
    let whole = read(1 << 10);
    for buffer in 1..40 {
        assert_eq!(read(buffer), whole, "buffer of {buffer}");
    }
}

#[test]
fn a_quote_left_open_costs_no_more_than_the_limit() {
    let text = [b"a,1\nb,\"", &b"x,y\n".repeat(5_000)[..]].concat();
    let mut csv = Csv::new(b',', 1000);
    let found = all(&mut csv, &text, 64);
    let bad = found[1].as_ref().unwrap_err();
    assert!(
        bad.what.contains("1000 bytes") && bad.what.contains("line 2"),
        "{}",
        bad.what
    );
    // What follows the limit is read again as records.
    assert!(found.len() > 4_000, "{}", found.len());
    assert_eq!(found[10], pair(b"x", b"y"));
}

/// Writes fields as RFC 4180 asks.
fn write(fields: &[Vec<u8>]) -> Vec<u8> {
    let quoted = fields.iter().map(|field| {
        if field.iter().any(|b| b",\"\r\n".contains(b)) || fields.len() == 1 {
            [
                b"\"",
                &field
                    .iter()
                    .flat_map(|b| [*b].repeat(1 + usize::from(*b == b'"')))
                    .collect::<Vec<_>>()[..],
                b"\"",
            ]
            .concat()
        } else {
            field.clone()
        }
    });
    quoted.collect::<Vec<_>>().join(&b','.clone())
}

#[test]
fn what_was_written_is_read() {
    let mut seed = 1u64;
    let mut draw = |n: u64| {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (seed >> 33) % n
    };
    for round in 0..500 {
        let (mut text, mut expected) = (Vec::new(), Vec::new());
        for _ in 0..draw(6) {
            let fields: Vec<Vec<u8>> = (0..1 + draw(4))
                .map(|_| {
                    (0..draw(6))
                        .map(|_| b"ab,\"\r\n"[draw(6) as usize])
                        .collect()
                })
                .collect();
            let record = write(&fields);
            text.extend(&record);
            text.extend(if draw(2) == 0 { &b"\r\n"[..] } else { b"\n" });
            let rest = if fields.len() == 1 {
                Vec::new()
            } else {
                write(&fields[1..])
            };
            // A single field is always quoted above, so that an empty one is no empty line.
            expected.push((
                fields[0].clone(),
                if fields.len() == 2 {
                    write_one(&fields[1])
                } else {
                    rest
                },
            ));
        }
        let found: Vec<_> = read_by(1 + round % 5, &text)
            .into_iter()
            .map(Result::unwrap)
            .collect();
        assert_eq!(
            found,
            expected,
            "round {round}: {:?}",
            String::from_utf8_lossy(&text)
        );
    }
}

fn write_one(field: &[u8]) -> Vec<u8> {
    let both = write(&[Vec::new(), field.to_vec()]);
    both[1..].to_vec()
}

//! Tests of the CSV reader.

use siltstone::batch::MAX_KEY_BYTES;

use super::super::testing::{Read, all, pair};
use super::*;

/// A reader with the default limits, except the length of records.
fn csv(record_bytes: usize) -> Csv {
    csv_with(record_bytes, QUOTED_LINES, QUOTED_BYTES)
}

fn csv_with(record_bytes: usize, quoted_lines: u64, quoted_bytes: u64) -> Csv {
    let limits = Limits {
        record_bytes,
        quoted_lines,
        quoted_bytes,
    };
    Csv::new(b',', limits)
}

fn read_by(buffer: usize, text: &[u8]) -> Vec<Read> {
    all(&mut csv(1 << 20), text, buffer)
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
        let mut csv = csv(1000);
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
    // A single column is stored as its text, several stay CSV.
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
    let mut csv = csv(1000);
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
        "record 2 (line 3) at byte 8: the quote that opens in line 3 never closes: it is still \
         open at the end of the input"
    );
    assert_eq!(found[2..], [pair(b"more", b"")]);

    let long = [&vec![b'k'; MAX_KEY_BYTES + 1][..], b",v\n"].concat();
    let found = read(&[&long[..], b"z,9\n"].concat());
    assert!(found[0].as_ref().unwrap_err().what.contains("65536"));
    assert_eq!(found[1], pair(b"z", b"9"));
    // A doubled quote counts twice in the input and once in the key.
    let fits = [b"\"", &b"\"\"".repeat(MAX_KEY_BYTES)[..], b"\",v"].concat();
    assert_eq!(
        read_by(1 << 16, &fits),
        [pair(&b"\"".repeat(MAX_KEY_BYTES), b"v")]
    );
}

/// Whether a record was too long depended on how much of it had been read at once (libFuzzer,
/// `cli_load`).
#[test]
fn a_record_is_too_long_whatever_the_buffer() {
    for end in [&b"\n"[..], b"\r\n", b""] {
        let of = |len: usize| [&vec![b'k'; len][..], end].concat();
        let is_good = |len: usize, buffer: usize| {
            let found = all(&mut csv(20), &of(len), buffer);
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
    // The line in the message is the same too.
    let text = b"\"aaaaaaaaaaaaaaaaaa\nbb\",\"cc\n\"\nd,1\n";
    let read = |buffer| all(&mut csv(20), text, buffer);
    let whole = read(1 << 10);
    for buffer in 1..40 {
        assert_eq!(read(buffer), whole, "buffer of {buffer}");
    }
}

/// The result of a reader with these limits, for every size of the buffer.
fn read_with(lines: u64, bytes: u64, text: &[u8]) -> Vec<Read> {
    let read = |buffer| all(&mut csv_with(1 << 20, lines, bytes), text, buffer);
    let found = read(1 << 16);
    for buffer in [1, 2, 5, 64] {
        assert_eq!(read(buffer), found, "buffer of {buffer}");
    }
    found
}

/// The bad records: their numbers, their first lines, and the lines and bytes that were left out.
fn bad_ones(found: &[Read]) -> Vec<(u64, u64, u64, u64)> {
    let bad = found.iter().filter_map(|f| f.as_ref().err());
    bad.map(|b| {
        (
            b.record,
            b.line.unwrap(),
            b.left_out.lines,
            b.left_out.bytes,
        )
    })
    .collect()
}

/// One stray quote made one bad record of everything after it.
#[test]
fn a_quote_left_open_costs_its_line() {
    for end in ["\n", "\r\n"] {
        let line = |text: &str| format!("{text}{end}");
        let good = |n: u64| line(&format!("k{n},v{n}"));
        for (what, bad) in [
            ("does not close within 10 further lines; if", 3),
            ("never closes: it is still open at the end of the input", 48),
        ] {
            let text: String = (1..=50)
                .map(|n| match n == bad {
                    true => line("bad,\"v"),
                    false => good(n),
                })
                .collect();
            let found = read_with(10, 1 << 10, text.as_bytes());
            assert_eq!(found.len(), 50, "{what}");
            assert_eq!(
                bad_ones(&found),
                [(bad, bad, 1, line("bad,\"v").len() as u64)]
            );
            let said = found[bad as usize - 1].as_ref().unwrap_err();
            assert!(said.what.contains(&format!("line {bad} {what}")), "{said}");
        }
    }
    // It meets the next quote: at the start of a field, at its end, or in lines of their own.
    let text = b"a,1\nb,\"x\nc,3\nd,\"4,4\"\ne,5\nf,\"6\ng,7\n\"h\",8\ni,\"9";
    let found = read_with(100, 1 << 10, text);
    assert_eq!(
        bad_ones(&found),
        [(2, 2, 1, 5), (6, 6, 1, 5), (9, 9, 1, 4)],
        "{found:?}"
    );
    assert_eq!(found[3], pair(b"d", b"\"4,4\""));
    assert_eq!(found[7], pair(b"h", b"8"));
    let said = found[1].as_ref().unwrap_err();
    assert!(
        said.what.contains("next quote, in line 4") && said.what.contains("opens in line 2"),
        "{said}"
    );
    // Many of them, each ended by the next.
    let text = b"k,\"v\nk,w\n".repeat(500);
    let found = read_with(10, 1 << 10, &text);
    assert_eq!((found.len(), bad_ones(&found).len()), (1_000, 500));
}

#[test]
fn a_quoted_field_may_go_on_up_to_its_bounds() {
    let field = |lines: usize| format!("a,\"x{}\"\nb,1\n", "\nyy".repeat(lines)).into_bytes();
    for (lines, bytes) in [(0, 1000), (3, 1000), (1000, 8)] {
        let most = if lines == 3 || lines == 0 {
            lines as usize
        } else {
            2
        };
        let found = read_with(lines, bytes, &field(most));
        assert_eq!(found[1], pair(b"b", b"1"), "{lines} {bytes}");
        assert_eq!(bad_ones(&found), [], "{lines} {bytes}");
        let found = read_with(lines, bytes, &field(most + 1));
        // Only the first line is bad; the lines after it are read as records.
        assert_eq!(
            bad_ones(&found),
            [(1, 1, 1, 5)],
            "{lines} {bytes}: {found:?}"
        );
        assert_eq!(found.last(), Some(&pair(b"b", b"1")));
        let said = found[0].as_ref().unwrap_err();
        let option = if bytes == 8 {
            "--max-quoted-bytes"
        } else {
            "--max-quoted-lines"
        };
        assert!(said.what.contains(option), "{said}");
    }
    // A long field in one line does not span other lines.
    let wide = format!("a,\"{}\"\n", "x".repeat(5_000));
    assert_eq!(bad_ones(&read_with(0, 0, wide.as_bytes())), []);
    // A good field that spans the lines before the bad one belongs to the bad record.
    let text = b"a,\"1\n2\",\"3\nb,4\n";
    let found = read_with(10, 100, text);
    assert_eq!(bad_ones(&found), [(1, 1, 2, 11)]);
    assert_eq!(found[1], pair(b"b", b"4"));
    // A record that is too long before any quote closes costs only its line, too.
    let text = [b"a,1\nb,\"", &b"x,y\n".repeat(5_000)[..]].concat();
    let found = all(&mut csv_with(1000, u64::MAX, u64::MAX), &text, 64);
    assert_eq!(bad_ones(&found), [(2, 2, 1, 7)]);
    assert_eq!(found.len(), 5_001);
    let said = found[1].as_ref().unwrap_err();
    assert!(
        said.what.contains("1000 bytes") && said.what.contains("line 2"),
        "{said}"
    );
}

/// Writes fields as RFC 4180 requires.
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
            // A single field is always quoted above, so that an empty field is not an empty line.
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

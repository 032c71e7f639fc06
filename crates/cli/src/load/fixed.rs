//! Records of one length, a range of whose bytes is the key.

use std::io::{self, Read};
use std::ops::Range;

use siltstone::batch::MAX_KEY_BYTES;

use super::{BadRecord, MAX_RECORD_BYTES, Pair, Records, Step, key_too_long};

/// See the module.
pub struct Fixed<R> {
    input: R,
    record: Vec<u8>,
    key: Range<usize>,
    whole: bool,
    number: u64,
    ended: bool,
}

impl<R: Read> Fixed<R> {
    /// Records of `record_bytes` bytes; `whole`: the value is all of them, else those that are not the key.
    ///
    /// # Errors
    /// What cannot be, in words.
    pub fn new(
        input: R,
        record_bytes: usize,
        key: Range<usize>,
        whole: bool,
    ) -> Result<Fixed<R>, String> {
        if !(1..=MAX_RECORD_BYTES).contains(&record_bytes) {
            return Err(format!(
                "a record has 1 to {MAX_RECORD_BYTES} bytes, not {record_bytes}"
            ));
        }
        if key.is_empty() || key.end > record_bytes {
            return Err(format!(
                "the key's bytes {}..{} do not lie within a record of {record_bytes} bytes",
                key.start, key.end
            ));
        }
        if key.len() > MAX_KEY_BYTES {
            return Err(key_too_long(key.len()));
        }
        Ok(Fixed {
            input,
            record: vec![0; record_bytes],
            key,
            whole,
            number: 0,
            ended: false,
        })
    }
}

impl<R: Read> Records for Fixed<R> {
    fn next(&mut self, pair: &mut Pair) -> io::Result<Step> {
        if self.ended {
            return Ok(Step::End);
        }
        let mut filled = 0;
        while filled < self.record.len() {
            match self.input.read(&mut self.record[filled..]) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if filled < self.record.len() {
            self.ended = true;
            if filled == 0 {
                return Ok(Step::End);
            }
            let what = format!(
                "the input ends {filled} bytes into it, a record has {} bytes",
                self.record.len()
            );
            return Ok(Step::Bad(BadRecord {
                record: self.number + 1,
                line: None,
                what,
            }));
        }
        self.number += 1;
        pair.key.clear();
        pair.key.extend_from_slice(&self.record[self.key.clone()]);
        pair.value.clear();
        if self.whole {
            pair.value.extend_from_slice(&self.record);
        } else {
            pair.value.extend_from_slice(&self.record[..self.key.start]);
            pair.value.extend_from_slice(&self.record[self.key.end..]);
        }
        Ok(Step::Record)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::all;
    use super::*;

    #[test]
    fn keys_and_values_out_of_records() {
        let read = |whole| all(&mut Fixed::new(&b"aKKbcKKd"[..], 4, 1..3, whole).unwrap());
        assert_eq!(
            read(false),
            [
                Ok((b"KK".to_vec(), b"ab".to_vec())),
                Ok((b"KK".to_vec(), b"cd".to_vec()))
            ]
        );
        assert_eq!(read(true)[1], Ok((b"KK".to_vec(), b"cKKd".to_vec())));
    }

    #[test]
    fn a_cut_record_is_bad_and_impossible_lengths_are_refused() {
        let found = all(&mut Fixed::new(&b"aabbc"[..], 2, 0..1, false).unwrap());
        assert_eq!(found.len(), 3);
        let bad = found[2].as_ref().unwrap_err();
        assert_eq!(
            bad.to_string(),
            "record 3: the input ends 1 bytes into it, a record has 2 bytes"
        );
        for (record, key) in [
            (0, 0..1),
            (4, 0..5),
            (4, 4..4),
            (100_000, 0..70_000),
            (usize::MAX, 0..1),
        ] {
            assert!(
                Fixed::new(&b""[..], record, key.clone(), false).is_err(),
                "{record} {key:?}"
            );
        }
    }
}

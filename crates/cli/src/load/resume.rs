//! The position at which an interrupted load continues.
//!
//! The keyspace `silt.load` has an entry for each unfinished load. Its key is `load/`, the
//! keyspace's id, a slash and the name of the input; its value is JSON. It is written in the same
//! batch as the records that it describes, so that both are in the store or neither, and is removed
//! in the batch of the last records. It also holds the totals so far, so that the totals of an
//! interrupted load equal those of a load without interruption.
//!
//! Offsets count decoded bytes: an input that is compressed or UTF-16 is decoded again up to the
//! offset.
//!
//! Invariant: a load continues only if the bytes of the input before the position, and the flags,
//! are the same as in the interrupted load. Keyspace ids are never used again, so a load into a
//! keyspace that was dropped and created again starts from the beginning.

use siltstone::batch::Batch;
use siltstone::{ErrorKind, Keyspace, Store};

use super::source::{Mark, NextElement, Place, Source};
use super::{LeftOut, Lines, MultiLine, Tally};
use crate::failure::Failure;
use crate::output::{bytes, plural};

/// The keyspace that holds the entries.
pub const KEYSPACE: &str = "silt.load";

/// The state of a load, and the entry that stores it.
pub struct Resume {
    key: Vec<u8>,
    /// The flags that decide which part of the input becomes which pair.
    how: String,
    own: Option<Keyspace>,
    /// The state that an earlier load left.
    found: Option<Found>,
    /// Whether there is an entry.
    written: bool,
}

/// The state that an earlier load left.
struct Found {
    how: String,
    offset: u64,
    place: Place,
    digest: String,
    tally: Tally,
}

/// The version of the entries. An entry of another version is refused.
const VERSION: u64 = 4;

impl Resume {
    /// Looks for an earlier load of `input` into `keyspace`.
    ///
    /// # Errors
    /// Those of the store; an entry that cannot be read.
    pub fn find(
        store: &Store,
        keyspace: &Keyspace,
        input: &[u8],
        how: String,
    ) -> Result<Resume, Failure> {
        let key = [format!("load/{}/", keyspace.id()).as_bytes(), input].concat();
        let own = match store.keyspace(KEYSPACE) {
            Ok(own) => Some(own),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        let found = match &own {
            Some(own) => own.get(&key)?,
            None => None,
        };
        let written = found.is_some();
        let found = found
            .map(|value| {
                Found::read(&value).ok_or_else(|| {
                    Failure::Other(format!(
                        "the entry of an earlier load of this input cannot be read (keyspace \
                        `{KEYSPACE}`); --restart loads the input from its start"
                    ))
                })
            })
            .transpose();
        Ok(Resume {
            key,
            how,
            own,
            // Only --restart ignores it.
            found: found?,
            written,
        })
    }

    /// Begins at the input's start, and ignores an earlier load.
    pub fn restart(
        store: &Store,
        keyspace: &Keyspace,
        input: &[u8],
        how: String,
    ) -> Result<Resume, Failure> {
        let own = store.keyspace(KEYSPACE).ok();
        Ok(Resume {
            key: [format!("load/{}/", keyspace.id()).as_bytes(), input].concat(),
            how,
            written: own.is_some(),
            own,
            found: None,
        })
    }

    /// The totals of the earlier parts of this load.
    pub fn tally(&self) -> Tally {
        self.found.as_ref().map(|f| f.tally).unwrap_or_default()
    }

    /// The offset of the input at which an earlier load stopped; 0 if there was none.
    pub fn offset(&self) -> u64 {
        self.found.as_ref().map_or(0, |f| f.offset)
    }

    /// Skips the input to the position at which an earlier load stopped. Returns the result of that
    /// load in words, if there was one.
    ///
    /// # Errors
    /// The input file or the flags differ from those of the interrupted load.
    pub fn go_on(
        &self,
        source: &mut Source<'_>,
        name: &str,
        seen: &mut dyn FnMut(u64),
    ) -> Result<Option<String>, Failure> {
        let Some(found) = &self.found else {
            return Ok(None);
        };
        // The records that were loaded and left out, as counted at the end of that load.
        let left_out = match found.tally.left_out.records {
            0 => String::new(),
            bad => format!(" and left out {}", plural(bad, "bad record")),
        };
        let stopped = format!(
            "an earlier load of {name} stopped after {}{left_out} ({})",
            plural(found.tally.records, "record"),
            bytes(found.offset)
        );
        if found.how != self.how {
            return Err(Failure::Other(format!(
                "{stopped}, with other flags ({}; now {}): give the same flags to continue, or \
                --restart to load the input from its start",
                found.how, self.how
            )));
        }
        let there = source
            .skip_to(found.offset, seen)
            .map_err(|e| Failure::input(name, &e))?;
        source.mark();
        if !there || digest_text(&source.marked()) != found.digest {
            return Err(Failure::Other(format!(
                "{stopped}, and the input before byte {} has changed since; --restart loads it \
                from its start (loaded records stay in the store, and equal keys are replaced)",
                found.offset
            )));
        }
        source.place = found.place;
        source.mark();
        Ok(Some(stopped))
    }

    /// Adds the load's position to a batch: the mark, which the load has reached once the batch is
    /// written. `tally` has the totals of this run and the earlier ones by then.
    ///
    /// # Errors
    /// Those of the store.
    pub fn add(
        &mut self,
        store: &Store,
        mark: &Mark,
        tally: &Tally,
        batch: &mut Batch,
    ) -> Result<(), Failure> {
        let own = match self.own.take() {
            Some(own) => own,
            None => store.open_keyspace(KEYSPACE)?,
        };
        let value = serde_json::json!({
            "version": VERSION,
            "offset": mark.offset,
            "records": mark.place.records,
            "lines": mark.place.lines,
            "next_element": mark.place.next.code(),
            "digest": digest_text(mark),
            "how": self.how,
            "loaded_records": tally.records,
            "loaded_bytes": tally.entry_bytes,
            "multi_line_records": tally.multi_line.records,
            "longest_first_line": tally.multi_line.longest.map(|lines| lines.first),
            "longest_line_count": tally.multi_line.longest.map(|lines| lines.count),
            "left_out_records": tally.left_out.records,
            "left_out_line_count": tally.left_out.lines,
            "left_out_bytes": tally.left_out.bytes,
            "left_out_last_line": tally.left_out.last_line,
        });
        batch.put(&own, &self.key, value.to_string().as_bytes())?;
        self.own = Some(own);
        self.written = true;
        Ok(())
    }

    /// Removes the entry in the last batch, because the load is finished.
    ///
    /// # Errors
    /// Those of the store.
    pub fn end(&self, batch: &mut Batch) -> Result<(), Failure> {
        if let (true, Some(own)) = (self.written, &self.own) {
            batch.delete(own, &self.key)?;
        }
        Ok(())
    }

    /// Drops the keyspace if no load needs it any more.
    ///
    /// # Errors
    /// Those of the store.
    pub fn drop_unused_keyspace(self, store: &Store) -> Result<(), Failure> {
        if let Some(own) = self.own
            && own.iter()?.next().is_none()
        {
            store.drop_keyspace(KEYSPACE)?;
        }
        Ok(())
    }
}

fn digest_text(mark: &Mark) -> String {
    format!("{:032x}", mark.digest)
}

/// The longest record that has several lines.
fn longest_lines(value: &serde_json::Value) -> Option<Lines> {
    Some(Lines {
        first: value["longest_first_line"].as_u64()?,
        count: value["longest_line_count"].as_u64()?,
    })
}

impl Found {
    fn read(value: &[u8]) -> Option<Found> {
        let value: serde_json::Value = serde_json::from_slice(value).ok()?;
        if value["version"] != VERSION {
            return None;
        }
        let offset = value["offset"].as_u64()?;
        // Every record and every line has at least a byte, so counting on from here cannot
        // overflow.
        let count = |name: &str| value[name].as_u64().filter(|count| *count <= offset);
        Some(Found {
            how: value["how"].as_str()?.to_string(),
            offset,
            place: Place {
                records: count("records")?,
                lines: count("lines")?,
                next: NextElement::of_code(value["next_element"].as_u64()?)?,
            },
            digest: value["digest"].as_str()?.to_string(),
            tally: Tally {
                records: value["loaded_records"].as_u64()?,
                entry_bytes: value["loaded_bytes"].as_u64()?,
                multi_line: MultiLine {
                    records: value["multi_line_records"].as_u64()?,
                    longest: match value["longest_first_line"].is_null() {
                        true => None,
                        false => Some(longest_lines(&value)?),
                    },
                },
                left_out: LeftOut {
                    records: value["left_out_records"].as_u64()?,
                    lines: value["left_out_line_count"].as_u64()?,
                    bytes: value["left_out_bytes"].as_u64()?,
                    // Only later records are added to it.
                    first_line: None,
                    // Earlier builds did not write it.
                    last_line: value["left_out_last_line"].as_u64(),
                },
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> serde_json::Value {
        serde_json::json!({
            "version": VERSION, "offset": 40, "records": 3, "lines": 4, "next_element": 0,
            "digest": "", "how": "", "loaded_records": 2, "loaded_bytes": 20,
            "multi_line_records": 1, "longest_first_line": 1, "longest_line_count": 2,
            "left_out_records": 1, "left_out_line_count": 1, "left_out_bytes": 9,
        })
    }

    #[test]
    fn entries_that_cannot_be_are_refused_and_huge_counts_do_not_overflow() {
        let read = |entry: &serde_json::Value| Found::read(entry.to_string().as_bytes());
        assert_eq!(read(&entry()).unwrap().place.lines, 4);
        for name in [
            "version",
            "offset",
            "records",
            "lines",
            "next_element",
            "left_out_bytes",
        ] {
            for wrong in [serde_json::json!(-1), serde_json::json!("x")] {
                let mut entry = entry();
                entry[name] = wrong;
                assert!(read(&entry).is_none(), "{name}");
            }
        }
        let mut huge = entry();
        for name in ["records", "lines"] {
            huge[name] = u64::MAX.into();
            assert!(read(&huge).is_none(), "{name}");
            huge[name] = 1.into();
        }
        for name in [
            "loaded_records",
            "loaded_bytes",
            "multi_line_records",
            "left_out_bytes",
        ] {
            huge[name] = u64::MAX.into();
        }
        let tally = read(&huge).unwrap().tally;
        let mut sum = tally;
        sum += tally;
        assert_eq!(sum.records, u64::MAX);
    }
}

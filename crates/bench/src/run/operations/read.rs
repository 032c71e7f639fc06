//! Reads and scans of a store whose records are known.

use std::sync::atomic::Ordering;

use super::{Failure, Operation, Result, Tools, missing};
use crate::generate::keys::{KeyBuffer, Keys, MAX_KEY_BYTES};
use crate::generate::pick::Pick;
use crate::generate::values::Values;
use crate::measure::Done;
use crate::run::population::Population;
use crate::settings::Kind;

/// A scan of the whole store records its progress, and looks whether the run has ended, after this
/// number of entries.
const LAP_ENTRIES: u64 = 1024;

/// Reads random records.
pub(in crate::run) struct Read {
    pub pick: Pick,
    /// The first draw of the next operation.
    pub ahead: Option<u64>,
    pub records: u64,
    pub left: u64,
    /// Whether keys are read that are not in the store.
    pub absent: bool,
}

impl Operation for Read {
    fn step(&mut self, tools: &mut Tools<'_>) -> Result<Option<Done>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        if self.absent {
            let record = self.pick.next(self.records);
            return tools.get_absent(record).map(Some);
        }
        let first = self.ahead.take();
        let drawn = tools.draw_present_from(&mut self.pick, first, self.records);
        if self.left > 0 {
            // Its bit is in the cache by then.
            let next = self.pick.next(self.records);
            tools.population.prefetch(next);
            self.ahead = Some(next);
        }
        match drawn {
            Some(record) => tools.get(record, Kind::Get).map(Some),
            None => Ok(None),
        }
    }

    fn kind(&self) -> Option<Kind> {
        Some(match self.absent {
            true => Kind::GetMissing,
            false => Kind::Get,
        })
    }
}

/// Reads many random records with each call.
pub(in crate::run) struct MultiRead {
    pick: Pick,
    records: u64,
    left: u64,
    /// Keys of a call.
    count: usize,
    keys: Vec<(Box<KeyBuffer>, usize)>,
    drawn: Vec<u64>,
}

impl MultiRead {
    pub fn new(pick: Pick, records: u64, left: u64, keys_of_a_call: u32) -> MultiRead {
        MultiRead {
            pick,
            records,
            left,
            count: keys_of_a_call as usize,
            keys: Vec::new(),
            drawn: Vec::new(),
        }
    }
}

impl Operation for MultiRead {
    fn step(&mut self, tools: &mut Tools<'_>) -> Result<Option<Done>> {
        let count = self.left.min(self.count as u64) as usize;
        self.left -= count as u64;
        self.drawn.clear();
        for index in 0..count {
            let Some(record) = tools.draw_present(&mut self.pick, self.records) else {
                return Ok(None);
            };
            self.drawn.push(record);
            if self.keys.len() == index {
                self.keys.push((tools.key.clone(), 0));
            }
            let (key, bytes) = &mut self.keys[index];
            *bytes = tools.keys.present(record, key).len();
        }
        if count == 0 {
            return Ok(None);
        }
        let keys: Vec<&[u8]> = self.keys[..count]
            .iter()
            .map(|(key, bytes)| &key[..*bytes])
            .collect();
        let (mut bytes, mut answered, mut wrong) = (0, 0, None);
        tools.session.multi_get(&keys, &mut |index, value| {
            answered += 1;
            let (Some(record), Some(key)) = (self.drawn.get(index), keys.get(index)) else {
                wrong = Some(format!("there is an answer for key {index} of {count}"));
                return;
            };
            let checked = value
                .ok_or_else(|| missing(*record, key))
                .and_then(|value| {
                    bytes += (key.len() + value.len()) as u64;
                    let checked = tools.values.verify(*record, None, value);
                    checked.map_err(|mismatch| mismatch.to_string())
                });
            wrong = wrong.take().or(checked.err());
        })?;
        if answered != count && wrong.is_none() {
            wrong = Some(format!(
                "{count} keys were read, and {answered} were answered"
            ));
        }
        match wrong {
            Some(what) => Err(Failure::Wrong(what)),
            None => Ok(Some(Done {
                kind: Kind::MultiGet,
                operations: count as u64,
                written_bytes: 0,
                read_bytes: bytes,
            })),
        }
    }

    fn kind(&self) -> Option<Kind> {
        Some(Kind::MultiGet)
    }
}

/// Where a scan begins and how far it goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Range {
    /// The record that is sought; `None` begins at the end of the store.
    pub from: Option<u64>,
    /// The most entries that are read.
    pub limit: u64,
    /// The records of the store lie below this number.
    pub records: u64,
    /// Whether other threads write, so that records may come while the scan runs.
    pub others_write: bool,
    /// Whether the scan goes backward.
    pub reverse: bool,
}

/// What a scan found.
pub(super) struct Scanned {
    pub entries: u64,
    /// What the recorder does not know yet.
    pub last: Done,
}

/// Checks the entries of a scan one by one.
struct Checker<'a> {
    keys: &'a Keys,
    values: &'a Values,
    population: &'a Population,
    range: Range,
    /// The records that were there before the scan began, as far as it goes, if other threads
    /// write: a record that comes later is in the population and not in what the scan sees.
    before: Option<std::slice::Iter<'a, u64>>,
    /// The record that comes next at the earliest; backward, one more than the record that comes
    /// next at the latest.
    next: u64,
    /// The last key, where the order of keys is not that of records.
    last_key: Vec<u8>,
    entries: u64,
    bytes: u64,
}

impl Checker<'_> {
    /// The record that the store must give next, as far as it is known.
    fn expected(&mut self) -> Option<u64> {
        if let Some(before) = &mut self.before {
            while before.as_slice().first().is_some_and(|at| *at < self.next) {
                before.next();
            }
            return before.as_slice().first().copied();
        }
        if self.range.reverse {
            return self.population.last_before(self.next);
        }
        self.population.next_from(self.next, self.range.records)
    }

    /// Checks an entry: its key, its order, and all of its value.
    fn check(&mut self, key: &[u8], value: &[u8]) -> std::result::Result<(), String> {
        let record = if self.keys.ordered() {
            self.check_order(key)?
        } else {
            self.check_hashed_order(key, value)?
        };
        let verified = self.values.verify(record, None, value);
        verified.map_err(|mismatch| mismatch.to_string())?;
        self.entries += 1;
        self.bytes += (key.len() + value.len()) as u64;
        Ok(())
    }

    /// The record of a key, which must be the next one of the store.
    fn check_order(&mut self, key: &[u8]) -> std::result::Result<u64, String> {
        let number = self.keys.number(key).filter(|n| n.is_multiple_of(2));
        let Some(record) = number.map(|number| number / 2) else {
            return Err(never_written(key));
        };
        let is_behind = match self.range.reverse {
            true => record >= self.next,
            false => record < self.next,
        };
        if is_behind {
            return Err(format!("a scan gave record {record} out of order"));
        }
        let expected = self.expected();
        let left_out = match expected {
            Some(expected) if self.range.reverse => record < expected,
            Some(expected) => record > expected,
            None => false,
        };
        let is_unknown = expected != Some(record) && !left_out;
        if left_out || (is_unknown && !self.range.others_write) {
            return Err(match expected {
                Some(expected) => {
                    format!("a scan gave record {record} where record {expected} comes next")
                }
                None => format!("a scan gave record {record}, which is not in the store"),
            });
        }
        self.next = if self.range.reverse {
            record
        } else {
            record + 1
        };
        Ok(record)
    }

    /// The record of a hashed key. Only the value says which one it is, so a record that is left
    /// out is not noticed; the order of the keys is checked.
    fn check_hashed_order(&mut self, key: &[u8], value: &[u8]) -> std::result::Result<u64, String> {
        let mut buffer = [0; MAX_KEY_BYTES];
        let record = self.values.identity(value).map(|(record, _)| record);
        let record = record
            .filter(|record| self.keys.present(*record, &mut buffer) == key)
            .ok_or_else(|| never_written(key))?;
        let is_in_order = self.entries == 0 || (self.last_key[..] < *key) != self.range.reverse;
        if !is_in_order || self.last_key == key {
            let (last, key) = (text(&self.last_key), text(key));
            return Err(format!("a scan gave the key `{key}` after `{last}`"));
        }
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        Ok(record)
    }
}

fn text(key: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(key)
}

fn never_written(key: &[u8]) -> String {
    format!(
        "a scan gave the key `{}`, which was never written",
        text(key)
    )
}

/// Collects the records that a forward scan would find now.
fn collect_before(population: &Population, range: &Range, before: &mut Vec<u64>) {
    before.clear();
    let mut next = range.from.unwrap_or(0);
    while (before.len() as u64) < range.limit
        && let Some(record) = population.next_from(next, range.records)
    {
        before.push(record);
        next = record + 1;
    }
}

/// Scans and checks all entries.
pub(super) fn scan(tools: &mut Tools<'_>, range: Range) -> Result<Scanned> {
    let mut before = std::mem::take(&mut tools.before);
    let scanned = scan_with(tools, range, &mut before);
    tools.before = before;
    scanned
}

/// As [`scan`]. `before` is a buffer.
fn scan_with(tools: &mut Tools<'_>, range: Range, before: &mut Vec<u64>) -> Result<Scanned> {
    let is_shared = range.others_write && !range.reverse && tools.keys.ordered();
    if is_shared {
        collect_before(tools.population, &range, before);
    }
    let end = if range.reverse { range.records } else { 0 };
    let mut checker = Checker {
        keys: tools.keys,
        values: tools.values,
        population: tools.population,
        range,
        before: is_shared.then(|| before.iter()),
        next: range
            .from
            .map_or(end, |record| record + u64::from(range.reverse)),
        last_key: Vec::new(),
        entries: 0,
        bytes: 0,
    };
    let key = match range.from {
        Some(record) => Some(tools.keys.present(record, &mut tools.key)),
        None => None,
    };
    let (mut wrong, mut is_stopped) = (None, false);
    // What the recorder does not know yet.
    let (mut lap_entries, mut lap_bytes) = (0, 0);
    let whole = range.from.is_none();
    let mut entries = |key: &[u8], value: &[u8]| {
        wrong = checker.check(key, value).err();
        if whole && checker.entries - lap_entries == LAP_ENTRIES {
            let bytes = checker.bytes - lap_bytes;
            tools.recorder.lap(&scanned(LAP_ENTRIES, bytes));
            (lap_entries, lap_bytes) = (checker.entries, checker.bytes);
            is_stopped = tools.stop.load(Ordering::Relaxed);
        }
        wrong.is_none() && checker.entries < range.limit && !is_stopped
    };
    if range.reverse {
        tools.session.scan_reverse(key, &mut entries)?;
    } else {
        tools.session.scan(key, &mut entries)?;
    }
    // A scan that ended early must have reached the end of the store.
    let is_cut = wrong.is_none() && !is_stopped && checker.entries < range.limit;
    if is_cut
        && tools.keys.ordered()
        && let Some(expected) = checker.expected()
    {
        wrong = Some(format!("a scan ended before record {expected}"));
    }
    if let Some(what) = wrong {
        return Err(Failure::Wrong(what));
    }
    let Checker { entries, bytes, .. } = checker;
    let last = if whole {
        scanned(entries - lap_entries, bytes - lap_bytes)
    } else {
        Done {
            kind: Kind::Seek,
            operations: 1,
            ..scanned(0, bytes)
        }
    };
    Ok(Scanned { entries, last })
}

/// A part of a scan of the whole store. Each of its entries counts as an operation.
fn scanned(entries: u64, bytes: u64) -> Done {
    Done {
        kind: Kind::Scan,
        operations: entries,
        written_bytes: 0,
        read_bytes: bytes,
    }
}

/// Seeks random records with a new iterator and reads the next entries.
pub(in crate::run) struct Seek {
    pub pick: Pick,
    pub records: u64,
    pub left: u64,
    /// Entries that are read after the seek.
    pub nexts: u64,
    /// Whether another thread writes.
    pub others_write: bool,
}

impl Operation for Seek {
    fn step(&mut self, tools: &mut Tools<'_>) -> Result<Option<Done>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let range = Range {
            from: Some(self.pick.next(self.records)),
            limit: self.nexts,
            records: self.records,
            others_write: self.others_write,
            reverse: false,
        };
        scan(tools, range).map(|scanned| Some(scanned.last))
    }

    fn kind(&self) -> Option<Kind> {
        Some(Kind::Seek)
    }
}

/// Reads the whole store, again and again.
pub(in crate::run) struct ReadAll {
    pub records: u64,
    pub reverse: bool,
    /// How many entries are still read; `None` reads the store once, whatever it has.
    pub entries_left: Option<u64>,
}

impl Operation for ReadAll {
    fn step(&mut self, tools: &mut Tools<'_>) -> Result<Option<Done>> {
        if self.entries_left == Some(0) || tools.stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let range = Range {
            from: None,
            limit: self.entries_left.unwrap_or(u64::MAX),
            records: self.records,
            others_write: false,
            reverse: self.reverse,
        };
        let Scanned { entries, last } = scan(tools, range)?;
        self.entries_left = match self.entries_left {
            // A store without entries would be read for ever.
            Some(left) if entries > 0 => Some(left - entries.min(left)),
            _ => Some(0),
        };
        Ok(Some(last))
    }
}

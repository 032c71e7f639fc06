//! The expected contents of a store: every version of every key, by sequence number.
//!
//! [`Model`] is the history as the log recorded it, record by record, and an index that answers
//! gets and scans of any keyspace at any number. It never forgets a version, so any snapshot and
//! any cursor can be checked. It can be cut to any prefix of its records, as a power loss may do to
//! a store.
//!
//! Invariants: records have ascending numbers; a keyspace's id is never given twice; the index is a
//! function of the records.
//!
//! Threading: owned; the run keeps it under a mutex that is not held over storage calls.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// Bytes shared between history, index and intents.
pub type Bytes = Arc<[u8]>;

/// Key and value pairs in key order.
pub type Pairs = BTreeMap<Bytes, Bytes>;

/// Pairs of a table, or of a run of tables; a delete has no value.
pub type TablePairs = Arc<Vec<(Bytes, Option<Bytes>)>>;

/// One entry of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// The key has this value.
    Put(u32, Bytes, Bytes),
    /// The key has no value.
    Delete(u32, Bytes),
    /// No key from the first up to but not including the second has a value.
    DeleteRange(u32, Bytes, Bytes),
}

impl Op {
    /// The keyspace that the entry belongs to.
    pub fn keyspace(&self) -> u32 {
        match self {
            Op::Put(id, ..) | Op::Delete(id, _) | Op::DeleteRange(id, ..) => *id,
        }
    }
}

/// The contents of a record of the log.
#[derive(Clone, Debug)]
pub enum Event {
    /// Entries, numbered one by one.
    Group(Vec<Op>),
    /// An ingest: runs of pairs (or deletes) by keyspace, oldest first. All of run *i* has the
    /// record's first number + *i*.
    Ingest(Vec<(u32, Vec<TablePairs>)>),
    /// A keyspace is created.
    Create(u32, String),
    /// A keyspace is dropped.
    Drop(u32),
    /// A keyspace was dropped by the manifest alone, right after the previous record, because there
    /// was no space for a record.
    DropWithoutRecord(u32),
}

/// A record of the log.
#[derive(Clone, Debug)]
pub struct Record {
    /// The number of its first entry.
    pub first: u64,
    /// Its contents.
    pub event: Event,
}

impl Record {
    /// The number of its last entry.
    pub fn last(&self) -> u64 {
        match &self.event {
            Event::Group(ops) => self.first + ops.len() as u64 - 1,
            Event::Ingest(parts) => {
                let run_count = parts.iter().map(|(_, runs)| runs.len()).max();
                self.first + run_count.unwrap_or(1).max(1) as u64 - 1
            }
            _ => self.first,
        }
    }
}

#[derive(Clone, Debug, Default)]
struct KeyspaceModel {
    name: String,
    created: u64,
    dropped: Option<u64>,
    versions: BTreeMap<Bytes, Vec<(u64, Option<Bytes>)>>,
    range_deletes: Vec<(u64, Bytes, Bytes)>,
}

/// The model; see the module.
#[derive(Clone, Debug)]
pub struct Model {
    records: Vec<Record>,
    keyspaces: BTreeMap<u32, KeyspaceModel>,
}

impl Default for Model {
    fn default() -> Self {
        Model::new()
    }
}

impl Model {
    /// A new store: one keyspace, `default`, with id 1.
    pub fn new() -> Model {
        let default = KeyspaceModel {
            name: "default".into(),
            ..KeyspaceModel::default()
        };
        Model {
            records: Vec::new(),
            keyspaces: BTreeMap::from([(1, default)]),
        }
    }

    /// Adds the next record.
    ///
    /// # Panics
    /// If the numbers do not ascend, or the record names a keyspace that does not exist: the store
    /// wrote a wrong log.
    pub fn push(&mut self, record: Record) {
        let last = self.last();
        let record = match record.event {
            Event::DropWithoutRecord(_) => Record {
                first: last,
                ..record
            },
            _ => record,
        };
        let numbered = !matches!(record.event, Event::DropWithoutRecord(_));
        assert!(
            !numbered || record.first > last,
            "the log gives number {} after {last}: a number was used twice",
            record.first
        );
        self.index(&record);
        self.records.push(record);
    }

    fn index(&mut self, record: &Record) {
        match &record.event {
            Event::Create(id, name) => {
                let fresh = KeyspaceModel {
                    name: name.clone(),
                    created: record.first,
                    ..KeyspaceModel::default()
                };
                assert!(
                    self.keyspaces.insert(*id, fresh).is_none(),
                    "keyspace id {id} is given twice"
                );
            }
            Event::Drop(id) | Event::DropWithoutRecord(id) => {
                self.live(*id).dropped = Some(record.first)
            }
            Event::Ingest(parts) => {
                for (id, runs) in parts {
                    let keyspace = self.live(*id);
                    for (number, pairs) in (record.first..).zip(runs) {
                        for (key, value) in pairs.iter() {
                            let versions = keyspace.versions.entry(key.clone()).or_default();
                            versions.push((number, value.clone()));
                        }
                    }
                }
            }
            Event::Group(ops) => {
                for (number, op) in (record.first..).zip(ops) {
                    let keyspace = self.live(op.keyspace());
                    match op {
                        Op::Put(_, key, value) => {
                            keyspace
                                .versions
                                .entry(key.clone())
                                .or_default()
                                .push((number, Some(value.clone())));
                        }
                        Op::Delete(_, key) => {
                            keyspace
                                .versions
                                .entry(key.clone())
                                .or_default()
                                .push((number, None));
                        }
                        Op::DeleteRange(_, start, end) => {
                            keyspace
                                .range_deletes
                                .push((number, start.clone(), end.clone()));
                        }
                    }
                }
            }
        }
    }

    fn live(&mut self, id: u32) -> &mut KeyspaceModel {
        let keyspace = self
            .keyspaces
            .get_mut(&id)
            .unwrap_or_else(|| panic!("the log names keyspace {id}, which was never created"));
        assert!(
            keyspace.dropped.is_none(),
            "the log has an entry of keyspace {id} after its drop"
        );
        keyspace
    }

    /// The last number of the last record, or 0 if there are no records.
    pub fn last(&self) -> u64 {
        self.records.last().map_or(0, Record::last)
    }

    /// The end of the last record that ends at `number` or before. The published number may lie
    /// above it, because an open starts above all numbers that may ever have been given.
    pub fn end_at(&self, number: u64) -> u64 {
        let count = self.records.partition_point(|r| r.last() <= number);
        count.checked_sub(1).map_or(0, |at| self.records[at].last())
    }

    /// The end of the first record above `after` that matches.
    pub fn first_above(&self, after: u64, wanted: impl Fn(&Event) -> bool) -> Option<u64> {
        let from = self.records.partition_point(|r| r.last() <= after);
        self.records[from..]
            .iter()
            .find(|r| wanted(&r.event))
            .map(Record::last)
    }

    /// All records.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// The numbers at which the history may end, newest first: the start, and the end of each
    /// record, from `least` on.
    pub fn ends_from(&self, least: u64) -> Vec<u64> {
        let ends = std::iter::once(0).chain(self.records.iter().map(Record::last));
        let mut ends: Vec<u64> = ends.filter(|end| *end >= least).collect();
        ends.reverse();
        ends
    }

    /// Forgets all records after `number`.
    pub fn cut(&mut self, number: u64) {
        if number >= self.last() {
            return;
        }
        let mut rest = std::mem::take(self);
        rest.records
            .truncate(rest.records.partition_point(|r| r.last() <= number));
        for record in rest.records {
            self.push(record);
        }
    }

    /// The keyspaces that exist at `number`: name and id.
    pub fn keyspaces(&self, number: u64) -> BTreeMap<String, u32> {
        let live = |k: &KeyspaceModel| k.created <= number && k.dropped.is_none_or(|d| d > number);
        self.keyspaces
            .iter()
            .filter(|(_, k)| live(k))
            .map(|(id, k)| (k.name.clone(), *id))
            .collect()
    }

    /// Every keyspace that was ever created: id and name.
    pub fn all_keyspaces(&self) -> BTreeMap<u32, String> {
        let named = self.keyspaces.iter().map(|(id, k)| (*id, k.name.clone()));
        named.collect()
    }

    /// The id of the next keyspace that is created at `number`. Ids of dropped keyspaces are not
    /// given again.
    pub fn next_keyspace_id(&self, number: u64) -> u32 {
        let ids = self
            .keyspaces
            .iter()
            .filter(|(_, k)| k.created <= number)
            .map(|(id, _)| *id);
        ids.max().unwrap_or(0) + 1
    }

    /// The number of the record that created or dropped a keyspace.
    pub fn number_of_change(&self, wanted: impl Fn(&Event) -> bool) -> Option<u64> {
        self.records
            .iter()
            .rev()
            .find(|r| wanted(&r.event))
            .map(|r| r.first)
    }

    fn newest<'a>(
        keyspace: &KeyspaceModel,
        key: &[u8],
        versions: &'a [(u64, Option<Bytes>)],
        number: u64,
    ) -> Option<&'a Bytes> {
        let at = versions.partition_point(|(n, _)| *n <= number);
        let (written, value) = versions[..at].last()?;
        let value = value.as_ref()?;
        let gone = keyspace
            .range_deletes
            .iter()
            .rev()
            .skip_while(|(n, ..)| *n > number)
            .take_while(|(n, ..)| n > written)
            .any(|(_, start, end)| &start[..] <= key && key < &end[..]);
        (!gone).then_some(value)
    }

    /// The value of `key` in keyspace `id` at `number`.
    pub fn get(&self, id: u32, key: &[u8], number: u64) -> Option<Bytes> {
        let keyspace = self.keyspaces.get(&id)?;
        let versions = keyspace.versions.get(key)?;
        Self::newest(keyspace, key, versions, number).cloned()
    }

    /// The values that a read of `key` may return if it took its number between `from` and `to`.
    pub fn between(&self, id: u32, key: &[u8], from: u64, to: u64) -> Vec<Option<Bytes>> {
        let mut numbers = vec![from];
        if let Some(keyspace) = self.keyspaces.get(&id) {
            let points = keyspace
                .versions
                .get(key)
                .into_iter()
                .flatten()
                .map(|(n, _)| *n);
            let ranges = keyspace.range_deletes.iter().map(|(n, ..)| *n);
            numbers.extend(points.chain(ranges).filter(|n| (from + 1..=to).contains(n)));
        }
        // The numbers are sorted because points and range deletes are kept separately.
        numbers.sort_unstable();
        numbers.into_iter().map(|n| self.get(id, key, n)).collect()
    }

    /// Everything in keyspace `id` at `number`.
    pub fn state(&self, id: u32, number: u64) -> Pairs {
        let Some(keyspace) = self.keyspaces.get(&id) else {
            return Pairs::new();
        };
        let shown = |(key, versions): (&Bytes, &Vec<_>)| {
            Self::newest(keyspace, key, versions, number).map(|value| (key.clone(), value.clone()))
        };
        keyspace.versions.iter().filter_map(shown).collect()
    }

    /// All puts and deletes of keys from `lower` on and before `upper` that were ever written to
    /// keyspace `id` up to `number`.
    pub fn version_count(&self, id: u32, lower: &[u8], upper: Option<&[u8]>, number: u64) -> u64 {
        let Some(keyspace) = self.keyspaces.get(&id) else {
            return 0;
        };
        let within = keyspace
            .versions
            .range::<[u8], _>((Bound::Included(lower), Bound::Unbounded))
            .take_while(|(key, _)| upper.is_none_or(|upper| key[..] < *upper));
        within
            .map(|(_, versions)| versions.partition_point(|(n, _)| *n <= number) as u64)
            .sum()
    }

    /// Every key that was ever written to keyspace `id`.
    pub fn keys(&self, id: u32) -> Vec<Bytes> {
        self.keyspaces
            .get(&id)
            .map(|k| k.versions.keys().cloned().collect())
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn b(text: &str) -> Bytes {
        text.as_bytes().into()
    }

    #[test]
    fn versions_range_deletes_and_cuts() {
        let mut model = Model::new();
        let group = |first, ops| Record {
            first,
            event: Event::Group(ops),
        };
        model.push(group(
            1,
            vec![Op::Put(1, b("a"), b("1")), Op::Put(1, b("b"), b("2"))],
        ));
        model.push(group(
            5,
            vec![
                Op::DeleteRange(1, b("a"), b("b")),
                Op::Put(1, b("a"), b("3")),
            ],
        ));
        model.push(Record {
            first: 7,
            event: Event::Create(2, "x".into()),
        });
        model.push(group(
            9,
            vec![Op::DeleteRange(1, b(""), b("zz")), Op::Put(2, b(""), b(""))],
        ));
        model.push(Record {
            first: 20,
            event: Event::Ingest(vec![
                (
                    1,
                    vec![
                        Arc::new(vec![(b("b"), Some(b("0"))), (b("c"), None)]),
                        Arc::new(vec![(b("b"), Some(b("4")))]),
                    ],
                ),
                (2, vec![Arc::new(vec![(b("x"), Some(b("5")))])]),
            ]),
        });
        model.push(Record {
            first: 22,
            event: Event::Drop(2),
        });
        let get = |model: &Model, key: &str, n| model.get(1, key.as_bytes(), n).map(|v| v.to_vec());
        assert_eq!(get(&model, "a", 0), None);
        assert_eq!(get(&model, "a", 4), Some(b"1".to_vec()));
        assert_eq!(get(&model, "a", 5), None);
        assert_eq!(get(&model, "a", 8), Some(b"3".to_vec()));
        assert_eq!((get(&model, "a", 9), get(&model, "b", 19)), (None, None));
        assert_eq!(get(&model, "b", 20), Some(b"0".to_vec()));
        assert_eq!(get(&model, "b", 21), Some(b"4".to_vec()));
        assert_eq!(model.get(2, b"x", 20), Some(b("5")));
        assert_eq!(model.version_count(1, b"b", None, 21), 4);
        assert_eq!(model.version_count(1, b"", Some(b"b"), 21), 2);
        assert_eq!(
            model.between(1, b"a", 4, 8),
            [Some(b("1")), None, Some(b("3"))]
        );
        assert_eq!(
            model.keyspaces(21),
            BTreeMap::from([("default".into(), 1), ("x".into(), 2)])
        );
        assert_eq!(model.keyspaces(22).len(), 1);
        assert_eq!(model.ends_from(8), [22, 21, 10]);
        assert_eq!(
            model.state(1, 6),
            Pairs::from([(b("a"), b("3")), (b("b"), b("2"))])
        );
        model.cut(9);
        assert_eq!((model.last(), model.records().len()), (7, 3));
        assert_eq!(
            model.state(1, 99),
            Pairs::from([(b("a"), b("3")), (b("b"), b("2"))])
        );
    }
}

//! The script of the writer that will be killed: a sequence of batches that can be computed again
//! from a seed.
//!
//! [`batch`] returns operation `n` of a *lane* (one writer thread, with keys of its own). [`Model`]
//! applies a number of the first operations of each lane to ordered maps, which are what the store
//! must hold.
//!
//! Invariants: a batch depends on seed, lane and number alone. Every batch writes to both
//! keyspaces, and writes its number into its lane's marker, so a store that holds half a batch, or
//! skipped one, differs from every prefix.

use std::collections::BTreeMap;

use siltstone::batch::Batch;
use siltstone::{Keyspace, Result};

use super::Draw;

/// The two keyspaces that every batch writes to.
pub const KEYSPACES: [&str; 2] = ["ledger-a", "ledger-b"];
/// The number of writer threads.
pub const LANES: usize = 2;
/// The number of different keys of one lane and keyspace.
pub const KEYS: u32 = 1 << 15;

/// One entry of an operation. Keys are numbers of the lane, `keyspace` is an index into
/// [`KEYSPACES`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Sets a key; its value is [`value`] of the operation and this entry.
    Put { keyspace: usize, key: u32 },
    /// Deletes a key.
    Delete { keyspace: usize, key: u32 },
    /// Deletes keys from `from` on and before `to`.
    DeleteRange { keyspace: usize, from: u32, to: u32 },
}

/// A key as bytes: the lane's letter and the number. `KEYS` and beyond are ends of ranges.
pub fn key(lane: usize, number: u32) -> Vec<u8> {
    format!("{}:{number:06}", (b'a' + lane as u8) as char).into_bytes()
}

/// The key of a lane's marker, which holds the number of the lane's operations in the store. It
/// sorts before all lanes.
pub fn marker(lane: usize) -> Vec<u8> {
    format!("_operations of lane {}", (b'a' + lane as u8) as char).into_bytes()
}

/// The number of operations in a marker's value.
pub fn marker_value(count: u64) -> Vec<u8> {
    count.to_string().into_bytes()
}

/// The entries of operation `n` of a lane, the marker not included.
pub fn entries(seed: u64, lane: usize, n: u64) -> Vec<Entry> {
    let mut draw = Draw::new(&[seed, lane as u64, n]);
    let count = 4 + draw.below(28);
    let mut entries = Vec::with_capacity(count as usize + 1);
    for i in 0..count {
        // Every batch writes to both keyspaces.
        let keyspace = if i < 2 {
            i as usize
        } else {
            draw.below(2) as usize
        };
        let key = draw.below(u64::from(KEYS)) as u32;
        entries.push(match draw.below(100) {
            0..15 => Entry::Delete { keyspace, key },
            _ => Entry::Put { keyspace, key },
        });
    }
    if draw.below(20) == 0 {
        let from = draw.below(u64::from(KEYS)) as u32;
        let to = (from + 1 + draw.below(300) as u32).min(KEYS);
        entries.push(Entry::DeleteRange {
            keyspace: draw.below(2) as usize,
            from,
            to,
        });
    }
    entries
}

/// The value of entry `i` of operation `n`: 20 to 400 bytes of text.
pub fn value(seed: u64, lane: usize, n: u64, i: usize) -> Vec<u8> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-";
    let mut draw = Draw::new(&[seed, lane as u64, n, i as u64]);
    let len = 20 + draw.below(381) as usize;
    let mut value = format!("{n}.{i} ").into_bytes();
    while value.len() < len {
        let mut bits = draw.next();
        for _ in 0..10 {
            value.push(LETTERS[(bits & 63) as usize]);
            bits >>= 6;
        }
    }
    value.truncate(len);
    value
}

/// Fills a batch with operation `n` of a lane.
pub fn batch(
    seed: u64,
    lane: usize,
    n: u64,
    keyspaces: &[Keyspace; 2],
    batch: &mut Batch,
) -> Result<()> {
    batch.clear();
    for (i, entry) in entries(seed, lane, n).iter().enumerate() {
        match entry {
            Entry::Put { keyspace, key: k } => batch.put(
                &keyspaces[*keyspace],
                &key(lane, *k),
                &value(seed, lane, n, i),
            )?,
            Entry::Delete { keyspace, key: k } => {
                batch.delete(&keyspaces[*keyspace], &key(lane, *k))?
            }
            Entry::DeleteRange { keyspace, from, to } => {
                batch.delete_range(&keyspaces[*keyspace], &key(lane, *from), &key(lane, *to))?;
            }
        }
    }
    batch.put(&keyspaces[0], &marker(lane), &marker_value(n + 1))
}

/// The contents of a store after the first [`Model::done`] operations of each lane.
#[derive(Clone, Debug)]
pub struct Model {
    seed: u64,
    /// The number of applied operations, by lane.
    pub done: [u64; LANES],
    /// For each lane and keyspace: the operation and the entry that wrote the key's value.
    keys: [[BTreeMap<u32, (u64, usize)>; 2]; LANES],
}

impl Model {
    /// An empty model.
    pub fn new(seed: u64) -> Model {
        Model {
            seed,
            done: [0; LANES],
            keys: Default::default(),
        }
    }

    /// Applies operations of a lane until `count` of them are applied.
    pub fn advance(&mut self, lane: usize, count: u64) {
        while self.done[lane] < count {
            let n = self.done[lane];
            for (i, entry) in entries(self.seed, lane, n).into_iter().enumerate() {
                match entry {
                    Entry::Put { keyspace, key } => {
                        self.keys[lane][keyspace].insert(key, (n, i));
                    }
                    Entry::Delete { keyspace, key } => {
                        self.keys[lane][keyspace].remove(&key);
                    }
                    Entry::DeleteRange { keyspace, from, to } => {
                        let map = &mut self.keys[lane][keyspace];
                        let gone: Vec<u32> = map.range(from..to).map(|(key, _)| *key).collect();
                        gone.iter().for_each(|key| {
                            map.remove(key);
                        });
                    }
                }
            }
            self.done[lane] += 1;
        }
    }

    /// All pairs of a keyspace, in key order.
    pub fn pairs(&self, keyspace: usize) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> + '_ {
        let markers = (0..LANES)
            .filter(move |lane| keyspace == 0 && self.done[*lane] > 0)
            .map(|lane| (marker(lane), marker_value(self.done[lane])));
        let keys = (0..LANES).flat_map(move |lane| {
            self.keys[lane][keyspace]
                .iter()
                .map(move |(number, (n, i))| (key(lane, *number), value(self.seed, lane, *n, *i)))
        });
        markers.chain(keys)
    }

    /// The value of a key.
    pub fn get(&self, lane: usize, keyspace: usize, number: u32) -> Option<Vec<u8>> {
        let (n, i) = self.keys[lane][keyspace].get(&number)?;
        Some(value(self.seed, lane, *n, *i))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use siltstone::{Options, Store};

    #[test]
    fn operations_repeat_and_meet_every_kind() {
        let (mut puts, mut deletes, mut ranges) = (0, 0, 0);
        for n in 0..2_000 {
            let first = entries(1, 0, n);
            assert_eq!(first, entries(1, 0, n));
            assert_ne!(first, entries(2, 0, n));
            for entry in first {
                match entry {
                    Entry::Put { .. } => puts += 1,
                    Entry::Delete { .. } => deletes += 1,
                    Entry::DeleteRange { from, to, .. } => {
                        assert!(from < to && to <= KEYS);
                        ranges += 1;
                    }
                }
            }
        }
        // About one put in six is a delete; one batch in twenty has a range delete.
        assert!((25_000..35_000).contains(&puts), "{puts}");
        assert!((4_000..7_000).contains(&deletes), "{deletes}");
        assert!((70..130).contains(&ranges), "{ranges}");
        assert!((0..200).all(|i| (20..=400).contains(&value(1, 1, 7, i).len())));
        assert_ne!(value(1, 0, 7, 0), value(1, 0, 7, 1));
    }

    /// Compares the model with the entries of the batches, applied one by one.
    #[test]
    fn the_model_is_what_the_batches_say() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Options::default()).unwrap();
        let keyspaces = KEYSPACES.map(|name| store.open_keyspace(name).unwrap());
        let ids = keyspaces.each_ref().map(Keyspace::id);
        let mut model = Model::new(3);
        let mut maps: [BTreeMap<Vec<u8>, Vec<u8>>; 2] = Default::default();
        let mut written = Batch::new();
        for n in 0..300 {
            for lane in 0..LANES {
                batch(3, lane, n, &keyspaces, &mut written).unwrap();
                for entry in written.iter() {
                    let map = &mut maps[ids.iter().position(|id| *id == entry.keyspace).unwrap()];
                    match entry.kind {
                        siltstone::batch::EntryKind::Put => {
                            map.insert(entry.key.to_vec(), entry.value.to_vec());
                        }
                        siltstone::batch::EntryKind::Delete => {
                            map.remove(entry.key);
                        }
                        siltstone::batch::EntryKind::RangeDelete => {
                            map.retain(|key, _| !(entry.key..entry.value).contains(&&key[..]));
                        }
                    }
                }
                model.advance(lane, n + 1);
            }
        }
        for (keyspace, map) in maps.iter().enumerate() {
            let expected: Vec<_> = map.clone().into_iter().collect();
            assert_eq!(model.pairs(keyspace).collect::<Vec<_>>(), expected);
            for number in (0..KEYS).step_by(11) {
                for lane in 0..LANES {
                    assert_eq!(
                        model.get(lane, keyspace, number).as_ref(),
                        map.get(&key(lane, number))
                    );
                }
            }
        }
    }
}

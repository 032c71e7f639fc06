//! A client's reads: of single keys and of many, of snapshots, and by cursors that are held,
//! stepped and refreshed.
//!
//! Threading: as the client.

use std::ops::Bound;

use siltstone::{Cursor, ErrorKind, IterOptions, Keyspace, Snapshot};

use super::Client;
use crate::checker::{Check, check_keyspace, show, walk};
use crate::model::{Bytes, Pairs};
use crate::observe::{SharedHistory, lock};

/// A cursor that is kept during other operations, with the pairs that it must show.
pub(super) struct HeldCursor {
    cursor: Cursor,
    number: u64,
    wanted: Pairs,
    what: String,
    keyspace: Keyspace,
    /// The bounds that the cursor was opened with.
    options: IterOptions,
}

impl HeldCursor {
    /// Sets the expected pairs at the cursor's number.
    fn expect(&mut self, history: &SharedHistory) {
        let (keyspace, options) = (&self.keyspace, &self.options);
        self.number = self.cursor.number();
        self.wanted = lock(history).model.state(keyspace.id(), self.number);
        self.wanted.retain(|k, _| {
            options.lower.as_ref().is_none_or(|l| k[..] >= l[..])
                && options.upper.as_ref().is_none_or(|u| k[..] < u[..])
        });
        self.what = format!(
            "a cursor held on {} ({}) at {}",
            keyspace.name(),
            keyspace.id(),
            self.number
        );
    }
}

impl Client {
    pub(super) fn get(&mut self) -> Check {
        let world = self.world.clone();
        let Some(keyspace) = self.keyspace()? else {
            return Ok(());
        };
        let key = world.plan.key(&mut self.rng);
        let from = world.store.snapshot().number();
        let found = if self.rng.chance(30) {
            keyspace.get_pinned(&key).map(|v| v.map(|v| v.to_vec()))
        } else {
            keyspace.get(&key)
        };
        let found = match found {
            Ok(found) => found,
            Err(e) => return world.allow(&e, &[ErrorKind::KeyspaceDropped], "get"),
        };
        let to = world.store.snapshot().number();
        let allowed = lock(&world.history)
            .model
            .between(keyspace.id(), &key, from, to);
        if allowed.iter().any(|a| a.as_deref() == found.as_deref()) {
            return Ok(());
        }
        let name = |v: Option<&[u8]>| v.map_or("nothing".into(), show);
        Err(format!(
            "get {} from {} ({}) between {from} and {to} gives {}, expected {}",
            show(&key),
            keyspace.name(),
            keyspace.id(),
            name(found.as_deref()),
            allowed
                .iter()
                .map(|a| name(a.as_deref()))
                .collect::<Vec<_>>()
                .join(" or ")
        ))
    }

    /// Reads many keys at once: the values must be those of one moment.
    pub(super) fn multi_get(&mut self) -> Check {
        let world = self.world.clone();
        let Some(keyspace) = self.keyspace()? else {
            return Ok(());
        };
        let count = 1 + self.rng.index(40);
        let keys: Vec<Bytes> = (0..count).map(|_| world.plan.key(&mut self.rng)).collect();
        let from = world.store.snapshot().number();
        let found = match keyspace.multi_get(&keys) {
            Ok(found) => found,
            Err(e) => return world.allow(&e, &[ErrorKind::KeyspaceDropped], "multi_get"),
        };
        let to = world.store.snapshot().number();
        let history = lock(&world.history);
        let model = &history.model;
        let ends = model.ends_from(from).into_iter().filter(|end| *end <= to);
        let differs = |number: u64| {
            keys.iter().zip(&found).find(|(key, value)| {
                model.get(keyspace.id(), key, number).as_deref() != value.as_deref()
            })
        };
        let mut moments = std::iter::once(from).chain(ends);
        let Some((key, value)) = differs(from) else {
            return Ok(());
        };
        if moments.any(|number| differs(number).is_none()) {
            world.reach("multi_get.while_written");
            return Ok(());
        }
        Err(format!(
            "multi_get of {count} keys from {} ({}) between {from} and {to} gives what no moment \
            shows: at {from}, {} is not {}",
            keyspace.name(),
            keyspace.id(),
            show(key),
            value.as_deref().map_or("nothing".into(), show)
        ))
    }

    /// Compares a keyspace at a snapshot. Allowed errors end the comparison.
    pub(super) fn compare(&mut self, keyspace: &Keyspace, snapshot: &Snapshot) -> Check {
        let world = self.world.clone();
        let wanted = lock(&world.history)
            .model
            .state(keyspace.id(), snapshot.number());
        let keys: Vec<Bytes> = (0..12).map(|_| world.plan.key(&mut self.rng)).collect();
        match check_keyspace(keyspace, snapshot, &wanted, &keys, &mut self.rng) {
            // Meanwhile a keyspace may be dropped, and a read may meet an injected fault.
            Err(e) if e.contains("was dropped") => Ok(()),
            Err(e) if world.is_excused(&e) => Ok(()),
            result => result,
        }
    }

    pub(super) fn read_snapshot(&mut self) -> Check {
        if self.snapshots.is_empty() {
            return Ok(());
        }
        let Some(keyspace) = self.keyspace()? else {
            return Ok(());
        };
        let at = self.rng.index(self.snapshots.len());
        let snapshot = self.snapshots.swap_remove(at);
        let result = self.compare(&keyspace, &snapshot);
        self.snapshots.push(snapshot);
        result
    }

    pub(super) fn open_cursor(&mut self) -> Check {
        let world = self.world.clone();
        if self.cursors.len() >= 4 {
            return Ok(());
        }
        let Some(keyspace) = self.keyspace()? else {
            return Ok(());
        };
        let mut options = IterOptions::default();
        if self.rng.chance(30) {
            options.lower = Some(world.plan.key(&mut self.rng).to_vec());
        }
        if self.rng.chance(30) {
            options.upper = Some(world.plan.key(&mut self.rng).to_vec());
        }
        // A reversed range is refused.
        if let (Some(lower), Some(upper)) = (&mut options.lower, &mut options.upper)
            && lower > upper
        {
            std::mem::swap(lower, upper);
        }
        let cursor = match self.snapshots.last() {
            Some(snapshot) if self.rng.chance(40) => keyspace.cursor_at(snapshot, options.clone()),
            _ => keyspace.cursor(options.clone()),
        };
        let cursor = match cursor {
            Ok(cursor) => cursor,
            Err(e) => return world.allow(&e, &[ErrorKind::KeyspaceDropped], "cursor"),
        };
        let mut held = HeldCursor {
            number: 0,
            wanted: Pairs::default(),
            what: String::new(),
            cursor,
            keyspace,
            options,
        };
        held.expect(&world.history);
        self.cursors.push(held);
        Ok(())
    }

    pub(super) fn step(&mut self, held: &mut HeldCursor) -> Check {
        let from = self.world.plan.key(&mut self.rng);
        let published = self.world.store.snapshot().number();
        if published > held.number {
            self.world.reach("cursor.older_than_the_store");
        }
        match walk(
            &mut held.cursor,
            &held.wanted,
            &held.what,
            &from,
            &mut self.rng,
            10,
        ) {
            Err(e) if self.world.is_excused(&e) => Ok(()),
            result => result,
        }
    }

    /// Refreshes a cursor; it keeps its position, or goes to the next key.
    pub(super) fn refresh(&mut self, held: &mut HeldCursor) -> Check {
        let stood = held.cursor.valid().then(|| held.cursor.key().to_vec());
        if let Err(e) = held.cursor.refresh() {
            if e.kind() != ErrorKind::KeyspaceDropped {
                // The cursor may already read at a new number, so its expected pairs are set again.
                held.expect(&self.world.history);
            }
            return self
                .world
                .allow(&e, &[ErrorKind::KeyspaceDropped], "refresh");
        }
        held.expect(&self.world.history);
        self.world.reach("cursor.refreshed");
        let wanted = stood.as_deref().and_then(|at| {
            let from = (Bound::Included(at), Bound::Unbounded);
            held.wanted.range::<[u8], _>(from).next()
        });
        let wanted = wanted.map(|(k, v)| (&k[..], &v[..]));
        let cursor = &held.cursor;
        let shown = cursor.valid().then(|| (cursor.key(), cursor.value()));
        if shown == wanted {
            return Ok(());
        }
        let name = |pair: Option<(&[u8], &[u8])>| {
            pair.map_or("nothing".into(), |(k, v)| {
                format!("{} = {}", show(k), show(v))
            })
        };
        Err(format!(
            "{}: refreshed at {}, it stands on {}, expected {}",
            held.what,
            stood.as_deref().map_or("no key".into(), show),
            name(shown),
            name(wanted)
        ))
    }

    /// Reads all keys with a prefix: by a cursor with bounds, in both directions and by seeks, and
    /// by an iterator from both ends.
    pub(super) fn prefix(&mut self) -> Check {
        let world = self.world.clone();
        let Some(keyspace) = self.keyspace()? else {
            return Ok(());
        };
        let key = world.plan.key(&mut self.rng);
        let prefix = &key[..self.rng.index(key.len() + 1).min(24)];
        let snapshot = world.store.snapshot();
        let number = snapshot.number();
        let mut wanted = lock(&world.history).model.state(keyspace.id(), number);
        wanted.retain(|k, _| k.starts_with(prefix));
        let what = format!(
            "prefix {} of {} ({}) at {number}",
            show(prefix),
            keyspace.name(),
            keyspace.id()
        );
        let from = world.plan.key(&mut self.rng);
        let rng = &mut self.rng;
        let result = keyspace
            .cursor_at(&snapshot, IterOptions::prefix(prefix))
            .map_err(|e| e.to_string())
            .and_then(|mut cursor| walk(&mut cursor, &wanted, &what, &from, rng, 16));
        match result {
            Err(e) if e.contains("was dropped") => return Ok(()),
            result => result.or_else(|e| world.excuse(e))?,
        }
        // The iterator has its own number, at or above the snapshot's, so its pairs are known only
        // without other writers.
        let before = world.store.snapshot().number();
        let mut pairs = match keyspace.prefix(prefix) {
            Ok(pairs) => pairs,
            Err(e) => return world.allow(&e, &[ErrorKind::KeyspaceDropped], "prefix"),
        };
        if world.store.snapshot().number() != before {
            return Ok(());
        }
        let mut wanted = lock(&world.history).model.state(keyspace.id(), before);
        wanted.retain(|k, _| k.starts_with(prefix));
        let (mut front, mut back) = (Vec::new(), Vec::new());
        loop {
            let from_front = self.rng.chance(50);
            let step = if from_front {
                pairs.next()
            } else {
                pairs.next_back()
            };
            match step {
                None => break,
                Some(Ok(pair)) if from_front => front.push(pair),
                Some(Ok(pair)) => back.push(pair),
                Some(Err(e)) => return world.allow(&e, &[ErrorKind::KeyspaceDropped], "prefix"),
            }
        }
        back.reverse();
        let found = front.iter().chain(&back).map(|(k, v)| (&k[..], &v[..]));
        if found
            .clone()
            .eq(wanted.iter().map(|(k, v)| (&k[..], &v[..])))
        {
            world.reach("prefix.from_both_ends");
            return Ok(());
        }
        Err(format!(
            "{what}: from both ends at {before}: {} and {} pairs, expected {}; {:?}",
            front.len(),
            back.len(),
            wanted.len(),
            found.map(|(k, _)| show(k)).collect::<Vec<_>>()
        ))
    }

    /// Checks that sizes and counts are within their errors: at least the pairs that a snapshot
    /// shows, at most everything that was ever written.
    pub(super) fn approximate(&mut self) -> Check {
        let world = self.world.clone();
        let Some(keyspace) = self.keyspace()? else {
            return Ok(());
        };
        let (lower, upper) = world.plan.range(&mut self.rng);
        let range = match self.rng.below(4) {
            0 => IterOptions::default(),
            1 => IterOptions::prefix(&lower[..self.rng.index(lower.len() + 1)]),
            _ => IterOptions::range(&lower[..]..&upper[..]),
        };
        // While the snapshot is held, the entries that it sees are kept.
        let snapshot = world.store.snapshot();
        let size = match keyspace.approximate_size(&range) {
            Ok(size) => size,
            Err(e) => return world.allow(&e, &[ErrorKind::KeyspaceDropped], "approximate_size"),
        };
        let count = match keyspace.approximate_count(&range) {
            Ok(count) => count,
            Err(e) => return world.allow(&e, &[ErrorKind::KeyspaceDropped], "approximate_count"),
        };
        let history = lock(&world.history);
        let lower = range.lower.as_deref().unwrap_or_default();
        let upper = range.upper.as_deref();
        let state = history.model.state(keyspace.id(), snapshot.number());
        let shown = state
            .iter()
            .filter(|(k, _)| k[..] >= *lower && upper.is_none_or(|u| k[..] < *u));
        let (mut least, mut least_bytes) = (0, 0);
        for (key, value) in shown {
            least += 1;
            least_bytes += (key.len() + value.len() + 12) as u64;
        }
        let last = history.model.last();
        let most = history
            .model
            .version_count(keyspace.id(), lower, upper, last);
        for (what, estimate) in [("size's count", size.entry_count), ("count", count)] {
            let (low, high) = (
                estimate.value.saturating_sub(estimate.error),
                estimate.value + estimate.error,
            );
            if high < least || low > most {
                return Err(format!(
                    "{what} of {} ({}) from {} to {} is {low} to {high}: {least} are shown at {}, \
                    {most} were written",
                    keyspace.name(),
                    keyspace.id(),
                    show(lower),
                    upper.map_or("the end".into(), show),
                    snapshot.number()
                ));
            }
        }
        let most_bytes = size.raw_bytes.value + size.raw_bytes.error;
        if most_bytes < least_bytes {
            return Err(format!(
                "at most {most_bytes} raw bytes in {} ({}) from {} on: {least_bytes} are shown at \
                {}",
                keyspace.name(),
                keyspace.id(),
                show(lower),
                snapshot.number()
            ));
        }
        drop(history);
        if least > 0 {
            world.reach("approximate.shown");
        }
        if size.entry_count.error > 0 {
            world.reach("approximate.uncertain");
        }
        Ok(())
    }
}

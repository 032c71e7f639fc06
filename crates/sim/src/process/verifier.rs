//! The other jobs of the program `victim`: to read the whole contents of a store in every way and
//! dump them, and to check the store.
//!
//! Threading: one thread, and those of the store.

use std::io::BufWriter;
use std::ops::Bound;
use std::path::Path;

use siltstone::check::{CheckStorages, check};
use siltstone::manifest::recover;
use siltstone::{Error, IterOptions, Storages, Store};

use super::messages::{Dump, write_dump};
use super::script::{KEYS, LANES, LONG_KEYS, Lane, OWN, key, prefix, space_name};
use super::victim::{DAMAGED, End, Order, Outcome, not_open, same, scan, standard_output, wrong};
use crate::model::{Bytes, Pairs};
use crate::world::leaks::difference_of_tables;

/// Reads everything: forward, backward, key by key, and many keys at once. All must agree.
pub(super) fn verify(order: &Order) -> Outcome {
    let open = match order.reader {
        true => Store::open_read_only(&order.path, order.options()),
        false => Store::open(&order.path, order.options()),
    };
    let store = open.map_err(|e| not_open(&e))?;
    let failed = |e: Error| wrong(format!("reading everything: [{}] {e}", e.kind()));
    let mut dump = Dump::new();
    let mut universe: Vec<Bytes> = Vec::new();
    for lane in 0..LANES {
        universe.extend((0..KEYS + LONG_KEYS).map(|n| key(lane, n)));
    }
    for name in store.keyspaces() {
        let keyspace = store.keyspace(&name).map_err(failed)?;
        let mut cursor = keyspace.cursor(IterOptions::default()).map_err(failed)?;
        let pairs: Pairs = scan(&mut cursor, false)
            .map_err(failed)?
            .into_iter()
            .collect();
        if !same(&scan(&mut cursor, true).map_err(failed)?, &pairs) {
            return Err(wrong(format!(
                "keyspace {name} read backward differs from forward"
            )));
        }
        let many = keyspace.multi_get(&universe).map_err(failed)?;
        for (key, found) in universe.iter().zip(many) {
            let got = keyspace.get(key).map_err(failed)?;
            let wanted = pairs.get(key).map(|v| &v[..]);
            if got.as_deref() != wanted || found.as_deref() != wanted {
                return Err(wrong(format!(
                    "{} of keyspace {name}: a get, a get of many and a scan differ",
                    key[..key.len().min(12)].escape_ascii()
                )));
            }
        }
        dump.insert(name, pairs);
    }
    let out = BufWriter::with_capacity(64 << 10, standard_output()?);
    write_dump(out, &dump)?;
    match store.close() {
        // Only the open has written anything.
        Err(e) if !order.patient => Err(wrong(format!("close: [{}] {e}", e.kind()))),
        Ok(()) if !order.reader => nothing_is_left_over(&order.path),
        _ => Ok(()),
    }
}

/// Checks that the folders of a store that was closed have exactly the tables of its manifest, each
/// at its location.
fn nothing_is_left_over(path: &Path) -> Outcome {
    let storages = Storages::find(path).map_err(|e| not_open(&e))?;
    let found = recover(&*storages.manifest).map_err(|e| not_open(&e))?;
    let found = found.ok_or_else(|| wrong("a store that was closed is gone".to_string()))?;
    let locations = [&storages.tables].into_iter().chain(&storages.redirect);
    match difference_of_tables(&found.state, locations, |_| true).map_err(wrong)? {
        None => Ok(()),
        Some(difference) => Err(wrong(format!("a store that was closed: {difference}"))),
    }
}

/// Checks the store as `silt check` does.
pub(super) fn check_closed(path: &Path) -> Outcome {
    let storages = Storages::find(path).map_err(|e| not_open(&e))?;
    let report = check(&CheckStorages::of(&storages), &mut |_| {}).map_err(|e| not_open(&e))?;
    match report.problems.first() {
        None => Ok(()),
        Some(problem) => Err(End::Status(DAMAGED, format!("damage: {problem}"))),
    }
}

/// The part of a dump that belongs to a lane.
pub(super) fn lane_of_dump(dump: &Dump, lane: usize) -> Lane {
    let mut found = Lane::default();
    let from = prefix(lane);
    for (space, pairs) in found.spaces.iter_mut().enumerate() {
        let Some(all) = dump.get(&space_name(lane, space)) else {
            continue;
        };
        let own = all.range::<[u8], _>((Bound::Included(&from[..]), Bound::Unbounded));
        let own = own.take_while(|(key, _)| key.starts_with(&from));
        *pairs = own.map(|(k, v)| (k.clone(), v.clone())).collect();
        found.own |= space == OWN;
    }
    found
}

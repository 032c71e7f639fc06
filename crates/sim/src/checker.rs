//! Compares all contents of a store with the model, in both directions.
//!
//! The comparison covers whole scans forward and backward, gets of existing and absent keys, seeks
//! in both directions, and changes of direction and bounds, at the present and at any snapshot.
//! After a crash, it searches for the one prefix of the history that the store shows.
//!
//! Threading: called by one task. The store may be written meanwhile, because all comparisons are
//! made at a snapshot's number.

use std::collections::BTreeMap;

use siltstone::{Cursor, IterOptions, Keyspace, Result, Snapshot, Store};

use crate::model::{Model, Pairs};
use crate::observe::{SharedHistory, lock};
use crate::rng::Rng;

/// A failure of a run.
pub type Check = std::result::Result<(), String>;

/// Bytes in a readable form: short, with their length.
pub fn show(bytes: &[u8]) -> String {
    let head = bytes[..bytes.len().min(24)].escape_ascii().to_string();
    if bytes.len() > 24 {
        format!("`{head}..` ({} bytes)", bytes.len())
    } else {
        format!("`{head}`")
    }
}

fn show_value(value: Option<&[u8]>) -> String {
    value.map_or("nothing".into(), show)
}

/// All pairs of a cursor, in its order.
fn scan(cursor: &mut Cursor, backward: bool) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut pairs = Vec::new();
    if backward {
        cursor.seek_to_last()?
    } else {
        cursor.seek_to_first()?
    };
    while cursor.valid() {
        pairs.push((cursor.key().to_vec(), cursor.value().to_vec()));
        if backward {
            cursor.prev()?
        } else {
            cursor.next()?
        }
    }
    Ok(pairs)
}

/// Describes the first difference of two lists of pairs.
fn compare<'a>(
    what: &str,
    found: &[(Vec<u8>, Vec<u8>)],
    wanted: impl Iterator<Item = (&'a [u8], &'a [u8])>,
) -> Check {
    let mut found = found.iter();
    for (i, (key, value)) in wanted.enumerate() {
        match found.next() {
            Some((k, v)) if k == key && v == value => {}
            Some((k, v)) => {
                let (f, w) = (show(k), show(key));
                return Err(format!(
                    "{what}: entry {i} is {f} = {}, expected {w} = {}",
                    show(v),
                    show(value)
                ));
            }
            None => {
                return Err(format!(
                    "{what}: ends after {i} entries, expected {} = {}",
                    show(key),
                    show(value)
                ));
            }
        }
    }
    match found.next() {
        Some((k, v)) => Err(format!(
            "{what}: goes on with {} = {}, expected the end",
            show(k),
            show(v)
        )),
        None => Ok(()),
    }
}

fn pairs(state: &Pairs) -> impl DoubleEndedIterator<Item = (&[u8], &[u8])> {
    state.iter().map(|(k, v)| (&k[..], &v[..]))
}

/// Turns a store's error into a failure.
fn with_context(what: &str) -> impl Fn(siltstone::Error) -> String + '_ {
    move |e| format!("{what}: {e}")
}

/// Compares all of a keyspace at a snapshot with `wanted`. `keys` are read one by one.
///
/// # Errors
/// The first difference.
pub fn check_keyspace(
    keyspace: &Keyspace,
    snapshot: &Snapshot,
    wanted: &Pairs,
    keys: &[impl AsRef<[u8]>],
    rng: &mut Rng,
) -> Check {
    let what = format!(
        "keyspace {} ({}) at {}",
        keyspace.name(),
        keyspace.id(),
        snapshot.number()
    );
    let failed = with_context(&what);
    let mut cursor = keyspace
        .cursor_at(snapshot, IterOptions::default())
        .map_err(&failed)?;
    let found = scan(&mut cursor, false).map_err(&failed)?;
    compare(&format!("{what}: forward"), &found, pairs(wanted))?;
    let found = scan(&mut cursor, true).map_err(&failed)?;
    compare(&format!("{what}: backward"), &found, pairs(wanted).rev())?;
    for key in keys {
        let key = key.as_ref();
        let found = keyspace.get_at(snapshot, key).map_err(&failed)?;
        let expected = wanted.get(key).map(|v| &v[..]);
        if found.as_deref() != expected {
            return Err(format!(
                "{what}: get {} gives {}, expected {}",
                show(key),
                show_value(found.as_deref()),
                show_value(expected)
            ));
        }
    }
    let many = keyspace.multi_get_at(snapshot, keys).map_err(&failed)?;
    for (key, found) in keys.iter().zip(&many) {
        let expected = wanted.get(key.as_ref()).map(|v| &v[..]);
        if found.as_deref() != expected {
            return Err(format!(
                "{what}: multi_get of {} keys gives {} for {}, expected {}",
                keys.len(),
                show_value(found.as_deref()),
                show(key.as_ref()),
                show_value(expected)
            ));
        }
    }
    if keys.is_empty() {
        return Ok(());
    }
    let key = |rng: &mut Rng| rng.pick(keys).as_ref().to_vec();
    // The bounds must ascend, because a reversed range is refused.
    let (a, b) = match (key(rng), key(rng)) {
        (a, b) if a > b => (b, a),
        bounds => bounds,
    };
    let values = rng.chance(70);
    let options = IterOptions {
        lower: Some(a.clone()),
        upper: Some(b.clone()),
        values,
        fill_cache: rng.chance(50),
    };
    let mut bounded = keyspace.cursor_at(snapshot, options).map_err(&failed)?;
    let within = || {
        let shown = pairs(wanted).filter(|(k, _)| *k >= &a[..] && *k < &b[..]);
        shown.map(|(k, v)| if values { (k, v) } else { (k, &[][..]) })
    };
    let bounds = format!("{what}: from {} to {}", show(&a), show(&b));
    compare(
        &bounds,
        &scan(&mut bounded, false).map_err(&failed)?,
        within(),
    )?;
    let mut back: Vec<_> = within().collect();
    back.reverse();
    compare(
        &format!("{bounds} backward"),
        &scan(&mut bounded, true).map_err(&failed)?,
        back.into_iter(),
    )?;
    walk(&mut cursor, wanted, &what, &key(rng), rng, 12)
}

/// Seeks and steps at random, and compares every position.
///
/// # Errors
/// The first difference.
pub fn walk(
    cursor: &mut Cursor,
    wanted: &Pairs,
    what: &str,
    from: &[u8],
    rng: &mut Rng,
    steps: u64,
) -> Check {
    let failed = with_context(what);
    let mut story = String::new();
    let mut at: Option<Vec<u8>> = None;
    let mut step = |cursor: &mut Cursor, choice: u64| -> Check {
        let found = match (&at, choice) {
            (Some(k), 0) => {
                story.push_str(" next");
                cursor.next().map_err(&failed)?;
                wanted
                    .range::<[u8], _>((
                        std::ops::Bound::Excluded(&k[..]),
                        std::ops::Bound::Unbounded,
                    ))
                    .next()
            }
            (Some(k), 1) => {
                story.push_str(" prev");
                cursor.prev().map_err(&failed)?;
                wanted
                    .range::<[u8], _>((
                        std::ops::Bound::Unbounded,
                        std::ops::Bound::Excluded(&k[..]),
                    ))
                    .next_back()
            }
            (_, 2) => {
                story.push_str(&format!(" seek {}", show(from)));
                cursor.seek(from).map_err(&failed)?;
                wanted
                    .range::<[u8], _>((std::ops::Bound::Included(from), std::ops::Bound::Unbounded))
                    .next()
            }
            (_, 3) => {
                story.push_str(&format!(" seek_for_prev {}", show(from)));
                cursor.seek_for_prev(from).map_err(&failed)?;
                wanted
                    .range::<[u8], _>((std::ops::Bound::Unbounded, std::ops::Bound::Included(from)))
                    .next_back()
            }
            (_, n) if n % 2 == 0 => {
                story.push_str(" first");
                cursor.seek_to_first().map_err(&failed)?;
                wanted.iter().next()
            }
            _ => {
                story.push_str(" last");
                cursor.seek_to_last().map_err(&failed)?;
                wanted.iter().next_back()
            }
        };
        at = found.map(|(k, _)| k.to_vec());
        let shown = cursor.valid().then(|| (cursor.key(), cursor.value()));
        if shown == found.map(|(k, v)| (&k[..], &v[..])) {
            return Ok(());
        }
        let (f, w) = (shown.map(|p| p.0), found.map(|p| &p.0[..]));
        Err(format!(
            "{what}: a cursor after{story} stands on {}, expected {}",
            show_value(f),
            show_value(w)
        ))
    };
    step(cursor, 2)?;
    for _ in 0..steps {
        let choice = if rng.chance(80) {
            rng.below(2)
        } else {
            2 + rng.below(4)
        };
        step(cursor, choice)?;
    }
    Ok(())
}

/// Compares all keyspaces at a snapshot taken now.
///
/// # Errors
/// The first difference.
pub fn check_now(
    store: &Store,
    history: &SharedHistory,
    keys: &[impl AsRef<[u8]>],
    rng: &mut Rng,
) -> Check {
    let snapshot = store.snapshot();
    check_at(store, &snapshot, history, keys, rng)
}

/// Compares the existing keyspaces at `snapshot`. No keyspace may be created or dropped meanwhile.
///
/// # Errors
/// The first difference.
pub fn check_at(
    store: &Store,
    snapshot: &Snapshot,
    history: &SharedHistory,
    keys: &[impl AsRef<[u8]>],
    rng: &mut Rng,
) -> Check {
    let now = store.snapshot().number();
    let wanted = lock(history).model.keyspaces(now);
    let names: Vec<String> = wanted.keys().cloned().collect();
    if store.keyspaces() != names {
        return Err(format!(
            "at {now}: keyspaces {:?}, expected {names:?}",
            store.keyspaces()
        ));
    }
    for (name, id) in wanted {
        let keyspace = store.keyspace(&name).map_err(with_context(&name))?;
        if keyspace.id() != id {
            return Err(format!(
                "keyspace {name} has id {}, expected {id}",
                keyspace.id()
            ));
        }
        let state = lock(history).model.state(id, snapshot.number());
        check_keyspace(&keyspace, snapshot, &state, keys, rng)?;
    }
    Ok(())
}

/// Pairs as a scan returned them.
type Scanned = Vec<(Vec<u8>, Vec<u8>)>;

/// The whole contents of a store: per keyspace its id and its pairs.
#[derive(Clone, PartialEq, Eq)]
pub struct Contents {
    keyspaces: BTreeMap<String, (u32, Scanned)>,
    next_keyspace_id: u32,
}

/// Reads a whole store.
///
/// # Errors
/// The first error.
pub fn contents(store: &Store) -> Result<Contents> {
    let mut all = BTreeMap::new();
    for name in store.keyspaces() {
        let keyspace = store.keyspace(&name)?;
        let pairs = scan(&mut keyspace.cursor(IterOptions::default())?, false)?;
        all.insert(name, (keyspace.id(), pairs));
    }
    let next_keyspace_id = store.test_hooks().state().next_keyspace_id;
    Ok(Contents {
        keyspaces: all,
        next_keyspace_id,
    })
}

impl Contents {
    /// The value of a key.
    pub fn get(&self, name: &str, key: &[u8]) -> Option<&[u8]> {
        let (_, pairs) = self.keyspaces.get(name)?;
        let at = pairs.binary_search_by(|(k, _)| k[..].cmp(key)).ok()?;
        Some(&pairs[at].1)
    }

    /// The keyspaces: name and id.
    pub fn ids(&self) -> BTreeMap<String, u32> {
        let ids = self.keyspaces.iter();
        ids.map(|(name, (id, _))| (name.clone(), *id)).collect()
    }

    /// All keys of a keyspace.
    pub fn keys(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        let pairs = self.keyspaces.get(name).into_iter();
        pairs.flat_map(|(_, pairs)| pairs.iter().map(|(key, _)| &key[..]))
    }

    /// Describes the first difference to the expected keyspaces and pairs; next ids are not
    /// compared.
    ///
    /// # Errors
    /// The first difference.
    pub fn same_as(&self, wanted: &Contents) -> Check {
        let (found, expected) = (self.ids(), wanted.ids());
        if found != expected {
            return Err(format!("keyspaces {found:?}, expected {expected:?}"));
        }
        for (name, (id, pairs)) in &self.keyspaces {
            let wanted = wanted.keyspaces[name].1.iter();
            let wanted = wanted.map(|(k, v)| (&k[..], &v[..]));
            compare(&format!("keyspace {name} ({id})"), pairs, wanted)?;
        }
        Ok(())
    }
}

/// Compares a whole store with the expected contents: by name, id and pairs.
///
/// # Errors
/// The first difference.
pub fn check_contents(store: &Store, wanted: &BTreeMap<String, (u32, Pairs)>) -> Check {
    let found = contents(store).map_err(with_context("reading everything"))?;
    let ids: BTreeMap<String, u32> = wanted.iter().map(|(n, (id, _))| (n.clone(), *id)).collect();
    if found.ids() != ids {
        return Err(format!("keyspaces {:?}, expected {ids:?}", found.ids()));
    }
    for (name, (id, found)) in &found.keyspaces {
        let state = &wanted[name].1;
        compare(&format!("keyspace {name} ({id})"), found, pairs(state))?;
    }
    Ok(())
}

fn equals(contents: &Contents, model: &Model, number: u64) -> Check {
    let wanted = model.keyspaces(number);
    let found = contents.ids();
    if found != wanted {
        return Err(format!("keyspaces {found:?}, expected {wanted:?}"));
    }
    let next = model.next_keyspace_id(number);
    if contents.next_keyspace_id != next {
        return Err(format!(
            "the next keyspace's id is {}, expected {next}",
            contents.next_keyspace_id
        ));
    }
    for (name, (id, found)) in &contents.keyspaces {
        compare(
            &format!("keyspace {name} ({id})"),
            found,
            pairs(&model.state(*id, number)),
        )?;
    }
    Ok(())
}

/// Finds the prefix of the history that a freshly opened store shows: one that ends at `least` or
/// later, and is the same over all keyspaces. Cuts the model to it and returns its end.
///
/// # Errors
/// If no prefix matches. The error has the difference to the closest prefix.
pub fn find_prefix(
    store: &Store,
    model: &mut Model,
    least: u64,
) -> std::result::Result<u64, String> {
    let contents = contents(store).map_err(with_context("reading everything after a recovery"))?;
    // The store never gave a number above the published one, whatever its contents are.
    let published = store.snapshot().number();
    let ends: Vec<u64> = model
        .ends_from(least)
        .into_iter()
        .filter(|end| *end <= published)
        .collect();
    if let Some(end) = ends
        .iter()
        .find(|end| equals(&contents, model, **end).is_ok())
    {
        model.cut(*end);
        return Ok(*end);
    }
    let all = model.ends_from(0);
    let report = match all
        .iter()
        .find(|end| equals(&contents, model, **end).is_ok())
    {
        Some(end) => format!("the store stands at {end}: synced records up to {least} are lost"),
        None => {
            let at = |end: Option<&u64>| match end {
                Some(end) => format!(
                    "\n  against {end}: {}",
                    equals(&contents, model, *end).err().unwrap_or_default()
                ),
                None => String::new(),
            };
            format!(
                "the store shows no prefix of the history that ends at {least} to {}:{}{}",
                model.last(),
                at(ends.first()),
                if ends.len() > 1 {
                    at(ends.last())
                } else {
                    String::new()
                }
            )
        }
    };
    Err(report)
}

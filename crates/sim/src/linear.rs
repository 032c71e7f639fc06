//! Linearizability: decides whether there is an order of operations, each within its interval, that
//! explains every answer.
//!
//! A history is a list of [`Operation`]s: intervals with the values that were written or seen. All
//! operations of a store reduce to two actions, each over one or several keys at once: a get, a
//! multi-get, a scan and a snapshot are reads (a scan also of the keys that it did not show; a
//! snapshot at its creation, whenever it is read later), and a put, a delete, a range delete and a
//! batch are writes. [`check`] says whether the history is linearizable, and if not, which few
//! operations contradict each other ([`Verdict::Not`]).
//!
//! The algorithm is just-in-time linearization (Wing and Gong; Lowe). Events are taken in the order
//! of time. A *configuration* is the set of running operations that have taken effect, and the
//! contents that they left. No operation takes effect before it must: when an operation ends, every
//! configuration in which it has not taken effect is continued by all orders of running writes up
//! to the point where it has. Reads take effect as soon as they can, because they leave no trace. A
//! configuration that cannot let the operation end is dropped. If no configuration is left, the
//! history is not linearizable. Sets of keys that no operation connects are searched separately
//! (linearizability is local).
//!
//! An operation that a kill cut off took effect at some time before the end of the kill, or never:
//! [`End::Cut`]. So it is a contradiction if such a write becomes visible after a reader has seen,
//! after the kill, that it is absent.
//!
//! The search is bounded. Beyond the bound the verdict is [`Verdict::Undecided`], which counts as a
//! failure.
//!
//! Threading: plain values.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

mod shrink;
#[cfg(test)]
mod tests;

/// A key, as a number.
pub type Key = u32;

/// A value, as a number. `None` means that the key has no value. Histories are most useful if no
/// two writes write the same value.
pub type Value = Option<u64>;

/// The action of an operation, which happens at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// These keys have these values from then on. If a key is named twice, the last value holds.
    Write(Vec<(Key, Value)>),
    /// These keys had these values.
    Read(Vec<(Key, Value)>),
}

impl Action {
    /// The keys with their values.
    pub fn pairs(&self) -> &[(Key, Value)] {
        match self {
            Action::Write(pairs) | Action::Read(pairs) => pairs,
        }
    }

    fn pairs_mut(&mut self) -> &mut Vec<(Key, Value)> {
        match self {
            Action::Write(pairs) | Action::Read(pairs) => pairs,
        }
    }

    /// Whether it is a write.
    pub fn is_write(&self) -> bool {
        matches!(self, Action::Write(_))
    }
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The operation returned at this time.
    Returned(u64),
    /// The operation did not return. It took effect before this time (the end of the kill), or
    /// never.
    Cut(u64),
}

impl End {
    /// The time after which it can no longer take effect.
    pub fn time(self) -> u64 {
        match self {
            End::Returned(time) | End::Cut(time) => time,
        }
    }
}

/// One operation of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// A name of the operation, for messages.
    pub name: &'static str,
    /// The client, for messages only: the order follows from times alone.
    pub client: u32,
    /// The time of the call, by any clock that all clients share. An operation that ends at the
    /// time when another is called overlaps it.
    pub called: u64,
    /// How and when it ended.
    pub end: End,
    /// Its action.
    pub action: Action,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (end, how) = match self.end {
            End::Returned(time) => (time.to_string(), ""),
            End::Cut(u64::MAX) => ("...".to_string(), " cut off"),
            End::Cut(time) => (time.to_string(), " cut off"),
        };
        let sign = if self.action.is_write() { ":=" } else { "=" };
        let interval = format!("{}..{end}", self.called);
        write!(
            f,
            "{interval:>16}  client {}  {}{how}",
            self.client, self.name
        )?;
        for (key, value) in self.action.pairs() {
            match value {
                Some(value) => write!(f, "  k{key} {sign} {value}")?,
                None => write!(f, "  k{key} {sign} nothing")?,
            }
        }
        Ok(())
    }
}

/// The result of [`check`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is an order that explains all answers.
    Linearizable {
        /// The number of steps of the search.
        steps: u64,
    },
    /// There is no order, and these operations alone have none either. Without any one of them, or
    /// of the named keys, there would be one (unless the bound kept the conflict from being reduced
    /// further). Ordered by time of call.
    Not(Vec<Operation>),
    /// The bound was reached, or more than 64 operations ran at once.
    Undecided(String),
}

impl Verdict {
    /// Whether it is [`Verdict::Linearizable`].
    pub fn is_linearizable(&self) -> bool {
        matches!(self, Verdict::Linearizable { .. })
    }

    /// An error that describes the conflict.
    ///
    /// # Errors
    /// The operations in conflict, or the reason why the history was not decided.
    pub fn result(self) -> Result<u64, String> {
        match self {
            Verdict::Linearizable { steps } => Ok(steps),
            Verdict::Undecided(why) => Err(format!("linearizability is undecided: {why}")),
            Verdict::Not(conflict) => {
                let lines: Vec<String> = conflict.iter().map(|o| format!("  {o}\n")).collect();
                Err(format!(
                    "not linearizable: no order of these operations explains what they saw\n{}",
                    lines.concat()
                ))
            }
        }
    }
}

/// Whether the history, which begins without any values, is linearizable. The search for the
/// verdict takes at most `steps_max` steps (a step is one write taking effect in one configuration,
/// about a microsecond), and reducing the conflict at most ten times as many.
pub fn check(operations: &[Operation], steps_max: u64) -> Verdict {
    let mut steps = 0;
    for part in parts(operations) {
        match search(&part, steps_max, &mut steps) {
            Found::Order => {}
            Found::Undecided(why) => return Verdict::Undecided(why),
            Found::None { until } => {
                return Verdict::Not(shrink::shrink(part, until, steps_max));
            }
        }
    }
    Verdict::Linearizable { steps }
}

/// Groups the operations by the keys that connect them: operations that share no key, directly or
/// through others, are in different groups.
fn parts(operations: &[Operation]) -> Vec<Vec<Operation>> {
    let mut leader: BTreeMap<Key, Key> = BTreeMap::new();
    fn find(leader: &mut BTreeMap<Key, Key>, key: Key) -> Key {
        let mut at = key;
        while let Some(next) = leader.get(&at).copied().filter(|next| *next != at) {
            at = next;
        }
        leader.insert(key, at);
        at
    }
    for operation in operations {
        let mut keys = operation.action.pairs().iter().map(|(key, _)| *key);
        let Some(first) = keys.next() else { continue };
        let first = find(&mut leader, first);
        for key in keys {
            let other = find(&mut leader, key);
            leader.insert(other, first);
        }
    }
    let mut parts: BTreeMap<Key, Vec<Operation>> = BTreeMap::new();
    for operation in operations {
        if let Some((key, _)) = operation.action.pairs().first() {
            let part = find(&mut leader, *key);
            parts.entry(part).or_default().push(plain(operation));
        }
    }
    parts.into_values().collect()
}

/// The same operation, without keys that are named twice for no reason.
fn plain(operation: &Operation) -> Operation {
    let mut operation = operation.clone();
    match &mut operation.action {
        Action::Write(pairs) => {
            let last: BTreeMap<Key, Value> = pairs.drain(..).collect();
            pairs.extend(last);
        }
        // A key that was seen with two values stays, because that is the contradiction.
        Action::Read(pairs) => {
            pairs.sort_unstable();
            pairs.dedup();
        }
    }
    operation
}

/// The result of a search.
enum Found {
    Order,
    /// There is no order, which is known from the events until this time.
    None {
        until: u64,
    },
    Undecided(String),
}

/// The running operations that have taken effect, by their index, and the contents that they left:
/// for each key the value's number, 0 for none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Configuration {
    done: u64,
    values: Box<[u32]>,
}

/// An operation in the form that the search uses.
struct Compact {
    is_write: bool,
    pairs: Vec<(usize, u32)>,
}

/// The running operations, by index.
struct Running<'a> {
    places: [Option<&'a Compact>; 64],
}

impl<'a> Running<'a> {
    fn taken(&self) -> impl Iterator<Item = (usize, &'a Compact)> + '_ {
        let places = self.places.iter().enumerate();
        places.filter_map(|(place, running)| Some((place, (*running)?)))
    }

    /// Lets every running read that can take effect do so.
    fn settle(&self, configuration: &mut Configuration) {
        for (place, operation) in self.taken() {
            if !operation.is_write
                && operation
                    .pairs
                    .iter()
                    .all(|(key, value)| configuration.values[*key] == *value)
            {
                configuration.done |= 1 << place;
            }
        }
    }

    /// The configuration after one more write.
    fn after(&self, configuration: &Configuration, place: usize, write: &Compact) -> Configuration {
        let mut next = configuration.clone();
        for (key, value) in &write.pairs {
            next.values[*key] = *value;
        }
        next.done |= 1 << place;
        self.settle(&mut next);
        next
    }
}

/// Maps keys and values to consecutive numbers.
fn compact(operations: &[Operation]) -> (Vec<Compact>, usize) {
    let mut keys: BTreeMap<Key, usize> = BTreeMap::new();
    let mut values: BTreeMap<u64, u32> = BTreeMap::new();
    let mut all = Vec::with_capacity(operations.len());
    for operation in operations {
        let mut pairs = Vec::with_capacity(operation.action.pairs().len());
        for (key, value) in operation.action.pairs() {
            let next = keys.len();
            let key = *keys.entry(*key).or_insert(next);
            let value = value.map_or(0, |value| {
                let next = values.len() as u32 + 1;
                *values.entry(value).or_insert(next)
            });
            pairs.push((key, value));
        }
        all.push(Compact {
            is_write: operation.action.is_write(),
            pairs,
        });
    }
    (all, keys.len())
}

/// Searches for an order of these operations.
fn search(operations: &[Operation], steps_max: u64, steps: &mut u64) -> Found {
    let (compact, key_count) = compact(operations);
    // At equal times a call precedes an end, so the two operations overlap.
    let mut events: Vec<(u64, bool, usize)> = Vec::with_capacity(2 * operations.len());
    for (index, operation) in operations.iter().enumerate() {
        let is_cut = matches!(operation.end, End::Cut(_));
        // A read without an answer is no constraint.
        if is_cut && !operation.action.is_write() {
            continue;
        }
        events.push((operation.called, false, index));
        events.push((operation.end.time().max(operation.called), true, index));
    }
    events.sort();
    let mut running = Running { places: [None; 64] };
    let mut place_of = vec![usize::MAX; operations.len()];
    let mut configurations = BTreeSet::from([Configuration {
        done: 0,
        values: vec![0; key_count].into(),
    }]);
    for (time, is_end, index) in events {
        if !is_end {
            let Some(place) = running.places.iter().position(Option::is_none) else {
                return Found::Undecided(format!("at {time}, more than 64 operations run at once"));
            };
            place_of[index] = place;
            running.places[place] = Some(&compact[index]);
            if !compact[index].is_write {
                configurations = configurations
                    .into_iter()
                    .map(|mut configuration| {
                        running.settle(&mut configuration);
                        configuration
                    })
                    .collect();
            }
            continue;
        }
        let place = place_of[index];
        let may_not_be = matches!(operations[index].end, End::Cut(_));
        let before = std::mem::take(&mut configurations);
        let clear = |mut configuration: Configuration| {
            configuration.done &= !(1 << place);
            configuration
        };
        let mut open: Vec<Configuration> = Vec::new();
        for configuration in before {
            if configuration.done & (1 << place) != 0 {
                configurations.insert(clear(configuration));
            } else {
                if may_not_be {
                    configurations.insert(configuration.clone());
                }
                open.push(configuration);
            }
        }
        let mut seen: BTreeSet<Configuration> = open.iter().cloned().collect();
        while let Some(configuration) = open.pop() {
            let writes = running
                .taken()
                .filter(|(at, o)| o.is_write && configuration.done & (1 << at) == 0);
            for (at, write) in writes {
                *steps += 1;
                if *steps > steps_max {
                    return Found::Undecided(format!(
                        "{steps_max} steps did not decide it; at {time}, {} configurations",
                        seen.len()
                    ));
                }
                let next = running.after(&configuration, at, write);
                if next.done & (1 << place) != 0 {
                    configurations.insert(clear(next));
                } else if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        running.places[place] = None;
        if configurations.is_empty() {
            return Found::None { until: time };
        }
    }
    Found::Order
}

//! Reduces a history that is not linearizable to a few of its operations that are not either.
//!
//! Each step is sound: if the whole history were linearizable, the remaining part would be too.
//! - Operations that were called after the contradiction appeared, or had not returned by then, are
//!   left out (a write that had not returned stays as one that may take effect).
//! - A read, or one of its keys, is left out, so that fewer answers have to be explained.
//! - A write, or one of its keys, is left out if no remaining operation saw the value (for a
//!   delete: saw the key without a value): in any order that explains the whole history, no read
//!   lies between it and the next write of the key.
//!
//! Threading: plain values.

use super::{Action, End, Found, Operation, Value, search};

/// The smallest part that these steps lead to, by time of call.
pub(super) fn shrink(operations: Vec<Operation>, until: u64, steps_max: u64) -> Vec<Operation> {
    let mut shrinker = Shrinker {
        steps_max,
        steps: 0,
    };
    let mut left: Vec<Operation> = operations
        .into_iter()
        .filter(|o| o.called <= until && (o.action.is_write() || o.end.time() <= until))
        .map(|mut o| {
            if o.end.time() > until {
                o.end = End::Cut(u64::MAX);
            }
            o
        })
        .collect();
    shrinker.one_key(&mut left);
    loop {
        let before = size(&left);
        shrinker.leave_out(&mut left, |o| !o.action.is_write());
        shrinker.leave_out_pairs(&mut left);
        shrinker.leave_out(&mut left, |_| true);
        if size(&left) == before {
            break;
        }
    }
    left.sort_by_key(|o| (o.called, o.end.time()));
    left
}

fn size(operations: &[Operation]) -> usize {
    operations
        .iter()
        .map(|o| 1 + o.action.pairs().len())
        .sum::<usize>()
}

struct Shrinker {
    steps_max: u64,
    steps: u64,
}

impl Shrinker {
    /// Whether these operations have no order. An undecided search counts as false.
    fn contradicts(&mut self, operations: &[Operation]) -> bool {
        if self.steps > self.steps_max.saturating_mul(10) {
            return false;
        }
        let mut steps = 0;
        let found = search(operations, self.steps_max, &mut steps);
        self.steps += steps + operations.len() as u64;
        matches!(found, Found::None { .. })
    }

    /// Often one or two keys are enough.
    fn one_key(&mut self, left: &mut Vec<Operation>) {
        let mut keys: Vec<u32> = left
            .iter()
            .flat_map(|o| o.action.pairs().iter().map(|(key, _)| *key))
            .collect();
        keys.sort_unstable();
        keys.dedup();
        let only = |wanted: &[u32]| {
            let mut part = left.clone();
            for operation in &mut part {
                let pairs = operation.action.pairs_mut();
                pairs.retain(|(key, _)| wanted.contains(key));
            }
            part.retain(|o| !o.action.pairs().is_empty());
            part
        };
        let single = keys.iter().map(|key| vec![*key]);
        let double = keys
            .iter()
            .enumerate()
            .flat_map(|(i, a)| keys[i + 1..].iter().map(|b| vec![*a, *b]));
        for wanted in single.chain(double) {
            let part = only(&wanted);
            if self.contradicts(&part) {
                *left = part;
                return;
            }
        }
    }

    /// Leaves out operations, many at once as long as this succeeds.
    fn leave_out(&mut self, left: &mut Vec<Operation>, which: impl Fn(&Operation) -> bool) {
        let mut chunk = left.len().next_power_of_two();
        while chunk > 0 {
            let mut at = 0;
            while at < left.len() {
                let end = (at + chunk).min(left.len());
                let mut index = 0;
                let part: Vec<Operation> = left
                    .iter()
                    .filter(|o| {
                        let inside = (at..end).contains(&index);
                        index += 1;
                        !(inside && which(o))
                    })
                    .cloned()
                    .collect();
                if part.len() < left.len() && all_unseen(left, &part) && self.contradicts(&part) {
                    *left = part;
                } else {
                    at = end;
                }
            }
            chunk /= 2;
        }
    }

    /// Leaves out single keys of operations with several keys.
    fn leave_out_pairs(&mut self, left: &mut Vec<Operation>) {
        for at in 0..left.len() {
            let mut pair = 0;
            while left[at].action.pairs().len() > 1 && pair < left[at].action.pairs().len() {
                let mut part = left.clone();
                let (key, value) = part[at].action.pairs_mut().remove(pair);
                let may = match part[at].action {
                    Action::Read(_) => true,
                    Action::Write(_) => !is_seen(&part, key, value),
                };
                if may && self.contradicts(&part) {
                    *left = part;
                } else {
                    pair += 1;
                }
            }
        }
    }
}

/// Whether an operation saw this value of this key.
fn is_seen(operations: &[Operation], key: u32, value: Value) -> bool {
    operations.iter().any(|o| match &o.action {
        Action::Read(pairs) => pairs.contains(&(key, value)),
        Action::Write(_) => false,
    })
}

/// Whether no operation in `part` saw a value of the writes that are in `whole` and not in `part`.
/// `part` is a subsequence of `whole`.
fn all_unseen(whole: &[Operation], part: &[Operation]) -> bool {
    let mut kept = part.iter().peekable();
    whole.iter().all(|operation| {
        if kept.peek() == Some(&operation) {
            kept.next();
            return true;
        }
        match &operation.action {
            Action::Read(_) => true,
            Action::Write(pairs) => pairs
                .iter()
                .all(|(key, value)| !is_seen(part, *key, *value)),
        }
    })
}

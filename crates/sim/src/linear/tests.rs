//! Tests the checker on histories known to be bad, on unusual histories known to be good, and
//! against trying all orders.

use super::*;
use crate::rng::Rng;

/// An operation from `called` to `returned`, by a client.
fn op(name: &'static str, client: u32, times: (u64, u64), action: Action) -> Operation {
    Operation {
        name,
        client,
        called: times.0,
        end: End::Returned(times.1),
        action,
    }
}

fn put(client: u32, times: (u64, u64), key: Key, value: u64) -> Operation {
    let action = Action::Write(vec![(key, Some(value))]);
    op("put", client, times, action)
}

fn delete(client: u32, times: (u64, u64), key: Key) -> Operation {
    op("delete", client, times, Action::Write(vec![(key, None)]))
}

fn batch(client: u32, times: (u64, u64), pairs: &[(Key, u64)]) -> Operation {
    let pairs = pairs.iter().map(|(key, value)| (*key, Some(*value)));
    op("batch", client, times, Action::Write(pairs.collect()))
}

fn get(client: u32, times: (u64, u64), key: Key, value: impl Into<Value>) -> Operation {
    let action = Action::Read(vec![(key, value.into())]);
    op("get", client, times, action)
}

fn scan(client: u32, times: (u64, u64), pairs: &[(Key, Value)]) -> Operation {
    op("scan", client, times, Action::Read(pairs.to_vec()))
}

/// An operation that never returned; the kill was over at `until`.
fn cut(mut operation: Operation, until: u64) -> Operation {
    operation.end = End::Cut(until);
    operation
}

const STEPS: u64 = 1_000_000;

#[track_caller]
fn good(history: &[Operation]) {
    if let Err(why) = check(history, STEPS).result() {
        panic!("{why}");
    }
}

/// Not linearizable; `conflict` of the operations are needed to show it.
#[track_caller]
fn bad(history: &[Operation], conflict: usize) {
    match check(history, STEPS) {
        Verdict::Not(found) => {
            assert_eq!(found.len(), conflict, "{found:#?}");
            assert!(matches!(check(&found, STEPS), Verdict::Not(_)));
            for left_out in 0..found.len() {
                let mut less = found.clone();
                less.remove(left_out);
                // Without the write, its value would be read from nowhere, which is not a smaller
                // reason.
                if !found[left_out].action.is_write() {
                    good(&less);
                }
            }
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_stale_read() {
    bad(
        &[
            put(0, (1, 2), 1, 10),
            put(0, (3, 4), 1, 11),
            get(1, (5, 6), 1, 10),
        ],
        3,
    );
    // The read misses an acknowledged write.
    bad(&[put(0, (1, 2), 1, 10), get(1, (3, 4), 1, None)], 2);
}

#[test]
fn a_read_of_what_nobody_wrote() {
    bad(&[get(0, (1, 2), 1, 7)], 1);
}

#[test]
fn a_lost_update() {
    // Two writes, one after the other; in the end the first one's value is there.
    bad(
        &[
            put(0, (1, 4), 1, 10),
            put(1, (5, 8), 1, 11),
            get(2, (9, 10), 1, 10),
            get(3, (11, 12), 1, 10),
        ],
        3,
    );
}

#[test]
fn half_a_batch() {
    bad(
        &[
            batch(0, (1, 10), &[(1, 10), (2, 20)]),
            scan(1, (2, 3), &[(1, Some(10)), (2, None)]),
        ],
        2,
    );
    // Two gets, one after the other: the second key had its value before.
    bad(
        &[
            batch(0, (1, 10), &[(1, 10), (2, 20)]),
            get(1, (2, 3), 1, 10),
            get(1, (4, 5), 2, None),
        ],
        3,
    );
}

#[test]
fn a_snapshot_that_moves() {
    // Reads of a snapshot count for the moment of its creation; each of these alone would be right
    // at the time it was made.
    let moved = op(
        "snapshot",
        1,
        (3, 4),
        Action::Read(vec![(1, Some(10)), (1, Some(11))]),
    );
    bad(&[put(0, (1, 2), 1, 10), put(0, (5, 6), 1, 11), moved], 1);
    // A key that was read later has a value that is newer than the snapshot.
    let later = op(
        "snapshot",
        1,
        (3, 4),
        Action::Read(vec![(1, Some(10)), (2, Some(20))]),
    );
    bad(&[put(0, (1, 2), 1, 10), put(0, (5, 6), 2, 20), later], 1);
}

#[test]
fn a_read_from_the_future() {
    bad(&[get(1, (1, 2), 1, 10), put(0, (3, 4), 1, 10)], 1);
}

#[test]
fn two_readers_see_two_writes_in_opposite_order() {
    // Each reader reads both keys at once, and the readers overlap, so that no single key shows the
    // contradiction.
    bad(
        &[
            put(0, (1, 20), 1, 10),
            put(1, (1, 20), 2, 20),
            scan(2, (2, 9), &[(1, Some(10)), (2, None)]),
            scan(3, (2, 9), &[(1, None), (2, Some(20))]),
        ],
        4,
    );
    // The same key, in both orders.
    bad(
        &[
            put(0, (1, 20), 1, 10),
            put(1, (1, 20), 1, 11),
            get(2, (2, 3), 1, 10),
            get(2, (4, 5), 1, 11),
            get(3, (2, 3), 1, 11),
            get(3, (4, 5), 1, 10),
        ],
        6,
    );
}

#[test]
fn a_value_goes_and_comes_back() {
    // After a delete.
    bad(
        &[
            put(0, (1, 2), 1, 10),
            delete(0, (3, 4), 1),
            get(1, (5, 6), 1, None),
            get(1, (7, 8), 1, 10),
        ],
        3,
    );
    // After a kill: the write that was cut off was absent, and is there later.
    bad(
        &[
            cut(put(0, (1, 9), 1, 10), 5),
            get(1, (6, 7), 1, None),
            get(1, (8, 9), 1, 10),
        ],
        3,
    );
    // The same without a read in between: the write took effect before the end of the kill, and so
    // before the next write.
    bad(
        &[
            cut(put(0, (1, 9), 1, 10), 5),
            put(1, (6, 7), 1, 11),
            get(1, (8, 9), 1, 10),
        ],
        3,
    );
}

#[test]
fn a_batch_is_partly_lost_by_a_kill() {
    bad(
        &[
            cut(batch(0, (1, 9), &[(1, 10), (2, 20)]), 5),
            get(1, (6, 7), 1, 10),
            get(1, (8, 9), 2, None),
        ],
        3,
    );
    // An acknowledged write is lost.
    bad(
        &[
            batch(0, (1, 2), &[(1, 10), (2, 20)]),
            get(1, (6, 7), 2, None),
        ],
        2,
    );
    // A kill keeps the later of two writes and loses the earlier one, which a reader had seen.
    bad(
        &[
            cut(put(0, (1, 9), 1, 10), 9),
            get(1, (2, 3), 1, 10),
            cut(put(2, (4, 9), 2, 20), 9),
            scan(3, (10, 11), &[(1, None), (2, Some(20))]),
        ],
        3,
    );
}

#[test]
fn one_bad_read_among_a_thousand_is_found_alone() {
    let mut history = Vec::new();
    for i in 0..500 {
        history.push(batch(0, (4 * i, 4 * i + 2), &[(1, i + 1), (2, i + 1)]));
        let seen = if i == 321 { i } else { i + 1 };
        history.push(scan(
            1,
            (4 * i + 3, 4 * i + 3),
            &[(1, Some(i + 1)), (2, Some(seen))],
        ));
    }
    let Verdict::Not(found) = check(&history, STEPS) else {
        panic!("it is bad")
    };
    assert!(found.len() <= 3, "{found:#?}");
}

#[test]
fn odd_but_good() {
    // A read sees a value that is being written, and a later read does too.
    good(&[
        put(0, (1, 20), 1, 10),
        get(1, (2, 3), 1, None),
        get(1, (4, 5), 1, 10),
        get(1, (6, 7), 1, 10),
    ]);
    // Two overlapping writes are seen in the reverse order of their calls.
    good(&[
        put(0, (1, 20), 1, 10),
        put(1, (2, 19), 1, 11),
        get(2, (3, 4), 1, 11),
        get(2, (5, 6), 1, 10),
        get(2, (21, 22), 1, 10),
    ]);
    // An old value is seen by a read that began before the write returned, while another read
    // already sees the new one.
    good(&[
        put(0, (1, 2), 1, 10),
        put(0, (3, 9), 1, 11),
        get(1, (4, 8), 1, 10),
        get(2, (5, 6), 1, 11),
    ]);
    // A snapshot was taken between two batches and read much later.
    good(&[
        batch(0, (1, 2), &[(1, 10), (2, 20)]),
        op(
            "snapshot",
            1,
            (3, 4),
            Action::Read(vec![(1, Some(10)), (2, Some(20)), (3, None)]),
        ),
        batch(0, (5, 6), &[(1, 11), (2, 21), (3, 31)]),
    ]);
    // A write that a kill cut off is there or not, permanently; an overlapping read may have seen
    // it.
    good(&[
        cut(put(0, (1, 9), 1, 10), 5),
        get(1, (2, 3), 1, 10),
        get(1, (6, 7), 1, 10),
    ]);
    good(&[
        cut(put(0, (1, 9), 1, 10), 5),
        cut(put(1, (1, 9), 2, 20), 5),
        get(2, (6, 7), 1, None),
        get(2, (8, 9), 2, 20),
    ]);
    // A read that was cut off saw nothing.
    good(&[
        cut(get(0, (1, 9), 1, 77), 5),
        put(0, (6, 7), 1, 10),
        get(1, (8, 9), 1, 10),
    ]);
    // Equal times mean that operations overlap.
    good(&[get(1, (1, 2), 1, 10), put(0, (2, 3), 1, 10)]);
    // A key is deleted twice, and written in between by a slow client.
    good(&[
        put(0, (1, 30), 1, 10),
        delete(1, (2, 3), 1),
        get(2, (4, 5), 1, None),
        get(2, (6, 7), 1, 10),
        delete(1, (8, 9), 1),
        get(2, (10, 11), 1, None),
    ]);
    good(&[]);
}

#[test]
fn keys_that_nothing_joins_are_apart() {
    let history = [
        put(0, (1, 2), 1, 10),
        put(0, (3, 4), 2, 20),
        batch(0, (5, 6), &[(3, 30), (4, 40)]),
        scan(0, (7, 8), &[(4, Some(40)), (5, None)]),
    ];
    let sizes: Vec<usize> = parts(&history).iter().map(Vec::len).collect();
    assert_eq!(sizes, [1, 1, 2]);
}

#[test]
fn past_the_bound_it_is_undecided() {
    // Of these overlapping writes only two are seen: the search goes through all subsets of the
    // others.
    let beside = |count: u32| {
        let mut history: Vec<Operation> = (0..count)
            .map(|i| put(i, (1, 99), 1, 10 + u64::from(i)))
            .collect();
        history.push(get(50, (50, 60), 1, 12));
        history.push(get(50, (61, 70), 1, 11));
        history
    };
    good(&beside(8));
    assert!(matches!(check(&beside(8), 20), Verdict::Undecided(_)));
    assert!(matches!(check(&beside(40), 100_000), Verdict::Undecided(_)));
    let many: Vec<Operation> = (0..65).map(|i| put(i, (1, 9), 1, 10)).collect();
    assert!(matches!(check(&many, STEPS), Verdict::Undecided(_)));
}

/// Tries all orders: whether one of them explains what was seen. An operation that was cut off may
/// be left out.
fn some_order(operations: &[Operation]) -> bool {
    fn go(left: &[&Operation], contents: &BTreeMap<Key, u64>) -> bool {
        let must = |o: &&&Operation| matches!(o.end, End::Returned(_));
        if left.iter().filter(must).count() == 0 {
            return true;
        }
        (0..left.len()).any(|next| {
            let operation = left[next];
            // It cannot follow a later operation that ended before this one was called.
            let rest: Vec<&Operation> = left
                .iter()
                .enumerate()
                .filter(|(i, _)| *i != next)
                .map(|(_, o)| *o)
                .collect();
            let overtaken = rest.iter().any(|o| o.end.time() < operation.called);
            let mut after = contents.clone();
            match &operation.action {
                Action::Read(pairs) => {
                    let right = pairs
                        .iter()
                        .all(|(key, value)| contents.get(key).copied() == *value);
                    !overtaken && right && go(&rest, contents)
                }
                Action::Write(pairs) => {
                    for (key, value) in pairs {
                        match value {
                            Some(value) => after.insert(*key, *value),
                            None => after.remove(key),
                        };
                    }
                    !overtaken && go(&rest, &after)
                }
            }
        })
    }
    // Each subset of the operations that were cut off may have happened.
    let cut: Vec<usize> = (0..operations.len())
        .filter(|i| matches!(operations[*i].end, End::Cut(_)))
        .collect();
    (0..1 << cut.len()).any(|subset: u32| {
        let happened: Vec<Operation> = operations
            .iter()
            .enumerate()
            .filter(|(i, _)| match cut.iter().position(|c| c == i) {
                Some(bit) => subset & (1 << bit) != 0 && operations[*i].action.is_write(),
                None => true,
            })
            .map(|(_, o)| Operation {
                end: End::Returned(o.end.time()),
                ..o.clone()
            })
            .collect();
        go(&happened.iter().collect::<Vec<_>>(), &BTreeMap::new())
    })
}

/// A few operations of a few clients over two or three keys, with answers that are often possible.
fn small_history(seed: u64) -> Vec<Operation> {
    let mut rng = Rng::new(seed);
    let count = 2 + rng.index(5);
    let clients = 1 + rng.index(4);
    let keys = 1 + rng.below(3) as Key;
    let cuts = rng.chance(40);
    let values_are_unique = rng.chance(70);
    let mut free_at = vec![0; clients];
    let mut next_value = 0;
    let mut written: Vec<u64> = Vec::new();
    let mut history = Vec::new();
    for _ in 0..count {
        let client = rng.index(clients);
        let called = free_at[client] + 1 + rng.below(4);
        let returned = called + rng.below(8);
        free_at[client] = returned;
        let is_write = rng.chance(50);
        let wide = 1 + rng.index(keys as usize);
        let mut pairs = Vec::new();
        for _ in 0..wide {
            let key = rng.below(keys.into()) as Key;
            let value = if rng.chance(20) {
                None
            } else if is_write {
                next_value += 1;
                written.push(if values_are_unique { next_value } else { 1 });
                written.last().copied()
            } else {
                // A value that a client writes before or after: it is a guess.
                Some(1 + rng.below(4)).filter(|_| rng.chance(80))
            };
            pairs.push((key, value));
        }
        let action = match is_write {
            true => Action::Write(pairs),
            false => Action::Read(pairs),
        };
        let mut operation = op("op", client as u32, (called, returned), action);
        if cuts && rng.chance(30) {
            operation.end = End::Cut(returned);
        }
        history.push(operation);
    }
    history
}

#[test]
fn it_agrees_with_trying_all_orders() {
    let (mut yes, mut no) = (0, 0);
    for seed in 0..30_000 {
        let history = small_history(seed);
        let expected = some_order(&history);
        let verdict = check(&history, STEPS);
        match &verdict {
            Verdict::Linearizable { .. } => yes += 1,
            Verdict::Not(conflict) => {
                no += 1;
                assert!(
                    !some_order(conflict),
                    "seed {seed}: made too small: {conflict:#?}"
                );
            }
            Verdict::Undecided(why) => panic!("seed {seed}: {why}"),
        }
        assert_eq!(
            verdict.is_linearizable(),
            expected,
            "seed {seed}: {history:#?}"
        );
    }
    assert!(yes > 3000 && no > 3000, "{yes} good, {no} bad");
}

/// A history that some order explains, made by taking the answers along one: eight clients, a
/// thousand operations.
fn explained_history(seed: u64, count: usize) -> Vec<Operation> {
    let mut rng = Rng::new(seed);
    let mut contents: BTreeMap<Key, u64> = BTreeMap::new();
    let mut history: Vec<Operation> = Vec::new();
    let mut free_at = [0; 8];
    let mut moment = 10;
    for i in 0..count {
        // Each operation takes effect at its moment, and its interval around it does not overlap
        // other operations of its client.
        moment += 1 + rng.below(10);
        let client = rng.index(8);
        if free_at[client] >= moment {
            continue;
        }
        let called = moment - rng.below(moment - free_at[client]).min(60);
        let returned = moment + rng.below(60);
        free_at[client] = returned;
        let wide = 1 + rng.below(5) as Key;
        let first = rng.below(20) as Key;
        let action = if rng.chance(50) {
            Action::Write(
                (first..first + wide)
                    .map(|key| {
                        let value = (!rng.chance(20)).then_some(1000 * i as u64 + u64::from(key));
                        match value {
                            Some(value) => contents.insert(key, value),
                            None => contents.remove(&key),
                        };
                        (key, value)
                    })
                    .collect(),
            )
        } else {
            Action::Read(
                (first..first + wide)
                    .map(|key| (key, contents.get(&key).copied()))
                    .collect(),
            )
        };
        history.push(op("op", client as u32, (called, returned), action));
    }
    history
}

#[test]
fn a_thousand_operations_are_decided() {
    for seed in 0..30 {
        let mut history = explained_history(seed, 1500);
        assert!(history.len() > 600, "{}", history.len());
        good(&history);
        // One outdated answer makes it bad, and few operations show why.
        let mut rng = Rng::new(seed);
        let (stale, value) = loop {
            let at = rng.index(history.len());
            let Action::Read(pairs) = &history[at].action else {
                continue;
            };
            let (key, seen) = pairs[0];
            let old = history[..at].iter().find_map(|o| match &o.action {
                Action::Write(w) => w
                    .iter()
                    .find(|(k, v)| *k == key && v.is_some() && *v != seen),
                _ => None,
            });
            // Whether it was replaced by a write that was over before this read began.
            if let Some((_, value)) = old
                && at > 500
            {
                break (at, *value);
            }
        };
        history[stale].action.pairs_mut()[0].1 = value;
        let Verdict::Not(conflict) = check(&history, STEPS) else {
            panic!("seed {seed}: a read of what was overwritten 500 operations ago is not seen")
        };
        assert!(conflict.len() <= 4, "seed {seed}: {conflict:#?}");
    }
}

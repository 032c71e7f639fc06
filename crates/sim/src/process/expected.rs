//! The expected contents of the store, kept outside of the process that is killed.
//!
//! [`Expected`] receives the messages of a victim. For each lane it keeps all contents that the
//! lane may have: one, and twice as many for each operation that was begun and not acknowledged,
//! which may have happened as a whole or not. A verifier's dump must be one of them; from then on
//! it is the only one.
//!
//! Threading: owned by the parent.

use siltstone::ErrorKind;

use super::messages::{Dump, Health, Message};
use super::script::{LANES, Lane, Op, SHARED, Script, lane_of, own_name};
use super::verifier::lane_of_dump;
use crate::coverage::Coverage;

/// The messages of a victim in one cycle, except those about operations.
#[derive(Clone, Debug, Default)]
pub struct Said {
    /// The time when the store was open, in microseconds since 1970.
    pub opened_us: Option<u64>,
    /// The number of log records that the open replayed.
    pub replayed: u64,
    /// The time when work began.
    pub ready: bool,
    /// The time when closing began.
    pub closing_us: Option<u64>,
    /// Whether it was closed, with or without an error.
    pub closed: Option<bool>,
    /// The number of acknowledged operations.
    pub done: u64,
    /// The number of operations that were refused because there was no space.
    pub no_space: u64,
    /// The number of operations that failed otherwise.
    pub failed: u64,
    /// The number of operations that were refused because the store is poisoned.
    pub poisoned: u64,
    /// The number of acknowledged operations that began after a client was refused by the poison.
    pub done_after_poison: u64,
    /// The number of running jobs, in the last message about the store's state.
    pub jobs: u64,
    /// The health in that message.
    pub health: Health,
    /// Whether the store reports a failed job in that message.
    pub job_error: bool,
    /// The number of flushes since the open.
    pub flushes: u32,
    /// The number of compactions since the open.
    pub compactions: u32,
    /// Bytes appended to the log since the open.
    pub log_bytes: u64,
    /// The number of ingests since the open.
    pub ingests: u32,
    /// The number of flushes to the second location of tables since the open.
    pub redirected: u32,
    /// The kinds of operations that had begun and not ended at the end.
    pub pending: Vec<&'static str>,
}

struct LaneState {
    possible: Vec<Lane>,
    pending: Option<(u64, bool)>,
    /// The pending operation was begun when the store was known to be poisoned.
    late: bool,
}

/// The expected contents; see the module.
pub struct Expected {
    lanes: Vec<LaneState>,
    shared_there: bool,
    script: Script,
    said: Said,
    coverage: Coverage,
}

impl Expected {
    /// An empty store.
    pub fn new() -> Expected {
        let lane = || LaneState {
            possible: vec![Lane::default()],
            pending: None,
            late: false,
        };
        Expected {
            lanes: (0..LANES).map(|_| lane()).collect(),
            shared_there: false,
            script: Script::new(0, 0),
            said: Said::default(),
            coverage: Coverage::default(),
        }
    }

    /// Begins a cycle.
    pub fn begin(&mut self, script: Script) {
        self.script = script;
        self.said = Said::default();
    }

    /// The messages so far in this cycle.
    pub fn said(&self) -> &Said {
        &self.said
    }

    /// Counts of what was reached in all cycles.
    pub fn take_coverage(&mut self) -> Coverage {
        std::mem::take(&mut self.coverage)
    }

    /// Receives a message of the victim.
    ///
    /// # Errors
    /// The message is impossible.
    pub fn receive(&mut self, message: Message) -> Result<(), String> {
        let said = &mut self.said;
        match message {
            Message::Opened { at_us, replayed } => {
                (said.opened_us, said.replayed) = (Some(at_us), replayed);
            }
            Message::Ready => {
                (said.ready, self.shared_there) = (true, true);
            }
            Message::Begun { lane, n, own } => {
                let state = self.lanes.get_mut(lane).ok_or("a lane too many")?;
                if state.pending.replace((n, own)).is_some() {
                    return Err(format!("lane {lane} begins {n} in the middle of another"));
                }
                state.late = said.poisoned > 0;
            }
            Message::Done { lane, n } => {
                let (op, late) = self.end(lane, n)?;
                self.said.done += 1;
                self.said.done_after_poison += u64::from(late);
                self.coverage.add(&format!("op.{}", op.word()));
                if let Op::Write { entries, .. } = &op
                    && entries.iter().any(|e| e.space() != entries[0].space())
                {
                    self.coverage.add("op.batch_over_keyspaces");
                }
                for possible in &mut self.lanes[lane].possible {
                    possible.apply(&op);
                }
            }
            Message::Failed {
                lane,
                n,
                sure,
                kind,
            } => {
                let (op, _) = self.end(lane, n)?;
                match kind {
                    ErrorKind::NoSpace => self.said.no_space += 1,
                    ErrorKind::Poisoned => self.said.poisoned += 1,
                    _ => self.said.failed += 1,
                }
                self.coverage.add(&format!("failed.{}", kind.word()));
                if !sure {
                    self.maybe(lane, &op);
                }
            }
            Message::State {
                jobs,
                health,
                job_error,
                flushes,
                compactions,
                log_bytes,
                ingests,
                redirected,
            } => {
                (said.jobs, said.health, said.job_error) = (jobs, health, job_error);
                (said.flushes, said.compactions) = (flushes, compactions);
                (said.log_bytes, said.ingests) = (log_bytes, ingests);
                said.redirected = redirected;
            }
            Message::Closing { at_us } => said.closing_us = Some(at_us),
            Message::Closed { fine } => said.closed = Some(fine),
        }
        Ok(())
    }

    /// Ends a pending operation. A write to a keyspace that did not exist wrote nothing.
    fn end(&mut self, lane: usize, n: u64) -> Result<(Op, bool), String> {
        let state = self.lanes.get_mut(lane).ok_or("a lane too many")?;
        let own = match state.pending.take() {
            Some((begun, own)) if begun == n => own,
            other => return Err(format!("lane {lane} ends {n}, but {other:?} is pending")),
        };
        let late = state.late;
        Ok((self.seen(lane, n, own), late))
    }

    /// The operation as the lane did it; `own` says whether the lane's own keyspace existed.
    fn seen(&self, lane: usize, n: u64, own: bool) -> Op {
        let without = Lane {
            own,
            ..Lane::default()
        };
        match self.script.op(lane, n) {
            Op::Write { entries, sync } => Op::Write {
                entries: without.possible(&entries).into_iter().cloned().collect(),
                sync,
            },
            Op::Ingest { space, mode, .. } if !without.has(space) => Op::Ingest {
                space,
                pairs: Vec::new(),
                mode,
            },
            op => op,
        }
    }

    fn maybe(&mut self, lane: usize, op: &Op) {
        let possible = &mut self.lanes[lane].possible;
        for before in possible.clone() {
            let mut after = before;
            after.apply(op);
            if !possible.contains(&after) {
                possible.push(after);
            }
        }
    }

    /// The victim has ended: operations that were begun may have happened or not.
    pub fn died(&mut self) {
        for lane in 0..LANES {
            if let Some((n, own)) = self.lanes[lane].pending.take() {
                let op = self.seen(lane, n, own);
                self.said.pending.push(op.word());
                self.coverage.add(&format!("pending.{}", op.word()));
                self.maybe(lane, &op);
            }
        }
    }

    /// Compares the result of a verifier, which becomes the only expected state.
    ///
    /// # Errors
    /// The contents differ; the error has the smallest difference.
    pub fn compare(&mut self, dump: &Dump) -> Result<(), String> {
        for (name, pairs) in dump {
            let own = (0..LANES).find(|lane| own_name(*lane) == *name);
            if own.is_none() && !SHARED.contains(&name.as_str()) {
                return Err(format!("keyspace {name} was never created"));
            }
            let foreign = |key: &&crate::model::Bytes| {
                lane_of(key).is_none() || own.is_some_and(|own| lane_of(key) != Some(own))
            };
            if let Some(key) = pairs.keys().find(foreign) {
                return Err(format!(
                    "keyspace {name} holds {}, which nobody wrote",
                    key[..key.len().min(24)].escape_ascii()
                ));
            }
        }
        if let Some(name) = SHARED.iter().find(|n| !dump.contains_key(**n))
            && self.shared_there
        {
            return Err(format!("keyspace {name} is gone"));
        }
        for lane in 0..LANES {
            let found = lane_of_dump(dump, lane);
            let possible = &mut self.lanes[lane].possible;
            let Some(at) = possible.iter().position(|p| *p == found) else {
                let all: Vec<String> = possible
                    .iter()
                    .filter_map(|p| p.difference(&found, lane))
                    .collect();
                return Err(format!(
                    "lane {lane} has none of {} possible contents: {}",
                    possible.len(),
                    all.join("; or ")
                ));
            };
            if possible.len() > 1 {
                self.coverage.add(match at {
                    0 => "unsure.not_there",
                    _ => "unsure.there",
                });
            }
            *possible = vec![found];
        }
        Ok(())
    }
}

impl Default for Expected {
    fn default() -> Expected {
        Expected::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Pairs;

    fn dump_of(expected: &Expected, choose: impl Fn(&[Lane]) -> usize) -> Dump {
        let mut dump = Dump::from(SHARED.map(|name| (name.to_string(), Pairs::new())));
        for (lane, state) in expected.lanes.iter().enumerate() {
            let held = &state.possible[choose(&state.possible)];
            for (space, pairs) in held.spaces.iter().enumerate() {
                if held.has(space) {
                    let name = super::super::script::space_name(lane, space);
                    dump.entry(name).or_default().extend(pairs.clone());
                }
            }
        }
        dump
    }

    /// The operations of a lane that change something, with their numbers.
    fn changes(script: &Script, lane: usize) -> impl Iterator<Item = u64> + '_ {
        (0..).filter(move |n| matches!(script.op(lane, *n), Op::Write { .. }))
    }

    fn played() -> (Expected, Script) {
        let script = Script::new(3, 1);
        let mut expected = Expected::new();
        expected.begin(script.clone());
        expected.receive(Message::Ready).unwrap();
        for lane in 0..LANES {
            for n in changes(&script, lane).take(50) {
                let own = false;
                expected.receive(Message::Begun { lane, n, own }).unwrap();
                expected.receive(Message::Done { lane, n }).unwrap();
            }
        }
        (expected, script)
    }

    #[test]
    fn what_was_acknowledged_must_be_there() {
        let (mut expected, _) = played();
        let whole = dump_of(&expected, |_| 0);
        expected.died();
        expected.compare(&whole).unwrap();
        let mut lost = whole.clone();
        let first = lost["a"].keys().next().unwrap().clone();
        lost.get_mut("a").unwrap().remove(&first);
        assert!(expected.compare(&lost).is_err(), "a pair is lost");
        let mut more = whole.clone();
        let pair = (b"zzz"[..].into(), b"v"[..].into());
        more.get_mut("b").unwrap().extend([pair]);
        assert!(expected.compare(&more).is_err(), "a pair that nobody wrote");
        let mut gone = whole.clone();
        gone.remove("b");
        assert!(expected.compare(&gone).is_err(), "a keyspace is gone");
        let mut foreign = whole.clone();
        foreign.insert("own-0".to_string(), Pairs::new());
        assert!(
            expected.compare(&foreign).is_err(),
            "a keyspace that was not created"
        );
        let mut stale = whole.clone();
        *stale.get_mut("a").unwrap().get_mut(&first).unwrap() = b"old"[..].into();
        assert!(expected.compare(&stale).is_err(), "another value");
        expected.compare(&whole).unwrap();
    }

    #[test]
    fn what_was_begun_is_there_as_a_whole_or_not_at_all() {
        for there in [0, 1] {
            let (mut expected, script) = played();
            let big = |n: &u64| match script.op(1, *n) {
                Op::Write { entries, .. } => {
                    let puts = entries
                        .iter()
                        .filter(|e| matches!(e, super::super::script::Entry::Put(0..3, ..)));
                    puts.count() > 3 && entries.len() < 20
                }
                _ => false,
            };
            let n = changes(&script, 1).skip(50).find(big).unwrap();
            let own = false;
            expected
                .receive(Message::Begun { lane: 1, n, own })
                .unwrap();
            expected.died();
            assert_eq!(expected.said().pending, ["batch"]);
            assert_eq!(expected.lanes[1].possible.len(), 2);
            let before = expected.lanes[1].possible[0].clone();
            let dump = dump_of(&expected, |p| there.min(p.len() - 1));
            // Half of an operation is neither of the two.
            let mut half = dump_of(&expected, |p| p.len() - 1);
            let changed = SHARED.iter().enumerate().find_map(|(space, name)| {
                let (pairs, old) = (&half[*name], &before.spaces[space]);
                let key = pairs
                    .iter()
                    .find(|(k, v)| lane_of(k) == Some(1) && old.get(*k) != Some(*v))?;
                Some(((*name).to_string(), key.0.clone(), old.get(key.0).cloned()))
            });
            let (name, key, old) = changed.unwrap();
            match old {
                Some(old) => half.get_mut(&name).unwrap().insert(key, old),
                None => half.get_mut(&name).unwrap().remove(&key),
            };
            assert!(expected.compare(&half).is_err());
            expected.compare(&dump).unwrap();
            assert_eq!(expected.lanes[1].possible.len(), 1);
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut expected = Expected::new();
        expected.begin(Script::new(1, 1));
        assert!(expected.receive(Message::Done { lane: 0, n: 0 }).is_err());
        let begun = |lane, n| Message::Begun {
            lane,
            n,
            own: false,
        };
        expected.receive(begun(0, 1)).unwrap();
        assert!(expected.receive(begun(0, 2)).is_err());
        assert!(expected.receive(begun(LANES, 2)).is_err());
    }
}

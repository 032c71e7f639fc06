//! Folders that do not exist although sessions used them before. These sessions wait for them.
//!
//! A host that only wants to know whether there is a folder asks for it once. It asks again with
//! the same token only if its session used the folder before. In that case the device was probably
//! started before its disk was mounted, and only its operator can help.
//!
//! Invariants: at most [`SESSIONS_MAX`] sessions are remembered. Two reports are at least [`PAUSE`]
//! apart.
//!
//! Threading: plain data, under the lock of the server's state.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use siltstone_storage::Instant;

/// The maximum number of sessions that are remembered.
const SESSIONS_MAX: usize = 1024;

/// A session is reported when it has been asking for its folder for this long.
const PATIENCE: Duration = Duration::from_secs(3);

/// The least time between two reports. A session that has not asked for this long is forgotten.
const PAUSE: Duration = Duration::from_secs(60);

/// The maximum number of names in a report.
const NAMES_MAX: usize = 8;

/// Folders that do not exist, although sessions used them before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingFolders {
    /// The number of sessions that ask for them again and again.
    pub session_count: u64,
    /// The names of the folders, of which only the first ones are listed.
    pub names: Vec<String>,
}

/// A session that asks for a folder that is not there.
struct Asking {
    folder: String,
    first: Instant,
    last: Instant,
}

impl Asking {
    /// If there are too many sessions, the one with the smallest value is forgotten. Sessions that
    /// have asked more than once have larger values than strangers with new tokens. Among equals,
    /// the session that asked last has the largest one.
    fn worth(&self) -> (bool, Instant) {
        (self.last > self.first, self.last)
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Missing {
    /// The sessions by the hashes of their tokens.
    sessions: BTreeMap<u128, Asking>,
    /// When the last report was made.
    told: Option<Instant>,
}

impl Missing {
    /// Notes that a session asked for this folder, which does not exist.
    pub(super) fn add(&mut self, token_hash: u128, folder: &str, now: Instant) {
        if let Some(asking) = self.sessions.get_mut(&token_hash) {
            asking.last = now;
            return;
        }
        if self.sessions.len() >= SESSIONS_MAX {
            let sessions = self.sessions.iter();
            let least = sessions.min_by_key(|(_, asking)| asking.worth());
            if let Some(least) = least.map(|(token_hash, _)| *token_hash) {
                self.sessions.remove(&least);
            }
        }
        let asking = Asking {
            folder: folder.to_string(),
            first: now,
            last: now,
        };
        self.sessions.insert(token_hash, asking);
    }

    /// Notes that a session has its folder.
    pub(super) fn found(&mut self, token_hash: u128) {
        self.sessions.remove(&token_hash);
    }

    /// Makes a report, if it is time for one and a session waits for its folder.
    pub(super) fn report(&mut self, now: Instant) -> Option<MissingFolders> {
        if self.told.is_some_and(|told| now.since(told) < PAUSE) {
            return None;
        }
        self.sessions
            .retain(|_, asking| now.since(asking.last) < PAUSE);
        let sessions = self.sessions.values();
        let missing = sessions.filter(|asking| asking.last.since(asking.first) >= PATIENCE);
        let folders: Vec<&str> = missing.map(|asking| asking.folder.as_str()).collect();
        if folders.is_empty() {
            return None;
        }
        self.told = Some(now);
        let names: BTreeSet<&str> = folders.iter().copied().collect();
        let names = names.into_iter().take(NAMES_MAX).map(str::to_string);
        Some(MissingFolders {
            session_count: folders.len() as u64,
            names: names.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::default() + Duration::from_secs(seconds)
    }

    #[test]
    fn only_sessions_that_ask_again_are_reported() {
        let mut missing = Missing::default();
        for (token_hash, folder) in [(1, "birds"), (2, "eggs"), (3, "birds")] {
            missing.add(token_hash, folder, at(0));
        }
        assert_eq!(missing.report(at(10)), None);
        missing.add(1, "birds", at(4));
        missing.add(3, "birds", at(4));
        let report = |session_count, names: &[&str]| {
            let names = names.iter().map(|name| name.to_string()).collect();
            Some(MissingFolders {
                session_count,
                names,
            })
        };
        assert_eq!(missing.report(at(10)), report(2, &["birds"]));
        // The next report comes a while later, and only if sessions still ask.
        missing.add(1, "birds", at(69));
        missing.add(2, "eggs", at(69));
        assert_eq!(missing.report(at(69)), None);
        assert_eq!(missing.report(at(70)), report(2, &["birds", "eggs"]));
        missing.add(1, "birds", at(100));
        missing.add(2, "eggs", at(100));
        missing.found(2);
        assert_eq!(missing.report(at(131)), report(1, &["birds"]));
        assert_eq!(missing.report(at(300)), None);
        assert!(missing.sessions.is_empty());
    }

    #[test]
    fn strangers_do_not_displace_sessions_that_ask_again() {
        let mut missing = Missing::default();
        missing.add(0, "birds", at(0));
        missing.add(0, "birds", at(5));
        for stranger in 1..=3 * SESSIONS_MAX as u128 {
            missing.add(stranger, "any", at(6));
        }
        assert_eq!(missing.sessions.len(), SESSIONS_MAX);
        let names = missing.report(at(7)).map(|report| report.names);
        assert_eq!(names, Some(vec!["birds".to_string()]));
    }
}

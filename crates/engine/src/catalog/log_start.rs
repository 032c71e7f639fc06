//! The log start: the position before which nothing needs the log any more.
//!
//! Memtables hold the log from their first record on ([`crate::tree::pinning::FirstPosition`]).
//! Everything else that needs the log holds it here.
//!
//! Threading: the holds are behind a mutex that is held over nothing else.

use crate::catalog::Catalog;
use crate::formats::log::Position;
use crate::formats::version::{LogStart, StoreState};
use crate::tree::pinning;
use crate::tree::view::Source;

impl Catalog {
    /// Holds the log from `position` on, until [`Catalog::release_log`] is called with the returned
    /// id.
    pub(crate) fn hold_log(&self, position: Position) -> u64 {
        let mut holds = self.log_holds.lock();
        let id = holds.next;
        holds.next += 1;
        holds.held.insert(id, position);
        id
    }

    pub(crate) fn release_log(&self, hold: u64) {
        self.log_holds.lock().held.remove(&hold);
    }

    /// The ids and positions of all holds except those of memtables.
    pub(crate) fn log_holds(&self) -> Vec<(u64, Position)> {
        let holds = self.log_holds.lock();
        holds.held.iter().map(|(id, at)| (*id, *at)).collect()
    }

    /// The position before which nothing but the memtables in `done` needs the log.
    ///
    /// The log's end is read first. A leader lets a memtable hold the log from the end that the
    /// leader read before its append, so a hold that a memtable gets after this function read it
    /// begins at that end or after it. The keyspaces are read before the holds. A drop holds the
    /// log for its keyspace before the keyspace leaves the map, so it is seen in one of the two.
    pub(crate) fn log_start_without(&self, done: &[u64]) -> Position {
        let start = pinning::log_start(
            || self.wal.end().to_u64(),
            || {
                let mut needed: Vec<Position> = Vec::new();
                for keyspace in self.keyspaces().by_id.values() {
                    needed.extend(keyspace.view().sources.iter().filter_map(|s| match s {
                        Source::Memtable(m) if !done.contains(&m.id) => m.first_position(),
                        _ => None,
                    }));
                }
                needed.extend(self.log_holds.lock().held.values());
                needed.into_iter().map(Position::to_u64)
            },
        );
        Position::from_u64(start)
    }

    /// The log start for an edit after which nothing needs the memtables in `done` any more. `None`
    /// if the manifest's log start is not before it. The log start never lies behind the synced
    /// part of the log: a replay ignores damage before the log start, so a loss of power must not
    /// be able to damage that part.
    pub(crate) fn log_start_edit(&self, state: &StoreState, done: &[u64]) -> Option<LogStart> {
        let needed = self.log_start_without(done);
        let needed = needed.min(self.wal.synced());
        let start = self.wal.log_start_at(needed);
        Some(start).filter(|start| start.position() > state.log_start.position())
    }
}

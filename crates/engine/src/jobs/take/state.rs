//! The input of picks for one keyspace: its view, its settings, and what is reserved in it.
//!
//! Threading: it is made under the schedule's lock, and does not change.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::formats::version::SeqRange;
use crate::jobs::Jobs;
use crate::jobs::schedule::{Schedule, unsettled};
use crate::jobs::work::{Compaction, Reason, What};
use crate::tree::pick::{Choice, NOTHING_PICKED, Overlaps, PickInput, Reservation};
use crate::tree::settings::Settings;
use crate::tree::view::{KeyspaceCore, KeyspaceView};

/// The input of picks for one keyspace, as of one moment.
pub(in crate::jobs) struct PickState {
    pub(in crate::jobs) view: Arc<KeyspaceView>,
    pub(super) settings: Arc<Settings>,
    reserved: Vec<Reservation>,
    unsettled: Vec<SeqRange>,
    /// Bytes that lookups read in vain, by table.
    seek_bytes: BTreeMap<u64, u64>,
    free_bytes: Option<u64>,
    /// Tables that could not be read.
    unread: Vec<u64>,
    /// No keyspace's memtables fill faster than they are flushed.
    is_calm: bool,
}

impl PickState {
    /// The state if no work runs and no memtable waits: then nothing is behind for long.
    pub(in crate::jobs) fn of_idle(
        jobs: &Jobs,
        keyspace: &KeyspaceCore,
        unread: Vec<u64>,
    ) -> PickState {
        PickState {
            is_calm: true,
            ..PickState::of(jobs, keyspace, Vec::new(), unread)
        }
    }

    /// `reserved` are the reservations of the keyspace's work, and `unread` tables that could not
    /// be read.
    pub(in crate::jobs) fn of(
        jobs: &Jobs,
        keyspace: &KeyspaceCore,
        reserved: Vec<Reservation>,
        unread: Vec<u64>,
    ) -> PickState {
        let (view, settings) = (keyspace.pin(), keyspace.load_settings());
        // A compaction that nobody waits for does not take the last space.
        let counts_seeks = settings.pick.seek_compaction && !jobs.env.health().is_no_space();
        PickState {
            unsettled: unsettled(&view),
            seek_bytes: match counts_seeks {
                true => view.seek_bytes(),
                false => BTreeMap::new(),
            },
            free_bytes: jobs.env.free_bytes(),
            unread,
            // Only tables at the second location are moved for this.
            is_calm: jobs.env.locations().exists() && !jobs.env.flush_load().is_behind(),
            view,
            settings,
            reserved,
        }
    }

    pub(in crate::jobs) fn input<'a>(&'a self, overlaps: Option<&'a Overlaps>) -> PickInput<'a> {
        PickInput {
            version: &self.view.version,
            options: &self.settings.pick,
            jobs: &self.reserved,
            unsettled: &self.unsettled,
            seek_bytes: &self.seek_bytes,
            overlaps,
            last_picked: &NOTHING_PICKED,
            free_bytes: self.free_bytes,
            unread: &self.unread,
            is_calm: self.is_calm,
        }
    }

    /// The input of a pick that a user has asked for. It leaves out no table, so the user learns
    /// why one cannot be read.
    pub(super) fn manual_input(&self) -> PickInput<'_> {
        PickInput {
            unread: &[],
            ..self.input(None)
        }
    }

    /// The input of the pick of a compaction that is due.
    pub(super) fn due_input<'a>(&'a self, schedule: &'a Schedule) -> PickInput<'a> {
        let keyspace = self.view.version.id();
        PickInput {
            last_picked: schedule.last_picked(keyspace),
            ..self.input(schedule.overlaps(keyspace))
        }
    }

    pub(super) fn compaction(self, choice: Choice, reason: Reason) -> What {
        What::Compaction(Box::new(Compaction {
            choice,
            version: self.view.version.clone(),
            unsettled: self.unsettled,
            reason,
        }))
    }
}

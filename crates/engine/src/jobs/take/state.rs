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
}

impl PickState {
    /// `reserved` are the reservations of the keyspace's work.
    pub(in crate::jobs) fn of(
        jobs: &Jobs,
        keyspace: &KeyspaceCore,
        reserved: Vec<Reservation>,
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

//! The journals of all media of a store, replayed together.
//!
//! A moment of a run is the number of changes of the store's own medium and the number of marks in
//! its journal, because the changes of the other media are marks there.
//!
//! Threading: one task.

use siltstone_storage::{CrashPolicy, CrashReport, JournalReplay, MemoryStorage, Runtime};

use super::{End, LETTERS, Media};
use crate::marking::{last_position, moments, position};

/// See the module.
pub(crate) struct Journals {
    all: Vec<JournalReplay>,
    /// The media of the run.
    of: Media,
    /// The medium that makes the next change.
    next: usize,
}

/// The state that the end of a run at the present moment leaves.
pub(crate) struct Ended {
    pub(crate) media: Media,
    pub(crate) report: CrashReport,
    /// Whether the next change was interrupted partway.
    pub(crate) is_within: bool,
}

impl Journals {
    pub(super) fn of(media: &Media) -> Journals {
        Journals {
            all: media.all.iter().map(MemoryStorage::replay).collect(),
            of: media.clone(),
            next: 0,
        }
    }

    /// The journal of the store's own medium, which has the marks.
    pub(crate) fn own(&self) -> &JournalReplay {
        &self.all[0]
    }

    /// The moments at which `n` changes of the store's own medium were made, as numbers of marks.
    /// Changes of media with the letters in `also` are moments too.
    pub(crate) fn moments(&self, n: u64, also: &[char]) -> Vec<usize> {
        let letters = [&LETTERS[1..self.all.len()], also].concat();
        moments(self.own().marks(), n, &letters)
    }

    /// Moves to the moment at which `n` changes of the store's own medium and this number of marks
    /// were made. It never moves back.
    pub(crate) fn advance_to(&mut self, n: u64, mark_count: usize) {
        let (own, others) = self.all.split_at_mut(1);
        own[0].advance_to(n);
        let (marks, behind) = own[0].marks_so_far().split_at(mark_count);
        for (replay, letter) in others.iter_mut().zip(&LETTERS[1..]) {
            replay.advance_to(last_position(marks, *letter));
        }
        // Only the call that made the next change can be interrupted, because a later call on
        // another medium may have waited for it.
        let next = behind.iter().find_map(|mark| {
            let moves = |i: &usize| {
                position(mark, LETTERS[*i]).is_some_and(|to| to > others[*i - 1].position())
            };
            (1..=others.len()).find(moves)
        });
        self.next = next.unwrap_or(0);
    }

    /// The positions of the other media, for messages.
    pub(crate) fn describe_others(&self) -> String {
        let others = self.all.iter().zip(LETTERS).skip(1);
        let describe = |(replay, letter): (&JournalReplay, char)| {
            format!("{} of {} at {letter}, ", replay.position(), replay.len())
        };
        others.map(describe).collect()
    }

    /// Whether the store's own medium makes the next change of these media.
    pub(crate) fn is_own_next(&self) -> bool {
        self.next == 0
    }

    /// The state if the run ends at the present moment: by a loss of power with these losses, or by
    /// a kill. With a seed in `within`, the next change is interrupted partway, if it can be.
    pub(crate) fn end(
        &self,
        runtime: &Runtime,
        end: End,
        policy: CrashPolicy,
        within: Option<u64>,
    ) -> Ended {
        let (mut report, mut is_within) = (CrashReport::default(), false);
        let left = self.all.iter().enumerate().map(|(i, replay)| {
            let seed = within.filter(|_| i == self.next);
            let part = seed.and_then(|seed| match end {
                End::Kill => replay.kill_within(runtime, seed),
                End::Power => replay.crash_within(runtime, policy, seed),
            });
            is_within |= part.is_some();
            let (image, part) = part.unwrap_or_else(|| match end {
                End::Kill => (replay.kill_in(runtime), CrashReport::default()),
                End::Power => replay.crash_in(runtime, policy),
            });
            report.merge(&part);
            image
        });
        let all = left.collect();
        Ended {
            media: Media {
                all,
                layout: self.of.layout,
                redirect: self.of.redirect,
            },
            report,
            is_within,
        }
    }
}

//! The promises of the store up to a moment of a run, read from the marks in a medium's journal.
//!
//! While a store works, marks are made in the journal of its medium: the acknowledged, synced and
//! given numbers, and the number of changes of settings that are over. [`Promised`] is the sum of
//! the marks up to a moment. A store that crashed at that moment must keep these promises.
//!
//! Threading: plain values.

use siltstone_storage::{JournalReplay, Mark};

/// The promises up to a moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Promised {
    /// Everything up to this number was acknowledged.
    pub(crate) acked: u64,
    /// Everything up to this number must survive power loss.
    pub(crate) synced: u64,
    /// The number of changes of settings that are over.
    pub(crate) settings: usize,
    /// Numbers up to this one were given to writes. No later life may give them again, even if the
    /// writes that had them are lost.
    pub(crate) given: u64,
}

impl Promised {
    /// The promises at the position of `replay` in the journal. `before` has the promises from
    /// before the journal began.
    pub(crate) fn at(replay: &JournalReplay, before: Promised) -> Promised {
        Promised::by(replay.marks_so_far(), before)
    }

    /// Adds the promises in `marks` to those `before` them.
    pub(crate) fn by(marks: &[Mark], before: Promised) -> Promised {
        let mut promised = before;
        for mark in marks {
            let (kind, number) = mark.label.split_at(1);
            let number: u64 = number.parse().expect("a mark of ours");
            match kind {
                "a" => promised.acked = promised.acked.max(number),
                "s" => {
                    promised.acked = promised.acked.max(number);
                    promised.synced = promised.synced.max(number);
                }
                "g" => promised.given = promised.given.max(number),
                "o" => promised.settings = promised.settings.max(number as usize),
                // This mark notes the position of another storage's journal.
                _ => {}
            }
        }
        promised
    }
}

//! A view and a number that belong together, without a lock.
//!
//! [`PublishedNumber`] is the newest number whose entries are all readable. [`pin`] takes a
//! keyspace's present view and that number so that they belong together: the view shows everything
//! up to the number, and nothing that a read at the number sees was dropped from it (RFC 1,
//! section 5). [`FirstPosition`] is the position from which on a memtable holds the log.
//!
//! Why this is right. A reader pins the view, then reads the number, and then checks that the view
//! is still the present one. There are two ways in which view and number could fail to belong
//! together:
//! - The view lacks entries up to the number. The leader puts a memtable into the view, fills it,
//!   and then publishes its numbers. So a reader that has read a number finds a present view that
//!   has the memtable. If the view that was pinned *before* is still the present one, it has the
//!   memtable.
//! - A job has dropped an entry that a read at the number sees. A job reads the published number,
//!   and later installs a view that keeps everything that this number and later ones see. A reader
//!   that has pinned this view reads the number *afterwards*, so its number is not below the job's.
//!
//! This file knows nothing of the store, so that all its schedules can be explored without one:
//! `tests/pinning_loom.rs` and `crates/sim/tests/schedules.rs` compile it as it is.
//!
//! Threading: any thread may pin. Only the leader publishes and holds the log.

use siltstone_storage::planted;

use super::atomics::{AtomicU64, Ordering};

/// The newest number whose entries are all readable.
pub(crate) struct PublishedNumber(AtomicU64);

impl PublishedNumber {
    pub(crate) fn new(number: u64) -> PublishedNumber {
        PublishedNumber(AtomicU64::new(number))
    }

    #[inline]
    pub(crate) fn number(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Publishes everything up to `number`. Only the leader calls it, in rising order.
    #[inline]
    pub(crate) fn publish(&self, number: u64) {
        debug_assert!(number >= self.0.load(Ordering::Relaxed));
        self.0.store(number, Ordering::Release);
    }
}

/// An owner of a present view, which is a keyspace in the store.
pub(crate) trait Present {
    /// A view that is kept alive.
    type View;
    fn view(&self) -> Self::View;
    fn is_present(&self, view: &Self::View) -> bool;
}

/// A view to read, and the number to read at: the given number, or the published one. `check` is
/// called each time after a view was pinned.
///
/// A given number is that of a snapshot. It is older than the view, and jobs know it, so any view
/// shows it.
#[inline]
pub(crate) fn pin<P: Present, E>(
    present: &P,
    published: &PublishedNumber,
    number: Option<u64>,
    check: impl Fn() -> Result<(), E>,
) -> Result<(P::View, u64), E> {
    loop {
        let view = present.view();
        // After the pin, because a drop sets its mark before it takes the tables out of the view.
        check()?;
        let Some(number) = number else {
            let number = published.number();
            if present.is_present(&view) {
                return Ok((view, number));
            }
            continue;
        };
        return Ok((view, number));
    }
}

/// The value of a position that does not hold the log.
pub(crate) const NO_POSITION: u64 = u64::MAX;

/// Where the log ended before the first record of a memtable was appended. The memtable needs
/// nothing of the log before this position. The position is stored as a word that has the order of
/// positions (`log::Position::to_u64`).
///
/// The leader reads the end of the log and holds the log from there on before it appends, and
/// nobody else appends. A task that computes where the log must start reads the log's end first and
/// the held positions after that, so a position that it does not see yet is that end or a later
/// one.
pub(crate) struct FirstPosition(AtomicU64);

impl FirstPosition {
    pub(crate) fn new() -> FirstPosition {
        FirstPosition(AtomicU64::new(NO_POSITION))
    }

    /// Holds the log, because a record is about to be appended at `position` or after it.
    pub(crate) fn hold(&self, position: u64) {
        let pinned = self.0.load(Ordering::Relaxed);
        if pinned > position || pinned != position && planted!(PinMovesUp) {
            self.0.store(position, Ordering::SeqCst);
        }
    }

    /// Releases the log, because nothing was appended, now or earlier.
    pub(crate) fn release(&self) {
        self.0.store(NO_POSITION, Ordering::SeqCst);
    }

    /// The position, or [`NO_POSITION`].
    pub(crate) fn position(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// Where the log must start so that everything that is held stays. `end` returns the log's end.
/// `held`, which must be called after it, returns all held positions.
pub(crate) fn log_start<I: IntoIterator<Item = u64>>(
    end: impl FnOnce() -> u64,
    held: impl FnOnce() -> I,
) -> u64 {
    let end = end();
    held().into_iter().fold(end, u64::min)
}

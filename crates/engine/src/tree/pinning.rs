//! A view and a number that belong together, without a lock.
//!
//! What it is: [`PublishedNumber`] is the newest number whose entries are all readable; [`pin`] takes a
//! keyspace's present view and that number so that the view shows everything up to the number, and
//! nothing was dropped from it that the number still sees (RFC 1, section 5). [`FirstPosition`] is
//! what a source keeps of the log.
//!
//! Why it is right. The leader puts a source into the view, fills it, and then publishes its numbers: who has read the number finds a view at least as
//! new, so if the view that was pinned *before* is still present it has the source. A job reads the published number and then puts a view in
//! place that keeps what that number sees: who has pinned that view reads a number at least as high. Each of the two needs its order: view first,
//! number second, and the look at the view again.
//!
//! This file knows nothing of the store, so that all its schedules are explored by themselves: `tests/pinning_loom.rs` and `crates/sim/tests/schedules.rs`
//! compile it as it is.
//!
//! Threading: any thread; only the leader publishes and pins positions of the log.

use siltstone_storage::planted::{self, Bug};

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

/// Where the present view is.
pub(crate) trait Present {
    /// A view that is held.
    type View;
    fn view(&self) -> Self::View;
    fn is_present(&self, view: &Self::View) -> bool;
}

/// A view to read, and the number to read at: the given one, or the published one. `check` is asked whenever a view was pinned.
///
/// A number that is given is older than the view (a snapshot's, which jobs know): any view shows it.
#[inline]
pub(crate) fn pin<P: Present, E>(
    place: &P,
    published: &PublishedNumber,
    number: Option<u64>,
    check: impl Fn() -> Result<(), E>,
) -> Result<(P::View, u64), E> {
    loop {
        let view = place.view();
        // Asked after the pin: a drop sets its mark before it takes the tables out of the view.
        check()?;
        let Some(number) = number else {
            let number = published.number();
            if place.is_present(&view) {
                return Ok((view, number));
            }
            continue;
        };
        return Ok((view, number));
    }
}

/// No position is pinned.
pub(crate) const NO_POSITION: u64 = u64::MAX;

/// Where the log ended before the first record of a source was appended: the source needs nothing
/// that is before this position. A position is a word that orders as positions do
/// (`log::Position::to_u64`).
///
/// The leader reads the end of the log and pins it before it appends, and nobody else appends. A
/// task that computes where the log must start reads the log's end first and the pins after that: a
/// pin that it does not see yet is that end or a later position.
pub(crate) struct FirstPosition(AtomicU64);

impl FirstPosition {
    pub(crate) fn new() -> FirstPosition {
        FirstPosition(AtomicU64::new(NO_POSITION))
    }

    /// A record is about to be appended at `position` or behind it.
    pub(crate) fn hold(&self, position: u64) {
        let pinned = self.0.load(Ordering::Relaxed);
        if pinned > position || pinned != position && planted::is(Bug::PinMovesUp) {
            self.0.store(position, Ordering::SeqCst);
        }
    }

    /// Nothing was appended, now or earlier.
    pub(crate) fn release(&self) {
        self.0.store(NO_POSITION, Ordering::SeqCst);
    }

    /// The position, or [`NO_POSITION`].
    pub(crate) fn position(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// Where the log must start for everything that is pinned. `end` returns the log's end; `pinned`,
/// which is called after it, returns all pinned positions.
pub(crate) fn log_start<I: IntoIterator<Item = u64>>(
    end: impl FnOnce() -> u64,
    pinned: impl FnOnce() -> I,
) -> u64 {
    if planted::is(Bug::LogEndIsReadLate) {
        let pinned: Vec<u64> = pinned().into_iter().collect();
        return pinned.into_iter().fold(end(), u64::min);
    }
    let end = end();
    pinned().into_iter().fold(end, u64::min)
}

//! A range of a keyspace as a standard double-ended iterator.
//!
//! Invariant: both ends read at one number, and no pair is returned by both.
//!
//! Threading: owned by one reader; it may be sent to another thread.

use super::Cursor;
use crate::types::error::{Error, Result};

/// A key with its value.
type Pair = (Vec<u8>, Vec<u8>);

/// A range of a keyspace as a standard double-ended iterator over copies of the pairs. Both ends
/// read at one moment.
///
/// It allocates two vectors for each pair; take a [`Cursor`] where that matters.
///
/// It ends after the first error. Once it has ended, it does not hold any part of the store.
pub struct Range {
    /// The error of the open that failed. It is returned as the first item.
    refused: Option<Error>,
    /// `None` once the iterator has ended.
    ends: Option<Ends>,
}

struct Ends {
    front: Cursor,
    front_started: bool,
    back: Option<Box<Cursor>>,
    make_back: Option<Box<dyn FnOnce() -> Result<Cursor> + Send>>,
}

impl Range {
    pub(crate) fn new(
        front: Cursor,
        make_back: Box<dyn FnOnce() -> Result<Cursor> + Send>,
    ) -> Range {
        Range {
            refused: None,
            ends: Some(Ends {
                front,
                front_started: false,
                back: None,
                make_back: Some(make_back),
            }),
        }
    }

    /// A range that returns this error and ends.
    pub(crate) fn refused(error: Error) -> Range {
        Range {
            refused: Some(error),
            ends: None,
        }
    }

    fn step(
        &mut self,
        step: impl FnOnce(&mut Ends) -> Result<Option<Pair>>,
    ) -> Option<Result<Pair>> {
        if let Some(error) = self.refused.take() {
            return Some(Err(error));
        }
        let stepped = step(self.ends.as_mut()?).transpose();
        if !matches!(stepped, Some(Ok(_))) {
            self.ends = None;
        }
        stepped
    }
}

impl Ends {
    fn step_front(&mut self) -> Result<Option<Pair>> {
        if self.front_started {
            self.front.next()?;
        } else {
            self.front_started = true;
            self.front.seek_to_first()?;
        }
        let met =
            |back: &Cursor| back.valid() && self.front.valid() && self.front.key() >= back.key();
        if self.back.as_deref().is_some_and(met) {
            return Ok(None);
        }
        Ok(self.front.pair())
    }

    fn step_back(&mut self) -> Result<Option<Pair>> {
        match (&mut self.back, self.make_back.take()) {
            (Some(back), _) => back.prev()?,
            (None, Some(make)) => {
                let mut back = make()?;
                back.seek_to_last()?;
                self.back = Some(Box::new(back));
            }
            (None, None) => return Ok(None),
        }
        let Some(back) = self.back.as_deref() else {
            return Ok(None);
        };
        if self.front_started && self.front.valid() && back.key() <= self.front.key() {
            return Ok(None);
        }
        Ok(back.pair())
    }
}

impl Iterator for Range {
    type Item = Result<(Vec<u8>, Vec<u8>)>;
    fn next(&mut self) -> Option<Self::Item> {
        self.step(Ends::step_front)
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(Ends::step_back)
    }
}

impl std::iter::FusedIterator for Range {}

impl std::fmt::Debug for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let front = self.ends.as_ref().map(|ends| &ends.front);
        f.debug_struct("Range").field("front", &front).finish()
    }
}

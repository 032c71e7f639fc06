//! Which copies of pinned buffers may be under way (invariant P1 of [`super`]).
//!
//! Every stream counts its copies. A *clock* belongs to a position in a stream: for each stream, it
//! has the number of that stream's copies that come before the position. An event has the clock of
//! its position. When a stream waits for an event, its clock takes over what is later in the clock
//! of the event. When an event has passed, so have all copies within its clock.
//!
//! The order of three calls matters, since another thread may use the same stream: a copy is
//! counted *after* the driver's call, and an event's clock is taken *before* the driver's call, so
//! a copy within the clock of an event was put into the stream before the event. Until the copy is
//! counted, its caller's borrow keeps others from the bytes. A stream's clock takes over the
//! event's *after* the driver's call that makes it wait.
//!
//! Threading: any thread; one lock, which is held for a few comparisons.

use siltstone_storage::{Mutex, Runtime};

/// For each stream, how many of its copies come before a place. Streams beyond its end have 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clock {
    copies: Vec<u64>,
}

impl Clock {
    fn of(&self, stream: u32) -> u64 {
        self.copies.get(stream as usize).copied().unwrap_or(0)
    }

    fn raise(&mut self, stream: u32, to: u64) {
        let stream = stream as usize;
        if self.copies.len() <= stream {
            self.copies.resize(stream + 1, 0);
        }
        self.copies[stream] = self.copies[stream].max(to);
    }

    fn take_over(&mut self, other: &Clock) {
        for (stream, copies) in (0..).zip(&other.copies) {
            self.raise(stream, *copies);
        }
    }
}

/// What the device does with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// It reads the buffer: the host may read it too.
    Reads,
    /// It writes the buffer.
    Writes,
}

/// A copy of a buffer: the `number`-th of its stream.
#[derive(Debug)]
struct Copy {
    stream: u32,
    number: u64,
    does: Use,
}

/// The copies of one device.
#[derive(Debug)]
pub(crate) struct Progress {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The clock of each stream's end.
    streams: Vec<Clock>,
    /// What has passed.
    passed: Clock,
    /// For each buffer, its copies that have not passed.
    buffers: Vec<Vec<Copy>>,
}

impl Progress {
    pub(crate) fn new(runtime: &Runtime) -> Progress {
        let state = runtime.mutex(State::default());
        Progress { state }
    }

    /// The next stream's number.
    pub(crate) fn add_stream(&self) -> u32 {
        let mut state = self.state.lock();
        state.streams.push(Clock::default());
        (state.streams.len() - 1) as u32
    }

    /// The next buffer's number.
    pub(crate) fn add_buffer(&self) -> usize {
        let mut state = self.state.lock();
        state.buffers.push(Vec::new());
        state.buffers.len() - 1
    }

    /// A copy of the buffer was put into the stream.
    pub(crate) fn copies(&self, stream: u32, buffer: usize, does: Use) {
        let state = &mut *self.state.lock();
        let clock = &mut state.streams[stream as usize];
        let number = clock.of(stream) + 1;
        clock.raise(stream, number);
        let copies = &mut state.buffers[buffer];
        // This copy passes later than those before it in its stream, so the list has at most two
        // copies for each stream.
        copies.retain(|copy| copy.stream != stream || copy.does != does);
        copies.push(Copy {
            stream,
            number,
            does,
        });
    }

    /// The clock of an event that will be put into the stream.
    pub(crate) fn clock(&self, stream: u32) -> Clock {
        self.state.lock().streams[stream as usize].clone()
    }

    /// The stream waits for an event with this clock.
    pub(crate) fn waits(&self, stream: u32, clock: &Clock) {
        self.state.lock().streams[stream as usize].take_over(clock);
    }

    /// An event with this clock has passed.
    pub(crate) fn passes(&self, clock: &Clock) {
        self.state.lock().passed.take_over(clock);
    }

    /// Whether the host may read the buffer, or also write it.
    pub(crate) fn is_free(&self, buffer: usize, to_write: bool) -> bool {
        let state = &mut *self.state.lock();
        let copies = &mut state.buffers[buffer];
        copies.retain(|copy| copy.number > state.passed.of(copy.stream));
        copies
            .iter()
            .all(|copy| copy.does == Use::Reads && !to_write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_passed_when_an_event_after_it_has() {
        let progress = Progress::new(&Runtime::threads());
        let (stream, buffer) = (progress.add_stream(), progress.add_buffer());
        let before = progress.clock(stream);
        progress.copies(stream, buffer, Use::Reads);
        let between = progress.clock(stream);
        progress.copies(stream, buffer, Use::Writes);
        let after = progress.clock(stream);
        let is_free = |to_write| progress.is_free(buffer, to_write);
        assert!(!is_free(false));
        progress.passes(&before);
        progress.passes(&between);
        assert!(!is_free(false));
        progress.passes(&after);
        assert!(is_free(true));
        progress.copies(stream, buffer, Use::Reads);
        assert!(is_free(false) && !is_free(true));
        // What has passed does not come back.
        progress.passes(&before);
        progress.passes(&after);
        assert!(is_free(false) && !is_free(true));
        progress.passes(&progress.clock(stream));
        assert!(is_free(true));
    }

    #[test]
    fn other_streams_count_only_if_they_waited() {
        let progress = Progress::new(&Runtime::threads());
        let (a, b, c) = (
            progress.add_stream(),
            progress.add_stream(),
            progress.add_stream(),
        );
        let (first, second) = (progress.add_buffer(), progress.add_buffer());
        progress.copies(a, first, Use::Writes);
        progress.copies(b, second, Use::Writes);
        progress.passes(&progress.clock(c));
        assert!(!progress.is_free(first, false));
        // c waits for b, which waits for a's first copy, but not for its second.
        let of_a = progress.clock(a);
        progress.copies(a, second, Use::Reads);
        progress.waits(b, &of_a);
        progress.waits(c, &progress.clock(b));
        progress.passes(&progress.clock(c));
        assert!(progress.is_free(first, true));
        assert!(progress.is_free(second, false) && !progress.is_free(second, true));
        progress.passes(&progress.clock(a));
        assert!(progress.is_free(second, true));
    }
}

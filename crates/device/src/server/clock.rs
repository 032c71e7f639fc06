//! The clock task of a server. It tells clients that wait for an answer that the server is working
//! on it, ends jobs that make no progress, and ends the states of silent sessions.
//!
//! Threading: one task.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Inner, PAUSED};

/// The interval of the clock task.
const TICK: Duration = Duration::from_secs(1);

/// The clock task.
pub(super) fn tick(inner: &Arc<Inner>) {
    let mut last = inner.runtime.now();
    loop {
        let (sessions, connections) = {
            let mut state = inner.state.lock();
            let until = last + TICK;
            while !state.is_stopping && inner.runtime.now() < until {
                let left = until.since(inner.runtime.now());
                state = inner.stopping.wait_timeout(state, left).0;
            }
            if state.is_stopping {
                return;
            }
            let sessions: Vec<_> = state.sessions.values().cloned().collect();
            let connections: Vec<_> = state.connections.values().cloned().collect();
            (sessions, connections)
        };
        let now = inner.runtime.now();
        if now.since(last) >= PAUSED {
            // While this process was stopped, no host was silent and no job stood still.
            for session in &sessions {
                session.heard_at(now);
                session.jobs.moved_at(now);
            }
        }
        last = now;
        inner.ticked_ns.store(now.as_nanos(), Ordering::Release);
        for served in connections {
            served.tell_working(now);
        }
        for session in sessions {
            session.jobs.watch();
            let silent = session.silent_for();
            if silent >= inner.options.job_silence {
                session.jobs.cancel_all();
            }
            let is_gone = session.peer.is_local && session.connection_count() == 0;
            let limit = match session.is_scratch || is_gone {
                true => inner.options.gone_silence.min(inner.options.state_silence),
                false => inner.options.state_silence,
            };
            if silent >= limit {
                session.end(Duration::ZERO);
            }
        }
        inner.state.lock().forget_ended();
    }
}

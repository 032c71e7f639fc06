//! The second location of tables: one task deletes obsolete tables there and asks for its free
//! bytes, so that nothing else waits if its disk hangs.
//!
//! A close gives this task a last round, and waits for it for a few seconds. What it leaves is
//! deleted by the next open.
//!
//! Threading: one runtime task, if the store has a second location. It works in rounds: when it is
//! asked to, and once a second.

use std::time::Duration;

use super::panics::repeat;
use super::worker::{FLUSH_NICE, yield_cores};
use crate::catalog::obsolete::delete_at_second_location;
use crate::services::parts::Parts;

/// The longest time between two rounds.
const ROUND_INTERVAL: Duration = Duration::from_secs(1);

/// Works until the store closes.
pub(super) fn serve(parts: &Parts) {
    let (env, locations) = (&parts.env, parts.env.locations());
    yield_cores(env, FLUSH_NICE);
    let mut seen = 0;
    repeat(&parts.catalog, "the task of the second location", || {
        locations.requests().wait_past(seen, ROUND_INTERVAL);
        seen = locations.requests().count();
        if locations.is_ended() {
            return false;
        }
        if let Some(redirect) = env.storages_at_once().usable_redirect() {
            locations.set_free_bytes(redirect.free_bytes());
            delete_at_second_location(&parts.catalog);
        }
        locations.set_served(seen);
        true
    });
}

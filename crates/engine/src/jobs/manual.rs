//! Manual compaction: workers serve a request step by step while its caller waits.

use std::sync::Arc;

use super::schedule::ManualRequest;
use crate::formats::version::{End, Key, KeyRange};
use crate::jobs::Jobs;
use crate::tree::pick::ManualRange;
use crate::tree::view::KeyspaceCore;
use crate::types::error::{Result, reversed_range};

/// Flushes, then compacts everything between `start` and `end` into the deepest level that has data
/// there.
pub(crate) fn compact_range(
    jobs: &Jobs,
    keyspace: &Arc<KeyspaceCore>,
    start: Option<&[u8]>,
    end: Option<&[u8]>,
) -> Result<()> {
    let range = KeyRange {
        start: Key::from(start.unwrap_or_default()),
        end: end.map_or(End::Unbounded, |key| End::Included(key.into())),
    };
    if range.is_empty() {
        let (start, end) = (start.unwrap_or_default(), end.unwrap_or_default());
        return Err(reversed_range("the range to compact", start, end));
    }
    crate::jobs::flush::flush(jobs, std::slice::from_ref(keyspace))?;
    let first_new_table_id = jobs.catalog.next_table_id();
    let id = {
        let mut schedule = jobs.schedule.lock();
        let id = schedule.new_id();
        let range = ManualRange {
            range,
            rewrite_bottom: true,
            first_new_table_id,
        };
        schedule.manual.push(ManualRequest {
            id,
            keyspace: keyspace.clone(),
            range,
            done: false,
        });
        id
    };
    let result = jobs.wait_until(|| {
        keyspace.check()?;
        let schedule = jobs.schedule.lock();
        Ok(schedule.manual.iter().any(|m| m.id == id && m.done))
    });
    jobs.schedule.lock().manual.retain(|m| m.id != id);
    result
}

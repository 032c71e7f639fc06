//! Finds gaps before readers need them: the maintenance task walks over keys that were deleted
//! recently.
//!
//! [`crate::tree::gaps::hints`] describes at which keys it begins, and why this suffices.
//!
//! Threading: the maintenance task alone.

use std::sync::Arc;

use super::{Cursor, IterOptions};
use crate::tree::Tree;
use crate::tree::gaps::map::after;
use crate::tree::gaps::state::Way;
use crate::tree::view::KeyspaceCore;
use crate::types::error::Result;

/// The maximum number of hidden entries that one round of maintenance steps over.
const STEPS_MAX: u64 = 1 << 16;

/// Follows the hints of these keyspaces until there are none, or until it has done enough for one
/// round of maintenance. Returns true if another round is due. An error is ignored, because the
/// next reader meets it too.
pub(crate) fn follow_hints<'k>(
    tree: &Arc<Tree>,
    keyspaces: impl Iterator<Item = &'k Arc<KeyspaceCore>>,
) -> bool {
    for keyspace in keyspaces {
        let hints = keyspace.gaps.hints();
        while let Some(hint) = hints.take() {
            // Maintenance, which calls this, does not wait for another location than the first.
            let view = keyspace.view();
            if view.version.tables().any(|(_, table)| table.location != 0) {
                continue;
            }
            drop(view);
            if let Ok(Some(far)) = walk(tree, keyspace, &hint) {
                return hints.add(&far);
            }
        }
    }
    false
}

/// Steps over the hidden entries on both sides of `from`. Returns the key at which to continue if
/// they are too many.
fn walk(tree: &Arc<Tree>, keyspace: &Arc<KeyspaceCore>, from: &[u8]) -> Result<Option<Vec<u8>>> {
    let options = IterOptions {
        values: false,
        fill_cache: false,
        ..IterOptions::default()
    };
    let mut cursor = Cursor::unlisted(tree, keyspace, None, options)?;
    for way in [Way::Forward, Way::Backward] {
        cursor.set_hidden_limit(STEPS_MAX);
        match way {
            Way::Forward => cursor.seek(from)?,
            Way::Backward => cursor.seek_for_prev(&after(from))?,
        }
        if let Some(far) = cursor.gave_up() {
            return Ok(Some(far.to_vec()));
        }
    }
    Ok(None)
}

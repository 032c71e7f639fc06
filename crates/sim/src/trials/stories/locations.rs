//! The story of a second location of tables. An open adds it to a store; tables are flushed to both
//! locations, are compacted back, and are deleted; another open takes it out.
//!
//! Threading: the run's first task.

use std::sync::Arc;

use siltstone::manifest::recover;
use siltstone::{Options, RedirectDir, StallPolicy};

use super::{Life, Stage, compact, delete_range, drop_named, flush, idle, load};
use crate::checker::Check;
use crate::world::World;
use crate::world::leaks::redirected_count;

pub(super) const LIVES: [Life; 4] = [alone, added, used, taken_out];

/// The life in which the second location is added, and the one in which it is taken out.
const ADDED: u32 = 1;
const TAKEN_OUT: u32 = 3;

impl Stage {
    /// Prepares the open of a life of this story.
    pub(super) fn set_location(&mut self, life: u32, options: &mut Options) -> Check {
        self.has_redirect = life >= ADDED;
        options.stall_policy = StallPolicy::Redirect;
        // Reads of tables are calls, and can fail.
        options.map_tables = false;
        self.redirected_before = match life > ADDED {
            true => self.redirected_count()?,
            false => 0,
        };
        // After a fault, tables may still be there. Then the open would be refused.
        self.takes_out = life == TAKEN_OUT && self.redirected_before == 0;
        if self.takes_out {
            options.redirect_dir = RedirectDir::None;
        }
        Ok(())
    }

    /// The number of tables that the manifest of the closed store names at the second location.
    fn redirected_count(&self) -> Result<usize, String> {
        let found = recover(self.media.main()).map_err(|e| e.to_string())?;
        let state = found.ok_or("there is no store")?.state;
        Ok(redirected_count(&state))
    }
}

/// The store has one location.
fn alone(_: &mut Stage, world: &Arc<World>) -> Check {
    load(world, &["default", "a"], 0, 20, false)?;
    flush(world)?;
    load(world, &["default", "b"], 10, 4, true)
}

/// Flushes to both locations, and the way back. In the end tables are left at the second one.
fn added(_: &mut Stage, world: &Arc<World>) -> Check {
    let hooks = world.store.test_hooks();
    hooks.pause_compaction(true);
    for (round, location) in (0..).zip([1, 0, 1]) {
        hooks.force_location(Some(location));
        load(world, &["default", "a"], round * 15, 12, false)?;
        flush(world)?;
    }
    delete_range(world, "a", "key005", "key020")?;
    let redirected = world.redirected_count();
    hooks.pause_compaction(false);
    idle(world)?;
    if redirected > 0 && world.redirected_count() == 0 {
        world.reach("story.tables_came_back");
    }
    hooks.pause_compaction(true);
    load(world, &["default", "a", "b"], 30, 8, false)?;
    flush(world)?;
    load(world, &["default", "a"], 33, 3, false)
}

/// Tables are at the second location when the store is opened. A keyspace with tables there is
/// dropped, and a compaction is asked for.
fn used(stage: &mut Stage, world: &Arc<World>) -> Check {
    if stage.redirected_before > 0 {
        world.reach("story.opened_with_redirected_tables");
    }
    let hooks = world.store.test_hooks();
    hooks.force_location(Some(1));
    load(world, &["default", "b"], 40, 9, false)?;
    flush(world)?;
    drop_named(world, "b")?;
    delete_range(world, "default", "key000", "key015")?;
    compact(world, "default")?;
    load(world, &["a"], 3, 5, true)?;
    flush(world)?;
    hooks.force_location(None);
    idle(world)
}

/// The store has one location again.
fn taken_out(stage: &mut Stage, world: &Arc<World>) -> Check {
    if stage.takes_out {
        world.reach("story.location_taken_out");
    }
    load(world, &["default", "a"], 20, 4, false)?;
    flush(world)?;
    load(world, &["a"], 1, 2, false)
}

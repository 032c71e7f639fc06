//! The media of a store's parts: one medium, or separate media for log and tables, and perhaps one
//! for a second location of tables, which lose power at the same moment.
//!
//! Changes of the other media are marked in the journal of the store's own medium
//! ([`MarkingStorage`]), so one journal orders all of them ([`Journals`]).
//!
//! Threading: one task.

mod journals;

use std::sync::Arc;

use siltstone::Storages;
use siltstone_storage::{
    CrashPolicy, CrashReport, MemoryStorage, ObjectMeta, Runtime, Storage, StorageError,
};

use super::{Promised, moments};
use crate::marking::MarkingStorage;
use crate::rng::Rng;

pub(crate) use journals::{Ended, Journals};

/// The indexes of the media of the log and of the tables; 0 is the store's own medium.
const LAYOUTS: [(usize, usize); 5] = [(0, 0), (1, 0), (0, 1), (1, 1), (1, 2)];
const LETTERS: [char; 4] = ['m', 'l', 'x', 'r'];
const NAMES: [&str; 4] = ["/store", "/second", "/third", "/fourth"];

/// See the module.
#[derive(Clone)]
pub(crate) struct Media {
    all: Vec<MemoryStorage>,
    layout: (usize, usize),
    /// The index of the medium of the second location of tables.
    redirect: Option<usize>,
}

/// The way in which a life ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Kill,
    Power,
}

/// The state that a life leaves.
pub(crate) struct Left {
    pub(crate) media: Media,
    pub(crate) promised: Promised,
    pub(crate) report: CrashReport,
}

impl Media {
    /// Draws new media, half of the time only one.
    pub(crate) fn draw(runtime: &Runtime, rng: &mut Rng) -> Media {
        let layout = match rng.chance(50) {
            true => LAYOUTS[0],
            false => *rng.pick(&LAYOUTS),
        };
        Media::of(runtime, layout)
    }

    /// Draws new media: only one, or one for the manifest and others for everything else.
    pub(crate) fn with_manifest_apart(is_apart: bool, runtime: &Runtime, rng: &mut Rng) -> Media {
        let apart: Vec<_> = LAYOUTS
            .into_iter()
            .filter(|(log, tables)| *log > 0 && *tables > 0)
            .collect();
        match is_apart {
            true => Media::of(runtime, *rng.pick(&apart)),
            false => Media::of(runtime, LAYOUTS[0]),
        }
    }

    /// One medium for all parts.
    pub(crate) fn one(medium: MemoryStorage) -> Media {
        Media {
            all: vec![medium],
            layout: LAYOUTS[0],
            redirect: None,
        }
    }

    /// The medium that has the log.
    pub(crate) fn log(&self) -> &MemoryStorage {
        &self.all[self.layout.0]
    }

    fn of(runtime: &Runtime, layout: (usize, usize)) -> Media {
        let count = 1 + layout.0.max(layout.1);
        Media {
            all: NAMES[..count]
                .iter()
                .map(|name| MemoryStorage::named(runtime, name))
                .collect(),
            layout,
            redirect: None,
        }
    }

    /// Adds a medium for a second location of tables.
    pub(crate) fn add_redirect(&mut self, runtime: &Runtime) {
        let at = self.all.len();
        self.all.push(MemoryStorage::named(runtime, NAMES[at]));
        self.redirect = Some(at);
    }

    /// Whether there is a second location of tables.
    pub(crate) fn has_redirect(&self) -> bool {
        self.redirect.is_some()
    }

    /// Does what a user does if the store has left the folder of the second location, and refuses
    /// it because of tables there. Returns whether there were any.
    pub(crate) fn move_unowned_tables_away(&self) -> Result<bool, String> {
        let Some(at) = self.redirect else {
            return Ok(false);
        };
        let (folder, failed) = (&self.all[at], |e: StorageError| e.to_string());
        let names: Vec<_> = folder.list().map_err(failed)?;
        let names: Vec<_> = names.into_iter().map(|object| object.name).collect();
        let parts = self.main().read_small("DIRECTORIES").unwrap_or_default();
        let is_named = String::from_utf8_lossy(&parts).contains("redirect");
        if is_named || names.iter().any(|name| name == "OWNER") {
            return Ok(false);
        }
        let lease = folder.lease("store").map_err(failed)?;
        let mut has_moved = false;
        for name in names.iter().filter(|name| name.ends_with(".tbl")) {
            folder.delete(lease.epoch(), name).map_err(failed)?;
            has_moved = true;
        }
        folder.sync_dir(lease.epoch()).map_err(failed)?;
        lease.release().map_err(failed)?;
        Ok(has_moved)
    }

    /// The store's own medium, which has the manifest and the marks.
    pub(crate) fn main(&self) -> &MemoryStorage {
        &self.all[0]
    }

    /// The files on all media.
    pub(crate) fn list(&self) -> Result<Vec<ObjectMeta>, String> {
        let lists = self.all.iter().map(|m| m.list().map_err(|e| e.to_string()));
        Ok(lists.collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// The one medium, if there is only one.
    pub(crate) fn only(&self) -> Option<&MemoryStorage> {
        (self.all.len() == 1).then(|| self.main())
    }

    pub(crate) fn describe(&self) -> String {
        let (log, tables) = self.layout;
        match self.redirect {
            None => format!("log on {log}, tables on {tables}"),
            Some(redirect) => format!("log on {log}, tables on {tables} and {redirect}"),
        }
    }

    pub(crate) fn storages(&self) -> Storages {
        let seen = |at: usize| -> Arc<dyn Storage> {
            match at {
                0 => Arc::new(self.main().clone()),
                at => {
                    let medium = self.all[at].clone();
                    Arc::new(MarkingStorage::new(
                        medium,
                        self.main().clone(),
                        LETTERS[at],
                    ))
                }
            }
        };
        let all: Vec<_> = (0..self.all.len()).map(seen).collect();
        Storages {
            log: all[self.layout.0].clone(),
            manifest: all[0].clone(),
            tables: all[self.layout.1].clone(),
            redirect: self.redirect.map(|at| all[at].clone()),
        }
    }

    pub(crate) fn start_journals(&self) {
        self.all.iter().for_each(MemoryStorage::start_journal);
    }

    /// The state if the life ends now, by a loss of power if `lost` gives its losses, and otherwise
    /// by a kill. This needs no journals.
    pub(crate) fn end_now(&self, runtime: &Runtime, lost: Option<CrashPolicy>) -> Media {
        let left = self.all.iter().map(|medium| match lost {
            None => medium.kill_in(runtime),
            Some(policy) => medium.crash_in(runtime, policy).0,
        });
        Media {
            all: left.collect(),
            layout: self.layout,
            redirect: self.redirect,
        }
    }

    /// The journals of all media, from the start.
    pub(crate) fn journals(&self) -> Journals {
        Journals::of(self)
    }

    /// The state if the life whose journals were kept ended at some moment, one time in three
    /// during a call. `before` are the promises from before this life.
    pub(crate) fn end(&self, runtime: &Runtime, end: End, before: Promised, rng: &mut Rng) -> Left {
        let mut journals = self.journals();
        let (marks, len) = (journals.own().marks(), journals.own().len());
        let moment = moments::draw(marks, len, 0, rng);
        let n = moment.at;
        // With several media, the moment may be any one between two changes of the store's own
        // medium.
        let most = marks.partition_point(|mark| mark.at <= n);
        let cut = match (self.all.len(), moment.mark_count) {
            (1, _) => most,
            (_, Some(count)) => count,
            _ => {
                let least = marks.partition_point(|mark| mark.at < n);
                least + rng.index(most - least + 1)
            }
        };
        let promised = Promised::by(&marks[..cut], before);
        journals.advance_to(n, cut);
        let policy = moments::draw_policy(moment, rng);
        let is_within = rng.chance(33);
        if is_within {
            // This is drawn only to keep the random numbers of kept seeds; it was once used.
            rng.index(self.all.len());
        }
        let seed = rng.draw();
        let within = is_within.then_some(seed);
        let ended = journals.end(runtime, end, policy, within);
        Left {
            media: ended.media,
            promised,
            report: ended.report,
        }
    }
}

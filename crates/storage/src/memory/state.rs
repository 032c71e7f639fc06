//! The whole state of the storage, and the effects that change it.
//!
//! Every change, live or replayed from a journal, goes through [`State::apply`]. The result depends
//! only on the state and the effect, so the image after any prefix of a run is the state after
//! applying that prefix.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::inode::{Captured, Inode, Page};

/// How many pages of deleted objects are kept: newly allocated space may show such bytes after a
/// crash.
const STALE_PAGES: usize = 64;

/// A change of the directory that is not durable yet.
#[derive(Clone)]
pub(super) struct DirOp {
    pub(super) id: u64,
    pub(super) change: DirChange,
    /// A failed directory sync lost it: it is visible but never becomes durable.
    pub(super) lost: bool,
}

#[derive(Clone, Debug)]
pub(super) enum DirChange {
    Set { name: String, ino: u64 },
    Remove { name: String },
    Move { old: String, new: String, ino: u64 },
}

impl DirChange {
    fn touches(&self, wanted: &str) -> bool {
        match self {
            DirChange::Set { name, .. } | DirChange::Remove { name } => name == wanted,
            DirChange::Move { old, new, .. } => old == wanted || new == wanted,
        }
    }

    pub(super) fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            DirChange::Set { name, ino } => {
                names.insert(name.clone(), *ino);
            }
            DirChange::Remove { name } => {
                names.remove(name);
            }
            DirChange::Move { old, new, ino } => {
                // The old name may refer to another object by now, if other changes around this one
                // were lost.
                if names.get(old) == Some(ino) {
                    names.remove(old);
                }
                names.insert(new.clone(), *ino);
            }
        }
    }
}

/// One change. All checks are made before, so applying it cannot fail.
#[derive(Clone)]
pub(super) enum Effect {
    Epoch,
    Create {
        name: String,
        /// Whether it is written past the page cache.
        direct: bool,
    },
    Rename {
        old: String,
        new: String,
    },
    Delete {
        name: String,
    },
    Link {
        old: String,
        new: String,
    },
    /// An object of another storage. From here on its bytes are shared, along with which of them
    /// are durable.
    Import {
        name: String,
        object: Arc<Inode>,
    },
    /// A small object that is set without any sync.
    Publish {
        name: String,
        bytes: Arc<[u8]>,
    },
    SyncDir {
        through: u64,
    },
    LoseNames,
    Replace {
        name: String,
        bytes: Arc<[u8]>,
    },
    Write {
        ino: u64,
        offset: u64,
        bytes: Arc<[u8]>,
    },
    Reserve {
        ino: u64,
        len: u64,
    },
    Truncate {
        ino: u64,
        len: u64,
    },
    /// Another process truncated the object, durably.
    Cut {
        ino: u64,
        len: u64,
    },
    /// A sync of everything that was written so far.
    Sync {
        ino: u64,
    },
    /// A sync during which more was written.
    SyncCaptured {
        ino: u64,
        captured: Captured,
    },
    LoseUnsynced {
        ino: u64,
    },
}

#[derive(Clone, Default)]
pub(super) struct State {
    pub(super) inodes: BTreeMap<u64, Inode>,
    pub(super) names: BTreeMap<String, u64>,
    pub(super) durable_names: BTreeMap<String, u64>,
    pub(super) pending: Vec<DirOp>,
    pub(super) next_ino: u64,
    pub(super) next_op: u64,
    /// The last assigned epoch. It is durable, as a counter in a lease service is.
    pub(super) epoch: u64,
    pub(super) stale: Vec<Page>,
    pub(super) stale_next: usize,
}

impl State {
    /// A copy that shares pages but no open handles.
    pub(super) fn image(&self) -> State {
        let mut image = self.clone();
        for inode in image.inodes.values_mut() {
            inode.handles = Arc::new(());
        }
        image.collect();
        image
    }

    /// The image that a kill leaves: without unsynced bytes of objects that are written past the
    /// page cache.
    pub(super) fn killed(&self) -> State {
        let mut image = self.image();
        let direct = image.inodes.values_mut().filter(|inode| inode.direct);
        direct.for_each(Inode::forget_unsynced);
        image
    }

    pub(super) fn inode(&self, name: &str) -> Option<(u64, &Inode)> {
        let ino = *self.names.get(name)?;
        Some((ino, self.inodes.get(&ino)?))
    }

    fn pend(&mut self, change: DirChange) {
        change.apply(&mut self.names);
        let id = self.next_op;
        self.next_op += 1;
        self.pending.push(DirOp {
            id,
            change,
            lost: false,
        });
    }

    /// A name is about to stop referring to `ino`. If it is the last name, the space may show up in
    /// other objects.
    fn unlinked(&mut self, ino: u64) {
        if self.names.values().filter(|i| **i == ino).count() > 1 {
            return;
        }
        let Some(inode) = self.inodes.get(&ino) else {
            return;
        };
        for page in inode.pages.iter().take(8) {
            if self.stale.len() < STALE_PAGES {
                self.stale.push(Arc::clone(page));
            } else {
                self.stale[self.stale_next % STALE_PAGES] = Arc::clone(page);
            }
            self.stale_next = self.stale_next.wrapping_add(1);
        }
    }

    pub(super) fn apply(&mut self, effect: &Effect) {
        match effect {
            Effect::Epoch => self.epoch += 1,
            Effect::Create { name, direct } => {
                let ino = self.next_ino;
                self.next_ino += 1;
                self.inodes.insert(ino, Inode::fresh(*direct));
                self.pend(DirChange::Set {
                    name: name.clone(),
                    ino,
                });
            }
            Effect::Rename { old, new } => {
                let Some(&ino) = self.names.get(old) else {
                    return;
                };
                if let Some(&replaced) = self.names.get(new) {
                    self.unlinked(replaced);
                }
                self.pend(DirChange::Move {
                    old: old.clone(),
                    new: new.clone(),
                    ino,
                });
            }
            Effect::Delete { name } => {
                let Some(&ino) = self.names.get(name) else {
                    return;
                };
                self.unlinked(ino);
                self.pend(DirChange::Remove { name: name.clone() });
            }
            Effect::Link { old, new } => {
                let Some(&ino) = self.names.get(old) else {
                    return;
                };
                self.pend(DirChange::Set {
                    name: new.clone(),
                    ino,
                });
            }
            Effect::Import { name, object } => {
                let ino = self.next_ino;
                self.next_ino += 1;
                self.inodes.insert(ino, object.shared());
                self.pend(DirChange::Set {
                    name: name.clone(),
                    ino,
                });
            }
            Effect::Publish { name, bytes } => {
                if let Some(&replaced) = self.names.get(name) {
                    self.unlinked(replaced);
                }
                let ino = self.next_ino;
                self.next_ino += 1;
                let mut inode = Inode::default();
                inode.write(0, bytes);
                self.inodes.insert(ino, inode);
                self.pend(DirChange::Set {
                    name: name.clone(),
                    ino,
                });
                self.collect();
            }
            Effect::SyncDir { through } => {
                for op in std::mem::take(&mut self.pending) {
                    if op.id >= *through {
                        self.pending.push(op);
                    } else if !op.lost {
                        op.change.apply(&mut self.durable_names);
                    }
                }
                self.collect();
            }
            Effect::LoseNames => self.pending.iter_mut().for_each(|op| op.lost = true),
            Effect::Replace { name, bytes } => {
                if let Some(&ino) = self.names.get(name) {
                    self.unlinked(ino);
                }
                // Pending changes of this name happened before; applied later, they would undo what
                // `replace` promises. Other changes stay pending, because `replace` promises only
                // its own name.
                let (mine, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.pending)
                    .into_iter()
                    .partition(|op| op.change.touches(name));
                self.pending = others;
                for op in mine.iter().filter(|op| !op.lost) {
                    op.change.apply(&mut self.durable_names);
                }
                let ino = self.next_ino;
                self.next_ino += 1;
                self.inodes.insert(ino, Inode::from_bytes(bytes));
                self.names.insert(name.clone(), ino);
                self.durable_names.insert(name.clone(), ino);
                self.collect();
            }
            // In a replay, an object may be gone that an open handle kept alive in the run. Nobody
            // can see it any more.
            Effect::Write { ino, offset, bytes } => {
                if let Some(inode) = self.inodes.get_mut(ino) {
                    inode.write(*offset, bytes);
                }
            }
            Effect::Reserve { ino, len } => {
                if let Some(inode) = self.inodes.get_mut(ino) {
                    inode.grow(*len);
                }
            }
            Effect::Truncate { ino, len } => {
                if let Some(inode) = self.inodes.get_mut(ino) {
                    inode.truncate(*len);
                }
            }
            Effect::Cut { ino, len } => {
                if let Some(inode) = self.inodes.get_mut(ino) {
                    inode.cut(*len);
                }
            }
            Effect::Sync { ino } => {
                if let Some(inode) = self.inodes.get_mut(ino) {
                    let captured = inode.capture();
                    inode.complete(&captured);
                }
            }
            Effect::SyncCaptured { ino, captured } => {
                if let Some(inode) = self.inodes.get_mut(ino) {
                    inode.complete(captured);
                }
            }
            Effect::LoseUnsynced { ino } => {
                if let Some(inode) = self.inodes.get_mut(ino) {
                    inode.lose_unsynced();
                }
            }
        }
    }

    /// Removes objects that cannot be reached by any name (durable, pending or present) or handle.
    pub(super) fn collect(&mut self) {
        let mut reachable: BTreeSet<u64> = self
            .names
            .values()
            .chain(self.durable_names.values())
            .copied()
            .collect();
        for op in &self.pending {
            if let DirChange::Set { ino, .. } | DirChange::Move { ino, .. } = &op.change {
                reachable.insert(*ino);
            }
        }
        self.inodes
            .retain(|ino, inode| reachable.contains(ino) || inode.is_open());
    }

    /// The pages of all objects that have a name or an open handle.
    pub(super) fn used_pages(&self) -> u64 {
        let named: BTreeSet<u64> = self.names.values().copied().collect();
        let used = self
            .inodes
            .iter()
            .filter(|(ino, inode)| named.contains(ino) || inode.is_open());
        used.map(|(_, inode)| inode.pages.len() as u64).sum()
    }
}

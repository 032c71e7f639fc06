//! The state that a power loss leaves.
//!
//! Always kept: bytes and lengths that a successful sync covered, names that a directory sync
//! covered, and objects written by `replace`. Everything else is decided separately for each page,
//! sector, length and directory change, independently of each other and of the order in which they
//! happened.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::inode::{Inode, PAGE_BYTES, Page, SECTOR_BYTES, pages_for, zero_page};
use super::state::{DirChange, Effect, State};
use crate::prng::Prng;

/// What happens to unsynced data at a power loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPolicy {
    /// All unsynced data is lost.
    LoseUnsynced,
    /// All unsynced data had reached the medium.
    KeepUnsynced,
    /// The seed decides: pages survive in any order, torn between sectors, in an earlier version,
    /// or (in newly allocated space) with bytes of deleted objects. Each length, creation, rename
    /// and deletion is decided separately.
    Seeded(u64),
}

/// Generates a report from its lines: one count for each line, which can be listed by name and
/// summed.
macro_rules! counted {
    ($( $(#[doc = $doc:literal])+ $field:ident $name:literal; )+) => {
        /// How often each kind of outcome happened in one crash.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CrashReport {
            $( $(#[doc = $doc])+ pub $field: u64, )+
        }

        impl CrashReport {
            /// All counts by name.
            pub fn counts(&self) -> [(&'static str, u64); [$($name),+].len()] {
                [$( ($name, self.$field) ),+]
            }

            /// Adds the counts of `other`.
            pub fn merge(&mut self, other: &CrashReport) {
                $( self.$field += other.$field; )+
            }
        }
    };
}

counted! {
    /// Unsynced pages that survived.
    pages_kept_count "pages_kept";
    /// Unsynced pages that were reset to their durable bytes, or to zeros.
    pages_lost_count "pages_lost";
    /// Pages in which some sectors are new and some are old.
    pages_torn_count "pages_torn";
    /// Pages that hold bytes from between the last sync and the crash.
    pages_older_count "pages_older";
    /// Newly allocated pages that hold bytes of a deleted object.
    pages_stale_count "pages_stale";
    /// Lost pages before a surviving one of the same object.
    holes_count "holes";
    /// Objects whose unsynced length survived.
    lengths_kept_count "lengths_kept";
    /// Objects that were reset to their durable length.
    lengths_lost_count "lengths_lost";
    /// Objects with a length from between the last sync and the crash.
    lengths_between_count "lengths_between";
    /// Unsynced creations (and links) that survived.
    creates_kept_count "creates_kept";
    /// Unsynced creations (and links) that were lost.
    creates_lost_count "creates_lost";
    /// Unsynced renames that survived.
    renames_kept_count "renames_kept";
    /// Unsynced renames that were lost.
    renames_lost_count "renames_lost";
    /// Unsynced deletions that survived.
    deletes_kept_count "deletes_kept";
    /// Unsynced deletions that were lost.
    deletes_lost_count "deletes_lost";
    /// Changes of the directory that survived although an earlier one was lost.
    names_reordered_count "names_reordered";
    /// Objects whose name survived while all their unsynced pages were lost.
    names_without_bytes_count "names_without_bytes";
    /// Pages that were written back while bytes were being stored to them: new up to some byte, and
    /// older after it.
    pages_cut_count "pages_cut";
    /// Appends that the crash interrupted after a first part had been written.
    writes_cut_count "writes_cut";
    /// Appends through a map that the crash interrupted, so that any of their bytes may have been
    /// written.
    writes_scattered_count "writes_scattered";
    /// Reservations that the crash interrupted.
    reserves_cut_count "reserves_cut";
}

/// Probabilities in per mille. They are drawn anew for each seed, and for some objects: uniform
/// probabilities would hardly ever lose all of one file and nothing of another, which is what
/// breaks stores.
#[derive(Clone, Copy)]
struct Rates {
    page_kept: u32,
    page_torn: u32,
    page_older: u32,
    page_cut: u32,
    page_stale: u32,
    length_kept: u32,
    length_between: u32,
    name_kept: u32,
}

impl Rates {
    const LOSE: Rates = Rates {
        page_kept: 0,
        page_torn: 0,
        page_older: 0,
        page_cut: 0,
        page_stale: 0,
        length_kept: 0,
        length_between: 0,
        name_kept: 0,
    };
    const KEEP: Rates = Rates {
        page_kept: 1000,
        length_kept: 1000,
        name_kept: 1000,
        ..Rates::LOSE
    };

    fn draw(rng: &mut Prng) -> Rates {
        const SOME: [u32; 6] = [0, 100, 500, 900, 1000, 1000];
        let mut some = |all: &[u32]| all[rng.below(all.len() as u64) as usize];
        let mut rates = Rates {
            page_kept: some(&SOME),
            page_torn: some(&[0, 0, 100, 500]),
            page_older: some(&[0, 0, 200, 500]),
            page_cut: some(&[0, 0, 100, 400]),
            page_stale: some(&[0, 0, 0, 300]),
            length_kept: some(&SOME),
            length_between: some(&[0, 200, 500]),
            name_kept: some(&SOME),
        };
        // The well-known patterns, often enough to occur within a few seeds.
        match rng.below(8) {
            0 => {
                rates = Rates {
                    name_kept: 1000,
                    length_kept: 1000,
                    ..Rates::LOSE
                }
            } // names without bytes
            1 => {
                rates = Rates {
                    name_kept: 0,
                    ..Rates::KEEP
                }
            } // bytes without names
            2 => {
                rates = Rates {
                    length_kept: 0,
                    ..Rates::KEEP
                }
            } // bytes past an old length
            _ => {}
        }
        rates
    }
}

/// The state after a power loss. All of it is durable.
pub(super) fn crash(state: &State, policy: CrashPolicy) -> (State, CrashReport) {
    let mut report = CrashReport::default();
    let mut rng = Prng::new(match policy {
        CrashPolicy::Seeded(seed) => seed,
        CrashPolicy::LoseUnsynced | CrashPolicy::KeepUnsynced => 0,
    });
    let base = match policy {
        CrashPolicy::LoseUnsynced => Rates::LOSE,
        CrashPolicy::KeepUnsynced => Rates::KEEP,
        CrashPolicy::Seeded(_) => Rates::draw(&mut rng),
    };

    let names = crash_names(state, base, &mut rng, &mut report);
    let named: BTreeSet<u64> = names.values().copied().collect();
    let mut inodes = BTreeMap::new();
    for ino in named {
        let Some(inode) = state.inodes.get(&ino) else {
            continue;
        };
        let rates = match policy {
            CrashPolicy::Seeded(_) if rng.chance(300) => Rates::draw(&mut rng),
            _ => base,
        };
        inodes.insert(
            ino,
            crash_inode(inode, rates, &state.stale, &mut rng, &mut report),
        );
    }
    let image = State {
        inodes,
        durable_names: names.clone(),
        names,
        next_ino: state.next_ino,
        next_op: state.next_op,
        epoch: state.epoch,
        ..State::default()
    };
    (image, report)
}

fn crash_names(
    state: &State,
    rates: Rates,
    rng: &mut Prng,
    report: &mut CrashReport,
) -> BTreeMap<String, u64> {
    let mut names = state.durable_names.clone();
    let mut lost_before = false;
    for op in &state.pending {
        let kept = !op.lost && rng.chance(rates.name_kept);
        let (kept_count, lost_count) = match &op.change {
            DirChange::Set { .. } => (
                &mut report.creates_kept_count,
                &mut report.creates_lost_count,
            ),
            DirChange::Remove { .. } => (
                &mut report.deletes_kept_count,
                &mut report.deletes_lost_count,
            ),
            DirChange::Move { .. } => (
                &mut report.renames_kept_count,
                &mut report.renames_lost_count,
            ),
        };
        if kept {
            *kept_count += 1;
            report.names_reordered_count += u64::from(lost_before);
            op.change.apply(&mut names);
        } else {
            *lost_count += 1;
            lost_before = true;
        }
    }
    names
}

fn crash_inode(
    inode: &Inode,
    rates: Rates,
    stale: &[Page],
    rng: &mut Prng,
    report: &mut CrashReport,
) -> Inode {
    let len = crash_len(inode, rates, rng, report);
    let mut pages = Vec::with_capacity(pages_for(len));
    let mut lost_below = false;
    let (mut kept, mut lost) = (0u64, 0u64);
    for index in 0..pages_for(len) {
        let durable = inode.durable.get(index);
        let (Some(dirty), Some(written)) = (inode.dirty.get(&index), inode.pages.get(index)) else {
            pages.push(durable.cloned().unwrap_or_else(zero_page));
            continue;
        };
        let old = match durable {
            Some(page) => Arc::clone(page),
            None if !stale.is_empty() && rng.chance(rates.page_stale) => {
                report.pages_stale_count += 1;
                Arc::clone(&stale[rng.below(stale.len() as u64) as usize])
            }
            None => zero_page(),
        };
        let page = if rng.chance(rates.page_torn) {
            report.pages_torn_count += 1;
            lost_below = true;
            let between = match dirty.older.len() as u64 {
                0 => None,
                count => Some(&dirty.older[rng.below(count) as usize]),
            };
            tear(&old, written, between, rng)
        } else if rng.chance(rates.page_cut) {
            report.pages_cut_count += 1;
            lost_below = true;
            let before = dirty.older.last().unwrap_or(&old);
            cut(before, written, rng)
        } else if !dirty.older.is_empty() && rng.chance(rates.page_older) {
            report.pages_older_count += 1;
            lost_below = true;
            Arc::clone(&dirty.older[rng.below(dirty.older.len() as u64) as usize])
        } else if rng.chance(rates.page_kept) {
            kept += 1;
            report.holes_count += u64::from(lost_below);
            Arc::clone(written)
        } else {
            lost += 1;
            lost_below = true;
            old
        };
        pages.push(page);
    }
    report.pages_kept_count += kept;
    report.pages_lost_count += lost;
    report.names_without_bytes_count += u64::from(kept == 0 && lost > 0);
    // Bytes past the end must be zeros whatever the page held, because they show when the object
    // grows later.
    let within = (len % PAGE_BYTES as u64) as usize;
    if let Some(last) = pages.last_mut()
        && within > 0
        && last[within..].iter().any(|b| *b != 0)
    {
        Arc::make_mut(last)[within..].fill(0);
    }
    Inode::durable_from(pages, len)
}

fn crash_len(inode: &Inode, rates: Rates, rng: &mut Prng, report: &mut CrashReport) -> u64 {
    if !inode.len_dirty {
        return inode.durable_len;
    }
    if rng.chance(rates.length_between) {
        let mut between: Vec<u64> = inode
            .older_lens
            .iter()
            .copied()
            .filter(|l| *l != inode.len && *l != inode.durable_len)
            .collect();
        // File systems move the end of a file as pages are written back.
        let (page, grown) = (
            PAGE_BYTES as u64,
            inode.len.saturating_sub(inode.durable_len),
        );
        let end = (inode.durable_len + rng.below(grown)) / page * page;
        if end > inode.durable_len {
            between.push(end);
        }
        if !between.is_empty() {
            report.lengths_between_count += 1;
            return between[rng.below(between.len() as u64) as usize];
        }
    }
    if rng.chance(rates.length_kept) {
        report.lengths_kept_count += 1;
        inode.len
    } else {
        report.lengths_lost_count += 1;
        inode.durable_len
    }
}

/// A page with the new bytes up to some offset and the old ones after it. The offset is drawn where
/// the two differ, or nothing would change.
fn cut(old: &Page, new: &Page, rng: &mut Prng) -> Page {
    let differs = |at: &usize| old[*at] != new[*at];
    let first = (0..PAGE_BYTES).find(differs).unwrap_or(0);
    let last = (0..PAGE_BYTES).rfind(differs).unwrap_or(0);
    let at = first + rng.below((last - first) as u64 + 1) as usize;
    let mut page = **old;
    page[..at].copy_from_slice(&new[..at]);
    Arc::new(page)
}

/// Appends up to this size may be stored through a map, as the file storage does. Their bytes then
/// reach memory in any order.
const MAP_APPEND_BYTES: usize = 16 << 10;
/// The number of bytes that a processor stores at once.
const LINE_BYTES: usize = 64;

/// The part of an effect that has happened when it is interrupted. `None` if it cannot be
/// interrupted partway.
pub(super) fn part_of(
    effect: &Effect,
    state: &State,
    rng: &mut Prng,
    report: &mut CrashReport,
) -> Option<Vec<Effect>> {
    match effect {
        Effect::Write { ino, offset, bytes } if bytes.len() > 1 => {
            let len = state.inodes.get(ino)?.len;
            let within = offset + bytes.len() as u64 <= len && bytes.len() <= MAP_APPEND_BYTES;
            let piece = |from: usize, to: usize| Effect::Write {
                ino: *ino,
                offset: offset + from as u64,
                bytes: bytes[from..to].into(),
            };
            if within && rng.chance(500) {
                report.writes_scattered_count += 1;
                let rate = [100, 500, 900][rng.below(3) as usize];
                // The lines are aligned in memory, not relative to the append.
                let shift = (offset % LINE_BYTES as u64) as usize;
                let mut starts = vec![0];
                starts.extend((LINE_BYTES - shift..bytes.len()).step_by(LINE_BYTES));
                starts.push(bytes.len());
                let landed = starts.windows(2).filter(|_| rng.chance(rate));
                return Some(landed.map(|line| piece(line[0], line[1])).collect());
            }
            report.writes_cut_count += 1;
            let mut to = rng.below(bytes.len() as u64) as usize;
            // A system call is interrupted between pages. Stores through a map can be interrupted
            // anywhere.
            if !within || rng.chance(300) {
                let end = (offset + to as u64) / PAGE_BYTES as u64 * PAGE_BYTES as u64;
                to = end.saturating_sub(*offset) as usize;
            }
            Some(vec![piece(0, to)])
        }
        Effect::Reserve { ino, len } => {
            let old = state.inodes.get(ino)?.len;
            let more = len.checked_sub(old).filter(|more| *more > 1)?;
            report.reserves_cut_count += 1;
            let len = old + 1 + rng.below(more - 1);
            Some(vec![Effect::Reserve { ino: *ino, len }])
        }
        _ => None,
    }
}

/// A page with some sectors of each version.
fn tear(old: &Page, new: &Page, between: Option<&Page>, rng: &mut Prng) -> Page {
    let mut page = **old;
    let mut choice = rng.next();
    for (at, sector) in page.chunks_mut(SECTOR_BYTES).enumerate() {
        let range = at * SECTOR_BYTES..(at + 1) * SECTOR_BYTES;
        match (choice & 3, between) {
            (0, _) => {}
            (1, Some(between)) => sector.copy_from_slice(&between[range]),
            _ => sector.copy_from_slice(&new[range]),
        }
        choice >>= 2;
    }
    Arc::new(page)
}

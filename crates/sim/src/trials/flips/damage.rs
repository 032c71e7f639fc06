//! Kinds of files, kinds of damage, and the positions of hits.
//!
//! Invariants: a draw that changes no byte does not count; the changed bytes are known exactly.
//!
//! Threading: pure functions, except for the storage that is damaged.

use std::ops::Range;

use siltstone_storage::{Epoch, MemoryStorage, Storage};
use siltstone_table::footer::Footer;

use crate::rng::Rng;

/// The kind of a file, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FileKind {
    Current,
    Manifest,
    Log,
    Table,
    Directories,
    Owner,
    Stats,
    Reserve,
    Other,
}

impl FileKind {
    pub(super) fn of(name: &str) -> FileKind {
        match name {
            "CURRENT" => FileKind::Current,
            "DIRECTORIES" => FileKind::Directories,
            "OWNER" => FileKind::Owner,
            "STATS.json" => FileKind::Stats,
            n if n.starts_with("MANIFEST-") => FileKind::Manifest,
            n if n.ends_with(".log") => FileKind::Log,
            n if n.ends_with(".tbl") || n.ends_with(".table") => FileKind::Table,
            n if n.starts_with("RESERVE") => FileKind::Reserve,
            _ => FileKind::Other,
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            FileKind::Current => "current",
            FileKind::Manifest => "manifest",
            FileKind::Log => "log",
            FileKind::Table => "table",
            FileKind::Directories => "directories",
            FileKind::Owner => "owner",
            FileKind::Stats => "stats",
            FileKind::Reserve => "reserve",
            FileKind::Other => "other",
        }
    }
}

/// A change of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Damage {
    Bit,
    Byte,
    Noise,
    ZeroedSector,
    ZeroedPage,
    SwappedPages,
    DuplicatedPage,
    Cut,
    Garbage,
    /// The file is missing.
    Gone,
}

impl Damage {
    const ALL: [Damage; 9] = [
        Damage::Bit,
        Damage::Byte,
        Damage::Noise,
        Damage::ZeroedSector,
        Damage::ZeroedPage,
        Damage::SwappedPages,
        Damage::DuplicatedPage,
        Damage::Cut,
        Damage::Garbage,
    ];

    /// Draws a kind of damage. Half of the draws are single bits.
    pub(super) fn draw(rng: &mut Rng) -> Damage {
        if rng.chance(50) {
            Damage::Bit
        } else {
            *rng.pick(&Damage::ALL)
        }
    }

    /// Like [`Damage::draw`], but may also lose the whole file.
    pub(super) fn draw_of_closed(rng: &mut Rng) -> Damage {
        match rng.chance(6) {
            true => Damage::Gone,
            false => Damage::draw(rng),
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Damage::Bit => "bit",
            Damage::Byte => "byte",
            Damage::Noise => "noise",
            Damage::ZeroedSector => "zeroed_sector",
            Damage::ZeroedPage => "zeroed_page",
            Damage::SwappedPages => "swapped_pages",
            Damage::DuplicatedPage => "duplicated_page",
            Damage::Cut => "cut",
            Damage::Garbage => "garbage",
            Damage::Gone => "gone",
        }
    }
}

/// Some damage hits whole pages. These are the sizes of such pages, in bytes: that of the storage,
/// and a smaller one, because files of a few kilobytes would otherwise have only one page.
const PAGES: [usize; 2] = [4096, 512];

/// The end of the last byte that is not zero.
fn used(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|b| *b != 0).map_or(0, |i| i + 1)
}

/// Draws a position in a file: anywhere in its used part, or in a part that random positions rarely
/// hit.
fn draw_place(rng: &mut Rng, kind: FileKind, name: &str, bytes: &[u8]) -> usize {
    let len = bytes.len();
    if kind == FileKind::Table
        && rng.chance(80)
        && let Some(raw) = bytes.last_chunk::<64>()
        && let Ok(footer) = Footer::decode(raw, name, len as u64)
    {
        let sections = footer.sections();
        let part = rng.index(6);
        let (start, len) = match part {
            0..5 => (
                sections[..part].iter().sum::<u64>() as usize,
                sections[part] as usize,
            ),
            _ => (len - 64, 64),
        };
        if len > 0 {
            return start + rng.index(len);
        }
    }
    let most = used(bytes).max(1);
    match rng.below(10) {
        // The end has the newest data.
        0..3 => most - 1 - rng.index(most.min(200)),
        // The first header.
        3 => rng.index(most.min(128)),
        // This includes reserved space.
        4 => rng.index(len),
        _ => rng.index(most),
    }
}

/// The bytes of a file that were changed.
#[derive(Clone, Debug)]
pub(super) struct Hit {
    pub(super) kind: FileKind,
    pub(super) name: String,
    pub(super) damage: Damage,
    /// The first byte that differs, or the end of the shorter contents.
    pub(super) first: u64,
    /// The end of the last byte that differs.
    pub(super) end: u64,
    /// The parts that differ: swapped pages leave the bytes between them unchanged.
    changed: Vec<Range<u64>>,
    pub(super) old_bytes: u64,
    pub(super) new_bytes: u64,
}

impl Hit {
    /// Whether a byte of `range` differs.
    pub(super) fn touches(&self, range: Range<u64>) -> bool {
        let meets = |part: &Range<u64>| part.start < range.end && range.start < part.end;
        self.changed.iter().any(meets)
    }
}

impl std::fmt::Display for Hit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}: {}, bytes {} to {} of {} (now {})",
            self.name,
            self.damage.word(),
            self.first,
            self.end,
            self.old_bytes,
            self.new_bytes
        )
    }
}

fn change(rng: &mut Rng, kind: FileKind, name: &str, damage: Damage, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        if damage == Damage::Garbage {
            bytes.push(rng.draw() as u8);
        }
        return;
    }
    let at = draw_place(rng, kind, name, bytes);
    let page = *rng.pick(&PAGES);
    let whole = |at: usize, size: usize, len: usize| {
        let start = at / size * size;
        start..(start + size).min(len)
    };
    let len = bytes.len();
    match damage {
        Damage::Bit => bytes[at] ^= 1 << rng.below(8),
        Damage::Byte => bytes[at] = rng.draw() as u8,
        Damage::Noise => {
            let most = *rng.pick(&[8, 64, 700, 5000]);
            let end = (at + 1 + rng.index(most)).min(len);
            bytes[at..end]
                .iter_mut()
                .for_each(|b| *b = rng.draw() as u8);
        }
        Damage::ZeroedSector => bytes[whole(at, 512, len)].fill(0),
        Damage::ZeroedPage => bytes[whole(at, page, len)].fill(0),
        Damage::SwappedPages | Damage::DuplicatedPage => {
            let other = whole(rng.index(len), page, len);
            let here = whole(at, page, len);
            let count = other.len().min(here.len());
            let theirs = bytes[other.start..other.start + count].to_vec();
            let ours = bytes[here.start..here.start + count].to_vec();
            bytes[here.start..here.start + count].copy_from_slice(&theirs);
            if damage == Damage::SwappedPages {
                bytes[other.start..other.start + count].copy_from_slice(&ours);
            }
        }
        Damage::Cut => bytes.truncate(at),
        Damage::Gone => bytes.clear(),
        Damage::Garbage => {
            let most = *rng.pick(&[1, 16, 600, 9000]);
            let count = 1 + rng.index(most);
            bytes.extend((0..count).map(|_| rng.draw() as u8));
        }
    }
}

/// The parts in which two contents differ, ascending. The bytes that only the longer one has form a
/// part.
fn parts_that_differ(old: &[u8], new: &[u8]) -> Vec<Range<u64>> {
    let mut parts: Vec<Range<u64>> = Vec::new();
    for i in 0..old.len().max(new.len()) {
        if old.get(i) == new.get(i) {
            continue;
        }
        match parts.last_mut() {
            Some(part) if part.end == i as u64 => part.end += 1,
            _ => parts.push(i as u64..i as u64 + 1),
        }
    }
    parts
}

/// Damages a file in a storage. Returns `None` if the draw changed no byte.
pub(super) fn hit(
    rng: &mut Rng,
    storage: &MemoryStorage,
    name: &str,
    damage: Damage,
) -> Result<Option<Hit>, String> {
    let kind = FileKind::of(name);
    let mut hit = None;
    storage
        .damage(name, |bytes| {
            let old = bytes.clone();
            change(rng, kind, name, damage, bytes);
            let changed = parts_that_differ(&old, bytes);
            let (Some(first), Some(last)) = (changed.first().cloned(), changed.last().cloned())
            else {
                return;
            };
            hit = Some(Hit {
                kind,
                name: name.to_string(),
                damage,
                first: first.start,
                end: last.end,
                changed,
                old_bytes: old.len() as u64,
                new_bytes: bytes.len() as u64,
            });
        })
        .map_err(|e| e.to_string())?;
    if damage == Damage::Gone {
        let deleted = storage.delete(Epoch(u64::MAX), name);
        deleted.map_err(|e| e.to_string())?;
    }
    Ok(hit)
}

//! Every parser of bytes that come from outside, as functions of bytes. libFuzzer (`fuzz/`) and the
//! replay of its corpora run them.
//!
//! [`TARGETS`] has one target for each parser. Each passes the bytes to the parser unchanged. If
//! the format has checksums, it passes them again with corrected checksums, because no fuzzer finds
//! a crc32c. What a parser accepts is checked against the parser's promises: it encodes to the same
//! bytes (or to bytes that decode to the same), and what it points to lies in an allowed range.
//! [`mutate`] is the small mutator of [`replay`], which runs the corpora on stable Rust.
//!
//! Invariants: a target is a function of its bytes alone; it panics only if a promise is broken.
//!
//! Threading: targets start no threads.

use crate::rng::Rng;

mod engine;
mod fixup;
pub mod replay;
mod store;
mod table;
mod wire;

/// A parser, and the function that calls it.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name, which is that of the corpus's folder and of the fuzz target.
    pub name: &'static str,
    /// Runs the parser on these bytes.
    ///
    /// # Panics
    /// If a promise of the parser is broken.
    pub run: fn(&[u8]),
}

const fn target(name: &'static str, run: fn(&[u8])) -> Target {
    Target { name, run }
}

/// All targets.
pub const TARGETS: [Target; 30] = [
    target("batch", engine::batch),
    target("block", table::block),
    target("directories", store::directories),
    target("edit", engine::edit),
    target("filter", table::filter),
    target("footer", table::footer),
    target("frames", wire::frames),
    target("hello", wire::hello),
    target("index", table::index),
    target("job", table::job),
    target("log_chain", engine::log_chain),
    target("log_segment", engine::log_segment),
    target("manifest", engine::manifest),
    target("message", wire::message),
    target("names", engine::names),
    target("options", engine::options),
    target("outcome", table::outcome),
    target("part", table::part),
    target("pointer", engine::pointer),
    target("properties", table::properties),
    target("range_deletes", table::range_deletes),
    target("recovery", store::recovery),
    target("repair", store::repair),
    target("salvage", table::salvage),
    target("settings", engine::settings),
    target("stats", engine::stats),
    target("stored_options", engine::stored_options),
    target("survivors", table::survivors),
    target("table", table::table),
    target("work", wire::work),
];

/// Changes `bytes` like a fuzzer: a few bits, bytes, numbers, pieces. `other` is a file from which
/// pieces are taken.
pub fn mutate(rng: &mut Rng, bytes: &[u8], other: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for _ in 0..1 + rng.below(4) {
        if out.is_empty() {
            out.push(rng.draw() as u8);
            continue;
        }
        let at = rng.index(out.len());
        let len = 1 + rng.index((out.len() - at).min(64));
        match rng.below(10) {
            0 | 1 => out[at] ^= 1 << rng.below(8),
            2 => out[at] = rng.draw() as u8,
            3 => out[at] = *rng.pick(&[0, 1, 0x7f, 0x80, 0xff]),
            4 => {
                let number = *rng.pick(&[0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX, 1 << 16]);
                let room = (out.len() - at).min(4);
                out[at..at + room].copy_from_slice(&number.to_le_bytes()[..room]);
            }
            5 => drop(out.drain(at..at + len)),
            6 => {
                let piece = out[at..at + len].to_vec();
                let to = rng.index(out.len());
                out.splice(to..to, piece);
            }
            7 => out.truncate(at),
            8 if !other.is_empty() => {
                let from = rng.index(other.len());
                let piece: Vec<u8> = other[from..].iter().take(len).copied().collect();
                let end = (at + piece.len()).min(out.len());
                out.splice(at..end, piece);
            }
            _ => {
                let number = out[at].wrapping_add(rng.below(5) as u8).wrapping_sub(2);
                out[at] = number;
            }
        }
    }
    out
}

//! Tables whose bytes are changed by hand, so that they have features that no build implements. The
//! checksums fit again afterwards. The offsets are those of `docs/format/table.md`.
#![allow(dead_code)]

use siltstone_table::checksum::Digest;

/// The bytes of a whole table, without compression.
pub struct Patched(pub Vec<u8>);

/// The offset of the lengths, the digest, the version and the checksum in the footer.
const FOOTER: usize = 64;

fn u32_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

fn u64_at(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
}

impl Patched {
    fn footer(&self) -> usize {
        self.0.len() - FOOTER
    }

    /// Where the blocks, the filter, the index, the range deletes and the properties end.
    fn ends(&self) -> [usize; 5] {
        let mut end = 0;
        std::array::from_fn(|i| {
            end += u64_at(&self.0, self.footer() + 8 * i);
            end
        })
    }

    /// The anchor and the end of each block, from the index.
    fn blocks(&self) -> Vec<(usize, usize)> {
        let index = self.ends()[1];
        let n = u32_at(&self.0, index);
        assert_eq!(self.0[index + 6], 4, "offsets have four bytes");
        let anchors = index + 16 + 8 * n;
        let place = |i| {
            let anchor = u32_at(&self.0, anchors + 4 * i);
            (anchor, u32_at(&self.0, anchors + 4 * n + 4 * i))
        };
        (0..n).map(place).collect()
    }

    fn set_crc(&mut self, from: usize, to: usize) {
        let crc = crc32c::crc32c(&self.0[from..to]);
        self.0[to..to + 4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Computes digest and checksum of the footer again.
    fn close(&mut self) {
        let mut digest = Digest::new();
        for (_, end) in self.blocks() {
            digest.push(u32_at(&self.0, end - 4) as u32);
        }
        let [_, _, index, deletes, _] = self.ends();
        if index < deletes {
            digest.push(u32_at(&self.0, deletes - 4) as u32);
        }
        let at = self.footer();
        self.0[at + 40..at + 48].copy_from_slice(&digest.value().to_le_bytes());
        self.set_crc(at, at + 52);
    }

    /// The digest in the footer.
    pub fn digest(&self) -> u64 {
        u64_at(&self.0, self.footer() + 40) as u64
    }

    /// Changes one byte of the header of each block.
    pub fn header_byte(mut self, offset: usize, change: impl Fn(u8) -> u8) -> Patched {
        for (anchor, end) in self.blocks() {
            let at = anchor + offset;
            self.0[at] = change(self.0[at]);
            self.set_crc(anchor, end - 4);
        }
        self.close();
        self
    }

    /// Gives all entries this kind. They must have the same one before.
    pub fn kind(self, kind: u8) -> Patched {
        self.header_byte(8, |_| kind)
    }

    /// Gives the first entry of the first block this kind, in the column of kinds, which the block
    /// must have.
    pub fn kind_in_column(mut self, kind: u8) -> Patched {
        let (anchor, end) = self.blocks()[0];
        let header = &self.0[anchor..];
        assert_eq!(header[6] & (2 | 4 | 8 | 16), 2 | 4, "kinds and fixed keys");
        let n = usize::from(u16::from_le_bytes([header[0], header[1]]));
        let (heads, seqs) = (usize::from(header[4]), usize::from(header[5]));
        // Heads, tails, sequence numbers, kinds. Keys of fixed length have no ends and no pads.
        let kinds = 32 + n * heads + u32_at(header, 20) + n * seqs;
        self.0[anchor + kinds] = kind;
        self.set_crc(anchor, end - 4);
        self.close();
        self
    }

    /// Adds a property behind all others.
    pub fn property(mut self, tag: u16, value: &[u8]) -> Patched {
        let end = self.ends()[4];
        let mut field = tag.to_le_bytes().to_vec();
        field.extend_from_slice(&(value.len() as u32).to_le_bytes());
        field.extend_from_slice(value);
        self.0.splice(end - 4..end - 4, field.iter().copied());
        let at = self.footer() + 32;
        let len = (u64_at(&self.0, at) + field.len()) as u64;
        self.0[at..at + 8].copy_from_slice(&len.to_le_bytes());
        let [_, _, _, from, end] = self.ends();
        self.set_crc(from, end - 4);
        self.close();
        self
    }

    /// Changes the version of the layout rules, which is property 0x8011.
    pub fn layout(mut self, version: u64) -> Patched {
        let [_, _, _, from, end] = self.ends();
        let head = [0x11, 0x80, 8, 0, 0, 0];
        let found = self.0[from..end].windows(6).position(|w| w == head);
        let at = from + found.expect("the property is there") + 6;
        self.0[at..at + 8].copy_from_slice(&version.to_le_bytes());
        self.set_crc(from, end - 4);
        self.close();
        self
    }
}

/// One line of the tables of RFC 12, section 4: bytes that a table has with a feature.
pub struct TableCase {
    /// What the bytes are.
    pub what: &'static str,
    /// What a refusal says.
    pub says: &'static str,
    /// Whether the table is refused when it is opened, and not only when its block is read.
    pub at_open: bool,
    /// Makes the bytes.
    pub make: fn(Patched) -> Patched,
}

/// All numbers of section 4 that a table can have. The table before has puts only, in blocks
/// without compression, unless `what` says "column", where its keys have one length and its kinds
/// differ.
pub const TABLE_CASES: &[TableCase] = &[
    TableCase {
        what: "kind 3",
        says: "merge operands",
        at_open: false,
        make: |t| t.kind(3),
    },
    TableCase {
        what: "kind 4",
        says: "value addresses",
        at_open: false,
        make: |t| t.kind(4),
    },
    TableCase {
        what: "kind 3 in the column",
        says: "merge operands",
        at_open: false,
        make: |t| t.kind_in_column(3),
    },
    TableCase {
        what: "kind 4 in the column",
        says: "value addresses",
        at_open: false,
        make: |t| t.kind_in_column(4),
    },
    TableCase {
        what: "flag 64",
        says: "expiry of entries",
        at_open: false,
        make: |t| t.header_byte(6, |flags| flags | 64),
    },
    TableCase {
        what: "property 0x8013",
        says: "merge operands",
        at_open: true,
        make: |t| t.property(0x8013, b"\x01\0\0\0add"),
    },
    TableCase {
        what: "property 0x8014",
        says: "value addresses",
        at_open: true,
        make: |t| t.property(0x8014, &[1; 32]),
    },
    TableCase {
        what: "property 0x8015",
        says: "expiry of entries",
        at_open: true,
        make: |t| t.property(0x8015, &[1; 16]),
    },
    TableCase {
        what: "property 0x8016, which nothing has",
        says: "property 0x8016",
        at_open: true,
        make: |t| t.property(0x8016, b""),
    },
    TableCase {
        what: "layout version 1",
        says: "`silt scan STORE`",
        at_open: true,
        make: |t| t.layout(1),
    },
    TableCase {
        what: "layout version 3",
        says: "newer than this program",
        at_open: true,
        make: |t| t.layout(3),
    },
    TableCase {
        what: "layout version 3 and its own property",
        says: "newer than this program",
        at_open: true,
        make: |t| t.layout(3).property(0x8013, b"\x01\0\0\0add"),
    },
];

//! Property tests of blocks: any entries, looked up and iterated from a slice and from a map, are
//! compared with a model.

use std::borrow::Borrow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;
use siltstone_storage::{Map, MapOwner};

use super::*;
use crate::checksum::crc32c;
use crate::coding::Bytes;
use crate::compress::Codec;
use crate::key::{Kind, compare_internal, seek_trailer, trailer};

/// A map over a buffer.
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    failed: AtomicBool,
}

impl MapOwner for Buffer {
    fn failed(&self) -> &AtomicBool {
        &self.failed
    }
}

/// A map of a copy of `bytes`.
#[allow(unsafe_code)] // The test makes a map as a storage would.
pub(crate) fn map_of(bytes: &[u8]) -> Map {
    let owner = Arc::new(Buffer {
        bytes: bytes.to_vec(),
        failed: AtomicBool::new(false),
    });
    let (ptr, len) = (owner.bytes.as_ptr(), owner.bytes.len());
    // SAFETY: the buffer never changes and lives in the owner that the map keeps.
    unsafe { Map::new(ptr, len, owner) }
}

type Entries = Vec<(Vec<u8>, u64, Vec<u8>)>;

/// Sorts the entries and removes equal internal keys.
pub(crate) fn in_order(mut entries: Entries) -> Entries {
    entries.sort_by(|a, b| compare_internal(&a.0, a.1, &b.0, b.1));
    entries.dedup_by(|a, b| a.0 == b.0 && a.1 == b.1);
    entries
}

/// The codecs that can run here. Miri cannot run C.
const COMPRESSING: &[Codec] = if cfg!(miri) {
    &[Codec::Lz4]
} else {
    &[Codec::Lz4, Codec::Zstd]
};

fn level(codec: Codec) -> u8 {
    *codec.levels().start()
}

/// The stored bytes and the offset of the header.
fn build(entries: &Entries, codec: Codec) -> (Vec<u8>, usize) {
    let mut builder = BlockBuilder::new();
    let mut out = Vec::new();
    for (key, trailer, value) in entries {
        builder.push_entry(key, *trailer, value.len());
        out.extend_from_slice(value);
    }
    let extent = builder
        .extent()
        .map(|e| (e.stored_bytes(), e.has_fixed_keys()));
    let mut packed = Vec::new();
    let compressed = codec.compress(level(codec), &out, &mut packed);
    if compressed {
        out = packed;
    }
    let anchor = out.len();
    let crc = crc32c(&out);
    let stored = Stored {
        values_crc: crc,
        values_compressed: compressed,
        codec,
        level: level(codec),
        offset: anchor as u64,
        end: BlockEnd::Size,
    };
    builder.encode(stored, &mut out);
    if codec == Codec::None {
        let (bytes, has_fixed_keys) = extent.unwrap();
        assert!(out.len() as u64 <= bytes, "{} of {bytes}", out.len());
        if has_fixed_keys {
            assert_eq!(out.len() as u64, bytes);
        }
    }
    (out, anchor)
}

/// Checks that every entry of every window is what the view gives for that entry alone.
fn check_windows<B: Bytes + ?Sized, H: Borrow<Header>>(view: &View<'_, B, H>) {
    let (mut key, mut want) = (Vec::new(), Vec::new());
    let mut window = Window::default();
    for i in 0..view.len() {
        if !view.fill_window(i, &mut window) {
            assert_eq!((0..view.len()).find_map(|i| window.position(i)), None);
            continue;
        }
        assert!(window.position(i).is_some());
        key.clear();
        assert!(view.prefix_over(&mut key));
        for i in 0..view.len() {
            let Some(at) = window.position(i) else {
                continue;
            };
            let entry = window.take(view.bytes(), at, &mut key).unwrap();
            assert_eq!(Ok(entry), view.entry_over(i, &mut want, false));
            assert_eq!(key[..entry.key_len], want[..entry.key_len]);
        }
    }
}

fn check_view<B: Bytes + ?Sized, H: Borrow<Header>>(
    view: View<'_, B, H>,
    entries: &Entries,
    probes: &[(Vec<u8>, u64)],
) {
    assert_eq!(view.len(), entries.len());
    check_windows(&view);
    let is_padded = view.header().has(header::FLAG_PADS);
    let is_frequent = entries.iter().all(|e| e.1 as u8 <= Kind::Put as u8);
    if view.len() >= window::WINDOW && !is_padded && is_frequent {
        assert!(view.fill_window(view.len() / 2, &mut Window::default()));
    }
    let mut key = Vec::new();
    for (i, (k, t, v)) in entries.iter().enumerate() {
        view.key_into(i, &mut key).unwrap();
        assert_eq!((&key, view.key_len(i).unwrap()), (k, k.len()));
        assert_eq!(view.trailer(i).unwrap(), *t);
        let (start, len) = view.value_range(i).unwrap();
        assert_eq!(len, v.len());
        let mut value = vec![0; len];
        assert!(view.bytes().copy_to(view.values() + start, &mut value));
        assert_eq!(&value, v);
        assert_eq!(view.seek(k, *t).unwrap(), i);
        assert_eq!(view.get(k, *t).unwrap(), Some((i, *t)));
    }
    for (k, t) in probes {
        let want = entries.partition_point(|e| compare_internal(&e.0, e.1, k, *t).is_lt());
        assert_eq!(view.seek(k, *t).unwrap(), want, "seek {k:?} {t:#x}");
        let found = entries.get(want).filter(|e| e.0 == *k).map(|e| (want, e.1));
        assert_eq!(view.get(k, *t).unwrap(), found, "get {k:?} {t:#x}");
    }
}

fn check(entries: &Entries, probes: &[(Vec<u8>, u64)], codec: Codec) {
    let (stored, anchor) = build(entries, codec);
    let mut scratch = Vec::new();
    let view = open_stored(&stored, anchor, true, &mut scratch).unwrap();
    check_view(view, entries, probes);
    let mut all = Decoded::default();
    view.decode_all(&mut all).unwrap();
    assert_eq!(all.len(), entries.len());
    for (i, (k, t, v)) in entries.iter().enumerate() {
        assert_eq!((all.key(i), all.trailers[i]), (k.as_slice(), *t));
        assert_eq!(
            &view.bytes()[view.values()..][all.value_range(i)],
            v.as_slice()
        );
        assert_eq!(view.value(i).unwrap(), v.as_slice());
    }
    if codec == Codec::None {
        let mut padded = vec![7; 13];
        padded.extend_from_slice(&stored);
        let map = map_of(&padded);
        check_view(View::new(&map, 13 + anchor, 13).unwrap(), entries, probes);
    }
    let block = Block::new(stored, anchor, true).unwrap();
    check_view(block.view(), entries, probes);
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    let narrow = prop::sample::select(vec![0u8, 1, 0x7f, 0x80, 0xff]);
    prop_oneof![
        // Few different bytes give long common prefixes, equal heads, and keys that are prefixes of
        // others.
        4 => prop::collection::vec(narrow, 0..=52),
        2 => prop::collection::vec(any::<u8>(), 0..=52),
        2 => (0u32..300).prop_map(|i| format!("user{i:012}").into_bytes()),
        1 => any::<[u8; 16]>().prop_map(|k| k.to_vec()),
    ]
}

fn seq() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..6, 1_000_000u64..1_000_100, 0u64..=crate::key::MAX_SEQ]
}

fn entry() -> impl Strategy<Value = (Vec<u8>, u64, Vec<u8>)> {
    let kind = prop::sample::select(vec![Kind::Put, Kind::Put, Kind::Put, Kind::Delete]);
    let value = prop_oneof![
        Just(vec![5u8; 8]),
        prop::collection::vec(any::<u8>(), 0..40)
    ];
    (key(), seq(), kind, value).prop_map(|(k, s, kind, v)| (k, trailer(s, kind), v))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_block(
        entries in prop::collection::vec(entry(), 1..120),
        probes in prop::collection::vec((key(), seq()), 0..60),
    ) {
        let entries = in_order(entries);
        let probes: Vec<_> = probes.into_iter().map(|(k, s)| (k, seek_trailer(s))).collect();
        check(&entries, &probes, Codec::None);
        for codec in COMPRESSING {
            check(&entries, &probes, *codec);
        }
    }

    /// The checksums find a flipped byte of the stored block.
    #[test]
    fn flips_are_found(
        entries in prop::collection::vec(entry(), 1..20),
        at in any::<prop::sample::Index>(),
        bit in 0u32..8,
    ) {
        let entries = in_order(entries);
        let (mut stored, anchor) = build(&entries, Codec::None);
        let at = at.index(stored.len());
        stored[at] ^= 1 << bit;
        prop_assert!(open_stored(&stored, anchor, true, &mut Vec::new()).is_err());
    }

    /// Without checksums, a flipped byte may give wrong answers, which is why there are checksums,
    /// but no panic.
    #[test]
    fn flips_never_panic(
        entries in prop::collection::vec(entry(), 1..40),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        codec in prop::sample::select([&[Codec::None], COMPRESSING].concat()),
    ) {
        let entries = in_order(entries);
        let (mut stored, anchor) = build(&entries, codec);
        for (at, byte) in flips {
            // Most flips hit the header.
            let at = match byte % 2 {
                0 => anchor + at.index(HEADER_BYTES),
                _ => at.index(stored.len()),
            };
            stored[at] = byte;
        }
        let mut scratch = Vec::new();
        if let Ok(view) = open_stored(&stored, anchor, false, &mut scratch) {
            let mut key = Vec::new();
            for i in 0..view.len() {
                let _ = (view.key_into(i, &mut key), view.trailer(i), view.value(i));
            }
            for (k, t, _) in &entries {
                let _ = (view.seek(k, *t), view.get(k, *t));
            }
            let _ = view.decode_all(&mut Decoded::default());
            check_windows(&view);
        }
        let map = map_of(&stored);
        if let Ok(view) = View::new(&map, anchor, 0) {
            for (k, t, _) in &entries {
                let _ = (view.seek(k, *t), view.get(k, *t));
            }
            check_windows(&view);
        }
    }
}

#[test]
fn long_keys_and_wide_tails() {
    let long = vec![b'k'; crate::limits::MAX_KEY_BYTES];
    let mut entries: Entries = vec![(vec![], trailer(9, Kind::Put), vec![1, 2])];
    for i in 0..38 {
        entries.push((
            long[..800 + i].to_vec(),
            trailer(i as u64, Kind::Put),
            vec![i as u8; 3],
        ));
    }
    entries.push((long, trailer(5, Kind::Put), vec![]));
    let entries = in_order(entries);
    let (stored, anchor) = build(&entries, Codec::None);
    assert_eq!(
        Header::parse(stored.as_slice(), anchor)
            .unwrap()
            .tail_end_width,
        4
    );
    let probes: Vec<_> = entries
        .iter()
        .map(|e| (e.0[..e.0.len() / 2].to_vec(), seek_trailer(3)))
        .collect();
    check(&entries, &probes, Codec::None);
    for codec in COMPRESSING {
        check(&entries, &probes, *codec);
    }
}

#[test]
fn value_widths() {
    for (lens, width) in [
        (vec![8, 8, 8], 0),
        (vec![8, 8, 9], 2),
        (vec![0, 65_535], 2),
        (vec![1, 65_535], 4),
        (vec![0], 0),
    ] {
        let entries: Entries = lens
            .iter()
            .enumerate()
            .map(|(i, len)| (vec![i as u8], trailer(1, Kind::Put), vec![3; *len]))
            .collect();
        let (stored, anchor) = build(&entries, Codec::None);
        assert_eq!(
            Header::parse(stored.as_slice(), anchor)
                .unwrap()
                .value_width,
            width
        );
        check(&entries, &[(vec![1, 0], seek_trailer(5))], Codec::None);
    }
}

#[test]
fn columns_without_information_take_no_bytes() {
    let entries: Entries = (0..50u8)
        .map(|i| {
            (
                format!("user{i:012}").into_bytes(),
                trailer(77, Kind::Put),
                vec![i; 32],
            )
        })
        .collect();
    let (stored, anchor) = build(&entries, Codec::None);
    let h = Header::parse(stored.as_slice(), anchor).unwrap();
    assert_eq!(
        (h.seq_width, h.flags, h.value_width, h.tail_bytes),
        (0, header::FLAG_FIXED_KEYS, 0, 0)
    );
    assert_eq!(h.columns_bytes(), HEADER_BYTES + 50 * 4 + h.prefix_len);
    assert_eq!(stored.len(), 50 * 32 + h.columns_bytes() + CHECKSUM_BYTES);
}

/// A search compares whole heads, so it does not find a key whose head has other padding than
/// zeros. All readers of whole blocks must notice that.
#[test]
fn a_head_that_is_not_padded_with_zeros_is_damage() {
    let fixed: &[&[u8]] = &[b"kaa", b"kbb", b"kcc"];
    let of_any_length: &[&[u8]] = &[b"kaaaaaaa", b"kbb", b"kccccccccccccc"];
    let wide: &[&[u8]] = &[b"kaaaaaaab", b"kaaaaaaac", b"kb", b"kccccccccccccc"];
    let empty: &[&[u8]] = &[b"k", b"kbbbbbbbbb"];
    for (keys, at, padding) in [
        (fixed, 1, 2),
        (of_any_length, 1, 2),
        (wide, 2, 7),
        (empty, 0, 4),
    ] {
        let entries: Entries = keys
            .iter()
            .map(|key| (key.to_vec(), trailer(7, Kind::Put), vec![1, 2, 3]))
            .collect();
        let (honest, anchor) = build(&entries, Codec::None);
        let h = Header::parse(honest.as_slice(), anchor).unwrap();
        for byte in 0..h.head_width {
            let mut stored = honest.clone();
            // Heads are stored reversed, so the padding comes first.
            let head = anchor + HEADER_BYTES + at * h.head_width;
            stored[head + byte] ^= 1;
            let end = stored.len() - CHECKSUM_BYTES;
            let crc = crc32c(&stored[anchor..end]);
            stored[end..].copy_from_slice(&crc.to_le_bytes());

            let mut all = Decoded::default();
            let mut scratch = Vec::new();
            let view = open_stored(&stored, anchor, true, &mut scratch).unwrap();
            let decoded = view.decode_all(&mut all);
            let is_padding = byte < padding;
            assert_eq!(decoded.is_err(), is_padding, "byte {byte} of {keys:?}");
            assert!(!is_padding || view.get(keys[at], u64::MAX).unwrap().is_none());

            let columns = open_columns(&stored[anchor..], anchor, true, &mut scratch).unwrap();
            let decoded = columns.decode_all(&mut all).map_err(|damage| damage.what);
            match is_padding {
                true => assert_eq!(decoded, Err("padding of a head")),
                false => decoded.unwrap(),
            }
        }
    }
}

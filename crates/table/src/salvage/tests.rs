use std::sync::Arc;

use siltstone_storage::ReadFile;

use super::*;
use crate::compress::Codec;
use crate::key::trailer;
use crate::testing::{Entries, Input, in_order, open, write};
use crate::{ReaderOptions, WriterOptions};

fn options(codec: Codec) -> WriterOptions {
    WriterOptions {
        codec,
        level: *codec.levels().start(),
        block_size_bytes: 512,
        keyspace: Some(3),
        ..WriterOptions::default()
    }
}

fn entries(n: u64) -> Entries {
    let mut entries = Entries::new();
    for i in 0..n {
        let key = format!("key{:04}", i * 13 % n).into_bytes();
        for version in 0..=(i % 7 / 5) {
            let value = format!("value {i} {version} ")
                .repeat(1 + i as usize % 4)
                .into_bytes();
            let kind = if i % 9 == 8 { Kind::Delete } else { Kind::Put };
            let value = if kind == Kind::Put { value } else { Vec::new() };
            entries.push((key.clone(), trailer(10 + i * 3 + version, kind), value));
        }
    }
    in_order(entries)
}

fn table(codec: Codec) -> (Vec<u8>, Entries) {
    let entries = entries(90);
    let deletes = vec![(b"key0010".to_vec(), b"key0020".to_vec(), 12)];
    (write(&entries, deletes, options(codec)).0, entries)
}

fn file(bytes: &[u8]) -> Input {
    Input {
        bytes: Arc::from(bytes),
        map: None,
    }
}

fn places(bytes: &[u8]) -> Vec<Place> {
    let table = open(
        bytes,
        ReaderOptions {
            map: false,
            ..ReaderOptions::default()
        },
    )
    .unwrap();
    (0..table.index().len())
        .map(|i| table.index().place(i))
        .collect()
}

/// All entries of the pieces.
fn found(input: &Input, salvage: &Salvage) -> Entries {
    let mut reader = PieceReader::default();
    let mut all = Entries::new();
    for piece in &salvage.pieces {
        reader.read(input, piece.place).unwrap();
        assert_eq!(reader.len() as u64, piece.entries);
        for i in 0..reader.len() {
            all.push((
                reader.key(i).to_vec(),
                reader.trailer(i),
                reader.value(i).to_vec(),
            ));
        }
    }
    all
}

/// Checks that the entries of all intact blocks are found, and that every other entry is within the
/// keys of a gap.
fn verify(bytes: &[u8], damaged: &[u8], what: &str) -> Salvage {
    let input = file(damaged);
    let salvage = salvage(&input, &Expect::default()).unwrap();
    let sound = file(bytes);
    let mut reader = PieceReader::default();
    let mut expected = Entries::new();
    for place in places(bytes) {
        let intact = damaged.get(place.start as usize..place.end as usize)
            == Some(&bytes[place.start as usize..place.end as usize]);
        reader.read(&sound, place).unwrap();
        for i in 0..reader.len() {
            if intact {
                expected.push((
                    reader.key(i).to_vec(),
                    reader.trailer(i),
                    reader.value(i).to_vec(),
                ));
                continue;
            }
            let key = reader.key(i);
            let covered = salvage.gaps.iter().any(|gap| {
                gap.after.as_ref().is_none_or(|after| &after[..] <= key)
                    && gap.until.as_ref().is_none_or(|until| {
                        key < &until[..] || gap.until_included && key == &until[..]
                    })
            });
            assert!(
                covered,
                "{what}: {:?} is lost and in no gap: {:?}",
                String::from_utf8_lossy(key),
                salvage.gaps
            );
        }
    }
    assert_eq!(
        found(&input, &salvage),
        expected,
        "{what}: {:?}",
        salvage.gaps
    );
    salvage
}

#[test]
fn a_sound_table_is_whole() {
    for codec in [Codec::None, Codec::Lz4, Codec::Zstd] {
        let (bytes, entries) = table(codec);
        let input = file(&bytes);
        let salvage = salvage(&input, &Expect::default()).unwrap();
        assert!(salvage.is_whole(), "{:?} {:?}", salvage.gaps, salvage.parts);
        assert_eq!(found(&input, &salvage), entries);
        assert_eq!(salvage.properties.unwrap().keyspace, Some(3));
        assert_eq!(salvage.range_deletes.unwrap().fragments().len(), 1);
    }
}

#[test]
fn one_damaged_byte_loses_one_block_at_most() {
    for codec in [Codec::None, Codec::Lz4, Codec::Zstd] {
        let (bytes, _) = table(codec);
        let blocks_end = places(&bytes).last().unwrap().end as usize;
        let step = if codec == Codec::None { 3 } else { 5 };
        for at in (0..bytes.len()).step_by(step) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10 << (at % 3);
            let salvage = verify(&bytes, &damaged, &format!("{codec:?}, byte {at}"));
            assert!(!salvage.is_whole(), "{codec:?}, byte {at}");
            assert_eq!(
                salvage.gaps.len(),
                usize::from(at < blocks_end),
                "{codec:?}, byte {at}"
            );
            assert!(
                salvage.pieces.iter().all(|p| !p.island),
                "{codec:?}, byte {at}"
            );
        }
    }
}

/// Footer and index are lost, and a block is damaged as well, so the file is searched.
#[test]
fn blocks_are_found_without_index_and_footer() {
    for codec in [Codec::None, Codec::Lz4, Codec::Zstd] {
        let (bytes, _) = table(codec);
        let places = places(&bytes);
        let blocks_end = places.last().unwrap().end as usize;
        for (number, place) in places.iter().enumerate() {
            for at in [
                place.start,
                place.anchor + 2,
                place.anchor + 24,
                place.end - 1,
            ] {
                let mut damaged = bytes.clone();
                damaged[at as usize] ^= 0x04;
                damaged[blocks_end..].iter_mut().for_each(|b| *b = 0xaa);
                let what = format!("{codec:?}, block {number}, byte {at}");
                let salvage = verify(&bytes, &damaged, &what);
                let behind = salvage.pieces.iter().filter(|p| p.place.start > at);
                assert!(behind.clone().all(|p| p.island), "{what}");
                assert_eq!(behind.count(), places.len() - number - 1, "{what}");
                // Only the index is lost. Then the blocks' end is known, and pieces that are
                // connected to it are not islands.
                let mut damaged = bytes.clone();
                damaged[at as usize] ^= 0x04;
                let index_at = {
                    let footer = Footer::decode(
                        bytes[bytes.len() - 64..].try_into().unwrap(),
                        "t",
                        bytes.len() as u64,
                    )
                    .unwrap();
                    (footer.blocks_bytes + footer.filter_bytes) as usize
                };
                damaged[index_at + 3] ^= 1;
                let salvage = verify(&bytes, &damaged, &what);
                assert!(salvage.pieces.iter().all(|p| !p.island), "{what}");
                assert!(salvage.properties.is_some() && salvage.range_deletes.is_some());
            }
        }
    }
}

#[test]
fn a_truncated_file_keeps_the_blocks_before_its_end() {
    for codec in [Codec::None, Codec::Lz4, Codec::Zstd] {
        let (bytes, _) = table(codec);
        for len in (0..bytes.len()).step_by(37) {
            let salvage = verify(
                &bytes,
                &bytes[..len],
                &format!("{codec:?}, truncated to {len}"),
            );
            assert!(!salvage.is_whole());
            assert!(salvage.pieces.iter().all(|p| !p.island));
        }
    }
}

/// A lost footer is no loss if the sections after the blocks can be read.
#[test]
fn a_lost_footer_loses_nothing() {
    for codec in [Codec::None, Codec::Lz4, Codec::Zstd] {
        for deletes in [vec![], vec![(b"key0010".to_vec(), b"key0020".to_vec(), 12)]] {
            for bits_per_key in [0, 10] {
                let entries = entries(90);
                let options = WriterOptions {
                    bits_per_key,
                    ..options(codec)
                };
                let (bytes, _) = write(&entries, deletes.clone(), options);
                let mut damaged = bytes.clone();
                let footer = bytes.len() - 64;
                damaged[footer..].fill(0);
                let salvage = verify(&bytes, &damaged, "no footer");
                assert!(salvage.gaps.is_empty());
                assert_eq!(salvage.parts.len(), 1, "{:?}", salvage.parts);
                assert_eq!(salvage.properties.unwrap().keyspace, Some(3));
                assert_eq!(
                    salvage.range_deletes.unwrap().fragments().len(),
                    deletes.len()
                );
            }
        }
    }
}

/// The value in a damaged block is a table. A whole table is recognised by the sections that follow
/// its blocks. The blocks of a partial one are at most an island, and their keys must fit.
#[test]
fn a_table_in_a_value_is_no_part_of_the_table() {
    let inner_entries: Entries = (0..40)
        .map(|i| {
            (
                format!("m{i:03}").into_bytes(),
                trailer(20 + i, Kind::Put),
                vec![7; 60],
            )
        })
        .collect();
    let (inner, _) = write(&inner_entries, vec![], options(Codec::None));
    let part = {
        // Only blocks, after a byte that disconnects them from the previous block.
        let end = places(&inner)[3].end as usize;
        [b"!", &inner[..end]].concat()
    };
    for (value, fits, found) in [
        (&inner, true, false),
        (&part, true, true),
        (&part, false, false),
    ] {
        let mut all: Entries = (0..30)
            .map(|i| {
                (
                    format!("a{i:03}").into_bytes(),
                    trailer(30 + i, Kind::Put),
                    vec![1; 70],
                )
            })
            .collect();
        let key = if fits { &b"m"[..] } else { b"b" };
        all.push((key.to_vec(), trailer(5, Kind::Put), value.clone()));
        all.extend((0..30).map(|i| {
            let first = if fits { 'z' } else { 'c' };
            (
                format!("{first}{i:03}").into_bytes(),
                trailer(30 + i, Kind::Put),
                vec![2; 70],
            )
        }));
        let (bytes, _) = write(&in_order(all), vec![], options(Codec::None));
        let big = *places(&bytes)
            .iter()
            .find(|p| p.stored_bytes() > 1500)
            .unwrap();
        let mut damaged = bytes.clone();
        damaged[big.anchor as usize + 20] ^= 1;
        // With the index, the block is lost and is not searched.
        let with_index = verify(&bytes, &damaged, "with index");
        assert!(with_index.pieces.iter().all(|p| !p.island));
        let raw = bytes[bytes.len() - 64..].try_into().unwrap();
        let footer = Footer::decode(raw, "t", bytes.len() as u64).unwrap();
        damaged[(footer.blocks_bytes + footer.filter_bytes) as usize] ^= 1;
        let salvage = salvage(&file(&damaged), &Expect::default()).unwrap();
        let inside = |p: &&Piece| p.place.start >= big.start && p.place.end <= big.end;
        assert_eq!(
            salvage.pieces.iter().any(|p| p.island),
            found,
            "{salvage:?}"
        );
        assert!(salvage.pieces.iter().filter(inside).all(|p| p.island));
        assert!(
            salvage
                .pieces
                .iter()
                .filter(|p| p.island)
                .all(|p| inside(&p))
        );
        assert!(
            salvage
                .pieces
                .iter()
                .any(|p| p.place.start >= big.end && !p.island)
        );
        assert_eq!(
            salvage.pieces.iter().filter(|p| !p.island).count(),
            places(&bytes).len() - 1
        );
    }
}

#[test]
fn blocks_that_contradict_the_manifest_are_lost() {
    let (bytes, entries) = table(Codec::None);
    let expect = Expect {
        seqs: Some((10, 100)),
        keys: None,
    };
    let salvage = salvage(&file(&bytes), &expect).unwrap();
    assert!(!salvage.gaps.is_empty());
    let highest = |p: &Piece| {
        entries
            .iter()
            .filter(|e| e.0 >= p.first_key && e.0 <= p.last_key)
            .map(|e| e.1 >> 8)
            .max()
    };
    assert!(salvage.pieces.iter().all(|p| highest(p) <= Some(100)));
}

/// The file contains headers and columns of blocks without their values, one after the other. The
/// values of each used to be searched at every offset before it, so that a repair of a file of a
/// few megabytes took days. (This test did not end.)
#[test]
fn blocks_without_their_values_are_passed_quickly() {
    let key = b"key".to_vec();
    let one = vec![(key, trailer(7, Kind::Put), vec![b'v'; 1 << 20])];
    let (bytes, _) = write(&in_order(one), vec![], options(Codec::Lz4));
    let place = places(&bytes)[0];
    assert!(place.anchor - place.start < 1 << 16, "it is compressed");
    let bare = &bytes[place.anchor as usize..place.end as usize];
    // Different bytes between them each time.
    let crafted: Vec<u8> = (0..10_000u32)
        .flat_map(|i| [&i.wrapping_mul(0x9e37_79b9).to_le_bytes()[..], bare].concat())
        .collect();
    let found = salvage(&file(&crafted), &Expect::default()).unwrap();
    assert!(found.pieces.is_empty(), "{}", found.pieces.len());
    let lost: u64 = found.gaps.iter().map(|g| g.end - g.start).sum();
    assert_eq!(lost, crafted.len() as u64, "all of it is reported as lost");
}

/// Arbitrary bytes that contain parts of headers.
#[test]
fn no_bytes_cause_a_panic() {
    let (bytes, _) = table(Codec::Lz4);
    let mut x = 9u64;
    let mut draw = |n: usize| {
        x = x
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (x >> 33) as usize % n
    };
    for _ in 0..150 {
        let mut damaged = bytes.clone();
        for _ in 0..1 + draw(6) {
            let (from, to, len) = (draw(bytes.len()), draw(bytes.len()), draw(400));
            for i in 0..len {
                if from + i < bytes.len() && to + i < bytes.len() {
                    damaged[to + i] = bytes[from + i];
                }
            }
            let at = draw(bytes.len());
            damaged[at] = draw(256) as u8;
        }
        damaged.truncate(draw(bytes.len() + 1));
        let input = file(&damaged);
        let salvage = salvage(&input, &Expect::default()).unwrap();
        found(&input, &salvage);
        assert!(
            salvage
                .pieces
                .windows(2)
                .all(|w| w[0].place.end <= w[1].place.start)
        );
        assert!(input.len() == damaged.len() as u64);
    }
}

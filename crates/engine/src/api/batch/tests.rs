use proptest::prelude::*;

use super::*;
use crate::types::error::ErrorKind;

#[test]
fn golden_body() {
    let mut batch = BatchBody::new();
    batch.put(1, b"key", b"value").unwrap();
    batch.delete(300, b"k").unwrap();
    batch.delete_range(0, b"a", b"bc").unwrap();
    let expected: &[u8] = b"\x01\x01\x03\x05keyvalue\x00\xac\x02\x01k\x02\x00\x01\x02abc";
    assert_eq!(batch.body(), expected);
    assert_eq!((batch.len(), batch.bytes()), (3, expected.len()));
    let entries: Vec<_> = batch.iter().collect();
    assert_eq!(
        entries,
        [
            Entry {
                kind: EntryKind::Put,
                keyspace: 1,
                key: b"key",
                value: b"value"
            },
            Entry {
                kind: EntryKind::Delete,
                keyspace: 300,
                key: b"k",
                value: b""
            },
            Entry {
                kind: EntryKind::RangeDelete,
                keyspace: 0,
                key: b"a",
                value: b"bc"
            },
        ]
    );
    batch.clear();
    assert!(batch.is_empty() && batch.bytes() == 0);
}

#[test]
fn a_refused_entry_leaves_the_batch_unchanged() {
    let mut batch = BatchBody::new();
    batch.put(7, &[1; MAX_KEY_BYTES], b"").unwrap();
    let before = batch.clone();
    for error in [
        batch.put(7, &[1; MAX_KEY_BYTES + 1], b"").unwrap_err(),
        batch.delete(7, &[1; MAX_KEY_BYTES + 1]).unwrap_err(),
        batch
            .delete_range(7, b"a", &[b'b'; MAX_KEY_BYTES + 1])
            .unwrap_err(),
        batch.delete_range(7, b"b", b"a").unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    batch.delete_range(7, b"same", b"same").unwrap();
    assert_eq!(batch, before);
    let error = batch
        .put(7, &[1; MAX_KEY_BYTES + 1], b"")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("65535") && error.contains("65536"),
        "{error}"
    );
}

#[test]
fn damaged_bodies_name_the_offset_and_the_reason() {
    let cases: &[(&[u8], usize, BadEntryReason)] = &[
        (b"\x03", 0, BadEntryReason::Kind(3)),
        (b"\x00\x01\x01a\x09", 4, BadEntryReason::Kind(9)),
        (b"\x01", 0, BadEntryReason::Cut),
        (b"\x01\x01\x80", 0, BadEntryReason::Cut),
        (b"\x01\x80\x00\x01\x01ab", 0, BadEntryReason::Varint),
        (
            b"\x01\xff\xff\xff\xff\x1f\x01\x01ab",
            0,
            BadEntryReason::Varint,
        ),
        (
            b"\x01\xff\xff\xff\xff\xff\x01\x01ab",
            0,
            BadEntryReason::Varint,
        ),
        (b"\x00\x01\x80\x80\x04", 0, BadEntryReason::Key(65_536)),
        (
            b"\x01\x01\x01\x81\x80\x80\x80\x04",
            0,
            BadEntryReason::Value((1 << 30) + 1),
        ),
        (b"\x02\x01\x01\x80\x80\x04", 0, BadEntryReason::Key(65_536)),
        (b"\x01\x01\x02\x02abc", 0, BadEntryReason::Cut),
        (b"\x02\x01\x01\x01aa", 0, BadEntryReason::Range),
        (b"\x02\x01\x01\x01ba", 0, BadEntryReason::Range),
    ];
    for &(bytes, offset, reason) in cases {
        let mut entries = Entries::new(bytes);
        let found = entries.by_ref().find_map(std::result::Result::err);
        assert_eq!(found, Some(BadEntry { offset, reason }), "{bytes:02x?}");
        assert!(
            entries.next().is_none(),
            "an iterator goes on after an error"
        );
        let error = BatchBody::from_bytes(bytes.to_vec()).unwrap_err();
        let kind = match reason {
            BadEntryReason::Kind(_) => ErrorKind::Unsupported,
            _ => ErrorKind::Corruption,
        };
        assert_eq!(error.kind(), kind);
        assert!(error.to_string().contains(&reason.to_string()), "{error}");
    }
}

fn entry() -> impl Strategy<Value = (u8, u32, Vec<u8>, Vec<u8>)> {
    (
        0u8..3,
        any::<u32>(),
        prop::collection::vec(any::<u8>(), 0..40),
        prop::collection::vec(any::<u8>(), 0..300),
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn decoding_returns_what_was_encoded(entries in prop::collection::vec(entry(), 0..30)) {
        let mut batch = BatchBody::new();
        let mut model = Vec::new();
        for (kind, keyspace, key, value) in entries {
            match kind {
                0 => {
                    batch.delete(keyspace, &key).unwrap();
                    model.push((EntryKind::Delete, keyspace, key, Vec::new()));
                }
                1 => {
                    batch.put(keyspace, &key, &value).unwrap();
                    model.push((EntryKind::Put, keyspace, key, value));
                }
                _ => {
                    let (start, end) = if key < value { (key, value) } else { (value, key) };
                    batch.delete_range(keyspace, &start, &end).unwrap();
                    if start != end {
                        model.push((EntryKind::RangeDelete, keyspace, start, end));
                    }
                }
            }
        }
        let found: Vec<_> = Entries::new(batch.body())
            .map(|e| e.map(|e| (e.kind, e.keyspace, e.key.to_vec(), e.value.to_vec())))
            .collect::<std::result::Result<_, _>>()
            .unwrap();
        prop_assert_eq!(&found, &model);
        prop_assert_eq!(batch.len(), model.len());
        let again = BatchBody::from_bytes(batch.body().to_vec()).unwrap();
        prop_assert_eq!(again, batch);
    }

    #[test]
    fn any_bytes_decode_or_fail_and_encode_to_themselves(
        bytes in prop::collection::vec(0u8..8, 0..60)
    ) {
        if let Ok(batch) = BatchBody::from_bytes(bytes.clone()) {
            let mut again = BatchBody::new();
            for entry in batch.iter() {
                match entry.kind {
                    EntryKind::Delete => again.delete(entry.keyspace, entry.key),
                    EntryKind::Put => again.put(entry.keyspace, entry.key, entry.value),
                    EntryKind::RangeDelete => {
                        again.delete_range(entry.keyspace, entry.key, entry.value)
                    }
                }
                .unwrap();
            }
            prop_assert_eq!(again.body(), &bytes[..]);
        }
    }
}

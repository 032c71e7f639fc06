//! Ingest records.

use super::*;
use crate::formats::version::AddTable;
use crate::formats::version::{Key, KeyRange};

/// A table from `first` to `last`, without a file.
pub(crate) fn table(id: u64, first: &str, last: &str) -> Arc<TableMeta> {
    let key = |k: &str| -> Key { k.as_bytes().into() };
    Arc::new(TableMeta {
        id,
        location: 0,
        name: format!("{id}.tbl"),
        min_seq: 0,
        max_seq: 0,
        raw_bytes: 100,
        file_bytes: 200,
        entries: 2,
        deletes: 0,
        range_deletes: 0,
        digest: 7,
        points: Some((key(first), key(last))),
        bounds: KeyRange::closed(first.as_bytes(), last.as_bytes()),
        sequence_override: None,
        flags: 0,
    })
}

#[test]
fn each_run_gets_its_number_and_all_keyspaces_end_at_the_same_one() {
    let body = encode_ingest(&[
        (3, vec![(10, vec![table(1, "a", "b"), table(2, "c", "d")])]),
        (
            7,
            vec![
                (11, vec![table(3, "a", "b")]),
                (12, vec![table(4, "a", "b")]),
                (13, vec![table(5, "b", "b")]),
            ],
        ),
    ]);
    let ingest = decode_ingest(&body, 100).unwrap();
    assert_eq!((ingest.last, ingest.next_table_id()), (102, 14));
    let shape: Vec<_> = ingest
        .parts
        .iter()
        .map(|(id, runs)| {
            let runs: Vec<_> = runs
                .iter()
                .map(|r| (r.id, r.seqs, r.tables.tables()[0].sequence_override))
                .collect();
            (*id, runs)
        })
        .collect();
    let seqs = SeqRange::new;
    assert_eq!(
        shape,
        [
            (3, vec![(10, seqs(99, 102), Some(100))]),
            (
                7,
                vec![
                    (11, seqs(99, 100), Some(100)),
                    (12, seqs(100, 101), Some(101)),
                    (13, seqs(101, 102), Some(102)),
                ]
            )
        ]
    );
}

/// Bodies that [`encode_ingest`] never makes are refused, without a panic.
#[test]
fn malformed_records_are_refused() {
    let add = |lo, hi, id| AddTable {
        level: 0,
        run: Some(RunSlot {
            id,
            seqs: SeqRange::new(lo, hi),
        }),
        table: table(id + 100, "a", "b"),
    };
    let edit = |keyspaces: Vec<(u32, Vec<AddTable>)>| {
        let keyspaces = keyspaces.into_iter().map(|(id, add)| KeyspaceEdit {
            id,
            add,
            ..KeyspaceEdit::default()
        });
        Edit {
            keyspaces: keyspaces.collect(),
            ..Edit::default()
        }
        .encode()
    };
    let whole = edit(vec![(1, vec![add(0, 1, 1)])]);
    assert!(decode_ingest(&whole, 1).is_ok());
    for (body, first) in [
        (whole.clone(), 0),
        (whole.clone(), u64::MAX),
        (edit(vec![]), 5),
        (edit(vec![(1, vec![])]), 5),
        (edit(vec![(1, vec![add(1, 2, 1)])]), 5),
        (edit(vec![(1, vec![add(0, 0, 1)])]), 5),
        (edit(vec![(1, vec![add(0, u64::MAX, 1)])]), 5),
        (edit(vec![(1, vec![add(0, 2, 1), add(1, 2, 2)])]), 5),
        (edit(vec![(1, vec![add(0, 1, 1), add(0, 1, 2)])]), 5),
        (edit(vec![(1, vec![add(0, 1, 1), add(0, 1, 1)])]), 5),
        (
            edit(vec![(1, vec![add(0, 1, 1)]), (1, vec![add(0, 1, 2)])]),
            5,
        ),
        (
            edit(vec![(1, vec![add(0, 1, 1)]), (2, vec![add(0, 2, 2)])]),
            5,
        ),
    ] {
        let error = decode_ingest(&body, first).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
    }
    for cut in 0..whole.len() {
        assert!(decode_ingest(&whole[..cut], 5).is_err());
    }
}

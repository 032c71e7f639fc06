//! Whether two tables are the same but for compressed bytes.
#![allow(dead_code)]

use std::sync::Arc;

use siltstone_storage::Storage;
use siltstone_table::block::header::{FLAG_COLUMNS_COMPRESSED, FLAG_VALUES_COMPRESSED};
use siltstone_table::block::{Block, HEADER_BYTES};
use siltstone_table::check::check;
use siltstone_table::{ReaderOptions, TableReader};

/// Values, header and columns of a block, without what says how they are stored.
fn parts(block: &Block) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
    let view = block.view();
    let (values, columns) = view.bytes().split_at(view.at());
    let columns = &columns[..view.header().columns_bytes()];
    let (header, columns) = columns.split_at(HEADER_BYTES);
    let mut header = header.to_vec();
    header[6] &= !(FLAG_VALUES_COMPRESSED | FLAG_COLUMNS_COMPRESSED);
    header[24..28].fill(0);
    (values.to_vec(), header, columns.to_vec())
}

fn open(storage: &dyn Storage, name: &str) -> Arc<TableReader> {
    let file = storage.open(name).unwrap();
    TableReader::open(file, ReaderOptions::default()).unwrap()
}

/// All bytes of a table, but blocks without compression. Tables are the same if these are equal.
pub fn content(storage: &dyn Storage, name: &str) -> Vec<u8> {
    let table = open(storage, name);
    let mut all = Vec::new();
    for block in 0..table.index().len() {
        let (key, trailer) = table.index().separator(block);
        let (values, header, columns) = parts(&table.read_block(block).unwrap());
        for part in [values, header, columns, key, trailer.to_le_bytes().to_vec()] {
            all.extend_from_slice(&part);
        }
    }
    if let Some(filter) = table.filter() {
        filter.encode(&mut all);
    }
    table.range_deletes().encode(&mut all);
    table.properties().encode(&mut all);
    all
}

/// Asserts that both tables are sound and have the same blocks, separators, filter, range deletes
/// and properties.
pub fn assert_same(storage: &dyn Storage, found: &str, want: &str) {
    let (found, want) = (open(storage, found), open(storage, want));
    let report = check(&found).unwrap();
    assert!(report.damage.is_empty(), "{:?}", report.damage);
    assert_eq!(found.properties(), want.properties());
    assert_eq!(
        found.range_deletes().fragments(),
        want.range_deletes().fragments()
    );
    assert!(found.filter() == want.filter(), "the filters differ");
    assert_eq!(found.index().len(), want.index().len());
    for block in 0..found.index().len() {
        let separators = [&found, &want].map(|table| table.index().separator(block));
        assert_eq!(separators[0], separators[1], "block {block}");
        let blocks = [&found, &want].map(|table| parts(&table.read_block(block).unwrap()));
        assert!(blocks[0] == blocks[1], "block {block} differs");
    }
}

//! The example of README.md. A test (`tests/readme.rs`) runs it and compares it with README.md:
//! `cargo run --example first_store -p siltstone`.
#![allow(missing_docs)] // `main` is public for that test.

use siltstone::{Batch, Options, Result, Store, WriteOptions};

pub fn main() -> Result<()> {
    let store = Store::open("first.store", Options::default())?; // creates the folder
    let birds = store.open_keyspace("birds")?; // an ordered map in the store
    birds.put(b"wren", b"9 g")?;
    let mut batch = Batch::new(); // applied as a whole, over any keyspaces
    batch.put(&birds, b"robin", b"18 g")?;
    batch.delete(&birds, b"wren")?;
    let before = store.snapshot();
    store.write(&batch, WriteOptions::SYNC)?; // survives power loss when this returns
    assert_eq!(birds.get(b"wren")?, None);
    assert_eq!(birds.get_at(&before, b"wren")?, Some(b"9 g".to_vec()));
    for pair in birds.prefix(b"r")?.rev() {
        let (key, value) = pair?;
        println!("{}: {}", key.escape_ascii(), value.escape_ascii());
    }
    store.close()
}

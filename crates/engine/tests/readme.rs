//! README.md is true: its example is `examples/first_store.rs`, word for word, and runs; its tables
//! of limits and defaults are those of the code.

#[path = "../examples/first_store.rs"]
mod first_store;

use siltstone::{setting, settings};
use siltstone_table::limits;

const README: &str = include_str!("../../../README.md");
const EXAMPLE: &str = include_str!("../examples/first_store.rs");

/// The code block of README.md that begins with this fence, which must be the only one.
fn block(fence: &str) -> &'static str {
    let mut blocks = README.split(fence).skip(1);
    let block = blocks
        .next()
        .unwrap_or_else(|| panic!("README.md has no block {fence:?}"));
    assert!(
        blocks.next().is_none(),
        "README.md has several blocks {fence:?}"
    );
    block.split("```").next().unwrap()
}

#[test]
fn the_example_is_that_of_the_readme_and_runs() {
    let code: String = EXAMPLE
        .lines()
        .skip_while(|l| l.starts_with("//!") || l.starts_with("#![") || l.is_empty())
        .map(|l| format!("{l}\n"))
        .collect();
    let code = code.replace("pub fn main", "fn main");
    assert_eq!(
        block("```rust\n"),
        code,
        "README.md and examples/first_store.rs differ"
    );
    // The example opens a store in the working folder. This is the only test of this binary that
    // changes it.
    let folder = tempfile::tempdir().unwrap();
    std::env::set_current_dir(folder.path()).unwrap();
    first_store::main().unwrap();
    // The second run finds what the first one wrote, and writes it again.
    first_store::main().unwrap();
}

/// The row of a Markdown table that begins with this cell.
fn row(cell: &str) -> &'static str {
    let start = format!("| {cell} |");
    let mut rows = README.lines().filter(|l| l.starts_with(&start));
    let row = rows
        .next()
        .unwrap_or_else(|| panic!("README.md has no row {start:?}"));
    assert!(
        rows.next().is_none(),
        "README.md has several rows {start:?}"
    );
    row
}

#[test]
fn limits_and_defaults_are_those_of_the_code() {
    for (cell, said) in [
        ("key", format!("{} bytes", limits::MAX_KEY_BYTES)),
        ("value", format!("{} GiB", limits::MAX_VALUE_BYTES >> 30)),
    ] {
        assert!(
            row(cell).contains(&format!(" {said} ")),
            "{cell}: README.md does not say {said:?}: {}",
            row(cell)
        );
    }
    // Every row of the table of settings is a setting with its default.
    let rows = README
        .lines()
        .skip_while(|l| !l.starts_with("| setting |"))
        .skip(2)
        .take_while(|l| l.starts_with('|'));
    let mut count = 0;
    for row in rows {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let setting = setting(cells[1].trim_matches('`')).unwrap();
        let default = setting.show(&setting.default_value());
        assert_eq!(cells[2], default.trim_matches('"'), "{row}");
        count += 1;
    }
    assert!(count >= 5 && count <= settings().len(), "{count} rows");
}

#[test]
fn settings_that_the_guide_names_exist() {
    let guide = include_str!("../src/guide/moving_from_rocksdb.md");
    let table = guide.split("\nSettings:\n").nth(1).unwrap();
    let mut count = 0;
    for row in table.lines().filter(|l| l.starts_with("| `")) {
        let ours = row.split(" | ").nth(1).unwrap();
        let names = ours.split('`').skip(1).step_by(2);
        for name in names.filter_map(|n| n.split(' ').next()) {
            if !["fixed", "dynamic"].contains(&name) {
                setting(name).unwrap_or_else(|e| panic!("the guide says {row}: {e}"));
                count += 1;
            }
        }
    }
    assert!(count > 15, "only {count} settings found");
}

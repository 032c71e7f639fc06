//! The page of the documentation has what its records say.

use std::path::Path;

use crate::compare::{Results, page};

/// The parts of the page in their order: the plans whose records are kept.
const PARTS: [&str; 9] = [
    "standard", "threads", "lz4", "ycsb", "sync", "latency", "merge", "size", "memory",
];

#[test]
fn the_page_of_the_documentation_is_that_of_its_records() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let files = PARTS.map(|part| docs.join(format!("performance/{part}.jsonl.zst")));
    let kept: Vec<Results> = files
        .iter()
        .filter(|file| file.exists())
        .map(|file| Results::read(file).unwrap())
        .collect();
    assert!(files[0].exists(), "{} is missing", files[0].display());
    for results in &kept {
        assert_eq!(
            results.manifest.build.is_modified,
            Some(false),
            "{}: figures of changes that nobody can look up",
            results.plan.name
        );
    }
    let found = page(&kept);
    let path = docs.join("performance.md");
    let written = std::fs::read_to_string(&path).unwrap();
    if found != written {
        let copy = std::env::temp_dir().join("siltstone-performance.md");
        std::fs::write(&copy, &found).unwrap();
        panic!(
            "{} is not the page of the records in docs/performance; copy {} there",
            path.display(),
            copy.display()
        );
    }
}

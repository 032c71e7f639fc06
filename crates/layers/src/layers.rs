//! The order of the engine's folders, and the imports that violate it.

use std::collections::BTreeMap;

use crate::imports::Import;

/// The folders of `crates/engine/src`, beginning with the lowest. A file may import files of its
/// own folder and of lower ones, none higher. [`runs_upward`] has the rules for `tools`.
pub const LAYERS: [&str; 13] = [
    "types",
    "formats",
    "tools",
    "env",
    "tree",
    "wal",
    "catalog",
    "commit",
    "jobs",
    "services",
    "stats",
    "background",
    "api",
];

/// The parts of an open store: the file and the name of each struct.
pub const PARTS: [(&str, &str); 6] = [
    ("env/mod.rs", "Env"),
    ("tree/mod.rs", "Tree"),
    ("wal/mod.rs", "Wal"),
    ("catalog/mod.rs", "Catalog"),
    ("commit/mod.rs", "Commit"),
    ("jobs/mod.rs", "Jobs"),
];

/// The folder of a file. Files beside the folders, such as `storage.rs`, belong to the highest
/// folder; the root, `lib.rs`, is above all.
pub fn folder(file: &str) -> &str {
    match file.split_once('/') {
        Some((folder, _)) if LAYERS.contains(&folder) => folder,
        _ if file == "lib.rs" => "lib.rs",
        _ => "api",
    }
}

fn rank(folder: &str) -> usize {
    LAYERS
        .iter()
        .position(|layer| *layer == folder)
        .unwrap_or(LAYERS.len())
}

/// Whether the import runs upward: into a higher folder, into the root, or into `tools` from
/// anything but `api`.
pub fn runs_upward(import: &Import) -> bool {
    let (from, to) = (folder(&import.from), folder(&import.to));
    let into_tools = to == "tools" && !matches!(from, "tools" | "api");
    rank(to) > rank(from) || into_tools
}

/// The number of imports that run upward, by both folders.
pub fn upward_by_folders(imports: &[Import]) -> BTreeMap<(&str, &str), usize> {
    let mut found = BTreeMap::new();
    for import in imports.iter().filter(|import| runs_upward(import)) {
        *found
            .entry((folder(&import.from), folder(&import.to)))
            .or_default() += 1;
    }
    found
}

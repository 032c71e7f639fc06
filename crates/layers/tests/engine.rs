//! The engine's folders are layers: no import runs upward, no circle of files leaves its folder or
//! is large, and the state of a part is its own (RFC 6).

use std::path::{Path, PathBuf};

use siltstone_layers::layers::{PARTS, folder, runs_upward};
use siltstone_layers::{Import, Sources, circles, imports};

/// Other structs whose state only their own folder or file may see.
const CLOSED: [(&str, &str); 4] = [
    ("catalog/mod.rs", "ManifestRole"),
    ("tree/tables/mod.rs", "TableSet"),
    ("tree/tables/readers.rs", "Readers"),
    ("tree/tables/deletion.rs", "Deletion"),
];

/// The most files in a circle.
const LARGEST_CIRCLE: usize = 5;

fn source(file: &str) -> PathBuf {
    let engine = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/src");
    engine.join(file)
}

fn engine() -> Vec<Import> {
    let found = imports(&Sources::read(&source("lib.rs")).unwrap());
    assert!(found.len() > 500, "only {} imports found", found.len());
    found
}

/// Fails with a line for each import that `is_wrong`.
fn refuse(is_wrong: impl Fn(&Import) -> bool, why: &str) {
    let wrong: Vec<String> = engine()
        .iter()
        .filter(|import| is_wrong(import))
        .map(|import| {
            format!(
                "crates/engine/src/{}:{} imports {} (`{}`): {why}",
                import.from, import.line, import.to, import.path,
            )
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_import_runs_upward() {
    refuse(runs_upward, "that runs upward");
}

#[test]
fn circles_stay_small_and_in_their_folder() {
    let found = engine();
    for files in circles(found.iter()) {
        let here = folder(files[0]);
        assert!(
            files.iter().all(|file| folder(file) == here),
            "a circle leaves its folder: {files:?}"
        );
        assert!(
            files.len() <= LARGEST_CIRCLE,
            "a circle of {} files in `{here}`: {files:?}",
            files.len()
        );
    }
}

#[test]
fn only_handles_tasks_and_recovery_name_all_parts() {
    let may = |file: &str| {
        let here = folder(file);
        here == "api" || here == "background" || file.starts_with("services/recovery/")
    };
    refuse(
        |import| import.to == "services/parts.rs" && !may(&import.from),
        "name the parts that are needed, not all of them",
    );
}

#[test]
fn the_tree_writes_neither_log_nor_manifest() {
    let writers = ["formats/log/writer.rs", "formats/manifest/writer.rs"];
    refuse(
        |import| folder(&import.from) == "tree" && writers.contains(&import.to.as_str()),
        "the data of a keyspace knows no writer of files",
    );
}

#[test]
fn the_state_of_a_part_is_private() {
    for (file, name) in PARTS.into_iter().chain(CLOSED) {
        let text = std::fs::read_to_string(source(file)).unwrap();
        let parsed = syn::parse_file(&text).unwrap();
        let part = parsed.items.iter().find_map(|item| match item {
            syn::Item::Struct(item) if item.ident == name => Some(item),
            _ => None,
        });
        let part = part.unwrap_or_else(|| panic!("there is no struct {name} in {file}"));
        for field in &part.fields {
            let is_private = matches!(field.vis, syn::Visibility::Inherited);
            let field = field.ident.as_ref().unwrap();
            assert!(
                is_private,
                "crates/engine/src/{file}: the field `{field}` of {name} is open to other parts"
            );
        }
    }
}

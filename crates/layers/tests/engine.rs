//! The engine's folders are layers: no import runs upward, and no circle leaves its folder.
//!
//! `upward.txt` lists what is left of the time before the layers. It may only become shorter: the
//! test fails on an upward import that is not in it, and on a line of it that is no longer true.

use std::collections::BTreeSet;
use std::path::Path;

use siltstone_layers::layers::{folder, runs_upward};
use siltstone_layers::{Import, Sources, circles, imports};

/// No circle of files may be larger.
const LARGEST_CIRCLE: usize = 5;

fn engine() -> Vec<Import> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/src/lib.rs");
    let found = imports(&Sources::read(&root).unwrap());
    assert!(found.len() > 500, "only {} imports found", found.len());
    found
}

#[test]
fn no_import_runs_upward() {
    let found = engine();
    let allowed: BTreeSet<&str> = include_str!("upward.txt").lines().collect();
    let mut seen = BTreeSet::new();
    let mut wrong = Vec::new();
    for import in found.iter().filter(|import| runs_upward(import)) {
        let pair = format!("{} {}", import.from, import.to);
        if !allowed.contains(pair.as_str()) {
            wrong.push(format!(
                "crates/engine/src/{}:{} imports {} (`{}`): `{}` may not import `{}`",
                import.from,
                import.line,
                import.to,
                import.path,
                folder(&import.from),
                folder(&import.to),
            ));
        }
        seen.insert(pair);
    }
    for gone in allowed.iter().filter(|pair| !seen.contains(**pair)) {
        wrong.push(format!(
            "crates/layers/tests/upward.txt: `{gone}` is no longer true, delete the line"
        ));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn circles_stay_small_and_in_their_folder() {
    let found = engine();
    let known: BTreeSet<&str> = include_str!("circles.txt").lines().collect();
    let downward = found.iter().filter(|import| !runs_upward(import));
    for files in circles(downward) {
        let here = folder(files[0]);
        assert!(
            files.iter().all(|file| folder(file) == here),
            "a circle leaves its folder: {files:?}"
        );
        if files.len() > LARGEST_CIRCLE {
            let more: Vec<_> = files.iter().filter(|f| !known.contains(**f)).collect();
            assert!(
                more.is_empty(),
                "the circle of {} files in `{here}` grew by {more:?}",
                files.len()
            );
        }
    }
}

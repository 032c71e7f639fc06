//! Reads small crates that were made for these tests.

use std::fs;
use std::path::Path;

use siltstone_layers::layers::runs_upward;
use siltstone_layers::{Import, Sources, circles, functions, imports};

/// A crate with these files.
fn sources(files: &[(&str, &str)]) -> Sources {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    Sources::read(&folder.path().join("lib.rs")).unwrap()
}

/// Each import as `from:line to`.
fn arrows(files: &[(&str, &str)]) -> Vec<String> {
    let shown = |i: &Import| format!("{}:{} {}", i.from, i.line, i.to);
    imports(&sources(files)).iter().map(shown).collect()
}

#[test]
fn every_form_of_a_path_is_an_import() {
    let text = "\
use crate::b::{self, X, inner::Y};
use super::c::Z as W;
fn f(x: crate::d::D) -> bool {
    println!(\"{:?}\", crate::e::g(&[super::b::X]));
    child::h()
}
mod child;
mod here {
    use super::child::h;
    use super::super::d::D;
}
";
    let found = arrows(&[
        ("lib.rs", "mod a; mod b; mod c; mod d; mod e;"),
        ("a.rs", text),
        ("a/child.rs", ""),
        ("b.rs", "mod inner;"),
        ("b/inner.rs", ""),
        ("c.rs", ""),
        ("d.rs", ""),
        ("e/mod.rs", ""),
    ]);
    let expected = [
        "a.rs:1 b.rs",
        "a.rs:1 b/inner.rs",
        "a.rs:2 c.rs",
        "a.rs:3 d.rs",
        "a.rs:4 b.rs",
        "a.rs:4 e/mod.rs",
        "a.rs:5 a/child.rs",
        "a.rs:9 a/child.rs",
        "a.rs:10 d.rs",
    ];
    let mut found: Vec<&str> = found.iter().map(String::as_str).collect();
    let mut expected = expected.to_vec();
    found.sort_unstable();
    found.dedup(); // `b` itself and `b::X` stand in one line.
    expected.sort_unstable();
    assert_eq!(found, expected);
}

#[test]
fn tests_comments_and_strings_are_not_imports() {
    let text = "\
//! [`crate::b::X`]
#[cfg(test)]
use crate::b::X;
const TEXT: &str = \"crate::b::X\";
#[cfg(test)]
mod tests { use crate::b::X; }
#[cfg(any(test, feature = \"x\"))]
fn f() { crate::b::g() }
#[cfg(not(test))]
use crate::c::Y;
";
    let found = arrows(&[
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", text),
        ("b.rs", ""),
        ("c.rs", ""),
    ]);
    assert_eq!(found, ["a.rs:10 c.rs"]);
}

#[test]
fn a_reexport_is_followed_to_the_definition_of_the_name() {
    let found = arrows(&[
        ("lib.rs", "mod a; mod b; mod c; pub use c::deep::Z;"),
        ("a.rs", "use crate::b::Z;\nuse crate::Z as Q;"),
        ("b.rs", "pub use crate::c::Z;"),
        (
            "c/mod.rs",
            "#[path = \"other.rs\"] mod deep; pub use deep::Z;",
        ),
        ("c/other.rs", ""),
    ]);
    let expected = [
        "a.rs:1 b.rs",
        "a.rs:1 c/other.rs",
        "a.rs:2 c/other.rs",
        "a.rs:2 lib.rs",
        "b.rs:1 c/mod.rs",
        "b.rs:1 c/other.rs",
        "c/mod.rs:1 c/other.rs",
    ];
    assert_eq!(found, expected);
}

#[test]
fn circles_and_upward_imports_are_found() {
    let made = sources(&[
        ("lib.rs", "mod types; mod tree; mod tools; mod api;"),
        ("types/mod.rs", "mod a; pub mod b;"),
        ("types/a.rs", "use super::b::B;"),
        ("types/b.rs", "use super::a::A; use crate::tree::T;"),
        (
            "tree/mod.rs",
            "use crate::types::b::B; use crate::tools::t;",
        ),
        ("tools/mod.rs", "use crate::types::b::B;"),
        ("api/mod.rs", "use crate::tools::t; use crate::tree::T;"),
    ]);
    let found = imports(&made);
    let upward: Vec<(&str, &str)> = found
        .iter()
        .filter(|import| runs_upward(import))
        .map(|import| (import.from.as_str(), import.to.as_str()))
        .collect();
    assert_eq!(
        upward,
        [
            ("tree/mod.rs", "tools/mod.rs"),
            ("types/b.rs", "tree/mod.rs")
        ]
    );
    assert_eq!(
        circles(&found),
        [vec![
            "tools/mod.rs",
            "tree/mod.rs",
            "types/a.rs",
            "types/b.rs"
        ]]
    );
    assert_eq!(
        circles(found.iter().filter(|import| !runs_upward(import))),
        [vec!["types/a.rs", "types/b.rs"]]
    );
}

#[test]
fn functions_are_measured_from_fn_to_the_last_brace() {
    let text = "\
/// Long.
#[inline]
pub fn f() {
    let x = |y: u8| {
        y
    };
}
impl T { fn g(&self) { } #[cfg(test)] fn h() {} }
trait U { fn i(&self); fn j(&self) {
} }
#[test]
fn k() {}
";
    let found = functions(&sources(&[("lib.rs", text)]));
    let found: Vec<(&str, usize, usize)> = found
        .iter()
        .map(|f| (f.name.as_str(), f.line, f.lines))
        .collect();
    assert_eq!(found, [("f", 3, 5), ("g", 8, 1), ("j", 9, 2), ("k", 12, 1)]);
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("lib.rs");
    let wrong = |root: &Path| Sources::read(root).err().unwrap();
    assert!(
        wrong(&root).contains("lib.rs: not read"),
        "{}",
        wrong(&root)
    );
    fs::write(&root, "mod a;").unwrap();
    fs::write(folder.path().join("a.rs"), "\nfn {").unwrap();
    assert!(
        wrong(&root).contains("a.rs:2: not parsed"),
        "{}",
        wrong(&root)
    );
}

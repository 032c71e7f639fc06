//! Checks the names in the project's documents: every link leads somewhere, every file named in
//! backquotes exists, and so does every test that `docs/stories.md` names.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_path_buf()
}

/// All Markdown files of the root and of `docs`, with their text.
fn documents() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root(), root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && folder != root() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "md") {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    found.sort();
    found
}

/// The document without its code blocks.
fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// A heading's anchor, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = heading
        .trim()
        .to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
        .collect::<String>();
    kept.replace(' ', "-")
}

fn has_anchor(text: &str, wanted: &str) -> bool {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| anchor(line.trim_start_matches('#')))
        .any(|a| a == wanted)
}

/// `a/{b,c}.rs` as `a/b.rs` and `a/c.rs`.
fn expanded(path: &str) -> Vec<String> {
    let Some((before, rest)) = path.split_once('{') else {
        return vec![path.to_string()];
    };
    let Some((choices, after)) = rest.split_once('}') else {
        return vec![path.to_string()];
    };
    choices
        .split(',')
        .map(|choice| format!("{before}{choice}{after}"))
        .collect()
}

#[test]
fn every_link_leads_somewhere() {
    let mut broken = Vec::new();
    let mut looked_at = 0;
    for (path, text) in documents() {
        let prose = prose(&text);
        for link in prose
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            if link.contains("://") {
                continue;
            }
            looked_at += 1;
            let (file, wanted) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() {
                path.clone()
            } else {
                path.parent().unwrap().join(file)
            };
            let there = target.exists()
                && (wanted.is_empty()
                    || has_anchor(&std::fs::read_to_string(&target).unwrap(), wanted));
            if !there {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(looked_at > 10, "only {looked_at} links were found");
    assert!(
        broken.is_empty(),
        "links that lead nowhere:\n{}",
        broken.join("\n")
    );
}

/// The folders of files that are named without their crate.
const SOURCES: [&str; 5] = [
    "crates/engine/src",
    "crates/table/src",
    "crates/storage/src",
    "crates/engine/tests",
    "crates/table",
];

#[test]
fn every_file_that_is_named_exists() {
    let mut missing = Vec::new();
    let mut looked_at = 0;
    for (path, text) in documents() {
        let mut crate_folder = String::new();
        for line in prose(&text).lines() {
            let heading = line
                .strip_prefix("### `")
                .and_then(|rest| rest.split('`').next());
            if let Some(folder) = heading.filter(|folder| folder.starts_with("crates/")) {
                crate_folder = folder.to_string();
            }
            for name in line
                .split('`')
                .skip(1)
                .step_by(2)
                .filter(|name| !name.contains([' ', '<', '*']))
            {
                let from_root = ["crates/", "docs/", "xtask/", ".ci/", "bench-compare/"]
                    .iter()
                    .any(|folder| name.starts_with(folder));
                for name in expanded(name) {
                    let candidates: Vec<PathBuf> = if from_root {
                        vec![root().join(&name)]
                    } else if name.starts_with("src/") && !crate_folder.is_empty() {
                        vec![root().join(&crate_folder).join(&name)]
                    } else if name.ends_with(".rs") {
                        SOURCES
                            .iter()
                            .map(|folder| root().join(folder).join(&name))
                            .collect()
                    } else {
                        continue;
                    };
                    looked_at += 1;
                    if !candidates.iter().any(|candidate| candidate.exists()) {
                        missing.push(format!("{}: {name}", path.display()));
                    }
                }
            }
        }
    }
    assert!(looked_at > 50, "only {looked_at} names were found");
    assert!(
        missing.is_empty(),
        "files that are not there:\n{}",
        missing.join("\n")
    );
}

/// The names in backquotes of one entry of `docs/stories.md`: each test, with the file before it.
fn tests_of(entry: &str) -> Vec<(&str, &str)> {
    let mut file = None;
    let mut tests = Vec::new();
    for name in entry.split('`').skip(1).step_by(2) {
        if name.ends_with(".rs") {
            file = Some(name);
        } else if let Some(file) = file {
            tests.push((file, name));
        }
    }
    tests
}

#[test]
fn every_story_names_tests_that_exist() {
    let text = std::fs::read_to_string(root().join("docs/stories.md")).unwrap();
    let entries: Vec<&str> = text.split("\n- **").skip(1).collect();
    assert!(
        entries.len() > 40,
        "only {} stories were found",
        entries.len()
    );
    let mut missing = Vec::new();
    for entry in entries {
        let title = entry.split("**").next().unwrap();
        let tests = tests_of(entry);
        if tests.is_empty() {
            missing.push(format!("{title} no test"));
        }
        for (file, test) in tests {
            let source = std::fs::read_to_string(root().join(file)).unwrap_or_default();
            if !source.contains(&format!("fn {test}(")) {
                missing.push(format!("{title} {file}: {test}"));
            }
        }
    }
    assert!(
        missing.is_empty(),
        "tests that are not there:\n{}",
        missing.join("\n")
    );
}

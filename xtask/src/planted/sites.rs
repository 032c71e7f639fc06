//! The sites of planted faults in the sources, and the rule that keeps them unobtrusive.
//!
//! A *site* is `planted!(Name)`, which is true when the fault `Name` is enabled. It may stay in the
//! source if it is one short condition on the line that it changes. Code that only a fault needs
//! belongs in a patch (see the module `patches`).
//!
//! Invariants: this reads lines, not syntax. It relies on the form that rustfmt gives the code.

use std::path::{Path, PathBuf};

use super::list::LIST;

/// The crates that have sites.
const CRATES: [&str; 5] = ["storage", "table", "engine", "device", "gpu"];

/// Files that may ask in other ways than by a site: the list, and what hands it on to tests.
const MAY_ASK: [&str; 2] = [LIST, "crates/engine/src/lib.rs"];

/// The maximum length of a line with a site.
const COLUMNS_MAX: usize = 100;

/// The beginning of a site.
const BEGIN: &str = "planted!(";

/// How else a source could ask for faults: for the feature, or without the macro.
const OTHER_WAYS: [&str; 2] = ["feature = \"planted\"", "planted::is("];

/// A site in the sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The path relative to the root.
    pub path: String,
    /// The line, counted from 1.
    pub line: usize,
    /// The name of the `Bug`.
    pub name: String,
    /// The problem of the site, if there is one.
    pub wrong: Option<&'static str>,
}

/// All sites, and the first line of each file that asks for faults in another way.
///
/// # Errors
/// If a source cannot be read.
pub fn read(root: &Path) -> Result<(Vec<Site>, Vec<String>), String> {
    let (mut sites, mut asking) = (Vec::new(), Vec::new());
    for path in all_sources(root)? {
        let text = std::fs::read_to_string(root.join(&path))
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let path = path.to_string_lossy();
        if path != LIST {
            sites.extend(sites_of(&path, &text));
        }
        if !MAY_ASK.contains(&&*path) {
            asking.extend(asks_otherwise(&path, &text));
        }
    }
    Ok((sites, asking))
}

/// The first line that asks for faults in another way than by a site.
fn asks_otherwise(path: &str, text: &str) -> Option<String> {
    let asks = |line: &&str| OTHER_WAYS.iter().any(|way| line.contains(way));
    let (at, line) = text.lines().enumerate().find(|(_, line)| asks(line))?;
    let (at, line) = (at + 1, line.trim());
    Some(format!(
        "{path}:{at} asks for faults without `planted!(Name)`: {line}"
    ))
}

/// The sources in which sites may stand, and which patches may change: relative to the root.
///
/// # Errors
/// If a folder cannot be read.
pub fn all_sources(root: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for name in CRATES {
        found.extend(sources(&root.join("crates").join(name).join("src"))?);
    }
    let relative = |path: &PathBuf| path.strip_prefix(root).unwrap_or(path).to_path_buf();
    Ok(found.iter().map(relative).collect())
}

/// All Rust files of a folder and of those in it, sorted.
fn sources(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let failed = |error| format!("{}: {error}", folder.display());
        for entry in std::fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The sites of one file.
fn sites_of(path: &str, text: &str) -> Vec<Site> {
    let lines: Vec<&str> = text.lines().collect();
    let mut sites = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        if line.trim_start().starts_with("//") {
            continue;
        }
        sites.extend(names_in(line).into_iter().map(|name| Site {
            path: path.to_string(),
            line: at + 1,
            name,
            wrong: wrong(&lines, at),
        }));
    }
    sites
}

/// The faults that a piece of code refers to.
pub fn names_in(code: &str) -> Vec<String> {
    let names = code.split(BEGIN).skip(1);
    names
        .filter_map(|rest| Some(rest.split_once(')')?.0.to_string()))
        .collect()
}

/// The problem of the site on line `at`, if there is one.
fn wrong(lines: &[&str], at: usize) -> Option<&'static str> {
    let line = lines[at];
    if line.chars().count() > COLUMNS_MAX {
        return Some("the line is too long");
    }
    if line.matches(BEGIN).count() > 1 {
        return Some("the line has two of them");
    }
    if !has_other_words(line) {
        return Some("it has a line of its own");
    }
    let matched = line
        .split("match ")
        .skip(1)
        .any(|rest| rest.contains(BEGIN));
    if line.trim_end().ends_with('{') && matched {
        return Some("a `match` is code of its own");
    }
    let condition = condition(lines, at)?;
    let is_alone = |part: &str| {
        part.strip_suffix(')')
            .is_some_and(|part| part.starts_with(BEGIN) && !part.contains(')'))
    };
    (!condition.contains("||") && condition.split("&&").any(|part| is_alone(part.trim())))
        .then_some("what the condition guards is code of its own")
}

/// Whether a line contains anything besides the site and its connecting operators.
fn has_other_words(line: &str) -> bool {
    let Some((before, rest)) = line.split_once(BEGIN) else {
        return true;
    };
    let after = rest.split_once(')').map_or("", |(_, after)| after);
    [before, after]
        .iter()
        .flat_map(|text| text.split(|c: char| !c.is_alphanumeric() && c != '_'))
        .any(|word| !["", "if", "else", "while", "match", "true", "false"].contains(&word))
}

/// The whole condition that line `at` is part of, if it guards a block or an arm that continues
/// after that line.
fn condition(lines: &[&str], at: usize) -> Option<String> {
    let goes_on = |i: usize| {
        let line = lines.get(i).map_or("", |line| line.trim());
        line.starts_with("&&") || line.starts_with("||")
    };
    let first = (0..=at).rev().find(|i| !goes_on(*i))?;
    let last = (at..lines.len()).find(|i| !goes_on(i + 1))?;
    let text: Vec<&str> = lines[first..=last].iter().map(|line| line.trim()).collect();
    let text = text.join(" ");
    let opens = lines.get(last + 1).is_some_and(|line| line.trim() == "{");
    let (_, condition) = text
        .split_once("if ")
        .or_else(|| text.split_once("while "))?;
    match condition.strip_suffix('{') {
        Some(condition) => Some(condition.replace("=>", "").trim().to_string()),
        None if opens => Some(condition.to_string()),
        None => Some(condition.split_once("=>")?.0.trim().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The problem of the only site in these lines.
    fn judged(text: &str) -> Option<&'static str> {
        let sites = sites_of("a.rs", text);
        assert_eq!(sites.len(), 1, "{text}");
        sites[0].wrong
    }

    #[test]
    fn a_condition_on_the_line_that_it_spoils_may_stay() {
        for text in [
            "if stored != computed && !planted!(X) {\n    return;\n}",
            "if level == 0 || planted!(X) {\n    return;\n}",
            "while i < n && !planted!(X) {\n}",
            "let limit = if planted!(X) { 0 } else { limit };",
            "let end = end - usize::from(planted!(X));",
            "let covers = key < end || key == end && planted!(X);",
            "end < seq || end == seq && planted!(X)",
            "if i == n || other != x && !planted!(X) {\n    return;\n}",
            "Some(own) if own <= seq || planted!(X) => Some(own),",
            "Some(own) if own <= seq || planted!(X) => {\n    own\n}",
            "if a\n    && (b || planted!(X))\n    && c\n{\n    return;\n}",
            "None => !(self.lacks_filter && planted!(X)),",
            "Some(n) if !n.keeps && !planted!(X) => match n.next {\n    true => 0,\n}",
        ] {
            assert_eq!(judged(text), None, "{text}");
        }
    }

    #[test]
    fn code_that_only_a_fault_needs_may_not_stay() {
        for text in [
            "if planted!(X) {\n    return;\n}",
            "if !planted!(X) {\n    sync();\n}",
            "} else if planted!(X) {\n    0\n}",
            "if planted!(X) && n > 1 {\n    n = 1;\n}",
            "if n > 1 && planted!(X) {\n    n = 1;\n}",
            "if let Some(n) = n\n    && let m = planted!(X)\n    && planted!(Y)\n{\n}",
            "let n = if planted!(X) {\n    0\n} else {\n    n\n};",
            "let n = match planted!(X) {\n    true => 0,\n    false => n,\n};",
            "let n = match planted!(X) && n > 1 {\n    true => 0,\n    false => n,\n};",
            "Some(i) if planted!(X) => 0,",
            "Some(i) if i > 1 && planted!(X) => {\n    0\n}",
            "if a\n    && planted!(X)\n{\n    return;\n}",
            "if a\n    && !planted!(X)\n{\n    return;\n}",
            "planted!(X)\n    || b",
            "if a\n    && b && planted!(X)\n{\n    return;\n}",
        ] {
            let sites = sites_of("a.rs", text);
            assert!(sites.iter().all(|site| site.wrong.is_some()), "{text}");
        }
        let long = format!("let {} = n + usize::from(planted!(X));", "n".repeat(90));
        assert_eq!(judged(&long), Some("the line is too long"));
        let two = "let n = m == 0 || planted!(X) || planted!(Y);";
        assert!(sites_of("a.rs", two).iter().all(|s| s.wrong.is_some()));
    }

    #[test]
    fn only_sites_may_ask_for_faults() {
        for line in [
            "#[cfg(feature = \"planted\")]",
            "    if planted::is(Bug::X) {",
            "    let x = siltstone_storage::planted::is(bug);",
        ] {
            let wrong = asks_otherwise("a.rs", &format!("fn a() {{\n{line}\n"));
            assert!(wrong.is_some_and(|w| w.contains("a.rs:2")), "{line}");
        }
        let fine = "use siltstone_storage::planted;\nif a && planted!(X) {}\n";
        assert_eq!(asks_otherwise("a.rs", fine), None);
    }

    #[test]
    fn names_are_found_in_code_and_not_in_comments() {
        assert_eq!(names_in("a || siltstone_storage::planted!(X);"), ["X"]);
        assert_eq!(sites_of("a.rs", "    // planted!(X) would do it.\n"), []);
    }
}

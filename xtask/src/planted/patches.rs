//! Faults that are patches, because they need code of their own.
//!
//! `xtask/planted/NNN-name.patch` is fault NNN. Its first line says what it breaks, in the words of
//! the list. Then comes a diff in git's format, whose new code is guarded by
//! `siltstone_storage::planted!(Name)`. So all patches are applied to one copy of the sources, and
//! one build has all faults. They are applied in the order of their numbers: if two overlap, the
//! later one contains lines of the earlier one.
//!
//! Invariants: only git reads and writes diffs. The real sources are only read.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::list::Fault;
use super::sites::{self, Site};

/// The folder of the patches.
pub const FOLDER: &str = "xtask/planted";

/// The folder in which a patch is renewed, with the sources before it and with it.
const EDITED: &str = "target/planted-edit";
const SIDES: [&str; 2] = ["a", "b"];

/// The maximum number of lines around a change in a patch. The smallest number is used with which
/// the lines occur only once in the file, so that changes nearby do no harm.
const CONTEXTS: [usize; 5] = [1, 2, 3, 5, 8];

/// Each patch that does not apply, with git's message.
pub type Applied<'p> = Vec<(&'p Patch, Result<(), String>)>;

/// One file of the folder.
#[derive(Clone, Debug)]
pub struct Patch {
    pub number: u32,
    /// Without the folder.
    pub file: String,
    pub text: String,
}

impl Patch {
    /// The text above the diff.
    fn header(&self) -> &str {
        let end = self.text.find("diff --git ");
        &self.text[..end.unwrap_or(self.text.len())]
    }

    /// The files that it changes, relative to the root.
    fn paths(&self) -> impl Iterator<Item = &str> {
        let files = self.text.lines().filter_map(|l| l.strip_prefix("--- a/"));
        files.chain(self.text.lines().filter_map(|l| l.strip_prefix("+++ b/")))
    }

    /// Each piece that it replaces, with its file: the lines before the change and around it.
    fn pieces(&self) -> Vec<(&str, Vec<&str>)> {
        let (mut pieces, mut path) = (Vec::<(&str, Vec<&str>)>::new(), None);
        for line in self.text.lines() {
            if let Some(own) = line.strip_prefix("--- a/") {
                path = Some(own);
            } else if line.starts_with("diff --git ") {
                path = None;
            } else if let (Some(path), true) = (path, line.starts_with("@@ ")) {
                pieces.push((path, Vec::new()));
            } else if let (Some(old), Some((_, lines))) =
                (line.strip_prefix([' ', '-']), pieces.last_mut())
            {
                lines.push(old);
            }
        }
        pieces
    }

    /// The first line of a piece that occurs more than once in its file below `folder`: git would
    /// have to guess.
    fn ambiguous(&self, folder: &Path) -> Option<String> {
        self.pieces().into_iter().find_map(|(path, piece)| {
            let text = std::fs::read_to_string(folder.join(path)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let places = lines.windows(piece.len().max(1)).filter(|l| **l == piece);
            (places.count() > 1).then(|| format!("{path}: {}", piece[0].trim()))
        })
    }

    /// The faults that its new lines refer to.
    fn names(&self) -> BTreeSet<String> {
        let new = self.text.lines().filter(|line| line.starts_with('+'));
        new.flat_map(sites::names_in).collect()
    }
}

/// The name of a fault's patch.
fn file_of(fault: &Fault) -> String {
    let mut words = String::new();
    for c in fault.name.chars() {
        if c.is_uppercase() {
            words.push('-');
        }
        words.push(c.to_ascii_lowercase());
    }
    format!("{:03}{words}.patch", fault.number)
}

/// What a fault breaks, as a sentence: a patch begins with it.
fn sentence_of(fault: &Fault) -> String {
    let (first, rest) = fault.breaks.split_at(fault.breaks.len().min(1));
    format!("{}{rest}.\n", first.to_uppercase())
}

/// All patches, by number.
///
/// # Errors
/// If the folder or a file cannot be read.
pub fn read(root: &Path) -> Result<Vec<Patch>, String> {
    let failed = |error| format!("{FOLDER}: {error}");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root.join(FOLDER)).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let file = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let number = file.split('-').next().and_then(|n| n.parse().ok());
        let (Some(number), Some("patch")) = (number, path.extension().and_then(|e| e.to_str()))
        else {
            return Err(format!(
                "{FOLDER}/{file} is not named as a patch: NNN-name.patch"
            ));
        };
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{FOLDER}/{file}: {e}"))?;
        found.push(Patch { number, file, text });
    }
    found.sort_by_key(|patch| patch.number);
    Ok(found)
}

/// All problems of patches and sites. Nothing is built for this.
///
/// # Errors
/// If sources or patches cannot be read.
pub fn check(root: &Path, faults: &[Fault]) -> Result<Vec<String>, String> {
    let patches = read(root)?;
    let (sites, mut wrong) = sites::read(root)?;
    wrong.extend(sites.iter().filter_map(|site| {
        let Site {
            path, line, name, ..
        } = site;
        let why = site.wrong?;
        Some(format!(
            "{path}:{line}: the site of {name} is no short condition on the line that it spoils: \
             {why}; make a patch of it (`cargo xtask planted --edit NUMBER`)"
        ))
    }));
    wrong.extend(compare(faults, &sites, &patches));
    let copy = Scratch::new()?;
    for (patch, result) in apply(root, &patches, copy.path())? {
        if let Err(why) = result {
            wrong.push(format!(
                "{FOLDER}/{} does not apply any more, renew it (`cargo xtask planted --edit \
                {}`):\n{why}",
                patch.file, patch.number
            ));
        }
    }
    Ok(wrong)
}

/// Each fault has sites in the source or a patch, and not both.
fn compare(faults: &[Fault], sites: &[Site], patches: &[Patch]) -> Vec<String> {
    let mut wrong = Vec::new();
    for fault in faults {
        let Fault { number, name, .. } = fault;
        let site = sites.iter().find(|site| site.name == *name);
        let patch = patches.iter().find(|patch| patch.number == *number);
        match (site, patch) {
            (None, None) => wrong.push(format!("{number} {name} has neither a site nor a patch")),
            (Some(site), Some(patch)) => wrong.push(format!(
                "{number} {name} has a site in {}:{} and the patch {}: one of them is too much",
                site.path, site.line, patch.file
            )),
            (Some(_), None) => {}
            (None, Some(patch)) => {
                let file = file_of(fault);
                if patch.file != file {
                    wrong.push(format!(
                        "{FOLDER}/{}: its name should be {file}",
                        patch.file
                    ));
                }
                if !patch.names().contains(name) {
                    wrong.push(format!(
                        "{FOLDER}/{file}: its new code does not ask for {name}"
                    ));
                }
                let sentence = sentence_of(fault);
                if !patch.header().starts_with(&sentence) {
                    wrong.push(format!(
                        "{FOLDER}/{file} does not begin with what the list says: {sentence}"
                    ));
                }
            }
        }
    }
    let known = |name: &str| faults.iter().any(|fault| fault.name == name);
    for site in sites.iter().filter(|site| !known(&site.name)) {
        wrong.push(format!(
            "{}:{}: there is no fault {}",
            site.path, site.line, site.name
        ));
    }
    for patch in patches {
        if faults.iter().all(|fault| fault.number != patch.number) {
            wrong.push(format!("{FOLDER}/{}: there is no such fault", patch.file));
        }
    }
    wrong
}

/// Copies the files that the patches change from the root to `to`, and applies all patches there. A
/// patch that does not apply changes nothing.
///
/// # Errors
/// If a file cannot be copied or git cannot be started.
pub fn apply<'p>(root: &Path, patches: &'p [Patch], to: &Path) -> Result<Applied<'p>, String> {
    let paths: BTreeSet<&str> = patches.iter().flat_map(Patch::paths).collect();
    for path in paths {
        // Git's message says what is missing.
        if root.join(path).is_file() {
            put(&root.join(path), &to.join(path))?;
        }
    }
    let mut results = Vec::new();
    for patch in patches {
        if let Some(place) = patch.ambiguous(to) {
            results.push((patch, Err(format!("it may apply in two places: {place}"))));
            continue;
        }
        let output = git(root, to, &["apply", "--whitespace=nowarn"], &[patch])?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
        results.push((patch, output.status.success().then_some(()).ok_or(said)));
    }
    Ok(results)
}

/// Lays out the sources before and with the patch of a fault, to be edited; returns the path.
///
/// # Errors
/// It cannot be done.
pub fn edit(root: &Path, fault: &Fault) -> Result<String, String> {
    let patches = read(root)?;
    let (before, own): (Vec<Patch>, Vec<Patch>) = patches
        .into_iter()
        .filter(|patch| patch.number <= fault.number)
        .partition(|patch| patch.number < fault.number);
    let folder = root.join(EDITED);
    let _ = std::fs::remove_dir_all(&folder);
    for side in SIDES.map(|side| folder.join(side)) {
        for path in sites::all_sources(root)? {
            put(&root.join(&path), &side.join(&path))?;
        }
        for (patch, result) in apply(root, &before, &side)? {
            if result.is_err() && side.ends_with(SIDES[0]) {
                eprintln!("{} does not apply, and is left out", patch.file);
            }
        }
    }
    let side = format!("{EDITED}/{}", SIDES[1]);
    let mut left = String::new();
    if let Some(patch) = own.first() {
        let output = git(root, &root.join(&side), &["apply", "--reject"], &[patch])?;
        if !output.status.success() {
            left = format!(
                "\nParts of {} do not apply: they lie beside their files as `*.rej`.",
                patch.file
            );
        }
    }
    let Fault { number, name, .. } = fault;
    Ok(format!(
        "Edit the files in {side}. New code asks for `siltstone_storage::planted!({name})`.{left}\n\
         Then `cargo xtask planted --renew {number}` writes {FOLDER}/{}.",
        file_of(fault)
    ))
}

/// Writes a fault's patch from the edited sources; returns what to do next.
///
/// # Errors
/// Nothing was edited, or a file cannot be written.
pub fn renew(root: &Path, fault: &Fault) -> Result<String, String> {
    let folder = root.join(EDITED);
    let old = read(root)?
        .into_iter()
        .find(|patch| patch.number == fault.number);
    let header = match &old {
        Some(old) => old.header().to_string(),
        None => format!("{}\n", sentence_of(fault)),
    };
    let mut patch = Patch {
        number: fault.number,
        file: file_of(fault),
        text: header,
    };
    let header = patch.text.len();
    for context in CONTEXTS {
        patch.text.truncate(header);
        patch.text += &difference(root, fault, context)?;
        if patch.ambiguous(&folder.join(SIDES[0])).is_none() {
            break;
        }
    }
    let file = format!("{FOLDER}/{}", patch.file);
    std::fs::write(root.join(&file), patch.text).map_err(|e| format!("{file}: {e}"))?;
    std::fs::remove_dir_all(&folder).map_err(|e| format!("{EDITED}: {e}"))?;
    Ok(format!(
        "{file} is written. `cargo xtask planted --check` tries all of them."
    ))
}

/// The diff of the edited sources, with this number of lines around each change.
fn difference(root: &Path, fault: &Fault, context: usize) -> Result<String, String> {
    let words = "diff --no-index --no-color --no-ext-diff --no-renames --src-prefix= --dst-prefix=";
    let unified = format!("--unified={context}");
    let mut words: Vec<&str> = words.split(' ').collect();
    words.extend([&unified[..], SIDES[0], SIDES[1]]);
    let output = git(root, &root.join(EDITED), &words, &[])?;
    let said = String::from_utf8_lossy(&output.stdout);
    if said.trim().is_empty() {
        let why = String::from_utf8_lossy(&output.stderr);
        let number = fault.number;
        return Err(format!(
            "{EDITED} shows no difference; begin with `cargo xtask planted --edit {number}` {why}"
        ));
    }
    if said.contains(".rej b/") {
        return Err(format!("{EDITED}: delete the files `*.rej` first"));
    }
    // The hashes of the files' contents are useless here.
    let lines = said
        .split_inclusive('\n')
        .filter(|l| !l.starts_with("index "));
    Ok(lines.collect())
}

/// Runs git in a folder as if there were no repository around it, with patches of the root as last
/// arguments.
fn git(root: &Path, folder: &Path, words: &[&str], patches: &[&Patch]) -> Result<Output, String> {
    std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut command = Command::new("git");
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"] {
        command.env_remove(name);
    }
    let output = command
        .args(words)
        .args(
            patches
                .iter()
                .map(|patch| root.join(FOLDER).join(&patch.file)),
        )
        .env("GIT_CEILING_DIRECTORIES", folder.parent().unwrap_or(folder))
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .current_dir(folder)
        .output();
    output.map_err(|error| format!("git could not be started: {error}"))
}

/// Copies a file, and creates the folders above it.
pub fn put(from: &Path, to: &Path) -> Result<(), String> {
    let failed = |error| format!("{}: {error}", to.display());
    if let Some(folder) = to.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    std::fs::copy(from, to).map_err(failed)?;
    Ok(())
}

/// A temporary folder.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Result<Scratch, String> {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("siltstone-patches-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        Ok(Scratch(folder))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planted::list;

    fn fault(number: u32, name: &str) -> Fault {
        Fault {
            number,
            name: name.to_string(),
            breaks: "a rule".to_string(),
            not_for_rows: None,
        }
    }

    #[test]
    fn sites_and_patches_are_in_order_and_all_patches_apply() {
        let root = crate::root();
        let wrong = check(&root, &list::read(&root).unwrap()).unwrap();
        assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    }

    #[test]
    fn every_fault_has_one_place() {
        let faults = [
            fault(1, "InBoth"),
            fault(2, "Nowhere"),
            fault(3, "InAPatch"),
        ];
        let site = Site {
            path: "a.rs".to_string(),
            line: 7,
            name: "InBoth".to_string(),
            wrong: None,
        };
        let patch = |file: &str, text: &str| Patch {
            number: file[..3].parse().unwrap(),
            file: file.to_string(),
            text: text.to_string(),
        };
        let good =
            "A rule.\n\ndiff --git a/a.rs b/a.rs\n--- a/a.rs\n+++ b/a.rs\n+planted!(InAPatch)\n";
        let patches = [
            patch("001-in-both.patch", "x"),
            patch("003-in-a-patch.patch", good),
        ];
        let wrong = compare(&faults, std::slice::from_ref(&site), &patches);
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(wrong[0].contains("one of them is too much"));
        assert!(wrong[1].contains("2 Nowhere has neither"));

        let mut other = site.clone();
        other.name = "Unknown".to_string();
        let patches = [
            patch(
                "003-another-name.patch",
                &good[9..].replace("InAPatch", "InBoth"),
            ),
            patch("004-too-many.patch", good),
        ];
        let wrong = compare(&faults[..1], &[site.clone(), other.clone()], &patches[1..]);
        assert!(wrong[0].contains("there is no fault Unknown"), "{wrong:?}");
        assert!(wrong[1].contains("there is no such fault"), "{wrong:?}");
        let wrong = compare(&faults[2..], &[], &patches[..1]);
        assert_eq!(wrong.len(), 3, "{wrong:?}");
        assert!(wrong[0].contains("its name should be 003-in-a-patch.patch"));
    }

    #[test]
    fn a_patch_that_applies_no_more_is_named_and_renewed() {
        let scratch = Scratch::new().unwrap();
        let root = scratch.path();
        let source = root.join("crates/table/src/a.rs");
        let lines = |second: &str| {
            format!("// One.\n\nfn a() {{\n    one();\n    {second}\n    two();\n    one();\n}}\n")
        };
        for folder in [
            "crates/storage/src",
            "crates/device/src",
            "crates/engine/src",
            "crates/gpu/src",
            "crates/table/src",
            FOLDER,
        ] {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        let fault = fault(7, "TwoIsLost");
        std::fs::write(&source, lines("zero();")).unwrap();
        assert_eq!(check(root, std::slice::from_ref(&fault)).unwrap().len(), 1);

        edit(root, &fault).unwrap();
        assert!(
            renew(root, &fault)
                .unwrap_err()
                .contains("shows no difference")
        );
        let edited = root.join(EDITED).join("b/crates/table/src/a.rs");
        let broken = |second| {
            lines(second).replace(
                "    two();",
                "    if !planted!(TwoIsLost) {\n        two();\n    }",
            )
        };
        std::fs::write(edited, broken("zero();")).unwrap();
        renew(root, &fault).unwrap();
        assert_eq!(check(root, std::slice::from_ref(&fault)).unwrap(), [""; 0]);

        // A change elsewhere in the file does no harm; a change next to the fault does.
        std::fs::write(&source, format!("// A word.\n{}", lines("zero();"))).unwrap();
        assert_eq!(check(root, std::slice::from_ref(&fault)).unwrap(), [""; 0]);
        std::fs::write(&source, lines("nought();")).unwrap();
        let wrong = check(root, std::slice::from_ref(&fault)).unwrap();
        assert!(
            wrong[0].contains("007-two-is-lost.patch does not apply"),
            "{wrong:?}"
        );

        let said = edit(root, &fault).unwrap();
        assert!(said.contains("*.rej"), "{said}");
        let edited = root.join(EDITED).join("b/crates/table/src/a.rs");
        std::fs::write(&edited, broken("nought();")).unwrap();
        assert!(renew(root, &fault).unwrap_err().contains("delete"));
        std::fs::remove_file(edited.with_extension("rs.rej")).unwrap();
        renew(root, &fault).unwrap();
        assert_eq!(check(root, &[fault]).unwrap(), [""; 0]);
        let copy = Scratch::new().unwrap();
        let patches = read(root).unwrap();
        assert!(
            patches[0]
                .text
                .starts_with("A rule.\n\ndiff --git a/crates")
        );
        apply(root, &patches, copy.path()).unwrap();
        let patched = std::fs::read_to_string(copy.path().join("crates/table/src/a.rs")).unwrap();
        assert_eq!(patched, broken("nought();"));
    }
}

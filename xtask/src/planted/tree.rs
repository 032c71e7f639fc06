//! The copy of the sources in which the faults are built.
//!
//! [`make`] updates `target/planted-tree` to the state of the repository's files with all patches
//! applied. It stays there between runs. A file with unchanged contents is not written, so that
//! cargo rebuilds only what changed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::patches::{self, Scratch};

/// The copy's folder.
const TREE: &str = "target/planted-tree";

/// A file that only the copy has. The test that plays the stories with faults looks for it.
const MARK: &str = "PLANTED";

/// Makes the copy, or brings it up to date, and returns its folder.
///
/// # Errors
/// If a patch does not apply, or if a file cannot be copied.
pub fn make(root: &Path) -> Result<PathBuf, String> {
    let patches = patches::read(root)?;
    let patched = Scratch::new()?;
    for (patch, result) in patches::apply(root, &patches, patched.path())? {
        result.map_err(|why| format!("{} does not apply:\n{why}", patch.file))?;
    }
    let tree = root.join(TREE);
    let mut kept = BTreeSet::from([PathBuf::from(MARK)]);
    for path in files(root)? {
        let own = patched.path().join(&path);
        let from = if own.is_file() { own } else { root.join(&path) };
        let to = tree.join(&path);
        let read = |path: &Path| std::fs::read(path).ok();
        if read(&from) != read(&to) {
            patches::put(&from, &to)?;
        }
        kept.insert(path);
    }
    std::fs::write(
        tree.join(MARK),
        "All planted faults are in these sources.\n",
    )
    .map_err(|error| format!("{TREE}/{MARK}: {error}"))?;
    remove_others(&tree, &kept)?;
    Ok(tree)
}

/// The repository's files: those that git knows, and new ones that it does not ignore.
fn files(root: &Path) -> Result<Vec<PathBuf>, String> {
    let words = [
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ];
    let output = Command::new("git").args(words).current_dir(root).output();
    let output = output.map_err(|error| format!("git could not be started: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("git does not list the repository's files: {said}"));
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let files = text.split('\0').map(PathBuf::from);
    // One that was deleted and not yet committed is listed all the same.
    Ok(files.filter(|path| root.join(path).is_file()).collect())
}

/// Removes the files of the copy that the repository does not have any more.
fn remove_others(tree: &Path, kept: &BTreeSet<PathBuf>) -> Result<(), String> {
    let mut folders = vec![tree.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let failed = |error| format!("{}: {error}", folder.display());
        for entry in std::fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let own = path.strip_prefix(tree).unwrap_or(&path);
            if path.is_dir() {
                // What a person builds in the copy by hand.
                if own != Path::new("target") {
                    folders.push(path);
                }
            } else if !kept.contains(own) && own != Path::new("Cargo.lock") {
                std::fs::remove_file(&path).map_err(failed)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_follows_the_repository() {
        let scratch = Scratch::new().unwrap();
        let root = scratch.path();
        let git = |words: &[&str]| {
            let output = Command::new("git").args(words).current_dir(root).output();
            assert!(output.unwrap().status.success(), "{words:?}");
        };
        git(&["init", "--quiet"]);
        std::fs::create_dir_all(root.join(patches::FOLDER)).unwrap();
        std::fs::create_dir_all(root.join("src")).unwrap();
        let write = |path: &str, text: &str| std::fs::write(root.join(path), text).unwrap();
        write(".gitignore", "target/\n");
        write("src/same.rs", "fn same() {}\n");
        write("src/goes.rs", "fn goes() {}\n");
        write("src/a.rs", "fn a() {\n    b();\n}\n");
        let patch = "Why.\n\ndiff --git a/src/a.rs b/src/a.rs\n--- a/src/a.rs\n+++ b/src/a.rs\n\
                     @@ -1,3 +1,3 @@\n fn a() {\n-    b();\n+    c();\n }\n";
        write("xtask/planted/001-a.patch", patch);
        git(&["add", "."]);
        write("src/new.rs", "fn new() {}\n");

        let tree = make(root).unwrap();
        let read = |path: &str| std::fs::read_to_string(tree.join(path)).unwrap();
        assert_eq!(read("src/a.rs"), "fn a() {\n    c();\n}\n");
        assert_eq!(read("src/new.rs"), "fn new() {}\n");
        assert!(tree.join(MARK).is_file());

        let written = |path: &str| tree.join(path).metadata().unwrap().modified().unwrap();
        let before = (written("src/same.rs"), written("src/a.rs"));
        std::fs::remove_file(root.join("src/goes.rs")).unwrap();
        write("src/new.rs", "fn newer() {}\n");
        make(root).unwrap();
        assert_eq!(read("src/new.rs"), "fn newer() {}\n");
        assert!(!tree.join("src/goes.rs").exists());
        // What did not change is not built again, whether a patch changes it or not.
        assert_eq!(before, (written("src/same.rs"), written("src/a.rs")));

        write("src/a.rs", "fn a() {\n    d();\n}\n");
        assert!(
            make(root)
                .unwrap_err()
                .contains("001-a.patch does not apply")
        );
    }
}

//! How the program was built, and from which commit.
//!
//! Threading: pure functions. [`Build::of_this_program`] may run `git` once.

use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// How the program was built.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Build {
    /// The compiler, for example `rustc 1.95.0 (f2d3ce0bd 2026-03-21)`.
    pub rustc: Option<String>,
    /// `release`, or `debug` if debug assertions are compiled in. Figures of `debug` mean nothing.
    pub profile: Option<String>,
    /// The commit, 40 hexadecimal digits.
    pub commit: Option<String>,
    /// Whether tracked files differed from that commit when the run began. `None` if the commit was
    /// compiled in.
    pub is_modified: Option<bool>,
}

/// The repository that this crate was built from.
const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

impl Build {
    /// Finds out about this program. Its commit is the one that was given in the environment
    /// variable `SILTSTONE_COMMIT` of the build. Without that it is the checked out commit of the
    /// repository, but only if the program lies in the repository's own folder, as it does in its
    /// `target`: one that was copied elsewhere may be older.
    pub fn of_this_program() -> Build {
        let profile = match cfg!(debug_assertions) {
            true => "debug",
            false => "release",
        };
        let program = std::env::current_exe().ok();
        let repository = program.and_then(|program| repository_of(&program, Path::new(REPOSITORY)));
        let compiled_in = option_env!("SILTSTONE_COMMIT").map(str::to_string);
        let checked_out = |folder: &Path| git(folder, &["rev-parse", "HEAD"]);
        let is_modified = |folder: &Path| {
            let status = git(folder, &["status", "--porcelain", "--untracked-files=no"]);
            status.map(|status| !status.is_empty())
        };
        let folder = repository.as_deref().filter(|_| compiled_in.is_none());
        Build {
            rustc: option_env!("SILTSTONE_RUSTC").map(str::to_string),
            profile: Some(profile.to_string()),
            is_modified: folder.and_then(is_modified),
            commit: compiled_in.or_else(|| folder.and_then(checked_out)),
        }
    }
}

/// The repository, if the program lies in it.
fn repository_of(program: &Path, repository: &Path) -> Option<std::path::PathBuf> {
    let repository = repository.canonicalize().ok()?;
    let is_inside = program.canonicalize().ok()?.starts_with(&repository);
    (is_inside && repository.join(".git").exists()).then_some(repository)
}

/// What a command of git prints; `None` if it fails.
fn git(folder: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    let output = command
        .arg("-C")
        .arg(folder)
        .args(arguments)
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_outside_of_the_repository_has_no_commit_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let repository = folder.path().join("repository");
        let inside = repository.join("target/release/silt");
        let outside = folder.path().join("silt");
        std::fs::create_dir_all(inside.parent().unwrap()).unwrap();
        std::fs::write(&inside, "").unwrap();
        std::fs::write(&outside, "").unwrap();
        assert_eq!(repository_of(&inside, &repository), None);

        std::fs::create_dir(repository.join(".git")).unwrap();
        let found = repository_of(&inside, &repository).unwrap();
        assert_eq!(found, repository.canonicalize().unwrap());
        assert_eq!(repository_of(&outside, &repository), None);
    }

    #[test]
    fn this_build_is_known() {
        let build = Build::of_this_program();
        assert!(build.profile.is_some());
        assert!(build.rustc.unwrap().starts_with("rustc 1."));
        if let Some(commit) = build.commit {
            assert_eq!(commit.len(), 40, "{commit}");
        }
    }

    #[test]
    fn git_that_fails_says_nothing() {
        assert_eq!(
            git(Path::new("/no/such/folder"), &["rev-parse", "HEAD"]),
            None
        );
    }
}

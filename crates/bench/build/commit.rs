//! The commit that a program is built from, found out while it is built.
//!
//! A program that looked for its commit when it runs would find that of a later checkout, or none
//! if its target folder lies elsewhere. So the build script asks git, and cargo runs it again as
//! soon as the checkout or a source changes.
//!
//! Invariant: the commit and the answer whether sources differ from it belong together. Sources are
//! those of all crates and of the workspace `bench-compare`, without tests and documents, because
//! what they change is not in the program.
//!
//! Threading: pure functions that run `git`.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Where git looks for sources. The rest of the repository is not a part of any program that the
/// crate is linked to.
const SOURCES: [&str; 9] = [
    "Cargo.toml",
    "Cargo.lock",
    "bench-compare",
    "crates",
    ":(exclude)bench-compare/pebble",
    ":(exclude)crates/sim",
    ":(exclude,glob)**/tests/**",
    ":(exclude,glob)**/examples/**",
    ":(exclude,glob)**/*.md",
];

/// What git says of a repository.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Checkout {
    /// The commit, 40 or 64 hexadecimal digits; `None` if there is no repository or no git.
    pub commit: Option<String>,
    /// Whether sources differ from it.
    pub is_modified: Option<bool>,
    /// Files whose change can change the answer.
    pub depends_on: Vec<PathBuf>,
}

impl Checkout {
    /// The checkout whose top folder is `repository`. A folder below the top of another repository,
    /// as that of an unpacked archive may be, is none.
    pub fn of(repository: &Path) -> Checkout {
        let top = git(repository, &["rev-parse", "--show-toplevel"]);
        let top = top.and_then(|top| Path::new(top.trim()).canonicalize().ok());
        if top.is_none() || top != repository.canonicalize().ok() {
            return Checkout::default();
        }
        let commit = git(repository, &["rev-parse", "--verify", "HEAD"]);
        let status = ["status", "--porcelain", "--untracked-files=no", "--"];
        let status = git(repository, &[&status[..], &SOURCES].concat());
        let listed = git(
            repository,
            &[&["ls-files", "-z", "--"], &SOURCES[..]].concat(),
        );
        let sources = listed.iter().flat_map(|list| list.split_terminator('\0'));
        let mut depends_on: Vec<PathBuf> = sources.map(|path| repository.join(path)).collect();
        depends_on.extend(heads(repository));
        Checkout {
            is_modified: status
                .filter(|_| commit.is_some())
                .map(|status| !status.is_empty()),
            commit: commit.map(|commit| commit.trim().to_string()),
            depends_on,
        }
    }
}

/// The files that change when another commit is checked out or made. In a worktree they are not in
/// its own folder. `logs/HEAD` is written at each such change; the others are for repositories that
/// keep no such log.
fn heads(repository: &Path) -> Vec<PathBuf> {
    let branch = git(repository, &["symbolic-ref", "--quiet", "HEAD"]);
    let names = ["HEAD", "logs/HEAD", "packed-refs", "reftable/tables.list"];
    let names = names.into_iter().chain(branch.as_deref().map(str::trim));
    names
        .filter_map(|name| git(repository, &["rev-parse", "--git-path", name]))
        .map(|path| repository.join(path.trim()))
        // Cargo would run the build script each time for a file that does not exist.
        .filter(|path| path.exists())
        .collect()
}

/// What git prints; `None` if it fails or does not exist.
fn git(repository: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    command.arg("-C").arg(repository).args(arguments);
    // A hook of git has these set, and they may name another repository.
    for name in [
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_COMMON_DIR",
        "GIT_PREFIX",
    ] {
        command.env_remove(name);
    }
    // Otherwise `git status` writes the index, which other commands of git may be using.
    command.env("GIT_OPTIONAL_LOCKS", "0");
    let output = command.output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then_some(text)
}

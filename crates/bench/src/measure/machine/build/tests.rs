use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::commit::Checkout;
use super::*;

#[test]
fn this_build_is_known() {
    let build = Build::of_this_program();
    assert!(build.profile.is_some());
    assert!(build.rustc.unwrap().starts_with("rustc 1."));
    assert!(!build.commit.unwrap().is_empty());
}

/// Runs git in a folder. Returns whether that worked.
fn git(folder: &Path, arguments: &[&str]) -> bool {
    let mut command = Command::new("git");
    for name in [
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_COMMON_DIR",
        "GIT_PREFIX",
    ] {
        command.env_remove(name);
    }
    let identity = [
        "-c",
        "user.name=test",
        "-c",
        "user.email=test@example.invalid",
    ];
    let arguments = [&identity[..], arguments].concat();
    let output = command.arg("-C").arg(folder).args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}

/// A repository with a source, a document and a test, in a folder of its own. `None` without git.
fn repository() -> Option<(tempfile::TempDir, PathBuf)> {
    let folder = tempfile::tempdir().unwrap();
    let repository = folder.path().join("repository");
    for (path, text) in [
        ("crates/a/src/lib.rs", "//! A crate.\n"),
        ("crates/a/tests/it.rs", "//! A test.\n"),
        ("docs/page.md", "A page.\n"),
        ("Cargo.toml", "[workspace]\n"),
    ] {
        let path = repository.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let is_made = git(&repository, &["init", "--quiet"])
        && git(&repository, &["add", "."])
        && git(&repository, &["commit", "--quiet", "-m", "begin"]);
    if !is_made {
        println!("skipped: git cannot make a repository here");
    }
    is_made.then_some((folder, repository))
}

#[test]
fn a_checkout_has_a_commit_and_says_whether_sources_differ() {
    let Some((_folder, repository)) = repository() else {
        return;
    };
    let clean = Checkout::of(&repository);
    assert_eq!(clean.commit.as_ref().map(String::len), Some(40));
    assert_eq!(clean.is_modified, Some(false));

    // Documents and tests are not in the program, and a new file is nothing before it is used.
    fs::write(repository.join("docs/page.md"), "Changed.\n").unwrap();
    fs::write(repository.join("crates/a/tests/it.rs"), "//! Changed.\n").unwrap();
    fs::write(repository.join("crates/a/src/new.rs"), "//! New.\n").unwrap();
    assert_eq!(Checkout::of(&repository), clean);

    fs::write(repository.join("crates/a/src/lib.rs"), "//! Changed.\n").unwrap();
    let changed = Checkout::of(&repository);
    assert_eq!(changed.is_modified, Some(true));
    assert_eq!(changed.commit, clean.commit);
    assert!(git(&repository, &["commit", "--quiet", "-am", "change"]));
    let next = Checkout::of(&repository);
    assert_eq!(next.is_modified, Some(false));
    assert_ne!(next.commit, clean.commit);
}

#[test]
fn cargo_looks_at_the_sources_and_at_what_a_commit_changes() {
    let Some((_folder, repository)) = repository() else {
        return;
    };
    let checkout = Checkout::of(&repository);
    let depends_on = |path: &str| checkout.depends_on.contains(&repository.join(path));
    assert!(depends_on("crates/a/src/lib.rs"));
    assert!(depends_on("Cargo.toml"));
    assert!(!depends_on("crates/a/tests/it.rs"));
    assert!(!depends_on("docs/page.md"));
    assert!(checkout.depends_on.iter().all(|path| path.exists()));
    let modified = |path: &PathBuf| fs::metadata(path).unwrap().modified().unwrap();
    let newest = |paths: &[PathBuf]| paths.iter().map(modified).max().unwrap();
    let before = newest(&checkout.depends_on);
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(git(
        &repository,
        &["commit", "--quiet", "--allow-empty", "-m", "nothing"]
    ));
    assert!(newest(&checkout.depends_on) > before);
}

#[test]
fn a_worktree_has_the_commit_that_is_checked_out_in_it() {
    let Some((folder, repository)) = repository() else {
        return;
    };
    let worktree = folder.path().join("worktree");
    let first = Checkout::of(&repository).commit;
    let path = worktree.to_str().unwrap();
    assert!(git(
        &repository,
        &["worktree", "add", "--quiet", "--detach", path]
    ));
    assert!(git(
        &repository,
        &["commit", "--quiet", "--allow-empty", "-m", "next"]
    ));
    let checkout = Checkout::of(&worktree);
    assert_eq!(checkout.commit, first);
    assert_ne!(Checkout::of(&repository).commit, first);
    assert_eq!(checkout.is_modified, Some(false));
    fs::write(worktree.join("Cargo.toml"), "# changed\n").unwrap();
    assert_eq!(Checkout::of(&worktree).is_modified, Some(true));
    assert_eq!(Checkout::of(&repository).is_modified, Some(false));
}

#[test]
fn an_unpacked_archive_has_no_commit_even_within_another_repository() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(Checkout::of(folder.path()), Checkout::default());
    assert_eq!(
        Checkout::of(&folder.path().join("missing")),
        Checkout::default()
    );
    let Some((_folder, repository)) = repository() else {
        return;
    };
    let archive = repository.join("vendor/siltstone");
    fs::create_dir_all(&archive).unwrap();
    assert_eq!(Checkout::of(&archive), Checkout::default());
}

//! A real, small file system for a test: a tmpfs in a mount namespace of the test's own child
//! process. Tests of other crates include this file.

use std::path::Path;
use std::process::Command;

/// The environment variable that tells the child where its file system is.
const ROLE: &str = "SILT_TEST_TMPFS";

/// The child prints this at its end, so that a child that ran nothing is noticed.
const DONE: &str = "the small file system was used to the end";

/// Runs `body` on an empty tmpfs of `mib` MiB. `test` is the full name of the calling test, as its
/// binary's filter takes it. If mounts are not permitted, it prints that the test is skipped.
///
/// # Panics
/// If the body panics.
pub fn on_tmpfs(test: &str, mib: u32, body: impl FnOnce(&Path)) {
    if let Some(dir) = std::env::var_os(ROLE) {
        body(Path::new(&dir));
        println!("{DONE}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let script =
        r#"mount -t tmpfs -o size="$3"m tmpfs "$1" || exit 77; exec "$2" "$4" --exact --nocapture"#;
    let output = Command::new("unshare")
        .args([
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
            script,
            "sh",
        ])
        .arg(dir.path())
        .arg(std::env::current_exe().unwrap())
        .args([&mib.to_string(), test])
        .env(ROLE, dir.path())
        .output();
    let output = match output {
        Ok(output) => output,
        Err(e) => return println!("skipped: `unshare` cannot be run: {e}"),
    };
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    // 77: the mount failed. Otherwise `unshare` itself was refused before our binary ran.
    if output.status.code() == Some(77) || !out.contains("running 1 test") {
        return println!("skipped: no tmpfs can be mounted in a user namespace here: {err}");
    }
    assert!(
        output.status.success() && out.contains(DONE),
        "{out}\n{err}"
    );
    println!("{out}");
}

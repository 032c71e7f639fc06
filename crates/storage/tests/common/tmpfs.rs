//! A real, small file system for a test: a tmpfs in a mount namespace of the test's own child process. Tests of other crates include this file.

use std::path::Path;
use std::process::Command;

/// Says to the child where its file system is.
const ROLE: &str = "SILT_TEST_TMPFS";

/// What the child prints when it has come to its end: that it ran at all is not taken for granted.
const DONE: &str = "the small file system was used to the end";

/// Runs `body` on an empty tmpfs of `mib` MiB. `test` is the calling test's full name, as its binary's filter takes it. Skips, aloud, where a
/// mount is not permitted.
///
/// # Panics
/// If the body does.
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
    // 77: no mount; otherwise `unshare` itself was refused before our binary ran at all.
    if output.status.code() == Some(77) || !out.contains("running 1 test") {
        return println!("skipped: a tmpfs in a user namespace is not to be had here: {err}");
    }
    assert!(
        output.status.success() && out.contains(DONE),
        "{out}\n{err}"
    );
    println!("{out}");
}

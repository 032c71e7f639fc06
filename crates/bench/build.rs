//! Tells the crate which compiler builds it, for the record of each run.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=SILTSTONE_COMMIT");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let Ok(output) = Command::new(rustc).arg("--version").output() else {
        return;
    };
    if let Ok(version) = String::from_utf8(output.stdout) {
        println!("cargo::rustc-env=SILTSTONE_RUSTC={}", version.trim());
    }
}

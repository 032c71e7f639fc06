//! Tells the crate which compiler and which commit it is built from, for the record of each run.

use std::path::PathBuf;
use std::process::Command;

#[path = "build/commit.rs"]
mod commit;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build/commit.rs");
    println!("cargo::rerun-if-env-changed=SILTSTONE_COMMIT");
    tell_compiler();
    // Whoever builds without a repository can say what it was.
    match std::env::var("SILTSTONE_COMMIT") {
        Ok(commit) if !commit.is_empty() => tell("SILTSTONE_BUILD_COMMIT", &commit),
        _ => tell_checkout(),
    }
}

fn tell(name: &str, value: &str) {
    println!("cargo::rustc-env={name}={value}");
}

fn tell_compiler() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("--version").output();
    let version = output
        .ok()
        .and_then(|output| String::from_utf8(output.stdout).ok());
    if let Some(version) = version {
        tell("SILTSTONE_RUSTC", version.trim());
    }
}

fn tell_checkout() {
    let folder = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default();
    let checkout = commit::Checkout::of(&PathBuf::from(folder).join("../.."));
    for path in &checkout.depends_on {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    if let Some(commit) = checkout.commit {
        tell("SILTSTONE_BUILD_COMMIT", &commit);
    }
    if let Some(is_modified) = checkout.is_modified {
        tell("SILTSTONE_BUILD_IS_MODIFIED", &is_modified.to_string());
    }
}

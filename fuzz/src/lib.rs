//! Selects the parser that a fuzzer runs: `SILT_FUZZ_TARGET` names it. Its function is the same as
//! in the replay on stable Rust (`siltstone_sim::fuzzing` for files, `siltstone_cli::fuzzing` for
//! the command line).

use std::sync::OnceLock;

/// The target with this name.
fn target(name: &str) -> Option<fn(&[u8])> {
    let of_files = siltstone_sim::fuzzing::TARGETS.iter();
    let of_files = of_files.map(|target| (target.name, target.run));
    of_files
        .chain(siltstone_cli::fuzzing::TARGETS)
        .find(|(known, _)| *known == name)
        .map(|(_, run)| run)
}

/// Runs the target that the environment variable names.
///
/// # Panics
/// If there is no target with this name, or if the target breaks one of its promises.
pub fn run(bytes: &[u8]) {
    static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();
    let run = TARGET.get_or_init(|| {
        let name = std::env::var("SILT_FUZZ_TARGET").unwrap_or_default();
        match target(&name) {
            Some(run) => run,
            None => panic!("SILT_FUZZ_TARGET={name}: there is no such target"),
        }
    });
    run(bytes);
}

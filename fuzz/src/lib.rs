//! Which parser a fuzzer runs: `SILT_FUZZ_TARGET` names it. Its function is that of the replay on stable Rust (`siltstone_sim::fuzzing`).

use std::sync::OnceLock;

use siltstone_sim::fuzzing::TARGETS;

/// Runs the target that the environment names.
///
/// # Panics
/// Where there is none of this name, or one of its promises is broken.
pub fn run(bytes: &[u8]) {
    static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();
    let run = TARGET.get_or_init(|| {
        let name = std::env::var("SILT_FUZZ_TARGET").unwrap_or_default();
        match TARGETS.iter().find(|t| t.name == name) {
            Some(target) => target.run,
            None => panic!("SILT_FUZZ_TARGET={name}: there is no such target"),
        }
    });
    run(bytes);
}

//! One parser under libFuzzer; see `cargo xtask fuzz`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| siltstone_fuzz::run(bytes));

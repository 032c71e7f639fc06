//! Links the system's LevelDB (Debian: libleveldb-dev). The library of this package, which other
//! benchmarks use, does without.
fn main() {
    println!("cargo:rustc-link-arg-bins=-lleveldb");
}

//! Compiles the bridge to LevelDB, and passes on where RocksDB's library lies.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "leveldb")]
    leveldb();
    if env::var_os("CARGO_FEATURE_ROCKSDB").is_some() {
        rocksdb();
    }
    if env::var_os("CARGO_FEATURE_FJALL").is_some() {
        println!("cargo:rustc-env=FJALL_VERSION={}", locked_version("fjall"));
    }
}

/// LevelDB is built without exceptions and without runtime types, so classes that derive from its
/// classes must be built like that too.
#[cfg(feature = "leveldb")]
fn leveldb() {
    println!("cargo:rerun-if-changed=src/leveldb/bridge.cc");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .flag("-fno-exceptions")
        .flag("-fno-rtti")
        .file("src/leveldb/bridge.cc")
        .compile("siltstone_leveldb_bridge");
    println!("cargo:rustc-link-lib=leveldb");
}

/// The library of the Java package has no soname, so programs look for `librocksdb.so` by name.
fn rocksdb() {
    println!("cargo:rerun-if-env-changed=ROCKSDB_LIB_DIR");
    if let Ok(folder) = env::var("ROCKSDB_LIB_DIR") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{folder}");
        println!("cargo:rocksdb_lib_dir={folder}");
    }
}

/// The version of a package in the workspace's lock file.
fn locked_version(package: &str) -> String {
    let lock = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.lock");
    println!("cargo:rerun-if-changed={lock}");
    let text = std::fs::read_to_string(lock).unwrap_or_default();
    let mut lines = text
        .lines()
        .skip_while(|line| *line != format!("name = \"{package}\""));
    let version = lines.nth(1).and_then(|line| line.split('"').nth(1));
    version.unwrap_or("unknown").to_string()
}

//! Lets the program find RocksDB's library at run time: beside its own file, as in a bundle of
//! `gpu-check`, or else where the build found it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-arg-bins=-Wl,-rpath,$ORIGIN");
    // The package `bench-peers` says where it found the library.
    if let Ok(folder) = std::env::var("DEP_BENCH_PEERS_ROCKSDB_LIB_DIR") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{folder}");
        println!("cargo:rustc-env=SILT_ROCKSDB_LIBRARY={folder}/librocksdb.so");
    }
}

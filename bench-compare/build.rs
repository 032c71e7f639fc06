//! Lets the program find RocksDB's library at run time.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The package `bench-peers` says where it found the library.
    if let Ok(folder) = std::env::var("DEP_BENCH_PEERS_ROCKSDB_LIB_DIR") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{folder}");
    }
}

//! The PTX that is checked in is that of the sources.

use std::path::Path;

use siltstone_gpu::PTX;
use siltstone_gpu::device::{cuda, entries};
use xxhash_rust::xxh3::Xxh3Default;

/// The hash of all sources, as `xtask/ptx.py` computes it.
fn source_hash(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "cu" || e == "h"));
    files.sort();
    let mut hash = Xxh3Default::new();
    for path in files {
        let data = std::fs::read(&path).unwrap();
        hash.update(path.file_name().unwrap().as_encoded_bytes());
        hash.update(&[0]);
        hash.update(&(data.len() as u64).to_le_bytes());
        hash.update(&data);
    }
    hash.digest()
}

#[test]
fn the_ptx_is_that_of_the_sources() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let expected = format!("// sources {:016x}", source_hash(&folder));
    let found = PTX.lines().next();
    assert_eq!(
        found,
        Some(expected.as_str()),
        "the kernels were changed, and crates/gpu/kernels/siltstone.ptx was not made again: run \
         `cargo xtask ptx`"
    );
}

#[test]
fn the_ptx_needs_what_the_crate_says() {
    let entries = entries(PTX).unwrap();
    assert!(!entries.is_empty());
    let (major, minor) = cuda::CAPABILITY_MIN;
    assert!(PTX.contains(&format!(".target sm_{major}{minor}\n")));
    // CUDA 12.4 has version 8.4 of PTX.
    assert_eq!(cuda::DRIVER_VERSION_MIN, (12, 4));
    assert!(PTX.contains(".version 8.4\n"));
}

/// The PTX and the host's build have the same kernels, with arguments of the same size. The sizes
/// of the structures in Rust are compared with those of the host's build at each launch.
#[test]
fn the_ptx_has_the_kernels_of_the_emulated_device() {
    let mut in_ptx: Vec<(String, u64)> = siltstone_gpu::device::entries(siltstone_gpu::PTX)
        .unwrap()
        .into_iter()
        .map(|entry| (entry.name, entry.param_bytes as u64))
        .collect();
    let mut emulated = siltstone_gpu::device::emulated::kernels();
    in_ptx.sort();
    emulated.sort();
    assert_eq!(in_ptx, emulated);
}

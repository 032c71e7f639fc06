//! `cargo peers ARGS`: fetches the release library of RocksDB if it is not there, and runs
//! `cargo ARGS` so that the build and the programs find it.
//!
//! The library is inside the official Java package of RocksDB. Maven fetches the package, and its
//! digest and that of the library are checked. The library is kept in
//! `~/.cache/siltstone-bench`, outside of the tree, so it is fetched once for each machine.
//!
//! With `ROCKSDB_LIB_DIR` set, that folder is used and nothing is fetched. With `--from-source`
//! before ARGS, cargo builds RocksDB itself (10.4.2, about half an hour on two cores; add the
//! feature `bench-peers/rocksdb-from-source` for LZ4 and zstd).
//!
//! Invariant: a library whose digest differs is never used.
//!
//! Threading: one process may run at a time on an empty cache; the library appears there by a
//! rename, so another never sees a part of it.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use sha2::{Digest, Sha256};

const VERSION: &str = "10.10.1";
const PACKAGE_SHA256: &str = "fda4a26cd4ea229636c5379ed41d827ce119a99c404fab94d9f863783c9ccb18";
const LIBRARY_SHA256: &str = "14750307fe12f75bd400ed8156dfb737a7a7229ffe4c8b8bbe218e754dbe14b2";
const LIBRARY_IN_PACKAGE: &str = "librocksdbjni-linux64.so";
/// The name that the linker looks for.
const LIBRARY: &str = "librocksdb.so";

type Result<T> = std::result::Result<T, String>;

fn main() -> ExitCode {
    let mut arguments: Vec<String> = env::args().skip(1).collect();
    let from_source = arguments
        .first()
        .is_some_and(|first| first == "--from-source");
    if from_source {
        arguments.remove(0);
    }
    let result = match from_source {
        true => run_cargo(&arguments, None),
        false => library_folder().and_then(|folder| run_cargo(&arguments, Some(&folder))),
    };
    result.unwrap_or_else(|error| {
        eprintln!("cargo peers: {error}");
        ExitCode::FAILURE
    })
}

/// Runs cargo, and returns its status. Without arguments it only says where the library is.
fn run_cargo(arguments: &[String], folder: Option<&Path>) -> Result<ExitCode> {
    if let (true, Some(folder)) = (arguments.is_empty(), folder) {
        println!(
            "export ROCKSDB_LIB_DIR={0} LD_LIBRARY_PATH={0}",
            folder.display()
        );
        return Ok(ExitCode::SUCCESS);
    }
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(&cargo);
    command.args(arguments);
    if let Some(folder) = folder {
        command.env("ROCKSDB_LIB_DIR", folder);
        command.env("LD_LIBRARY_PATH", search_path(folder)?);
    }
    let status = command
        .status()
        .map_err(|error| format!("{} cannot be run: {error}", cargo.display()))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(1)))
}

/// The folder before those where programs look for libraries already.
fn search_path(folder: &Path) -> Result<std::ffi::OsString> {
    let others = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let others = env::split_paths(&others).filter(|path| !path.as_os_str().is_empty());
    env::join_paths(std::iter::once(folder.to_path_buf()).chain(others))
        .map_err(|error| format!("LD_LIBRARY_PATH: {error}"))
}

/// The folder of the library, which is fetched if it is not there.
fn library_folder() -> Result<PathBuf> {
    if let Some(folder) = env::var_os("ROCKSDB_LIB_DIR") {
        return Ok(folder.into());
    }
    let home = env::var_os("HOME").ok_or("HOME is not set; set ROCKSDB_LIB_DIR instead")?;
    let cache =
        env::var_os("XDG_CACHE_HOME").map_or(Path::new(&home).join(".cache"), PathBuf::from);
    let folder = cache
        .join("siltstone-bench")
        .join(format!("rocksdb-{VERSION}"));
    let library = folder.join(LIBRARY);
    if !library.exists() {
        fetch(&folder, &library)?;
    }
    check(&library, LIBRARY_SHA256)?;
    Ok(folder)
}

/// Fetches the package with Maven, and unpacks the library from it.
fn fetch(folder: &Path, library: &Path) -> Result<()> {
    if cfg!(not(all(target_os = "linux", target_arch = "x86_64"))) {
        return Err(
            "the package is only known for Linux on x86-64. Set ROCKSDB_LIB_DIR to the \
                    folder of a release library, or build RocksDB with --from-source."
                .into(),
        );
    }
    eprintln!("fetching the release library of RocksDB {VERSION}");
    let unpacked = folder.join("unpacked");
    fs::create_dir_all(&unpacked).map_err(|error| format!("{}: {error}", unpacked.display()))?;
    let artifact = format!("-Dartifact=org.rocksdb:rocksdbjni:{VERSION}:jar:linux64");
    let output = format!("-DoutputDirectory={}", unpacked.display());
    let maven = [
        "-q",
        "-B",
        "dependency:copy",
        artifact.as_str(),
        output.as_str(),
    ];
    run(Command::new("mvn").args(maven), "Debian's package is maven")?;
    let package = unpacked.join(format!("rocksdbjni-{VERSION}-linux64.jar"));
    check(&package, PACKAGE_SHA256)?;
    let mut unzip = Command::new("unzip");
    unzip
        .args(["-o", "-q"])
        .arg(&package)
        .arg(LIBRARY_IN_PACKAGE)
        .arg("-d")
        .arg(&unpacked);
    run(&mut unzip, "Debian's package is unzip")?;
    let found = unpacked.join(LIBRARY_IN_PACKAGE);
    check(&found, LIBRARY_SHA256)?;
    fs::rename(&found, library).map_err(|error| format!("{}: {error}", library.display()))?;
    fs::remove_dir_all(&unpacked).map_err(|error| format!("{}: {error}", unpacked.display()))
}

fn run(command: &mut Command, hint: &str) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status();
    let status = status.map_err(|error| format!("{name} cannot be run: {error}. {hint}."))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{name} failed with {status}")),
    }
}

/// Compares the digest of a file.
fn check(path: &Path, expected: &str) -> Result<()> {
    let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let digest = Sha256::digest(&bytes);
    let found: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    if found == expected {
        return Ok(());
    }
    Err(format!(
        "{}: its SHA-256 is {found}, expected {expected}. Delete the file to fetch it again.",
        path.display()
    ))
}

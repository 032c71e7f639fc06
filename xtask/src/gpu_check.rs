//! `cargo xtask gpu-check`: runs the program that measures the executor of a GPU, or bundles it for
//! a machine that has a GPU and no Rust.
//!
//! A bundle is a folder with the program, a script that runs it, and a few lines on both. The
//! program is linked to the C library of the machine that builds it, because a static one could not
//! load the driver's library; so the other machine needs one that is as new, which is said.
//!
//! A bundle also has the program that merges with RocksDB (`bench-compare/rocksdb-merge`), and the
//! library of RocksDB. If that program cannot be built here, one line says so, and the bundle is
//! without it.

use std::path::{Path, PathBuf};

use crate::Failure;
use crate::steps::{Step, WITH_ROCKSDB, target};

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    /// The folder of the bundle; without one, the program is run here.
    pub bundle: Option<String>,
    /// Arguments of the program.
    pub words: Vec<String>,
}

/// The script of a bundle.
const RUN: &str = include_str!("gpu_check_run.sh");

/// More than this cannot be carried to the machine.
const BUNDLE_BYTES_MAX: u64 = 64 << 20;

/// Where results go if no folder is named, below the root.
const OUT: &str = "target/gpu-check-results";

impl Wish {
    /// Parses the arguments.
    pub fn parse(words: &[&str]) -> Result<Wish, String> {
        let owned = |words: &[&str]| words.iter().map(|word| word.to_string()).collect();
        match words {
            ["--bundle", folder] => Ok(Wish {
                bundle: Some(folder.to_string()),
                words: Vec::new(),
            }),
            ["--bundle", ..] => Err("`--bundle` takes a folder and nothing else".to_string()),
            // Without a folder for the results.
            [] => Ok(Wish {
                bundle: None,
                words: vec![OUT.to_string()],
            }),
            [first, ..] if first.starts_with('-') => Ok(Wish {
                bundle: None,
                words: [owned(&[OUT]), owned(words)].concat(),
            }),
            words => Ok(Wish {
                bundle: None,
                words: owned(words),
            }),
        }
    }
}

/// The process that builds or runs the program.
fn step(wish: &Wish) -> Step {
    let program = "-p siltstone-bench --bin gpu-check";
    if wish.bundle.is_some() {
        return Step::new(&format!("cargo build --release {program}"))
            .with("CARGO_PROFILE_RELEASE_STRIP", "symbols")
            .with("CARGO_PROFILE_RELEASE_DEBUG", "0");
    }
    // The emulated device is a feature, because only this and tests need it.
    let features = match wish.words.iter().any(|word| word == "--emulated") {
        true => " --features emulate",
        false => "",
    };
    let mut step = Step::new(&format!("cargo run --release {program}{features} --"));
    step.args.extend(wish.words.iter().cloned());
    step
}

fn failed(what: impl std::fmt::Display, path: &Path) -> Failure {
    Failure {
        message: format!("{}: {what}", path.display()),
        code: 1,
    }
}

/// The newest version of the C library that a program names: `GLIBC_2.34` is (2, 34).
fn c_library(program: &[u8]) -> Option<(u32, u32)> {
    const NAME: &[u8] = b"GLIBC_";
    let begins = program.windows(NAME.len()).enumerate();
    let begins = begins.filter(|(_, window)| *window == NAME);
    let version = |at: usize| {
        let text = program[at + NAME.len()..].iter().take(12);
        let text: String = text
            .map(|byte| char::from(*byte))
            .take_while(|c| c.is_ascii_digit() || *c == '.')
            .collect();
        let (major, minor) = text.split_once('.')?;
        let minor = minor.split('.').next()?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    };
    begins.filter_map(|(at, _)| version(at)).max()
}

/// The process that builds the program for RocksDB.
fn rocksdb_step() -> Step {
    let build = "build --release --manifest-path bench-compare/Cargo.toml -p rocksdb-merge";
    Step::new(&format!("{WITH_ROCKSDB} {build}"))
        .with("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        .with("CARGO_PROFILE_RELEASE_DEBUG", "0")
}

/// The program for RocksDB, and the library that it needs beside it.
///
/// # Errors
/// Why they cannot be had.
fn rocksdb(root: &Path) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    crate::run(&rocksdb_step(), root)?;
    let program = target(root, "bench-compare/target").join("release/rocksdb-merge");
    let asked = std::process::Command::new(&program)
        .arg("--library")
        .output()
        .map_err(|e| failed(e, &program))?;
    if !asked.status.success() {
        return Err(failed(asked.status, &program));
    }
    let mut files = vec![program];
    let library = String::from_utf8_lossy(&asked.stdout).trim().to_string();
    if !library.is_empty() {
        files.push(PathBuf::from(library));
    }
    let read = |file: PathBuf| {
        let bytes = std::fs::read(&file).map_err(|e| failed(e, &file))?;
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        Ok((name.into_owned(), bytes))
    };
    files.into_iter().map(read).collect()
}

/// The text of a bundle's README.
fn readme(c_library: Option<(u32, u32)>, has_rocksdb: bool) -> String {
    let rocksdb = match has_rocksdb {
        true => {
            "`rocksdb-merge` and `librocksdb.so` are RocksDB's, which merges the same entries\n\
             beside the executors. They need libstdc++ 6; without it, RocksDB is left out.\n\n"
        }
        false => "RocksDB is not in this bundle, so it is left out of the measurements.\n\n",
    };
    let library = match c_library {
        Some((major, minor)) => format!("glibc {major}.{minor} or later"),
        None => "a C library".to_string(),
    };
    format!(
        "# gpu-check\n\n\
         `./run OUT [SECONDS [SANITIZER_SECONDS]]` measures the GPU executor of siltstone on this\n\
         machine and proves its tables equal to those of the host's executor. It needs an NVIDIA\n\
         driver of version 550 or later, {library} ({}), and some\n\
         GB of /dev/shm. It takes about ten minutes, and a few more for compute-sanitizer if that\n\
         is installed. Results are in OUT: gpu-check.json, gpu-check.html, gpu-check.log, and the\n\
         reports of compute-sanitizer. They are written after each section, so a run that is cut\n\
         off leaves what it has measured. The exit code is 1 if a job was not equal to that of\n\
         the host, a section failed, or compute-sanitizer found errors. Without a GPU one line\n\
         says what is missing, and the exit code is 0.\n\n\
         {rocksdb}\
         `./gpu-check --help` lists the program's own options.\n",
        std::env::consts::ARCH
    )
}

/// Runs the program, or makes a bundle.
pub(crate) fn gpu_check(root: &Path, wish: &Wish) -> Result<(), Failure> {
    crate::run(&step(wish), root)?;
    let Some(folder) = &wish.bundle else {
        return Ok(());
    };
    let folder = root.join(folder);
    let built = target(root, "target").join("release/gpu-check");
    let program = std::fs::read(&built).map_err(|e| failed(e, &built))?;
    let mut files = vec![
        ("gpu-check".to_string(), program),
        ("run".to_string(), RUN.as_bytes().to_vec()),
    ];
    let rocksdb = rocksdb(root);
    if let Err(why) = &rocksdb {
        println!("RocksDB is left out of the bundle: {}", why.message);
    }
    let has_rocksdb = rocksdb.is_ok();
    files.extend(rocksdb.into_iter().flatten());
    let library = files.iter().filter_map(|(_, bytes)| c_library(bytes)).max();
    let readme = readme(library, has_rocksdb).into_bytes();
    files.push(("README.md".to_string(), readme));
    std::fs::create_dir_all(&folder).map_err(|e| failed(e, &folder))?;
    let mut all_bytes = 0;
    for (name, bytes) in &files {
        let path = folder.join(name);
        let is_program = name != "README.md";
        std::fs::write(&path, bytes).map_err(|e| failed(e, &path))?;
        set_mode(&path, if is_program { 0o755 } else { 0o644 }).map_err(|e| failed(e, &path))?;
        all_bytes += bytes.len() as u64;
    }
    let version = library.map_or(String::new(), |(major, minor)| {
        format!(", for glibc {major}.{minor} or later")
    });
    let mib = all_bytes as f64 / 1048576.0;
    println!("{} has {mib:.1} MiB{version}", folder.display());
    match all_bytes > BUNDLE_BYTES_MAX {
        true => Err(failed("it has more than 64 MiB", &folder)),
        false => Ok(()),
    }
}

#[cfg(unix)]
fn set_mode(path: &Path, mode: u32) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}

#[cfg(not(unix))]
fn set_mode(_path: &Path, _mode: u32) -> std::io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_passed_on() {
        let typed = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            Wish::parse(&words).map(|wish| step(&wish).to_string())
        };
        let run = "cargo run --release -p siltstone-bench --bin gpu-check";
        for (line, expected) in [
            ("", format!("{run} -- {OUT}")),
            ("/tmp/x --small", format!("{run} -- /tmp/x --small")),
            (
                "--emulated",
                format!("{run} --features emulate -- {OUT} --emulated"),
            ),
        ] {
            assert_eq!(typed(line), Ok(expected));
        }
        let bundle = typed("--bundle /tmp/b").unwrap();
        assert!(bundle.contains("STRIP=symbols CARGO_PROFILE_RELEASE_DEBUG=0 cargo build"));
        assert!(typed("--bundle").is_err() && typed("--bundle a --small").is_err());
    }

    #[test]
    fn the_program_for_rocksdb_is_built_in_its_own_workspace() {
        let step = rocksdb_step().to_string();
        assert!(step.contains("-p bench-setup -- build --release"), "{step}");
        assert!(step.ends_with("-p rocksdb-merge"), "{step}");
        assert!(step.contains("STRIP=symbols"), "{step}");
        // The gate builds the other program only.
        assert!(
            !super::step(&Wish::default())
                .to_string()
                .contains("rocksdb")
        );
    }

    #[test]
    fn the_newest_c_library_is_found() {
        let program = b"\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.4\0GLIBC_PRIVATE\0GLIBC_";
        assert_eq!(c_library(program), Some((2, 34)));
        assert_eq!(c_library(b"nothing"), None);
        for has_rocksdb in [true, false] {
            let readme = |library| readme(library, has_rocksdb);
            assert!(readme(Some((2, 34))).contains("glibc 2.34 or later"));
            assert!(readme(None).lines().all(|line| line.len() <= 100));
            assert_eq!(readme(None).contains("libstdc++ 6"), has_rocksdb);
        }
    }

    #[test]
    fn the_script_is_one_of_the_shell() {
        assert!(RUN.starts_with("#!/bin/sh\n"));
        let checked = std::process::Command::new("sh")
            .args([
                "-n",
                concat!(env!("CARGO_MANIFEST_DIR"), "/src/gpu_check_run.sh"),
            ])
            .status();
        assert!(checked.unwrap().success());
    }

    /// Starts the script beside a program that writes nothing, as on a machine without a GPU.
    #[cfg(unix)]
    #[test]
    fn results_of_an_earlier_run_are_not_those_of_this_one() {
        let folder = std::env::temp_dir().join(format!("gpu-check-run-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = |name: &str| folder.join(name);
        std::fs::write(path("run"), RUN).unwrap();
        std::fs::write(path("gpu-check"), "#!/bin/sh\necho none\nexit 0\n").unwrap();
        set_mode(&path("gpu-check"), 0o755).unwrap();
        std::fs::create_dir(path("out")).unwrap();
        std::fs::write(path("out/gpu-check.json"), "{}").unwrap();
        let run = |sanitizer_seconds: &str| {
            let mut command = std::process::Command::new("sh");
            command.arg(path("run")).arg(path("out"));
            command.args(["1", sanitizer_seconds]).output().unwrap()
        };
        for wrong in ["ten", "1.5"] {
            let ran = run(wrong);
            assert_eq!(ran.status.code(), Some(2), "{wrong:?}");
            assert!(String::from_utf8_lossy(&ran.stderr).contains("a whole number"));
        }
        let ran = run("5");
        assert_eq!(ran.status.code(), Some(0));
        assert_eq!(String::from_utf8_lossy(&ran.stdout), "none\n");
        assert!(path("out/earlier-gpu-check.json").exists());
        assert!(!path("out/gpu-check.json").exists());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

//! Libraries that look like those of NVIDIA (`cuda.c`, `cufile.c`, `nvrtc.c`), which are compiled
//! here. A library is loaded once in a process, so each case is a child: the test program itself,
//! with the fake libraries first in the loader's path, running its test `child`.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::Command;

/// What the children do, by the variable that names it.
pub const CHILD: &str = "SILT_GPU_CHILD";

/// A folder with a library in it.
pub struct Fake {
    pub folder: tempfile::TempDir,
}

/// What a child said.
pub struct Said {
    pub out: String,
    pub err: String,
}

impl Fake {
    /// Compiles the fake library of the driver.
    pub fn compiled(options: &[&str]) -> Fake {
        let folder = tempfile::tempdir().unwrap();
        // The first name that is looked for: a machine may have the true driver, too.
        Fake { folder }.with("cuda.c", "libcuda.so", options)
    }

    /// Compiles the fake library of direct transfers, too.
    pub fn with_files(options: &[&str]) -> Fake {
        Fake::compiled(&[]).with("cufile.c", "libcufile.so.0", options)
    }

    /// Adds a library.
    pub fn with(self, source: &str, library: &str, options: &[&str]) -> Fake {
        let folder = self.folder;
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fake")
            .join(source);
        let compiler = std::env::var("CC").unwrap_or("cc".to_string());
        let status = Command::new(&compiler)
            .args([
                "-std=gnu11",
                "-O1",
                "-Wall",
                "-Werror",
                "-shared",
                "-fPIC",
                "-pthread",
            ])
            .args(options)
            .arg("-o")
            .arg(folder.path().join(library))
            .arg(source)
            .status();
        let status = status.unwrap_or_else(|e| panic!("the C compiler `{compiler}`: {e}"));
        assert!(
            status.success(),
            "`{compiler}` could not compile the fake library"
        );
        Fake { folder }
    }

    /// Files that are no libraries, with all names that are looked for. So a library of the machine
    /// is not found either.
    pub fn none() -> Fake {
        let folder = tempfile::tempdir().unwrap();
        for name in ["cuda", "nvcuda"] {
            for file in cudarc::get_lib_name_candidates(name) {
                std::fs::write(folder.path().join(file), "not a library").unwrap();
            }
        }
        Fake { folder }
    }

    /// Runs a child, which must not crash.
    pub fn run(&self, what: &str, variables: &[(&str, u32)]) -> Said {
        let this: PathBuf = std::env::current_exe().unwrap();
        let output = Command::new(this)
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env(CHILD, what)
            .env("LD_LIBRARY_PATH", self.folder.path())
            .envs(
                variables
                    .iter()
                    .map(|(name, value)| (name, value.to_string())),
            )
            .output()
            .unwrap();
        let said = Said {
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        };
        let status = output.status;
        assert!(
            status.success(),
            "{variables:?}: {status}\n{}\n{}",
            said.out,
            said.err
        );
        said
    }
}

impl Said {
    /// What comes after these words in the first line of output that has them.
    pub fn after(&self, begin: &str) -> Option<&str> {
        // The test runner's own words may come before, in the same line.
        let line = self.out.lines().find_map(|line| line.split_once(begin));
        line.map(|(_, after)| after)
    }

    /// A number of the fake driver's last words.
    pub fn count(&self, name: &str) -> u32 {
        self.count_of("fake", name)
    }

    /// A number of a library's last words.
    pub fn count_of(&self, library: &str, name: &str) -> u32 {
        let begin = format!("{library}: calls=");
        let report = self.err.lines().rfind(|line| line.starts_with(&begin));
        let words = report.unwrap_or_default().split_whitespace();
        let mut values = words.filter_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        let value = values.next().and_then(|value| value.parse().ok());
        value.unwrap_or_else(|| panic!("no {name} in {}", self.err))
    }
}

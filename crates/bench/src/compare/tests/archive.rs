use std::path::{Path, PathBuf};

use super::results::{done, manifest};
use super::small;
use crate::compare::{Outcome, Results, Verdict, page};
use crate::record::Record;

/// Results of two processes, one of which failed.
fn results(folder: &Path) -> Results {
    let mut results = Results::open(&folder.join("results"), manifest(&small())).unwrap();
    let processes = results.plan.processes();
    let record = Record {
        ops_per_s: Some(5.0),
        ..Record::default()
    };
    results.save(processes[0], done(record.clone())).unwrap();
    let failed = Outcome {
        verdict: Verdict::Failed("it hangs".into()),
        ..done(record)
    };
    results.save(processes[1], failed).unwrap();
    results
}

/// The results in one file, and the file.
fn packed(folder: &Path) -> (Results, PathBuf) {
    let (results, path) = (results(folder), folder.join("all.jsonl.zst"));
    results.write_archive(&path).unwrap();
    (results, path)
}

/// A file with this text.
fn file_of(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("other.jsonl.zst");
    std::fs::write(&path, zstd::encode_all(text.as_bytes(), 3).unwrap()).unwrap();
    path
}

fn refused(path: &Path) -> String {
    let error = Results::read(path).expect_err("the file is refused");
    let error = error.to_string();
    assert!(error.contains(&path.display().to_string()), "{error}");
    error
}

#[test]
fn a_file_has_all_results() {
    let folder = tempfile::tempdir().unwrap();
    let (results, path) = packed(folder.path());
    let again = Results::read(&path).unwrap();
    assert_eq!(again.manifest, results.manifest);
    assert!(again.all().eq(results.all()));
    assert_eq!(again.all().filter(|(_, found)| found.is_some()).count(), 2);
    let first = std::fs::read(&path).unwrap();
    again.write_archive(&path).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), first, "the same file");
    assert_eq!(page(&[again]), page(&[results]));
}

#[test]
fn a_file_that_is_cut_off_or_damaged_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (_, path) = packed(folder.path());
    let whole = std::fs::read(&path).unwrap();
    let step = whole.len() / 50 + 1;
    for at in (0..whole.len()).step_by(step) {
        std::fs::write(&path, &whole[..at]).unwrap();
        refused(&path);
        let mut flipped = whole.clone();
        flipped[at] ^= 0x10;
        std::fs::write(&path, flipped).unwrap();
        refused(&path);
    }
}

#[test]
fn a_file_with_other_lines_is_refused_with_the_line() {
    let folder = tempfile::tempdir().unwrap();
    let (_, path) = packed(folder.path());
    let text = zstd::decode_all(&std::fs::read(&path).unwrap()[..]).unwrap();
    let text = String::from_utf8(text).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let with = |lines: &[&str]| file_of(folder.path(), &lines.join("\n"));

    assert!(Results::read(&with(&lines)).is_ok());
    let twice = refused(&with(&[lines[0], lines[1], lines[1]]));
    assert!(
        twice.contains("line 3") && twice.contains("twice"),
        "{twice}"
    );
    let half = &lines[1][..lines[1].len() / 2];
    assert!(refused(&with(&[lines[0], half])).contains("line 2"));
    assert!(refused(&with(&[lines[1]])).contains("line 1"));
    assert!(refused(&with(&[])).contains("expected a manifest"));
    let other = lines[1].replacen("128.", "129.", 1);
    let unknown = refused(&with(&[lines[0], &other]));
    assert!(
        unknown.contains("129.") && unknown.contains("plan"),
        "{unknown}"
    );
}

#[test]
fn a_file_that_unpacks_to_too_much_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("zeros.jsonl.zst");
    let spaces = std::io::Read::take(std::io::repeat(b' '), 300 << 20);
    let file = std::fs::File::create(&path).unwrap();
    zstd::stream::copy_encode(spaces, file, 1).unwrap();
    assert!(refused(&path).contains("unpacked bytes"));
}

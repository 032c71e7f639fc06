//! Carries out tiny plans with the program itself: to the end, interrupted, and with an engine that
//! fails.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use siltstone_bench::compare::{Results, Verdict};

const PROGRAM: &str = env!("CARGO_BIN_EXE_bench-compare");

/// `null` keeps its records in the memory of one process, so it can only be filled.
const TINY: &str = r#"title = "Tiny"

[settings]
key_bytes = 16
engine.memtable_bytes = "256KiB"

[[engine]]
name = "siltstone"

[[engine]]
name = "null"

[[engine]]
name = "leveldb"

[[store]]
name = "tiny"
workload = "fillrandom"
records = 5_000
value_bytes = 100

[[row]]
store = "tiny"
workload = "fillrandom"
pairs = 2

[[row]]
store = "tiny"
workload = "fillseq"

[[row]]
store = "tiny"
workload = "readrandom"
engines = ["siltstone", "leveldb"]
amount = "200ms"
pairs = 2

[[row]]
store = "tiny"
workload = "overwrite"
engines = ["siltstone", "leveldb"]
pairs = 2
"#;

/// A folder with a plan.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn with(plan: &str) -> Place {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tiny.toml"), plan).unwrap();
        Place { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, more: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .arg("run")
            .arg(self.path("tiny.toml"))
            .arg("--results")
            .arg(self.path("results"))
            .args(more)
            .stdin(Stdio::null());
        command
    }

    fn run(&self, more: &[&str]) -> Output {
        self.command(more).output().unwrap()
    }

    fn results(&self) -> Results {
        Results::read(&self.path("results")).unwrap()
    }

    /// The files of finished processes, with their contents.
    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let entries = std::fs::read_dir(self.path("results"));
        let files = entries.into_iter().flatten().flatten();
        let files = files.map(|entry| (entry.file_name().into_string().unwrap(), entry.path()));
        files
            .filter(|(name, _)| name.ends_with(".json") && name != "manifest.json")
            .map(|(name, path)| (name, std::fs::read(path).unwrap()))
            .collect()
    }

    /// Begins a run, and returns when this number of processes has finished.
    fn begin(&self, finished: usize) -> Child {
        let mut command = self.command(&[]);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let start = Instant::now();
        while self.files().len() < finished {
            assert!(child.try_wait().unwrap().is_none(), "it ended too early");
            assert!(start.elapsed() < Duration::from_secs(120), "it hangs");
            std::thread::sleep(Duration::from_millis(5));
        }
        child
    }
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn assert_complete(place: &Place) {
    let results = place.results();
    for (process, outcome) in results.all() {
        let id = results.plan.id(process);
        let outcome = outcome.unwrap_or_else(|| panic!("{id} has not run"));
        let record = outcome
            .record()
            .unwrap_or_else(|| panic!("{id}: {outcome:?}"));
        let settings = results
            .plan
            .settings(&results.plan.rows[process.row], process.engine);
        assert_eq!(record.run_settings().unwrap(), settings, "{id}");
        assert!(record.operations > 0, "{id}");
        assert_eq!(outcome.conditions.probes().count(), 2, "{id}");
        assert!(outcome.conditions.unwritten_bytes.is_some(), "{id}");
    }
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill")
        .args([name, &child.id().to_string()])
        .status();
    assert!(status.unwrap().success());
}

/// The processes that run a workload below this folder.
fn children_at_work(folder: &Path) -> Vec<String> {
    let folder = folder.display().to_string();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines
        .filter(|line| line.contains(" child ") && line.contains(&folder))
        .collect()
}

#[test]
fn a_comparison_that_was_killed_goes_on_and_finds_the_same() {
    let whole = Place::with(TINY);
    let output = whole.run(&[]);
    assert!(output.status.success(), "{}", errors(&output));
    assert_complete(&whole);
    assert!(
        !whole.path("results.stores").exists(),
        "the stores are deleted"
    );
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(
        page.contains("| fillrandom, until idle, kops/s | "),
        "{page}"
    );

    let killed = Place::with(TINY);
    let mut child = killed.begin(8);
    child.kill().unwrap();
    child.wait().unwrap();
    let before = killed.files();
    assert!(before.len() < whole.files().len(), "it was killed too late");
    // The child is killed with its parent, so it does not disturb what runs next.
    let start = Instant::now();
    while !children_at_work(killed.folder.path()).is_empty() {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "the child goes on"
        );
        std::thread::sleep(Duration::from_millis(10));
    }

    let output = killed.run(&[]);
    assert!(output.status.success(), "{}", errors(&output));
    assert_complete(&killed);
    let after = killed.files();
    assert!(after.keys().eq(whole.files().keys()));
    for (name, content) in before {
        assert_eq!(after[&name], content, "{name} ran again");
    }
    let again = killed.run(&[]);
    assert!(again.status.success());
    assert_eq!(killed.files(), after, "there was nothing left to do");
}

#[test]
fn an_interrupted_comparison_says_how_to_go_on() {
    let place = Place::with(TINY);
    let child = place.begin(3);
    signal(&child, "-INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", errors(&output));
    let said = errors(&output);
    assert!(
        said.contains("to go on, give the same command again"),
        "{said}"
    );
    assert!(children_at_work(place.folder.path()).is_empty());
    assert!(place.run(&[]).status.success());
    assert_complete(&place);
}

#[test]
fn an_engine_that_fails_ends_its_row_and_the_others_go_on() {
    let plan = TINY.replace(
        "[\"siltstone\", \"leveldb\"]\namount",
        "[\"siltstone\", \"null\"]\namount",
    );
    let place = Place::with(&plan);
    let output = place.run(&["--engines", "siltstone,null", "--rows", "readrandom"]);
    assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
    let results = place.results();
    let mut verdicts = BTreeMap::new();
    for (process, outcome) in results.all() {
        if let Some(outcome) = outcome {
            verdicts.insert(results.plan.id(process), outcome.verdict.clone());
        }
    }
    let failed = &verdicts["tiny.readrandom.null.1"];
    assert!(
        matches!(failed, Verdict::Failed(why) if why.contains("fill it and read it in one call")),
        "{failed:?}"
    );
    assert!(
        !verdicts.contains_key("tiny.readrandom.null.2"),
        "the row has ended"
    );
    for round in 1..=2 {
        let verdict = &verdicts[&format!("tiny.readrandom.siltstone.{round}")];
        assert!(matches!(verdict, Verdict::Done(_)), "{verdict:?}");
    }
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(
        page.contains("failed (note 1)") && page.contains("fill it and read it in one call"),
        "{page}"
    );
    assert!(page.contains("is not complete"), "{page}");

    let before = place.files();
    place.run(&["--rows", "readrandom", "--engines", "siltstone,null"]);
    assert_eq!(place.files(), before, "a failure is kept");
    place.run(&["--rows", "readrandom", "--engines", "null", "--retry"]);
    assert_ne!(place.files(), before, "--retry runs it again");
}

#[test]
fn a_wrong_plan_is_refused_with_its_position() {
    for (from, to, expected) in [
        ("pairs = 2", "pears = 2", "did you mean `pairs`"),
        ("name = \"leveldb\"", "name = \"levledb\"", "tiny.toml"),
        (
            "workload = \"fillseq\"",
            "workload = \"fillsek\"",
            "fillseq",
        ),
    ] {
        let place = Place::with(&TINY.replacen(from, to, 1));
        let output = place.run(&[]);
        assert_eq!(output.status.code(), Some(1));
        let said = errors(&output);
        assert!(
            said.contains(expected) && said.contains("tiny.toml:"),
            "{said}"
        );
        assert!(!place.path("results").exists());
    }
    let place = Place::with(&TINY.replace("leveldb", "levledb"));
    let said = errors(&place.run(&[]));
    assert!(
        said.contains("unknown engine `levledb`; did you mean `leveldb`"),
        "{said}"
    );
}

#[test]
fn results_of_another_plan_are_not_mixed_in() {
    let place = Place::with(TINY);
    let few = ["--engines", "null", "--rows", "fillseq"];
    assert!(place.run(&few).status.success());
    std::fs::write(place.path("tiny.toml"), TINY.replace("5_000", "6_000")).unwrap();
    let output = place.run(&few);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        errors(&output).contains("another --results"),
        "{}",
        errors(&output)
    );
}

#[test]
fn an_earlier_program_takes_part_if_it_understands_the_tasks() {
    let place = Place::with(TINY);
    let few = [
        "--engines",
        "siltstone,before",
        "--rows",
        "fillseq,readrandom",
    ];
    let with = |program: &str| place.run(&[&few[..], &["--against", program]].concat());
    let output = with("/bin/true");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        errors(&output).contains("it has no such tasks"),
        "{}",
        errors(&output)
    );
    let output = with(PROGRAM);
    assert!(output.status.success(), "{}", errors(&output));
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(page.contains("|  | siltstone | before |"), "{page}");
}

#[test]
fn an_engine_that_cannot_do_a_row_is_left_out_with_a_sentence() {
    let plan = TINY.replace("workload = \"fillseq\"", "workload = \"ingest\"");
    let place = Place::with(&plan);
    let output = place.run(&["--engines", "leveldb", "--rows", "ingest"]);
    assert!(output.status.success(), "{}", errors(&output));
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(page.contains("left out (note 1)"), "{page}");
    assert!(page.contains("the engine cannot ingest tables"), "{page}");
}

#[test]
fn an_engine_without_the_codec_is_left_out_with_a_sentence() {
    let codec = "key_bytes = 16\nengine.compression = \"zstd\"";
    let place = Place::with(&TINY.replace("key_bytes = 16", codec));
    let output = place.run(&["--engines", "null,leveldb", "--rows", "fillseq"]);
    assert!(output.status.success(), "{}", errors(&output));
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(page.contains("left out (note 1)"), "{page}");
    assert!(page.contains("LevelDB has no zstd"), "{page}");
    let results = place.results();
    let mut verdicts = BTreeMap::new();
    for (process, outcome) in results.all() {
        if let Some(outcome) = outcome {
            verdicts.insert(results.plan.id(process), outcome.verdict.clone());
        }
    }
    let left_out = &verdicts["tiny.fillseq.leveldb.1"];
    assert!(matches!(left_out, Verdict::Skipped(_)), "{left_out:?}");
    let done = &verdicts["tiny.fillseq.null.1"];
    assert!(matches!(done, Verdict::Done(_)), "{done:?}");
}

/// `--retry` deletes results, so a second comparison must not come as far as that while another
/// one uses the results or the stores.
#[test]
fn two_comparisons_share_neither_results_nor_stores() {
    let plan = TINY.replace("workload = \"fillseq\"", "workload = \"ingest\"");
    let place = Place::with(&plan);
    let few = ["--engines", "leveldb", "--rows", "ingest"];
    let output = place.run(&few);
    assert!(output.status.success(), "{}", errors(&output));
    let before = place.files();
    assert_eq!(before.len(), 1, "LevelDB was left out, and this is kept");

    let stores = place.path("stores");
    let mark = stores.join("bench-compare.lock");
    std::fs::create_dir(&stores).unwrap();
    std::fs::write(&mark, "").unwrap();
    let folder = stores.display().to_string();
    let again = [&few[..], &["--retry", "--folder", folder.as_str()]].concat();
    for (locked, expected) in [
        (place.path("results"), "give another --results"),
        (mark, "is in use by another comparison"),
    ] {
        let held = std::fs::File::open(&locked).unwrap();
        held.try_lock().unwrap();
        let output = place.run(&again);
        assert_eq!(output.status.code(), Some(1), "{}", locked.display());
        let said = errors(&output);
        assert!(said.contains(expected), "{said}");
        assert_eq!(place.files(), before, "{}", locked.display());
    }
    let output = place.run(&again);
    assert!(output.status.success(), "{}", errors(&output));
}

#[test]
fn an_estimate_runs_nothing() {
    let place = Place::with(TINY);
    let output = place.run(&["--estimate"]);
    assert!(output.status.success());
    assert!(
        errors(&output).contains("All together about"),
        "{}",
        errors(&output)
    );
    assert!(place.files().is_empty());
}

//! Tests the trials: for each planted fault, the rows run until one of them fails.
//!
//! Some faults are a short condition in the sources (module [`sites`]), the others are patches
//! (module [`patches`]). [`tree`] makes a copy of the sources with all patches. The trials are
//! built there once, with the feature `planted`; then `SILT_PLANTED=N` enables number N of the
//! [`list`]. First the stories that guard single rules run in the copy. Then, for each fault, the
//! row that caught it when the page's table was written runs first, in the gate's size. Then all
//! rows run in the order of their cost, in a tenth of the gate's size, then in the gate's, and
//! then, if none of them fails, in the trials'. The result is a table of the row that caught each
//! fault, and after how many seeds, and of the faults that nothing caught.
//!
//! Invariants: number 0, no fault, runs first and must pass every row in the gate's size, so that a
//! failing row means something. Only a row that ends by itself and fails counts: a row that has to
//! be stopped does not count, because in a gate the reason of the hang would not be known.

mod list;
mod patches;
mod sites;
mod tree;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::Failure;
use crate::soak;
use crate::steps::Step;
use list::Fault;

/// The rows in the order of their cost; rows that are not listed here come after them, by name.
const ORDER: [&str; 8] = [
    "option_sets",
    "power_loss",
    "storage_errors",
    "every_call_fails",
    "every_call",
    "repairs",
    "every_call_of_a_reader",
    "every_call_of_a_repair",
];

/// Tests that are not trials: kept seeds, which would be tests written for a fault, and tests that
/// other tests start.
const NO_ROWS: [&str; 2] = ["seeds_that_failed", "child_of_a_history"];

/// The sizes in percent of the gate, and the time limit of a row in seconds.
const SIZES: [(u64, u64); 3] = [(10, 15), (100, 60), (1000, 150)];

/// A row that does not end this long after its time limit is stopped.
const PATIENCE: Duration = Duration::from_secs(60);

/// The page with the table, `docs/reliability.md`.
const PAGE: &str = "docs/reliability.md";
const MARKS: [&str; 2] = ["<!-- planted: begin -->", "<!-- planted: end -->"];

/// A row: a test of one of the binaries.
#[derive(Clone, Debug)]
struct Row {
    name: String,
    binary: PathBuf,
}

/// The result of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    Passed,
    /// It failed after this number of seeds, if it printed the number; with its output.
    Failed(Option<u64>, String),
    Stopped,
}

/// The result for a fault.
struct Found {
    fault: Fault,
    /// The row, its number of seeds, and its output.
    caught: Option<(String, Option<u64>, String)>,
    /// The rows that had to be stopped.
    stopped: Vec<String>,
    seconds: f64,
}

/// The action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Action {
    /// Run the stories, and the rows with each fault.
    #[default]
    Try,
    /// Run the stories alone.
    Stories,
    /// Check whether sites and patches are in order.
    Check,
    /// Lay out a patch to be edited.
    Edit,
    /// Write a patch from the edited sources.
    Renew,
}

/// The arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    pub action: Action,
    /// Only these faults; all faults if there are none.
    pub numbers: Vec<u32>,
    /// The number of rows that may run at the same time.
    pub jobs: usize,
    /// The number of sizes that are used.
    pub sizes: usize,
    /// Whether to write the table to the page.
    pub write: bool,
}

impl Wish {
    /// Parses the arguments.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn parse(words: &[&str]) -> Result<Wish, String> {
        let mut wish = Wish {
            jobs: 1,
            sizes: SIZES.len(),
            ..Wish::default()
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--write" => wish.write = true,
                "--tenth" => wish.sizes = 1,
                "--gate" => wish.sizes = 2,
                "--stories" => wish.action = Action::Stories,
                "--check" => wish.action = Action::Check,
                "--edit" => wish.action = Action::Edit,
                "--renew" => wish.action = Action::Renew,
                "--jobs" => {
                    let jobs = words.next().and_then(|n| n.parse().ok());
                    wish.jobs = jobs
                        .filter(|n| (1..=64).contains(n))
                        .ok_or("--jobs is a whole number from 1 to 64")?;
                }
                number => wish.numbers.push(number.parse().map_err(|_| {
                    format!(
                        "`planted` takes numbers of faults, --tenth, --gate, --jobs N, --write, \
                         --stories, --check, --edit and --renew, found `{number}`"
                    )
                })?),
            }
        }
        if wish.write && !wish.numbers.is_empty() {
            return Err("--write needs the whole table, not single numbers".to_string());
        }
        match wish.action {
            Action::Edit | Action::Renew if wish.numbers.len() != 1 => {
                Err("--edit and --renew take the number of one fault".to_string())
            }
            Action::Check if !wish.numbers.is_empty() => {
                Err("--check looks at all sites and patches, and takes no numbers".to_string())
            }
            _ => Ok(wish),
        }
    }
}

/// Runs the action.
///
/// # Errors
/// If the trials cannot be built, if a row fails without a fault, or if nothing catches a fault; if
/// sites or patches are not in order.
pub fn planted(root: &Path, wish: &Wish) -> Result<(), Failure> {
    let failure = |message: String| Failure { message, code: 1 };
    let all = list::read(root).map_err(failure)?;
    let unknown = wish
        .numbers
        .iter()
        .find(|n| **n != 0 && all.iter().all(|f| f.number != **n));
    if let Some(number) = unknown {
        return Err(failure(format!("there is no planted fault {number}")));
    }
    let chosen = |fault: &&Fault| wish.numbers.is_empty() || wish.numbers.contains(&fault.number);
    let chosen: Vec<Fault> = all.iter().filter(chosen).cloned().collect();
    match (wish.action, &chosen[..]) {
        (Action::Check, _) => {
            let wrong = patches::check(root, &all).map_err(failure)?;
            if !wrong.is_empty() {
                return Err(failure(wrong.join("\n")));
            }
            let patches = patches::read(root).map_err(failure)?.len();
            let sites = all.len() - patches;
            println!("{sites} faults with sites in the sources and {patches} patches: in order");
            Ok(())
        }
        (Action::Edit, [fault]) => {
            println!("{}", patches::edit(root, fault).map_err(failure)?);
            Ok(())
        }
        (Action::Renew, [fault]) => {
            println!("{}", patches::renew(root, fault).map_err(failure)?);
            Ok(())
        }
        (Action::Edit | Action::Renew, _) => Err(failure("there is no fault 0".to_string())),
        (Action::Stories, _) => {
            let tree = tree::make(root).map_err(failure)?;
            stories(root, &tree, wish, &chosen)
        }
        (Action::Try, _) => {
            let tree = tree::make(root).map_err(failure)?;
            stories(root, &tree, wish, &chosen)?;
            try_rows(root, &tree, wish, &chosen)
        }
    }
}

/// The arguments of cargo that build or run the tests of `package` with all faults, in the copy.
fn cargo(root: &Path, package: &str) -> Vec<String> {
    let target = root.join("target");
    let target = target.to_string_lossy();
    let words = [
        "test",
        "--profile",
        "planted",
        "--features",
        "planted",
        "--target-dir",
        &target,
    ];
    words
        .iter()
        .chain(&["-p", package])
        .map(|word| word.to_string())
        .collect()
}

/// Plays the stories that guard single rules, each with its rule switched off.
fn stories(root: &Path, tree: &Path, wish: &Wish, chosen: &[Fault]) -> Result<(), Failure> {
    let mut step = Step::new("cargo");
    step.args = cargo(root, "siltstone");
    step.args
        .extend(["--test", "planted", "--", "--nocapture"].map(String::from));
    if !wish.numbers.is_empty() {
        let names: Vec<&str> = chosen.iter().map(|fault| &fault.name[..]).collect();
        step = step.with("SILT_PLANTED_ONLY", names.join(","));
    }
    crate::run(&step, tree)
}

/// Builds the trials, runs their rows with each of the chosen faults, and reports which are caught.
fn try_rows(root: &Path, tree: &Path, wish: &Wish, chosen: &[Fault]) -> Result<(), Failure> {
    let failure = |message: String| Failure { message, code: 1 };
    let mut words = cargo(root, "siltstone-sim");
    words.extend(["--no-run", "--message-format=json-render-diagnostics"].map(String::from));
    // The binaries are copied, so that another build does not change them.
    let folder = std::env::temp_dir().join(format!("siltstone-planted-{}", std::process::id()));
    let mut binaries = Vec::new();
    std::fs::create_dir_all(&folder).map_err(|e| failure(format!("{}: {e}", folder.display())))?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    for (i, binary) in soak::binaries(tree, &words)?.iter().enumerate() {
        let copy = folder.join(format!("rows-{i}"));
        std::fs::copy(binary, &copy).map_err(|e| failure(format!("{}: {e}", copy.display())))?;
        binaries.push(copy);
    }
    let result = with_binaries((root, tree), wish, chosen, binaries, &folder);
    let _ = std::fs::remove_dir_all(&folder);
    result
}

fn with_binaries(
    (root, tree): (&Path, &Path),
    wish: &Wish,
    chosen: &[Fault],
    binaries: Vec<PathBuf>,
    folder: &Path,
) -> Result<(), Failure> {
    let failure = |message: String| Failure { message, code: 1 };
    let rows = rows(binaries);
    let start = Instant::now();
    if wish.numbers.is_empty() || wish.numbers.contains(&0) {
        without_a_fault(tree, &rows, wish.jobs, folder)?;
    }
    let known = known(&std::fs::read_to_string(root.join(PAGE)).unwrap_or_default());
    let tried: Vec<&Fault> = chosen.iter().filter(|f| f.not_for_rows.is_none()).collect();
    let sizes = &SIZES[..wish.sizes];
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let worker = || {
        while let Some(fault) = tried.get(next.fetch_add(1, Ordering::Relaxed)) {
            let first = known.get(&fault.number);
            let first = first.and_then(|name| rows.iter().find(|row| row.name == *name));
            let one = hunt(tree, (&rows, first, sizes), fault, folder);
            eprintln!("{}", line_of(&one));
            if let Ok(mut found) = found.lock() {
                found.push(one);
            }
        }
    };
    std::thread::scope(|scope| {
        (0..wish.jobs).for_each(|_| {
            scope.spawn(worker);
        });
    });
    let mut found = found.into_inner().unwrap_or_default();
    found.sort_by_key(|f| f.fault.number);
    let table = table(&found, chosen);
    println!("{table}");
    println!(
        "{} of {} faults caught, in {:.0} minutes",
        found.iter().filter(|f| f.caught.is_some()).count(),
        found.len(),
        start.elapsed().as_secs_f64() / 60.0
    );
    if wish.write {
        let page = root.join(PAGE);
        let text = std::fs::read_to_string(&page).map_err(|e| failure(format!("{PAGE}: {e}")))?;
        let text = put(&text, &table)
            .ok_or_else(|| failure(format!("{PAGE} has no place for the table: {MARKS:?}")))?;
        std::fs::write(&page, text).map_err(|e| failure(format!("{PAGE}: {e}")))?;
    }
    let missed: Vec<String> = found
        .iter()
        .filter(|f| f.caught.is_none())
        .map(line_of)
        .collect();
    match missed.is_empty() {
        true => Ok(()),
        false => Err(failure(format!(
            "nothing caught {} of them:\n{}",
            missed.len(),
            missed.join("\n")
        ))),
    }
}

/// No row may fail without a fault.
fn without_a_fault(tree: &Path, rows: &[Row], jobs: usize, folder: &Path) -> Result<(), Failure> {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let worker = || {
        while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
            let start = Instant::now();
            let end = try_row(tree, row, 0, SIZES[1], folder);
            let seconds = start.elapsed().as_secs_f64();
            if end == End::Passed {
                eprintln!("no fault: {}: passed ({seconds:.1} s)", row.name);
            } else {
                eprintln!("no fault: {}: FAILED ({seconds:.1} s)", row.name);
                if let Ok(mut failed) = failed.lock() {
                    failed.push(format!("{} fails without a fault: {end:?}", row.name));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        (0..jobs).for_each(|_| {
            scope.spawn(worker);
        });
    });
    let failed = failed.into_inner().unwrap_or_default();
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Failure {
            message: failed.join("\n"),
            code: 1,
        }),
    }
}

/// For each fault the row that caught it when the page's table was written, which runs first.
fn known(page: &str) -> BTreeMap<u32, String> {
    let cells = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        match cells[..] {
            ["", number, _, _, row, _, _, ""] => Some((
                number.parse().ok()?,
                row.strip_prefix('`')?.strip_suffix('`')?.to_string(),
            )),
            _ => None,
        }
    };
    page.lines().filter_map(cells).collect()
}

/// Runs rows with a fault until one fails: first the one that caught it before, in the gate's size,
/// then all rows in their order.
fn hunt(
    tree: &Path,
    (rows, first, sizes): (&[Row], Option<&Row>, &[(u64, u64)]),
    fault: &Fault,
    folder: &Path,
) -> Found {
    let start = Instant::now();
    let mut stopped = Vec::new();
    let mut caught = None;
    let gate = sizes.iter().find(|size| size.0 == 100);
    let first = first.zip(gate).map(|(row, size)| (row, *size));
    let all = sizes
        .iter()
        .flat_map(|size| rows.iter().map(move |row| (row, *size)));
    for (row, size) in first.into_iter().chain(all) {
        match try_row(tree, row, fault.number, size, folder) {
            End::Passed => {}
            End::Stopped if stopped.contains(&row.name) => {}
            End::Stopped => stopped.push(row.name.clone()),
            End::Failed(seeds, said) => {
                caught = Some((row.name.clone(), seeds, said));
                break;
            }
        }
    }
    Found {
        fault: fault.clone(),
        caught,
        stopped,
        seconds: start.elapsed().as_secs_f64(),
    }
}

/// Runs one row with one fault, in one size.
fn try_row(
    tree: &Path,
    row: &Row,
    number: u32,
    (percent, seconds): (u64, u64),
    folder: &Path,
) -> End {
    let output = folder.join(format!("{number}-{}", row.name));
    let end = run_row(tree, row, number, percent, seconds, &output);
    let _ = std::fs::remove_file(&output);
    end.unwrap_or_else(|error| End::Failed(None, format!("it could not be started: {error}")))
}

fn run_row(
    tree: &Path,
    row: &Row,
    number: u32,
    percent: u64,
    seconds: u64,
    output: &Path,
) -> std::io::Result<End> {
    let file = std::fs::File::create(output)?;
    let mut child = Command::new(&row.binary)
        .args(["--exact", &row.name, "--nocapture", "--test-threads", "1"])
        .env("SILT_PLANTED", number.to_string())
        .env("SILT_STOP", seconds.to_string())
        .env("SILT_SEEDS", percent.to_string())
        .env_remove("SILT_SEED")
        // The end of the message is reported, and a backtrace would take its place.
        .env("RUST_BACKTRACE", "0")
        .current_dir(tree.join("crates/sim"))
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if start.elapsed() > Duration::from_secs(seconds) + PATIENCE {
            child.kill()?;
            child.wait()?;
            return Ok(End::Stopped);
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let said = String::from_utf8_lossy(&std::fs::read(output)?).into_owned();
    Ok(match status.success() {
        true => End::Passed,
        false => end_of(&said),
    })
}

/// The message of a row that failed. A row that failed because something was not reached has not
/// caught the fault.
fn end_of(said: &str) -> End {
    let seeds = said
        .lines()
        .find_map(|line| line.strip_prefix("CAUGHT: ")?.split_once(" after "))
        .and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
    if seeds.is_none() && said.contains("never reached") {
        return End::Passed;
    }
    // The message of a panic is between the line with its location and the line that the trial
    // prints.
    let mut lines = said.lines().skip_while(|l| !l.contains(" panicked at "));
    let message: Vec<&str> = lines
        .by_ref()
        .skip(1)
        .take_while(|l| !l.starts_with("FAILED: ") && !l.starts_with("note: "))
        .take(4)
        .collect();
    let mut message = message.join(" ");
    // A task that computes for ever does not panic: the simulation's watchdog ends the process with
    // one line.
    if message.is_empty() {
        let last = said.lines().find(|l| l.starts_with("simulation seed "));
        message.extend(last);
    }
    End::Failed(
        seeds,
        message
            .chars()
            .rev()
            .take(300)
            .collect::<String>()
            .chars()
            .rev()
            .collect(),
    )
}

/// All rows, the cheapest first.
fn rows(binaries: Vec<PathBuf>) -> Vec<Row> {
    let mut all: BTreeMap<(usize, String), PathBuf> = BTreeMap::new();
    // The crate's unit tests, and those of the engine's files that some binaries contain, are not
    // rows: they lie in modules `tests`.
    for binary in binaries {
        for name in soak::tests_of(&binary) {
            if name.contains("tests::") || NO_ROWS.contains(&&name[..]) {
                continue;
            }
            let place = ORDER.iter().position(|known| *known == name);
            all.insert((place.unwrap_or(ORDER.len()), name), binary.clone());
        }
    }
    all.into_iter()
        .map(|((_, name), binary)| Row { name, binary })
        .collect()
}

fn line_of(found: &Found) -> String {
    let Fault { number, name, .. } = &found.fault;
    let seconds = found.seconds;
    let stopped = match found.stopped.is_empty() {
        true => String::new(),
        false => format!("; stopped: {}", found.stopped.join(", ")),
    };
    match &found.caught {
        Some((row, seeds, said)) => {
            let seeds = seeds.map_or("?".to_string(), |n| n.to_string());
            format!("{number} {name}: {row}, {seeds} seeds, {seconds:.1} s{stopped}: {said}")
        }
        None => format!("{number} {name}: NOT CAUGHT, {seconds:.1} s{stopped}"),
    }
}

/// The table in Markdown.
fn table(found: &[Found], all: &[Fault]) -> String {
    let mut text = String::from(
        "| no. | fault | what it breaks | caught by | after seeds | seconds |\n| --- | --- | --- | \
        --- | --- | --- |\n",
    );
    for Found {
        fault,
        caught,
        seconds,
        ..
    } in found
    {
        let (row, seeds) = match caught {
            Some((row, seeds, _)) => {
                let seeds = seeds.map_or("-".to_string(), |n| n.to_string());
                (format!("`{row}`"), seeds)
            }
            None => ("**nothing**".to_string(), "-".to_string()),
        };
        let Fault {
            number,
            name,
            breaks,
            ..
        } = fault;
        let _ = writeln!(
            text,
            "| {number} | `{name}` | {breaks} | {row} | {seeds} | {seconds:.1} |"
        );
    }
    let mut left = all.iter().filter(|f| f.not_for_rows.is_some()).peekable();
    if left.peek().is_some() {
        text.push_str(
            "\nThese faults are in the build too. No row can catch them, so each has a test of its \
            own:\n\n",
        );
    }
    for fault in left {
        let why = fault.not_for_rows.as_deref().unwrap_or_default();
        let sentences = format!(
            "{} `{}`: {}. {}.",
            fault.number,
            fault.name,
            fault.breaks,
            capitalized(why)
        );
        text.push_str(&list_item(&sentences));
    }
    text
}

fn capitalized(sentence: &str) -> String {
    let mut chars = sentence.chars();
    let first = chars.next().map(|c| c.to_uppercase().to_string());
    first.unwrap_or_default() + chars.as_str()
}

/// An item of a list in Markdown, in lines of at most 100 columns.
fn list_item(words: &str) -> String {
    let (mut text, mut line) = (String::new(), String::from("-"));
    for word in words.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > 100 {
            text.push_str(&line);
            text.push('\n');
            line = String::from(" ");
        }
        line.push(' ');
        line.push_str(word);
    }
    text + &line + "\n"
}

/// Replaces the table between the marks of the page.
fn put(page: &str, table: &str) -> Option<String> {
    let (before, rest) = page.split_once(MARKS[0])?;
    let (_, after) = rest.split_once(MARKS[1])?;
    Some(format!(
        "{before}{}\n{table}\n{}{after}",
        MARKS[0], MARKS[1]
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_have_at_most_100_columns() {
        assert_eq!(capitalized("no row."), "No row.");
        assert_eq!(capitalized(""), "");
        let item = list_item(&"word ".repeat(50));
        assert_eq!(item.split_whitespace().filter(|w| *w == "word").count(), 50);
        assert!(item.lines().all(|l| l.len() <= 100) && item.starts_with("- word"));
        assert!(item.lines().skip(1).all(|l| l.starts_with("  word")));
    }

    #[test]
    fn a_row_says_after_how_many_seeds_it_failed() {
        let said = "thread 'x' panicked at src/a.rs:1:2:\nkey 7: found 1\nFAILED: row, seed \
            3\nCAUGHT: row after 3 seeds\n";
        assert_eq!(end_of(said), End::Failed(Some(3), "key 7: found 1".into()));
        assert_eq!(end_of("row: never reached: [\"x\"]"), End::Passed);
        assert_eq!(end_of("killed"), End::Failed(None, String::new()));
        let endless = "running 1 test\nsimulation seed 2: task 9 has passed no point; aborting\n";
        assert!(matches!(end_of(endless), End::Failed(None, said) if said.contains("no point")));
    }

    #[test]
    fn the_table_says_which_row_to_try_first() {
        let page = concat!(
            "| no. | fault | what it breaks | caught by | after seeds | seconds |\n",
            "| --- | --- | --- | --- | --- | --- |\n",
            "| 7 | `A` | a thing | `power_loss` | 4 | 17.3 |\n",
            "| 8 | `B` | another | **nothing in the gate's size** | - | - |\n",
        );
        assert_eq!(known(page), BTreeMap::from([(7, "power_loss".to_string())]));
    }

    #[test]
    fn the_table_goes_between_its_marks() {
        let page = format!("a\n{}\nold\n{}\nb\n", MARKS[0], MARKS[1]);
        let page = put(&page, "new").unwrap();
        assert_eq!(page, format!("a\n{}\nnew\n{}\nb\n", MARKS[0], MARKS[1]));
        assert_eq!(put("nothing", "new"), None);
    }

    #[test]
    fn wishes_are_read() {
        let wish = Wish::parse(&["3", "--jobs", "2", "7"]).unwrap();
        assert_eq!(
            (wish.numbers, wish.jobs, wish.write),
            (vec![3, 7], 2, false)
        );
        let wish = Wish::parse(&["--edit", "7"]).unwrap();
        assert_eq!((wish.action, wish.numbers), (Action::Edit, vec![7]));
        assert!(Wish::parse(&["--write"]).unwrap().write);
        let wrong = [
            &["x"][..],
            &["--jobs"],
            &["--jobs", "0"],
            &["--write", "1"],
            &["--check", "1"],
            &["--edit"],
            &["--renew", "1", "2"],
        ];
        for wrong in wrong {
            assert!(Wish::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}

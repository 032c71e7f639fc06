//! `silt completions` and `silt man`: the completions of shells, and the text of the manual.
//!
//! Shells and `man` that are not installed are skipped with a message; bash is always tried.

mod common;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{SILT, on, silt};

/// A folder with a store `s` of three keyspaces, and a script of completions.
struct Tried {
    dir: tempfile::TempDir,
}

impl Tried {
    fn new(shell: &str) -> Tried {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("s");
        on("put", &store, &["k", "v"]).fine();
        for name in ["birds", "beetles", "two words"] {
            let args = ["keyspace", "create", store.to_str().unwrap(), "-k", name];
            silt(args).fine();
        }
        common::tools_keyspace(&store, "silt.own");
        let script = silt(["completions", shell]).fine();
        assert!(script.contains("SILT_COMPLETE"), "{script}");
        fs::write(dir.path().join("_silt"), script).unwrap();
        Tried { dir }
    }

    /// Runs a shell in the folder, with `silt` on its path.
    fn run(&self, shell: &str, args: &[&str]) -> Option<Output> {
        let mut path = OsString::from(Path::new(SILT).parent().unwrap());
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let mut command = Command::new(shell);
        command
            .args(args)
            .current_dir(self.dir.path())
            .env("PATH", path);
        command.env("HOME", self.dir.path()).env("TERM", "dumb");
        match command.output() {
            Ok(output) => Some(output),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                eprintln!("there is no {shell} here: its completions are not tried");
                None
            }
            Err(error) => panic!("{shell}: {error}"),
        }
    }
}

/// What is typed, the expected completions, and completions that must be absent.
const TYPED: [(&str, &[&str], &[&str]); 10] = [
    ("silt op", &["options"], &["load"]),
    (
        "silt options s --set mem",
        &["memtable_bytes=", "memory_bytes_max="],
        &["sync="],
    ),
    ("silt options s --unset sy", &["sync"], &["sync="]),
    (
        "silt get s -k b",
        &["birds", "beetles"],
        &["default", "silt.own"],
    ),
    (
        "silt stats s --keyspace ",
        &["birds", "beetles", "default"],
        &["silt.own", "words"],
    ),
    ("silt keyspace drop s -k bi", &["birds"], &["beetles"]),
    ("silt scan s --rev", &["--reverse"], &["--limit"]),
    (
        "silt bench fills",
        &["fillseq", "fillsync"],
        &["fillrandom", "readseq"],
    ),
    ("silt bench paper hp", &["hpdk-fig5"], &["kv-csd-fig7"]),
    ("silt bench --val", &["--value-bytes"], &["--key-bytes"]),
];

fn assert_completed(shell: &str, typed: &str, found: &str, expected: &[&str], absent: &[&str]) {
    let found: Vec<&str> = found
        .lines()
        .map(|l| l.split('\t').next().unwrap().trim())
        .collect();
    for word in expected {
        assert!(
            found.contains(word),
            "{shell}: {typed:?}: {word} in {found:?}"
        );
    }
    for word in absent {
        assert!(
            !found.contains(word),
            "{shell}: {typed:?}: no {word} in {found:?}"
        );
    }
}

#[test]
fn bash_completes_settings_and_keyspaces() {
    let tried = Tried::new("bash");
    // Completions also work while a writer has the store open.
    let store = tried.dir.path().join("s");
    let open = siltstone::Store::open(store, siltstone::Options::default()).unwrap();
    for (typed, expected, absent) in TYPED {
        let words: Vec<&str> = typed.split(' ').collect();
        let (current, before) = (words[words.len() - 1], words[words.len() - 2]);
        let script = format!(
            "source _silt; COMP_WORDS=({}); COMP_CWORD={}; COMP_TYPE=9\n\
             [[ $(complete -p silt) == *' -F _clap_complete_silt silt' ]] || exit 9\n\
             _clap_complete_silt silt '{current}' '{before}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            words.iter().map(|w| format!("'{w}' ")).collect::<String>(),
            words.len() - 1,
        );
        let ended = tried
            .run("bash", &["--norc", "-c", &script])
            .expect("bash is always there");
        let out = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success(), "{typed}: {ended:?}");
        assert_completed("bash", typed, &out, expected, absent);
    }
    open.close().unwrap();
}

#[test]
fn fish_completes_settings_and_keyspaces() {
    let tried = Tried::new("fish");
    for (typed, expected, absent) in TYPED {
        let script = format!("source _silt; complete -C '{typed}'");
        let Some(ended) = tried.run("fish", &["--no-config", "-c", &script]) else {
            return;
        };
        let out = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success(), "{typed}: {ended:?}");
        assert_completed("fish", typed, &out, expected, absent);
    }
}

/// Runs a zsh within a zsh, because zsh completes only on a terminal. At the first tab the script
/// is loaded from a folder of functions. A completion without a choice is then part of the line,
/// which is printed. The terminal echoes what is typed, so the words that the outer zsh waits for
/// are typed in two parts.
#[test]
fn zsh_completes_settings_and_keyspaces() {
    let tried = Tried::new("zsh");
    for (typed, line) in [
        ("silt options s --unset mema", "silt options s --unset mema"),
        (
            "silt options s --unset memt",
            "silt options s --unset memtable_bytes ",
        ),
        (
            "silt options s --set memt",
            "silt options s --set memtable_bytes=",
        ),
        ("silt get s -k bi", "silt get s -k birds "),
        ("silt opt", "silt options "),
    ] {
        let script = format!(
            "zmodload zsh/zpty; zpty w zsh -f -i\n\
             zpty -w w 'PROMPT=; fpath=($PWD $fpath); autoload -U compinit; compinit -D -u'\n\
             zpty -w w 'show() {{ print -r -- \"LI\"\"NE<$BUFFER>\"; exit }}; zle -N show'\n\
             zpty -w w 'bindkey \"^X\" show; print REA\"\"DY'\n\
             zpty -r -m w all '*READY*'\n\
             zpty -n -w w $'{typed}\\t\\x18'\n\
             zpty -r -m w all '*LINE<*>*'; print -r -- \"$all\""
        );
        let Some(ended) = tried.run("zsh", &["-f", "-c", &script]) else {
            return;
        };
        let out = String::from_utf8_lossy(&ended.stdout);
        let found = out
            .split_once("LINE<")
            .and_then(|(_, rest)| rest.split_once('>'));
        let (found, _) = found.unwrap_or_else(|| panic!("{typed}: {ended:?}"));
        assert_eq!(found, line, "{out}");
    }
}

#[test]
fn a_shell_that_is_not_there_and_one_that_asks_wrongly() {
    silt(["completions", "cmd"]).failed(2);
    for shell in ["elvish", "powershell"] {
        assert!(
            silt(["completions", shell])
                .fine()
                .contains("SILT_COMPLETE")
        );
    }
}

/// The pages of all commands.
fn pages() -> (tempfile::TempDir, Vec<PathBuf>) {
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("man1");
    silt(["man", "--folder", pages.to_str().unwrap()]).fine();
    let all = fs::read_dir(&pages)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    (dir, all)
}

#[test]
fn manual_pages_have_whole_synopses_and_examples_line_by_line() {
    let page = silt(["man"]).fine();
    assert!(
        page.contains(".TH silt 1") && page.contains("zebra"),
        "{page}"
    );
    let (dir, all) = pages();
    let page = |name: &str| fs::read_to_string(dir.path().join("man1").join(name)).unwrap();
    for (name, words) in [
        (
            "silt.1",
            &[
                "silt\\-load(1)",
                "[\\fB\\-\\-log\\fR \\fILEVEL\\fR]",
                "\\fICOMMAND\\fR",
            ][..],
        ),
        (
            "silt-options.1",
            &[
                "\\fBsilt options\\fR\n",
                "[\\fB\\-k\\fR|\\fB\\-\\-keyspace\\fR \\fINAME\\fR]\n",
                "[\\fB\\-\\-set\\fR \\fINAME=VALUE\\fR]...\n",
                "[\\fB\\-\\-log\\fR \\fILEVEL\\fR]\n",
                "\n\\fISTORE\\fR\n",
                "\n.nf\nsilt options birds.silt\nsilt options birds.silt \\-\\-set memtable",
            ],
        ),
        (
            "silt-scan.1",
            &[
                "|\\fB\\-\\-limit\\fR \\fICOUNT\\fR]",
                "[\\fB\\-r\\fR|\\fB\\-\\-reverse\\fR]",
            ],
        ),
        ("silt-stats.1", &["|\\fB\\-\\-watch\\fR[=\\fISECONDS\\fR]]"]),
        ("silt-del.1", &["[\\fIKEY\\fR]..."]),
        (
            "silt-keyspace-drop.1",
            &["\\fBsilt keyspace drop\\fR\n", "\n\\fB\\-k\\fR|"],
        ),
    ] {
        let text = page(name);
        for word in words {
            assert!(text.contains(word), "{name}: {word}: {text}");
        }
    }
    assert!(
        !all.iter()
            .any(|p| p.to_string_lossy().contains("demo-writer"))
    );
    assert!(!all.iter().any(|p| p.to_string_lossy().contains("help")));
}

#[test]
fn man_formats_every_page_without_a_complaint() {
    let (_dir, all) = pages();
    for page in all {
        let mut man = Command::new("man");
        man.args(["--warnings", "-l"])
            .arg(&page)
            .env("MANWIDTH", "60")
            .env("LC_ALL", "C.UTF-8");
        let ended = match man.output() {
            Ok(ended) => ended,
            Err(_) => {
                eprintln!("there is no man here: the pages are not formatted");
                return;
            }
        };
        let (out, err) = (
            String::from_utf8_lossy(&ended.stdout),
            String::from_utf8_lossy(&ended.stderr),
        );
        assert!(ended.status.success() && err.is_empty(), "{page:?}: {err}");
        // The lines of examples are not wrapped on a narrow screen.
        let source = fs::read_to_string(&page).unwrap();
        if page.ends_with("silt-options.1") {
            assert!(
                out.contains("--set memtable_bytes=134217728 --set compression=lz4"),
                "{out}"
            );
        }
        assert_eq!(
            source.contains(".SH EXAMPLES"),
            out.contains("EXAMPLES"),
            "{page:?}"
        );
    }
}

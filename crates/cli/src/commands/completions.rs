//! `silt completions`: completions for a shell, which the program itself computes.
//!
//! The script that a shell loads runs `silt` at each tab, with the words typed so far and the
//! shell's name in the environment variable [`VARIABLE`]. So the names of settings are always those
//! of this version, and the keyspaces are those of the store on the line.
//!
//! Invariants: nothing is changed, and no lease is taken, so that keyspaces of a store that a
//! writer has open are completed too. If something cannot be read, there are no completions and no
//! message.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::{Arg, Command, CommandFactory};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::{CompleteEnv, EnvCompleter, Shells};
use siltstone::{Setting, Storages, settings};
use siltstone_bench::experiment::known_names;
use siltstone_bench::settings::{Cache, Compression, Workload};
use siltstone_gpu::{Strategy, Transfer};

use super::is_own;
use crate::args::{Args, CompletionsArgs};
use crate::failure::{Failure, Outcome};
use crate::output::Out;

/// The environment variable that a script sets when it needs completions.
const VARIABLE: &str = "SILT_COMPLETE";

/// Replacements in zsh's script, so that no space is added after a candidate that ends with `=`:
/// its value follows.
const ZSH_UNSPACED: [(&str, &str); 3] = [
    ("local -a other=()", "local -a other=() open=()"),
    (
        "else\n                other+=",
        "elif [[ \"$value\" == *= ]]; then\n                open+=(\"$completion\")\n            \
         else\n                other+=",
    ),
    (
        "_describe -V 'values' other\n",
        "_describe -V 'values' other\n        \
         [[ -n $open ]] && _describe -V 'values' open -S ''\n",
    ),
];

/// Zsh loads a script in a folder of functions at the first tab. These lines complete that tab,
/// too.
const ZSH_AUTOLOAD: &str = "if [ \"$funcstack[1]\" = \"_silt\" ]; then
    _clap_dynamic_completer_silt \"$@\"
fi
";

/// If a script needs completions, prints them and ends the process.
pub fn answer() {
    CompleteEnv::with_factory(command).var(VARIABLE).complete();
}

/// Runs the command: prints the script that a shell loads.
pub fn run(args: &CompletionsArgs) -> Result<Outcome, Failure> {
    let name = args.shell.to_string();
    let all = Shells::builtins();
    let shell: &dyn EnvCompleter = all
        .completer(&name)
        .ok_or_else(|| Failure::Usage(format!("there are no completions for {name}")))?;
    let mut script = Vec::new();
    shell
        .write_registration(VARIABLE, "silt", "silt", "silt", &mut script)
        .map_err(|e| Failure::io("the completions", &e))?;
    let mut script = String::from_utf8_lossy(&script).into_owned();
    if name == "zsh" {
        for (old, new) in ZSH_UNSPACED {
            script = script.replace(old, new);
        }
        script.push_str(ZSH_AUTOLOAD);
    }
    let mut out = Out::new();
    out.raw(script.as_bytes())?;
    out.finish()?;
    Ok(Outcome::Fine)
}

/// The command line, with completers for the values that only the program can find.
fn command() -> Command {
    completed(Args::command())
}

fn completed(command: Command) -> Command {
    // The keyspace that `keyspace create` names does not exist yet.
    let is_create = command.get_name() == "create";
    let with = |arg: Arg, complete: fn(&OsStr) -> Vec<CompletionCandidate>| {
        arg.add(ArgValueCompleter::new(complete))
    };
    command
        .mut_args(move |arg| match arg.get_id().as_str() {
            "keyspace" if !is_create => with(arg, keyspaces),
            "set" => with(arg, |typed| named(typed, "=")),
            "unset" => with(arg, |typed| named(typed, "")),
            "workloads" => with(arg, |typed| words(typed, Workload::NAMES)),
            "figure" => with(arg, |typed| words(typed, &known_names())),
            "engine.compression" => with(arg, |typed| words(typed, Compression::NAMES)),
            "gpu_strategy" => with(arg, |typed| words(typed, Strategy::NAMES)),
            "gpu_transfer" => with(arg, |typed| words(typed, Transfer::NAMES)),
            "cache" => with(arg, |typed| words(typed, Cache::NAMES)),
            _ => arg,
        })
        .mut_subcommands(completed)
}

/// The words that begin with what is typed.
fn words(typed: &OsStr, all: &[&str]) -> Vec<CompletionCandidate> {
    let typed = typed.to_string_lossy();
    let fits = all.iter().filter(|word| word.starts_with(&*typed));
    fits.map(|word| CompletionCandidate::new(*word)).collect()
}

/// The names of settings that begin with what is typed.
fn named(typed: &OsStr, behind: &str) -> Vec<CompletionCandidate> {
    let typed = typed.to_string_lossy();
    let candidate = |setting: &Setting| {
        let meaning = setting
            .meaning()
            .split_inclusive(". ")
            .next()
            .unwrap_or_default();
        CompletionCandidate::new(format!("{}{behind}", setting.name))
            .help(Some(meaning.trim().to_string().into()))
    };
    let fits = |setting: &&Setting| setting.name.starts_with(&*typed);
    settings().iter().filter(fits).map(candidate).collect()
}

/// The keyspaces of the store on the line that begin with what is typed.
fn keyspaces(typed: &OsStr) -> Vec<CompletionCandidate> {
    let typed = typed.to_string_lossy();
    // The shell's words follow `--`; the first one is the program's name.
    let words = env::args_os().skip_while(|word| word != "--").skip(2);
    let store = words
        .map(expanded)
        .find(|path| path.join("CURRENT").is_file());
    let mut names = store.and_then(|store| names_in(&store)).unwrap_or_default();
    names.sort();
    let plain = |name: &&String| {
        name.chars()
            .all(|c| c.is_alphanumeric() || "_-.,:/@%+".contains(c))
    };
    let fits = names
        .iter()
        .filter(|name| name.starts_with(&*typed) && !is_own(name));
    // Other names would have to be quoted, in a different way for each shell.
    fits.filter(plain).map(CompletionCandidate::new).collect()
}

/// The keyspaces that a store's manifest names.
fn names_in(store: &std::path::Path) -> Option<Vec<String>> {
    let storages = Storages::find(store).ok()?;
    let recovered = siltstone::manifest::recover(&*storages.manifest).ok()??;
    let all = recovered.state.keyspaces.values();
    Some(all.map(|keyspace| keyspace.name.clone()).collect())
}

/// A path as a shell reads it: `~/` is the user's home.
fn expanded(word: OsString) -> PathBuf {
    let text = word.to_string_lossy();
    match (text.strip_prefix("~/"), env::var_os("HOME")) {
        (Some(rest), Some(home)) => PathBuf::from(home).join(rest),
        _ => word.into(),
    }
}

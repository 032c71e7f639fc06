//! Which program carries out the workloads of which engine.
//!
//! The engines of this build run in this program, as its child. `before` is another build of this
//! program. Pebble is a Go program.
//!
//! Threading: plain data.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use siltstone_bench::compare::{Contender, Plan};
use siltstone_bench::engine::{Driver, NullDriver, SETTINGS_ERROR, SiltstoneDriver};
use siltstone_bench::settings::{Compression, EngineSettings, Settings, nearest};

use crate::Result;
use crate::child::{PROTOCOL, Task};
use crate::pebble::{self, PEBBLE};
use crate::stores::digest_of_file;

/// The engine that is an earlier siltstone.
const BEFORE: &str = "before";
/// All engines that a build can have.
const KNOWN: [&str; 7] = [
    "siltstone",
    "null",
    "rocksdb",
    "leveldb",
    "lmdb",
    "fjall",
    PEBBLE,
];

/// The drivers of this build.
fn drivers() -> Vec<Box<dyn Driver>> {
    let mut all: Vec<Box<dyn Driver>> = vec![Box::new(SiltstoneDriver), Box::new(NullDriver)];
    all.extend(bench_peers::drivers());
    all
}

/// The driver of this name.
pub fn driver(name: &str) -> Result<Box<dyn Driver>> {
    let found = drivers().into_iter().find(|driver| driver.name() == name);
    found.ok_or_else(|| not_built(name))
}

/// The names of the engines of this build.
pub fn built() -> Vec<String> {
    drivers()
        .iter()
        .map(|driver| driver.name().into())
        .collect()
}

/// Whether some build has the engine.
pub fn is_known(name: &str) -> bool {
    KNOWN.contains(&name)
}

fn not_built(name: &str) -> String {
    format!("this build of bench-compare has no {name}; build it with the feature `{name}`")
}

/// The programs of a comparison.
pub struct Engines {
    /// This program.
    own: PathBuf,
    drivers: Vec<Box<dyn Driver>>,
    before: Option<PathBuf>,
    /// The Go program, or why there is none.
    pebble: std::result::Result<PathBuf, String>,
}

impl Engines {
    /// Finds the programs.
    ///
    /// # Errors
    /// If the plan has an engine that no build has, or if the program of `--against` cannot take
    /// part.
    pub fn find(plan: &Plan, against: Option<&Path>, pebble: Option<&Path>) -> Result<Engines> {
        for engine in &plan.engines {
            if !is_known(&engine.driver) {
                let nearest = nearest(&engine.driver, KNOWN);
                let nearest = nearest.map(|near| format!("; did you mean `{near}`?"));
                return Err(format!(
                    "the plan `{}` has the unknown engine `{}`{}",
                    plan.name,
                    engine.driver,
                    nearest.unwrap_or_default()
                ));
            }
        }
        if let Some(before) = against {
            check_protocol(before)?;
        }
        let own = std::env::current_exe()
            .map_err(|error| format!("the path of this program is not known: {error}"))?;
        Ok(Engines {
            own,
            drivers: drivers(),
            before: against.map(Path::to_path_buf),
            pebble: pebble_program(pebble),
        })
    }

    /// The digests of all programs, by the names of their engines.
    pub fn digests(&self) -> Result<BTreeMap<String, String>> {
        let mut programs = BTreeMap::from([("bench-compare", self.own.clone())]);
        programs.extend(self.before.clone().map(|program| (BEFORE, program)));
        programs.extend(self.pebble.clone().ok().map(|program| (PEBBLE, program)));
        let digest = |(name, path): (&str, PathBuf)| Ok((name.to_string(), digest_of_file(&path)?));
        programs.into_iter().map(digest).collect()
    }

    /// The command that runs a workload of an engine, or a sentence why it cannot take part.
    pub fn command(
        &self,
        engine: &Contender,
        settings: &Settings,
        folder: &Path,
        memory_limit: Option<u64>,
    ) -> std::result::Result<Command, String> {
        let mut command = match engine.driver.as_str() {
            PEBBLE if memory_limit.is_some() => {
                return Err("its program cannot limit its memory".into());
            }
            PEBBLE => {
                let mut command = Command::new(self.pebble.clone()?);
                command.args(pebble::arguments(settings, folder)?);
                command
            }
            name => self.own_command(engine, name, settings, folder, memory_limit)?,
        };
        command.stdin(Stdio::null());
        Ok(command)
    }

    fn own_command(
        &self,
        engine: &Contender,
        name: &str,
        settings: &Settings,
        folder: &Path,
        memory_limit: Option<u64>,
    ) -> std::result::Result<Command, String> {
        let mut drivers = self.drivers.iter();
        let driver = drivers.find(|driver| driver.name() == name);
        let driver = driver.ok_or_else(|| not_built(name))?;
        let refused = settings.check(&driver.abilities());
        refused.map_err(|refusal| refusal.to_string())?;
        if let Some(reason) = refused_codec(&**driver, settings) {
            return Err(reason);
        }
        let program = match (&self.before, engine.name.as_str()) {
            (Some(before), BEFORE) => before,
            _ => &self.own,
        };
        let task = Task {
            protocol: PROTOCOL.into(),
            engine: name.into(),
            folder: folder.into(),
            settings: settings.clone(),
            memory_limit,
        };
        let task = serde_json::to_string(&task).map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.args(["child", &task]);
        Ok(command)
    }
}

/// Why the engine refuses the codec of the settings; `None` if it has the codec. An engine that
/// refuses its settings without a codec too is not left out: the plan has a mistake, with which the
/// engine's process fails.
fn refused_codec(driver: &dyn Driver, settings: &Settings) -> Option<String> {
    let refusal = |engine: &EngineSettings| driver.settings(engine).remove(SETTINGS_ERROR);
    let asked = settings.engine.for_engine(driver.name());
    let without = EngineSettings {
        compression: Compression::None,
        ..asked.clone()
    };
    refusal(&asked).filter(|_| refusal(&without).is_none())
}

/// The Go program, if it is there.
fn pebble_program(given: Option<&Path>) -> std::result::Result<PathBuf, String> {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("pebble/pebble-bench");
    let program = given.map_or(default, Path::to_path_buf);
    if program.is_file() {
        return Ok(program);
    }
    Err(format!(
        "{} is not there; build it with `go run ./build -o pebble-bench` in bench-compare/pebble, \
         or give --pebble PROGRAM",
        program.display()
    ))
}

/// Refuses a program that does not understand the tasks of this one.
fn check_protocol(program: &Path) -> Result<()> {
    let name = program.display();
    let output = Command::new(program)
        .args(["child", "--protocol"])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("--against {name}: {error}"))?;
    let found = String::from_utf8_lossy(&output.stdout).trim().to_string();
    if output.status.success() && found == PROTOCOL {
        return Ok(());
    }
    let found = match found.is_empty() {
        true => "it has no such tasks".to_string(),
        false => format!("it reads `{found}`"),
    };
    Err(format!(
        "--against {name}: this program gives tasks of the form `{PROTOCOL}`, and {found}. Compare \
         with a commit whose bench-compare has the same form, or run both commits' own comparisons"
    ))
}

#[cfg(test)]
#[cfg(feature = "leveldb")]
mod tests {
    use super::*;

    #[test]
    fn a_codec_that_an_engine_lacks_leaves_it_out_and_a_misspelt_setting_does_not() {
        let leveldb = driver("leveldb").unwrap();
        let reason = |pairs: &[(&str, &str)]| {
            let mut settings = Settings::default();
            for (name, text) in pairs {
                settings.set(name, text).unwrap();
            }
            refused_codec(&*leveldb, &settings)
        };
        assert_eq!(reason(&[]), None);
        assert_eq!(
            reason(&[("engine.own.leveldb.compression", "snappy")]),
            None
        );
        let refused = reason(&[("engine.compression", "lz4")]).unwrap();
        assert!(refused.starts_with("LevelDB has no lz4"), "{refused}");
        assert_eq!(reason(&[("engine.own.leveldb.no_such_setting", "1")]), None);
    }
}

//! The store that workloads run on, and the file beside it that says which records it has.
//!
//! A fill makes a store in `<folder>/<engine>` and writes `<folder>/<engine>.population` when it
//! ends. A workload that needs a filled store reads that file, and refuses a store that was filled
//! with other keys or values, or that changed since.
//!
//! The file is a line of JSON (`Header`) and the bits of [`Population::encode`]. While a workload
//! writes, the file is missing, so a run that was cut off leaves a store that no later run takes
//! for a known one.
//!
//! Invariants: a folder is deleted only if a benchmark made it, which a marker beside it says;
//! every workload that writes gives its values a version that the last 15 ones did not use.
//!
//! Threading: one thread opens and closes; the population and the engine are shared.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::error::RunError;
use super::population::Population;
use crate::engine::{Driver, Engine, EngineError};
use crate::settings::{EngineSettings, OWN_PREFIX, Settings, ValueBytes, differing};

/// What decides the keys, the values and the files of a store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Header {
    format: String,
    /// The setting of the fill. Workloads that insert add records behind these.
    records: u64,
    key_bytes: u32,
    /// Whether keys are those of YCSB.
    hashed_keys: bool,
    value_bytes: ValueBytes,
    compression_ratio: f64,
    seed: u64,
    /// The version of the engine's library.
    engine_version: String,
    /// The settings of the engine that decide what its files look like.
    shape: BTreeMap<String, String>,
    /// The workloads that have written to the store, in their order.
    workloads: Vec<String>,
    /// All records have lower numbers. Workloads that insert begin here.
    end: u64,
    /// The raw bytes of the keys and values of all records.
    live_bytes: u64,
}

const FORMAT: &str = "siltstone bench population 2";

impl Header {
    /// The header of a store that these settings fill.
    fn of(driver: &dyn Driver, settings: &Settings) -> Header {
        Header {
            format: FORMAT.into(),
            records: settings.records,
            key_bytes: settings.key_bytes,
            hashed_keys: settings.workload.has_hashed_keys(),
            value_bytes: settings.value_bytes,
            compression_ratio: settings.compression_ratio,
            seed: settings.seed,
            engine_version: driver.version(),
            shape: settings.engine.shape(driver.name()),
            workloads: Vec::new(),
            end: 0,
            live_bytes: 0,
        }
    }

    /// The name of the first setting that differs, with what the file says and what is asked for.
    fn difference(&self, asked: &Header) -> Option<(String, String, String)> {
        let (own, other) = (self.data(), asked.data());
        differing(&own, &other).or_else(|| differing(&self.shape, &asked.shape))
    }

    /// What decides keys and values, and the version of the engine, as texts by name.
    fn data(&self) -> BTreeMap<String, String> {
        let all = [
            ("records", self.records.to_string()),
            ("key_bytes", self.key_bytes.to_string()),
            ("hashed_keys", self.hashed_keys.to_string()),
            ("value_bytes", self.value_bytes.to_string()),
            ("compression_ratio", self.compression_ratio.to_string()),
            ("seed", self.seed.to_string()),
            ("the engine's version", self.engine_version.clone()),
        ];
        all.map(|(name, value)| (name.to_string(), value)).into()
    }
}

/// The keys and values of a store that a benchmark left in a folder.
#[derive(Debug, Clone, PartialEq)]
pub struct Data(Header);

/// What the store of an engine below `folder` has; `None` if no run can read one there.
pub fn known(driver: &dyn Driver, folder: &Path) -> Option<Data> {
    let file = Fixture::population_file(&Fixture::folder_of(driver, folder));
    let mut line = Vec::new();
    let mut reader = io::BufReader::new(fs::File::open(file).ok()?);
    reader.read_until(b'\n', &mut line).ok()?;
    let header: Header = serde_json::from_slice(&line).ok()?;
    (header.format == FORMAT).then_some(Data(header))
}

impl Data {
    /// Whether keys are those of YCSB.
    pub fn has_hashed_keys(&self) -> bool {
        self.0.hashed_keys
    }

    /// Gives settings that decide keys, values and files those of the store, unless the user gave
    /// them.
    pub fn apply(&self, settings: &mut Settings, is_given: impl Fn(&str) -> bool) {
        let made = &self.0;
        let is_free = |name: &str| !is_given(name);
        // What was given stays, and a run refuses it if it differs.
        if is_free("records") {
            settings.records = made.records;
        }
        if is_free("key_bytes") {
            settings.key_bytes = made.key_bytes;
        }
        if is_free("value_bytes") {
            settings.value_bytes = made.value_bytes;
        }
        if is_free("compression_ratio") {
            settings.compression_ratio = made.compression_ratio;
        }
        if is_free("seed") {
            settings.seed = made.seed;
        }
        let own = settings.engine.own.clone();
        for (name, value) in &made.shape {
            let is_own_given = name.strip_prefix(OWN_PREFIX).is_some_and(|name| {
                let is_of_one = |own: &String| own.split_once('.').is_some_and(|(_, n)| n == name);
                own.contains_key(name) || own.keys().any(is_of_one)
            });
            if is_free(name) && !is_own_given {
                // A name that is no setting any more stays out; the run says what differs.
                let _ = settings.set(name, value);
            }
        }
    }
}

/// A store that is open, with the records that it has.
pub struct Fixture<'a> {
    driver: &'a dyn Driver,
    folder: PathBuf,
    /// Shared with a thread that waits until it is idle.
    engine: Option<Arc<Box<dyn Engine>>>,
    /// What the file beside the store says, or will say.
    header: Header,
    /// The records of the store.
    pub population: Population,
    /// The number of the next record that is inserted.
    pub end: u64,
    /// The raw bytes of the keys and values of all records.
    pub live_bytes: u64,
}

pub(super) fn system(during: impl Into<String>) -> impl FnOnce(io::Error) -> RunError {
    let during = during.into();
    move |error| RunError::System { during, error }
}

/// Deletes a file; it may be missing.
fn remove_file(file: &Path) -> Result<(), RunError> {
    match fs::remove_file(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(system(format!("delete {}", file.display()))),
    }
}

/// Deletes a folder; it may be missing.
fn remove_folder(folder: &Path) -> Result<(), RunError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(system(format!("delete {}", folder.display()))),
    }
}

/// Whether there is nothing in a folder, or no folder.
fn is_empty(folder: &Path) -> Result<bool, RunError> {
    match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(system(format!("read {}", folder.display()))(error)),
        Ok(mut entries) => Ok(entries.next().is_none()),
    }
}

/// What lies beside every folder that a benchmark made.
fn marker(folder: &Path) -> PathBuf {
    let mut name = folder.as_os_str().to_owned();
    name.push(".bench");
    name.into()
}

/// Deletes a folder that a benchmark made, and marks it as one that it will make. A folder with
/// anything else in it is refused.
fn clear_folder(folder: &Path) -> Result<(), RunError> {
    let marker = marker(folder);
    if !is_empty(folder)? && !marker.exists() {
        return Err(RunError::Store {
            folder: folder.display().to_string(),
            what: "the folder has files that no benchmark made, and the run would delete them; \
                   give another --folder"
                .into(),
        });
    }
    remove_folder(folder)?;
    let text = "The folder of this name was made by a benchmark, which may delete it.\n";
    fs::write(&marker, text).map_err(system(format!("write {}", marker.display())))
}

/// A folder beside the store that a run needs for a while.
#[derive(Debug)]
pub(super) struct Scratch(PathBuf);

impl Scratch {
    /// Takes the folder of the store with this ending. What an earlier run left there is deleted;
    /// anything else is refused.
    ///
    /// # Errors
    /// If the folder has files that no benchmark made, or cannot be deleted.
    pub fn beside(store: &Path, ending: &str) -> Result<Scratch, RunError> {
        let folder = store.with_extension(ending);
        clear_folder(&folder)?;
        Ok(Scratch(folder))
    }

    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// Deletes it.
    ///
    /// # Errors
    /// If it cannot be deleted.
    pub fn remove(self) -> Result<(), RunError> {
        remove_folder(&self.0)?;
        remove_file(&marker(&self.0))
    }
}

impl<'a> Fixture<'a> {
    /// The folder of the engine's store below `folder`.
    pub fn folder_of(driver: &dyn Driver, folder: &Path) -> PathBuf {
        folder.join(driver.name())
    }

    fn population_file(folder: &Path) -> PathBuf {
        folder.with_extension("population")
    }

    /// Makes an empty store below `folder`. A store that a benchmark made there before is deleted;
    /// anything else is refused.
    ///
    /// # Errors
    /// If the folder has files that no benchmark made, or cannot be deleted; those of the engine.
    pub fn create(
        driver: &'a dyn Driver,
        folder: &Path,
        settings: &Settings,
    ) -> Result<Fixture<'a>, RunError> {
        let store = Fixture::folder_of(driver, folder);
        // The marker of the store is named after the engine: `siltstone.bench`.
        clear_folder(&store)?;
        remove_file(&Fixture::population_file(&store))?;
        for beside in driver
            .folders(&store)
            .iter()
            .filter(|folder| **folder != store)
        {
            clear_folder(beside)?;
        }
        fs::create_dir_all(&store).map_err(system(format!("create {}", store.display())))?;
        let mut fixture = Fixture {
            driver,
            folder: store,
            engine: None,
            header: Header::of(driver, settings),
            population: Population::new(),
            end: 0,
            live_bytes: 0,
        };
        fixture.open(&settings.engine)?;
        Ok(fixture)
    }

    /// Deletes the store below `folder` and the files beside it, if a benchmark made it.
    ///
    /// # Errors
    /// If something cannot be deleted.
    pub fn delete(driver: &dyn Driver, folder: &Path) -> Result<(), RunError> {
        let store = Fixture::folder_of(driver, folder);
        let marker = store.with_extension("bench");
        if !marker.exists() {
            return Ok(());
        }
        let _ = fs::remove_file(Fixture::population_file(&store));
        for beside in driver
            .folders(&store)
            .iter()
            .filter(|folder| **folder != store)
        {
            if self::marker(beside).exists() {
                remove_folder(beside)?;
                remove_file(&self::marker(beside))?;
            }
        }
        remove_folder(&store)?;
        fs::remove_file(&marker).map_err(system(format!("delete {}", marker.display())))
    }

    /// Opens the store that a fill left below `folder`.
    ///
    /// # Errors
    /// If there is none, if it was filled with other settings or changed since; those of the
    /// engine.
    pub fn existing(
        driver: &'a dyn Driver,
        folder: &Path,
        settings: &Settings,
    ) -> Result<Fixture<'a>, RunError> {
        let store = Fixture::folder_of(driver, folder);
        let file = Fixture::population_file(&store);
        let refuse = |what: String| RunError::Store {
            folder: store.display().to_string(),
            what,
        };
        let bytes = fs::read(&file).map_err(|error| {
            refuse(format!(
                "`{}` reads a store that a fill has made, and {} cannot be read ({error}); run \
                 fillrandom, fillseq or ycsb-load first, with the same settings",
                settings.workload,
                file.display(),
            ))
        })?;
        let damaged = || {
            refuse(format!(
                "{} is damaged; fill the store again",
                file.display()
            ))
        };
        let at = bytes.iter().position(|b| *b == b'\n').ok_or_else(damaged)?;
        let header: Header = serde_json::from_slice(&bytes[..at]).map_err(|_| damaged())?;
        if header.format != FORMAT {
            return Err(damaged());
        }
        let asked = Header::of(driver, settings);
        if let Some((name, made, asked)) = header.difference(&asked) {
            return Err(refuse(format!(
                "the store was filled with {name} = {made}, and this run has {asked}; give the \
                 same settings, or fill the store again"
            )));
        }
        let population = Population::decode(&bytes[at + 1..]).map_err(|_| damaged())?;
        let mut fixture = Fixture {
            driver,
            folder: store.clone(),
            engine: None,
            population,
            end: header.end,
            live_bytes: header.live_bytes,
            header,
        };
        fixture.open(&settings.engine)?;
        Ok(fixture)
    }

    /// The open engine.
    ///
    /// # Errors
    /// If an earlier close or open failed.
    pub fn engine(&self) -> Result<&dyn Engine, RunError> {
        let engine = self.engine.as_ref().ok_or_else(|| self.not_open())?;
        Ok(&***engine)
    }

    /// The open engine, for another thread. The store cannot be closed before it is given back.
    pub(super) fn share(&self) -> Result<Arc<Box<dyn Engine>>, RunError> {
        self.engine.clone().ok_or_else(|| self.not_open())
    }

    fn not_open(&self) -> RunError {
        RunError::Store {
            folder: self.folder.display().to_string(),
            what: "the store is not open, because it could not be opened or closed before".into(),
        }
    }

    /// The copy of the store in another folder, which is not open.
    pub(super) fn copied(&self, folder: &Path) -> Fixture<'a> {
        Fixture {
            driver: self.driver,
            folder: folder.to_path_buf(),
            engine: None,
            header: self.header.clone(),
            population: Population::new(),
            end: self.end,
            live_bytes: self.live_bytes,
        }
    }

    /// How many workloads have written to the store before this one.
    pub fn generation(&self) -> u64 {
        self.header.workloads.len() as u64
    }

    /// An error of the engine.
    pub(super) fn engine_error(&self, error: EngineError) -> RunError {
        RunError::Engine {
            engine: self.driver.name().into(),
            error,
        }
    }

    /// The driver of the engine.
    pub fn driver(&self) -> &'a dyn Driver {
        self.driver
    }

    /// All folders with files of the store.
    pub fn folders(&self) -> Vec<PathBuf> {
        let mut all = self.driver.folders(&self.folder);
        all.retain(|folder| *folder == self.folder || folder.is_dir());
        all
    }

    /// The folder of the store.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Opens the store with these settings, after closing it if it is open.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn open(&mut self, settings: &EngineSettings) -> Result<(), RunError> {
        self.close()?;
        let settings = settings.for_engine(self.driver.name());
        let opened = self.driver.open(&self.folder, &settings);
        let engine = opened.map_err(|error| self.engine_error(error))?;
        self.engine = Some(Arc::new(engine));
        Ok(())
    }

    /// Closes the store, if it is open.
    ///
    /// # Errors
    /// Those of the engine. A store is left open on which another thread still waits.
    pub fn close(&mut self) -> Result<(), RunError> {
        let Some(engine) = self.engine.take() else {
            return Ok(());
        };
        let engine = Arc::try_unwrap(engine).map_err(|_| RunError::Store {
            folder: self.folder.display().to_string(),
            what: "the store cannot be closed, because its engine has not returned from a call"
                .into(),
        })?;
        engine.close().map_err(|error| self.engine_error(error))
    }

    /// Called before a workload writes: until [`Fixture::save`], nobody knows what the store has.
    ///
    /// # Errors
    /// If the file cannot be deleted.
    pub fn begin_writing(&self) -> Result<(), RunError> {
        remove_file(&Fixture::population_file(&self.folder))
    }

    /// Writes which records the store has.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&mut self, settings: &Settings) -> Result<(), RunError> {
        let file = Fixture::population_file(&self.folder);
        self.header.workloads.push(settings.workload.to_string());
        let header = Header {
            end: self.end,
            live_bytes: self.live_bytes,
            ..self.header.clone()
        };
        let write = || {
            let mut bytes = serde_json::to_vec(&header)?;
            bytes.push(b'\n');
            bytes.extend(self.population.encode()?);
            let new = file.with_extension("population.new");
            let mut out = fs::File::create(&new)?;
            out.write_all(&bytes)?;
            out.sync_all()?;
            fs::rename(&new, &file)
        };
        write().map_err(system(format!("write {}", file.display())))
    }
}

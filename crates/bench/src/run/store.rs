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
//! Threading: one thread opens and closes; the population is shared.

use std::fs;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::RunError;
use super::population::Population;
use crate::engine::{Driver, Engine};
use crate::settings::{EngineSettings, Settings, ValueBytes};

/// What decides the keys and values of a store.
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
    /// All records have lower numbers. Workloads that insert begin here.
    end: u64,
    /// The raw bytes of the keys and values of all records.
    live_bytes: u64,
}

const FORMAT: &str = "siltstone bench population 1";

impl Header {
    fn of(settings: &Settings, end: u64, live_bytes: u64) -> Header {
        Header {
            format: FORMAT.into(),
            records: settings.records,
            key_bytes: settings.key_bytes,
            hashed_keys: settings.workload.has_hashed_keys(),
            value_bytes: settings.value_bytes,
            compression_ratio: settings.compression_ratio,
            seed: settings.seed,
            end,
            live_bytes,
        }
    }

    fn kind_of_keys(&self) -> &'static str {
        match self.hashed_keys {
            true => "hashed",
            false => "decimal",
        }
    }

    /// The name of the first setting that differs, with what the file says.
    fn difference(&self, other: &Header) -> Option<(&'static str, String, String)> {
        let text = |value: &dyn std::fmt::Display| value.to_string();
        let all = [
            ("records", text(&self.records), text(&other.records)),
            ("key_bytes", text(&self.key_bytes), text(&other.key_bytes)),
            (
                "keys",
                text(&self.kind_of_keys()),
                text(&other.kind_of_keys()),
            ),
            (
                "value_bytes",
                text(&self.value_bytes),
                text(&other.value_bytes),
            ),
            (
                "compression_ratio",
                text(&self.compression_ratio),
                text(&other.compression_ratio),
            ),
            ("seed", text(&self.seed), text(&other.seed)),
        ];
        all.into_iter().find(|(_, own, other)| own != other)
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

    /// Gives settings that decide keys and values those of the store, unless the user gave them.
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
    }
}

/// A store that is open, with the records that it has.
pub struct Fixture<'a> {
    driver: &'a dyn Driver,
    folder: PathBuf,
    engine: Option<Box<dyn Engine>>,
    opened_with: EngineSettings,
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

/// Deletes a folder; it may be missing.
pub(super) fn remove_folder(folder: &Path) -> Result<(), RunError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(system(format!("delete {}", folder.display()))),
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
        let marker = store.with_extension("bench");
        let is_empty = fs::read_dir(&store).map_or(true, |mut entries| entries.next().is_none());
        if !is_empty && !marker.exists() {
            return Err(RunError::Store {
                folder: store.display().to_string(),
                what: "the folder has files that no benchmark made, and a fill begins with an \
                       empty store; give another --folder"
                    .into(),
            });
        }
        let _ = fs::remove_file(Fixture::population_file(&store));
        remove_folder(&store)?;
        fs::create_dir_all(&store).map_err(system(format!("create {}", store.display())))?;
        let text = "This store was made by a benchmark, which may delete it.\n";
        fs::write(&marker, text).map_err(system(format!("write {}", marker.display())))?;
        let mut fixture = Fixture {
            driver,
            folder: store,
            engine: None,
            opened_with: settings.engine.clone(),
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
        let asked = Header::of(settings, header.end, header.live_bytes);
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
            opened_with: settings.engine.clone(),
            population,
            end: header.end,
            live_bytes: header.live_bytes,
        };
        fixture.open(&settings.engine)?;
        Ok(fixture)
    }

    /// The open engine.
    ///
    /// # Errors
    /// If an earlier close or open failed.
    pub fn engine(&self) -> Result<&dyn Engine, RunError> {
        self.engine.as_deref().ok_or_else(|| RunError::Store {
            folder: self.folder.display().to_string(),
            what: "the store is not open, because it could not be opened or closed before".into(),
        })
    }

    /// The driver of the engine.
    pub fn driver(&self) -> &'a dyn Driver {
        self.driver
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
        let opened = self.driver.open(&self.folder, settings);
        self.engine = Some(opened.map_err(|error| RunError::Engine {
            engine: self.driver.name().into(),
            error,
        })?);
        self.opened_with = settings.clone();
        Ok(())
    }

    /// The settings with which the store is open.
    pub fn opened_with(&self) -> &EngineSettings {
        &self.opened_with
    }

    /// Closes the store, if it is open.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn close(&mut self) -> Result<(), RunError> {
        let Some(engine) = self.engine.take() else {
            return Ok(());
        };
        engine.close().map_err(|error| RunError::Engine {
            engine: self.driver.name().into(),
            error,
        })
    }

    /// Called before a workload writes: until [`Fixture::save`], nobody knows what the store has.
    ///
    /// # Errors
    /// If the file cannot be deleted.
    pub fn begin_writing(&self) -> Result<(), RunError> {
        let file = Fixture::population_file(&self.folder);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(system(format!("delete {}", file.display()))(error))
            }
            _ => Ok(()),
        }
    }

    /// Writes which records the store has.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, settings: &Settings) -> Result<(), RunError> {
        let file = Fixture::population_file(&self.folder);
        let header = Header::of(settings, self.end, self.live_bytes);
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

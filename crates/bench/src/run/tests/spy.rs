//! A driver that writes down what is asked of its engine, which is siltstone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::engine::{
    Abilities, Driver, Engine, Entries, Figures, Level, Result, Session, SiltstoneDriver, Write,
};
use crate::measure::files;
use crate::settings::EngineSettings;

/// One call.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Event {
    Open(EngineSettings),
    Close,
    Flush,
    Wait,
    Put {
        key: Vec<u8>,
        value: Vec<u8>,
        sync: bool,
    },
    Get(Vec<u8>),
}

/// What the engine does besides what it is asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) enum Habit {
    #[default]
    None,
    /// It is idle this long after each time it is asked.
    IdleLater(Duration),
    /// It never becomes idle.
    NeverIdle,
    /// A put takes this long.
    SlowPuts(Duration),
    /// It writes a table after this number of puts since it was opened.
    FlushAfter(usize),
    /// It leaves one more table when it is closed.
    TableAtClose,
    /// Every get panics.
    PanicsInGet,
    /// The first session panics.
    PanicsInSession,
}

#[derive(Debug, Default)]
pub(super) struct Spy {
    pub events: Arc<Mutex<Vec<Event>>>,
    pub habit: Habit,
    pub version: &'static str,
    /// When it last said that it is idle.
    pub idle_since: Arc<Mutex<Option<Instant>>>,
    /// The part of the files in the page cache before each open.
    pub cached_at_open: Mutex<Vec<Option<f64>>>,
}

impl Spy {
    pub fn with(habit: Habit) -> Spy {
        Spy {
            habit,
            ..Spy::default()
        }
    }

    /// What was asked since the last call of this.
    pub fn events(&self) -> Vec<Event> {
        std::mem::take(&mut self.events.lock().unwrap())
    }
}

struct Engaged {
    inner: Box<dyn Engine>,
    events: Arc<Mutex<Vec<Event>>>,
    habit: Habit,
    folder: PathBuf,
    puts: Mutex<usize>,
    sessions: AtomicUsize,
    idle_since: Arc<Mutex<Option<Instant>>>,
}

impl Engaged {
    fn note(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }
}

struct SpySession<'a>(&'a Engaged, Box<dyn Session + 'a>);

impl Driver for Spy {
    fn name(&self) -> &str {
        "siltstone"
    }
    fn version(&self) -> String {
        self.version.into()
    }
    fn abilities(&self) -> Abilities {
        SiltstoneDriver.abilities()
    }
    fn settings(&self, settings: &EngineSettings) -> BTreeMap<String, String> {
        SiltstoneDriver.settings(settings)
    }
    fn open(&self, folder: &Path, settings: &EngineSettings) -> Result<Box<dyn Engine>> {
        let cached = files::cached_part(folder).ok().flatten();
        self.cached_at_open.lock().unwrap().push(cached);
        let engaged = Engaged {
            inner: SiltstoneDriver.open(folder, settings)?,
            events: self.events.clone(),
            habit: self.habit,
            folder: folder.to_path_buf(),
            puts: Mutex::new(0),
            sessions: AtomicUsize::new(0),
            idle_since: self.idle_since.clone(),
        };
        engaged.note(Event::Open(settings.clone()));
        Ok(Box::new(engaged))
    }
}

impl Engine for Engaged {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        let is_first = self.sessions.fetch_add(1, Ordering::Relaxed) == 0;
        if is_first && self.habit == Habit::PanicsInSession {
            panic!("a test lets a session panic");
        }
        Ok(Box::new(SpySession(self, self.inner.session()?)))
    }
    fn wait_until_idle(&self) -> Result<bool> {
        self.note(Event::Wait);
        if self.habit == Habit::NeverIdle {
            // The thread is left behind, and ends with the process.
            loop {
                std::thread::park();
            }
        }
        self.inner.wait_until_idle()
    }
    fn idle_since(&self) -> Result<Option<Instant>> {
        self.wait_until_idle()?;
        let later = match self.habit {
            Habit::IdleLater(later) => later,
            _ => Duration::ZERO,
        };
        let since = Instant::now() + later;
        *self.idle_since.lock().unwrap() = Some(since);
        Ok(Some(since))
    }
    fn flush(&self) -> Result<()> {
        self.note(Event::Flush);
        self.inner.flush()
    }
    fn compact(&self) -> Result<()> {
        self.inner.compact()
    }
    fn ingest(&self, next: &mut dyn FnMut(&mut Vec<u8>, &mut Vec<u8>) -> bool) -> Result<()> {
        self.inner.ingest(next)
    }
    fn figures(&self) -> Figures {
        self.inner.figures()
    }
    fn levels(&self) -> Vec<Level> {
        self.inner.levels()
    }
    fn close(self: Box<Self>) -> Result<()> {
        self.note(Event::Close);
        let (folder, habit) = (self.folder, self.habit);
        self.inner.close()?;
        if habit == Habit::TableAtClose {
            std::fs::write(folder.join("late.sst"), [7; 5000]).unwrap();
        }
        Ok(())
    }
}

impl Session for SpySession<'_> {
    fn write(&mut self, writes: &[Write<'_>], sync: bool) -> Result<()> {
        for write in writes {
            if let Write::Put(key, value) = write {
                self.0.note(Event::Put {
                    key: key.to_vec(),
                    value: value.to_vec(),
                    sync,
                });
            }
        }
        let mut puts = self.0.puts.lock().unwrap();
        *puts += writes.len();
        match self.0.habit {
            Habit::SlowPuts(pause) => std::thread::sleep(pause),
            Habit::FlushAfter(count) if *puts == count => self.0.inner.flush()?,
            _ => {}
        }
        self.1.write(writes, sync)
    }
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        if self.0.habit == Habit::PanicsInGet {
            panic!("a test lets a get panic");
        }
        self.0.note(Event::Get(key.to_vec()));
        self.1.get(key, found)
    }
    fn scan(&mut self, from: Option<&[u8]>, entries: &mut Entries<'_>) -> Result<()> {
        self.1.scan(from, entries)
    }
    fn scan_reverse(&mut self, from: Option<&[u8]>, entries: &mut Entries<'_>) -> Result<()> {
        self.1.scan_reverse(from, entries)
    }
}

//! The parent's side: it starts victims, receives their messages, kills them, and lets a process
//! that does not know the expected state verify the store.
//!
//! [`Bench`] is one folder with a store, the state that it must hold, and a file for the standard
//! error of victims. [`Victim`] is a running victim in a process group of its own, which dies when
//! it is dropped.
//!
//! Invariant: every wait ends: a victim that sends nothing and does not end is a hang, which is a
//! failure that shows its messages.
//!
//! Threading: one thread reads each victim's pipe; everything else runs on the caller's thread.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::expected::Expected;
use super::messages::{Dump, Message, listen, read_dump};
use super::script::Script;
use super::victim::{NOT_OPEN, Order};
use crate::coverage::Coverage;

/// The maximum time that any process may take to its next step.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The folder of a seed's store.
pub struct Bench {
    /// The program.
    program: PathBuf,
    /// The folder of everything that belongs to the seed.
    folder: PathBuf,
    /// Deletes the folder at the end, if it was created for this seed.
    _temporary: Option<tempfile::TempDir>,
    /// The seed.
    pub seed: u64,
    /// The store.
    pub store: PathBuf,
    /// The expected contents.
    pub expected: Expected,
    /// Counts of what was reached.
    pub coverage: Coverage,
    error_files: u32,
    /// A folder for files that must not lie on the disk that is filled.
    elsewhere: tempfile::TempDir,
}

/// A running victim.
pub struct Victim {
    child: Child,
    messages: Receiver<Result<Message, String>>,
    /// Closing it asks the victim to end.
    pub stdin: Option<ChildStdin>,
    errors: PathBuf,
    started: Instant,
}

/// The result of listening.
#[derive(Debug)]
pub enum Received {
    /// A message, or something that is not a message.
    Message(Result<Message, String>),
    /// The pipe has ended.
    End,
    /// There was no message in time.
    Silence,
}

impl Drop for Victim {
    fn drop(&mut self) {
        // An error means that it has ended already.
        self.signal(Signal::KILL);
        let _ = self.child.wait();
    }
}

impl Victim {
    /// Sends a signal to the process and all of its children.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(pid, signal);
        }
    }

    /// The time since it was started.
    pub fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Its next message.
    pub fn next(&self, patience: Duration) -> Received {
        match self.messages.recv_timeout(patience) {
            Ok(message) => Received::Message(message),
            Err(RecvTimeoutError::Disconnected) => Received::End,
            Err(RecvTimeoutError::Timeout) => Received::Silence,
        }
    }

    /// The last part of its standard error.
    pub fn errors(&self) -> String {
        let text = std::fs::read(&self.errors).unwrap_or_default();
        String::from_utf8_lossy(&text[text.len().saturating_sub(6000)..]).into_owned()
    }

    /// Whether it panicked, in any thread.
    fn panicked(&self) -> bool {
        let text = std::fs::read(&self.errors).unwrap_or_default();
        String::from_utf8_lossy(&text).contains("panicked at")
    }

    /// Waits for its end. It must have been asked to end, or be dead.
    fn wait(&mut self) -> Result<ExitStatus, String> {
        let start = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) if start.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(None) => return Err(format!("it does not end: {}", self.errors())),
                Err(e) => return Err(e.to_string()),
            }
        }
    }
}

impl Bench {
    /// A bench in a folder of its own, or within `folder`.
    ///
    /// # Panics
    /// If the folder cannot be created.
    pub fn new(seed: u64, program: &Path, folder: Option<&Path>) -> Bench {
        let temporary = folder
            .is_none()
            .then(|| tempfile::tempdir().expect("a folder for the store"));
        let folder = match (&temporary, folder) {
            (Some(t), _) => t.path().to_path_buf(),
            (None, Some(folder)) => folder.to_path_buf(),
            (None, None) => unreachable!("one of them is there"),
        };
        Bench {
            program: program.to_path_buf(),
            store: folder.join("store"),
            folder,
            _temporary: temporary,
            seed,
            expected: Expected::new(),
            coverage: Coverage::default(),
            error_files: 0,
            elsewhere: tempfile::tempdir().expect("a folder for messages"),
        }
    }

    /// Orders for the store.
    pub fn order(&self, cycle: u64) -> Order {
        Order::new(&self.store, self.seed, cycle)
    }

    /// A file of the seed beside the store.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn error_file(&mut self) -> std::io::Result<(PathBuf, std::fs::File)> {
        self.error_files += 1;
        // It must not lie on the disk that is being filled.
        let place = match self._temporary {
            Some(_) => self.folder.clone(),
            None => self.elsewhere.path().to_path_buf(),
        };
        let name = format!(
            "victim-{}-{}-{}.err",
            std::process::id(),
            self.seed,
            self.error_files
        );
        let path = place.join(name);
        Ok((path.clone(), std::fs::File::create(path)?))
    }

    /// The folder in which the victim builds the tables that it ingests.
    pub fn outside(&self) -> PathBuf {
        self.store.with_extension("outside")
    }

    /// Starts a victim that works. `before` is a command that is put before the program
    /// (`strace ...`).
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(
        &mut self,
        order: &Order,
        script: Script,
        before: &[String],
    ) -> Result<Victim, String> {
        // Files that an ingest of the previous victim left.
        let _ = std::fs::remove_dir_all(self.outside());
        self.expected.begin(script);
        let failed = |e: std::io::Error| format!("starting the victim: {e}");
        let (errors, file) = self.error_file().map_err(failed)?;
        let mut words = before.to_vec();
        words.push(self.program.display().to_string());
        words.extend(order.words("run"));
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(file)
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let (pipe, stdin) = (child.stdout.take(), child.stdin.take());
        let (sender, messages) = channel();
        let victim = Victim {
            child,
            messages,
            stdin,
            errors,
            started: Instant::now(),
        };
        let pipe = pipe.ok_or("the victim has no pipe")?;
        std::thread::spawn(move || {
            let listened = listen(pipe, |message| {
                let _ = sender.send(Ok(message));
            });
            if let Err(e) = listened {
                let _ = sender.send(Err(e));
            }
        });
        Ok(victim)
    }

    /// Receives all remaining messages, after a kill or a request to end, and returns the process's
    /// status.
    ///
    /// # Errors
    /// It does not end, panicked, or sent something impossible.
    pub fn end(&mut self, victim: &mut Victim) -> Result<ExitStatus, String> {
        loop {
            match victim.next(PATIENCE) {
                Received::Message(message) => self.expected.receive(message?)?,
                Received::End => break,
                Received::Silence => return Err(self.hang(victim, "does not end")),
            }
        }
        let status = victim.wait()?;
        self.expected.died();
        if victim.panicked() {
            return Err(format!("a panic: {}", victim.errors()));
        }
        Ok(status)
    }

    /// The report of a hang. The victim's threads are shown if the system allows it without a
    /// debugger.
    pub fn hang(&self, victim: &Victim, what: &str) -> String {
        format!(
            "HANG: the victim {what} for {} s; it is {} s old and said {:?}; {}",
            PATIENCE.as_secs(),
            victim.age().as_secs(),
            self.expected.said(),
            victim.errors()
        )
    }

    /// Ends a victim that was killed.
    ///
    /// # Errors
    /// As [`Bench::end`]; it had ended by itself.
    pub fn killed(&mut self, victim: &mut Victim) -> Result<(), String> {
        let status = self.end(victim)?;
        match status.signal() {
            Some(9) => Ok(()),
            _ => Err(format!(
                "the victim ended by itself: {status}; {}",
                victim.errors()
            )),
        }
    }

    /// Ends a victim that was asked to end.
    ///
    /// # Errors
    /// As [`Bench::end`]; it did not end successfully.
    pub fn ended_well(&mut self, victim: &mut Victim) -> Result<(), String> {
        drop(victim.stdin.take());
        let status = self.end(victim)?;
        match status.code() {
            Some(0) => Ok(()),
            _ => Err(format!("the victim ended: {status}; {}", victim.errors())),
        }
    }

    /// Runs another job of the program to its end, and returns its status, its output, and its
    /// errors.
    ///
    /// # Errors
    /// It cannot be started, does not end, or panicked.
    pub fn other(
        &mut self,
        what: &str,
        order: &Order,
    ) -> Result<(ExitStatus, Vec<u8>, String), String> {
        let mut victim = self.start_other(what, order)?;
        let pipe = victim.child.stdout.take();
        let mut pipe = pipe.ok_or("no pipe")?;
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let read = pipe.read_to_end(&mut bytes).map(|_| bytes);
            let _ = sender.send(read.map_err(|e| e.to_string()));
        });
        let bytes = match receiver.recv_timeout(PATIENCE) {
            Ok(bytes) => bytes?,
            Err(_) => {
                return Err(format!(
                    "HANG: `victim {what}` has not ended after {} s: {}",
                    PATIENCE.as_secs(),
                    victim.errors()
                ));
            }
        };
        let status = victim.wait()?;
        if victim.panicked() {
            return Err(format!("`victim {what}` panicked: {}", victim.errors()));
        }
        Ok((status, bytes, victim.errors()))
    }

    /// Starts another job of the program; the caller takes the pipe of its output.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_other(&mut self, what: &str, order: &Order) -> Result<Victim, String> {
        let failed = |e: std::io::Error| format!("starting `victim {what}`: {e}");
        let (errors, file) = self.error_file().map_err(failed)?;
        let child = Command::new(&self.program)
            .args(order.words(what))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file)
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let (_, messages) = channel();
        Ok(Victim {
            child,
            messages,
            stdin: None,
            errors,
            started: Instant::now(),
        })
    }

    /// The contents that a new process finds in the store, or `None` with the reason if the store
    /// could not be opened.
    ///
    /// # Errors
    /// A wrong answer, a hang, a panic.
    pub fn dump(&mut self, order: &Order) -> Result<Result<Dump, String>, String> {
        let (status, bytes, errors) = self.other("verify", order)?;
        match status.code() {
            Some(0) => read_dump(&bytes)
                .map(Ok)
                .ok_or_else(|| "the verifier's dump is torn".to_string()),
            Some(NOT_OPEN) => Ok(Err(errors)),
            _ => Err(format!("the verifier ended: {status}; {errors}")),
        }
    }

    /// Lets a new process open the store for writing, which is a recovery, and verify it.
    ///
    /// # Errors
    /// Something is lost or wrong, or keeps the store from being opened.
    pub fn verify(&mut self, order: &Order) -> Result<(), String> {
        let dump = self.dump(order)??;
        self.expected.compare(&dump)?;
        self.coverage.add("verified.by_a_writer");
        Ok(())
    }

    /// The same by a reader, which changes nothing, so that the next open does the recovery.
    ///
    /// # Errors
    /// As [`Bench::verify`].
    pub fn verify_by_reader(&mut self, order: &Order) -> Result<(), String> {
        let reading = Order {
            reader: true,
            ..order.clone()
        };
        let dump = self.dump(&reading)?.map_err(|e| format!("a reader: {e}"))?;
        self.expected
            .compare(&dump)
            .map_err(|e| format!("as a reader sees it: {e}"))?;
        self.coverage.add("verified.by_a_reader");
        Ok(())
    }

    /// Checks the store as `silt check` does.
    ///
    /// # Errors
    /// It finds damage.
    pub fn check(&mut self, order: &Order) -> Result<(), String> {
        let (status, _, errors) = self.other("check", order)?;
        match status.code() {
            Some(0) => {
                self.coverage.add("checked");
                Ok(())
            }
            _ => Err(format!("check: {status}; {errors}")),
        }
    }
}

/// The result of a seed, or its failure with the information that is needed to examine it.
///
/// # Panics
/// With the failure.
pub fn settled(bench: Bench, row: &str, result: Result<(), String>, what: &str) -> Coverage {
    let mut bench = bench;
    if let Err(e) = result {
        let seed = bench.seed;
        // The folder is kept for examination.
        let kept = match bench._temporary.take() {
            Some(folder) => folder.keep().display().to_string(),
            // A small file system disappears with the test.
            None => copied(&bench.folder)
                .unwrap_or_else(|e| format!("(not kept: {e}) {}", bench.folder.display())),
        };
        panic!("{row}, seed {seed}, {what}: {e}\nthe store: {kept}/store");
    }
    let mut coverage = std::mem::take(&mut bench.coverage);
    coverage.merge(&bench.expected.take_coverage());
    coverage
}

/// Copies a folder with everything below it to one that stays, and returns its path.
fn copied(from: &Path) -> std::io::Result<String> {
    fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
        std::fs::create_dir_all(to)?;
        for entry in std::fs::read_dir(from)? {
            let entry = entry?;
            let to = to.join(entry.file_name());
            match entry.file_type()?.is_dir() {
                true => copy(&entry.path(), &to)?,
                // The file that fills the disk is not part of the store.
                false if entry.file_name() == "ballast" => {}
                false => std::fs::copy(entry.path(), to).map(drop)?,
            }
        }
        Ok(())
    }
    let to = tempfile::tempdir()?.keep();
    copy(from, &to)?;
    Ok(to.display().to_string())
}

//! RocksDB's merges beside those of the executors.
//!
//! A program of its own does them: `rocksdb-merge` of `bench-compare`, which is linked to RocksDB.
//! `gpu-check` starts it if it lies beside its own file. Requests and replies are lines of JSON on
//! its standard input and output. The program makes the entries itself, with [`Merge::entries`], so
//! both sides merge the same ones.
//!
//! Invariant: a program that is missing, that says something else than is expected, or that does
//! not answer in time costs its rows and nothing else.
//!
//! Threading: one thread asks. One more reads the answers, until the program ends.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use siltstone_table::compress::Codec;

use super::world::{Shape, World, runs_of};

/// The name of the program.
pub const PROGRAM: &str = "rocksdb-merge";

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(180);

/// What is merged: runs with keys of 16 bytes and values of one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Merge {
    /// The length of values.
    pub value_bytes: usize,
    /// The number of runs.
    pub runs: usize,
    /// Whether inputs and outputs are compressed with lz4.
    pub is_lz4: bool,
    /// The entries of each run.
    pub entries: u64,
    /// What decides keys and values.
    pub seed: u64,
}

/// What gets the keys and values of a run.
pub type Take<'a> = dyn FnMut(&[u8], &[u8]) -> Result<(), String> + 'a;

/// A request to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Write the runs.
    Write(Merge),
    /// Merge them with this number of threads.
    Merge(usize),
}

/// An answer of the program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The runs are written, by this version of RocksDB.
    Written(String),
    /// They were merged.
    Merged(Merged),
    /// The request failed, for this reason.
    Failed(String),
}

/// A merge that was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Merged {
    /// How long it took, in seconds.
    pub wall_s: f64,
    /// The processor time of the program meanwhile, in seconds.
    pub cpu_s: f64,
    /// The bytes of its inputs.
    pub read_bytes: u64,
    /// The bytes of its outputs.
    pub written_bytes: u64,
    /// The entries of its outputs.
    pub entries: u64,
}

impl Merge {
    /// The merge of the inputs of a world; `None` if it has more than plain entries.
    pub(super) fn of(world: &World) -> Option<Merge> {
        let Shape {
            value_bytes,
            runs,
            codec,
            ..
        } = world.shape;
        let merge = Merge {
            value_bytes,
            runs,
            is_lz4: codec == Codec::Lz4,
            entries: world.entries,
            seed: world.seed,
        };
        let is_plain = merge.shape().has_the_inputs_of(&world.shape);
        is_plain.then_some(merge)
    }

    fn shape(&self) -> Shape {
        Shape {
            codec: match self.is_lz4 {
                true => Codec::Lz4,
                false => Codec::None,
            },
            ..Shape::plain(self.value_bytes, self.runs)
        }
    }

    /// Gives the keys and values of a run to `take`, in ascending order of keys. Of equal keys, the
    /// run with the largest number has the newest value.
    ///
    /// # Errors
    /// The first one of `take`.
    pub fn entries(&self, run: usize, take: &mut Take<'_>) -> Result<(), String> {
        let shape = self.shape();
        let runs = runs_of(&shape, self.entries, self.seed);
        let Some(run) = runs.get(run) else {
            return Err(format!("there is no run {run}; {} runs are", self.runs));
        };
        run.each(&mut run.random(), &mut |entry| take(entry.key, entry.value))
    }
}

/// Answers requests until there are no more. For a program that merges.
///
/// # Errors
/// A line that is no request, or an answer that cannot be written.
pub fn serve(
    requests: impl BufRead,
    mut replies: impl Write,
    mut answer: impl FnMut(Request) -> Result<Reply, String>,
) -> Result<(), String> {
    for line in requests.lines() {
        let line = line.map_err(|e| format!("standard input: {e}"))?;
        let request = serde_json::from_str(&line).map_err(|e| format!("`{line}`: {e}"))?;
        let reply = answer(request).unwrap_or_else(Reply::Failed);
        let reply = serde_json::to_string(&reply).map_err(|e| e.to_string())?;
        writeln!(replies, "{reply}")
            .and_then(|()| replies.flush())
            .map_err(|e| format!("standard output: {e}"))?;
    }
    Ok(())
}

/// The program while it runs. It ends when this is dropped.
pub(super) struct Peer {
    child: Child,
    requests: Option<ChildStdin>,
    replies: Receiver<String>,
    /// What the program has written.
    folder: tempfile::TempDir,
}

impl Peer {
    /// The file of the program that lies beside that of this one.
    pub fn beside_this_program() -> PathBuf {
        let own = std::env::current_exe().unwrap_or_default();
        own.with_file_name(PROGRAM)
    }

    /// Starts the program, which writes into a new folder below `parent`.
    ///
    /// # Errors
    /// Why it cannot be used, in one line.
    pub fn start(program: &Path, parent: &Path) -> Result<Peer, String> {
        if !program.is_file() {
            return Err(format!("{} is not there", program.display()));
        }
        let folder = tempfile::Builder::new()
            .prefix("siltstone-gpu-check-")
            .tempdir_in(parent)
            .map_err(|e| format!("no folder can be made in {}: {e}", parent.display()))?;
        let mut child = Command::new(program)
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("{}: {e}", program.display()))?;
        let (requests, answers) = (child.stdin.take(), child.stdout.take());
        let (sender, replies) = mpsc::channel();
        std::thread::spawn(move || {
            let lines = answers.map(|answers| BufReader::new(answers).lines());
            for line in lines.into_iter().flatten().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Peer {
            child,
            requests,
            replies,
            folder,
        })
    }

    fn ask(&mut self, request: Request) -> Result<Reply, String> {
        let line = serde_json::to_string(&request).map_err(|e| e.to_string())?;
        let ended = || format!("{PROGRAM} has ended");
        let requests = self.requests.as_mut().ok_or_else(ended)?;
        writeln!(requests, "{line}").map_err(|_| ended())?;
        let reply = match self.replies.recv_timeout(PATIENCE) {
            Ok(reply) => reply,
            Err(RecvTimeoutError::Disconnected) => return Err(ended()),
            Err(RecvTimeoutError::Timeout) => {
                let seconds = PATIENCE.as_secs();
                return Err(format!("{PROGRAM} has not answered for {seconds} s"));
            }
        };
        match serde_json::from_str(&reply) {
            Ok(Reply::Failed(why)) => Err(why),
            Ok(reply) => Ok(reply),
            Err(_) => Err(format!("{PROGRAM} has answered `{reply}`")),
        }
    }

    /// Has the runs written. Returns the version of RocksDB.
    ///
    /// # Errors
    /// The program's, in one line.
    pub fn write(&mut self, merge: Merge) -> Result<String, String> {
        match self.ask(Request::Write(merge))? {
            Reply::Written(version) => Ok(version),
            other => Err(format!("{PROGRAM} has answered `{other:?}`")),
        }
    }

    /// Has the runs merged by this number of threads.
    ///
    /// # Errors
    /// The program's, in one line.
    pub fn merge(&mut self, threads: usize) -> Result<Merged, String> {
        match self.ask(Request::Merge(threads))? {
            Reply::Merged(merged) => Ok(merged),
            other => Err(format!("{PROGRAM} has answered `{other:?}`")),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It ends with its input. One that hangs is killed, before its folder is deleted.
        self.requests = None;
        if self.replies.recv_timeout(Duration::from_secs(5)) != Err(RecvTimeoutError::Disconnected)
        {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(self.folder.path());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merge() -> Merge {
        Merge {
            value_bytes: 20,
            runs: 3,
            is_lz4: false,
            entries: 50,
            seed: 4,
        }
    }

    #[test]
    fn entries_ascend_and_are_those_of_the_world() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::write(folder.path(), merge().shape(), 3 * 50 * 48, 4).unwrap();
        assert_eq!(Merge::of(&world), Some(merge()));
        let mut keys = std::collections::BTreeSet::new();
        for run in 0..3 {
            let mut last = Vec::new();
            let mut count = 0;
            let take = &mut |key: &[u8], value: &[u8]| {
                assert!(key > last.as_slice());
                assert_eq!((key.len(), value.len()), (16, 20));
                last = key.to_vec();
                keys.insert(last.clone());
                count += 1;
                Ok(())
            };
            merge().entries(run, take).unwrap();
            assert_eq!(count, 50);
        }
        assert!(merge().entries(3, &mut |_, _| Ok(())).is_err());
        assert!(keys.len() < 150, "no key is in two runs");
        assert_eq!(world.kept(), keys.len() as u64);
        // Versions and the like are not what the program makes.
        let other = Shape {
            versions_share: 4,
            ..merge().shape()
        };
        let world = World::write(folder.path(), other, 3000, 4).unwrap();
        assert_eq!(Merge::of(&world), None);
    }

    #[test]
    fn requests_are_answered_and_other_lines_end_the_program() {
        let lines = [Request::Write(merge()), Request::Merge(2)];
        let lines = lines.map(|line| serde_json::to_string(&line).unwrap());
        let mut out = Vec::new();
        serve(
            lines.join("\n").as_bytes(),
            &mut out,
            |request| match request {
                Request::Write(found) => {
                    assert_eq!(found, merge());
                    Ok(Reply::Written("10.0".into()))
                }
                Request::Merge(threads) => Err(format!("{threads} threads")),
            },
        )
        .unwrap();
        let out = String::from_utf8(out).unwrap();
        assert_eq!(out, "{\"written\":\"10.0\"}\n{\"failed\":\"2 threads\"}\n");
        let error = serve("{}\n".as_bytes(), Vec::new(), |_| unreachable!()).unwrap_err();
        assert!(error.starts_with("`{}`: "), "{error}");
    }

    /// A program of the shell, which answers like one that merges.
    #[cfg(unix)]
    fn started(script: &str) -> (tempfile::TempDir, Result<Peer, String>) {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join(PROGRAM);
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&program, mode).unwrap();
        let peer = Peer::start(&program, folder.path());
        (folder, peer)
    }

    #[cfg(unix)]
    #[test]
    fn a_program_is_asked_and_what_it_says_is_checked() {
        let merged =
            r#"{"merged":{"wall_s":2.0,"cpu_s":1.5,"read_bytes":9,"written_bytes":8,"entries":7}}"#;
        let script = format!(
            "read a; echo '{{\"written\":\"10.4\"}}'\nread b; echo '{merged}'\n\
             read c; echo '{{\"failed\":\"the disk is full\"}}'\nread d; echo 'no JSON'"
        );
        let (_folder, peer) = started(&script);
        let mut peer = peer.unwrap();
        assert_eq!(peer.write(merge()).unwrap(), "10.4");
        let found = peer.merge(1).unwrap();
        assert_eq!((found.wall_s, found.entries), (2.0, 7));
        assert_eq!(peer.merge(1).unwrap_err(), "the disk is full");
        assert!(peer.merge(1).unwrap_err().contains("`no JSON`"));
        let ended = peer.merge(1).unwrap_err();
        assert_eq!(ended, "rocksdb-merge has ended");
        let (_folder, peer) = started("exit 3");
        assert!(peer.unwrap().write(merge()).is_err());
        let missing = Peer::start(Path::new("/nowhere/rocksdb-merge"), Path::new("/tmp"));
        let why = missing.err().unwrap();
        assert_eq!(why, "/nowhere/rocksdb-merge is not there");
    }
}

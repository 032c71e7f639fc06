//! The messages of a victim to its parent through a pipe, and the dump of a store by a verifier.
//!
//! A message has 40 bytes. It is written by one system call and is shorter than `PIPE_BUF`, so
//! pipes keep it in one piece. What was written before a kill can still be read after it. A dump is
//! length-prefixed bytes with a mark at its end.
//!
//! Invariant: messages are written by `writev`, which no storage of siltstone calls, so faults that
//! are injected into the store's calls do not affect them.
//!
//! Threading: a pipe may be written from any thread.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};

use siltstone::ErrorKind;

use crate::model::Pairs;

/// The length of a message.
pub const MESSAGE_BYTES: usize = 40;

/// The health of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// It takes writes.
    #[default]
    Good,
    /// There is no space.
    NoSpace,
    /// It takes no writes until it is reopened.
    Poisoned,
}

/// The classes of errors in messages.
const KINDS: [ErrorKind; 11] = [
    ErrorKind::InvalidArgument,
    ErrorKind::NotFound,
    ErrorKind::Locked,
    ErrorKind::Corruption,
    ErrorKind::Unsupported,
    ErrorKind::NoSpace,
    ErrorKind::Poisoned,
    ErrorKind::KeyspaceDropped,
    ErrorKind::Closed,
    ErrorKind::ReadOnly,
    ErrorKind::Io,
];

/// A message of a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// The store is open.
    Opened {
        /// The time, in microseconds since 1970.
        at_us: u64,
        /// The number of log records that were replayed.
        replayed: u64,
    },
    /// The keyspaces that all lanes share exist; work begins.
    Ready,
    /// An operation begins.
    Begun {
        /// The lane.
        lane: usize,
        /// Its number.
        n: u64,
        /// Whether the lane's own keyspace exists.
        own: bool,
    },
    /// It was acknowledged.
    Done {
        /// The lane.
        lane: usize,
        /// Its number.
        n: u64,
    },
    /// It returned an error.
    Failed {
        /// The lane.
        lane: usize,
        /// Its number.
        n: u64,
        /// Whether it is known to have had no effect.
        sure: bool,
        /// The error's class.
        kind: ErrorKind,
    },
    /// The state of the store.
    State {
        /// Running jobs.
        jobs: u64,
        /// The health.
        health: Health,
        /// Whether a job has failed, and the store reports the error.
        job_error: bool,
        /// The number of flushes since the open.
        flushes: u32,
        /// The number of compactions since the open.
        compactions: u32,
        /// Bytes appended to the log since the open.
        log_bytes: u64,
        /// The number of ingests since the open.
        ingests: u32,
        /// The number of flushes to the second location of tables since the open.
        redirected: u32,
    },
    /// The work is done; the store is being closed.
    Closing {
        /// The time, in microseconds since 1970.
        at_us: u64,
    },
    /// It is closed, with or without an error.
    Closed {
        /// Whether there was no error.
        fine: bool,
    },
}

impl Message {
    fn encode(self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        let mut put = |head: [u8; 4], numbers: [u64; 4]| {
            bytes[..4].copy_from_slice(&head);
            for (at, number) in numbers.iter().enumerate() {
                bytes[8 + 8 * at..][..8].copy_from_slice(&number.to_le_bytes());
            }
        };
        match self {
            Message::Opened { at_us, replayed } => put([1, 0, 0, 0], [at_us, replayed, 0, 0]),
            Message::Ready => put([2, 0, 0, 0], [0; 4]),
            Message::Begun { lane, n, own } => put([3, lane as u8, own.into(), 0], [n, 0, 0, 0]),
            Message::Done { lane, n } => put([4, lane as u8, 0, 0], [n, 0, 0, 0]),
            Message::Failed {
                lane,
                n,
                sure,
                kind,
            } => {
                let kind = KINDS.iter().position(|k| *k == kind).unwrap_or(KINDS.len());
                put([5, lane as u8, sure.into(), kind as u8], [n, 0, 0, 0]);
            }
            Message::State {
                jobs,
                health,
                job_error,
                flushes,
                compactions,
                log_bytes,
                ingests,
                redirected,
            } => {
                let two = |a: u32, b: u32| u64::from(a) << 32 | u64::from(b);
                put(
                    [6, health as u8, job_error.into(), 0],
                    [
                        jobs,
                        two(flushes, compactions),
                        log_bytes,
                        two(redirected, ingests),
                    ],
                );
            }
            Message::Closing { at_us } => put([7, 0, 0, 0], [at_us, 0, 0, 0]),
            Message::Closed { fine } => put([8, fine.into(), 0, 0], [0; 4]),
        }
        bytes
    }

    fn decode(bytes: &[u8; MESSAGE_BYTES]) -> Option<Message> {
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[8 + 8 * at..][..8]);
            u64::from_le_bytes(number)
        };
        let halves = |at: usize| ((number(at) >> 32) as u32, number(at) as u32);
        let (lane, n) = (usize::from(bytes[1]), number(0));
        Some(match bytes[0] {
            1 => Message::Opened {
                at_us: n,
                replayed: number(1),
            },
            2 => Message::Ready,
            3 => Message::Begun {
                lane,
                n,
                own: bytes[2] != 0,
            },
            4 => Message::Done { lane, n },
            5 => Message::Failed {
                lane,
                n,
                sure: bytes[2] != 0,
                kind: *KINDS.get(usize::from(bytes[3])).unwrap_or(&ErrorKind::Io),
            },
            6 => Message::State {
                jobs: n,
                health: match bytes[1] {
                    0 => Health::Good,
                    1 => Health::NoSpace,
                    _ => Health::Poisoned,
                },
                job_error: bytes[2] != 0,
                flushes: halves(1).0,
                compactions: halves(1).1,
                log_bytes: number(2),
                ingests: halves(3).1,
                redirected: halves(3).0,
            },
            7 => Message::Closing { at_us: n },
            8 => Message::Closed {
                fine: bytes[1] != 0,
            },
            _ => return None,
        })
    }
}

/// The victim's end of the pipe.
pub struct Pipe(File);

impl Pipe {
    /// The end of a pipe, `file`.
    pub fn new(file: File) -> Pipe {
        Pipe(file)
    }

    /// Sends a message to the parent.
    ///
    /// # Errors
    /// The parent has closed the pipe.
    pub fn send(&self, message: Message) -> io::Result<()> {
        let bytes = message.encode();
        loop {
            match (&self.0).write_vectored(&[IoSlice::new(&bytes)]) {
                Ok(MESSAGE_BYTES) => return Ok(()),
                Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

/// Receives messages until the pipe ends.
///
/// # Errors
/// Something that is not a message, or a torn message.
pub fn listen(mut pipe: impl Read, mut receive: impl FnMut(Message)) -> Result<(), String> {
    let mut bytes = [0; MESSAGE_BYTES];
    let mut filled = 0;
    loop {
        match pipe.read(&mut bytes[filled..]) {
            Ok(0) if filled == 0 => return Ok(()),
            Ok(0) => return Err("the victim's last message is torn".to_string()),
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(format!("the victim's pipe: {e}")),
        }
        if filled == MESSAGE_BYTES {
            let message = Message::decode(&bytes);
            receive(message.ok_or("the victim sent something that is not a message")?);
            filled = 0;
        }
    }
}

/// The contents of a store: pairs by keyspace.
pub type Dump = BTreeMap<String, Pairs>;

/// The end of a complete dump.
const END: &[u8] = b"the end";

/// Writes a dump.
///
/// # Errors
/// Those of `out`.
pub fn write_dump(mut out: impl Write, dump: &Dump) -> io::Result<()> {
    let mut bytes = |bytes: &[u8]| {
        out.write_all(&(bytes.len() as u32).to_le_bytes())?;
        out.write_all(bytes)
    };
    for (name, pairs) in dump {
        bytes(name.as_bytes())?;
        bytes(&(pairs.len() as u64).to_le_bytes())?;
        for (key, value) in pairs {
            bytes(key)?;
            bytes(value)?;
        }
    }
    bytes(END)?;
    out.flush()
}

/// Reads a dump of [`write_dump`]; `None` if it is incomplete.
pub fn read_dump(mut from: &[u8]) -> Option<Dump> {
    let mut bytes = || {
        let (len, rest) = from.split_first_chunk::<4>()?;
        let (bytes, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        from = rest;
        Some(bytes)
    };
    let mut dump = Dump::new();
    loop {
        let name = bytes()?;
        if name == END {
            return Some(dump);
        }
        let name = String::from_utf8(name.to_vec()).ok()?;
        let count = u64::from_le_bytes(bytes()?.try_into().ok()?);
        let mut pairs = Pairs::new();
        for _ in 0..count {
            let (key, value) = (bytes()?, bytes()?);
            pairs.insert(key.into(), value.into());
        }
        dump.insert(name, pairs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back() {
        let all = [
            Message::Opened {
                at_us: u64::MAX,
                replayed: 7,
            },
            Message::Ready,
            Message::Begun {
                lane: 2,
                n: 1 << 40,
                own: true,
            },
            Message::Done { lane: 1, n: 3 },
            Message::Failed {
                lane: 0,
                n: 9,
                sure: true,
                kind: ErrorKind::NoSpace,
            },
            Message::State {
                jobs: 3,
                health: Health::Poisoned,
                job_error: true,
                flushes: u32::MAX,
                compactions: 5,
                log_bytes: 1 << 50,
                ingests: 6,
                redirected: u32::MAX - 1,
            },
            Message::Closing { at_us: 5 },
            Message::Closed { fine: true },
        ];
        let mut sent = Vec::new();
        for message in all {
            sent.extend(message.encode());
        }
        let mut heard = Vec::new();
        listen(&sent[..], |m| heard.push(m)).unwrap();
        assert_eq!(heard, all);
        assert!(listen(&sent[..50], |_| {}).is_err());
        assert!(listen(&[0; MESSAGE_BYTES][..], |_| {}).is_err());
    }

    #[test]
    fn dumps_come_back_whole_or_not_at_all() {
        let pairs = Pairs::from([(b"k"[..].into(), b"v"[..].into())]);
        let dump = Dump::from([("a".to_string(), pairs), ("b".to_string(), Pairs::new())]);
        let mut bytes = Vec::new();
        write_dump(&mut bytes, &dump).unwrap();
        assert_eq!(read_dump(&bytes), Some(dump));
        for len in 0..bytes.len() {
            assert_eq!(read_dump(&bytes[..len]), None, "{len} bytes");
        }
    }
}

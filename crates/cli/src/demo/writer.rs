//! The process that gets killed. It writes the script of [`super::script`], and reports to its
//! parent through a pipe what was acknowledged.
//!
//! A message has 16 bytes, and may be followed by JSON whose length it has. It is written by one
//! system call and is shorter than `PIPE_BUF`, so pipes keep it in one piece. If the parent has
//! ended, the writer ends with its next message.
//!
//! Threading: one thread for each lane, and one that reports what the store is doing.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use siltstone::batch::Batch;
use siltstone::{Keyspace, Store, WriteOptions};

use super::plan::Plan;
use super::script::{self, KEYSPACES, LANES};
use crate::args::DemoWriterArgs;
use crate::failure::{Failure, Outcome};
use crate::report::record::{Moment, StoreDelay, delays_since};

/// The length of a message, without the JSON that may follow.
pub const MESSAGE_BYTES: usize = 16;
/// The number of bytes that pipes keep in one piece (at least 512 in POSIX, 4096 in Linux).
pub const WHOLE_BYTES: usize = 4096;
/// The interval at which the store's state is sent,
const STATE_EVERY: Duration = Duration::from_millis(10);
/// and after how many of these intervals all of its figures.
const MOMENT_EVERY: u32 = 4;

/// A message of the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Operations of a lane were acknowledged.
    Acknowledged {
        /// The lane.
        lane: u8,
        /// All of its operations below this number were acknowledged.
        count: u64,
    },
    /// What the store is doing.
    State {
        /// Running jobs.
        jobs: u8,
        /// Flushes since the open.
        flushes: u32,
        /// Compactions since the open.
        compactions: u32,
    },
    /// A [`Figure`] follows as JSON.
    Figure {
        /// The number of bytes of the JSON.
        bytes: u32,
    },
}

/// A figure of the store, as it is sent.
#[derive(Debug, Serialize, serde::Deserialize)]
pub enum Figure {
    /// All of its counters.
    Moment(Moment),
    /// A delay, which may have been sent before.
    Delay(StoreDelay),
}

impl Message {
    /// The message's bytes.
    pub fn encode(self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        match self {
            Message::Acknowledged { lane, count } => {
                (bytes[0], bytes[1]) = (1, lane);
                bytes[8..].copy_from_slice(&count.to_le_bytes());
            }
            Message::State {
                jobs,
                flushes,
                compactions,
            } => {
                (bytes[0], bytes[1]) = (2, jobs);
                bytes[8..12].copy_from_slice(&flushes.to_le_bytes());
                bytes[12..].copy_from_slice(&compactions.to_le_bytes());
            }
            Message::Figure { bytes: length } => {
                bytes[0] = 3;
                bytes[8..12].copy_from_slice(&length.to_le_bytes());
            }
        }
        bytes
    }

    /// The message of these bytes, if they are one.
    pub fn decode(bytes: &[u8; MESSAGE_BYTES]) -> Option<Message> {
        let number = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        match bytes[0] {
            1 => Some(Message::Acknowledged {
                lane: bytes[1],
                count: u64::from(number(8)) | u64::from(number(12)) << 32,
            }),
            2 => Some(Message::State {
                jobs: bytes[1],
                flushes: number(8),
                compactions: number(12),
            }),
            3 => Some(Message::Figure { bytes: number(8) }),
            _ => None,
        }
    }
}

/// Sends messages to the parent, unbuffered.
struct Pipe(File);

impl Pipe {
    fn send(&self, message: Message) -> Result<(), Failure> {
        (&self.0)
            .write_all(&message.encode())
            .map_err(|e| Failure::output(&e))
    }

    /// Sends a figure of the store. A figure that is too long for a pipe to keep it in one piece is
    /// dropped.
    fn send_figure(&self, figure: &Figure) -> Result<(), Failure> {
        let json = serde_json::to_vec(figure)
            .map_err(|e| Failure::Other(format!("a message as JSON: {e}")))?;
        if MESSAGE_BYTES + json.len() > WHOLE_BYTES {
            return Ok(());
        }
        let bytes = json.len() as u32;
        let mut message = Message::Figure { bytes }.encode().to_vec();
        message.extend(json);
        (&self.0)
            .write_all(&message)
            .map_err(|e| Failure::output(&e))
    }
}

/// Runs the process until it is killed, or its parent has ended.
pub fn run(args: &DemoWriterArgs) -> Result<Outcome, Failure> {
    let next: [u64; LANES] = args.next[..]
        .try_into()
        .map_err(|_| Failure::Usage(format!("--next wants {LANES} numbers")))?;
    let opened = Instant::now();
    let store = Store::open(&args.store, Plan::writer_options())?;
    let keyspaces = KEYSPACES.map(|name| store.keyspace(name));
    let [first, second] = keyspaces;
    let keyspaces = [first?, second?];
    let out = std::io::stdout()
        .as_fd()
        .try_clone_to_owned()
        .map_err(|e| Failure::output(&e))?;
    let pipe = Pipe(File::from(out));
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (store, pipe, keyspaces, ended) = (&store, &pipe, &keyspaces, &ended);
        let lanes: Vec<_> = (0..LANES)
            .map(|lane| {
                scope.spawn(move || {
                    let result =
                        write_lane(store, pipe, args.seed, lane, next[lane], keyspaces, ended);
                    ended.store(true, Ordering::Relaxed);
                    result
                })
            })
            .collect();
        let mut since_us = 0;
        for n in 0u32.. {
            if ended.load(Ordering::Relaxed) {
                break;
            }
            let stats = store.stats();
            let open_us = opened.elapsed().as_micros() as u64;
            let narrow = |name: &str| u32::try_from(stats.counter(name)).unwrap_or(u32::MAX);
            let mut report = || {
                pipe.send(Message::State {
                    jobs: u8::try_from(stats.jobs.len()).unwrap_or(u8::MAX),
                    flushes: narrow("flush_count"),
                    compactions: narrow("compaction_count"),
                })?;
                if n.is_multiple_of(MOMENT_EVERY) {
                    pipe.send_figure(&Figure::Moment(Moment::of(&stats, open_us)))?;
                    for delay in delays_since(&stats, since_us) {
                        pipe.send_figure(&Figure::Delay(delay))?;
                    }
                    // It does no harm to send a delay twice.
                    since_us = open_us.saturating_sub(10_000);
                }
                Ok(())
            };
            report().inspect_err(|_: &Failure| ended.store(true, Ordering::Relaxed))?;
            std::thread::sleep(STATE_EVERY);
        }
        for lane in lanes {
            lane.join()
                .map_err(|_| Failure::Other("a lane of the writer failed".to_string()))??;
        }
        Ok(Outcome::Fine)
    })
}

fn write_lane(
    store: &Store,
    pipe: &Pipe,
    seed: u64,
    lane: usize,
    first: u64,
    keyspaces: &[Keyspace; 2],
    ended: &AtomicBool,
) -> Result<(), Failure> {
    let mut batch = Batch::new();
    for n in first.. {
        if ended.load(Ordering::Relaxed) {
            break;
        }
        script::batch(seed, lane, n, keyspaces, &mut batch)?;
        store.write(&batch, WriteOptions::default())?;
        pipe.send(Message::Acknowledged {
            lane: lane as u8,
            count: n + 1,
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back() {
        for message in [
            Message::Acknowledged {
                lane: 1,
                count: 0x0123_4567_89ab_cdef,
            },
            Message::State {
                jobs: 3,
                flushes: u32::MAX,
                compactions: 77,
            },
            Message::Figure { bytes: 4_080 },
        ] {
            assert_eq!(Message::decode(&message.encode()), Some(message));
        }
        assert_eq!(Message::decode(&[0; MESSAGE_BYTES]), None);
    }
}

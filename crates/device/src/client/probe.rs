//! What a host measures about a device and about the link to it.
//!
//! Invariant: a measurement of the link ends after a bounded time, or fails as `Unreachable`.
//!
//! Threading: one caller at a time. Otherwise the callers disturb each other's measurements.

use std::time::Duration;

use siltstone_storage::{Result, StorageError};

use super::Device;
use super::session::Limit;
use crate::frames::ConnectionError;
use crate::probe::{Format, Link, Machine, MergeRate};
use crate::wire::frame::BULK_MAX;
use crate::wire::{Answer, Request};

/// The number of round trips. Their median is reported.
const ROUND_TRIPS: usize = 32;

/// The bytes of the first stream in a direction, and of the longest one. A stream that took less
/// than [`LONG_ENOUGH`] is not reliable, so a longer one follows.
const STREAM_BYTES: (usize, usize) = (1 << 20, 64 << 20);
const LONG_ENOUGH: Duration = Duration::from_millis(300);

/// How many requests of a stream are under way at once.
const UNDER_WAY: usize = 4;

/// A stream in one direction.
struct Stream {
    bytes: usize,
    took: Duration,
    cpu_ns: u64,
}

impl Stream {
    fn bytes_per_s(&self) -> f64 {
        self.bytes as f64 / self.took.as_secs_f64().max(1e-9)
    }

    fn cpu_ns_per_byte(&self) -> f64 {
        self.cpu_ns as f64 / self.bytes as f64
    }
}

impl Device {
    /// Describes the device's machine. The first host that asks waits for a measurement of its
    /// storage.
    ///
    /// # Errors
    /// `Unreachable`; `Io` if the device is of another release and does not know the request.
    pub fn describe(&self) -> Result<Machine> {
        match self.ask(&Request::Describe)? {
            Answer::Machine(machine) => Ok(machine),
            _ => Err(self.client.session.wrong_answer("probe", "")),
        }
    }

    /// Has the device measure a small merge of this format, in memory and on one core.
    ///
    /// # Errors
    /// As [`Device::describe`]; `InvalidInput` for a format that cannot be measured.
    pub fn measure_merge(&self, format: Format) -> Result<MergeRate> {
        let request = Request::MeasureMerge {
            codec: format.codec as u8,
            level: format.level,
            value_bytes: format.value_bytes,
        };
        match self.ask(&request)? {
            Answer::Merged(rate) => Ok(rate),
            _ => Err(self.client.session.wrong_answer("probe", "")),
        }
    }

    /// Measures the link: round trips, and streams in both directions.
    ///
    /// # Errors
    /// As [`Device::describe`].
    pub fn measure_link(&self) -> Result<Link> {
        let runtime = &self.client.session.runtime;
        let mut trips = Vec::with_capacity(ROUND_TRIPS);
        for _ in 0..ROUND_TRIPS {
            let begun = runtime.now();
            self.ask(&Request::Echo { len: 0 })?;
            trips.push(runtime.now().since(begun).as_nanos() as u64);
        }
        trips.sort_unstable();
        let up = self.stream(true)?;
        let down = self.stream(false)?;
        Ok(Link {
            round_trip_ns: trips[trips.len() / 2],
            up_bytes_per_s: up.bytes_per_s(),
            down_bytes_per_s: down.bytes_per_s(),
            up_cpu_ns_per_byte: up.cpu_ns_per_byte(),
            down_cpu_ns_per_byte: down.cpu_ns_per_byte(),
        })
    }

    fn ask(&self, request: &Request) -> Result<Answer> {
        let session = &self.client.session;
        let name = session.describe();
        let asked = session.ask(&session.limit(), "probe", &name, request, &[]);
        asked.map(|(answer, _)| answer)
    }

    /// Streams more and more bytes until the time is long enough to be reliable.
    fn stream(&self, is_up: bool) -> Result<Stream> {
        let mut bytes = STREAM_BYTES.0;
        loop {
            let stream = self.stream_of(bytes, is_up)?;
            if stream.took >= LONG_ENOUGH || bytes >= STREAM_BYTES.1 {
                return Ok(stream);
            }
            bytes *= 4;
        }
    }

    fn stream_of(&self, bytes: usize, is_up: bool) -> Result<Stream> {
        let session = &self.client.session;
        let limit = session.limit();
        let name = session.describe();
        let piece = vec![0xa5; BULK_MAX];
        loop {
            match self.try_stream(&limit, bytes, is_up, &piece)? {
                Ok(stream) => return Ok(stream),
                Err(error) if session.is_over(&limit) => {
                    tracing::debug!(%error, "a stream to a device ended");
                    return Err(session.unreachable("probe", &name));
                }
                Err(_) => {}
            }
        }
    }

    fn try_stream(
        &self,
        limit: &Limit,
        bytes: usize,
        is_up: bool,
        piece: &[u8],
    ) -> Result<std::result::Result<Stream, ConnectionError>> {
        let session = &self.client.session;
        let (runtime, name) = (&session.runtime, session.describe());
        let mut pipe = session.take(limit, "probe", "")?;
        let (begun, cpu) = (runtime.now(), runtime.task_cpu_ns());
        let count = bytes / BULK_MAX;
        let (request, bulk): (Request, &[u8]) = match is_up {
            true => (Request::Echo { len: 0 }, piece),
            false => (
                Request::Echo {
                    len: BULK_MAX as u32,
                },
                &[],
            ),
        };
        let mut sent = 0;
        let mut failed: Option<StorageError> = None;
        let mut run = || {
            for at in 0..count {
                while sent < count && sent < at + UNDER_WAY {
                    pipe.send(&request, &[bulk])?;
                    sent += 1;
                }
                match pipe.receive()? {
                    (Answer::Bytes, _) => {}
                    (Answer::Failed(error), _) => drop(failed.get_or_insert(error)),
                    _ => drop(failed.get_or_insert_with(|| session.wrong_answer("probe", &name))),
                }
            }
            Ok(())
        };
        if let Err(error) = run() {
            session.lost_in(limit, pipe, &error);
            return Ok(Err(error));
        }
        session.give_back(pipe);
        match failed {
            Some(error) => Err(error),
            None => Ok(Ok(Stream {
                bytes: count * BULK_MAX,
                took: runtime.now().since(begun),
                cpu_ns: runtime.task_cpu_ns().saturating_sub(cpu),
            })),
        }
    }
}

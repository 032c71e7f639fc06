//! A digest of all calls and their outcomes, which shows whether two runs did the same.

use std::fmt::Write as _;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::error::StorageErrorKind;
use crate::op::OpKind;

/// One finished call.
pub(super) struct Event<'a> {
    pub(super) kind: OpKind,
    pub(super) name: &'a str,
    /// An offset, a digest of the second name, or another number that distinguishes two calls.
    pub(super) at: u64,
    pub(super) len: u64,
    /// A digest of the bytes that were written or read.
    pub(super) bytes: u64,
    pub(super) outcome: Result<(), StorageErrorKind>,
}

pub(super) struct Trace {
    digest: Xxh3,
    calls: u64,
    log: Option<Vec<String>>,
}

impl Trace {
    pub(super) fn new(with_log: bool) -> Trace {
        Trace {
            digest: Xxh3::new(),
            calls: 0,
            log: with_log.then(Vec::new),
        }
    }

    pub(super) fn record(&mut self, event: &Event<'_>) {
        let outcome = match event.outcome {
            Ok(()) => 0u8,
            Err(kind) => 1 + kind as u8,
        };
        self.digest
            .update(&[event.kind as u8, outcome, event.name.len() as u8]);
        self.digest.update(event.name.as_bytes());
        for number in [event.at, event.len, event.bytes] {
            self.digest.update(&number.to_le_bytes());
        }
        if let Some(log) = &mut self.log {
            let mut line = format!(
                "{} {} {:?} at {} len {}",
                self.calls,
                event.kind.name(),
                event.name,
                event.at,
                event.len
            );
            let _ = write!(line, " #{:016x}", event.bytes);
            match event.outcome {
                Ok(()) => line.push_str(" ok"),
                Err(kind) => {
                    let _ = write!(line, " {kind:?}");
                }
            }
            log.push(line);
        }
        self.calls += 1;
    }

    pub(super) fn digest(&self) -> u64 {
        self.digest.digest()
    }

    pub(super) fn log(&self) -> Vec<String> {
        self.log.clone().unwrap_or_default()
    }
}

/// The digest of the concatenated parts.
pub(super) fn digest_parts(parts: &[&[u8]]) -> u64 {
    match parts {
        [part] => xxh3_64(part),
        _ => {
            let mut digest = Xxh3::new();
            parts.iter().for_each(|part| digest.update(part));
            digest.digest()
        }
    }
}

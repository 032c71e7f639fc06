//! Open objects of the fault storage.

use std::ops::Range;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::trace::{Event, digest_parts};
use super::{Shared, Verdict};
use crate::error::{Result, StorageError, StorageErrorKind};
use crate::map::Map;
use crate::op::OpKind;
use crate::storage::{Access, InjectedFault, ReadFile, ReadRange, WriteFile};

pub(super) struct FaultWriter {
    shared: Arc<Shared>,
    inner: Arc<dyn WriteFile>,
}

impl FaultWriter {
    pub(super) fn new(shared: Arc<Shared>, inner: Arc<dyn WriteFile>) -> FaultWriter {
        FaultWriter { shared, inner }
    }

    fn append_with(&self, verdict: &Verdict, parts: &[&[u8]], wanted: u64) -> Result<()> {
        let Some(failure) = verdict.failure else {
            return self.inner.append(parts);
        };
        let keep_bytes = match failure.short_per_mille {
            Some(per_mille) => (u128::from(wanted) * u128::from(per_mille) / 1000) as u64,
            None if failure.after => wanted,
            None => 0,
        };
        // The bytes are written but the position stays, as a failed append may leave them.
        if keep_bytes > 0 {
            self.inner
                .inject(InjectedFault::ShortAppend { parts, keep_bytes });
        }
        Err(failure
            .error(OpKind::Append, self.inner.name())
            .at(self.inner.position() + keep_bytes))
    }
}

impl WriteFile for FaultWriter {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn position(&self) -> u64 {
        self.inner.position()
    }

    fn append(&self, parts: &[&[u8]]) -> Result<()> {
        let verdict = self.shared.enter(OpKind::Append, self.inner.name());
        let at = self.inner.position();
        let len = parts.iter().map(|p| p.len() as u64).sum();
        let result = self.append_with(&verdict, parts, len);
        if self.shared.traced() {
            let outcome = result.as_ref().map(|_| ()).map_err(|e| e.kind);
            let bytes = digest_parts(parts);
            self.shared.record(&Event {
                kind: OpKind::Append,
                name: self.inner.name(),
                at,
                len,
                bytes,
                outcome,
            });
        }
        result
    }

    fn reserve(&self, len: u64) -> Result<()> {
        self.shared
            .call(OpKind::Reserve, self.inner.name(), len, || {
                self.inner.reserve(len)
            })
    }

    fn allocate(&self, len: u64) -> Result<bool> {
        self.shared
            .call(OpKind::Reserve, self.inner.name(), len, || {
                self.inner.allocate(len)
            })
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn sync(&self) -> Result<()> {
        let (kind, name) = (OpKind::Sync, self.inner.name());
        let verdict = self.shared.enter(kind, name);
        let at = self.inner.position();
        let result = match verdict.failure {
            None => self.inner.sync(),
            Some(failure) if failure.after => self
                .inner
                .sync()
                .and_then(|()| Err(failure.error(kind, name))),
            Some(failure) => {
                if failure.loses() {
                    self.inner.inject(InjectedFault::LoseUnsynced);
                }
                Err(failure.error(kind, name))
            }
        };
        let outcome = result.as_ref().map(|_| ()).map_err(|e| e.kind);
        self.shared.record(&Event {
            kind,
            name,
            at,
            len: 0,
            bytes: 0,
            outcome,
        });
        result
    }

    fn start_writeback(&self, from: u64, len: u64) {
        self.shared.enter(OpKind::StartWriteback, self.inner.name());
        self.inner.start_writeback(from, len);
    }

    fn truncate_to_position(&self) -> Result<()> {
        let at = self.inner.position();
        self.shared
            .call(OpKind::Truncate, self.inner.name(), at, || {
                self.inner.truncate_to_position()
            })
    }

    fn inject(&self, fault: InjectedFault<'_>) -> bool {
        self.inner.inject(fault)
    }
}

pub(super) struct FaultReader {
    shared: Arc<Shared>,
    inner: Arc<dyn ReadFile>,
}

impl FaultReader {
    pub(super) fn new(shared: Arc<Shared>, inner: Arc<dyn ReadFile>) -> FaultReader {
        FaultReader { shared, inner }
    }

    fn read_with(&self, verdict: &Verdict, offset: u64, buf: &mut [u8]) -> Result<()> {
        let name = self.inner.name();
        let end = offset + buf.len() as u64;
        let is_hit = |bad: &Range<u64>| bad.start.max(offset) < bad.end.min(end);
        if let Some(bad) = verdict.unreadable.iter().find(|bad| is_hit(bad)) {
            let detail = format!("injected error: bytes {bad:?} cannot be read");
            return Err(StorageError::new(StorageErrorKind::Io, "read", name, detail).at(offset));
        }
        match verdict.failure {
            None => self.inner.read_at(offset, buf)?,
            Some(failure) => {
                if failure.after {
                    self.inner.read_at(offset, buf)?;
                }
                return Err(failure.error(OpKind::Read, name).at(offset));
            }
        }
        verdict.flip(offset, buf);
        if verdict.short_read {
            // Bytes that were not read must not look like data.
            let half = buf.len() / 2;
            buf[half..].fill(0);
            let detail = format!("injected short read: {half} of {} bytes", buf.len());
            return Err(
                StorageError::new(StorageErrorKind::UnexpectedEof, "read", name, detail).at(offset),
            );
        }
        Ok(())
    }
}

impl ReadFile for FaultReader {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let verdict = self.shared.enter(OpKind::Read, self.inner.name());
        let result = self.read_with(&verdict, offset, buf);
        if self.shared.traced() {
            let outcome = result.as_ref().map(|_| ()).map_err(|e| e.kind);
            let bytes = if result.is_ok() { xxh3_64(buf) } else { 0 };
            let (name, len) = (self.inner.name(), buf.len() as u64);
            self.shared.record(&Event {
                kind: OpKind::Read,
                name,
                at: offset,
                len,
                bytes,
                outcome,
            });
        }
        result
    }

    fn read_ranges(&self, ranges: &mut [ReadRange<'_>]) -> Result<()> {
        // Each range is a separate call, so that a fault may hit any of them.
        for range in ranges {
            self.read_at(range.offset, range.buf)?;
        }
        Ok(())
    }

    fn advise(&self, access: Access, offset: u64, len: u64) {
        self.shared.enter(OpKind::Advise, self.inner.name());
        self.inner.advise(access, offset, len);
    }

    fn map(&self) -> Result<Option<Map>> {
        let (kind, name) = (OpKind::Map, self.inner.name());
        let verdict = self.shared.enter(kind, name);
        let result = match verdict.failure {
            Some(failure) => Err(failure.error(kind, name)),
            None => self.inner.map(),
        };
        let outcome = result.as_ref().map(|_| ()).map_err(|e| e.kind);
        self.shared.record(&Event {
            kind,
            name,
            at: 0,
            len: 0,
            bytes: 0,
            outcome,
        });
        let Some(map) = result? else { return Ok(None) };
        if verdict.failed_map {
            return Ok(Some(Map::from_bytes(vec![0; map.len()].into(), true)));
        }
        if verdict.flips_anything() {
            let mut bytes = vec![0; map.len()];
            map.copy_to(0, &mut bytes);
            verdict.flip(0, &mut bytes);
            return Ok(Some(Map::from_bytes(bytes.into(), map.failed())));
        }
        Ok(Some(map))
    }
}

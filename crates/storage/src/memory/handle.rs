//! Open objects of the memory storage.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::Inner;
use super::inode::{PAGE_BYTES, pages_for};
use super::state::Effect;
use crate::error::{Result, StorageError, StorageErrorKind};
use crate::map::{LosableBytes, Map};
use crate::op::OpKind;
use crate::storage::{Access, Epoch, InjectedFault, ReadFile, WriteFile};

pub(super) struct MemoryWriter {
    inner: Arc<Inner>,
    ino: u64,
    name: String,
    epoch: Epoch,
    position: AtomicU64,
    /// Keep the object alive when it has no name any more, and count open objects.
    _handles: (Arc<()>, Arc<()>),
}

/// The first `keep` bytes of `parts`, concatenated.
fn joined(parts: &[&[u8]], keep: u64) -> Arc<[u8]> {
    let keep = usize::try_from(keep).unwrap_or(usize::MAX);
    if let [part] = parts {
        return part[..part.len().min(keep)].into();
    }
    let mut bytes = parts.concat();
    bytes.truncate(keep);
    bytes.into()
}

impl MemoryWriter {
    pub(super) fn new(
        inner: Arc<Inner>,
        ino: u64,
        name: &str,
        epoch: Epoch,
        position: u64,
        handles: (Arc<()>, Arc<()>),
    ) -> MemoryWriter {
        let position = AtomicU64::new(position);
        MemoryWriter {
            inner,
            ino,
            name: name.to_owned(),
            epoch,
            position,
            _handles: handles,
        }
    }
}

impl WriteFile for MemoryWriter {
    fn name(&self) -> &str {
        &self.name
    }

    fn position(&self) -> u64 {
        self.position.load(Ordering::Acquire)
    }

    fn append(&self, parts: &[&[u8]]) -> Result<()> {
        let mut core = self.inner.enter(OpKind::Append);
        core.check_epoch(OpKind::Append, &self.name, self.epoch)?;
        let position = self.position();
        let wanted: u64 = parts.iter().map(|p| p.len() as u64).sum();
        let Some(end) = position.checked_add(wanted) else {
            let detail = "the object would be larger than 2^64 bytes";
            return Err(StorageError::new(
                StorageErrorKind::InvalidInput,
                "append",
                &self.name,
                detail,
            )
            .at(position));
        };
        let have = core
            .state
            .inodes
            .get(&self.ino)
            .map_or(0, |i| i.pages.len());
        let needed = pages_for(end).saturating_sub(have) as u64;
        let mut fits = wanted;
        if core.capacity.is_some() && needed > 0 {
            let free = core.free_pages();
            if needed > free {
                // As on a full disk, the part that fits is written before the call fails.
                fits = (have as u64 + free)
                    .saturating_mul(PAGE_BYTES as u64)
                    .saturating_sub(position)
                    .min(wanted);
            }
        }
        let bytes = joined(parts, fits);
        core.change(
            OpKind::Append,
            Effect::Write {
                ino: self.ino,
                offset: position,
                bytes,
            },
        );
        if fits < wanted {
            return Err(core
                .no_space(OpKind::Append, &self.name)
                .at(position + fits));
        }
        self.position.store(end, Ordering::Release);
        Ok(())
    }

    fn reserve(&self, len: u64) -> Result<()> {
        let mut core = self.inner.enter(OpKind::Reserve);
        core.check_epoch(OpKind::Reserve, &self.name, self.epoch)?;
        let have = core
            .state
            .inodes
            .get(&self.ino)
            .map_or(0, |i| i.pages.len());
        let needed = pages_for(len).saturating_sub(have) as u64;
        if needed > 0 && needed > core.free_pages() {
            return Err(core.no_space(OpKind::Reserve, &self.name).at(len));
        }
        core.change(OpKind::Reserve, Effect::Reserve { ino: self.ino, len });
        Ok(())
    }

    fn len(&self) -> u64 {
        self.inner
            .lock()
            .state
            .inodes
            .get(&self.ino)
            .map_or(0, |i| i.len)
    }

    fn sync(&self) -> Result<()> {
        let core = self.inner.enter(OpKind::Sync);
        core.check_epoch(OpKind::Sync, &self.name, self.epoch)?;
        let seen = core
            .state
            .inodes
            .get(&self.ino)
            .map(|i| (i.version, i.capture()));
        drop(core);
        self.inner.runtime.yield_point();
        let mut core = self.inner.lock();
        core.check_epoch(OpKind::Sync, &self.name, self.epoch)?;
        let (version, captured) = seen.ok_or_else(|| super::not_found(OpKind::Sync, &self.name))?;
        let unchanged = core
            .state
            .inodes
            .get(&self.ino)
            .is_some_and(|i| i.version == version);
        let ino = self.ino;
        let effect = if unchanged {
            Effect::Sync { ino }
        } else {
            Effect::SyncCaptured { ino, captured }
        };
        core.change(OpKind::Sync, effect);
        Ok(())
    }

    fn start_writeback(&self, _from: u64, _len: u64) {
        drop(self.inner.enter(OpKind::StartWriteback));
    }

    fn truncate_to_position(&self) -> Result<()> {
        let mut core = self.inner.enter(OpKind::Truncate);
        core.check_epoch(OpKind::Truncate, &self.name, self.epoch)?;
        let len = self.position();
        core.change(OpKind::Truncate, Effect::Truncate { ino: self.ino, len });
        Ok(())
    }

    fn inject(&self, fault: InjectedFault<'_>) -> bool {
        let mut core = self.inner.lock();
        match fault {
            InjectedFault::LoseUnsynced => {
                core.change(OpKind::Sync, Effect::LoseUnsynced { ino: self.ino })
            }
            InjectedFault::ShortAppend { parts, keep_bytes } => {
                let bytes = joined(parts, keep_bytes);
                core.change(
                    OpKind::Append,
                    Effect::Write {
                        ino: self.ino,
                        offset: self.position(),
                        bytes,
                    },
                );
            }
        }
        true
    }
}

pub(super) struct MemoryReader {
    inner: Arc<Inner>,
    ino: u64,
    name: String,
    len: u64,
    /// The object's bytes for maps. The first call of `map` copies them.
    mapped: OnceLock<Arc<LosableBytes>>,
    /// As in [`MemoryWriter`].
    _handles: (Arc<()>, Arc<()>),
}

impl MemoryReader {
    pub(super) fn new(
        inner: Arc<Inner>,
        ino: u64,
        name: &str,
        len: u64,
        handles: (Arc<()>, Arc<()>),
    ) -> MemoryReader {
        MemoryReader {
            inner,
            ino,
            name: name.to_owned(),
            len,
            mapped: OnceLock::new(),
            _handles: handles,
        }
    }
}

impl ReadFile for MemoryReader {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let core = self.inner.enter(OpKind::Read);
        let inode = core
            .state
            .inodes
            .get(&self.ino)
            .ok_or_else(|| super::not_found(OpKind::Read, &self.name))?;
        let end = offset.checked_add(buf.len() as u64);
        if let Some(at) = core.unreadable_within(self.ino, offset, end.unwrap_or(u64::MAX)) {
            buf.fill(0);
            let detail = format!("injected: the page at {at} cannot be read");
            return Err(
                StorageError::new(StorageErrorKind::Io, "read", &self.name, detail).at(offset),
            );
        }
        match end {
            Some(end) if end <= inode.len || buf.is_empty() => {
                inode.read(offset, buf);
                Ok(())
            }
            _ => {
                // Bytes that were not read must not look like data.
                buf.fill(0);
                let detail = format!("wanted {} bytes, the object has {}", buf.len(), inode.len);
                Err(
                    StorageError::new(StorageErrorKind::UnexpectedEof, "read", &self.name, detail)
                        .at(offset),
                )
            }
        }
    }

    fn advise(&self, _access: Access, _offset: u64, _len: u64) {
        drop(self.inner.enter(OpKind::Advise));
    }

    fn map(&self) -> Result<Option<Map>> {
        let mut core = self.inner.enter(OpKind::Map);
        let core = &mut *core;
        let inode = core
            .state
            .inodes
            .get(&self.ino)
            .ok_or_else(|| super::not_found(OpKind::Map, &self.name))?;
        let Ok(len) = usize::try_from(self.len) else {
            return Ok(None);
        };
        let maps = &mut core.maps;
        let unreadable = &core.unreadable;
        let bytes = self.mapped.get_or_init(|| {
            let mut bytes = vec![0; len];
            inode.read(0, &mut bytes);
            let bytes = Arc::new(LosableBytes::new(bytes));
            bytes.lose(inode.len, u64::MAX);
            for (_, range) in unreadable.iter().filter(|(ino, _)| *ino == self.ino) {
                bytes.lose(range.start, range.end);
            }
            // Later cuts find the map in this list.
            maps.retain(|(_, map)| map.strong_count() > 0);
            maps.push((self.ino, Arc::downgrade(&bytes)));
            bytes
        });
        Ok(Some(bytes.map()))
    }
}

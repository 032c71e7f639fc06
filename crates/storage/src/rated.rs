//! A storage that takes and gives bytes at given rates: a stand-in for a slow disk.
//!
//! [`RatedStorage`] wraps another storage and makes its calls take time on the runtime's clock. All
//! written bytes go through one queue, in the order in which they were appended. An append returns
//! at once as long as the queue holds at most [`Rates::queued_bytes_max`], as a write into the page
//! cache does; a sync of a file returns when the file's bytes have left the queue. So the sync of a
//! log waits for bytes of a table that were written before it, as it does on a disk.
//!
//! Invariants: every call reaches the wrapped storage, after its time has passed, and its result is
//! that of the wrapped storage. Over any span of time, syncs cover at most the rate times the span.
//!
//! Threading: any thread. One runtime lock, which is held over no wait and no call.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::map::Map;
use crate::runtime::{Instant, Mutex, Runtime};
use crate::storage::{Access, InjectedFault, ReadFile, ReadPurpose, ReadRange, Storage, WriteFile};
use crate::wrapped::{Call, Wrapped, Wrapper};

/// How fast a [`RatedStorage`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// Bytes a second that are written.
    pub write_bytes_per_s: u64,
    /// Bytes a second that are read; 0 means that reads take no time. With a rate, files have no
    /// maps, because a read through a map makes no call.
    pub read_bytes_per_s: u64,
    /// The number of written bytes that may wait in the queue before an append waits.
    pub queued_bytes_max: u64,
    /// The time that each sync, of a file or of the folder, takes in addition.
    pub sync_time: Duration,
}

/// The queue of bytes, as the time at which it will be empty.
struct Queue {
    written: Instant,
    read: Instant,
}

/// What the open files share.
struct Shared {
    runtime: Runtime,
    rates: Rates,
    queue: Mutex<Queue>,
}

/// The time that this many bytes take at this rate.
fn time_of(bytes: u64, bytes_per_s: u64) -> Duration {
    let ns = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_s.max(1));
    Duration::from_nanos(ns.min(u128::from(u64::MAX)) as u64)
}

impl Shared {
    /// Puts written bytes into the queue. Returns when they will have left it, and waits while the
    /// queue is too long.
    fn write(&self, bytes: u64) -> Instant {
        let rate = self.rates.write_bytes_per_s;
        let now = self.runtime.now();
        let done = {
            let mut queue = self.queue.lock();
            queue.written = queue.written.max(now) + time_of(bytes, rate);
            queue.written
        };
        let allowed = time_of(self.rates.queued_bytes_max, rate);
        let left = done.since(now);
        if left > allowed {
            self.runtime.sleep(left - allowed);
        }
        done
    }

    fn read(&self, bytes: u64) {
        let rate = self.rates.read_bytes_per_s;
        if rate == 0 {
            return;
        }
        let now = self.runtime.now();
        let done = {
            let mut queue = self.queue.lock();
            queue.read = queue.read.max(now) + time_of(bytes, rate);
            queue.read
        };
        self.wait_until(done);
    }

    fn wait_until(&self, done: Instant) {
        let now = self.runtime.now();
        if done > now {
            self.runtime.sleep(done.since(now));
        }
    }

    fn sync_time(&self) {
        if !self.rates.sync_time.is_zero() {
            self.runtime.sleep(self.rates.sync_time);
        }
    }
}

/// The wrapper of [`RatedStorage`].
pub struct Rated {
    inner: Arc<dyn Storage>,
    shared: Arc<Shared>,
}

/// See the module.
pub type RatedStorage = Wrapped<Rated>;

impl RatedStorage {
    /// Makes the calls to `inner` take time.
    pub fn new(inner: Arc<dyn Storage>, runtime: &Runtime, rates: Rates) -> RatedStorage {
        let now = runtime.now();
        let queue = Queue {
            written: now,
            read: now,
        };
        Wrapped(Rated {
            inner,
            shared: Arc::new(Shared {
                runtime: runtime.clone(),
                rates,
                queue: runtime.mutex(queue),
            }),
        })
    }
}

impl Wrapper for Rated {
    fn inner(&self) -> &dyn Storage {
        &*self.inner
    }

    fn make<T>(&self, call: Call<'_>, mut run: impl FnMut() -> Result<T>) -> Result<T> {
        if let Call::Replace(_) | Call::SyncDir = call {
            self.shared.sync_time();
        }
        run()
    }

    fn opened(&self, file: Arc<dyn WriteFile>) -> Arc<dyn WriteFile> {
        let (shared, runtime) = (self.shared.clone(), &self.shared.runtime);
        Arc::new(RatedWriter {
            done: runtime.mutex(runtime.now()),
            shared,
            inner: file,
        })
    }

    fn opened_to_read(&self, file: Arc<dyn ReadFile>) -> Arc<dyn ReadFile> {
        match self.shared.rates.read_bytes_per_s {
            0 => file,
            _ => Arc::new(RatedReader {
                shared: self.shared.clone(),
                inner: file,
            }),
        }
    }
}

struct RatedWriter {
    shared: Arc<Shared>,
    inner: Arc<dyn WriteFile>,
    /// When the bytes of this file will have left the queue.
    done: Mutex<Instant>,
}

impl RatedWriter {
    fn write(&self, bytes: u64) {
        let done = self.shared.write(bytes);
        let mut last = self.done.lock();
        *last = (*last).max(done);
    }
}

impl WriteFile for RatedWriter {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn position(&self) -> u64 {
        self.inner.position()
    }

    fn append(&self, parts: &[&[u8]]) -> Result<()> {
        self.write(parts.iter().map(|part| part.len() as u64).sum());
        self.inner.append(parts)
    }

    fn reserve(&self, len: u64) -> Result<()> {
        self.write(len.saturating_sub(self.inner.len()));
        self.inner.reserve(len)
    }

    fn allocate(&self, len: u64) -> Result<bool> {
        // Space is allocated without writing it, also if the wrapped storage fills it with zeros.
        self.inner.allocate(len)
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn sync(&self) -> Result<()> {
        let done = *self.done.lock();
        self.shared.wait_until(done);
        self.shared.sync_time();
        self.inner.sync()
    }

    fn buffer_bytes(&self) -> u64 {
        self.inner.buffer_bytes()
    }

    fn start_writeback(&self, from: u64, len: u64) {
        self.inner.start_writeback(from, len);
    }

    fn truncate_to_position(&self) -> Result<()> {
        self.inner.truncate_to_position()
    }

    fn inject(&self, fault: InjectedFault<'_>) -> bool {
        self.inner.inject(fault)
    }
}

struct RatedReader {
    shared: Arc<Shared>,
    inner: Arc<dyn ReadFile>,
}

impl ReadFile for RatedReader {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.shared.read(buf.len() as u64);
        self.inner.read_at(offset, buf)
    }

    fn read_ranges(&self, ranges: &mut [ReadRange<'_>]) -> Result<()> {
        self.shared
            .read(ranges.iter().map(|range| range.buf.len() as u64).sum());
        self.inner.read_ranges(ranges)
    }

    fn read_ranges_for(&self, purpose: ReadPurpose, ranges: &mut [ReadRange<'_>]) -> Result<()> {
        self.shared
            .read(ranges.iter().map(|range| range.buf.len() as u64).sum());
        self.inner.read_ranges_for(purpose, ranges)
    }

    fn advise(&self, access: Access, offset: u64, len: u64) {
        self.inner.advise(access, offset, len);
    }

    fn map(&self) -> Result<Option<Map>> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryStorage;
    use crate::sim::{SimConfig, run};
    use crate::storage::Epoch;

    const EPOCH: Epoch = Epoch(0);

    const RATES: Rates = Rates {
        write_bytes_per_s: 1_000_000,
        read_bytes_per_s: 2_000_000,
        queued_bytes_max: 100_000,
        sync_time: Duration::from_millis(3),
    };

    fn simulated(story: impl FnOnce(&Runtime, RatedStorage) + Send + 'static) {
        let report = run(SimConfig::new(5), |runtime| {
            let memory = Arc::new(MemoryStorage::new(&runtime));
            let storage = RatedStorage::new(memory, &runtime, RATES);
            story(&runtime, storage);
        });
        report.result.unwrap();
    }

    /// How many milliseconds a call takes.
    fn took(runtime: &Runtime, call: impl FnOnce()) -> u128 {
        let begin = runtime.now();
        call();
        runtime.now().since(begin).as_millis()
    }

    #[test]
    fn an_append_waits_only_for_a_full_queue_and_a_sync_for_its_bytes() {
        simulated(|runtime, storage| {
            let file = storage.create(EPOCH, "a").unwrap();
            assert_eq!(took(runtime, || file.append(&[&[1; 60_000]]).unwrap()), 0);
            assert_eq!(took(runtime, || file.append(&[&[1; 60_000]]).unwrap()), 20);
            assert_eq!(took(runtime, || file.sync().unwrap()), 103);
            assert_eq!(took(runtime, || file.sync().unwrap()), 3);
            assert_eq!(took(runtime, || storage.sync_dir(EPOCH).unwrap()), 3);
        });
    }

    #[test]
    fn a_sync_waits_for_what_others_wrote_before() {
        simulated(|runtime, storage| {
            let table = storage.create(EPOCH, "table").unwrap();
            let log = storage.create(EPOCH, "log").unwrap();
            table.append(&[&[1; 90_000]]).unwrap();
            log.append(&[&[1; 10_000]]).unwrap();
            table.append(&[&[1; 80_000]]).unwrap();
            let at = runtime.now();
            log.sync().unwrap();
            // The table's second part waits behind the log's bytes, and its append took 80 ms.
            assert_eq!(runtime.now().since(at).as_millis(), 20 + 3);
        });
    }

    #[test]
    fn reads_take_their_time_and_have_no_maps() {
        simulated(|runtime, storage| {
            let file = storage.create(EPOCH, "a").unwrap();
            file.append(&[&[7; 50_000]]).unwrap();
            let file = storage.open("a").unwrap();
            assert!(file.map().unwrap().is_none());
            let mut buf = vec![0; 40_000];
            assert_eq!(took(runtime, || file.read_at(0, &mut buf).unwrap()), 20);
            assert_eq!(buf, [7; 40_000]);
        });
    }
}

//! What a device reports about its machine, and about how fast it merges.
//!
//! Invariants and threading: as in the parent module.

use siltstone_table::fields::{Decoded, FieldReader, FieldWriter};

/// A device's machine, as the device sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// The number of cores; 0 if it is not known.
    pub cores: u32,
    /// The bytes of memory; 0 if they are not known.
    pub memory_bytes: u64,
    /// The free bytes of the storage that contains the device's own folder, if they are known.
    pub free_bytes: Option<u64>,
    /// Bytes per second that this storage writes and makes durable; 0 if this could not be
    /// measured.
    pub write_bytes_per_s: u64,
    /// Bytes per second that this storage reads; 0 if this could not be measured.
    pub read_bytes_per_s: u64,
    /// Whether the bytes were read past the page cache.
    pub reads_are_direct: bool,
}

impl Machine {
    pub(super) fn put(&self, out: &mut FieldWriter) {
        out.u32(self.cores);
        out.u64(self.memory_bytes);
        out.flag(self.free_bytes.is_some());
        out.u64(self.free_bytes.unwrap_or(0));
        out.u64(self.write_bytes_per_s);
        out.u64(self.read_bytes_per_s);
        out.flag(self.reads_are_direct);
    }

    pub(super) fn get(i: &mut FieldReader<'_>) -> Decoded<Machine> {
        Ok(Machine {
            cores: i.u32("cores")?,
            memory_bytes: i.u64("bytes of memory")?,
            free_bytes: {
                let is_known = i.flag("whether free bytes are known")?;
                let bytes = i.u64("free bytes")?;
                is_known.then_some(bytes)
            },
            write_bytes_per_s: i.u64("bytes written a second")?,
            read_bytes_per_s: i.u64("bytes read a second")?,
            reads_are_direct: i.flag("whether reads were direct")?,
        })
    }
}

/// How fast a small merge in memory was, on one core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MergeRate {
    /// Bytes of the input tables.
    pub in_bytes: u64,
    /// Bytes of the output tables.
    pub out_bytes: u64,
    /// The elapsed time, in nanoseconds.
    pub ns: u64,
    /// The processor time, in nanoseconds; 0 if it is not known.
    pub cpu_ns: u64,
}

impl MergeRate {
    /// The processor time, or the elapsed time if the processor time is not known. Other work on
    /// the machine makes only the elapsed time longer.
    pub fn busy_ns(&self) -> u64 {
        match self.cpu_ns {
            0 => self.ns,
            ns => ns,
        }
    }

    pub(super) fn put(&self, out: &mut FieldWriter) {
        for count in [self.in_bytes, self.out_bytes, self.ns, self.cpu_ns] {
            out.u64(count);
        }
    }

    pub(super) fn get(i: &mut FieldReader<'_>) -> Decoded<MergeRate> {
        Ok(MergeRate {
            in_bytes: i.u64("bytes read")?,
            out_bytes: i.u64("bytes written")?,
            ns: i.u64("time")?,
            cpu_ns: i.u64("processor time")?,
        })
    }
}

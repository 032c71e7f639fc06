//! What a job costs an executor, as a sum over its size.
//!
//! A store measures how long jobs take on each side, and expects the next job to take as long in
//! proportion. In proportion to what is different from side to side: the host's time grows with the
//! number of entries, because it compares keys, and a GPU's mostly with the bytes that are moved.
//! So each executor says what its [`Costs`] are, and the store measures by which factor they are
//! wrong. Only the ratios of the parts count.
//!
//! Threading: plain data.

/// The size of a job, as far as its time depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobSize {
    /// The bytes of the inputs, as stored.
    pub bytes: u64,
    /// The number of entries in the inputs.
    pub entries: u64,
    /// The uncompressed bytes of the inputs, if blocks are compressed or decompressed; 0 otherwise.
    pub packed_bytes: u64,
}

impl JobSize {
    /// A job of which only the bytes are known.
    pub fn of_bytes(bytes: u64) -> JobSize {
        JobSize {
            bytes,
            ..JobSize::default()
        }
    }
}

/// What parts of a job cost, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// For each job.
    pub job_ns: f64,
    /// For each byte of the inputs.
    pub byte_ns: f64,
    /// For each entry.
    pub entry_ns: f64,
    /// For each uncompressed byte, if blocks are compressed or decompressed.
    pub packed_byte_ns: f64,
}

impl Costs {
    /// Those of a host's core, as `merge_bench` measures them (`docs/measurements.md`): 116 ns for
    /// an entry of 60 bytes and 163 for one of 156, and lz4 of 1.7 GB/s in and 5 GB/s out.
    pub const CORE: Costs = Costs {
        job_ns: 0.0,
        byte_ns: 0.5,
        entry_ns: 87.0,
        packed_byte_ns: 0.8,
    };

    /// Costs that depend on the bytes alone.
    pub const BYTES: Costs = Costs {
        job_ns: 0.0,
        byte_ns: 1.0,
        entry_ns: 0.0,
        packed_byte_ns: 0.0,
    };

    /// The cost of a job, which is above 0.
    pub fn of(&self, size: &JobSize) -> f64 {
        let sum = self.job_ns
            + self.byte_ns * size.bytes.max(1) as f64
            + self.entry_ns * size.entries as f64
            + self.packed_byte_ns * size.packed_bytes as f64;
        sum.max(f64::MIN_POSITIVE)
    }

    /// Whether every part is a number from 0 to 1e9, and each byte costs something.
    pub fn are_sound(&self) -> bool {
        let parts = [
            self.job_ns,
            self.byte_ns,
            self.entry_ns,
            self.packed_byte_ns,
        ];
        parts.iter().all(|ns| (0.0..=1e9).contains(ns)) && self.byte_ns >= 1e-9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_entries_cost_a_core_more_for_each_byte() {
        let of = |entries| JobSize {
            bytes: 100_000_000,
            entries,
            packed_bytes: 0,
        };
        let (small, large) = (of(100_000_000 / 48), of(100_000_000 / 1040));
        assert!(Costs::CORE.of(&small) > 3.0 * Costs::CORE.of(&large));
        assert_eq!(Costs::BYTES.of(&small), Costs::BYTES.of(&large));
        let packed = JobSize {
            packed_bytes: 200_000_000,
            ..large
        };
        assert!(Costs::CORE.of(&packed) > 3.0 * Costs::CORE.of(&large));
        assert!(Costs::CORE.of(&JobSize::default()) > 0.0);
    }

    #[test]
    fn costs_that_are_no_numbers_are_not_sound() {
        assert!(Costs::CORE.are_sound() && Costs::BYTES.are_sound());
        for wrong in [f64::NAN, f64::INFINITY, -1.0, 1e300] {
            let costs = Costs {
                entry_ns: wrong,
                ..Costs::CORE
            };
            assert!(!costs.are_sound());
        }
        let nothing = Costs {
            byte_ns: 0.0,
            ..Costs::BYTES
        };
        assert!(!nothing.are_sound());
    }
}

//! Latencies and rates of one thread.
//!
//! Threading: plain data.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Figures by name.
pub type Figures = BTreeMap<String, f64>;

/// An operation that takes longer than this is slow.
const SLOW: Duration = Duration::from_millis(1);

/// The latencies of operations of one kind, and how many ended in each second.
pub struct Samples {
    begun: Instant,
    ns: Vec<u32>,
    slow: Duration,
    longest: Duration,
    seconds: Vec<u64>,
}

impl Samples {
    pub fn new(begun: Instant, expected: usize) -> Samples {
        Samples {
            begun,
            ns: Vec::with_capacity(expected),
            slow: Duration::ZERO,
            longest: Duration::ZERO,
            seconds: Vec::new(),
        }
    }

    /// An operation took `took` and ended now.
    pub fn add(&mut self, took: Duration, now: Instant) {
        self.ns
            .push(u32::try_from(took.as_nanos()).unwrap_or(u32::MAX));
        self.longest = self.longest.max(took);
        if took > SLOW {
            self.slow += took;
        }
        let second = now.duration_since(self.begun).as_secs() as usize;
        if self.seconds.len() <= second {
            self.seconds.resize(second + 1, 0);
        }
        self.seconds[second] += 1;
    }

    /// Adds the figures with this prefix. The last second is not whole, so it is no second here.
    pub fn figures(mut self, prefix: &str, took: Duration, figures: &mut Figures) {
        let mut add = |name: &str, value: f64| {
            figures.insert(format!("{prefix}{name}"), value);
        };
        let count = self.ns.len();
        let mean = count as f64 / took.as_secs_f64().max(1e-9);
        add("ops_per_s", mean);
        add("longest_ms", self.longest.as_secs_f64() * 1e3);
        add(
            "slow_percent",
            self.slow.as_secs_f64() * 100.0 / took.as_secs_f64().max(1e-9),
        );
        self.ns.sort_unstable();
        for (name, part) in [("p50_us", 0.5), ("p99_us", 0.99), ("p999_us", 0.999)] {
            let at = ((count as f64 * part) as usize).min(count.saturating_sub(1));
            add(
                name,
                self.ns.get(at).map_or(f64::NAN, |ns| f64::from(*ns) / 1e3),
            );
        }
        let whole = self.seconds.len().saturating_sub(1);
        if let Some(lowest) = self.seconds[..whole].iter().min() {
            add(
                "lowest_second_percent",
                *lowest as f64 * 100.0 / mean.max(1e-9),
            );
        }
    }
}

/// Seconds of processor time that this process has used.
pub fn cpu_s() -> f64 {
    let ticks = procfs::process::Process::myself()
        .and_then(|process| process.stat())
        .map_or(0, |stat| stat.utime + stat.stime);
    ticks as f64 / procfs::ticks_per_second() as f64
}

/// Seconds that this thread was ready to run and waited for a core.
pub fn core_wait_s() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = text
        .split_whitespace()
        .nth(1)
        .and_then(|ns| ns.parse::<f64>().ok());
    ns.map_or(f64::NAN, |ns| ns / 1e9)
}

/// A generator of random numbers (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// The key of a record, of 16 digits.
pub fn key(record: u64) -> [u8; 16] {
    let mut key = [b'0'; 16];
    let (mut at, mut left) = (16, record);
    while left > 0 {
        at -= 1;
        key[at] = b'0' + (left % 10) as u8;
        left /= 10;
    }
    key
}

/// Values of one size that do not compress, each a part of a block of random bytes.
pub struct Values {
    bytes: Vec<u8>,
    len: usize,
}

impl Values {
    pub fn new(len: usize) -> Values {
        let mut random = Random(7);
        let bytes = (0..(1 << 17) + len / 8 + 1).flat_map(|_| random.next().to_le_bytes());
        Values {
            bytes: bytes.collect(),
            len,
        }
    }

    pub fn get(&self, number: u64) -> &[u8] {
        let from = (number as usize).wrapping_mul(61) % (1 << 20);
        &self.bytes[from..from + self.len]
    }
}

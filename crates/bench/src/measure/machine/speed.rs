//! How fast the machine is at the moment, whatever the engine does.
//!
//! Machines that are shared have slow phases. They last for seconds to minutes, so one run has
//! them and the run that it is compared with has not. A probe before and after each run shows
//! them.
//!
//! Threading: [`Speed::now`] starts threads, takes about a twentieth of a second for each core, and
//! must not run while something is measured.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// How often each probe is repeated. What counts is the median.
const REPEATS: usize = 9;
/// The steps of a probe of a core: about four milliseconds.
const STEPS: u32 = 2_000_000;
/// The round trips of a probe between cores.
const ROUND_TRIPS: u32 = 100;

/// What probes of the machine took.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Speed {
    /// What a fixed amount of computation in 512 KiB of memory took on each core, in milliseconds.
    pub core_ms: Vec<f64>,
    /// What a byte took from the first core to the second one and back, over a Unix socket, in
    /// microseconds: mostly the time in which a sleeping thread is woken. `None` with one core.
    pub round_trip_us: Option<f64>,
}

impl Speed {
    /// Probes every core that this process may use.
    pub fn now() -> Speed {
        let cores = usable_cores();
        let probed = cores.iter().map(|core| on_core(*core, || Ok(compute_ms())));
        Speed {
            core_ms: probed.filter_map(Result::ok).collect(),
            round_trip_us: match cores[..] {
                [first, second, ..] => round_trip_us(first, second).ok(),
                _ => None,
            },
        }
    }

    /// How many times as long as in `usual` the slowest of the probes took, and 1 if none can be
    /// compared.
    pub fn slowness(&self, usual: &Speed) -> f64 {
        let cores = self.core_ms.iter().zip(&usual.core_ms).map(|(a, b)| a / b);
        let trips = self.round_trip_us.zip(usual.round_trip_us);
        let all = cores.chain(trips.map(|(a, b)| a / b));
        let slowest = all.filter(|f| f.is_finite()).fold(0.0, f64::max);
        if slowest > 0.0 { slowest } else { 1.0 }
    }

    /// The median of each probe.
    pub fn median_of(all: &[Speed]) -> Speed {
        let cores = all.iter().map(|speed| speed.core_ms.len()).max();
        let core = |core| median(all.iter().filter_map(|s| s.core_ms.get(core).copied()));
        Speed {
            core_ms: (0..cores.unwrap_or(0)).filter_map(core).collect(),
            round_trip_us: median(all.iter().filter_map(|speed| speed.round_trip_us)),
        }
    }
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Runs `probe` on a thread that is kept to this core.
fn on_core<T: Send>(core: u32, probe: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let kept = || {
        keep_to(core)?;
        probe()
    };
    let ended = std::thread::scope(|scope| scope.spawn(kept).join());
    ended.unwrap_or_else(|_| Err(io::Error::other("a probe panicked")))
}

/// The cores that this process may use.
#[cfg(target_os = "linux")]
pub fn usable_cores() -> Vec<u32> {
    let allowed = rustix::thread::sched_getaffinity(None).ok();
    let is_allowed = |core: &u32| allowed.is_some_and(|set| set.is_set(*core as usize));
    (0..rustix::thread::CpuSet::MAX_CPU as u32)
        .filter(is_allowed)
        .collect()
}

/// The cores are not known here.
#[cfg(not(target_os = "linux"))]
pub fn usable_cores() -> Vec<u32> {
    Vec::new()
}

/// The calling thread runs on this core only.
#[cfg(target_os = "linux")]
fn keep_to(core: u32) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core as usize);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Threads cannot be kept to cores here.
#[cfg(not(target_os = "linux"))]
fn keep_to(_core: u32) -> io::Result<()> {
    Err(io::Error::other("this system keeps no thread to a core"))
}

/// Draws numbers and adds them to memory that fits the second cache.
fn compute_ms() -> f64 {
    let mut memory = vec![1u64; 1 << 16];
    let mut once = || {
        let start = Instant::now();
        let mut drawn = 1u64;
        for _ in 0..STEPS {
            drawn ^= drawn << 13;
            drawn ^= drawn >> 7;
            drawn ^= drawn << 17;
            let place = &mut memory[(drawn & 0xffff) as usize];
            *place = place.wrapping_add(drawn);
        }
        std::hint::black_box(&memory);
        start.elapsed().as_secs_f64() * 1e3
    };
    median((0..REPEATS).map(|_| once())).unwrap_or(f64::NAN)
}

fn round_trip_us(first: u32, second: u32) -> io::Result<f64> {
    let (mut here, mut there) = UnixStream::pair()?;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut byte = [0];
            let mut answer = || -> io::Result<()> {
                keep_to(second)?;
                while there.read(&mut byte)? == 1 {
                    there.write_all(&byte)?;
                }
                Ok(())
            };
            // If it fails, its end of the socket is closed, and the other thread sees that.
            let _ = answer();
            drop(there);
        });
        let trips = move || {
            let mut byte = [0];
            let mut took = Vec::new();
            for _ in 0..REPEATS {
                let start = Instant::now();
                for _ in 0..ROUND_TRIPS {
                    here.write_all(&byte)?;
                    here.read_exact(&mut byte)?;
                }
                took.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(ROUND_TRIPS));
            }
            median(took.into_iter()).ok_or_else(|| io::Error::other("no round trip"))
        };
        on_core(first, trips)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speed(core_ms: &[f64], round_trip_us: Option<f64>) -> Speed {
        Speed {
            core_ms: core_ms.to_vec(),
            round_trip_us,
        }
    }

    #[test]
    fn the_slowest_probe_counts() {
        let usual = Speed::median_of(&[
            speed(&[4.0, 5.0], Some(10.0)),
            speed(&[9.0, 5.0], None),
            speed(&[4.0, 1.0], Some(10.0)),
        ]);
        assert_eq!(usual, speed(&[4.0, 5.0], Some(10.0)));
        assert_eq!(speed(&[4.0, 5.0], Some(12.0)).slowness(&usual), 1.2);
        assert_eq!(speed(&[4.0, 10.0], Some(5.0)).slowness(&usual), 2.0);
        assert_eq!(speed(&[], None).slowness(&usual), 1.0);
        assert_eq!(Speed::median_of(&[]), Speed::default());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_is_probed() {
        let found = Speed::now();
        assert!(!found.core_ms.is_empty(), "{found:?}");
        assert!(found.core_ms.iter().all(|ms| *ms > 0.0), "{found:?}");
        assert_eq!(found.round_trip_us.is_some(), found.core_ms.len() > 1);
    }
}

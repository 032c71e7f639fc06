//! Predicts from measurements whether a device pays off.
//!
//! For one job, the time that the host needs is compared with the time that the device needs. Each
//! time is a sum of stages. Parts of a stage that overlap take as long as the slowest of them:
//!
//! | shape | on the host | on the device |
//! | --- | --- | --- |
//! | held | max(receive inputs, merge, send outputs, storage of the device) | max(merge, storage) |
//! | shared | max(merge, storage) | max(merge, storage) |
//! | lent | merge | send inputs + merge + receive outputs |
//!
//! For a job on the device, the round trips of its order, its progress and its verification are
//! added. Two things are assumed: a merge on several cores is as many times faster, and jobs of the
//! host and of the device do not slow each other down. If host and device use the same cores, the
//! second assumption is wrong, and nothing is gained.
//!
//! Invariant: a pure function. A measurement that is zero means "not known", and the resource is
//! then assumed to take no time.
//!
//! Threading: plain values.

use std::fmt;

use super::merge::Format;
use crate::wire::machine::{Machine, MergeRate};

/// The bytes of input tables of the job for which the times are compared.
pub const JOB_BYTES: u64 = 64 << 20;

/// The most subjobs of this job. The engine makes no subjob with fewer than 8 MiB of input
/// (`SUBJOB_MIN_BYTES` in `crates/engine/src/jobs/runner.rs`), and each thread of a job runs one.
pub const JOB_SUBJOBS_MAX: u32 = (JOB_BYTES / (8 << 20)) as u32;

/// The round trips of a job: its order, its progress, its outcome, the syncs of its tables, and the
/// reads that verify them.
const ROUND_TRIPS: f64 = 24.0;

/// The part of a job's bytes that is read to verify it.
const VERIFIED: f64 = 0.025;

/// The device pays off if it is faster than the host by at least this factor.
const FASTER: f64 = 1.05;

/// A slower device pays off if it spares the host at least this part of its processor time, and has
/// at least [`NOT_MUCH_SLOWER`] of the host's speed.
const SPARED: f64 = 0.5;
const NOT_MUCH_SLOWER: f64 = 0.5;

/// Where the tables of a job lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// On the device.
    Held,
    /// In a folder that both sides can see.
    Shared,
    /// On the host.
    Lent,
}

impl Shape {
    /// All shapes.
    pub const ALL: [Shape; 3] = [Shape::Held, Shape::Shared, Shape::Lent];
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Shape::Held => "held",
            Shape::Shared => "shared",
            Shape::Lent => "lent",
        })
    }
}

/// The measured link.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Link {
    /// The median time of a request and its answer, in nanoseconds.
    pub round_trip_ns: u64,
    /// Bytes per second to the device.
    pub up_bytes_per_s: f64,
    /// Bytes per second from the device.
    pub down_bytes_per_s: f64,
    /// Processor time of the host for each byte that it sends, in nanoseconds.
    pub up_cpu_ns_per_byte: f64,
    /// Processor time of the host for each byte that it receives, in nanoseconds.
    pub down_cpu_ns_per_byte: f64,
}

/// The resources of one side for a job.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Side {
    /// How fast one core merges.
    pub merge: MergeRate,
    /// The number of cores that work on a job, at most [`JOB_SUBJOBS_MAX`].
    pub threads: u32,
}

impl Side {
    /// Seconds for each byte of input.
    fn merge_s_per_byte(&self) -> f64 {
        self.cpu_ns_per_byte() / 1e9 / f64::from(self.threads.max(1))
    }

    /// Processor time for each byte of input, in nanoseconds.
    fn cpu_ns_per_byte(&self) -> f64 {
        self.merge.busy_ns() as f64 / (self.merge.in_bytes as f64).max(1.0)
    }
}

/// The resource for which a job on the device waits longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binds {
    /// The cores of the device.
    Cores,
    /// The storage of the device.
    Storage,
    /// The link to the device.
    LinkUp,
    /// The link from the device.
    LinkDown,
    /// The time of a request and its answer.
    RoundTrip,
}

impl fmt::Display for Binds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Binds::Cores => "the device's cores",
            Binds::Storage => "the device's storage",
            Binds::LinkUp => "the link to the device",
            Binds::LinkDown => "the link from the device",
            Binds::RoundTrip => "the round trip",
        })
    }
}

/// Whether the device pays off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The device's jobs end sooner than those of the host.
    Faster,
    /// The device's jobs end no sooner, but they spare the host at least half of the processor
    /// time.
    SparesHost,
    /// The device does not pay off.
    No,
}

impl Verdict {
    /// The verdict as a word: `yes`, `spares-host` or `no`.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Faster => "yes",
            Verdict::SparesHost => "spares-host",
            Verdict::No => "no",
        }
    }
}

/// What a device would do for the jobs of one shape and format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// The shape.
    pub shape: Shape,
    /// The format.
    pub format: Format,
    /// Whether the device pays off.
    pub verdict: Verdict,
    /// The speed of a job on the device, divided by its speed on the host.
    pub times_faster: f64,
    /// Bytes of input tables that a job on the device merges per second.
    pub device_bytes_per_s: f64,
    /// Bytes of input tables that a job on the host merges per second.
    pub host_bytes_per_s: f64,
    /// The part of the host's processor time that a job on the device spares. It is negative if the
    /// job costs the host more.
    pub spared_cpu: f64,
    /// The bytes that cross the link for each byte of input, if the device runs the job.
    pub link_bytes_per_byte: f64,
    /// The resource for which the job on the device waits longest.
    pub binds: Binds,
}

/// Seconds for each byte, or 0 if the rate is not known.
fn per_byte(bytes_per_s: f64) -> f64 {
    match bytes_per_s > 0.0 {
        true => 1.0 / bytes_per_s,
        false => 0.0,
    }
}

/// Predicts one shape and format. The bytes of output for each byte of input are taken from the
/// merge that the host measured.
pub fn predict(
    shape: Shape,
    format: Format,
    link: &Link,
    host: &Side,
    device: &Side,
    machine: &Machine,
) -> Prediction {
    let kept = host.merge.out_bytes as f64 / (host.merge.in_bytes as f64).max(1.0);
    let up = per_byte(link.up_bytes_per_s);
    let down = per_byte(link.down_bytes_per_s);
    let storage = per_byte(machine.read_bytes_per_s as f64)
        + kept * per_byte(machine.write_bytes_per_s as f64);
    let (here, there) = (host.merge_s_per_byte(), device.merge_s_per_byte());
    let rounds = ROUND_TRIPS * link.round_trip_ns as f64 / 1e9 / JOB_BYTES as f64;
    let verified = VERIFIED * (1.0 + kept);
    let verify_down = match shape {
        Shape::Held => verified,
        _ => 0.0,
    };
    let on_host = match shape {
        Shape::Held => here.max(down).max(kept * up).max(storage),
        Shape::Shared => here.max(storage),
        Shape::Lent => here,
    };
    // The stages run one after the other. Each is paired with the resource that it waits for.
    let stages: Vec<(f64, Binds)> = match shape {
        Shape::Held | Shape::Shared => vec![
            match there >= storage {
                true => (there, Binds::Cores),
                false => (storage, Binds::Storage),
            },
            (verify_down * down, Binds::LinkDown),
            (rounds, Binds::RoundTrip),
        ],
        Shape::Lent => vec![
            (up, Binds::LinkUp),
            (there, Binds::Cores),
            (kept * down, Binds::LinkDown),
            (rounds, Binds::RoundTrip),
        ],
    };
    let on_device: f64 = stages.iter().map(|(time, _)| time).sum();
    let longest = stages.iter().max_by(|a, b| a.0.total_cmp(&b.0));
    let binds = longest.map_or(Binds::Cores, |(_, binds)| *binds);
    // The host's processor time for each byte of input.
    let merging = host.cpu_ns_per_byte();
    let (receives, sends) = (link.down_cpu_ns_per_byte, link.up_cpu_ns_per_byte);
    let (cpu_host, cpu_device, crosses) = match shape {
        Shape::Held => (
            merging + receives + kept * sends,
            verified * (merging + receives),
            verified,
        ),
        Shape::Shared => (merging, verified * merging, 0.0),
        Shape::Lent => (
            merging,
            sends + kept * receives + verified * merging,
            1.0 + kept,
        ),
    };
    let times_faster = match on_device > 0.0 {
        true => on_host / on_device,
        false => 1.0,
    };
    let spared_cpu = match cpu_host > 0.0 {
        true => 1.0 - cpu_device / cpu_host,
        false => 0.0,
    };
    let verdict = if times_faster >= FASTER {
        Verdict::Faster
    } else if spared_cpu >= SPARED && times_faster >= NOT_MUCH_SLOWER {
        Verdict::SparesHost
    } else {
        Verdict::No
    };
    Prediction {
        shape,
        format,
        verdict,
        times_faster,
        device_bytes_per_s: per_byte(on_device),
        host_bytes_per_s: per_byte(on_host),
        spared_cpu,
        link_bytes_per_byte: crosses,
        binds,
    }
}

#[cfg(test)]
mod tests {
    use siltstone_table::Codec;

    use super::*;

    const FORMAT: Format = Format {
        codec: Codec::None,
        level: 0,
        value_bytes: 128,
    };

    /// A core that merges this many bytes per second, and keeps three quarters of them.
    fn side(bytes_per_s: f64, threads: u32) -> Side {
        let ns = (1e9 * 1e6 / bytes_per_s) as u64;
        Side {
            merge: MergeRate {
                in_bytes: 1_000_000,
                out_bytes: 750_000,
                ns,
                cpu_ns: ns,
            },
            threads,
        }
    }

    fn link(bytes_per_s: f64) -> Link {
        Link {
            round_trip_ns: 100_000,
            up_bytes_per_s: bytes_per_s,
            down_bytes_per_s: bytes_per_s,
            up_cpu_ns_per_byte: 0.5,
            down_cpu_ns_per_byte: 0.5,
        }
    }

    fn machine(bytes_per_s: u64) -> Machine {
        Machine {
            write_bytes_per_s: bytes_per_s,
            read_bytes_per_s: bytes_per_s,
            ..Machine::default()
        }
    }

    #[test]
    fn held_tables_need_no_link() {
        let slow = link(100e6);
        let fast_storage = machine(4_000_000_000);
        let same = side(400e6, 1);
        let held = predict(Shape::Held, FORMAT, &slow, &same, &same, &fast_storage);
        // The host would wait for the link: 100 MB/s instead of 400.
        assert!((3.0..4.0).contains(&held.times_faster), "{held:?}");
        assert_eq!((held.verdict, held.binds), (Verdict::Faster, Binds::Cores));
        assert!(held.spared_cpu > 0.9 && held.link_bytes_per_byte < 0.1);
        // A slow storage slows down both.
        let slow_storage = machine(50_000_000);
        let held = predict(Shape::Held, FORMAT, &slow, &same, &same, &slow_storage);
        assert_eq!(held.binds, Binds::Storage);
        assert!(held.times_faster < FASTER && held.verdict == Verdict::SparesHost);
    }

    #[test]
    fn shared_tables_pay_by_cores() {
        let (unix, storage) = (link(4e9), machine(0));
        let host = side(200e6, 1);
        let twice = predict(
            Shape::Shared,
            FORMAT,
            &unix,
            &host,
            &side(200e6, 2),
            &storage,
        );
        assert!((1.9..2.0).contains(&twice.times_faster), "{twice:?}");
        let same = predict(Shape::Shared, FORMAT, &unix, &host, &host, &storage);
        assert_eq!(same.verdict, Verdict::SparesHost);
        let weak = predict(
            Shape::Shared,
            FORMAT,
            &unix,
            &host,
            &side(50e6, 1),
            &storage,
        );
        assert_eq!((weak.verdict, weak.binds), (Verdict::No, Binds::Cores));
    }

    #[test]
    fn lent_tables_pay_where_a_byte_is_much_work() {
        let ten = link(1.1e9);
        let storage = machine(1_000_000_000);
        let cheap = predict(
            Shape::Lent,
            FORMAT,
            &ten,
            &side(800e6, 1),
            &side(800e6, 4),
            &storage,
        );
        assert_eq!(cheap.verdict, Verdict::No, "{cheap:?}");
        assert_eq!(cheap.binds, Binds::LinkUp);
        let costly = predict(
            Shape::Lent,
            FORMAT,
            &ten,
            &side(60e6, 1),
            &side(60e6, 4),
            &storage,
        );
        assert_eq!(costly.verdict, Verdict::Faster, "{costly:?}");
        assert_eq!(costly.binds, Binds::Cores);
        assert!((costly.link_bytes_per_byte - 1.75).abs() < 1e-9);
        // A slow link back is the only bottleneck.
        let back = Link {
            down_bytes_per_s: 10e6,
            ..ten
        };
        let slow = predict(
            Shape::Lent,
            FORMAT,
            &back,
            &side(60e6, 1),
            &side(60e6, 4),
            &storage,
        );
        assert_eq!((slow.verdict, slow.binds), (Verdict::No, Binds::LinkDown));
        // This link costs more processor time than it saves.
        let dear = Link {
            up_cpu_ns_per_byte: 40.0,
            ..ten
        };
        let dear = predict(
            Shape::Lent,
            FORMAT,
            &dear,
            &side(60e6, 1),
            &side(60e6, 1),
            &storage,
        );
        assert!(
            dear.spared_cpu < 0.0 && dear.verdict == Verdict::No,
            "{dear:?}"
        );
    }

    #[test]
    fn a_far_device_waits_for_round_trips() {
        let far = Link {
            round_trip_ns: 200_000_000,
            ..link(1e9)
        };
        let host = side(200e6, 1);
        let p = predict(
            Shape::Shared,
            FORMAT,
            &far,
            &host,
            &side(200e6, 8),
            &machine(0),
        );
        assert_eq!((p.verdict, p.binds), (Verdict::No, Binds::RoundTrip));
    }

    #[test]
    fn figures_that_are_not_known_give_finite_answers() {
        for shape in Shape::ALL {
            let (link, side) = (Link::default(), Side::default());
            let p = predict(shape, FORMAT, &link, &side, &side, &Machine::default());
            for figure in [p.times_faster, p.spared_cpu, p.device_bytes_per_s] {
                assert!(figure.is_finite(), "{p:?}");
            }
        }
    }
}

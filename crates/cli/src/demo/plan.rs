//! The amount of work of the demo: one plan for all sections, made from the arguments.

use std::time::Duration;

use siltstone::{Options, SyncMode};
use siltstone_plasma::Config;

use crate::args::DemoArgs;

/// The plan; see the module.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed of everything random.
    pub seed: u64,
    /// The number of particles; each is a pair in every dump.
    pub particles: u64,
    /// The number of simulation steps before each dump, counted from the start. In these steps the
    /// instability starts, grows and saturates.
    pub dump_steps: Vec<u64>,
    /// The number of point reads.
    pub reads: u64,
    /// The number of short scans.
    pub scans: u64,
    /// The number of times that the writer is killed.
    pub kills: u32,
    /// The time of the kill after the writer's first acknowledgement is drawn evenly from here
    pub kill_after_min: Duration,
    /// to there.
    pub kill_after_max: Duration,
    /// Divides the sizes of memtables and levels, so that a small demo has as many of them as a
    /// large one.
    shrink: u64,
}

impl Plan {
    /// The plan for these arguments.
    pub fn of(args: &DemoArgs) -> Plan {
        // 400,000 or five million pairs.
        let (particles, dump_steps): (u64, Vec<u64>) = match args.quick {
            true => (100_000, vec![0, 150, 200, 300]),
            false => (1_000_000, vec![0, 120, 170, 220, 320]),
        };
        let dumps = dump_steps.len() as u64;
        // Both beams have the same number of particles.
        let particles = args
            .pairs
            .map_or(particles, |pairs| pairs / dumps / 2 * 2)
            .max(2);
        let pairs = particles * dumps;
        let ms = Duration::from_millis;
        let (kill_after_min, kill_after_max) = if args.quick {
            (ms(60), ms(400))
        } else {
            (ms(250), ms(2_000))
        };
        Plan {
            seed: args.seed,
            particles,
            dump_steps,
            reads: (pairs / 10).clamp(1_000, 300_000),
            scans: (pairs / 2_000).clamp(50, 1_000),
            kills: args.kills.unwrap_or(5),
            kill_after_min,
            kill_after_max,
            shrink: match (pairs < 1_000_000, args.device) {
                (true, false) => 8,
                (false, false) => 1,
                // More and smaller compactions, so that many move.
                (true, true) => 32,
                (false, true) => 4,
            },
        }
    }

    /// The simulation.
    pub fn simulation(&self) -> Config {
        Config {
            particles: self.particles as usize,
            seed: self.seed,
            ..Config::default()
        }
    }

    /// The store's options.
    pub fn options(&self) -> Options {
        let shrunk = |bytes: u64| bytes / self.shrink;
        Options {
            // A kill of the process loses nothing in this mode, as the third section shows.
            sync: SyncMode::Never,
            memtable_bytes: shrunk(16 << 20),
            table_bytes: shrunk(8 << 20),
            level1_bytes: shrunk(64 << 20),
            log_segment_bytes: shrunk(16 << 20),
            log_bytes_max: shrunk(256 << 20),
            ..Options::default()
        }
    }

    /// The options of the writer that will be killed. Its memtables and levels are so small that
    /// flushes and compactions never pause, whatever the plan. Other opens of the store have other
    /// options.
    pub fn writer_options() -> Options {
        Options {
            create_if_missing: false,
            sync: SyncMode::Never,
            memtable_bytes: 512 << 10,
            table_bytes: 1 << 20,
            l0_trigger_count: 3,
            level1_bytes: 8 << 20,
            log_segment_bytes: 1 << 20,
            log_bytes_max: 16 << 20,
            ..Options::default()
        }
    }
}

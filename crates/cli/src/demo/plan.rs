//! How much the demo does: one plan for all sections, from the arguments.

use std::time::Duration;

use siltstone::{Options, SyncMode};
use siltstone_plasma::Config;

use crate::args::DemoArgs;

/// See the module.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seed of everything random.
    pub seed: u64,
    /// Particles; each is a pair in every dump.
    pub particles: u64,
    /// Steps before each dump, counted from the start. The instability is born, grows and saturates
    /// in them.
    pub dump_steps: Vec<u64>,
    /// Point reads.
    pub reads: u64,
    /// Short scans.
    pub scans: u64,
    /// How often the writer is killed.
    pub kills: u32,
    /// When, after its first acknowledgement: drawn evenly from here
    pub kill_after_min: Duration,
    /// to there.
    pub kill_after_max: Duration,
    /// Divides sizes of memtables and levels, so that a small demo has as many of them as a large
    /// one.
    shrink: u64,
}

impl Plan {
    /// The plan that the arguments ask for.
    pub fn of(args: &DemoArgs) -> Plan {
        // 400,000 or five million pairs.
        let (particles, dump_steps): (u64, Vec<u64>) = match args.quick {
            true => (100_000, vec![0, 150, 200, 300]),
            false => (1_000_000, vec![0, 120, 170, 220, 320]),
        };
        let dumps = dump_steps.len() as u64;
        // Both beams have as many.
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
            shrink: if pairs < 1_000_000 { 8 } else { 1 },
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
            // A kill of the process loses nothing in this mode; that is what the third section is
            // about.
            sync: SyncMode::Never,
            memtable_bytes: shrunk(16 << 20),
            table_bytes: shrunk(8 << 20),
            level1_bytes: shrunk(64 << 20),
            log_segment_bytes: shrunk(16 << 20),
            log_bytes_max: shrunk(256 << 20),
            ..Options::default()
        }
    }

    /// The options of the writer that will be killed: so small memtables and levels that flushes
    /// and compactions never pause, whatever the plan. They are the writer's own business; each
    /// open brings its options.
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

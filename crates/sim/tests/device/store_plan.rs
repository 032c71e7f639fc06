//! What happens in a run of `stores.rs`, drawn from its seed: where the parts of the store lie, how
//! its compactions are scheduled, who is killed, which machines lose power, and what happens to the
//! link.

use siltstone::{Options, ScheduleOptions, Value};
use siltstone_sim::gpu::GpuPlan;
use siltstone_sim::remote::{Act, Tap, draw_losses};
use siltstone_sim::rng::Rng;
use siltstone_storage::CrashPolicy;
use siltstone_storage::link::LinkFaults;

use super::jobs::MOMENTS;
use super::{bad_link, good_link};

/// The schedule in which the host runs all compactions, and leaves the values on the device.
const SEPARATED: &str = "host-only, separated-transfer=on";

/// The policy that `silt` sets for stores on devices.
const NEAR_DATA: &str = "near-data";

/// The schedules of [`Plan::held`].
const HELD_SCHEDULES: [&str; 6] = [
    "default",
    "default, fallback=off",
    SEPARATED,
    NEAR_DATA,
    NEAR_DATA,
    "near-data, fallback=off",
];

/// The policies of other runs. With the last one the device gets no job, so it is not drawn for a
/// store that uses the device for nothing else.
pub const POLICIES: [&str; 5] = [
    "default",
    NEAR_DATA,
    "async-single",
    "sync-split",
    "host-only",
];

/// The requests at which one side is killed first, if jobs are lent. Each such job makes them, and
/// they are rare among all requests.
const LENT_REQUESTS: [&str; 8] = [
    "create",
    "append",
    "open",
    "begin_job",
    "wait_job",
    "read_outcome",
    "read",
    "rename",
];

/// The same, if the device shares the folder of the store.
const SHARED_REQUESTS: [&str; 4] = ["prove_folder", "begin_job", "wait_job", "read_outcome"];

/// Where the parts of the store lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    /// All parts lie on the device.
    Held,
    /// The log and the manifest lie on the host, and the tables on the device.
    Tables,
    /// All parts lie on the host, and compactions are lent to the device.
    Lent,
    /// All parts lie in a folder that the host and the device share. Both are processes of one
    /// machine, so they lose power together.
    Shared,
}

impl Arrangement {
    /// All of them.
    pub const ALL: [Arrangement; 4] = [
        Arrangement::Held,
        Arrangement::Tables,
        Arrangement::Lent,
        Arrangement::Shared,
    ];

    /// The name, for coverage.
    pub fn name(self) -> &'static str {
        match self {
            Arrangement::Held => "held",
            Arrangement::Tables => "tables",
            Arrangement::Lent => "lent",
            Arrangement::Shared => "shared",
        }
    }

    /// Whether all parts lie on the host, so that a store needs the device for its jobs only.
    pub fn is_local(self) -> bool {
        matches!(self, Arrangement::Lent | Arrangement::Shared)
    }

    /// Whether the log lies on the host, so that a kill of the host loses nothing that was
    /// acknowledged.
    pub fn has_local_log(self) -> bool {
        self != Arrangement::Held
    }
}

/// What happens in a run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub arrangement: Arrangement,
    pub faults: LinkFaults,
    pub acts: Vec<Act>,
    /// The percentage of the device's kills in which its machine loses power.
    pub power_percent: u64,
    /// Whether such a loss of power loses everything that was not synced.
    loses_all: bool,
    /// The percentage of the host's kills in which its machine loses power.
    pub host_power_percent: u64,
    /// Whether the device's storage fails syncs of tables.
    pub failing_syncs: bool,
    /// How many bytes of a file the client keeps.
    pub tail_bytes: usize,
    /// After how many bytes a file is synced although nobody asked for it; 0 means never.
    pub sync_bytes: usize,
    /// How many bytes of tables the device keeps for lent work; 0 means that it takes none.
    pub keep_bytes: u64,
    pub has_ghost: bool,
    /// The GPU of the device, if it has one. Each process of the device opens it anew.
    pub gpu: Option<GpuPlan>,
    /// The number of lives of the host, and the number of its operations in each life.
    pub lives: (usize, usize),
    /// The longest pause before an operation, in milliseconds. Calls of a local storage take no
    /// time, so without pauses the device would have no time for a job.
    pub pause_ms: u64,
    /// The limit of what compactions read and write per second; 0 means none. With a limit, those
    /// on the host take time, too, so that the device gets some of them.
    background_bytes_per_s: u64,
    /// The schedule of the store, as text.
    pub schedule: String,
}

impl Plan {
    /// Draws a run as all runs were before other arrangements were added: the device holds the
    /// store, and a loss of power loses everything that was not synced. If such a seed fails, it
    /// can be kept as a run of this plan.
    pub fn held(seed: u64) -> Plan {
        let mut rng = Rng::new(seed ^ 0x5708);
        let mut acts = Vec::new();
        let mut power_percent = 0;
        let mut faults = good_link();
        match rng.below(6) {
            0 => acts.push(Act::KillHost),
            1 => acts.push(Act::KillDevice),
            2 | 3 => {
                acts.push(Act::KillDevice);
                power_percent = *rng.pick(&[40, 100]);
            }
            4 => {
                acts.extend([Act::KillHost, Act::KillDevice, Act::Cut, Act::Double]);
                power_percent = 30;
            }
            _ => {
                acts.extend([Act::Cut, Act::CutWithin, Act::Double]);
                faults = bad_link(&mut rng);
                faults.cut /= 8;
                faults.freeze /= 6;
                faults.stall_chance /= 6;
            }
        }
        Plan {
            seed,
            arrangement: Arrangement::Held,
            faults,
            acts,
            power_percent,
            loses_all: true,
            host_power_percent: 0,
            failing_syncs: rng.chance(20),
            tail_bytes: *rng.pick(&[4 << 10, 4 << 10, 32 << 20]),
            // This uses random numbers of its own, so that earlier seeds do the same as before.
            sync_bytes: *Rng::new(seed ^ 0x5A11).pick(&[0, 1 << 10, 8 << 20]),
            keep_bytes: 0,
            has_ghost: rng.chance(40),
            gpu: None,
            lives: (3, 150),
            pause_ms: 0,
            background_bytes_per_s: 0,
            // This uses random numbers of its own, so that earlier seeds do the same as before.
            schedule: (*Rng::new(seed ^ 0x5CED).pick(&HELD_SCHEDULES)).to_string(),
        }
    }

    /// Draws a run. Three in ten are those of [`Plan::held`].
    pub fn draw(seed: u64) -> Plan {
        let held = Plan::held(seed);
        // These random numbers are separate, so that the others are the same as before.
        let mut rng = Rng::new(seed ^ 0x54A9);
        let arrangement = match rng.below(20) {
            0..6 => return held,
            6..9 => Arrangement::Held,
            9..14 => Arrangement::Tables,
            14..17 => Arrangement::Lent,
            _ => Arrangement::Shared,
        };
        // So are these.
        let mut of_gpu = Rng::new(seed ^ 0x69B0);
        let has_gpu = of_gpu.chance(40);
        let plan = Plan {
            arrangement,
            loses_all: false,
            gpu: has_gpu.then(|| GpuPlan::draw(&mut of_gpu)),
            schedule: draw_schedule(arrangement, &mut rng),
            ..held
        };
        let plan = match arrangement.has_local_log() {
            true => Plan {
                host_power_percent: *rng.pick(&[0, 50, 100]),
                pause_ms: 2 + rng.below(12),
                ..plan
            },
            false => plan,
        };
        // A job that the device has no room for would wait for ever if the host must not run it.
        let keeps: &[u64] = match plan.has_fallback() {
            true => &[192 << 10, 512 << 10, 16 << 20],
            false => &[16 << 20],
        };
        match arrangement {
            Arrangement::Lent => Plan {
                keep_bytes: *rng.pick(keeps),
                background_bytes_per_s: *rng.pick(&[2 << 20, 8 << 20]),
                ..plan
            },
            Arrangement::Shared => Plan {
                background_bytes_per_s: *rng.pick(&[2 << 20, 8 << 20]),
                ..plan
            },
            Arrangement::Held | Arrangement::Tables => plan,
        }
    }

    /// The options of the store.
    pub fn options(&self) -> Options {
        let mut options = Options {
            memtable_bytes: 64 << 10,
            table_bytes: 64 << 10,
            level1_bytes: 64 << 10,
            level_factor: 2,
            l0_trigger_count: 2,
            log_segment_bytes: 64 << 10,
            log_bytes_max: 8 << 20,
            block_bytes: 1 << 10,
            block_cache_bytes: 1 << 20,
            background_bytes_per_s: self.background_bytes_per_s,
            ..Options::default()
        };
        let value = Value::from(self.schedule.as_str());
        options.set("schedule", &value).expect("a schedule");
        options
    }

    fn switches(&self) -> ScheduleOptions {
        self.options().schedule
    }

    /// The name of the schedule's policy.
    pub fn policy(&self) -> &str {
        self.schedule.split(',').next().unwrap_or_default()
    }

    /// Whether the host may leave values on the device.
    pub fn may_separate(&self) -> bool {
        !self.arrangement.is_local() && self.switches().separated_transfer
    }

    /// Whether compactions of the host read columns first.
    pub fn reads_columns_first(&self) -> bool {
        !self.may_separate() && self.switches().columns_first
    }

    /// Whether the host may run what the device has failed with.
    pub fn has_fallback(&self) -> bool {
        self.switches().fallback
    }

    pub fn is_near_data(&self) -> bool {
        self.policy() == NEAR_DATA
    }

    /// Whether each compaction is divided between the host and the device.
    pub fn divides(&self) -> bool {
        self.policy() == "sync-split"
    }

    pub fn kills_device(&self) -> bool {
        self.acts.contains(&Act::KillDevice)
    }

    /// Draws what a loss of power does to the device's data that was not synced.
    pub fn losses(&self, rng: &mut Rng) -> CrashPolicy {
        match self.loses_all {
            true => CrashPolicy::LoseUnsynced,
            false => draw_losses(rng),
        }
    }

    /// If the host may leave values on the device, or uses it for jobs only, the first kill of most
    /// runs is at a request that such jobs make, because these are rare among all requests.
    pub fn aim(&self, tap: &Tap) {
        let mut rng = Rng::new(self.seed ^ 0x5EBA);
        let is_kill = |act: &&Act| matches!(act, Act::KillHost | Act::KillDevice);
        let kills: Vec<Act> = self.acts.iter().filter(is_kill).copied().collect();
        let is_local = self.arrangement.is_local();
        if kills.is_empty() || !(is_local || self.may_separate()) || !rng.chance(90) {
            return;
        }
        let act = *rng.pick(&kills);
        let moment = *rng.pick(&MOMENTS);
        if is_local {
            let name = match self.arrangement {
                Arrangement::Shared => *rng.pick(&SHARED_REQUESTS),
                _ => *rng.pick(&LENT_REQUESTS),
            };
            return tap.aim(act, moment, name, 1 + rng.below(3));
        }
        match rng.chance(35) {
            true => tap.aim(act, moment, "begin_rebuild", 1 + rng.below(3)),
            false => tap.aim(act, moment, "survivors", 1 + rng.below(10)),
        }
    }
}

/// Draws a policy, and switches that differ from it.
fn draw_schedule(arrangement: Arrangement, rng: &mut Rng) -> String {
    let count = match arrangement {
        Arrangement::Held | Arrangement::Tables => POLICIES.len(),
        Arrangement::Lent | Arrangement::Shared => POLICIES.len() - 1,
    };
    let policy = POLICIES[rng.index(count)];
    let mut schedule = policy.to_string();
    // Without another side than the host, the switch is refused.
    if policy != "host-only" && rng.chance(30) {
        schedule.push_str(", fallback=off");
    }
    for name in ["separated-transfer", "columns-first"] {
        if rng.chance(40) {
            let value = if rng.chance(60) { "on" } else { "off" };
            schedule.push_str(&format!(", {name}={value}"));
        }
    }
    schedule
}

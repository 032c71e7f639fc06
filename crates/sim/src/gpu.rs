//! The GPU of a random trial: an emulated device with little memory, so that jobs run in pieces.
//! Some of these devices fail at a call, flip a bit of a copy, or never end a kernel.
//!
//! [`Gpu`] is the executor on such a device. It counts what became of its jobs, and notes the jobs
//! that it did not do. As a listener of its store, it sees which of these the host did.
//!
//! Invariant: a device that flips a bit has an executor that checks all blocks (`verifies_all`).
//! Without that, a flipped bit of a block is found only with the probabilities of
//! `docs/rfc/0014-gpu.md`, section 9, and a trial must not fail by chance.
//!
//! Threading: shared; one mutex of std, which is never held where tasks can be switched.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use siltstone::{Event, EventListener};
use siltstone_gpu::device::emulated::{EmulatedDevice, Faults};
use siltstone_gpu::{GpuExecutor, GpuOptions, Strategy, Transfer};
use siltstone_storage::Runtime;
use siltstone_table::exec::{Costs, ExecContext, ExecError, Executor, ExecutorState, Side};
use siltstone_table::job::Job;
use siltstone_table::job::outcome::Outcome;

use crate::coverage::Coverage;
use crate::rng::Rng;

/// The size of an emulated GPU, and what goes wrong on it.
#[derive(Clone, Copy, Debug)]
pub struct GpuPlan {
    /// The seed of the order in which the device works. With 0 it does everything at once.
    pub seed: u64,
    /// The number of jobs at once.
    pub lanes: usize,
    /// The memory of the device for each of them.
    pub lane_bytes: u64,
    /// Whether the host checks all blocks of all jobs.
    pub verifies_all: bool,
    /// Whether the store derives all entries of all outcomes again.
    pub verifies_outcomes: bool,
    /// See [`GpuOptions`].
    pub rank_runs_max: usize,
    /// What goes wrong.
    pub faults: Faults,
}

impl Default for GpuPlan {
    fn default() -> GpuPlan {
        GpuPlan {
            seed: 1,
            lanes: 1,
            lane_bytes: 4 << 20,
            verifies_all: false,
            verifies_outcomes: false,
            rank_runs_max: 0,
            faults: Faults::default(),
        }
    }
}

impl GpuPlan {
    /// A random plan.
    pub fn draw(rng: &mut Rng) -> GpuPlan {
        let faults = draw_faults(rng);
        let seed = match rng.chance(10) {
            true => 0,
            false => rng.draw() | 1,
        };
        GpuPlan {
            seed,
            verifies_outcomes: seed >> 24 & 3 == 1,
            lanes: 1 + rng.index(2),
            // In the smallest memory no job fits.
            lane_bytes: *rng.pick(&[128 << 10, 512 << 10, 512 << 10, 1 << 20, 2 << 20]),
            verifies_all: rng.chance(50) || faults.flipped_copy > 0,
            rank_runs_max: *rng.pick(&[0, 3, 100]),
            faults,
        }
    }
}

/// Half of the devices have no faults. A job takes some 500 calls, 30 copies and 150 kernels.
fn draw_faults(rng: &mut Rng) -> Faults {
    let kind = rng.below(12);
    let most = *rng.pick(&[1, 1, 1, 8]);
    let mut at = |count: u64| 1 + rng.below(count * most);
    match kind {
        0..3 => Faults {
            failing_call: at(500),
            is_sticky: kind > 0,
            ..Faults::default()
        },
        3 | 4 => Faults {
            flipped_copy: at(30),
            flipped_bit: rng.draw(),
            ..Faults::default()
        },
        5 => Faults {
            hanging_kernel: at(150),
            ..Faults::default()
        },
        _ => Faults::default(),
    }
}

/// The inputs of a job: how many tables, and their bytes.
type Inputs = (u64, u64);

#[derive(Default)]
struct State {
    /// The jobs that it did not do, and that nobody else has done since.
    undone: Vec<Inputs>,
    reached: Coverage,
    /// The executor's counts when they were last added to the coverage.
    counted: BTreeMap<String, u64>,
    /// What was met so far of the faults.
    met: Vec<&'static str>,
}

/// See the module.
pub struct Gpu {
    device: Arc<EmulatedDevice>,
    executor: GpuExecutor,
    lane_count: usize,
    faults: Faults,
    state: Mutex<State>,
}

impl Gpu {
    /// Opens the executor on a device of its own.
    ///
    /// # Errors
    /// The device fails meanwhile.
    pub fn open(runtime: &Runtime, name: &str, plan: GpuPlan) -> Result<Arc<Gpu>, String> {
        // A job overlaps its pieces if it has two parts of the memory.
        let parts = 1 + plan.seed % 2;
        let memory_bytes = plan.lane_bytes * plan.lanes as u64 * parts;
        let device = EmulatedDevice::with_faults(runtime, memory_bytes, plan.seed, plan.faults);
        let device = Arc::new(device);
        let options = GpuOptions {
            memory_bytes_max: memory_bytes,
            pinned_bytes_max: 256 << 10,
            jobs: plan.lanes,
            lanes: parts as usize,
            strategy: Strategy::ALL[(plan.seed >> 8) as usize % 5],
            transfer: match plan.seed >> 16 & 3 {
                0 => Transfer::Plain,
                // Files in memory have no descriptors, so they go through the ring.
                1 => Transfer::Direct,
                _ => Transfer::Pipeline,
            },
            verifies_all: plan.verifies_all,
            verifies_outcomes: plan.verifies_outcomes,
            job_bytes_min: 0,
            rank_runs_max: plan.rank_runs_max,
            ..GpuOptions::default()
        };
        let executor = GpuExecutor::open(name, device.clone(), runtime, options)?;
        Ok(Arc::new(Gpu {
            device,
            executor,
            lane_count: plan.lanes,
            faults: plan.faults,
            state: Mutex::default(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A count of the executor.
    pub fn count(&self, name: &str) -> u64 {
        let counters = self.executor.counters();
        let found = counters.iter().find(|(of, _)| of == name);
        found.map_or(0, |(_, count)| *count)
    }

    /// The numbers of calls, copies and kernels of the device so far.
    pub fn device_counts(&self) -> (u64, u64, u64) {
        self.device.counts()
    }

    /// The coverage since the last call.
    pub fn take_reached(&self) -> Coverage {
        let counters = self.executor.counters();
        let (calls, copies, kernels) = self.device.counts();
        let faults = &self.faults;
        let is_met = |planned: u64, reached: u64| planned > 0 && reached >= planned;
        let call = match faults.is_sticky {
            true => "gpu.met.sticky_call",
            false => "gpu.met.failing_call",
        };
        let mut state = self.lock();
        let met = [
            (call, is_met(faults.failing_call, calls)),
            ("gpu.met.flipped_copy", is_met(faults.flipped_copy, copies)),
            (
                "gpu.met.hanging_kernel",
                is_met(faults.hanging_kernel, kernels),
            ),
        ];
        for (name, is_met) in met {
            if is_met && !state.met.contains(&name) {
                state.met.push(name);
                state.reached.add(name);
            }
        }
        for (name, count) in counters {
            let before = state.counted.insert(name.clone(), count).unwrap_or(0);
            if count > before {
                let name = name.replace("gpu_", "gpu.");
                state.reached.add_count(&name, count - before);
            }
        }
        std::mem::take(&mut state.reached)
    }
}

impl Executor for Gpu {
    fn name(&self) -> &str {
        self.executor.name()
    }

    fn side(&self) -> Side {
        self.executor.side()
    }

    fn accepts(&self, job: &Job) -> Result<(), String> {
        self.executor.accepts(job)
    }

    fn slots(&self) -> usize {
        self.executor.slots()
    }

    fn tasks(&self) -> usize {
        self.executor.tasks()
    }

    fn held_bytes(&self) -> u64 {
        self.executor.held_bytes()
    }

    fn is_verified_whole(&self) -> bool {
        self.executor.is_verified_whole()
    }

    fn costs(&self) -> Costs {
        self.executor.costs()
    }

    fn drops_into(&self, depth: u32) -> bool {
        self.executor.drops_into(depth)
    }

    fn state(&self) -> ExecutorState {
        self.executor.state()
    }

    fn counters(&self) -> Vec<(String, u64)> {
        self.executor.counters()
    }

    fn run(&self, job: &Job, ctx: &ExecContext) -> Result<Outcome, ExecError> {
        let before = self.count("gpu_pieces");
        let result = self.executor.run(job, ctx);
        let pieces = self.count("gpu_pieces") - before;
        let mut state = self.lock();
        // With more lanes, the pieces may be those of another job.
        if self.lane_count == 1 && result.is_ok() && pieces > job.subjobs() as u64 {
            state.reached.add("gpu.several_pieces");
        }
        state.reached.add(match &result {
            Ok(_) => "gpu.done",
            Err(ExecError::Cancelled) => "gpu.cancelled",
            Err(ExecError::Declined { .. }) => "gpu.declined",
            Err(ExecError::Failed(_)) => "gpu.failed",
        });
        if result.is_err() {
            let bytes = job.inputs.iter().map(|input| input.len_bytes).sum();
            state.undone.push((job.inputs.len() as u64, bytes));
        }
        result
    }
}

impl EventListener for Gpu {
    fn on_event(&self, event: &Event) {
        let Event::Compacted {
            in_table_count,
            in_bytes,
            side,
            ..
        } = event
        else {
            return;
        };
        let mut state = self.lock();
        let inputs = (*in_table_count, *in_bytes);
        if side == "host"
            && let Some(at) = state.undone.iter().position(|undone| *undone == inputs)
        {
            state.undone.swap_remove(at);
            state.reached.add("gpu.host_did_its_job");
        }
    }
}

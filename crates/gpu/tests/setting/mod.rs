//! A job with its files, what the tables have that the host's executor makes of it, and executors
//! on an emulated device that run it.
#![allow(dead_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use siltstone_gpu::device::emulated::{EmulatedDevice, Faults};
use siltstone_gpu::{GpuExecutor, GpuOptions};
use siltstone_storage::{Runtime, Storage};
use siltstone_table::exec::{
    CpuExecutor, ExecContext, ExecError, Executor, Inputs, RemarkListener,
};
use siltstone_table::job::Job;
use siltstone_table::job::outcome::Outcome;

use crate::common::epoch;
use crate::same;

/// See the module.
pub struct Setting {
    pub runtime: Runtime,
    /// Where outputs are created.
    pub storage: Arc<dyn Storage>,
    pub inputs: Arc<dyn Inputs>,
    pub job: Job,
    /// Who gets the remarks of executors.
    pub remarks: Option<Arc<dyn RemarkListener>>,
    attempt: AtomicU64,
    /// What is in the tables of the host's executor.
    pub want: Vec<Vec<u8>>,
    /// The number of objects if nothing is left behind.
    pub count: usize,
}

impl Setting {
    /// Runs the job with the host's executor, and deletes the tables after they were read.
    pub fn of(
        runtime: Runtime,
        storage: Arc<dyn Storage>,
        (job, inputs): (Job, Arc<dyn Inputs>),
    ) -> Setting {
        let mut setting = Setting {
            runtime,
            storage,
            inputs,
            job,
            remarks: None,
            attempt: AtomicU64::new(1),
            want: Vec::new(),
            count: 0,
        };
        let host = CpuExecutor::new();
        let outcome = host.run(&setting.job, &setting.context()).unwrap();
        setting.want = setting.contents(&outcome);
        setting.delete(&outcome);
        setting.count = setting.storage.list().unwrap().len();
        setting
    }

    pub fn context(&self) -> ExecContext {
        let (runtime, inputs) = (self.runtime.clone(), Arc::clone(&self.inputs));
        ExecContext {
            max_parallel: 2,
            remarks: self.remarks.clone(),
            ..ExecContext::new(runtime, inputs, self.storage.clone(), epoch())
        }
    }

    /// The job with names of its own for the outputs.
    pub fn next_attempt(&self) -> Job {
        let mut job = self.job.clone();
        job.output.attempt = 1 + self.attempt.fetch_add(1, Ordering::Relaxed);
        job
    }

    /// What is in the tables, apart from how it is compressed.
    pub fn contents(&self, outcome: &Outcome) -> Vec<Vec<u8>> {
        let names = outcome.tables.iter().map(|table| &table.name);
        let contents = names.map(|name| same::content(&*self.storage, name));
        contents.collect()
    }

    pub fn delete(&self, outcome: &Outcome) {
        for table in &outcome.tables {
            self.storage.delete(epoch(), &table.name).unwrap();
        }
    }

    /// An executor on a device with as much memory as the options take.
    pub fn open_as(
        &self,
        options: GpuOptions,
        seed: u64,
        faults: Faults,
    ) -> (Arc<EmulatedDevice>, Result<GpuExecutor, String>) {
        let bytes = options.memory_bytes_max;
        let device = EmulatedDevice::with_faults(&self.runtime, bytes, seed, faults);
        let device = Arc::new(device);
        let gpu = GpuExecutor::open("gpu0", device.clone(), &self.runtime, options);
        (device, gpu)
    }

    /// Runs the job. An outcome must have the right tables. Nothing else is left behind.
    pub fn run(&self, gpu: &dyn Executor) -> Result<(), ExecError> {
        self.run_in(gpu, &self.context())
    }

    /// As [`Setting::run`], in a context of the caller's.
    pub fn run_in(&self, gpu: &dyn Executor, ctx: &ExecContext) -> Result<(), ExecError> {
        self.run_and(gpu, ctx, |outcome| {
            assert!(self.contents(outcome) == self.want, "wrong tables");
        })
    }

    /// Runs the job, and looks at its outcome. Nothing else is left behind.
    pub fn run_and(
        &self,
        gpu: &dyn Executor,
        ctx: &ExecContext,
        look: impl FnOnce(&Outcome),
    ) -> Result<(), ExecError> {
        let result = gpu.run(&self.next_attempt(), ctx).map(|outcome| {
            look(&outcome);
            self.delete(&outcome);
        });
        let names = self.storage.list().unwrap();
        assert_eq!(names.len(), self.count, "left behind: {names:?}");
        result
    }
}

pub fn is_declined(result: &Result<(), ExecError>) -> bool {
    matches!(result, Err(ExecError::Declined { .. }))
}

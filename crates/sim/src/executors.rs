//! Executors besides the host's own that are slow, refuse, decline, fail, lie, hang and wake too
//! late. Whatever they do, the store's contents must match the model, and an executor that the
//! engine has abandoned must not change a folder.
//!
//! [`OtherExecutors`] are the executors of one life of a store. Each executor is a [`Device`] with
//! its own behaviour, except for a [`Gpu`], which some lives have. The executors outlive the store:
//! a job that hangs may wake when the store is closed, or when the next store is open on the same
//! folder. A job on a GPU does not outlive its store, even if a kernel hangs, because it notices
//! that it is cancelled.
//!
//! Threading: shared by the tasks of a run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use siltstone::EventListener;
use siltstone_storage::{MemoryStorage, Runtime, Storage};
use siltstone_table::exec::Executor;

use crate::checker::Check;
use crate::coverage::Coverage;
use crate::device::{Behaviour, Device};
use crate::gpu::{Gpu, GpuPlan};
use crate::rng::Rng;

/// See the module.
#[derive(Clone, Default)]
pub struct OtherExecutors {
    devices: Vec<Arc<Device>>,
    gpu: Option<Arc<Gpu>>,
    /// Whether a close is followed by a wait for hanging executors, so that the folder can be
    /// compared. Otherwise they wake in the next life.
    is_awaited: bool,
}

/// The names in a folder, with length and bytes.
pub(crate) type Folder = BTreeMap<String, Vec<u8>>;

impl OtherExecutors {
    /// Draws zero to two executors, and in four lives of ten a GPU. Their behaviour does not depend
    /// on later draws from `rng`.
    pub(crate) fn draw(runtime: &Runtime, rng: &mut Rng) -> OtherExecutors {
        let count = rng.below(4).saturating_sub(1);
        OtherExecutors::of(runtime, count, 40, rng)
    }

    /// Draws one or two executors, and in one life of ten a GPU.
    pub(crate) fn draw_some(runtime: &Runtime, rng: &mut Rng) -> OtherExecutors {
        let count = 1 + rng.below(2);
        OtherExecutors::of(runtime, count, 10, rng)
    }

    /// A GPU and no other executor.
    pub(crate) fn only(gpu: Option<Arc<Gpu>>) -> OtherExecutors {
        OtherExecutors {
            gpu,
            ..OtherExecutors::default()
        }
    }

    fn of(runtime: &Runtime, count: u64, gpu_percent: u64, rng: &mut Rng) -> OtherExecutors {
        let mut of_gpu = rng.clone().fork(12);
        let has_gpu = of_gpu.chance(gpu_percent);
        // Without a GPU, because it cannot be opened, the store has its other executors.
        let gpu = has_gpu.then(|| Gpu::open(runtime, "gpu-0", GpuPlan::draw(&mut of_gpu)).ok());
        let mut own = rng.clone().fork(11);
        let devices = (0..count).map(|i| {
            let misbehaves_percent = *rng.pick(&[0, 30, 100]);
            let (behaviour, plan) = Behaviour::draw(own.fork(i), misbehaves_percent);
            Device::with_behaviour(runtime, &format!("stranger-{i}"), plan, behaviour)
        });
        OtherExecutors {
            devices: devices.collect(),
            gpu: gpu.flatten(),
            is_awaited: own.chance(60),
        }
    }

    /// The executors as a store gets them.
    pub(crate) fn executors(&self) -> Vec<Arc<dyn Executor>> {
        let devices = self.devices.iter();
        let devices = devices.map(|device| device.clone() as Arc<dyn Executor>);
        devices
            .chain(self.gpu.clone().map(|gpu| gpu as _))
            .collect()
    }

    /// The listener of their store, if it is to have one.
    pub(crate) fn listener(&self) -> Option<Arc<dyn EventListener>> {
        self.gpu.clone().map(|gpu| gpu as _)
    }

    /// The number of their jobs that hang.
    pub(crate) fn hung(&self) -> usize {
        self.devices.iter().map(|device| device.hung()).sum()
    }

    /// Whether a job of this keyspace hangs.
    pub(crate) fn hangs_in(&self, keyspace: u32) -> bool {
        self.any(|ran| ran.keyspace == keyspace && ran.may_be_abandoned && ran.end.is_none())
    }

    /// Whether an executor may have left this table in the folder. With `is_closed`, tables of
    /// abandoned attempts may stay until the next open, and so may the tables that an earlier
    /// attempt at the same work had left to them.
    pub(crate) fn may_leave(&self, name: &str, is_closed: bool) -> bool {
        self.any(|ran| {
            let is_taken_over = || {
                self.any(|next| {
                    next.keyspace == ran.keyspace
                        && next.may_be_abandoned
                        && next.begin >= ran.begin
                })
            };
            let may_stay = || is_closed && (ran.may_be_abandoned || is_taken_over());
            name.starts_with(&ran.prefix) && (ran.may_leave_orphans || may_stay())
        })
    }

    fn any(&self, is_it: impl Fn(&crate::device::Ran) -> bool) -> bool {
        let all = self.devices.iter();
        all.flat_map(|device| device.ran()).any(|ran| is_it(&ran))
    }

    /// Adds the coverage since the last call.
    pub(crate) fn take_reached(&self, coverage: &mut Coverage) {
        for device in &self.devices {
            coverage.merge(&device.take_reached());
        }
        if let Some(gpu) = &self.gpu {
            coverage.merge(&gpu.take_reached());
        }
    }

    /// Waits until hanging executors have woken and returned. The folders of the closed store must
    /// not change.
    pub(crate) fn change_nothing(
        &self,
        runtime: &Runtime,
        media: &[&MemoryStorage],
        coverage: &mut Coverage,
    ) -> Check {
        if !self.is_awaited || self.hung() == 0 {
            return Ok(());
        }
        let folders = || {
            media
                .iter()
                .map(|m| folder_of(m))
                .collect::<Result<Vec<_>, _>>()
        };
        let before = folders()?;
        // No executor hangs that long.
        for _ in 0..60 {
            if self.hung() == 0 {
                break;
            }
            runtime.sleep(Duration::from_secs(60));
        }
        if self.hung() > 0 {
            return Err("an executor does not return".into());
        }
        for (before, after) in before.iter().zip(folders()?) {
            same(before, &after)?;
        }
        coverage.add("elsewhere.woke_after_the_close");
        self.take_reached(coverage);
        Ok(())
    }
}

fn folder_of(medium: &MemoryStorage) -> Result<Folder, String> {
    let read = |name: &str| -> siltstone_storage::Result<Vec<u8>> {
        let file = medium.open(name)?;
        let mut bytes = vec![0; file.len() as usize];
        file.read_at(0, &mut bytes)?;
        Ok(bytes)
    };
    let objects = medium.list().map_err(|e| e.to_string())?.into_iter();
    let files = objects.map(|object| {
        let bytes = read(&object.name).map_err(|e| e.to_string())?;
        Ok((object.name, bytes))
    });
    files.collect()
}

fn same(before: &Folder, after: &Folder) -> Check {
    let difference = |name: &str, how: &str| {
        Err(format!(
            "an executor woke after the store was closed, and {name} {how}"
        ))
    };
    for (name, bytes) in before {
        match after.get(name) {
            None => return difference(name, "is gone"),
            Some(found) if found != bytes => return difference(name, "has changed"),
            Some(_) => {}
        }
    }
    let new = after.keys().find(|name| !before.contains_key(*name));
    new.map_or(Ok(()), |name| difference(name, "is new"))
}

//! The first section: what the GPU is, how fast its link is, and what a launch costs.
//!
//! Threading: one thread, which polls.

use std::sync::Arc;
use std::time::Instant;

use siltstone_gpu::device::{Device, DeviceError, Event, PinnedBuffer, Region, Stream};

use super::report::{CopyRow, DeviceReport, Label, SpreadRow};
use super::setup::{Limit, Setup};

/// The sizes of copies.
const COPY_BYTES: [u64; 6] = [4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];

/// The kernel that is launched. It adds 32 numbers.
const KERNEL: &str = "scan_sums32";

/// The link of a device: a stream for each direction, with memory on both sides.
struct Link {
    device: Arc<dyn Device>,
    memory: [Region; 2],
    pinned: [PinnedBuffer; 2],
    streams: [Stream; 2],
}

/// Waits without a pause, because what is measured is short.
fn wait(device: &dyn Device, event: Event) -> Result<(), DeviceError> {
    while !device.is_done(event)? {
        std::hint::spin_loop();
    }
    device.release(event);
    Ok(())
}

impl Link {
    fn open(device: Arc<dyn Device>, bytes: u64) -> Result<Link, DeviceError> {
        Ok(Link {
            memory: [device.alloc(bytes)?, device.alloc(bytes)?],
            pinned: [
                device.alloc_pinned(bytes as usize)?,
                device.alloc_pinned(bytes as usize)?,
            ],
            streams: [device.stream()?, device.stream()?],
            device,
        })
    }

    /// Copies so often in these directions, and returns the seconds.
    fn copy(&mut self, bytes: u64, times: u64, ways: (bool, bool)) -> Result<f64, DeviceError> {
        let [to, from] = self.memory.map(|region| Region { bytes, ..region });
        let [stream_in, stream_out] = self.streams;
        let range = 0..bytes as usize;
        let began = Instant::now();
        for _ in 0..times {
            if ways.0 {
                self.device
                    .copy_in(stream_in, to, &self.pinned[0], range.clone())?;
            }
            if ways.1 {
                self.device
                    .copy_out(stream_out, &mut self.pinned[1], range.clone(), from)?;
            }
        }
        for stream in self.streams {
            wait(&*self.device, self.device.record(stream)?)?;
        }
        Ok(began.elapsed().as_secs_f64())
    }

    fn launch(&self) -> Result<(), DeviceError> {
        let [items, sums] = self.memory;
        let mut args = Vec::new();
        // The arguments of `scan_sums32`: two arrays and a number.
        for word in [items.at, 32, sums.at, 1, 32] {
            args.extend_from_slice(&word.to_le_bytes());
        }
        self.device.launch(self.streams[0], KERNEL, 1, 32, &args)
    }

    fn copies(&mut self, setup: &Setup, label: Label) -> Result<Vec<CopyRow>, DeviceError> {
        let most = self.memory[0].bytes;
        let mut rows = Vec::new();
        for bytes in COPY_BYTES.into_iter().filter(|bytes| *bytes <= most) {
            let times = (setup.sized(512 << 20, 1 << 20) / bytes).clamp(1, 4096);
            for (direction, ways) in [
                ("in", (true, false)),
                ("out", (false, true)),
                ("both", (true, true)),
            ] {
                // The first copies set things up.
                self.copy(bytes, 2, ways)?;
                let seconds = self.copy(bytes, times, ways)?;
                let copied = bytes * times * (u64::from(ways.0) + u64::from(ways.1));
                rows.push(CopyRow {
                    bytes,
                    direction,
                    gb_per_s: copied as f64 / seconds.max(1e-9) / 1e9,
                    label,
                });
            }
        }
        Ok(rows)
    }

    /// Microseconds from a launch until the host knows that it is done, and microseconds of a
    /// launch among many.
    fn launches(&self, setup: &Setup) -> Result<(Option<SpreadRow>, Option<f64>), DeviceError> {
        let times = setup.sized(1000, 20);
        let mut waits_us = Vec::new();
        for _ in 0..times {
            let began = Instant::now();
            self.launch()?;
            wait(&*self.device, self.device.record(self.streams[0])?)?;
            waits_us.push(began.elapsed().as_secs_f64() * 1e6);
        }
        let began = Instant::now();
        for _ in 0..times {
            self.launch()?;
        }
        wait(&*self.device, self.device.record(self.streams[0])?)?;
        let launch_us = began.elapsed().as_secs_f64() * 1e6 / times as f64;
        Ok((SpreadRow::of(waits_us), Some(launch_us)))
    }
}

/// Measures the device.
///
/// # Errors
/// The driver's, as text.
pub fn measure(setup: &Setup, limit: Limit) -> Result<DeviceReport, String> {
    let began = Instant::now();
    let device = setup.device()?;
    let open_s = began.elapsed().as_secs_f64();
    let facts = device.facts();
    let label = setup.label();
    let version = |(major, minor): (u32, u32)| format!("{major}.{minor}");
    let mut report = DeviceReport {
        name: facts.name,
        memory_bytes: facts.memory_bytes,
        memory_free_bytes: facts.memory_free_bytes,
        capability: version(facts.capability),
        driver_version: version(facts.driver_version),
        pci_bus_id: facts.pci_bus_id,
        multiprocessor_count: facts.multiprocessor_count,
        open_s,
        copies: Vec::new(),
        launch_and_wait_us: None,
        launch_us: None,
        label,
    };
    let text = |e: DeviceError| e.to_string();
    let mut link = Link::open(device, setup.sized(64 << 20, 1 << 20)).map_err(text)?;
    // A kernel reads what it adds.
    let fill = link.device.fill(link.streams[0], link.memory[0], 0);
    fill.map_err(text)?;
    (report.launch_and_wait_us, report.launch_us) = link.launches(setup).map_err(text)?;
    if !limit.is_over() {
        report.copies = link.copies(setup, label).map_err(text)?;
    }
    Ok(report)
}

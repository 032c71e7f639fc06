//! How fast copies between the host and a GPU are, through pinned memory.
//!
//! Threading: one task. Other work on the link makes the figures worse.

use std::time::Duration;

use siltstone_storage::Runtime;

use crate::device::{Device, DeviceError, Event, Stream};

/// The bytes of one copy.
const COPY_BYTES: usize = 32 << 20;

/// The copies in each direction that are measured. One more comes before them.
const COPIES: u32 = 8;

/// The pause between two questions whether the copies have passed.
const PAUSE: Duration = Duration::from_millis(1);

/// How long the copies of one direction may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The speed of the link between the host and a GPU. A direction is `None` if the device's clock
/// shows no time, as that of the emulated device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkSpeed {
    /// From the host to the GPU.
    pub in_bytes_per_s: Option<f64>,
    /// From the GPU to the host.
    pub out_bytes_per_s: Option<f64>,
}

/// Measures the link, with the clock of the GPU. The memory for this is freed with the device.
///
/// # Errors
/// The driver's, or the copies did not end within ten seconds.
pub fn measure_link(device: &dyn Device, runtime: &Runtime) -> Result<LinkSpeed, DeviceError> {
    let region = device.alloc(COPY_BYTES as u64)?;
    let mut buffer = device.alloc_pinned(COPY_BYTES)?;
    let stream = device.stream()?;
    let mut copy_in = || device.copy_in(stream, region, &buffer, 0..COPY_BYTES);
    let in_bytes_per_s = measure(device, runtime, stream, &mut copy_in)?;
    let mut copy_out = || device.copy_out(stream, &mut buffer, 0..COPY_BYTES, region);
    let out_bytes_per_s = measure(device, runtime, stream, &mut copy_out)?;
    Ok(LinkSpeed {
        in_bytes_per_s,
        out_bytes_per_s,
    })
}

/// Bytes a second of a copy that is repeated.
fn measure(
    device: &dyn Device,
    runtime: &Runtime,
    stream: Stream,
    copy: &mut dyn FnMut() -> Result<(), DeviceError>,
) -> Result<Option<f64>, DeviceError> {
    copy()?;
    let begin = device.record(stream)?;
    for _ in 0..COPIES {
        copy()?;
    }
    let end = device.record(stream)?;
    wait(device, runtime, end)?;
    // It lies before the other one, but each event has passed only when it was asked.
    wait(device, runtime, begin)?;
    let seconds = device.seconds_between(begin, end)?;
    device.release(begin);
    device.release(end);
    let bytes = COPY_BYTES as f64 * f64::from(COPIES);
    Ok((seconds > 0.0).then(|| bytes / seconds))
}

fn wait(device: &dyn Device, runtime: &Runtime, event: Event) -> Result<(), DeviceError> {
    let begun = runtime.now();
    while !device.is_done(event)? {
        if runtime.now().since(begun) > PATIENCE {
            return Err(DeviceError::Call {
                what: "measure_link",
                detail: format!("the copies did not end within {} s", PATIENCE.as_secs()),
                is_sticky: false,
            });
        }
        runtime.sleep(PAUSE);
    }
    Ok(())
}

#[cfg(all(test, feature = "emulate"))]
mod tests {
    use super::*;
    use crate::device::emulated::EmulatedDevice;

    #[test]
    fn a_device_without_a_clock_has_no_speed() {
        let runtime = Runtime::threads();
        let device = EmulatedDevice::new(&runtime, 64 << 20, 1);
        let speed = measure_link(&device, &runtime).unwrap();
        assert_eq!(speed, LinkSpeed::default());
        let small = EmulatedDevice::new(&runtime, 1 << 20, 1);
        assert!(measure_link(&small, &runtime).is_err());
    }
}

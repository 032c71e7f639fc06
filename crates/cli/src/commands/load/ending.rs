//! Watches a load from a thread of its own: says which device it waits for, and ends it soon after
//! a signal, also while its thread waits for the store.
//!
//! Nothing else would be seen of a load that waits for a device, because flushes wait for as long
//! as the device is away. So after [`AWAY`] a line says which device it is, for how long, and why.
//!
//! A signal ends a load between two records. But the thread of the load may wait long in a call of
//! the store: in a write that is stalled, or for a device that does not answer. So a thread of its
//! own watches for signals. If the load still runs [`STALL_GRACE`] after one, the stalls of its
//! writes are cancelled, and the load ends in order. If parts of the store are on devices and it
//! still runs [`DEVICE_GRACE`] later, the process ends without a close of the store, as at a second
//! signal. The next open then recovers the store as after a kill, and the same command goes on
//! after the last batch that arrived. A store in local folders is always closed, because the disk
//! answers.
//!
//! Threading: the thread holds a handle of the store. It ends at most [`LOOK`] after the load.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::Duration;

use indicatif::ProgressBar;
use siltstone::Store;
use siltstone_device::Device;

use crate::commands::opened::Opened;
use crate::signals::{Signal, Signals};

/// How long a load may go on after a signal before the stalls of its writes are cancelled.
const STALL_GRACE: Duration = Duration::from_secs(2);
/// How long a load with devices may go on after that.
const DEVICE_GRACE: Duration = Duration::from_secs(3);
/// How often the thread looks whether the load has ended.
const LOOK: Duration = Duration::from_millis(500);
/// How long a device cannot be reached before a line says so.
const AWAY: Duration = Duration::from_secs(3);

/// The running load. It has ended when this is dropped, which must come after the close of the
/// store.
pub struct Running {
    _sender: Sender<()>,
    ended: Option<Receiver<()>>,
}

impl Running {
    /// Nothing is watched before [`Running::watch`].
    pub fn new() -> Running {
        let (sender, ended) = channel();
        Running {
            _sender: sender,
            ended: Some(ended),
        }
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn watch(
        &mut self,
        signals: &Signals,
        store: &Opened,
        bar: &ProgressBar,
    ) -> std::io::Result<()> {
        let Some(ended) = self.ended.take() else {
            return Ok(());
        };
        let watched = Watched {
            signals: signals.try_clone()?,
            store: Store::clone(store),
            is_on_device: store.is_on_device(),
            devices: store.devices().to_vec(),
            bar: bar.clone(),
            ended,
        };
        let thread = std::thread::Builder::new().name("silt-ending".into());
        thread.spawn(move || watched.run()).map(drop)
    }
}

struct Watched {
    signals: Signals,
    store: Store,
    is_on_device: bool,
    devices: Vec<Arc<Device>>,
    bar: ProgressBar,
    ended: Receiver<()>,
}

impl Watched {
    fn run(self) {
        let mut away = vec![false; self.devices.len()];
        let signal = loop {
            if let Some(signal) = self.signals.wait_for(LOOK) {
                break signal;
            }
            if self.ended.try_recv() == Err(TryRecvError::Disconnected) {
                return;
            }
            for (device, was_away) in self.devices.iter().zip(&mut away) {
                self.say_if_away(device, was_away);
            }
        };
        if self.has_ended_within(STALL_GRACE) {
            return;
        }
        self.store.cancel_stalls();
        if self.is_on_device && !self.has_ended_within(DEVICE_GRACE) {
            self.give_up(signal);
        }
    }

    /// Says once that a device cannot be reached, and once that it can be again.
    fn say_if_away(&self, device: &Device, was_away: &mut bool) {
        let line = match device.report().down {
            Some((time, why)) if time >= AWAY && !*was_away => format!(
                "silt: the device at {} could not be reached for {} s ({why}); {}",
                device.address(),
                time.as_secs(),
                match device.is_for_jobs() {
                    true => "its compactions run elsewhere",
                    false => "the load waits for it, and an interrupt ends the load",
                }
            ),
            None if *was_away => format!("silt: the device at {} answers again", device.address()),
            _ => return,
        };
        *was_away = !*was_away;
        self.bar.suspend(|| eprintln!("{line}"));
    }

    fn has_ended_within(&self, time: Duration) -> bool {
        self.ended.recv_timeout(time) == Err(RecvTimeoutError::Disconnected)
    }

    fn give_up(&self, signal: Signal) -> ! {
        self.bar.suspend(|| {
            eprintln!(
                "silt: {signal}; the load waited too long for a device, so the store was not \
                 closed: records that had not arrived there are lost, the next command that opens \
                 the store recovers it as after a kill, and the same command goes on after the \
                 last batch that is there"
            );
        });
        std::process::exit(signal.exit_code().into());
    }
}

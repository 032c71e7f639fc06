//! SIGINT and SIGTERM end a command at a point that it chooses: the first signal is only recorded,
//! and the second ends the process at once.
//!
//! Invariant: a read that waits for input ends when a signal comes. A handler alone does not end
//! it, because the kernel restarts the call; so [`Signals::wait`] waits for the input and for a
//! pipe that the handlers write to.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

/// A signal that asked the command to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal(u8);

impl Signal {
    /// The exit code that a shell reports for a command that the signal ended.
    pub fn exit_code(self) -> u8 {
        128 + self.0
    }

    /// The signal that this error of reading stands for, if it stands for one.
    pub fn of(error: &io::Error) -> Option<Signal> {
        error.get_ref()?.downcast_ref().copied()
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match i32::from(self.0) {
            SIGINT => f.write_str("stopped by SIGINT"),
            SIGTERM => f.write_str("stopped by SIGTERM"),
            other => write!(f, "stopped by signal {other}"),
        }
    }
}

impl std::error::Error for Signal {}

/// Receives the signals.
pub struct Signals {
    /// The number of the last signal, 0 before the first.
    came: Arc<AtomicUsize>,
    /// The handlers write to the other end of this.
    woken: UnixStream,
    waker: UnixStream,
}

impl Signals {
    /// Nothing is caught before [`Signals::watch`]: a signal ends the process.
    ///
    /// # Errors
    /// The pipe cannot be created.
    pub fn new() -> io::Result<Signals> {
        let (woken, waker) = UnixStream::pair()?;
        Ok(Signals {
            came: Arc::default(),
            woken,
            waker,
        })
    }

    /// Receives the same signals, for another thread.
    ///
    /// # Errors
    /// The pipe cannot be used twice.
    pub fn try_clone(&self) -> io::Result<Signals> {
        Ok(Signals {
            came: self.came.clone(),
            woken: self.woken.try_clone()?,
            waker: self.waker.try_clone()?,
        })
    }

    /// From now on the first signal is recorded and the second one ends the process at once.
    ///
    /// # Errors
    /// A handler cannot be installed.
    pub fn watch(&self) -> io::Result<()> {
        let is_second = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // The handlers run in this order.
            flag::register_conditional_shutdown(signal, 128 + signal, is_second.clone())?;
            flag::register(signal, is_second.clone())?;
            flag::register_usize(signal, self.came.clone(), signal as usize)?;
            low_level::pipe::register(signal, self.waker.try_clone()?)?;
        }
        Ok(())
    }

    /// The signal that came, if one did.
    pub fn came(&self) -> Option<Signal> {
        match u8::try_from(self.came.load(Ordering::Relaxed)) {
            Ok(0) | Err(_) => None,
            Ok(signal) => Some(Signal(signal)),
        }
    }

    /// Waits for a signal, at most for this time.
    pub fn wait_for(&self, time: Duration) -> Option<Signal> {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if self.came().is_some() || left.is_zero() {
                return self.came();
            }
            let left = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            // An error other than an interruption would come again at once.
            let mut woken = [PollFd::new(&self.woken, PollFlags::IN)];
            match poll(&mut woken, Some(&left)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => std::thread::sleep(time),
            }
        }
    }

    /// Waits until `input` can be read.
    ///
    /// # Errors
    /// The [`Signal`] that came before or while it waited; those of the call.
    pub fn wait(&self, input: impl AsFd) -> io::Result<()> {
        let mut both = [
            PollFd::new(&input, PollFlags::IN),
            PollFd::new(&self.woken, PollFlags::IN),
        ];
        loop {
            let polled = poll(&mut both, None);
            if let Some(signal) = self.came() {
                return Err(io::Error::other(signal));
            }
            match polled {
                Err(rustix::io::Errno::INTR) => {}
                polled => return polled.map(|_| ()).map_err(io::Error::from),
            }
        }
    }
}

//! The options of a client.
//!
//! Threading: plain values.

use std::time::Duration;

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// A description of the host, for the device's messages. If it is empty, the device gets the
    /// name of the machine and the number of the process.
    pub host: String,
    /// How long a call waits without a sign of life from the device before it fails as
    /// `Unreachable`.
    pub time_limit: Duration,
    /// How long a connection may be silent while an answer is due before another connection is
    /// tried.
    pub silence: Duration,
    /// The maximum number of connections.
    pub connections_max: usize,
    /// How many bytes of each file are kept, in case the device is restarted.
    pub tail_bytes: usize,
    /// After this many bytes, a file that is being written is synced although nobody asked for it,
    /// so that all bytes that are not durable are among those that are kept. 0 means never. If more
    /// than [`tail_bytes`](Self::tail_bytes) are answered and not durable, a device that is
    /// restarted during a sync may have lost some of them, and the file fails.
    pub sync_bytes: usize,
    /// How many bytes of each file may be without an answer.
    pub unanswered_bytes: usize,
    /// How many bytes are read ahead, for all open objects together.
    pub ahead_bytes: usize,
    /// Whether finished objects are read through descriptors, if the device passes them.
    pub descriptors: bool,
    /// For how long the session tries again to get the lease of a folder while another host has it.
    /// The lease of a host that died becomes free after about ten seconds.
    pub lease_wait: Duration,
    /// The maximum number of bytes per second in each direction, for a store that is opened by
    /// [`open`](crate::open()). `None` means no limit.
    pub link_bytes_per_s: Option<u64>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            host: String::new(),
            time_limit: Duration::from_secs(30),
            silence: Duration::from_secs(3),
            connections_max: 32,
            tail_bytes: 32 << 20,
            sync_bytes: 8 << 20,
            unanswered_bytes: 8 << 20,
            ahead_bytes: 16 << 20,
            descriptors: true,
            lease_wait: Duration::ZERO,
            link_bytes_per_s: None,
        }
    }
}

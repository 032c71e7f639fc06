//! How a device serves: what it offers to hosts, its limits, and its times.
//!
//! Threading: plain data.

use std::path::PathBuf;
use std::time::Duration;

use super::access::Access;
use super::executors::Preferred;

/// How a device serves.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The device's name, for messages.
    pub name: String,
    /// The number of jobs that may run at once.
    pub slots: u32,
    /// The number of subjobs of one job that may run at once.
    pub parallelism: u32,
    /// Executors that are asked to run jobs before the machine's own cores.
    pub preferred: Preferred,
    /// The number of cores of the machine, for hosts that ask; 0 if it is not known.
    pub cores: u32,
    /// The bytes of the machine's memory, for hosts that ask; 0 if they are not known.
    pub memory_bytes: u64,
    /// The folders of this machine in which hosts may have jobs run.
    pub shared: Vec<PathBuf>,
    /// The bytes that a session may keep in its scratch folder; 0 if the device offers no scratch
    /// folders.
    pub keep_bytes: u64,
    /// The bytes that all sessions together may keep in their scratch folders.
    pub keep_all_bytes: u64,
    /// Which names in certificates may use which folders. `None` if every peer may use all folders.
    pub access: Option<Access>,
    /// The maximum number of objects that a session may have open.
    pub open_objects_max: u64,
    /// The maximum number of objects that all sessions together may have open, without those of
    /// jobs. The server allows fewer if the process may not open as many files.
    pub open_objects_all_max: u64,
    /// The maximum number of sessions.
    pub sessions_max: usize,
    /// The maximum number of connections.
    pub connections_max: usize,
    /// The maximum number of connections of peers with the same certificate.
    pub certificate_connections_max: usize,
    /// The maximum number of peers that have not said hello yet. If another one connects, the one
    /// that has been connected for the longest time is cut off.
    pub greeting_max: usize,
    /// How long a session must be silent before another one may take its lease.
    pub lease_silence: Duration,
    /// How long a session must be silent before its jobs end.
    pub job_silence: Duration,
    /// How long a session must be silent before its state ends although nobody asks for its lease.
    pub state_silence: Duration,
    /// The same for a session that has only tables that were sent, and for a session whose host is
    /// on this machine and has no connection any more. The host would send such tables again, and a
    /// process on this machine loses all its connections only when it ends.
    pub gone_silence: Duration,
    /// How long after its start the server keeps leases for their last holders.
    pub restart_grace: Duration,
    /// How long a request for a lease waits until the state of the last holder has ended, and how
    /// long a server that is stopped waits until the states of all sessions, and all requests, have
    /// ended.
    pub end_limit: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            name: "device".into(),
            slots: 1,
            parallelism: 1,
            preferred: Preferred::default(),
            cores: 0,
            memory_bytes: 0,
            shared: Vec::new(),
            keep_bytes: 0,
            keep_all_bytes: u64::MAX,
            access: None,
            open_objects_max: 4096,
            open_objects_all_max: 16_384,
            sessions_max: 64,
            connections_max: 512,
            certificate_connections_max: 256,
            greeting_max: 64,
            lease_silence: Duration::from_secs(10),
            job_silence: Duration::from_secs(10),
            state_silence: Duration::from_secs(600),
            gone_silence: Duration::from_secs(30),
            restart_grace: Duration::from_secs(10),
            end_limit: Duration::from_secs(30),
        }
    }
}

//! Devices of siltstone: processes that run near the data, or on other cores. They run jobs, and
//! may hold the files of a store.
//!
//! `docs/rfc/0009-device.md` has the failure model and the rules, and `docs/format/wire.md`
//! describes the bytes.

#![forbid(unsafe_code)]

pub mod client;
mod frames;
mod open;
pub mod probe;
mod secret;
pub mod server;
mod tls;
pub mod url;
pub mod wire;

pub use client::{
    ClientOptions, Device, DeviceExecutor, LinkBytes, LinkPurpose, LinkReport, SeparatedExecutor,
    SeparatedStats,
};
pub use frames::ConnectionError;
pub use open::{DeviceStore, Placement, TABLES_ADVICE, connect, network, open, open_read_only};
pub use server::{
    Access, AccessError, DataFolder, ExecutorReport, Folders, MemoryFolders, MissingFolders,
    NoFolders, Preferred, RefusedPeer, RefusedPeers, Server, ServerOptions, SessionEvent,
    SessionReport, StartError,
};
pub use tls::{TlsError, TlsFiles, TlsNetwork};
pub use url::DeviceUrl;
pub use wire::FolderWanted;

//! Devices of siltstone: processes next to the data, or on other cores, that run jobs and may hold
//! a store's files.
//!
//! `docs/rfc/0009-device.md` has the failure model and the rules, `docs/format/wire.md` the bytes.

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
pub use open::{DeviceStore, Placement, connect, network, open, open_read_only};
pub use server::{
    Access, AccessError, DataFolder, Folders, MemoryFolders, NoFolders, Server, ServerOptions,
    SessionEvent, SessionReport, StartError,
};
pub use tls::{TlsError, TlsFiles, TlsNetwork};
pub use url::DeviceUrl;
pub use wire::FolderWanted;

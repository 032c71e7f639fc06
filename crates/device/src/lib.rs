//! Devices of siltstone: processes next to the data, or on other cores, that run jobs and may hold
//! a store's files.
//!
//! `docs/rfc/0009-device.md` has the failure model and the rules, `docs/format/wire.md` the bytes.
//! So far there is only the form of what crosses the link ([`wire`]).

#![forbid(unsafe_code)]

pub mod wire;

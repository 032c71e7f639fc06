//! Numbers, keys, values and distributions that a workload draws from.
//!
//! Every generator is a function of its parameters and of a seed: two runs with the same seed do
//! the same operations in the same order. Drawing costs tens of nanoseconds and does not allocate.
//! Constructors return a [`ParameterError`] for parameters that make no sense; after that nothing
//! here panics.
//!
//! Records are numbered from 0 in the order in which they are inserted. A distribution
//! ([`Pick`](pick::Pick)) draws the number of a record, [`Keys`](keys::Keys) makes its key and
//! [`Values`](values::Values) its value. [`Acknowledged`](acknowledged::Acknowledged) says how many
//! records exist while threads insert more, and [`Arrivals`](arrival::Arrivals) says when each
//! operation of an open loop should start.
//!
//! Threading: a generator belongs to one thread and is `Send`. `Keys`, `Values`, `Permutation` and
//! `Acknowledged` are shared by reference.

pub mod acknowledged;
pub mod arrival;
pub mod error;
pub mod hash;
pub mod hotspot;
pub mod keys;
pub mod mixgraph;
pub mod pareto;
pub mod permutation;
pub mod pick;
pub mod random;
pub mod rate;
pub mod sizes;
pub mod values;
pub mod zeta;
pub mod zipfian;

#[cfg(test)]
mod vectors;

pub use error::ParameterError;

//! What is true of a store, and the space that is kept so that it can be written down.
//!
//! Nothing here knows the queue of writers or jobs.

pub(crate) mod reserve;

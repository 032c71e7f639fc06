//! `silt`.
fn main() {}

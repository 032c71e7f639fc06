//! What pages with charts are drawn with: numbers, axes, plots, and HTML that is balanced and
//! escaped by construction.
//!
//! The page of `silt bench` ([`crate::page`]) and the report of `silt demo` (in the crate
//! `siltstone-cli`) are made with it, so that they look and work alike.
//!
//! Invariant: this module does not know records or stores. It draws what it is given.
//!
//! Threading: plain data and pure functions.

pub mod axis;
pub mod html;
pub mod number;
pub mod plot;

/// The style that all pages share. A page adds its own rules behind it.
pub const STYLE: &str = include_str!("style.css");
/// The script that shows the numbers of a chart's table under the pointer. Pages work without it.
pub const SCRIPT: &str = include_str!("script.js");

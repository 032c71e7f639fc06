//! A one-dimensional electrostatic particle-in-cell simulation of the two-stream instability.
//!
//! It makes siltstone's example data: every particle of every dump is one record of 48 bytes. The
//! kinetic energies of the records have the distribution of a real plasma, not that of a
//! random-number generator. The simulation is small, exact about what it promises, and checked
//! against theory.
//!
//! # Physics
//!
//! Two beams of electrons of equal density stream through each other at `+v0` and `-v0`, over a
//! neutralising background of ions that are too heavy to move. Where one beam is slightly bunched
//! it brakes the other, which bunches that one as well. So waves with `k v0 < omega_p` grow
//! exponentially, at a rate of at most `omega_p / sqrt(8)`, until the wave's potential traps the
//! beams. The beams then roll up into vortices of phase space (electron holes), which slowly merge:
//! [`Simulation::phase_space`] shows it. With `v0 = 0`, the same code simulates a plasma at rest
//! that oscillates at the plasma frequency.
//!
//! All particles move along x in the electric field that they make together: `dx/dt = vx`,
//! `dvx/dt = -E`, `dE/dx = 1 - n`, `E = -dphi/dx`. No force acts on the other two velocity
//! components, which are thermal and stay constant.
//!
//! # Units
//!
//! All quantities are normalised: time in `1 / omega_p` (one plasma oscillation takes `2 pi`), mass
//! and charge in those of an electron (whose charge is -1), density in that of the electrons at
//! rest (the background is +1), and `epsilon_0 = 1`. The unit of velocity is free, and the unit of
//! length is that velocity over `omega_p`. Charge, momentum and energy of the whole plasma are per
//! unit area. A simulated particle stands for `length / particles` electrons (its weight).
//! Velocities and kinetic energies of records are those of one electron.
//!
//! # Numerics
//!
//! - *Cloud in cell*: a particle is a cloud as wide as a cell. Linear weights distribute its charge
//!   to the two nearest nodes, and the same weights interpolate the field. With the centred field,
//!   the forces between particles are equal and opposite, so momentum is conserved up to rounding,
//!   and a particle never pushes itself.
//! - *Poisson*: in one dimension, Gauss's law can be summed. The field at cell faces is the running
//!   sum of the charge at the nodes, and the potential is the running sum of the field, both with
//!   zero mean (as periodicity and neutrality require). This solves the second-order difference
//!   equation exactly, in one pass over the grid.
//! - *Leapfrog*: velocities are half a step behind positions; the start moves them back by half a
//!   kick. Velocities in diagnostics and records are moved forward by half a kick, so that they
//!   belong to the same moment as the positions. The scheme is of second order in `dt`, reversible,
//!   and stable for `omega_p dt < 2`.
//! - *Quiet start*: the particles of each beam are placed at even distances, and their thermal
//!   velocities are the quantiles of a low-discrepancy sequence. So the wave grows out of the
//!   chosen perturbation, not out of noise. [`Start::Random`] draws everything at random instead.
//!
//! Kick, drift and deposit are one pass over two arrays (16 bytes per particle are read and
//! written). A step allocates nothing.
//!
//! # Determinism
//!
//! The same [`Config`] gives the same bytes on every platform and in every build profile. All
//! arithmetic is IEEE 754 addition, subtraction, multiplication, division, square root and rounding
//! in a fixed order. The crate has its own logarithm, sine and normal quantile, because those of
//! the platform's mathematical library differ between systems.
//!
//! # Threading
//!
//! There are no threads, no locks and no global state. A [`Simulation`] is `Send` and `Sync`.
//! Records are read through a shared reference, so several writers can each emit a range of ids of
//! the same dump.
//!
//! # References
//!
//! - C. K. Birdsall and A. B. Langdon, *Plasma Physics via Computer Simulation*, 1985: the scheme
//!   (chapters 2-4), its conservation laws (8, 10), the two-stream project (5), quiet starts (16).
//! - R. W. Hockney and J. W. Eastwood, *Computer Simulation Using Particles*, 1981: cloud in cell,
//!   leapfrog.
//! - O. Buneman, *Dissipation of currents in ionized media*, Phys. Rev. 115, 503 (1959): streaming
//!   instabilities.
//! - K. V. Roberts and H. L. Berk, *Nonlinear evolution of a two-stream instability*, Phys. Rev.
//!   Lett. 19, 297 (1967): the holes and their merging.
//!
//! # Example
//!
//! ```
//! use siltstone_plasma::{Config, Simulation};
//!
//! let config = Config { particles: 2_000, cells: 64, ..Config::default() };
//! let mut simulation = Simulation::new(config)?;
//! let mut bytes = 0;
//! for dump in 0..3 {
//!     for _ in 0..10 {
//!         simulation.step();
//!     }
//!     simulation.for_each_record(dump, |key, value| bytes += key.len() + value.len());
//! }
//! assert_eq!(bytes, 3 * 2_000 * 48);
//! # Ok::<(), siltstone_plasma::ConfigError>(())
//! ```

#![forbid(unsafe_code)]

mod config;
mod grid;
mod load;
mod maths;
mod order;
mod picture;
mod record;
mod rng;
mod simulation;
pub mod theory;

pub use config::{Config, ConfigError, MAX_CELLS, MAX_PARTICLES, Start};
pub use order::CellOrder;
pub use record::{
    DecodeError, Field, KEY_BYTES, Record, VALUE_BYTES, decode, encode_key, encode_value,
};
pub use simulation::{Diagnostics, Simulation};

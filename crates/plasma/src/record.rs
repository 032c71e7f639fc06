//! The bytes of a record, which is one particle at one dump.
//!
//! | key, 16 bytes | | value, 32 bytes | |
//! | --- | --- | --- | --- |
//! | 0..8 | dump, u64, big endian | 0..4 | position x |
//! | 8..16 | particle id, u64, big endian | 4..16 | velocity x, y, z |
//! | | | 16..20 | weight: electrons per unit area that it stands for |
//! | | | 20..24 | electric field at the particle |
//! | | | 24..28 | potential at the particle |
//! | | | 28..32 | kinetic energy of one electron there, `(vx^2 + vy^2 + vz^2) / 2` |
//!
//! The whole value consists of 32-bit IEEE floats, little endian. Keys compare bytewise as (dump,
//! id) do. Invariant: bytes of the right length always decode, and other lengths are an error.
//! There is no threading rule.

use std::error::Error;
use std::fmt;

/// The length of a key in bytes.
pub const KEY_BYTES: usize = 16;
/// The length of a value in bytes.
pub const VALUE_BYTES: usize = 32;

/// A decoded record of a particle at a dump.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    /// The number of the dump.
    pub dump: u64,
    /// The id of the particle, from 0.
    pub id: u64,
    /// Position, from 0 to below the domain's length.
    pub x: f32,
    /// Velocity along x.
    pub vx: f32,
    /// Velocity along y.
    pub vy: f32,
    /// Velocity along z.
    pub vz: f32,
    /// The number of electrons per unit area that the particle stands for.
    pub weight: f32,
    /// Electric field at the particle.
    pub electric_field: f32,
    /// Potential at the particle.
    pub potential: f32,
    /// The kinetic energy of one electron of the particle.
    pub kinetic_energy: f32,
}

/// An attribute of a value: its name and its offset, for secondary indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// [`Record::x`]
    X,
    /// [`Record::vx`]
    Vx,
    /// [`Record::vy`]
    Vy,
    /// [`Record::vz`]
    Vz,
    /// [`Record::weight`]
    Weight,
    /// [`Record::electric_field`]
    ElectricField,
    /// [`Record::potential`]
    Potential,
    /// [`Record::kinetic_energy`]
    KineticEnergy,
}

impl Field {
    /// All fields, in the order of their bytes.
    pub const ALL: [Field; 8] = [
        Field::X,
        Field::Vx,
        Field::Vy,
        Field::Vz,
        Field::Weight,
        Field::ElectricField,
        Field::Potential,
        Field::KineticEnergy,
    ];

    /// The offset of the field's four bytes in a value.
    #[must_use]
    pub const fn offset_bytes(self) -> usize {
        4 * self as usize
    }

    /// The name of the field, as in [`Record`].
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Field::X => "x",
            Field::Vx => "vx",
            Field::Vy => "vy",
            Field::Vz => "vz",
            Field::Weight => "weight",
            Field::ElectricField => "electric_field",
            Field::Potential => "potential",
            Field::KineticEnergy => "kinetic_energy",
        }
    }

    /// The field with the given name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Field> {
        Field::ALL.into_iter().find(|field| field.name() == name)
    }

    /// Reads the field of an encoded value.
    #[must_use]
    pub fn of(self, value: &[u8; VALUE_BYTES]) -> f32 {
        let at = self.offset_bytes();
        f32::from_le_bytes([value[at], value[at + 1], value[at + 2], value[at + 3]])
    }
}

/// The key of a particle at a dump.
#[inline]
#[must_use]
pub fn encode_key(dump: u64, id: u64) -> [u8; KEY_BYTES] {
    ((u128::from(dump) << 64) | u128::from(id)).to_be_bytes()
}

/// Encodes the value of a record. Its dump and id are part of the key.
#[inline]
#[must_use]
pub fn encode_value(record: &Record) -> [u8; VALUE_BYTES] {
    let fields = [
        record.x,
        record.vx,
        record.vy,
        record.vz,
        record.weight,
        record.electric_field,
        record.potential,
        record.kinetic_energy,
    ];
    let mut value = [0; VALUE_BYTES];
    for (bytes, field) in value.chunks_exact_mut(4).zip(fields) {
        bytes.copy_from_slice(&field.to_le_bytes());
    }
    value
}

/// Decodes a record from its key and value.
///
/// # Errors
///
/// A key or value of another length than [`KEY_BYTES`] or [`VALUE_BYTES`].
pub fn decode(key: &[u8], value: &[u8]) -> Result<Record, DecodeError> {
    let wrong = |part, found, expected| DecodeError {
        part,
        found_bytes: found,
        expected_bytes: expected,
    };
    let key: &[u8; KEY_BYTES] = key
        .try_into()
        .map_err(|_| wrong("key", key.len(), KEY_BYTES))?;
    let value: &[u8; VALUE_BYTES] = value
        .try_into()
        .map_err(|_| wrong("value", value.len(), VALUE_BYTES))?;
    let number = u128::from_be_bytes(*key);
    Ok(Record {
        dump: (number >> 64) as u64,
        id: number as u64,
        x: Field::X.of(value),
        vx: Field::Vx.of(value),
        vy: Field::Vy.of(value),
        vz: Field::Vz.of(value),
        weight: Field::Weight.of(value),
        electric_field: Field::ElectricField.of(value),
        potential: Field::Potential.of(value),
        kinetic_energy: Field::KineticEnergy.of(value),
    })
}

/// Bytes that cannot be a record, because they have the wrong length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeError {
    part: &'static str,
    found_bytes: usize,
    expected_bytes: usize,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "not a particle record: its {} has {} bytes, expected {}; was it written by this \
             simulation?",
            self.part, self.found_bytes, self.expected_bytes
        )
    }
}

impl Error for DecodeError {}

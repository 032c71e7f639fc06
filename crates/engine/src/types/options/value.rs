//! Values of settings as people write them: in TOML, on a command line, and by name at run time.
//!
//! [`Value`] stands to the right of a name. [`SettingType`] converts it into a field of `Options`
//! and back. [`StoredType`] converts a keyspace's field into the bytes that the manifest keeps.
//! Sizes may have a unit (`"64 MiB"`), durations must have one (`"100 ms"`).
//!
//! Invariants: a value that was made from a field gives that field again. Bytes from the manifest
//! are decoded or refused, never adjusted.
//!
//! Threading: pure functions.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::{
    ByLevel, Compression, DirectIo, FlushVerify, LevelTargets, RedirectDir, StallPolicy, SyncMode,
    Verify,
};
use crate::types::limits::LEVEL_COUNT;

/// The value of a setting, as in a TOML file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `true` or `false`.
    Switch(bool),
    /// A number in the setting's unit.
    Number(u64),
    /// A word, or a number with a unit, such as `64 MiB` or `100 ms`.
    Text(String),
    /// One value for each level, from level 0 on.
    List(Vec<Value>),
}

impl From<bool> for Value {
    fn from(on: bool) -> Value {
        Value::Switch(on)
    }
}

macro_rules! from_integers {
    ($($integer:ty),+) => {$(
        impl From<$integer> for Value {
            fn from(number: $integer) -> Value {
                match u64::try_from(number) {
                    Ok(number) => Value::Number(number),
                    // No setting accepts this text, and the error shows the number as it was
                    // written.
                    Err(_) => Value::Text(number.to_string()),
                }
            }
        }
    )+};
}

from_integers!(
    i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize
);

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.to_string())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(text)
    }
}

impl From<Vec<Value>> for Value {
    fn from(list: Vec<Value>) -> Value {
        Value::List(list)
    }
}

/// The value as TOML.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Switch(on) => write!(f, "{on}"),
            Value::Number(number) => write!(f, "{number}"),
            Value::Text(text) => {
                f.write_str("\"")?;
                for c in text.chars() {
                    match c {
                        '"' | '\\' => write!(f, "\\{c}")?,
                        c if c.is_control() => write!(f, "\\u{:04X}", c as u32)?,
                        c => write!(f, "{c}")?,
                    }
                }
                f.write_str("\"")
            }
            Value::List(values) => {
                f.write_str("[")?;
                for (i, value) in values.iter().enumerate() {
                    write!(f, "{}{value}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
        }
    }
}

/// Units of sizes, the largest first.
const SIZES: [(&str, u64); 5] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

/// The units that a size may have, for messages.
pub(super) fn size_units() -> String {
    let words: Vec<&str> = SIZES.iter().rev().map(|(word, _)| *word).collect();
    words.join(", ")
}

/// Units of time in microseconds, the largest first.
const TIMES: [(&str, u64); 3] = [("s", 1_000_000), ("ms", 1_000), ("us", 1)];

/// A number of bytes for people, in the largest unit in which it is a whole number.
pub(super) fn bytes_text(bytes: u64) -> String {
    let (word, size) = SIZES
        .iter()
        .find(|(_, size)| bytes >= *size && bytes.is_multiple_of(*size))
        .unwrap_or(&SIZES[4]);
    format!("{} {word}", bytes / size)
}

fn duration_text(micros: u64) -> String {
    let (word, size) = TIMES
        .iter()
        .find(|(_, size)| micros >= *size && micros.is_multiple_of(*size))
        .unwrap_or(&TIMES[2]);
    format!("{} {word}", micros / size)
}

/// A whole number and one of these units, with or without a space between them.
fn with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, word) = text.split_at(digits);
    let (_, size) = units
        .iter()
        .find(|(unit, _)| unit.eq_ignore_ascii_case(word.trim()))?;
    number.parse::<u64>().ok()?.checked_mul(*size)
}

/// The type of a field of `Options`.
pub(super) trait SettingType: Sized + Clone {
    /// The field as a value.
    fn to_value(&self) -> Value;
    /// The field from a value; `None` if the value is not of this type.
    fn from_value(value: &Value) -> Option<Self>;
    /// The numbers in the field, which must lie within the setting's limits.
    fn numbers(&self) -> Vec<u64>;
}

/// The type of a field that the manifest keeps for a keyspace.
pub(super) trait StoredType: SettingType {
    /// The bytes that the manifest keeps.
    fn encode(&self) -> Vec<u8>;
    /// The inverse of [`StoredType::encode`]; `None` for bytes that it cannot have made.
    fn decode(bytes: &[u8]) -> Option<Self>;
}

impl SettingType for bool {
    fn to_value(&self) -> Value {
        Value::Switch(*self)
    }

    fn from_value(value: &Value) -> Option<bool> {
        match value {
            Value::Switch(on) => Some(*on),
            Value::Text(text) => text.parse().ok(),
            _ => None,
        }
    }

    fn numbers(&self) -> Vec<u64> {
        Vec::new()
    }
}

impl SettingType for u64 {
    fn to_value(&self) -> Value {
        Value::Number(*self)
    }

    fn from_value(value: &Value) -> Option<u64> {
        match value {
            Value::Number(number) => Some(*number),
            Value::Text(text) => text.parse().ok().or_else(|| with_unit(text, &SIZES)),
            _ => None,
        }
    }

    fn numbers(&self) -> Vec<u64> {
        vec![*self]
    }
}

impl StoredType for u64 {
    fn encode(&self) -> Vec<u8> {
        self.to_le_bytes().to_vec()
    }

    fn decode(bytes: &[u8]) -> Option<u64> {
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }
}

impl SettingType for u32 {
    fn to_value(&self) -> Value {
        Value::Number((*self).into())
    }

    fn from_value(value: &Value) -> Option<u32> {
        u64::from_value(value)?.try_into().ok()
    }

    fn numbers(&self) -> Vec<u64> {
        vec![(*self).into()]
    }
}

impl StoredType for u32 {
    fn encode(&self) -> Vec<u8> {
        u64::from(*self).encode()
    }

    fn decode(bytes: &[u8]) -> Option<u32> {
        u64::decode(bytes)?.try_into().ok()
    }
}

impl SettingType for PathBuf {
    fn to_value(&self) -> Value {
        // Paths that are not UTF-8 are refused before.
        Value::Text(self.to_string_lossy().into_owned())
    }

    fn from_value(value: &Value) -> Option<PathBuf> {
        match value {
            Value::Text(text) => Some(text.into()),
            _ => None,
        }
    }

    fn numbers(&self) -> Vec<u64> {
        Vec::new()
    }
}

impl SettingType for RedirectDir {
    fn to_value(&self) -> Value {
        match self {
            RedirectDir::Unset => Value::Text(String::new()),
            RedirectDir::None => Value::Text(RedirectDir::NONE.into()),
            // The folder of this name, and not the word.
            RedirectDir::Path(path) if path.as_os_str() == RedirectDir::NONE => {
                Value::Text(format!("./{}", RedirectDir::NONE))
            }
            RedirectDir::Path(path) => path.to_value(),
        }
    }

    fn from_value(value: &Value) -> Option<RedirectDir> {
        match value {
            Value::Text(text) => Some(match text.as_str() {
                "" => RedirectDir::Unset,
                RedirectDir::NONE => RedirectDir::None,
                path => RedirectDir::Path(path.into()),
            }),
            _ => None,
        }
    }

    fn numbers(&self) -> Vec<u64> {
        Vec::new()
    }
}

impl SettingType for SyncMode {
    fn to_value(&self) -> Value {
        Value::Text(match self {
            SyncMode::Never => "never".into(),
            SyncMode::Always => "always".into(),
            SyncMode::Interval(interval) => duration_text(interval.as_micros() as u64),
        })
    }

    fn from_value(value: &Value) -> Option<SyncMode> {
        match value {
            Value::Text(text) => match text.as_str() {
                "never" => Some(SyncMode::Never),
                "always" => Some(SyncMode::Always),
                text => with_unit(text, &TIMES)
                    .map(|micros| SyncMode::Interval(Duration::from_micros(micros))),
            },
            _ => None,
        }
    }

    fn numbers(&self) -> Vec<u64> {
        match self {
            SyncMode::Interval(interval) => {
                vec![u64::try_from(interval.as_micros()).unwrap_or(u64::MAX)]
            }
            SyncMode::Never | SyncMode::Always => Vec::new(),
        }
    }
}

/// An enumeration without fields, as a word.
macro_rules! words {
    ($type:ty { $($variant:ident = $word:literal),+ $(,)? }) => {
        impl SettingType for $type {
            fn to_value(&self) -> Value {
                match self {
                    $(<$type>::$variant => Value::from($word),)+
                }
            }

            fn from_value(value: &Value) -> Option<$type> {
                match value {
                    Value::Text(text) => match text.as_str() {
                        $($word => Some(<$type>::$variant),)+
                        _ => None,
                    },
                    _ => None,
                }
            }

            fn numbers(&self) -> Vec<u64> {
                Vec::new()
            }
        }
    };
}

words!(Verify { Once = "once", Always = "always" });

words!(FlushVerify {
    None = "none",
    Sample = "sample",
    All = "all",
});

words!(DirectIo {
    None = "none",
    Compaction = "compaction",
    All = "all",
});

words!(StallPolicy {
    Stop = "stop",
    Slowdown = "slowdown",
    Adoc = "adoc",
    Redirect = "redirect",
});

words!(LevelTargets { Fixed = "fixed", Dynamic = "dynamic" });

impl StoredType for LevelTargets {
    fn encode(&self) -> Vec<u8> {
        (*self as u64).encode()
    }

    fn decode(bytes: &[u8]) -> Option<LevelTargets> {
        match u64::decode(bytes)? {
            0 => Some(LevelTargets::Fixed),
            1 => Some(LevelTargets::Dynamic),
            _ => None,
        }
    }
}

impl SettingType for Compression {
    fn to_value(&self) -> Value {
        Value::Text(match self {
            Compression::None => "none".into(),
            Compression::Lz4 => "lz4".into(),
            Compression::Zstd(level) => format!("zstd:{level}"),
        })
    }

    fn from_value(value: &Value) -> Option<Compression> {
        let Value::Text(text) = value else {
            return None;
        };
        match text.as_str() {
            "none" => Some(Compression::None),
            "lz4" => Some(Compression::Lz4),
            "zstd" => Some(Compression::ZSTD),
            text => Some(Compression::Zstd(text.strip_prefix("zstd:")?.parse().ok()?)),
        }
    }

    fn numbers(&self) -> Vec<u64> {
        match self {
            Compression::Zstd(level) => vec![(*level).into()],
            Compression::None | Compression::Lz4 => Vec::new(),
        }
    }
}

impl<T: SettingType + Copy + PartialEq> SettingType for ByLevel<T> {
    fn to_value(&self) -> Value {
        match self.listed() {
            [one] => one.to_value(),
            many => Value::List(many.iter().map(T::to_value).collect()),
        }
    }

    fn from_value(value: &Value) -> Option<ByLevel<T>> {
        match value {
            Value::List(values) => {
                let values: Option<Vec<T>> = values.iter().map(T::from_value).collect();
                ByLevel::of(&values?)
            }
            // A list as on a command line: `none, lz4, zstd:9`.
            Value::Text(text) if text.contains(',') => {
                let one = |part: &str| T::from_value(&Value::from(part.trim()));
                let values: Option<Vec<T>> = text.split(',').map(one).collect();
                ByLevel::of(&values?)
            }
            one => Some(ByLevel::all(T::from_value(one)?)),
        }
    }

    fn numbers(&self) -> Vec<u64> {
        self.listed().iter().flat_map(T::numbers).collect()
    }
}

/// One byte for each level; the last one is that of all deeper levels.
impl StoredType for ByLevel<u32> {
    fn encode(&self) -> Vec<u8> {
        self.listed().iter().map(|bits| *bits as u8).collect()
    }

    fn decode(bytes: &[u8]) -> Option<ByLevel<u32>> {
        let values: Vec<u32> = bytes
            .iter()
            .take(LEVEL_COUNT + 1)
            .map(|b| u32::from(*b))
            .collect();
        ByLevel::of(&values)
    }
}

/// Two bytes for each level: the codec and its compression level.
impl StoredType for ByLevel<Compression> {
    fn encode(&self) -> Vec<u8> {
        let pair = |c: &Compression| match c {
            Compression::None => [0, 0],
            Compression::Lz4 => [1, 0],
            Compression::Zstd(level) => [2, *level],
        };
        self.listed().iter().flat_map(pair).collect()
    }

    fn decode(bytes: &[u8]) -> Option<ByLevel<Compression>> {
        if bytes.len() > 2 * LEVEL_COUNT || !bytes.len().is_multiple_of(2) {
            return None;
        }
        let one = |pair: &[u8]| match pair {
            [0, 0] => Some(Compression::None),
            [1, 0] => Some(Compression::Lz4),
            [2, level] => Some(Compression::Zstd(*level)),
            _ => None,
        };
        let values: Option<Vec<Compression>> = bytes.chunks(2).map(one).collect();
        ByLevel::of(&values?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_with_units() {
        for (text, bytes) in [("64 MiB", 64 << 20), ("1gib", 1 << 30), ("12 B", 12)] {
            assert_eq!(u64::from_value(&Value::from(text)), Some(bytes), "{text}");
        }
        assert_eq!(u64::from_value(&Value::from("4096")), Some(4096));
        for text in ["", "MiB", "1.5 GiB", "-1", "64 MB", "99999999999 TiB"] {
            assert_eq!(u64::from_value(&Value::from(text)), None, "{text}");
        }
        assert_eq!(bytes_text(64 << 20), "64 MiB");
        assert_eq!(bytes_text(100_000), "100000 B");
        assert_eq!(bytes_text(0), "0 B");
        for mode in [
            SyncMode::Never,
            SyncMode::Always,
            SyncMode::Interval(Duration::from_millis(250)),
            SyncMode::Interval(Duration::from_micros(101)),
        ] {
            assert_eq!(SyncMode::from_value(&mode.to_value()), Some(mode));
        }
        assert_eq!(SyncMode::from_value(&Value::from("100")), None);
    }

    #[test]
    fn lists_by_level() {
        let list = ByLevel::of(&[Compression::None, Compression::Lz4, Compression::ZSTD]).unwrap();
        assert_eq!(list.to_value().to_string(), r#"["none", "lz4", "zstd:3"]"#);
        assert_eq!(ByLevel::from_value(&list.to_value()), Some(list));
        assert_eq!(
            ByLevel::from_value(&Value::from("none, lz4,zstd")),
            Some(list)
        );
        assert_eq!(ByLevel::decode(&list.encode()), Some(list));
        assert_eq!(list.encode(), [0, 0, 1, 0, 2, 3]);
        assert_eq!(list.at(6), Compression::ZSTD);
        for bytes in [&[][..], &[0], &[1, 1], &[3, 0], &[0; 16]] {
            assert_eq!(ByLevel::<Compression>::decode(bytes), None, "{bytes:?}");
        }
        let bits = ByLevel::of(&[12, 10, 10]).unwrap();
        assert_eq!(bits.encode(), [12, 10]);
        assert_eq!(ByLevel::<u32>::decode(&[12, 10, 10]), Some(bits));
        assert_eq!(ByLevel::<u32>::decode(&[]), None);
        assert_eq!(ByLevel::<u32>::decode(&[1; 8]), None);
        assert_eq!(
            Value::from("a\"b\\c\n").to_string(),
            "\"a\\\"b\\\\c\\u000A\""
        );
    }
}

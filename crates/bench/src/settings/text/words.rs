//! Settings that are one of several words: workloads, codecs, states of the page cache.

use std::fmt;
use std::str::FromStr;

use super::TextError;
use crate::settings::{Cache, Compression, Files, Workload};

/// An enumeration without fields, as words.
macro_rules! words {
    ($type:ty { $($variant:ident = $word:literal),+ $(,)? }) => {
        impl $type {
            /// All values, in the order in which help lists them.
            pub const ALL: &[$type] = &[$(<$type>::$variant),+];

            /// The words of all values.
            pub const NAMES: &[&str] = &[$($word),+];

            /// The word for this value.
            pub fn name(self) -> &'static str {
                match self {
                    $(<$type>::$variant => $word,)+
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $type {
            type Err = TextError;

            fn from_str(text: &str) -> Result<$type, TextError> {
                match text.trim() {
                    $($word => Ok(<$type>::$variant),)+
                    _ => Err(TextError::no_word(text, <$type>::NAMES)),
                }
            }
        }
    };
}

words!(Compression { None = "none", Lz4 = "lz4", Zstd = "zstd" });

words!(Cache { AsIs = "as-is", Warm = "warm", Cold = "cold" });

words!(Files {
    Local = "local",
    Held = "held",
    HeldLocalLog = "held-local-log",
    Shared = "shared",
    Lent = "lent",
});

words!(Workload {
    FillSeq = "fillseq",
    FillRandom = "fillrandom",
    FillSync = "fillsync",
    FillBatch = "fillbatch",
    Overwrite = "overwrite",
    ReadRandom = "readrandom",
    ReadMissing = "readmissing",
    ReadSeq = "readseq",
    ReadReverse = "readreverse",
    SeekRandom = "seekrandom",
    MultiReadRandom = "multireadrandom",
    ReadWhileWriting = "readwhilewriting",
    SeekRandomWhileWriting = "seekrandomwhilewriting",
    ReadRandomWriteRandom = "readrandomwriterandom",
    DeleteRandom = "deleterandom",
    Compact = "compact",
    Ingest = "ingest",
    Open = "open",
    YcsbLoad = "ycsb-load",
    YcsbA = "ycsb-a",
    YcsbB = "ycsb-b",
    YcsbC = "ycsb-c",
    YcsbD = "ycsb-d",
    YcsbE = "ycsb-e",
    YcsbF = "ycsb-f",
    Peaks = "peaks",
    Mixgraph = "mixgraph",
    Queue = "queue",
});

//! Compressed input, which would be loaded as lines of noise: nobody means that.

use crate::failure::Failure;

/// How each kind begins, what it is called, and the program that makes text of it.
const KINDS: [(&[u8], &str, &str); 4] = [
    (b"\x1f\x8b\x08", "gzip", "zcat"),
    (b"\x28\xb5\x2f\xfd", "zstd", "zstdcat"),
    (b"\xfd7zXZ\0", "xz", "xzcat"),
    (b"BZh", "bzip2", "bzcat"),
];

/// Refuses text that is compressed; `start` is its first bytes, `name` what messages call it.
///
/// # Errors
/// With the program to use.
pub fn refuse(start: &[u8], name: &str) -> Result<(), Failure> {
    match KINDS.iter().find(|(magic, ..)| start.starts_with(magic)) {
        // Three letters of ASCII may begin a text.
        Some((magic, ..)) if magic.is_ascii() && start.iter().take(64).all(u8::is_ascii) => Ok(()),
        Some((_, kind, program)) => Err(Failure::Other(format!(
            "{name}: it is compressed with {kind}, expected text; `{program} FILE | silt load STORE -` loads it"
        ))),
        None => Ok(()),
    }
}

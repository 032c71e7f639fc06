//! How keys are shown to people.

use std::fmt;

/// A key for people: printable ASCII as it is, other bytes as `\xNN`, and long keys cut.
pub struct ShowKey<'a>(pub &'a [u8]);

impl fmt::Display for ShowKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN_BYTES: usize = 40;
        for &byte in self.0.iter().take(SHOWN_BYTES) {
            match byte {
                b'\\' => f.write_str("\\\\")?,
                0x20..=0x7e => write!(f, "{}", byte as char)?,
                _ => write!(f, "\\x{byte:02x}")?,
            }
        }
        if self.0.len() > SHOWN_BYTES {
            write!(f, "... ({} bytes)", self.0.len())
        } else {
            Ok(())
        }
    }
}

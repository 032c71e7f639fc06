//! The bytes that cross a link: the two hellos with which a connection begins, and the frames after
//! them, which carry requests and answers.
//!
//! Invariants: decoding never panics. A length is compared with its limit before memory is
//! allocated for it. A decoded value is well formed, but it may still be wrong, because the peer
//! may lie.
//!
//! Threading: pure functions. [`FrameReader`] has one owner.

pub mod answer;
pub mod error;
pub mod frame;
pub mod hello;
pub mod job;
pub mod machine;
pub mod request;
pub mod survivors;

pub use answer::Answer;
pub use frame::{Frame, FrameHeader, FrameReader};
pub use hello::{ClientHello, FolderWanted, ServerHello, Welcome};
pub use request::Request;

use std::fmt;

use siltstone_table::Damage;

/// Bytes from a peer that break the protocol. The connection ends with this error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The bytes are not what the protocol requires.
    #[error("the peer broke the protocol: {0}")]
    Damage(#[from] Damage),
    /// The peer does not speak this protocol at all.
    #[error("the peer is no siltstone device or host: it began with {0}")]
    Foreign(Shown),
    /// The peer answered with an alert of TLS.
    #[error("the peer speaks TLS only; give this side a certificate, its key and a CA file")]
    Tls,
    /// The number of a frame does not follow the number of the frame before it.
    #[error("the peer broke the protocol: expected frame {0}, found frame {1}")]
    Order(u64, u64),
    /// The number of a request does not fit its lane.
    #[error("the peer broke the protocol: a request does not fit its lane")]
    Lane,
    /// There is no common version.
    #[error(
        "the peer speaks versions {} to {} of the protocol, this program {} to {}; bring both to \
         the same release",
        theirs.0, theirs.1, ours.0, ours.1
    )]
    Version {
        /// The lowest and the highest version of the peer.
        theirs: (u16, u16),
        /// The lowest and the highest version of this program.
        ours: (u16, u16),
    },
}

/// The first bytes that an unknown peer sent, for a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown(pub Vec<u8>);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.0.escape_ascii())
    }
}

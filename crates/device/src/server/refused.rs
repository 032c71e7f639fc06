//! The peers that a server refused, for its operator.
//!
//! Invariants: at most [`KEPT_MAX`] of them are kept. Each has at most the text of one hello, and a
//! reason that the server gives. So hostile peers cannot fill the server's memory.
//!
//! Threading: plain data, under the lock of the server's state.

/// The maximum number of refused peers that are kept until somebody takes them.
const KEPT_MAX: usize = 32;

/// A peer that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedPeer {
    /// The other end of the connection, for messages.
    pub peer: String,
    /// The host, as it described itself. `None` if it said no hello that could be read.
    pub host: Option<String>,
    /// Why it was refused.
    pub reason: String,
}

/// Peers that were refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusedPeers {
    /// The first ones, in their order.
    pub first: Vec<RefusedPeer>,
    /// How many there were after these.
    pub more_count: u64,
}

impl RefusedPeers {
    pub(super) fn add(&mut self, peer: RefusedPeer) {
        match self.first.len() < KEPT_MAX {
            true => self.first.push(peer),
            false => self.more_count += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_peers_are_kept() {
        let mut all = RefusedPeers::default();
        for n in 0..100 {
            all.add(RefusedPeer {
                peer: n.to_string(),
                host: None,
                reason: "it is a test".into(),
            });
        }
        assert_eq!((all.first.len(), all.more_count), (32, 68));
        assert_eq!(all.first[31].peer, "31");
    }
}

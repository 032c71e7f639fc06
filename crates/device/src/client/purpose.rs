//! What the bytes of a link are used for, counted separately for each direction.
//!
//! Every frame of a session counts with its header, each time that it is sent. Hellos count as
//! well. The kind of a request determines its purpose. For the bytes of an object, the object's
//! name or the caller of a read ([`ReadPurpose`]) determines it. An answer counts for the purpose
//! of its request.
//!
//! Invariants: each byte of a frame counts for one purpose, so the sum over all purposes is the
//! number of all bytes. All requests on one connection that have no answer yet have the same
//! purpose.
//!
//! Threading: atomics.

use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use siltstone_storage::ReadPurpose;

use crate::wire::Request;
use crate::wire::request::NamesChange;

/// What bytes of a link are used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkPurpose {
    /// Segments of the log.
    Log,
    /// Tables that the host writes: outputs of its flushes and of its own compactions.
    Table,
    /// Reads of tables for callers of the store: gets, scans, checks.
    Read,
    /// Reads of tables by compactions that run on the host.
    Compaction,
    /// Reads that verify what a device has made.
    Verify,
    /// Columns of tables, which separated transfer reads.
    Columns,
    /// The survivors of separated transfer: what the host tells the device to keep.
    Survivors,
    /// Tables of lent work, in both directions.
    Lent,
    /// Manifests, and the pointer to the current one.
    Manifest,
    /// Other files: published statistics, options, reserved space.
    Other,
    /// Names: creating, renaming, deleting, listing, opening and closing objects.
    Names,
    /// Jobs: their orders, their progress and their outcomes.
    Jobs,
    /// Hellos, leases, signs of life, measurements of the link.
    Session,
}

impl LinkPurpose {
    /// All purposes.
    pub const ALL: [LinkPurpose; 13] = [
        LinkPurpose::Log,
        LinkPurpose::Table,
        LinkPurpose::Read,
        LinkPurpose::Compaction,
        LinkPurpose::Verify,
        LinkPurpose::Columns,
        LinkPurpose::Survivors,
        LinkPurpose::Lent,
        LinkPurpose::Manifest,
        LinkPurpose::Other,
        LinkPurpose::Names,
        LinkPurpose::Jobs,
        LinkPurpose::Session,
    ];

    /// The purpose as a word. The names of counters contain it.
    pub fn word(self) -> &'static str {
        match self {
            LinkPurpose::Log => "log",
            LinkPurpose::Table => "table",
            LinkPurpose::Read => "read",
            LinkPurpose::Compaction => "compaction",
            LinkPurpose::Verify => "verify",
            LinkPurpose::Columns => "columns",
            LinkPurpose::Survivors => "survivors",
            LinkPurpose::Lent => "lent",
            LinkPurpose::Manifest => "manifest",
            LinkPurpose::Other => "other",
            LinkPurpose::Names => "names",
            LinkPurpose::Jobs => "jobs",
            LinkPurpose::Session => "session",
        }
    }

    /// The purpose of the bytes that are written to an object with this name.
    pub(super) fn of_name(name: &str) -> LinkPurpose {
        match name {
            _ if name.ends_with(".tbl") => LinkPurpose::Table,
            _ if name.ends_with(".log") => LinkPurpose::Log,
            _ if name.starts_with("MANIFEST-") || name == "CURRENT" => LinkPurpose::Manifest,
            _ => LinkPurpose::Other,
        }
    }

    /// The purpose of reads of an object with this name.
    pub(super) fn of_read(name: &str, purpose: ReadPurpose) -> LinkPurpose {
        match (LinkPurpose::of_name(name), purpose) {
            (LinkPurpose::Table, ReadPurpose::Lookup) => LinkPurpose::Read,
            (LinkPurpose::Table, ReadPurpose::Compaction) => LinkPurpose::Compaction,
            (LinkPurpose::Table, ReadPurpose::Columns) => LinkPurpose::Columns,
            (LinkPurpose::Table, ReadPurpose::Verify) => LinkPurpose::Verify,
            (other, _) => other,
        }
    }

    /// The purpose of a request. `object` is the purpose of the bytes of the object that the
    /// request is about.
    pub(super) fn of(request: &Request, object: LinkPurpose) -> LinkPurpose {
        match request {
            Request::KeepAlive
            | Request::Goodbye
            | Request::Lease { .. }
            | Request::Release { .. }
            | Request::Describe
            | Request::Echo { .. }
            | Request::MeasureMerge { .. } => LinkPurpose::Session,
            Request::Read { .. } | Request::File { .. } => object,
            Request::Survivors(_) => LinkPurpose::Survivors,
            // The answer contains the last bytes of the object.
            Request::OpenFinished { name, .. } | Request::ReadSmall { name } => {
                LinkPurpose::of_read(name, ReadPurpose::Lookup)
            }
            Request::Reopen { .. }
            | Request::Close { .. }
            | Request::Open { .. }
            | Request::List { .. }
            | Request::FreeBytes
            | Request::CheckDirect => LinkPurpose::Names,
            Request::ProveFolder { .. }
            | Request::WaitJob { .. }
            | Request::CancelJob { .. }
            | Request::ReadOutcome { .. }
            | Request::ReadPart { .. }
            | Request::ForgetJob { .. } => LinkPurpose::Jobs,
            Request::Names { change, .. } => match change {
                NamesChange::Publish { name } | NamesChange::Replace { name } => {
                    LinkPurpose::of_name(name)
                }
                NamesChange::BeginJob(_) | NamesChange::BeginRebuild(_) => LinkPurpose::Jobs,
                _ => LinkPurpose::Names,
            },
        }
    }
}

impl fmt::Display for LinkPurpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The bytes of one purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkBytes {
    /// What the bytes are used for.
    pub purpose: LinkPurpose,
    /// The bytes that were sent to the device.
    pub sent: u64,
    /// The bytes that were received from the device.
    pub received: u64,
}

const COUNT: usize = LinkPurpose::ALL.len();

/// The bytes of a session so far.
#[derive(Default)]
pub(super) struct Traffic {
    sent: [AtomicU64; COUNT],
    received: [AtomicU64; COUNT],
}

impl Traffic {
    pub(super) fn sent(&self, purpose: LinkPurpose, bytes: usize) {
        self.sent[purpose as usize].fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn received(&self, purpose: LinkPurpose, bytes: usize) {
        self.received[purpose as usize].fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The bytes by purpose, in the order of [`LinkPurpose::ALL`].
    pub(super) fn report(&self) -> Vec<LinkBytes> {
        let of = |purpose: LinkPurpose| LinkBytes {
            purpose,
            sent: self.sent[purpose as usize].load(Ordering::Relaxed),
            received: self.received[purpose as usize].load(Ordering::Relaxed),
        };
        LinkPurpose::ALL.map(of).to_vec()
    }

    /// The bytes of jobs and of tables of lent work, in both directions.
    pub(super) fn of_jobs(&self) -> u64 {
        let mine = [LinkPurpose::Jobs, LinkPurpose::Lent];
        let report = self.report();
        let mine = report.iter().filter(|bytes| mine.contains(&bytes.purpose));
        mine.map(|bytes| bytes.sent + bytes.received).sum()
    }

    /// The bytes as counters of a store's statistics, without those that are zero.
    pub(super) fn counters(&self) -> Vec<(String, u64)> {
        let report = self.report();
        let mut counters = Vec::new();
        for LinkBytes {
            purpose,
            sent,
            received,
        } in report
        {
            counters.push((format!("link_{purpose}_sent_bytes"), sent));
            counters.push((format!("link_{purpose}_received_bytes"), received));
        }
        counters.retain(|(_, bytes)| *bytes > 0);
        counters
    }
}

/// The purpose of the request that waits for its answer. Both halves of a connection share it.
#[derive(Default)]
pub(super) struct Awaited(AtomicU8);

impl Awaited {
    pub(super) fn set(&self, purpose: LinkPurpose) {
        self.0.store(purpose as u8, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> LinkPurpose {
        LinkPurpose::ALL[usize::from(self.0.load(Ordering::Relaxed))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_all_is_that_of_their_numbers() {
        for (at, purpose) in LinkPurpose::ALL.into_iter().enumerate() {
            assert_eq!(purpose as usize, at);
        }
        let mut words: Vec<_> = LinkPurpose::ALL.map(LinkPurpose::word).to_vec();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), COUNT);
    }

    #[test]
    fn names_of_objects_say_what_they_are() {
        for (name, purpose) in [
            ("MANIFEST-000001", LinkPurpose::Manifest),
            ("CURRENT", LinkPurpose::Manifest),
            ("STATS.json", LinkPurpose::Other),
        ] {
            assert_eq!(LinkPurpose::of_name(name), purpose, "{name}");
            for read in [ReadPurpose::Lookup, ReadPurpose::Compaction] {
                assert_eq!(LinkPurpose::of_read(name, read), purpose, "{name}");
            }
        }
    }

    #[test]
    fn each_byte_counts_once() {
        let traffic = Traffic::default();
        traffic.sent(LinkPurpose::Log, 10);
        traffic.sent(LinkPurpose::Log, 5);
        traffic.received(LinkPurpose::Verify, 7);
        let report = traffic.report();
        let sums = report.iter().map(|b| (b.sent, b.received));
        let sums = sums.fold((0, 0), |all, b| (all.0 + b.0, all.1 + b.1));
        assert_eq!(sums, (15, 7));
        let counters = traffic.counters();
        let expected = [
            ("link_log_sent_bytes", 15),
            ("link_verify_received_bytes", 7),
        ];
        let expected = expected.map(|(name, bytes)| (name.to_string(), bytes));
        assert_eq!(counters, expected);
    }
}

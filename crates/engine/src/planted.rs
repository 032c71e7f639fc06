//! Rules of the design that can be switched off, one at a time, to see that the test of the story that each guards against fails without it.
//!
//! What it is: [`is`] stands in an `if` at the place of each rule. Without the feature `planted` it is a constant `false`, so nothing of this
//! is in a normal build; with it, the test binary `tests/planted.rs` switches one rule off, runs the story, and expects it to go red.
//!
//! Threading: one process-wide switch; whoever uses it runs one story at a time.

#![cfg_attr(not(feature = "planted"), allow(dead_code))]

/// A rule that is switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)] // Each says what goes wrong; the rule stands where it is asked for.
pub enum Bug {
    None = 0,
    FlushWithoutLogSync,
    RecoverOneByOne,
    ReplayIgnoresCovered,
    GoOnPastBrokenChain,
    GoOnPastBadRecord,
    StopAtSegmentEnd,
    NumberIsNotChecked,
    SyncNewestSegmentOnly,
    SyncMarkIsNumber,
    ReuseNumbers,
    EditBeforeLogSync,
    IngestVisibleAfterEdit,
    LogSyncIsRepeated,
    DeleteBeforeManifest,
    ReplayWithoutRoom,
    TableSyncPoisons,
    ManifestSyncIsRepeated,
    IgnoreUnsettled,
    MemtablesAboveRuns,
    OlderByNumber,
    JobKeepsNewestOnly,
    NumberBeforeView,
    StallInQueue,
    CheckBeforePin,
    ReuseKeyspaceIds,
    FilterBeforeRangeDeletes,
    DeleteHeldTables,
    KeepForEver,
    OneAttemptForAll,
    IgnoreLostLease,
    BelieveOutcomes,
    UnseededOrder,
    DropDoesNotPin,
    CloseOutsideRoles,
    FolderSyncIsHarmless,
    MissingStartIsEmpty,
    DropNeedsRoom,
    IngestLeavesHole,
    DropTakesIngestAlong,
    SpillIdsFromManifest,
    FailedGroupPins,
    CheckIngestsAtOnce,
    NoSpaceIsForGood,
    AcknowledgeBeforeSync,
    PendingStaysUnsettled,
    HealthWithoutLock,
    KeepCancelledOutput,
    DropUnderSnapshots,
    OfferToLiars,
    OneRefusalFailsAll,
    /// Leaving an open on a full disk deletes every table that the manifest does not name, outputs of running jobs included.
    DeleteOutputsOfJobs,
}

#[cfg(feature = "planted")]
mod switch {
    use super::Bug;
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    static ACTIVE: AtomicU32 = AtomicU32::new(0);

    /// Switches the rule off whose absence `bug` is, and all others on.
    pub fn set(bug: Bug) {
        ACTIVE.store(bug as u32, Ordering::SeqCst);
    }

    /// A number that no seed decides, as an address or a foreign clock would be.
    pub fn unseeded() -> u64 {
        static CALLS: AtomicU64 = AtomicU64::new(0);
        CALLS.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether this rule is switched off.
    #[inline]
    pub fn is(bug: Bug) -> bool {
        ACTIVE.load(Ordering::Relaxed) == bug as u32
    }
}

#[cfg(feature = "planted")]
pub use switch::{is, set, unseeded};

/// Whether this rule is switched off: never, without the feature.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) const fn is(_bug: Bug) -> bool {
    false
}

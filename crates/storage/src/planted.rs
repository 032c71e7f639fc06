//! Faults that are planted on purpose, one at a time, to see that the trials find them.
//!
//! `planted!(Name)` is true while the fault `Name` of the list below is switched on. Without the
//! feature `planted` it is a constant `false`, so that nothing of this is in a normal build. With
//! it, one build holds all faults: `SILT_PLANTED=N` in the environment switches number N on for the
//! process (none: 0), and tests switch with `set`.
//!
//! Where the faults are: the macro stands in the sources where one short condition spoils the line
//! that keeps a rule. A fault that needs code of its own is a patch in `xtask/planted`.
//! `cargo xtask planted` applies all patches to a copy of the sources, builds there, and runs the
//! rows of `docs/reliability.md` with each fault (it reads the list below from this file); the test
//! binary `planted` of the engine, which it runs too, plays the story that guards each rule.
//!
//! It lives here because this is the lowest crate; `table`, `engine` and `sim` forward the feature.
//!
//! Threading: one process-wide switch; whoever uses it runs one thing at a time.

#![cfg_attr(not(feature = "planted"), allow(dead_code))]

/// Whether the fault of this name is switched on: never, without the feature `planted`.
#[doc(hidden)]
#[macro_export]
macro_rules! planted {
    ($bug:ident) => {
        $crate::planted::is($crate::planted::Bug::$bug)
    };
}

/// Each fault: its number, its name, and what it breaks. After `not for rows:` stands why only a
/// story of its own can catch it.
macro_rules! bugs {
    ($($number:literal $name:ident $text:literal $(not for rows: $why:literal)?;)*) => {
        /// A rule that is switched off.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Bug {
            /// All rules hold.
            None = 0,
            $(#[doc = $text] $name = $number,)*
        }

        #[cfg(feature = "planted")]
        impl Bug {
            /// All of them.
            pub const ALL: &[Bug] = &[$(Bug::$name),*];
        }
    };
}

bugs! {
    1 FlushWithoutLogSync "a flush is installed without a sync of the log up to its memtable's last record";
    2 RecoverOneByOne "recovery installs the first keyspaces and the log's new start before the others";
    3 ReplayIgnoresCovered "replay applies again what tables have already";
    4 GoOnPastBrokenChain "replay goes on into a segment that does not name the end of the one before";
    5 GoOnPastBadRecord "replay goes on behind a hole in the log";
    6 StopAtSegmentEnd "replay ends with the first segment";
    7 NumberIsNotChecked "a reused segment's old records pass: neither salt nor number of the segment is in their checksums";
    8 SyncNewestSegmentOnly "a sync of the log leaves out the segments before the newest";
    9 SyncMarkIsNumber "open refuses a log that ends before the newest table";
    10 ReuseNumbers "after a recovery sequence numbers are given again";
    11 EditBeforeLogSync "a manifest edit of a create, drop or ingest overtakes its record in the log";
    12 IngestVisibleAfterEdit "an ingest is published before it can be seen";
    13 LogSyncIsRepeated "a failed sync of the log is made again";
    14 DeleteBeforeManifest "recovery deletes the old log before the new manifest";
    15 ReplayWithoutRoom "replay on a full disk drops what it has no room for";
    16 TableSyncPoisons "a failed job poisons the store";
    17 ManifestSyncIsRepeated "a failed sync of the manifest is made again";
    18 IgnoreUnsettled "drop rules do not ask older memtables and runs that are not installed";
    19 MemtablesAboveRuns "memtables are read before newer runs";
    20 OlderByNumber "drop rules take smaller numbers for older data";
    21 JobKeepsNewestOnly "jobs know no snapshots";
    22 NumberBeforeView "a read takes its number before its view";
    23 StallInQueue "a stalled writer waits in the queue" not for rows: "nothing is wrong or lost, others wait longer";
    24 CheckBeforePin "a read asks whether the keyspace is dropped before it pins the view";
    25 ReuseKeyspaceIds "ids of dropped keyspaces are given again";
    26 FilterBeforeRangeDeletes "the filter is asked before the range deletes";
    27 DeleteHeldTables "a table that an old view holds is deleted";
    28 KeepForEver "obsolete tables are never deleted";
    29 OneAttemptForAll "all attempts of a job write the same names";
    30 IgnoreLostLease "a writer that lost its lease goes on writing";
    31 BelieveOutcomes "an outcome is installed without being verified";
    32 UnseededOrder "work is picked in an order that the seed does not decide";
    33 DropDoesNotPin "a drop lets the log go before it is durable";
    34 CloseOutsideRoles "a close marks the store closed outside the roles";
    35 FolderSyncIsHarmless "a failed sync of the folder poisons nobody";
    36 MissingStartIsEmpty "a log whose first segment is missing counts as empty";
    37 DropNeedsRoom "a keyspace cannot be dropped on a full disk";
    38 IngestLeavesHole "the slot before an ingest is nobody's";
    39 DropTakesIngestAlong "a drop takes along an unfinished ingest of another keyspace";
    40 SpillIdsFromManifest "ids of spilled tables do not count ingested ones";
    41 FailedGroupPins "a failed append keeps the log for ever";
    42 CheckIngestsAtOnce "replay looks for ingested tables of keyspaces dropped since";
    43 NoSpaceIsForGood "writes do not resume when there is room again";
    44 AcknowledgeBeforeSync "a synced write is acknowledged before the sync";
    45 PendingStaysUnsettled "an ingest whose edit failed is never settled";
    46 HealthWithoutLock "health is changed without its lock";
    47 KeepCancelledOutput "a cancelled job leaves its tables";
    48 DropUnderSnapshots "tables under a range delete are dropped although a snapshot sees them";
    49 OfferToLiars "a side that is suspended is given jobs";
    50 OneRefusalFailsAll "a batch that is refused fails its whole group";
    51 DeleteOutputsOfJobs "leaving an open on a full disk deletes outputs of running jobs";
    52 SyncShortOfFlush "before a flush is installed the log is synced to the start of the segment of the memtable's last record, not through the record";
    53 TableIsNotSynced "a job's tables are not synced";
    54 FolderIsNotSynced "a job's tables are synced, their names are not";
    55 SegmentFolderIsNotSynced "a new log segment's name is not synced";
    56 EditIsNotSynced "a manifest edit is not synced";
    57 NewManifestIsNotSynced "CURRENT names a manifest that was not synced";
    58 InheritedSegmentIsReused "the log goes on in the last segment of the log that it inherited";
    59 LogChecksumIsIgnored "a log record's payload may differ from its checksum";
    60 BlockChecksumIsIgnored "a table block's values and columns may differ from their checksums";
    61 ManifestChecksumIsIgnored "a manifest record's payload may differ from its checksum";
    62 SectionChecksumIsIgnored "a table's index, filter, range deletes and properties may differ from their checksums";
    63 PublishBeforeLog "a group is published before it is in log and memtables";
    64 HalfABatchIsShown "a batch over two keyspaces is published between the two";
    65 TombstoneGoesEarly "drop rules do not look below the level next to the output";
    66 OlderRunIsIgnored "drop rules do not look at older runs that are no input";
    67 OldestSnapshotIsForgotten "drop rules leave out the oldest snapshot";
    68 LastEntryIsLost "a point read does not find the last entry of a block";
    69 HeadOfWrongWidth "heads of four bytes are decoded as if they had eight";
    70 SubjobLosesItsCut "a subjob begins behind its cut instead of at it";
    71 RangeDeleteIsCutOff "what is left of a range delete behind the end of a table is not taken over by the next one";
    72 RangeDeleteIsNotClipped "a range delete is not clipped to its table";
    73 StaleFilter "a table's filter does not know its last key";
    74 CacheKeyIsReused "the block cache knows a table by an id that another table had";
    75 RunsInWrongOrder "the two oldest sources of a view have changed places";
    76 SeekLandsOneTooFar "a seek to a key that is not in the block lands one entry too far";
    77 ReverseShowsOldest "a reverse iteration shows the oldest visible version of a key";
    78 IngestNumberTooLow "an ingested table's entries have a number one too low";
    79 ResumeLosesATable "a job that goes on behind an earlier attempt makes no more tables where that one had finished some";
    80 MoveIntoOverlap "a table is moved down although tables there overlap it";
    81 SnapshotReadsNewest "a get at a snapshot reads at the newest number";
    82 RefreshKeepsRangeDeletes "a refreshed cursor asks the range deletes of its old view";
    83 RangeDeleteTakesItsEnd "a range delete in a table covers its end key too";
    84 LogStartForgetsOthers "the log's start forgets what other memtables still need of it";
    85 CoveredOneTooFar "a flush says that it covers one number more than it has";
    86 SyncedMarkTooFar "a record says that the log was synced up to the record itself";
    87 PoisonIsForgotten "a store that was poisoned goes on";
    88 CheckpointWithoutMemtables "a checkpoint leaves out what is not flushed yet";
    89 CheckpointAheadOfLog "a checkpoint shows what its source may still lose";
    90 IngestIsNotSynced "an ingested table's bytes are not synced";
    91 MoveDeletesFirst "an ingest deletes the tables that it moves before it commits";
    92 WaiterIsNotWoken "whoever waits to lead the next group is not told";
    93 MultiGetAsksFirstTable "a lookup of many keys asks one table of a level for all of them";
    94 FolderListIsShort "the list of a folder of real files leaves out the newest segment of the log";
    95 IntervalNeverSyncs "sync mode interval never syncs";
    96 MergeLosesEqualHead "a merge takes keys with the same first eight bytes for the same key";
    97 IngestSeenTooEarly "a get at a snapshot sees ingests that came after it";
    98 DropIsForgotten "replay does not apply a drop that the manifest does not have";
    99 SettingIsNotKept "a keyspace's settings are changed in memory only";
    100 ExportIgnoresSnapshot "an export at a snapshot shows the newest state";
    // From here on by somebody who had seen the sources and the documents, and no test.
    101 SyncedThroughLateEnd "what was appended during a sync of the log counts as synced";
    102 RefusedBodiesLogged "a group's record holds the batches that were refused too";
    103 StateBeforeAppend "a manifest edit counts in memory before it is appended";
    104 PinMovesUp "a memtable keeps the log from its last record on instead of its first";
    105 GapNotAsked "replay does not ask whether an ingest lies between two entries of one memtable";
    106 SeenByAllByOldest "a table counts as seen by all readers when its oldest entry is";
    107 TrimStopsAtLastKey "a range delete is trimmed before the last key of older data";
    108 SettlesOnce "a scan that comes to a table without entries leaves out the tables behind it";
    109 HeadNotAsked "after a search among equal heads the head found is not compared";
    110 CachesUnderPosition "a lookup of many keys caches blocks under their place in the lookup";
    111 SnapshotNumberBeforeLock "a snapshot takes its number before the lock under which jobs learn of it";
    112 CutPinsLate "a checkpoint pins its views after it gave the leader's role on";
    113 PinnedFilterFirst "a pinned get asks the filter before the range deletes";
    114 UnpinnedOnceSynced "a create, drop or ingest lets the log go before its edit is durable";
    115 DiscardInDoubt "a flush whose edit is in doubt deletes its tables";
    116 StripeEndExclusive "drop rules take a version at a snapshot's number for a later one";
    117 LastWishSyncs "only the last batch of a group says whether it is synced";
    // And by somebody who had seen the tests.
    118 LostNumbersComeBack "a recovery takes only numbers that it finds for given, so that those of what was lost are given again";
    // What the rows had not tried when they were written: sizes at a bound, leaks, many writers.
    119 TailEndsTooNarrow "tails of exactly 65,536 bytes in a block have ends of 16 bits";
    120 FailedDeletionIsForgotten "a file whose deletion failed is not deleted again";
    121 WidensPastMovingTables
        "a merge within level 0 widens over tables that another job moves down";
    122 MiddleIsNotCompared "of 17 to 24 bytes a comparison reads the first and the last eight";
    123 TrimPastLongestKey
        "a range delete is trimmed behind a key of the longest length, to one that is longer";
    124 GroupIsCutAt64 "of a group only 64 batches come to the memtables";
    125 SecondBufferOverFirst "a direct file's second buffer is written over its first";
    126 HandlesRunOut
        "opening a table without a free file handle fails at once, while others could be closed";
    127 SnapshotStaysRegistered "of two equal snapshots the first to end stays registered";
    128 CursorKeepsView "a refreshed cursor keeps its old view for ever";
    129 OldManifestStays "a manifest that was rolled is not deleted before the next open";
    130 UnsettledIsNoBorder "runs on both sides of a slot that is not installed are neighbours";
    // The end of a closed log, by its second attacker.
    131 UnreadableIsNeeded "unreadable bytes of the log refuse an open where nothing is needed"
        not for rows: "no row has a bad sector";
    132 OlderManifestIsBelieved "records of a chain that is younger than the manifest are ignored"
        not for rows: "no row puts a manifest back";
    133 LostStartIsKept "an open on a full disk keeps a log start whose segment is missing"
        not for rows: "no row deletes a segment on a full disk";
    134 ObsoleteStaysAtClose "a close leaves the segments of the log that its edit makes obsolete"
        not for rows: "the next open deletes them";
    // Of the gaps that cursors remember, by their author.
    140 GapOutlivesPut "a put into a gap that cursors jump over leaves the gap as it is";
    141 GapServesOldReads "a read at an old snapshot jumps over a gap that was found later";
    142 GapIgnoresEarlierPuts
        "a cursor makes a gap although keys came to life after it took its number";
    143 GapOutlivesIngest "an ingest into a gap that cursors jump over leaves the gap as it is";
    // Of the gaps, by those who attacked them.
    144 WatchOutlivesPut "a put where a cursor is looking for a gap does not bound the gap";
    145 GapCutLate "a put is published before it is taken out of the gaps";
    146 GapTrustsLeader
        "a cursor assumes that the leader at work already invalidates its puts in the gaps";
    147 JoinedGapIsOld "two gaps that become one have the older number of the two";
    148 GapsOutliveDisarming "gaps stay when leaders no longer invalidate their puts in them";
    // The end of a closed log, and what of a log is needed.
    151 CloseWithoutSync "a close does not sync the log before it writes where the log ends";
    152 CloseWithoutEnd "a close does not write where the log ends";
    153 CloseEndTooFar "a close writes an end of the log that is beyond the log's";
    154 LogEndIsReadLate "the log's end is read after what needs the log, not before";
    155 ClosedEndIsNotAsked "a log that ends before its end at the close is accepted as whole";
    156 CloseWithoutManifestEnd "a close does not write how far the manifest reaches";
    157 ClosedIsNotAsked
        "a first segment that is missing or cut is skipped in a store that was not closed";
    158 ManifestEndIsIgnored "a manifest that lost its last records is accepted as whole";
    // File descriptors, and what a flush is compared with.
    159 CreationsGiveUp
        "creating a file without a free file handle fails at once, while tables could be closed";
    160 NoTableIsNotAsked
        "a flush of range deletes alone makes no table, and the check of the flush accepts that";
    165 OtherChainIsBelieved
        "a first segment of another chain than the manifest's is accepted as the log";
    // Cursors that jump over range deletes.
    170 JumpOverNewerTable "a cursor jumps over newer entries of a table";
    171 JumpIgnoresStamps "a cursor jumps over newer entries of a memtable";
    // Tables that seeks and cursors do not open, or do not read completely.
    172 UnreadFilterSaysNo "a lookup in a table whose filter was not read finds no key at all";
    173 LeavesOutHalfCovered "a seek back leaves out a table that is covered at its start only";
    174 LeavesOutBySequel "a seek leaves out what range deletes cover that its reader cannot see";
    // Jobs on other sides than the host (RFC 7).
    180 SlotGivenTwice "a slot that another task took at the same moment counts as free";
    181 AbandonedIsInstalled "the outcome of an abandoned attempt is installed";
    182 GateStaysOpen "the gate before an abandoned attempt stays open";
    183 ForeignTablesAreBelieved
        "tables that another executor left are verified as the host's own";
    184 LeaseGoesBeforeCallsEnd
        "a close gives the lease back while abandoned attempts still make storage calls";
    185 ReservationEndsEarly "what a job reserves is given back when its attempt is abandoned";
    186 LostSlotIsFree "the slot of an abandoned attempt is free before the executor returns";
}

#[cfg(feature = "planted")]
mod switch {
    use super::Bug;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// The environment was not asked yet.
    const UNREAD: u32 = u32::MAX;

    static ACTIVE: AtomicU32 = AtomicU32::new(UNREAD);

    /// Switches the rule off whose absence `bug` is, and all others on.
    pub fn set(bug: Bug) {
        ACTIVE.store(bug as u32, Ordering::SeqCst);
    }

    /// Whether this rule is switched off.
    #[inline]
    pub fn is(bug: Bug) -> bool {
        let mut active = ACTIVE.load(Ordering::Relaxed);
        if active == UNREAD {
            active = from_environment();
        }
        active == bug as u32 && bug != Bug::None
    }

    /// Reads the environment once.
    ///
    /// # Panics
    /// If `SILT_PLANTED` is no fault's number: a run that means to try a fault must not try none.
    #[cold]
    fn from_environment() -> u32 {
        let number = match std::env::var("SILT_PLANTED") {
            Ok(text) => text
                .parse()
                .ok()
                .filter(|n| *n == 0 || Bug::ALL.iter().any(|bug| *bug as u32 == *n))
                .unwrap_or_else(|| panic!("SILT_PLANTED={text} is no fault's number")),
            Err(_) => 0,
        };
        // Whoever has set one meanwhile is right.
        match ACTIVE.compare_exchange(UNREAD, number, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => number,
            Err(set) => set,
        }
    }
}

#[cfg(feature = "planted")]
pub use switch::{is, set};

/// Whether this rule is switched off: never, without the feature.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn is(_bug: Bug) -> bool {
    false
}

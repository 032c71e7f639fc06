//! Faults that are planted on purpose, one at a time, to see that the trials find them.
//!
//! `planted!(Name)` is true while the fault `Name` of the list below is switched on. Without the
//! feature `planted` it is the constant `false`, so a normal build contains no fault. A build with
//! the feature contains all of them. `SILT_PLANTED=N` in the environment switches fault N on for
//! the process (0: none), and tests call `set`.
//!
//! Where the faults are: the sources use the macro where one short condition breaks the line that
//! keeps a rule. A fault that needs code of its own is a patch in `xtask/planted`.
//! `cargo xtask planted` reads the list below from this file, applies all patches to a copy of the
//! sources, and builds it. There it runs the rows of `docs/reliability.md` with each fault. It also
//! runs the engine's test binary `planted`, which plays the story that guards each rule.
//!
//! It is in this crate because this is the lowest one; `table`, `engine` and `sim` forward the
//! feature.
//!
//! Threading: one switch for the process. Its users run one thing at a time.

#![cfg_attr(not(feature = "planted"), allow(dead_code))]

/// Whether the fault of this name is switched on: never, without the feature `planted`.
#[doc(hidden)]
#[macro_export]
macro_rules! planted {
    ($bug:ident) => {
        $crate::planted::is($crate::planted::Bug::$bug)
    };
}

/// Each fault has a number, a name, and a description of what it breaks. `not for rows:` says why
/// only a story of its own can catch it.
macro_rules! bugs {
    ($($number:literal $name:ident $text:literal $(not for rows: $why:literal)?;)*) => {
        /// A rule that is broken.
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
    1 FlushWithoutLogSync
        "a flush is installed before the log is synced through its memtable's last record";
    2 RecoverOneByOne
        "recovery installs the first keyspaces and the new log start before the other keyspaces";
    3 ReplayIgnoresCovered "replay inserts entries again that tables have already";
    4 GoOnPastBrokenChain
        "replay goes on into a segment that does not name the end of the segment before it";
    5 GoOnPastBadRecord "replay goes on behind a damaged record";
    6 StopAtSegmentEnd "replay ends after the first segment";
    7 NumberIsNotChecked
        "old records of a recycled segment are accepted: no checksum has salt or segment number";
    8 SyncNewestSegmentOnly "a sync of the log leaves out the segments before the newest one";
    9 SyncMarkIsNumber "an open refuses a log that ends before the newest table";
    10 ReuseNumbers "a recovery gives sequence numbers again";
    11 EditBeforeLogSync
        "the edit of a create, drop or ingest is made durable before its record in the log";
    12 IngestVisibleAfterEdit "an ingest's number is published before reads can see the ingest";
    13 LogSyncIsRepeated "a failed sync of the log is repeated";
    14 DeleteBeforeManifest "recovery deletes the old log before the new manifest is durable";
    15 ReplayWithoutRoom "a replay on a full disk drops the data that it has no space for";
    16 TableSyncPoisons "a failed job poisons the store";
    17 ManifestSyncIsRepeated "a failed sync of the manifest is repeated";
    18 IgnoreUnsettled "drop rules ignore older memtables and runs that are not installed yet";
    19 MemtablesAboveRuns "reads ask memtables before runs that are newer";
    20 OlderByNumber "drop rules assume that older data has smaller sequence numbers";
    21 JobKeepsNewestOnly "compactions ignore snapshots";
    22 NumberBeforeView "a read takes its sequence number before its view";
    23 StallInQueue
        "a writer that must wait for a flush waits in the queue"
        not for rows: "nothing is wrong or lost, other writers only wait longer";
    24 CheckBeforePin "a read checks whether the keyspace is dropped before it pins the view";
    25 ReuseKeyspaceIds "ids of dropped keyspaces are given again";
    26 FilterBeforeRangeDeletes "a read asks the filter before the range deletes";
    27 DeleteHeldTables "a table is deleted although an old view still uses it";
    28 KeepForEver "obsolete tables are never deleted";
    29 OneAttemptForAll "all attempts of a job write files of the same names";
    30 IgnoreLostLease "a writer that lost its lease goes on writing";
    31 BelieveOutcomes "an outcome is installed without being verified";
    32 UnseededOrder "work is picked in an order that the seed does not decide";
    33 DropDoesNotPin
        "a drop does not hold the log that the keyspace needs until the drop is durable";
    34 CloseOutsideRoles
        "a close marks the store as closed without taking the lead and the manifest role";
    35 FolderSyncIsHarmless "a failed sync of the folder poisons no store";
    36 MissingStartIsEmpty "a log without its first segment is taken for an empty log";
    37 DropNeedsRoom "a keyspace cannot be dropped on a full disk";
    38 IngestLeavesHole "the slot before an ingest belongs to no source";
    39 DropTakesIngestAlong "a drop discards an unfinished ingest of another keyspace";
    40 SpillIdsFromManifest "recovery gives its tables ids that ingested tables have already";
    41 FailedGroupPins "a group whose append failed holds the log for ever";
    42 CheckIngestsAtOnce "replay requires ingested tables of keyspaces that the log drops later";
    43 NoSpaceIsForGood "writes are not resumed when the disk has space again";
    44 AcknowledgeBeforeSync "a synced write is acknowledged before the sync";
    45 PendingStaysUnsettled "an ingest whose edit failed stays unsettled for ever";
    46 HealthWithoutLock "the store's health is changed without its lock";
    47 KeepCancelledOutput "tables of a job that was cancelled are not deleted";
    48 DropUnderSnapshots "tables under a range delete are dropped although a snapshot sees them";
    49 OfferToLiars "a side that is suspended is given jobs";
    50 OneRefusalFailsAll "a batch that is refused fails its whole group";
    51 DeleteOutputsOfJobs
        "an open on a full disk deletes outputs of running jobs when it gets space";
    52 SyncShortOfFlush "before a flush the log is synced to the start of its last segment only";
    53 TableIsNotSynced "a job's tables are not synced";
    54 FolderIsNotSynced "a job's tables are synced, but their names are not";
    55 SegmentFolderIsNotSynced "the name of a new log segment is not synced";
    56 EditIsNotSynced "an edit of the manifest is not synced";
    57 NewManifestIsNotSynced "CURRENT names a manifest that was not synced";
    58 InheritedSegmentIsReused
        "the log goes on in the last segment of the log that the open found";
    59 LogChecksumIsIgnored "the checksum of a log record's payload is not checked";
    60 BlockChecksumIsIgnored "the checksums of a table block's values and columns are not checked";
    61 ManifestChecksumIsIgnored "the checksum of a manifest record's payload is not checked";
    62 SectionChecksumIsIgnored "the checksums of a table's sections are not checked";
    63 PublishBeforeLog "a group is published before it is in the log and in the memtables";
    64 HalfABatchIsShown "a batch over two keyspaces is published when one of the two has it";
    65 TombstoneGoesEarly "drop rules look only at the level below the output, and not deeper";
    66 OlderRunIsIgnored "drop rules ignore older runs that are not inputs";
    67 OldestSnapshotIsForgotten "drop rules leave out the oldest snapshot";
    68 LastEntryIsLost "a point read does not find the last entry of a block";
    69 HeadOfWrongWidth "heads of four bytes are decoded as heads of eight bytes";
    70 SubjobLosesItsCut "a subjob begins after its cut instead of at it";
    71 RangeDeleteIsCutOff
        "a range delete that reaches beyond the end of a table is not continued in the next table";
    72 RangeDeleteIsNotClipped "a range delete is not clipped to its table";
    73 StaleFilter "a table's filter lacks the last key";
    74 CacheKeyIsReused "the block cache knows a table by an id that another table had";
    75 RunsInWrongOrder "the two oldest sources of a view are in the wrong order";
    76 SeekLandsOneTooFar "a seek to a key that is not in the block ends one entry too far";
    77 ReverseShowsOldest "a reverse scan shows the oldest visible version of a key";
    78 IngestNumberTooLow "the entries of an ingested table get a number that is one too low";
    79 ResumeLosesATable
        "a resumed subjob makes no further tables after those that the last attempt finished";
    80 MoveIntoOverlap "a table is moved down although tables of that level overlap it";
    81 SnapshotReadsNewest "a get at a snapshot reads at the newest number";
    82 RefreshKeepsRangeDeletes "a refreshed cursor uses the range deletes of its old view";
    83 RangeDeleteTakesItsEnd "a range delete in a table covers its end key too";
    84 LogStartForgetsOthers "the log start ignores the memtables of other keyspaces";
    85 CoveredOneTooFar "a flush claims to cover one number more than its memtable has";
    86 SyncedMarkTooFar "a record claims that the log was synced through the record itself";
    87 PoisonIsForgotten "a poisoned store still accepts writes";
    88 CheckpointWithoutMemtables "a checkpoint leaves out the memtables";
    89 CheckpointAheadOfLog "a checkpoint contains writes that its source may still lose";
    90 IngestIsNotSynced "the bytes of an ingested table are not synced";
    91 MoveDeletesFirst "an ingest deletes the files that it moves before it commits";
    92 WaiterIsNotWoken "a writer that should lead the next group is not woken";
    93 MultiGetAsksFirstTable "a multi-get reads all keys of a level in the same table";
    94 FolderListIsShort "the list of a local folder leaves out the newest log segment";
    95 IntervalNeverSyncs "with SyncMode::Interval the log is never synced";
    96 MergeLosesEqualHead "a merge takes keys for equal if their first eight bytes are";
    97 IngestSeenTooEarly "a get at a snapshot sees ingests that came after it";
    98 DropIsForgotten "replay ignores a drop that the manifest does not have";
    99 SettingIsNotKept "a keyspace's settings are changed in memory only";
    100 ExportIgnoresSnapshot "an export at a snapshot shows the newest state";
    // The author of the following faults had seen the sources and documents, but not the tests.
    101 SyncedThroughLateEnd "what was appended during a sync of the log counts as synced";
    102 RefusedBodiesLogged "a group's record contains batches that were refused";
    103 StateBeforeAppend
        "an edit changes the state in memory before it is appended to the manifest";
    104 PinMovesUp "a memtable holds the log from its last record on instead of its first";
    105 GapNotAsked "replay ignores that an ingest lies between two entries of one memtable";
    106 SeenByAllByOldest "a table counts as visible to all snapshots when its oldest entry is";
    107 TrimStopsAtLastKey "a range delete is trimmed before the last key of older data";
    108 SettlesOnce "a scan that reaches a table without entries leaves out the tables after it";
    109 HeadNotAsked "a search among equal heads does not compare the key that it found";
    110 CachesUnderPosition "a multi-get caches blocks under their position in the call";
    111 SnapshotNumberBeforeLock
        "a snapshot takes its number before it takes the lock that jobs use";
    112 CutPinsLate "a checkpoint pins its views after it has passed the lead on";
    113 PinnedFilterFirst "a get without a copy asks the filter before the range deletes";
    114 UnpinnedOnceSynced "a create, drop or ingest releases the log before its edit is durable";
    115 DiscardInDoubt "a flush whose edit is in doubt deletes its tables";
    116 StripeEndExclusive
        "drop rules treat a version at a snapshot's number as newer than the snapshot";
    117 LastWishSyncs "only the last batch of a group decides whether the group is synced";
    // The author of this one had seen the tests.
    118 LostNumbersComeBack "a recovery gives numbers again that were lost with the power";
    // What the rows did not try when they were written: sizes at a bound, leaks, many writers.
    119 TailEndsTooNarrow "in a block, tails of exactly 65,536 bytes get ends of 16 bits";
    120 FailedDeletionIsForgotten "a deletion that failed is not repeated";
    121 WidensPastMovingTables "a merge within level 0 takes in tables that another job moves down";
    122 MiddleIsNotCompared
        "a comparison of 17 to 24 bytes reads only the first and the last eight";
    123 TrimPastLongestKey
        "a range delete is trimmed after a key of the greatest length, to a longer key";
    124 GroupIsCutAt64 "of a group only 64 batches reach the memtables";
    125 SecondBufferOverFirst "the second buffer of a direct file is written over the first";
    126 HandlesRunOut
        "a table that finds no file descriptor left is not opened, although others could be closed";
    127 SnapshotStaysRegistered "of two equal snapshots the one that ends first stays registered";
    128 CursorKeepsView "a refreshed cursor keeps its old view for ever";
    129 OldManifestStays "an old manifest is not deleted before the next open";
    130 UnsettledIsNoBorder
        "runs on both sides of a slot that is not installed count as neighbours";
    // The end of a closed log, by those who reviewed it.
    131 UnreadableIsNeeded
        "unreadable bytes of the log make an open fail although they are not needed"
        not for rows: "no row has unreadable sectors in a log";
    132 OlderManifestIsBelieved
        "records of a chain that is younger than the manifest are ignored"
        not for rows: "no row restores an older manifest";
    133 LostStartIsKept
        "an open on a full disk keeps a log start whose segment is missing"
        not for rows: "no row deletes a segment on a full disk";
    134 ObsoleteStaysAtClose
        "a close does not delete the segments that its edit makes obsolete"
        not for rows: "the next open deletes them";
    // Gaps that cursors remember, by their author.
    140 GapOutlivesPut "a put into a gap does not change the gap";
    141 GapServesOldReads "a read at an old snapshot jumps over a gap that was found later";
    142 GapIgnoresEarlierPuts
        "a cursor records a gap although keys were put there after it took its number";
    143 GapOutlivesIngest "an ingest into a gap does not change the gap";
    // Gaps, by those who reviewed them.
    144 WatchOutlivesPut "a put where a cursor has a watch does not bound its gap";
    145 GapCutLate "a put is published before it is taken out of the gaps";
    146 GapTrustsLeader
        "a cursor assumes that the present leader already takes its puts out of the gaps";
    147 JoinedGapIsOld "two gaps that are joined get the older number of the two";
    148 GapsOutliveDisarming
        "gaps are kept after leaders have stopped taking their puts out of them";
    // The end of a closed log, and what of a log is needed.
    151 CloseWithoutSync "a close does not sync the log before it records where the log ends";
    152 CloseWithoutEnd "a close does not record where the log ends";
    153 CloseEndTooFar "a close records an end that is beyond the end of the log";
    154 LogEndIsReadLate "the log's end is read after the positions that hold the log, not before";
    155 ClosedEndIsNotAsked "a log that ends before the end that a close recorded is accepted";
    156 CloseWithoutManifestEnd "a close does not record how far the manifest reaches";
    157 ClosedIsNotAsked
        "a first segment that is missing or cut is skipped in a store that was not closed";
    158 ManifestEndIsIgnored "a manifest that lost its last records is accepted";
    // File descriptors, and what a flush is compared with afterwards.
    159 CreationsGiveUp
        "a file that finds no file descriptor left is not created, although tables could be closed";
    160 NoTableIsNotAsked "a flush of range deletes alone that made no table is accepted";
    165 OtherChainIsBelieved "a first segment of another chain than the manifest's is accepted";
    // Cursors that jump over range deletes.
    170 JumpOverNewerTable "a cursor jumps over newer entries of a table";
    171 JumpIgnoresStamps "a cursor jumps over newer entries of a memtable";
    // Tables that seeks and cursors do not open, or do not read completely.
    172 UnreadFilterSaysNo "a lookup in a table whose filter was not read finds no key";
    173 LeavesOutHalfCovered "a backward seek skips a table of which only the start is covered";
    174 LeavesOutBySequel "a seek skips what range deletes cover that its reader cannot see";
    // Jobs on other sides than the host (RFC 7).
    180 SlotGivenTwice "a slot that another task took at the same moment counts as free";
    181 AbandonedIsInstalled "the outcome of an abandoned attempt is installed";
    182 GateStaysOpen "the gate of an abandoned attempt stays open";
    183 ForeignTablesAreBelieved "tables that another executor left are verified as the host's own";
    184 LeaseGoesBeforeCallsEnd
        "a close gives the lease back while abandoned attempts still make storage calls";
    185 ReservationEndsEarly "work that a side gives back loses its reservation";
    186 LostSlotIsFree
        "the slot of an abandoned attempt counts as free before the executor returns";
    // A storage that cannot be reached (RFC 9, section 7).
    190 UnsyncedIsDurable "a write whose sync is in doubt is reported as durable";
    191 OutageFailsNames "a sync of names that did not reach the storage poisons the store";
    192 UnreachableAppendCounts
        "a group whose append did not reach the storage gets numbers and a position";
    // A device across a link (RFC 9).
    220 LaneTakesTwice "a request whose number was taken is executed again";
    221 EndedStateWrites "requests of a session that has ended are executed";
    222 TailIsNotWrittenAgain
        "what was answered and not synced is not written again when the device was started again";
    223 IncompleteTailGoesOn
        "a file goes on after a power loss of the device although its tail is incomplete";
    224 NamesSyncIsRepeated
        "a sync of names during which the device was killed is repeated and believed";
    225 OutputGoesAfterTheEnd
        "a device deletes the tables of an attempt after it has told the host of its end";
    226 TakenNameIsDeleted "an attempt that fails deletes a file whose name was taken before it";
    227 LeaseOfTheLiving "a lease is given to another host although its holder is not silent";
    228 EpochGivenTwice "a lease is given with the epoch of the one before it";
    229 AgainAfterOthers
        "a host gets its lease again although somebody opened the folder in between";
    230 FailedTablesAreAdopted "tables of an attempt with a failed sync are left to the next one";
    231 JobOutlivesItsLease "a lease is given while jobs of the last holder still run";
    232 FencedRead "a host whose lease was taken over still reads";
    // Separated jobs (RFC 11), and what is verified of outcomes from outside (RFC 9, section 9).
    233 PiecesAreTakenAsTheyCome
        "a piece of survivors is taken whatever its number is, and as often as it arrives";
    234 PieceIsLostForRoom "a piece of survivors for which there is no room is answered as taken";
    235 LastChunkIsNotSent "the host ends a subjob while chunks of survivors wait to be sent";
    236 EndsAreBelieved "the first and last keys of tables from outside are not compared";
    237 FirstPlaceIsLeftOut "the first place of each table is not compared with the inputs";
    238 FilterIsBelieved "the filters of tables from outside are not asked for their keys";
    // Writers that wait (RFC 13).
    239 FlushesByKeyspace "memtables are flushed in the order of the keyspaces' numbers";
    240 CompactionsTakeAllTasks "no task is kept for flushes"
        not for rows: "Nothing is wrong or lost, and with few tasks a row sees the same waits for \
            its slow storage.";
    241 ProgressIsForgotten "with `redirect`, writers do not see the progress of flushes"
        not for rows: "Nothing is wrong or lost, writers only wait in larger steps.";
    242 StallStaysAhead "nobody asks the detector again after the last job";
    243 TakenBatchIsBusy "a writer gives up although a leader has taken its batch"
        not for rows: "No row limits the wait of a write.";
    244 PauseLastsTooLong "a compaction that paused for a flush goes on after five minutes";
    // A second location of tables (RFC 13, section 10).
    250 RedirectedAreOrphans "an open deletes the tables of the second location as orphans";
    251 RedirectedRunIsMisplaced "a run that was flushed to the second location is recorded as at \
        the first one";
    252 RedirectedFolderIsNotSynced
        "a run at the second location is installed before its folder is synced";
    // Log as run (RFC 13, section 11).
    253 PinsAreIgnored "a log segment is retired although a memtable reads values in it";
    // Compactions on a GPU (RFC 14).
    260 GpuArraysAreBelieved
        "arrays that were copied from a GPU are not compared with their checksums";
    261 GpuBlocksAreBelieved
        "blocks that were copied from a GPU are not compared with their checksums";
    262 GpuClipsNoStart "a piece on a GPU has the entries of its first blocks that lie before it";
    263 GpuForgetsStripes "on a GPU the newest version of a key hides those that snapshots see";
    // Jobs over three levels (RFC 10).
    210 PassedLevelIsNotReserved
        "a job over three levels does not keep others from the level that it passes";
}

#[cfg(feature = "planted")]
mod switch {
    use super::Bug;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// The environment was not read yet.
    const UNREAD: u32 = u32::MAX;

    static ACTIVE: AtomicU32 = AtomicU32::new(UNREAD);

    /// Switches this fault on, and all others off.
    pub fn set(bug: Bug) {
        ACTIVE.store(bug as u32, Ordering::SeqCst);
    }

    /// Whether this fault is switched on.
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
    /// If `SILT_PLANTED` is not the number of a fault: a run without a fault must not look like one
    /// with a fault.
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
        // A fault that was set meanwhile has precedence.
        match ACTIVE.compare_exchange(UNREAD, number, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => number,
            Err(set) => set,
        }
    }
}

#[cfg(feature = "planted")]
pub use switch::{is, set};

/// Whether this fault is switched on: never, without the feature.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn is(_bug: Bug) -> bool {
    false
}

//! Decides whether a compaction of the host, whose tables lie on a device, moves whole blocks over
//! the link or only columns ([RFC 11](../../../../docs/rfc/0011-separated.md), section 12).
//!
//! [`choose`] is a pure function of bytes and rates. [`Measured`] has the rates, as moving
//! averages.
//!
//! Threading: plain data.

/// The weight of a new measurement against all earlier ones.
const WEIGHT: f64 = 1.0 / 8.0;

/// Assumptions before anything is measured: the processor time of the merge for each byte of
/// columns, and the processor time of the device for each byte of a block or table.
const PLAN_NS_PER_BYTE: f64 = 4.0;
const REBUILD_NS_PER_BYTE: f64 = 2.0;

/// The approximate number of bytes of survivors for each byte of columns. An extent has 4 to 7
/// bytes. An entry of the columns has a key and at least 8 bytes.
const SURVIVORS_PER_COLUMN: f64 = 0.25;

/// The time that is needed to begin and to end a job on a device.
const FIXED_NS: f64 = 5e6;

/// While the link is not measured, columns are chosen if the blocks have at least this many times
/// their bytes.
const UNMEASURED_SHARE: u64 = 4;

/// After this many jobs that moved whole blocks although columns would have taken less than twice
/// the time, one job moves columns, so that the rates of that way are measured again.
const WHOLE_IN_A_ROW_MAX: u32 = 16;

/// What the choice for a job depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransferBytes {
    /// The bytes of all blocks of the inputs.
    pub blocks: u64,
    /// How many of these bytes are headers and columns.
    pub columns: u64,
    /// The number of subjobs that run at once.
    pub parallel: u32,
}

/// What was measured in earlier jobs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Nanoseconds for each byte that arrives over the link, if any were measured.
    pub link_ns_per_byte: Option<f64>,
    /// Processor time of the host for each byte of columns.
    pub plan_ns_per_byte: f64,
    /// Processor time of the device for each byte of blocks and tables.
    pub rebuild_ns_per_byte: f64,
    /// The bytes of tables for each byte of blocks.
    pub kept: f64,
    /// The number of jobs that moved whole blocks although columns would have taken less than twice
    /// the time. It begins again with 0 after each job that moves columns.
    pub whole_in_a_row: u32,
}

impl Default for Measured {
    fn default() -> Measured {
        Measured {
            link_ns_per_byte: None,
            plan_ns_per_byte: PLAN_NS_PER_BYTE,
            rebuild_ns_per_byte: REBUILD_NS_PER_BYTE,
            kept: 1.0,
            whole_in_a_row: 0,
        }
    }
}

/// What was measured in a separated job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// The bytes of columns.
    pub columns: u64,
    /// The processor time of the tasks that merged the columns.
    pub plan_cpu_ns: u64,
    /// The bytes of blocks that the device read.
    pub blocks_read: u64,
    /// The bytes of all blocks of the inputs.
    pub blocks: u64,
    /// The bytes of the tables that were made.
    pub tables: u64,
    /// The device's processor time.
    pub rebuild_cpu_ns: u64,
}

/// A moving average: the average after a new measurement.
pub(super) fn average(before: f64, new: f64) -> f64 {
    before + (new - before) * WEIGHT
}

impl Measured {
    /// Takes the measurements of a job.
    pub fn note(&mut self, ran: &Ran) {
        let rate = |before: &mut f64, ns: u64, bytes: u64| {
            // A simulated task uses no processor time.
            if ns > 0 && bytes > 0 {
                *before = average(*before, ns as f64 / bytes as f64);
            }
        };
        let moved = ran.blocks_read.saturating_add(ran.tables);
        rate(&mut self.plan_ns_per_byte, ran.plan_cpu_ns, ran.columns);
        rate(&mut self.rebuild_ns_per_byte, ran.rebuild_cpu_ns, moved);
        if ran.blocks > 0 {
            self.kept = average(self.kept, ran.tables as f64 / ran.blocks as f64);
        }
    }

    /// Takes note of a choice.
    pub fn note_choice(&mut self, choice: &TransferChoice) {
        self.whole_in_a_row = match choice {
            TransferChoice {
                separated: false,
                times_ns: Some((whole, separated)),
                ..
            } if *separated < 2 * *whole => self.whole_in_a_row.saturating_add(1),
            TransferChoice {
                separated: false, ..
            } => self.whole_in_a_row,
            _ => 0,
        };
    }
}

/// What [`choose`] decided, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferChoice {
    /// Whether only columns cross the link.
    pub separated: bool,
    /// The nanoseconds that the job would take with whole blocks and with columns, if the link was
    /// measured.
    pub times_ns: Option<(u64, u64)>,
    /// The reason, for people.
    pub reason: String,
}

/// Chooses how a job moves its data.
pub fn choose(bytes: &TransferBytes, measured: &Measured) -> TransferChoice {
    let (blocks, columns) = (bytes.blocks as f64, bytes.columns as f64);
    let share = format!("columns are {:.1} of {:.1} MB", columns / 1e6, blocks / 1e6);
    let Some(link) = measured.link_ns_per_byte else {
        let separated = bytes.columns.saturating_mul(UNMEASURED_SHARE) <= bytes.blocks;
        let way = if separated { "separated" } else { "whole" };
        return TransferChoice {
            separated,
            times_ns: None,
            reason: format!("{way}: {share}, and the link is not measured"),
        };
    };
    let parallel = f64::from(bytes.parallel.max(1));
    let tables = blocks * measured.kept;
    let whole = (blocks + tables) * link;
    let link_ns = columns * (1.0 + SURVIVORS_PER_COLUMN) * link;
    let plan_ns = columns * measured.plan_ns_per_byte / parallel;
    let rebuild_ns = (blocks + tables) * measured.rebuild_ns_per_byte / parallel;
    let separated_ns = link_ns.max(plan_ns).max(rebuild_ns) + FIXED_NS;
    let is_trial = measured.whole_in_a_row >= WHOLE_IN_A_ROW_MAX;
    let separated = separated_ns < whole || is_trial && separated_ns < 2.0 * whole;
    let times = format!(
        "separated {:.3} s, whole {:.3} s, {share}",
        separated_ns / 1e9,
        whole / 1e9
    );
    let reason = match (separated, separated_ns < whole) {
        (true, true) => format!("separated: {times}"),
        (true, false) => format!("separated as a trial: {times}"),
        (false, _) => format!("whole: {times}"),
    };
    TransferChoice {
        separated,
        times_ns: Some((whole as u64, separated_ns as u64)),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1 Gbit/s.
    fn gigabit() -> Measured {
        Measured {
            link_ns_per_byte: Some(8.0),
            ..Measured::default()
        }
    }

    fn job(blocks: u64, columns: u64) -> TransferBytes {
        TransferBytes {
            blocks,
            columns,
            parallel: 1,
        }
    }

    #[test]
    fn large_values_go_separated_and_small_ones_whole() {
        // 64 MB of values of 4 KiB, and of 8 bytes.
        let large = choose(&job(64_000_000, 600_000), &gigabit());
        assert!(large.separated, "{large:?}");
        // Whole: 128 MB at 8 ns a byte. Separated: the device's 128 MB at 2 ns a byte, and 5 ms.
        assert_eq!(large.times_ns, Some((1_024_000_000, 261_000_000)));
        assert!(large.reason.contains("separated 0.261 s, whole 1.024 s"));
        let small = choose(&job(64_000_000, 60_000_000), &gigabit());
        assert!(small.separated, "columns still cross once, and not twice");
        let fast = Measured {
            link_ns_per_byte: Some(0.3),
            ..Measured::default()
        };
        let small = choose(&job(64_000_000, 60_000_000), &fast);
        assert!(
            !small.separated && small.reason.starts_with("whole: "),
            "{small:?}"
        );
        // A tiny job is not worth the requests.
        assert!(!choose(&job(100_000, 1_000), &gigabit()).separated);
    }

    #[test]
    fn each_stage_may_be_the_slowest() {
        let bytes = job(100_000_000, 10_000_000);
        let times = |measured: Measured| choose(&bytes, &measured).times_ns.unwrap();
        let plan = Measured {
            plan_ns_per_byte: 1000.0,
            ..gigabit()
        };
        assert_eq!(times(plan).1, 10_005_000_000);
        let rebuild = Measured {
            rebuild_ns_per_byte: 50.0,
            kept: 0.5,
            ..gigabit()
        };
        assert_eq!(times(rebuild), (1_200_000_000, 7_505_000_000));
        let link = Measured {
            rebuild_ns_per_byte: 0.1,
            ..gigabit()
        };
        assert_eq!(times(link).1, 105_000_000);
        // More tasks share the processor time, but not the link.
        let wide = TransferBytes {
            parallel: 4,
            ..bytes
        };
        assert_eq!(choose(&wide, &link).times_ns.unwrap().1, 105_000_000);
        assert_eq!(choose(&wide, &plan).times_ns.unwrap().1, 2_505_000_000);
    }

    #[test]
    fn without_a_measured_link_the_bytes_decide() {
        let none = Measured::default();
        assert!(choose(&job(4_000, 1_000), &none).separated);
        let more = choose(&job(4_000, 1_001), &none);
        assert!(!more.separated && more.reason.contains("not measured"));
        assert!(choose(&job(0, 0), &none).separated);
    }

    #[test]
    fn rates_are_averages_that_forget() {
        let mut measured = gigabit();
        let ran = Ran {
            columns: 1_000,
            plan_cpu_ns: 12_000,
            blocks_read: 10_000,
            blocks: 20_000,
            tables: 10_000,
            rebuild_cpu_ns: 200_000,
        };
        measured.note(&ran);
        assert_eq!(measured.plan_ns_per_byte, 5.0);
        assert_eq!(measured.rebuild_ns_per_byte, 3.0);
        assert_eq!(measured.kept, 1.0 - 0.5 / 8.0);
        (0..100).for_each(|_| measured.note(&ran));
        assert!((measured.rebuild_ns_per_byte - 10.0).abs() < 0.01);
        assert!((measured.kept - 0.5).abs() < 0.01);
        // Nothing was measured.
        let before = measured;
        measured.note(&Ran::default());
        assert_eq!(measured, before);
    }

    /// One slow job does not decide forever.
    #[test]
    fn a_close_choice_is_tried_again() {
        let mut measured = Measured {
            rebuild_ns_per_byte: 12.0,
            ..gigabit()
        };
        let bytes = job(64_000_000, 600_000);
        let mut tried = 0;
        for _ in 0..100 {
            let choice = choose(&bytes, &measured);
            tried += u32::from(choice.separated);
            measured.note_choice(&choice);
        }
        assert_eq!(tried, 5);
        // One that is far away is not.
        measured.rebuild_ns_per_byte = 40.0;
        measured.whole_in_a_row = 1000;
        assert!(!choose(&bytes, &measured).separated);
    }
}

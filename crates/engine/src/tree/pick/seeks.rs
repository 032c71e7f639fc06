//! Compactions that pay because lookups read tables in vain, before any level is due by its size.
//!
//! A lookup that reads a block of a table and does not find its key there goes on to an older
//! table. A compaction of the two saves that read from then on. It is due as soon as such lookups
//! have read about as many bytes as it would read and write. So the reads that were not saved
//! because it came late cost about as much as it does, and what is spent is about twice what the
//! best choice in hindsight would spend, at most. LevelDB weighs in the same way (`allowed_seeks`).
//!
//! Threading: pure functions.

use super::*;

impl Picker<'_> {
    /// The bytes that lookups have read from free tables of level 0 in vain, if level 0 is due only
    /// because of them. Tables with no older data beneath them do not count, because lookups end
    /// there in any case.
    pub(super) fn level0_seek_bytes(&self) -> Option<u64> {
        let PickInput {
            version,
            options,
            seek_bytes,
            ..
        } = *self.input;
        if !options.seek_compaction || seek_bytes.is_empty() || self.level0_score() >= 1.0 {
            return None;
        }
        let mut read = 0u64;
        let mut free: Vec<&Arc<TableMeta>> = Vec::new();
        let settled = self.settled_runs();
        for (at, run) in settled.iter().enumerate() {
            for table in run.tables.tables() {
                if self.is_reserved(table) {
                    continue;
                }
                free.push(table);
                let bytes = seek_bytes.get(&table.id).copied().unwrap_or(0);
                let older = || settled[..at].iter().map(|older| &older.tables);
                if bytes > 0
                    && (older().any(|older| older.overlaps(&table.bounds))
                        || self.has_older_below(0, table))
                {
                    read = read.saturating_add(bytes);
                }
            }
        }
        let range = hull(free.iter().copied())?;
        let below = version.level(self.targets.base).overlapping_tables(&range);
        let job_bytes = file_bytes(free.iter().copied()).saturating_add(file_bytes(below));
        pays(read, job_bytes).then_some(read)
    }

    /// Whether a level below this one has data in the range of a table.
    fn has_older_below(&self, level: u8, table: &TableMeta) -> bool {
        (level + 1..=BOTTOM_LEVEL)
            .any(|below| self.input.version.level(below).overlaps(&table.bounds))
    }

    /// Moves down the table below level 0 for which this pays the most, if it pays for one. Only a
    /// keyspace without other work does that, because nobody waits for it.
    pub(super) fn down_by_seeks(&self, levels: std::ops::Range<u8>) -> Option<Choice> {
        let PickInput {
            version,
            options,
            jobs,
            seek_bytes,
            ..
        } = *self.input;
        if !options.seek_compaction || !jobs.is_empty() || seek_bytes.is_empty() {
            return None;
        }
        let mut best: Option<(f64, u8, usize, u64)> = None;
        for level in levels.start.max(1)..levels.end {
            for (index, table) in version.level(level).tables().iter().enumerate() {
                let Some(read) = seek_bytes.get(&table.id).copied() else {
                    continue;
                };
                let below = version.level(level + 1).overlapping_tables(&table.bounds);
                let job_bytes = table.file_bytes.saturating_add(file_bytes(below));
                let gain = read as f64 / job_bytes.max(1) as f64;
                if pays(read, job_bytes)
                    && best.is_none_or(|(other, ..)| gain > other)
                    && self.has_older_below(level, table)
                {
                    best = Some((gain, level, index, read));
                }
            }
        }
        let (_, level, index, read) = best?;
        // Neighbours that could go with the table at no cost stay, because lookups have not read
        // them as much.
        let candidates = index..index + 1;
        let reason = format!("lookups read {read} bytes of a table of level {level} in vain");
        let choice = self.down_from(level, index, candidates, None, (1.0, reason))?;
        Some(Choice {
            by_seeks: true,
            ..choice
        })
    }
}

/// Whether lookups in vain have read as much as a job with inputs of `job_bytes` reads and writes.
fn pays(read: u64, job_bytes: u64) -> bool {
    read > 0 && read >= job_bytes.saturating_mul(2)
}

//! Compactions that pay because lookups read tables in vain, before any level is due by its size.
//!
//! A lookup that reads a block of a table and does not find its key there goes on to an older
//! table. A compaction of the two saves that read from then on. It is due as soon as such lookups
//! have read as many bytes as it would read and write. So the reads that were not saved because it
//! came late cost as much as it does, and never more than twice as much is spent as by the best
//! choice in hindsight. LevelDB weighs in the same way (`allowed_seeks`).
//!
//! Threading: pure functions.

use super::*;

impl Picker<'_> {
    /// The bytes that lookups have read from free tables of level 0 in vain, if level 0 is due
    /// because of them.
    pub(super) fn seek_bytes_if_due(&self) -> Option<u64> {
        let input = self.input;
        if input.seek_bytes.is_empty() {
            return None;
        }
        let settled = self.settled_runs();
        let tables = settled.iter().flat_map(|run| run.tables.tables());
        let free: Vec<&Arc<TableMeta>> = tables.filter(|t| !self.is_reserved(t)).collect();
        let range = hull(free.iter().copied())?;
        let below = input.version.level(self.targets.base);
        let job_bytes = file_bytes(free.iter().copied())
            .saturating_add(file_bytes(below.overlapping_tables(&range)));
        let of = |table: &&Arc<TableMeta>| input.seek_bytes.get(&table.id).copied();
        let read = free.iter().filter_map(of).fold(0, u64::saturating_add);
        pays(read, job_bytes).then_some(read)
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
                // With nothing beneath it, the table is the last one that such a lookup reads.
                let saves_reads = || {
                    (level + 1..=BOTTOM_LEVEL)
                        .any(|level| version.level(level).overlaps(&table.bounds))
                };
                let gain = read as f64 / job_bytes.max(1) as f64;
                if pays(read, job_bytes)
                    && best.is_none_or(|(other, ..)| gain > other)
                    && saves_reads()
                {
                    best = Some((gain, level, index, read));
                }
            }
        }
        let (_, level, index, read) = best?;
        let candidates = 0..version.level(level).len();
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

//! Versions that are written as text.
//!
//! A version is written line by line: `L0 (lo,hi]: tables` is a run (the newest first),
//! `L2: tables` a level. A table is `id[first..last]`, with `)` for a table that only has a range
//! delete. It may be followed by `*MiB`, `!` (every entry is a delete), `%n` (n of a hundred are)
//! and `^` (it needs rewriting). Further lines: `unsettled (lo,hi]`, `reserved id id`,
//! `span level [a..b]`, `trigger n`, `intra n min busy`, `level1 MiB`, `factor n`, `max MiB`,
//! `dynamic`, `read number` (the oldest that a reader needs), `unproductive id id`, `three levels`,
//! `without first` and `without second` (the switches of these scores), `sought id MiB` (bytes that
//! lookups read of a table in vain) and `without seeks`.

use super::*;

pub(in crate::tree) struct Drawing {
    pub(in crate::tree) version: KeyspaceVersion,
    pub(in crate::tree) options: PickOptions,
    pub(super) jobs: Vec<Reservation>,
    pub(super) unsettled: Vec<SeqRange>,
    pub(super) seek_bytes: BTreeMap<u64, u64>,
    pub(super) deletes: Deletes,
}

fn draw_seqs(text: &str) -> SeqRange {
    let (lo, hi) = text
        .trim_start_matches('(')
        .trim_end_matches(']')
        .split_once(',')
        .expect(text);
    SeqRange::new(lo.parse().expect(text), hi.parse().expect(text))
}

fn draw_range(text: &str) -> KeyRange {
    let (start, end) = text.trim_start_matches('[').split_once("..").expect(text);
    match (end.strip_suffix(']'), end.strip_suffix(')')) {
        (Some(end), _) => KeyRange::closed(start.as_bytes(), end.as_bytes()),
        (_, Some(end)) => KeyRange::half_open(start.as_bytes(), end.as_bytes()),
        _ => panic!("{text}"),
    }
}

fn draw_table(text: &str, seq: u64) -> Arc<TableMeta> {
    let (id, rest) = text.split_at(text.find('[').expect(text));
    let close = rest.find([']', ')']).expect(text);
    let (range, marks) = rest.split_at(close + 1);
    let bounds = draw_range(range);
    let id = id.parse().expect(text);
    let mut table = TableMeta {
        id,
        location: 0,
        name: format!("{id}.table"),
        min_seq: seq,
        max_seq: seq,
        raw_bytes: 10 * MIB,
        file_bytes: 10 * MIB,
        entries: 1000,
        deletes: 0,
        range_deletes: 0,
        digest: 0,
        points: None,
        bounds: bounds.clone(),
        sequence_override: None,
        flags: 0,
    };
    match bounds.end.key() {
        Some(end) if range.ends_with(']') => {
            table.points = Some((bounds.start.clone(), end.into()))
        }
        _ => (table.entries, table.range_deletes) = (0, 1),
    }
    let mut marks = marks.chars().peekable();
    while let Some(mark) = marks.next() {
        match mark {
            '!' => table.deletes = table.entries,
            '^' => table.flags = TABLE_NEEDS_REWRITE,
            '*' | '%' => {
                let mut number = String::new();
                while let Some(digit) = marks.next_if(char::is_ascii_digit) {
                    number.push(digit);
                }
                let number = number.parse::<u64>().expect(text);
                if mark == '%' {
                    table.deletes = table.entries * number / 100;
                } else {
                    table.file_bytes = number * MIB;
                    table.raw_bytes = table.file_bytes;
                }
            }
            _ => panic!("{text}"),
        }
    }
    Arc::new(table)
}

pub(in crate::tree) fn draw(text: &str) -> Drawing {
    let mut options = PickOptions {
        level1_bytes: 100 * MIB,
        max_job_bytes: 1000 * MIB,
        table_bytes: 10 * MIB,
        l0_trigger_count: 2,
        ..PickOptions::default()
    };
    let (mut jobs, mut unsettled, mut edit) = (Vec::new(), Vec::new(), KeyspaceEdit::new(1));
    let (mut run_id, mut seek_bytes) = (1000, BTreeMap::new());
    let mut deletes = Deletes {
        oldest_read: u64::MAX,
        ..Deletes::default()
    };
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |i: usize| words[i].parse::<u64>().expect(line);
        match words[0] {
            "L0" => {
                let seqs = draw_seqs(words[1].trim_end_matches(':'));
                edit.covered.push(seqs);
                for table in &words[2..] {
                    let run = Some(RunSlot { id: run_id, seqs });
                    edit.add.push(AddTable {
                        level: 0,
                        run,
                        table: draw_table(table, seqs.hi),
                    });
                }
                run_id += 1;
            }
            "unsettled" => unsettled.push(draw_seqs(words[1])),
            "reserved" => {
                let tables: BTreeSet<u64> = words[1..]
                    .iter()
                    .map(|id| id.parse().expect(line))
                    .collect();
                jobs.push(Reservation {
                    tables: tables.into_iter().collect(),
                    ..Reservation::default()
                });
            }
            "span" => {
                let spans = [(number(1) as u8, draw_range(words[2]))];
                jobs.push(Reservation {
                    spans: spans.into(),
                    ..Reservation::default()
                });
            }
            "sought" => {
                seek_bytes.insert(number(1), number(2) * MIB);
            }
            "trigger" => options.l0_trigger_count = number(1) as usize,
            "intra" => {
                (options.l0_intra_count, options.l0_intra_min_count) =
                    (number(1) as usize, number(2) as usize);
                if words.len() > 3 {
                    options.l0_intra_busy_count = number(3) as usize;
                }
            }
            "level1" => options.level1_bytes = number(1) * MIB,
            "dynamic" => options.level_targets = LevelTargets::Dynamic,
            "three" => options.three_levels = true,
            "without" => match words[1] {
                "first" => options.first_score = false,
                "second" => options.second_score = false,
                "seeks" => options.seek_compaction = false,
                _ => panic!("{line}"),
            },
            "factor" => options.level_factor = number(1),
            "read" => deletes.oldest_read = number(1),
            "unproductive" => deletes
                .unproductive
                .extend(words[1..].iter().map(|id| id.parse::<u64>().expect(line))),
            "max" => options.max_job_bytes = number(1) * MIB,
            level => {
                let level = level
                    .trim_start_matches('L')
                    .trim_end_matches(':')
                    .parse()
                    .expect(line);
                edit.add.extend(words[1..].iter().map(|t| AddTable {
                    level,
                    run: None,
                    table: draw_table(t, 1),
                }));
            }
        }
    }
    let version = KeyspaceVersion::new(1).apply(&edit).expect(text);
    for (_, table) in version.tables().filter(|(_, t)| t.range_deletes > 0) {
        let ranges = Arc::new(vec![table.bounds.clone()]);
        deletes.ranges.insert(table.id, ranges);
    }
    Drawing {
        deletes,
        version,
        options,
        jobs,
        unsettled,
        seek_bytes,
    }
}

impl Drawing {
    pub(super) fn input(&self) -> PickInput<'_> {
        PickInput {
            version: &self.version,
            options: &self.options,
            jobs: &self.jobs,
            unsettled: &self.unsettled,
            seek_bytes: &self.seek_bytes,
            overlaps: None,
            last_picked: &NOTHING_PICKED,
            free_bytes: None,
            unread: &[],
            is_calm: false,
        }
    }
}

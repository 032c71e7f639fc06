//! Compares `docs/format/job.md` with the code. A job, an outcome, a part and survivors that are
//! made by hand as the page says are what the code writes and reads, and the tables of the page
//! have exactly the existing fields, in order.

use siltstone_table::Codec;
use siltstone_table::exec::part::{Part, Point};
use siltstone_table::exec::survivors::{EXTENTS_MAX, Extent, Survivors};
use siltstone_table::job::outcome::{Counters, Outcome, OutputTable};
use siltstone_table::job::{
    DropRules, Extension, FormatOptions, Input, InputKind, Job, KeyBounds, OutputLimits,
    OutputPrefix,
};
use siltstone_table::layout::LayoutState;
use siltstone_table::retain::{KeyRange, RangeEnd};

const PAGE: &str = include_str!("../../../docs/format/job.md");

/// Bytes as the *parts* of the page say.
#[derive(Default)]
struct Hand(Vec<u8>);

impl Hand {
    fn u8(mut self, x: u8) -> Self {
        self.0.push(x);
        self
    }
    fn u32(mut self, x: u32) -> Self {
        self.0.extend(x.to_le_bytes());
        self
    }
    fn u64(mut self, x: u64) -> Self {
        self.0.extend(x.to_le_bytes());
        self
    }
    fn bytes(mut self, x: &[u8]) -> Self {
        self = self.u32(x.len() as u32);
        self.0.extend(x);
        self
    }
}

fn hand() -> Hand {
    Hand::default()
}

fn whole(magic: &[u8; 8], fields: &[(u16, Hand)]) -> Vec<u8> {
    let mut bytes = magic.to_vec();
    bytes.extend(1u16.to_le_bytes());
    for (tag, field) in fields {
        bytes.extend(tag.to_le_bytes());
        bytes.extend((field.0.len() as u32).to_le_bytes());
        bytes.extend(&field.0);
    }
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

/// The tags in the table below a heading of the page.
fn tags(heading: &str) -> Vec<u16> {
    let section = PAGE.split(heading).nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    section
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(' ').next()?.parse().ok())
        .collect()
}

fn job() -> Job {
    Job {
        keyspace: 3,
        layout_version: 1,
        inputs: vec![
            Input {
                kind: InputKind::Table,
                location: 0,
                name: "a.tbl".into(),
                run: 4,
                len_bytes: 1000,
                digest: 0x1122_3344_5566_7788,
                min_seq: 5,
                max_seq: 90,
                clip: KeyBounds {
                    start: b"b".to_vec(),
                    end: Some(b"y".to_vec()),
                },
                seq_override: None,
            },
            Input {
                kind: InputKind::Stream,
                location: 7,
                name: "memtable".into(),
                run: 5,
                len_bytes: 0,
                digest: 0,
                min_seq: 91,
                max_seq: 91,
                clip: KeyBounds::everything(),
                seq_override: Some(91),
            },
        ],
        bounds: KeyBounds {
            start: b"a".to_vec(),
            end: None,
        },
        hard_cuts: vec![b"m".to_vec()],
        soft_cuts: vec![b"c".to_vec(), b"q".to_vec()],
        published: 100,
        snapshots: vec![10, 20],
        rules: DropRules::ALL,
        now_us: 1_700_000_000_000_000,
        older: vec![
            KeyRange {
                start: b"d".to_vec(),
                end: RangeEnd::Before(b"e".to_vec()),
            },
            KeyRange {
                start: b"f".to_vec(),
                end: RangeEnd::With(b"g".to_vec()),
            },
            KeyRange {
                start: b"h".to_vec(),
                end: RangeEnd::Unbounded,
            },
        ],
        limits: OutputLimits::new(1 << 20, 8 << 10, true),
        format: FormatOptions {
            codec: Codec::Lz4,
            level: 0,
            bits_per_key: 10,
            verify: true,
        },
        extensions: vec![Extension {
            name: "ttl".into(),
            version: 2,
            params: vec![9, 8],
        }],
        output: OutputPrefix {
            epoch: 6,
            attempt: 12,
        },
    }
}

#[test]
fn a_job_is_encoded_as_the_page_says() {
    let job = job();
    job.check().unwrap();
    let limits = &job.limits;
    let fields = [
        (1, hand().u32(3)),
        (2, hand().u8(1).u8(0)),
        (
            3,
            hand()
                .u32(2)
                .u8(0)
                .u32(0)
                .bytes(b"a.tbl")
                .u32(4)
                .u64(1000)
                .u64(0x1122_3344_5566_7788)
                .u64(5)
                .u64(90)
                .bytes(b"b")
                .u8(1)
                .bytes(b"y")
                .u8(0)
                .u8(1)
                .u32(7)
                .bytes(b"memtable")
                .u32(5)
                .u64(0)
                .u64(0)
                .u64(91)
                .u64(91)
                .bytes(b"")
                .u8(0)
                .u8(1)
                .u64(91),
        ),
        (4, hand().bytes(b"a").u8(0)),
        (5, hand().u32(1).bytes(b"m")),
        (6, hand().u32(2).bytes(b"c").bytes(b"q")),
        (7, hand().u64(100).u32(2).u64(10).u64(20)),
        (8, hand().u8(1 | 2 | 4 | 8)),
        (9, hand().u64(1_700_000_000_000_000)),
        (
            10,
            hand()
                .u32(3)
                .bytes(b"d")
                .u8(1)
                .bytes(b"e")
                .bytes(b"f")
                .u8(2)
                .bytes(b"g")
                .bytes(b"h")
                .u8(0),
        ),
        // T, M = T / 32, D = T / 2, B.
        (
            11,
            hand()
                .u64(1 << 20)
                .u64(1 << 15)
                .u64(1 << 19)
                .u64(limits.block_bytes),
        ),
        (12, hand().u8(1).u8(0).u8(10).u8(1)),
        (13, hand().u32(1).bytes(b"ttl").u32(2).bytes(&[9, 8])),
        (14, hand().u64(6).u64(12)),
    ];
    assert_eq!(fields.each_ref().map(|f| f.0).to_vec(), tags("## Job"));
    let bytes = whole(b"siltjob\0", &fields);
    assert_eq!(job.encode(), bytes);
    assert_eq!(Job::decode(&bytes).unwrap(), job);
    // Everything before the last field and the checksum, which have 6 bytes of head, 16 of field
    // and 4 of checksum.
    assert_eq!(
        job.identity(),
        xxhash_rust::xxh3::xxh3_128(&bytes[..bytes.len() - 26])
    );
}

const IDENTITY: u128 = 0x0102_0304_0506_0708_1112_1314_1516_1718;

fn identity_by_hand() -> Hand {
    hand().u64(0x1112_1314_1516_1718).u64(0x0102_0304_0506_0708)
}

fn table() -> OutputTable {
    OutputTable {
        name: "t.tbl".into(),
        subjob: 1,
        raw_bytes: 2,
        file_bytes: 3,
        entries: 4,
        puts: 5,
        deletes: 6,
        fragments: 7,
        keys: Some((b"k".to_vec(), b"l".to_vec())),
        left_bound: b"j".to_vec(),
        right_bound: Some(b"n".to_vec()),
        bounds: KeyRange {
            start: b"k".to_vec(),
            end: RangeEnd::With(b"l".to_vec()),
        },
        min_seq: 8,
        max_seq: 9,
        digest: 10,
    }
}

/// A list with [`table`].
fn tables_by_hand() -> Hand {
    let numbers = |from, to| (from..=to).fold(hand(), Hand::u64).0;
    let mut hand = hand().u32(1).bytes(b"t.tbl").u32(1);
    hand.0.extend(numbers(2, 7));
    hand = hand.u8(1).bytes(b"k").bytes(b"l").bytes(b"j");
    hand = hand.u8(1).bytes(b"n").bytes(b"k").u8(2).bytes(b"l");
    hand.0.extend(numbers(8, 10));
    hand
}

fn counters() -> Counters {
    Counters {
        entries_read: 21,
        shadowed: 22,
        tombstones: 23,
        covered: 24,
        range_deletes_read: 25,
        fragments_dropped: 26,
        entries_written: 27,
        raw_bytes_read: 28,
        bytes_read: 29,
        bytes_written: 30,
        cpu_ns: 31,
    }
}

/// Appends [`counters`].
fn counters_by_hand(hand: Hand) -> Hand {
    (21..=31).fold(hand, Hand::u64)
}

#[test]
fn an_outcome_is_encoded_as_the_page_says() {
    let outcome = Outcome {
        job: IDENTITY,
        output: OutputPrefix {
            epoch: 6,
            attempt: 12,
        },
        tables: vec![table()],
        counters: counters(),
        dropped_value_bytes: vec![(40, 41)],
    };
    let fields = [
        (1, identity_by_hand()),
        (2, hand().u64(6).u64(12)),
        (3, tables_by_hand()),
        (4, counters_by_hand(hand())),
        (5, hand().u32(1).u64(40).u64(41)),
    ];
    assert_eq!(fields.each_ref().map(|f| f.0).to_vec(), tags("## Outcome"));
    let bytes = whole(b"siltout\0", &fields);
    assert_eq!(outcome.encode(), bytes);
    assert_eq!(Outcome::decode(&bytes).unwrap(), outcome);
}

#[test]
fn a_part_is_encoded_as_the_page_says() {
    let going_on = Point::Table {
        layout: LayoutState {
            first_key: b"m".to_vec(),
            earlier_spans_bytes: 50,
            span_bytes: 51,
            table: 1,
        },
        left_bound: b"la".to_vec(),
        counters: counters(),
    };
    let going_on_by_hand = hand().u8(1).bytes(b"m").u64(50).u64(51).u32(1).bytes(b"la");
    for (next, next_by_hand) in [
        (Point::Start, hand().u8(0)),
        (going_on, counters_by_hand(going_on_by_hand)),
        (Point::End(counters()), counters_by_hand(hand().u8(2))),
    ] {
        let part = Part {
            subjob: 1,
            tables: vec![table()],
            next,
        };
        let fields = [
            (1, identity_by_hand()),
            (2, hand().u32(1)),
            (3, tables_by_hand()),
            (4, next_by_hand),
        ];
        assert_eq!(fields.each_ref().map(|f| f.0).to_vec(), tags("## Part"));
        let bytes = whole(b"siltpart", &fields);
        assert_eq!(part.encode(IDENTITY), bytes);
        assert_eq!(Part::decode(&bytes).unwrap(), (IDENTITY, part));
        for end in 0..bytes.len() {
            assert!(Part::decode(&bytes[..end]).is_err(), "cut to {end} bytes");
        }
    }
}

#[test]
fn a_part_with_another_point_is_refused() {
    let fields = [
        (1, identity_by_hand()),
        (2, hand().u32(0)),
        (3, hand().u32(0)),
        (4, hand().u8(3)),
    ];
    let damage = Part::decode(&whole(b"siltpart", &fields)).unwrap_err();
    assert_eq!((damage.what, damage.found), ("point to go on", 3));
}

#[test]
fn survivors_are_encoded_as_the_page_says() {
    let extent = |input, block, first, count| Extent {
        input,
        block,
        first,
        count,
    };
    // The largest number of one byte, the smallest ones of two and of three, and the largest.
    let extents = vec![extent(0, 127, 128, 1), extent(1, 16_383, 16_384, u32::MAX)];
    let extents_by_hand = hand()
        .u32(2)
        .u8(0)
        .u8(127)
        .u8(0x80)
        .u8(1)
        .u8(1)
        .u8(1)
        .u8(0xff)
        .u8(0x7f)
        .u8(0x80)
        .u8(0x80)
        .u8(1)
        .u8(0xff)
        .u8(0xff)
        .u8(0xff)
        .u8(0xff)
        .u8(0x0f);
    for (end, end_by_hand) in [
        (None, hand().u8(0)),
        (Some(counters()), counters_by_hand(hand().u8(1))),
    ] {
        let survivors = Survivors {
            subjob: 1,
            chunk: 5,
            extents: extents.clone(),
            tables: vec![(1, counters())],
            end,
        };
        let fields = [
            (1, identity_by_hand()),
            (2, hand().u32(1).u32(5)),
            (3, Hand(extents_by_hand.0.clone())),
            (4, counters_by_hand(hand().u32(1).u32(1))),
            (5, end_by_hand),
        ];
        assert_eq!(
            fields.each_ref().map(|f| f.0).to_vec(),
            tags("## Survivors")
        );
        let bytes = whole(b"siltsurv", &fields);
        assert_eq!(survivors.encode(IDENTITY), bytes);
        assert_eq!(Survivors::decode(&bytes).unwrap(), (IDENTITY, survivors));
        for end in 0..bytes.len() {
            assert!(Survivors::decode(&bytes[..end]).is_err(), "cut to {end}");
        }
    }
}

/// Integers have one spelling, and a chunk has at most so many extents as the page says.
#[test]
fn survivors_outside_the_limits_are_refused() {
    let with = |extents: Hand| {
        let fields = [
            (1, identity_by_hand()),
            (2, hand().u32(0).u32(0)),
            (3, extents),
            (4, hand().u32(0)),
            (5, hand().u8(0)),
        ];
        Survivors::decode(&whole(b"siltsurv", &fields))
    };
    with(hand().u32(1).u8(1).u8(2).u8(3).u8(4)).unwrap();
    // A longer spelling of 2, one that never ends, and one with more than 32 bits.
    let longer = hand().u32(1).u8(1).u8(0x82).u8(0).u8(3).u8(4);
    let endless = (0..9).fold(hand().u32(1), |hand, _| hand.u8(0x80));
    let large = (0..4).fold(hand().u32(1).u8(1), |hand, _| hand.u8(0xff));
    for extents in [longer, endless, large.u8(0x1f).u8(3).u8(4)] {
        with(extents).unwrap_err();
    }
    let many = |n: usize| (0..4 * n).fold(hand().u32(n as u32), |hand, _| hand.u8(1));
    assert!(PAGE.contains("at most 65,536 extents"));
    with(many(EXTENTS_MAX)).unwrap();
    let damage = with(many(EXTENTS_MAX + 1)).unwrap_err();
    assert_eq!(damage.expected, EXTENTS_MAX as u64);
}

//! Where blocks end on the emulated device: random jobs whose entries are chosen for the rule of
//! blocks, compared with the host's executor byte by byte, and how many accesses the search takes.

#[path = "../../table/tests/common/mod.rs"]
mod common;
mod generate;
mod same;

use std::sync::Arc;

use common::{Content, a_job, epoch, files, table_input};
use generate::Random;
use siltstone_gpu::device::emulated::EmulatedDevice;
use siltstone_gpu::{GpuExecutor, GpuOptions};
use siltstone_storage::{MemoryStorage, Runtime, Storage};
use siltstone_table::compress::Codec;
use siltstone_table::exec::{CpuExecutor, ExecContext, Executor, InputMap};
use siltstone_table::job::{DropRules, OutputLimits};
use siltstone_table::key::{Kind, trailer};
use siltstone_table::{ReaderOptions, TableReader};

const MEMORY_BYTES: u64 = 12 << 20;

/// What all entries of a stretch of keys have in common.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    /// The bytes before what makes keys different.
    prefix_bytes: u64,
    /// Keys have up to this many bytes after that.
    tail_bytes: u64,
    /// Whether keys have one length.
    has_fixed_keys: bool,
    /// So many keys one after the other are prefixes of the next one, if it is not 0.
    nested: u32,
    /// One key in this many has nothing after its number, or 0.
    short_share: u64,
    value_bytes: u64,
    has_fixed_values: bool,
    /// One value in this many is longer than a block, or 0.
    large_share: u64,
    /// The versions of each user key.
    versions: u64,
    /// One entry in this many is a delete, or 0.
    delete_share: u64,
}

fn a_stretch(random: &mut Random) -> Stretch {
    Stretch {
        prefix_bytes: random.of(&[0, 0, 1, 3, 12, 40, 300]),
        tail_bytes: random.of(&[0, 0, 1, 3, 9, 30, 200]),
        has_fixed_keys: random.one_in(3),
        nested: random.of(&[0, 0, 0, 0, 12, 1000]),
        short_share: random.of(&[0, 2, 10, 100]),
        value_bytes: random.of(&[0, 0, 1, 8, 40, 200, 700]),
        has_fixed_values: random.one_in(2),
        large_share: random.of(&[0, 0, 0, 20, 200]),
        versions: random.of(&[1, 1, 1, 2, 40, 1000]),
        delete_share: random.of(&[0, 0, 2, 50]),
    }
}

/// Adds `count` entries with keys that begin with `number`.
fn add_stretch(content: &mut Content, random: &mut Random, of: Stretch, number: u8, count: u64) {
    let mut added = 0;
    for i in 0u32.. {
        if added >= count {
            return;
        }
        let mut key = vec![number];
        key.resize(1 + of.prefix_bytes as usize, b'p');
        let base = i.checked_div(of.nested).unwrap_or(i);
        key.extend(&base.to_be_bytes()[2..]);
        let is_short = of.short_share > 0 && random.one_in(of.short_share);
        let tail = match of.has_fixed_keys {
            true => of.tail_bytes,
            false if is_short => 0,
            false => random.below(of.tail_bytes + 1),
        };
        match i.checked_rem(of.nested) {
            Some(longer) => key.extend((0..longer).map(|_| b'n')),
            None => key.extend((0..tail).map(|_| random.below(256) as u8)),
        }
        for _ in 0..1 + random.below(of.versions) {
            let last = content.entries.last().map_or(0, |entry| entry.1 >> 8);
            let step = random.of(&[1, 1, 1, 1 << 9, 1 << 25]);
            let seq = last + 1 + random.below(step);
            let kind = match of.delete_share > 0 && random.one_in(of.delete_share) {
                true => Kind::Delete,
                false => Kind::Put,
            };
            let len = match of.has_fixed_values {
                true => of.value_bytes,
                false => random.below(of.value_bytes + 1),
            };
            let is_large = of.large_share > 0 && random.one_in(of.large_share);
            let len = match kind {
                Kind::Delete => 0,
                _ if is_large => len + random.of(&[600, 5_000, 40_000]),
                _ => len,
            };
            let value = vec![b'v'; len as usize];
            content
                .entries
                .push((key.clone(), trailer(seq, kind), value));
            added += 1;
        }
    }
}

/// What a job made, and the accesses to arrays that it took.
#[derive(Debug)]
struct Work {
    entries: u64,
    tables: u64,
    blocks: u64,
    find_block_ends: u64,
    follow_chain: u64,
    groups: u64,
}

/// Compacts the content on both sides and keeps all of it, compares the tables, and counts.
fn compare(
    content: &Content,
    (block_bytes, table_bytes): (u64, u64),
    codec: Codec,
    seed: u64,
) -> Work {
    let runtime = Runtime::threads();
    let storage = Arc::new(MemoryStorage::new(&runtime));
    let mut inputs = InputMap::new();
    let mut job = a_job(u64::MAX >> 9);
    job.inputs = vec![table_input(&mut inputs, &storage, "in.tbl", content)];
    job.rules = DropRules::QUICK;
    job.limits = OutputLimits::new(table_bytes, block_bytes, false);
    job.format.codec = codec;
    let ctx = || {
        let inputs = Arc::new(inputs.clone());
        ExecContext::new(runtime.clone(), inputs, storage.clone(), epoch())
    };
    let want = CpuExecutor::new().run(&job, &ctx()).unwrap();
    let device = Arc::new(EmulatedDevice::new(&runtime, MEMORY_BYTES, seed));
    let options = GpuOptions {
        memory_bytes_max: MEMORY_BYTES,
        pinned_bytes_max: 256 << 10,
        jobs: 1,
        lanes: 1,
        job_bytes_min: 0,
        ..GpuOptions::default()
    };
    let gpu = GpuExecutor::open("gpu0", device.clone(), &runtime, options).unwrap();
    job.output.attempt += 1;
    let found = gpu.run(&job, &ctx()).unwrap();
    assert_eq!(found.tables.len(), want.tables.len());
    let mut blocks = 0;
    for (found, want) in found.tables.iter().zip(&want.tables) {
        let file = storage.open(&found.name).unwrap();
        let table = TableReader::open(file, ReaderOptions::default()).unwrap();
        blocks += table.index().len() as u64;
        if codec != Codec::None {
            same::assert_same(&*storage, &found.name, &want.name);
        }
    }
    if codec == Codec::None {
        let (a, b) = (files(&*storage, &found), files(&*storage, &want));
        assert!(a == b, "the tables differ");
    }
    Work {
        entries: content.entries.len() as u64,
        tables: found.tables.len() as u64,
        blocks,
        find_block_ends: device.accesses("find_block_ends"),
        follow_chain: device.accesses("follow_chain"),
        groups: device.accesses("group_survivors") + device.accesses("group_extents"),
    }
}

#[test]
fn blocks_of_any_entries_end_where_the_hosts_do() {
    let (mut large_blocks, mut small_tables, mut scanned_chains) = (0, 0, 0);
    for seed in 0..150 {
        let random = &mut Random::new(seed);
        let mut content = Content::default();
        let stretches = 1 + random.below(4);
        let mut text = String::new();
        for number in 0..stretches {
            let stretch = a_stretch(random);
            let count = random.of(&[1, 15, 16, 17, 300, 1500]);
            text += &format!("\n{count} of {stretch:?}");
            add_stretch(&mut content, random, stretch, number as u8, count);
        }
        let block_bytes = random.of(&[512, 4096, 4096, 8192, 32768, 32768]);
        let table_bytes = random.of(&[1 << 11, 1 << 14, 1 << 16, 1 << 24]);
        let codec = random.of(&[Codec::None, Codec::None, Codec::Lz4]);
        eprintln!("seed {seed}: blocks of {block_bytes}, tables of {table_bytes}, {codec:?}{text}");
        let work = compare(&content, (block_bytes, table_bytes), codec, seed);
        large_blocks += u64::from(work.entries > 256 * work.blocks);
        small_tables += u64::from(work.entries < 40 * work.tables && work.tables > 2);
        // Without a scan, the chain makes some accesses for each block.
        scanned_chains += u64::from(work.follow_chain > 10 * work.blocks);
    }
    let reached = (large_blocks, small_tables, scanned_chains);
    let is_enough = large_blocks > 10 && small_tables > 10 && scanned_chains > 10;
    assert!(is_enough, "{reached:?}");
}

/// A block can become smaller with an entry: here keys are padded until there is one that shares
/// less with them, and then their pads are needed no more. The block ends before the first entry
/// with which it is too large, although it would not be too large with some more.
#[test]
fn blocks_that_become_smaller_end_where_the_hosts_do() {
    let mut ends = std::collections::BTreeSet::new();
    for count in 480..680 {
        let mut content = Content::default();
        let random = &mut Random::new(count);
        let mut add = |key: Vec<u8>| {
            let trailer = trailer(7, Kind::Put);
            content.entries.push((key, trailer, Vec::new()));
        };
        for i in 0..count as u16 {
            let longer = vec![b'l'; random.below(2) as usize];
            add([b"aaaa", &i.to_be_bytes()[..], &longer].concat());
        }
        for i in 0..20u8 {
            add([b"aab", &[i; 3][..]].concat());
        }
        let work = compare(&content, (4096, 1 << 24), Codec::None, count);
        ends.insert(work.blocks);
    }
    assert!(ends.len() > 1, "{ends:?}");
}

/// Keys of one length, or of many lengths with short ones among them.
fn plain(has_fixed_keys: bool, value_bytes: u64) -> Stretch {
    Stretch {
        prefix_bytes: if has_fixed_keys { 4 } else { 0 },
        tail_bytes: if has_fixed_keys { 8 } else { 30 },
        has_fixed_keys,
        nested: 0,
        short_share: 10,
        value_bytes,
        has_fixed_values: true,
        large_share: 0,
        versions: 1,
        delete_share: 0,
    }
}

/// Blocks have as many of them as a block may have.
fn tiny() -> Stretch {
    Stretch {
        prefix_bytes: 0,
        tail_bytes: 0,
        ..plain(true, 0)
    }
}

/// A search that looks at one entry after the other makes at least five accesses for each entry of
/// a block: two lengths, the trailer, what the key shares with the one before, and the table.
#[test]
fn the_search_for_the_ends_of_blocks_skips_groups() {
    for (of, block_bytes, times) in [
        (plain(true, 100), 4096, 3),
        (plain(true, 20), 4096, 10),
        (plain(false, 20), 4096, 8),
        (plain(true, 20), 32 << 10, 60),
        (plain(true, 0), 32 << 10, 100),
        (tiny(), 32 << 10, 100),
        (plain(false, 20), 32 << 10, 50),
    ] {
        let mut content = Content::default();
        add_stretch(&mut content, &mut Random::new(1), of, 0, 20_000);
        let work = compare(&content, (block_bytes, 1 << 24), Codec::None, 0);
        let text = format!("{of:?}, blocks of {block_bytes}: {work:?}");
        eprintln!("{text}");
        assert_eq!(work.tables, 1);
        let one_by_one = 5 * work.entries * (work.entries / work.blocks);
        assert!(work.find_block_ends * times < one_by_one, "{text}");
        assert!(work.groups < 6 * work.entries, "{text}");
    }
}

/// Blocks of keys of many lengths are seldom padded, so the thread of the table searches each end
/// itself, one block after the other.
#[test]
fn the_chain_of_a_table_skips_groups() {
    let mut content = Content::default();
    add_stretch(
        &mut content,
        &mut Random::new(1),
        plain(false, 20),
        0,
        20_000,
    );
    let work = compare(&content, (32 << 10, 1 << 24), Codec::None, 0);
    eprintln!("{work:?}");
    // Nearly all blocks begin elsewhere than at a multiple of 4096, and none is jumped over.
    assert!(work.follow_chain > 30 * work.blocks, "{work:?}");
    assert!(work.follow_chain * 40 < 5 * work.entries, "{work:?}");
}

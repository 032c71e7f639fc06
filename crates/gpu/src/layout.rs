//! The phase that decides where tables begin and where blocks end.
//!
//! Threading: see `lane`.

use siltstone_table::layout::{LayoutLimits, LayoutState};

use crate::error::{Result, check};
use crate::kernels::{
    Array, BeginJumps, BeginTables, BlockEnds, Chain, DoubleJumps, ExpandJumps, Extent, FindCuts,
    FollowChain, GroupExtents, GroupSurvivors, ListBlocks, ListTables, OutBlock, PlanBlocks, Rule,
    Survivors, TableStart, WalkSpans,
};
use crate::lane::{Batch, Work};
use crate::retain::Kept;
use crate::unpack::KeyList;

/// The tables of a piece.
pub(crate) struct Tables {
    /// The begin of each.
    pub starts: Array<TableStart>,
    pub host_starts: Vec<TableStart>,
    /// For each survivor, how many tables begin before it.
    pub numbers: Array<u32>,
}

/// Finds the tables. There is at least one survivor.
pub(crate) fn tables(
    work: &mut Work,
    kept: &Kept,
    limits: LayoutLimits,
    soft_cuts: &[Vec<u8>],
    continues_at: Option<&LayoutState>,
) -> Result<Tables> {
    let cuts = soft_cuts.len() as u64;
    let mut keys = KeyList::default();
    soft_cuts.iter().for_each(|cut| keys.push(cut));
    keys.words.push(0);
    let mut batch = Batch::default();
    let words = batch.add(&keys.words);
    let places = batch.add(&keys.places);
    let lens = batch.add(&keys.lens);
    let batch = work.upload_batch(&batch)?;
    let firsts = work.take(cuts + 1)?;
    let earlier = work.take(cuts + 1)?;
    let args = FindCuts {
        keys: kept.survivors.keys,
        words: words.of(batch),
        places: places.of(batch),
        lens: lens.of(batch),
        firsts,
        survivors: kept.count,
        count: cuts,
    };
    work.launch("find_cuts", cuts, &args)?;
    let span_bytes = continues_at.map_or(0, |state| state.span_bytes);
    let args = WalkSpans {
        firsts,
        raw: kept.raw,
        earlier,
        cuts,
        survivors: kept.count,
        min_span_bytes: limits.min_span_bytes,
        earlier_spans_bytes: continues_at.map_or(0, |state| state.earlier_spans_bytes),
        span_bytes,
    };
    work.launch("walk_spans", 1, &args)?;
    let numbers = work.take(kept.count + 1)?;
    let args = BeginTables {
        is_new: kept.survivors.is_new,
        raw: kept.raw,
        firsts,
        earlier,
        begins: numbers,
        cuts,
        survivors: kept.count,
        table_bytes: limits.table_bytes,
        delay_bytes: limits.delay_bytes,
        span_bytes,
    };
    work.launch("begin_tables", kept.count, &args)?;
    work.scan32(numbers, kept.count)?;
    let count = u64::from(work.read(numbers.part(kept.count, 1))?[0]);
    check((1..=kept.count).contains(&count), "the number of tables")?;
    let starts = work.take(count)?;
    let args = ListTables {
        numbers,
        raw: kept.raw,
        firsts,
        earlier,
        starts,
        cuts,
        survivors: kept.count,
        span_bytes,
    };
    work.launch("list_tables", kept.count, &args)?;
    let host_starts = work.read(starts)?;
    check(
        are_starts(&host_starts, kept.count, cuts),
        "the beginnings of tables",
    )?;
    Ok(Tables {
        starts,
        host_starts,
        numbers,
    })
}

/// Whether tables can begin there: the first one with the first survivor, and each later one after
/// the one before it.
fn are_starts(starts: &[TableStart], survivors: u64, cuts: u64) -> bool {
    let ascend = |w: &[TableStart]| w[0].first < w[1].first && w[0].span <= w[1].span;
    let is_last = |s: &TableStart| u64::from(s.first) < survivors && u64::from(s.span) <= cuts;
    starts.first().is_some_and(|start| start.first == 0)
        && starts.windows(2).all(ascend)
        && starts.last().is_some_and(is_last)
}

/// The blocks of all tables of a piece.
pub(crate) struct OutBlocks {
    pub blocks: Array<OutBlock>,
    pub count: u64,
    /// For each survivor, how many blocks begin before it.
    pub numbers: Array<u32>,
    /// The bytes of all blocks, without compression.
    pub bytes: u64,
}

/// How often the length of jumps is doubled: they lead over sixteen blocks then.
const DOUBLINGS: u32 = 4;

/// Marks the survivors that begin a block in the last array. The first two have, for each survivor,
/// the end and the bytes of the block that would begin with it. The chain of a table is followed by
/// one thread, which jumps over sixteen blocks where all of them begin at multiples of 4096. The
/// caller gives back what is taken here.
fn follow(
    work: &mut Work,
    chain: Chain,
    tables: &Tables,
    (nexts, bytes, begins): (Array<u32>, Array<u32>, Array<u32>),
    table_count: u64,
) -> Result<()> {
    let count = chain.count;
    let mut jumps = work.take(count)?;
    let mut other = work.take(count)?;
    let args = BeginJumps {
        chain,
        nexts,
        bytes,
        jumps,
    };
    work.launch("begin_jumps", count, &args)?;
    for _ in 0..DOUBLINGS {
        let args = DoubleJumps {
            from: jumps,
            to: other,
            count,
        };
        work.launch("double_jumps", count, &args)?;
        std::mem::swap(&mut jumps, &mut other);
    }
    let jumped = work.take_zeros(count)?;
    let args = FollowChain {
        chain,
        starts: tables.starts,
        nexts,
        bytes,
        jumps,
        begins,
        jumped,
        table_count,
    };
    work.launch("follow_chain", table_count, &args)?;
    let args = ExpandJumps {
        nexts,
        jumped,
        begins,
        count,
        blocks: 1 << DOUBLINGS,
    };
    work.launch("expand_jumps", count, &args)
}

/// The groups of survivors are those of `layout.h`, which has the same numbers: the groups of the
/// first level have 2^`GROUP_BITS` survivors, and those of each later level have 2^`GROUP_BITS`
/// groups of the level before.
const GROUP_BITS: u32 = 2;
const GROUP_LEVELS: u32 = 4;

/// Computes the extents of all groups.
fn groups(work: &mut Work, survivors: Survivors, count: u64) -> Result<Array<Extent>> {
    let count_of = |level: u32| count >> (GROUP_BITS * level);
    let groups = work.take((1..=GROUP_LEVELS).map(count_of).sum())?;
    let args = GroupSurvivors {
        survivors,
        groups,
        count,
    };
    work.launch("group_survivors", count_of(1), &args)?;
    for level in 2..=GROUP_LEVELS {
        let args = GroupExtents {
            groups,
            count,
            level,
            unused: 0,
        };
        work.launch("group_extents", count_of(level), &args)?;
    }
    Ok(groups)
}

/// Finds the blocks of the first `survivors` survivors, which are those of the first `tables`
/// tables.
pub(crate) fn blocks(
    work: &mut Work,
    kept: &Kept,
    tables: &Tables,
    (table_count, survivors): (u64, u64),
    rule: Rule,
) -> Result<OutBlocks> {
    let nexts = work.take(survivors)?;
    let bytes = work.take(survivors)?;
    let numbers = work.take_zeros(survivors + 1)?;
    let mark = work.mark();
    let chain = Chain {
        survivors: kept.survivors,
        groups: groups(work, kept.survivors, survivors)?,
        tables: tables.numbers,
        rule,
        count: survivors,
    };
    let args = BlockEnds {
        chain,
        nexts,
        bytes,
    };
    work.launch("find_block_ends", survivors, &args)?;
    follow(work, chain, tables, (nexts, bytes, numbers), table_count)?;
    work.release(mark);
    work.scan32(numbers, survivors)?;
    let count = u64::from(work.read(numbers.part(survivors, 1))?[0]);
    let is_possible = table_count <= count && count <= survivors;
    check(is_possible, "the number of blocks")?;
    let firsts = work.take(count + 1)?;
    let block_bytes = work.take(count)?;
    let places = work.take(count + 1)?;
    let args = ListBlocks {
        begins: numbers,
        firsts,
        block_bytes,
        places,
        bytes,
        survivors,
        blocks: count,
    };
    work.launch("list_blocks", survivors, &args)?;
    work.scan64(places, count)?;
    let blocks = work.take(count)?;
    let args = PlanBlocks {
        survivors: kept.survivors,
        tables: tables.numbers,
        firsts,
        block_bytes,
        places,
        blocks,
        count,
    };
    work.launch("plan_blocks", count, &args)?;
    let bytes = work.read(places.part(count, 1))?[0];
    Ok(OutBlocks {
        blocks,
        count,
        numbers,
        bytes,
    })
}

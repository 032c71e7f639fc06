//! A piece: a key range of a subjob that is computed at once.
//!
//! Threading: see `lane`.

use std::ops::Range;

use siltstone_table::exec::ExecError;
use siltstone_table::exec::plan::PlannedInput;
use siltstone_table::job::KeyBounds;

use crate::error::{GpuError, Result};
use crate::kernels::Item;
use crate::lane::items_of;

/// An input of a piece.
pub(crate) struct PieceInput {
    /// The input as the job has it, restricted to the piece.
    pub planned: PlannedInput,
    /// Its blocks that are read.
    pub blocks: Range<usize>,
    /// The number of its first block among those of all inputs.
    pub first_block: u32,
    /// Whether it begins a run. The inputs of a run follow each other.
    pub begins_run: bool,
    pub bounds: KeyBounds,
    pub seqs: (u64, u64),
    pub seq_override: Option<u64>,
}

/// The inputs of runs, in the order in which their entries are numbered.
pub(crate) fn inputs_of(runs: Vec<Vec<PlannedInput>>) -> Vec<PieceInput> {
    let mut inputs = Vec::new();
    let mut first_block = 0u32;
    for run in runs {
        for (number, planned) in run.into_iter().enumerate() {
            let blocks = planned.blocks();
            let input = PieceInput {
                first_block,
                begins_run: number == 0,
                bounds: planned.bounds.clone(),
                seqs: planned.seqs,
                seq_override: planned.seq_override,
                planned,
                blocks,
            };
            first_block = first_block.saturating_add(input.blocks.len() as u32);
            inputs.push(input);
        }
    }
    inputs
}

/// What is wrong with a block or an entry, as `common.h` has it.
mod wrong {
    pub const BLOCK: u64 = 1;
    pub const UNSUPPORTED: u64 = 2;
    pub const ORDER: u64 = 3;
    pub const EQUAL: u64 = 4;
    pub const PREFIX: u64 = 5;
}

/// What a phase found: arrays that were copied from the device, of which the first is the error
/// word.
pub(crate) struct Found<'a> {
    arrays: &'a [Vec<u8>],
}

impl<'a> Found<'a> {
    pub fn new(arrays: &'a [Vec<u8>]) -> Found<'a> {
        Found { arrays }
    }

    /// The items of array number `i`.
    pub fn items<T: Item>(&self, i: usize) -> Vec<T> {
        items_of(&self.arrays[i])
    }

    /// The first item of array number `i`.
    pub fn u64(&self, i: usize) -> u64 {
        self.items(i).first().copied().unwrap_or(0)
    }

    /// The first item of array number `i`.
    pub fn u32(&self, i: usize) -> u32 {
        self.items(i).first().copied().unwrap_or(0)
    }

    /// A job that another side may be able to run.
    pub fn declined(reason: impl Into<String>) -> GpuError {
        ExecError::declined(reason).into()
    }

    /// An entry comes before the one before it.
    pub fn out_of_order(entry: u64) -> GpuError {
        Found::declined(format!("entry {entry} of the inputs is out of order"))
    }

    fn error(&self) -> Option<(u64, u64)> {
        let word = self.u64(0);
        (word != u64::MAX).then_some((word >> 8, word & 0xff))
    }

    /// Fails if a block is wrong.
    pub fn check_blocks(&self, inputs: &[PieceInput]) -> Result<()> {
        let Some((block, what)) = self.error() else {
            return Ok(());
        };
        if what == wrong::UNSUPPORTED {
            return Err(Found::declined("a block needs what the GPU does not have"));
        }
        let of_input = inputs
            .iter()
            .rev()
            .find(|i| u64::from(i.first_block) <= block);
        let Some(input) = of_input.filter(|_| what == wrong::BLOCK) else {
            return Err(GpuError::Mismatch(format!("error {what} of block {block}")));
        };
        let within = (block - u64::from(input.first_block)) as usize;
        Err(GpuError::BadBlock {
            input: input.planned.number,
            block: input.blocks.start + within,
        })
    }

    /// Fails if an entry is wrong.
    pub fn check_entries(&self) -> Result<()> {
        let Some((entry, what)) = self.error() else {
            return Ok(());
        };
        // Such an error concerns several entries, or one that the CPU may neither read nor keep. So
        // the host runs the job, and says what is wrong if it finds the error too.
        Err(Found::declined(match what {
            wrong::ORDER => return Err(Found::out_of_order(entry)),
            wrong::EQUAL => "two inputs have the same entry".to_string(),
            wrong::PREFIX => format!("entry {entry} of the inputs has another prefix"),
            _ => return Err(GpuError::Mismatch(format!("error {what} of entry {entry}"))),
        }))
    }
}

//! The order of changes on several media: a storage that marks the position of one medium in the
//! journal of another.
//!
//! [`MarkingStorage`] forwards every call to a medium. After each call that changes it, it marks
//! the position in the journal of the *main* medium. So a crash of both at one moment can be made
//! from the two journals: see [`moments`].
//!
//! Invariant: tasks are not switched between a change and its mark, so each mark is a moment that
//! really occurred.
//!
//! Threading: as the medium.

use std::any::Any;
use std::sync::Arc;

use siltstone_storage::storage::InjectedFault;
use siltstone_storage::{
    Capabilities, Epoch, Lease, Mark, MemoryStorage, ObjectMeta, ReadFile, Result, SharedLease,
    Storage, WriteFile,
};

/// The storage; see the module.
#[derive(Clone)]
pub struct MarkingStorage {
    medium: MemoryStorage,
    main: MemoryStorage,
    letter: char,
}

impl MarkingStorage {
    /// Marks changes of `medium` in the journal of `main`, with this letter.
    pub fn new(medium: MemoryStorage, main: MemoryStorage, letter: char) -> MarkingStorage {
        MarkingStorage {
            medium,
            main,
            letter,
        }
    }

    fn mark<T>(&self, result: T) -> T {
        self.main
            .mark(format!("{}{}", self.letter, self.medium.journal_len()));
        result
    }

    fn file(&self, file: Arc<dyn WriteFile>) -> Arc<dyn WriteFile> {
        Arc::new(MarkingFile {
            inner: file,
            storage: self.clone(),
        })
    }
}

/// The position that a mark with this letter gives.
pub fn position(mark: &Mark, letter: char) -> Option<u64> {
    mark.label.strip_prefix(letter)?.parse().ok()
}

/// The last position of a medium with this letter in `marks`.
pub fn last_position(marks: &[Mark], letter: char) -> u64 {
    let positions = marks.iter().rev().filter_map(|mark| position(mark, letter));
    positions.into_iter().next().unwrap_or(0)
}

/// The moments of a run at which `n` changes of the main medium were made, as numbers of marks that
/// were made before each of them: first the one right after change `n`, then one after each change
/// of a medium with one of these letters.
pub fn moments(marks: &[Mark], n: u64, letters: &[char]) -> Vec<usize> {
    let first = marks.partition_point(|mark| mark.at < n);
    let last = marks.partition_point(|mark| mark.at <= n);
    let before = |letter: &char| last_position(&marks[..first], *letter);
    let mut positions: Vec<u64> = letters.iter().map(before).collect();
    let mut all = vec![first];
    for (i, mark) in marks.iter().enumerate().take(last).skip(first) {
        for (letter, known) in letters.iter().zip(&mut positions) {
            let moved = position(mark, *letter).filter(|position| position > known);
            if let Some(position) = moved {
                *known = position;
                all.push(i + 1);
            }
        }
    }
    all
}

impl Storage for MarkingStorage {
    fn describe(&self) -> String {
        self.medium.describe()
    }
    fn capabilities(&self) -> Capabilities {
        self.medium.capabilities()
    }
    fn lease(&self, name: &str) -> Result<Box<dyn Lease>> {
        let lease = self.medium.lease(name);
        self.mark(lease)
    }
    fn lease_shared(&self, name: &str) -> Result<Box<dyn SharedLease>> {
        self.medium.lease_shared(name)
    }
    fn create(&self, epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        let file = self.medium.create(epoch, name);
        Ok(self.file(self.mark(file)?))
    }
    fn create_direct(&self, epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        let file = self.medium.create_direct(epoch, name);
        Ok(self.file(self.mark(file)?))
    }
    fn recycle(&self, epoch: Epoch, old: &str, new: &str) -> Result<Arc<dyn WriteFile>> {
        let file = self.medium.recycle(epoch, old, new);
        Ok(self.file(self.mark(file)?))
    }
    fn open(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        self.medium.open(name)
    }
    fn open_direct(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        self.medium.open_direct(name)
    }
    fn check_direct(&self) -> Result<()> {
        self.medium.check_direct()
    }
    fn read_small(&self, name: &str) -> Result<Vec<u8>> {
        self.medium.read_small(name)
    }
    fn list(&self) -> Result<Vec<ObjectMeta>> {
        self.medium.list()
    }
    fn delete(&self, epoch: Epoch, name: &str) -> Result<()> {
        let result = self.medium.delete(epoch, name);
        self.mark(result)
    }
    fn rename(&self, epoch: Epoch, old: &str, new: &str) -> Result<()> {
        let result = self.medium.rename(epoch, old, new);
        self.mark(result)
    }
    fn import(&self, epoch: Epoch, name: &str, from: &dyn Storage, from_name: &str) -> Result<()> {
        let result = self.medium.import(epoch, name, from, from_name);
        self.mark(result)
    }
    fn publish(&self, epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()> {
        let result = self.medium.publish(epoch, name, bytes);
        self.mark(result)
    }
    fn base(&self) -> Option<&dyn Any> {
        self.medium.base()
    }
    fn sync_object(&self, epoch: Epoch, name: &str) -> Result<()> {
        let result = self.medium.sync_object(epoch, name);
        self.mark(result)
    }
    fn rewrite_object(&self, epoch: Epoch, name: &str) -> Result<()> {
        let result = self.medium.rewrite_object(epoch, name);
        self.mark(result)
    }
    fn sync_dir(&self, epoch: Epoch) -> Result<()> {
        let result = self.medium.sync_dir(epoch);
        self.mark(result)
    }
    fn replace(&self, epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()> {
        let result = self.medium.replace(epoch, name, bytes);
        self.mark(result)
    }
    fn free_bytes(&self) -> Option<u64> {
        self.medium.free_bytes()
    }
    fn inject_lost_names(&self) -> bool {
        let done = self.medium.inject_lost_names();
        self.mark(done)
    }
    fn inject_lost_bytes(&self, name: &str) -> bool {
        let done = self.medium.inject_lost_bytes(name);
        self.mark(done)
    }
}

struct MarkingFile {
    inner: Arc<dyn WriteFile>,
    storage: MarkingStorage,
}

impl WriteFile for MarkingFile {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn position(&self) -> u64 {
        self.inner.position()
    }
    fn append(&self, parts: &[&[u8]]) -> Result<()> {
        let result = self.inner.append(parts);
        self.storage.mark(result)
    }
    fn reserve(&self, len: u64) -> Result<()> {
        let result = self.inner.reserve(len);
        self.storage.mark(result)
    }
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn sync(&self) -> Result<()> {
        let result = self.inner.sync();
        self.storage.mark(result)
    }
    fn start_writeback(&self, from: u64, len: u64) {
        self.inner.start_writeback(from, len);
    }
    fn truncate_to_position(&self) -> Result<()> {
        let result = self.inner.truncate_to_position();
        self.storage.mark(result)
    }
    fn inject(&self, fault: InjectedFault<'_>) -> bool {
        let done = self.inner.inject(fault);
        self.storage.mark(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_of_another_medium_is_a_moment() {
        let mark = |at, label: &str| Mark {
            at,
            label: label.into(),
        };
        let marks = [
            mark(1, "x2"),
            mark(3, "x2"),
            mark(3, "a7"),
            mark(3, "x4"),
            mark(3, "t1"),
            mark(3, "x4"),
            mark(5, "t2"),
        ];
        // A mark without a change, of `x` at 2 and at 4, is no moment.
        assert_eq!(moments(&marks, 3, &['x', 't']), [1, 4, 5]);
        assert_eq!(moments(&marks, 3, &['t']), [1, 5]);
        assert_eq!(moments(&marks, 4, &['x', 't']), [6]);
        assert_eq!(moments(&marks, 0, &['x', 't']), [0]);
        assert_eq!(last_position(&marks[..4], 'x'), 4);
        assert_eq!(last_position(&marks[..4], 't'), 0);
    }
}

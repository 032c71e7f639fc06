//! The order in which sealed memtables are flushed: keyspaces take turns by bytes.
//!
//! Each memtable that waits has a *turn*: the virtual time at which its flush would begin if each
//! keyspace had a disk of its own (start-time fair queueing, Goyal et al., SIGCOMM 1996). The
//! lowest turn is next. So the small memtable of one keyspace does not wait for all large ones of
//! another, and no keyspace starves. Within a keyspace the oldest memtable is first.
//!
//! Threading: a plain value under the lock of the schedule.

use litemap::LiteMap;

use crate::types::limits::KeyspaceId;

/// See the module.
#[derive(Default)]
pub(crate) struct FlushOrder {
    /// The virtual time: when the flush that began last began.
    now: u64,
    /// When the last flush of each keyspace ends, if that is after `now`.
    ends: LiteMap<KeyspaceId, u64>,
}

impl FlushOrder {
    /// The turns of memtables of one keyspace with these bytes, in this order.
    pub(crate) fn turns(
        &self,
        keyspace: KeyspaceId,
        bytes: impl Iterator<Item = u64>,
    ) -> impl Iterator<Item = u64> {
        let mut next = self.begin_of(keyspace);
        bytes.map(move |bytes| {
            let begin = next;
            next = begin.saturating_add(bytes.max(1));
            begin
        })
    }

    /// When the next flush of this keyspace begins.
    fn begin_of(&self, keyspace: KeyspaceId) -> u64 {
        let last = self.ends.get(&keyspace).copied();
        last.unwrap_or(0).max(self.now)
    }

    /// The flush of a memtable with this many bytes begins.
    pub(crate) fn begun(&mut self, keyspace: KeyspaceId, bytes: u64) {
        let begin = self.begin_of(keyspace);
        self.now = begin;
        self.ends
            .insert(keyspace, begin.saturating_add(bytes.max(1)));
        self.ends.retain(|_, end| *end > begin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keyspaces that always have memtables of these sizes waiting. Returns how many flushes of
    /// each began within the first `count`.
    fn shares(sizes: &[u64], count: usize) -> Vec<usize> {
        let mut order = FlushOrder::default();
        let mut begun = vec![0; sizes.len()];
        for _ in 0..count {
            let turn = |id: usize| {
                order
                    .turns(id as KeyspaceId, [sizes[id]].into_iter())
                    .next()
            };
            let next = (0..sizes.len()).min_by_key(|id| turn(*id)).unwrap();
            order.begun(next as KeyspaceId, sizes[next]);
            begun[next] += 1;
        }
        begun
    }

    #[test]
    fn keyspaces_get_the_same_bytes() {
        assert_eq!(shares(&[64, 64, 64], 30), [10, 10, 10]);
        let begun = shares(&[64, 1], 650);
        assert!((9..=11).contains(&begun[0]), "{begun:?}");
    }

    #[test]
    fn a_keyspace_that_comes_later_owes_nothing_and_is_owed_nothing() {
        let mut order = FlushOrder::default();
        (0..10).for_each(|_| order.begun(1, 64));
        let turn = |order: &FlushOrder, id| order.turns(id, [1].into_iter()).next();
        // The one that comes later is next, until it has got as much as one flush of the other.
        assert!(turn(&order, 2) < turn(&order, 1));
        order.begun(2, 63);
        assert!(turn(&order, 2) < turn(&order, 1));
        order.begun(2, 2);
        assert!(turn(&order, 2) > turn(&order, 1));
    }

    #[test]
    fn the_memtables_of_one_keyspace_stay_in_order() {
        let order = FlushOrder::default();
        let turns: Vec<u64> = order.turns(1, [64, 0, 3].into_iter()).collect();
        assert_eq!(turns, [0, 64, 65]);
    }
}

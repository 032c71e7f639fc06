//! A loser tree over 16-byte keys without branches that depend on the data.
//!
//! A leaf's key is a [`Head`]: the first 15 bytes of the user key after a prefix that all keys
//! share, padded with zeros, followed by the number of these bytes that are real (16: the key has
//! more than 15). Different heads order as their keys do. For equal heads the caller may have to
//! compare more. An exhausted leaf has [`EXHAUSTED`], which is above the head of every key.
//!
//! A tree of losers is used because replacing the winner touches only one path, and each step is
//! one comparison with one node. The result of the comparison cannot be predicted, so both sides
//! are computed and one is selected.
//!
//! Threading: one owner.

use std::hint::select_unpredictable;

/// The first bytes of a user key as an integer.
pub type Head = u128;

/// The head of a leaf that has no more entries.
pub const EXHAUSTED: Head = u128::MAX;

/// The number of bytes of a user key in its head.
pub const HEAD_KEY_BYTES: usize = 15;

/// The head of a user key from which the common prefix was removed.
#[inline(always)]
pub fn head_of(suffix: &[u8]) -> Head {
    if let Some(first) = suffix.first_chunk::<16>() {
        return u128::from_be_bytes(*first) & !0xff | 16;
    }
    let mut bytes = [0; 16];
    bytes[..suffix.len()].copy_from_slice(suffix);
    bytes[15] = suffix.len() as u8;
    u128::from_be_bytes(bytes)
}

/// Whether two equal heads mean equal user keys.
#[inline(always)]
pub fn head_is_whole(head: Head) -> bool {
    head & 0xff <= HEAD_KEY_BYTES as u128
}

/// The tree. See the module.
#[derive(Debug)]
pub struct LoserTree {
    /// The inner nodes, from 1 on, have the head and the leaf of the loser of their match. Node 0
    /// has the overall winner.
    heads: Vec<Head>,
    leaves: Vec<u32>,
    /// The number of leaves, padded to a power of two.
    width: usize,
}

impl LoserTree {
    /// A tree over leaves with these heads. For leaves with equal heads, `before(a, b)` says
    /// whether the entry of `a` comes before that of `b`.
    pub fn new(heads: &[Head], mut before: impl FnMut(u32, u32) -> bool) -> LoserTree {
        let width = heads.len().max(1).next_power_of_two();
        let mut tree = LoserTree {
            heads: vec![EXHAUSTED; width],
            leaves: vec![0; width],
            width,
        };
        // Plays all matches from the bottom up. Winners move up, losers stay in the nodes.
        let mut winners: Vec<(Head, u32)> = vec![(EXHAUSTED, u32::MAX); 2 * width];
        for (i, slot) in winners[width..].iter_mut().enumerate() {
            *slot = (heads.get(i).copied().unwrap_or(EXHAUSTED), i as u32);
        }
        for node in (1..width).rev() {
            let (a, b) = (winners[2 * node], winners[2 * node + 1]);
            let a_wins = a.0 < b.0 || (a.0 == b.0 && (a.0 == EXHAUSTED || before(a.1, b.1)));
            let (winner, loser) = if a_wins { (a, b) } else { (b, a) };
            winners[node] = winner;
            tree.heads[node] = loser.0;
            tree.leaves[node] = loser.1;
        }
        let winner = winners[1];
        tree.heads[0] = winner.0;
        tree.leaves[0] = winner.1;
        tree
    }

    /// The leaf whose entry comes next. Meaningless if [`LoserTree::is_exhausted`].
    #[inline(always)]
    pub fn winner(&self) -> usize {
        self.leaves[0] as usize
    }

    /// The winner's head.
    #[inline(always)]
    pub fn head(&self) -> Head {
        self.heads[0]
    }

    /// Whether no leaf has an entry.
    #[inline(always)]
    pub fn is_exhausted(&self) -> bool {
        self.heads[0] == EXHAUSTED
    }

    /// Replaces the head of the winner's leaf and finds the new winner. `before` is as in
    /// [`LoserTree::new`], of what `leaves` has. It is no closure over `leaves`, because a function
    /// can be inlined wherever this is called.
    #[inline(always)]
    pub fn replace<T: ?Sized>(
        &mut self,
        head: Head,
        leaves: &T,
        before: impl Fn(&T, u32, u32) -> bool,
    ) {
        let (mut head, mut leaf) = (head, self.leaves[0]);
        let mut node = (self.width + leaf as usize) / 2;
        while node > 0 {
            let (h, l) = (self.heads[node], self.leaves[node]);
            let mut loses = h < head;
            if h == head && h != EXHAUSTED {
                // Equal heads are rare, or come with equal keys, whose versions are ordered by
                // trailer.
                loses = before(leaves, l, leaf);
            }
            self.heads[node] = select_unpredictable(loses, head, h);
            self.leaves[node] = select_unpredictable(loses, leaf, l);
            head = select_unpredictable(loses, h, head);
            leaf = select_unpredictable(loses, l, leaf);
            node /= 2;
        }
        self.heads[0] = head;
        self.leaves[0] = leaf;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_order_as_keys_do() {
        let mut keys: Vec<Vec<u8>> = vec![];
        for len in 0..20usize {
            keys.push(vec![0; len]);
            keys.push(vec![0xff; len]);
            keys.push((0..len as u8).collect());
            let mut k = vec![0; len];
            if let Some(b) = k.last_mut() {
                *b = 1;
            }
            keys.push(k);
        }
        for a in &keys {
            for b in &keys {
                let (x, y) = (head_of(a), head_of(b));
                if x == y {
                    assert!(a == b || !head_is_whole(x), "{a:?} {b:?}");
                } else {
                    assert_eq!(x.cmp(&y), a.cmp(b), "{a:?} {b:?}");
                }
                assert!(x < EXHAUSTED);
            }
        }
    }

    #[test]
    fn merges_like_a_sort() {
        let mut x = 7u64;
        let mut random = move |n: u64| {
            x = x
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (x >> 33) % n
        };
        for k in 0..20 {
            let mut lists: Vec<Vec<Vec<u8>>> = (0..k)
                .map(|_| {
                    let mut list: Vec<Vec<u8>> = (0..random(30))
                        .map(|_| {
                            let len = random(19) as usize;
                            (0..len).map(|_| (random(2) * 255) as u8).collect()
                        })
                        .collect();
                    list.sort();
                    list
                })
                .collect();
            let mut want: Vec<Vec<u8>> = lists.iter().flatten().cloned().collect();
            want.sort();
            lists.iter_mut().for_each(|l| l.reverse());
            let head = |l: &Vec<Vec<u8>>| l.last().map_or(EXHAUSTED, |key| head_of(key));
            let heads: Vec<Head> = lists.iter().map(head).collect();
            let mut tree = LoserTree::new(&heads, |a, b| {
                lists[a as usize].last() < lists[b as usize].last()
            });
            let mut got = vec![];
            while !tree.is_exhausted() {
                let w = tree.winner();
                assert_eq!(tree.head(), head(&lists[w]));
                got.push(lists[w].pop().unwrap());
                let next = head(&lists[w]);
                tree.replace(next, &lists, |lists, a, b| {
                    lists[a as usize].last() < lists[b as usize].last()
                });
            }
            assert_eq!(got, want);
        }
    }
}

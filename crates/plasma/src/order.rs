//! Ids sorted by the cells of their particles, which is the order in which a real code would dump
//! them.
//!
//! Plain data that can be reused from dump to dump without a new allocation. There is no threading
//! rule.

/// The ids of all particles, sorted by cell at one moment, and by id within a cell.
///
/// It is created once by [`CellOrder::new`] and refilled by
/// [`Simulation::order_by_cell`](crate::Simulation::order_by_cell) as often as needed.
#[derive(Clone, Debug, Default)]
pub struct CellOrder {
    ids: Vec<u32>,
    starts: Vec<u32>,
}

impl CellOrder {
    /// An empty order, which has no memory until it is first filled.
    #[must_use]
    pub fn new() -> Self {
        CellOrder::default()
    }

    /// The ids, in order of cells.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = u64> + Clone + '_ {
        self.ids.iter().map(|id| u64::from(*id))
    }

    /// Sorts the particles (counting sort) by `cells_of`, which yields the cell of each id, and
    /// yields the same when it is cloned.
    pub(crate) fn fill(
        &mut self,
        cells: usize,
        cells_of: impl ExactSizeIterator<Item = usize> + Clone,
    ) {
        self.starts.clear();
        self.starts.resize(cells, 0);
        for cell in cells_of.clone() {
            self.starts[cell] += 1;
        }
        let mut before = 0;
        for start in &mut self.starts {
            before += std::mem::replace(start, before);
        }
        self.ids.resize(cells_of.len(), 0);
        for (id, cell) in (0..).zip(cells_of) {
            let at = &mut self.starts[cell];
            self.ids[*at as usize] = id;
            *at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_by_cell_and_then_by_id() {
        let mut order = CellOrder::new();
        order.fill(4, [3, 0, 1, 0, 3, 3].into_iter());
        assert_eq!(order.ids().collect::<Vec<_>>(), [1, 3, 2, 0, 4, 5]);
        order.fill(2, [1, 0].into_iter());
        assert_eq!(order.ids().collect::<Vec<_>>(), [1, 0]);
        order.fill(2, std::iter::empty());
        assert_eq!(order.ids().len(), 0);
    }
}

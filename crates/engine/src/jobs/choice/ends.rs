//! Queues with two ends: the slowest side takes the smallest work of a queue, and the other sides
//! take the largest ([RFC 10](../../../../../docs/rfc/0010-schedule.md), section 3).
//!
//! [`Order`] says how fast the sides are, compared with each other, and [`take_end`] says which
//! side takes which work.
//!
//! Invariants: of the sides that take part, exactly one takes from the small end. A side never gets
//! work that it does not accept, or that it has failed with. If a side that can begin a job accepts
//! any of the works, one of them is taken.
//!
//! Threading: pure functions.

use super::Answer;

/// The number of jobs over which a side must be measured before it is compared.
pub(crate) const COMPARED_JOBS: usize = 5;

/// A work that was passed over this many times is taken before all others of its queue.
pub(crate) const PASSED_MAX: u32 = 8;

/// What is known about a side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndSide {
    /// Whether the side may run jobs, now or when one of its slots is free.
    pub(crate) takes_part: bool,
    /// The number of its jobs over which it is measured, at most [`COMPARED_JOBS`].
    pub(crate) job_count: usize,
    /// Nanoseconds per byte over these jobs.
    pub(crate) ns_per_byte: Option<f64>,
}

impl EndSide {
    fn is_compared(&self) -> bool {
        self.job_count >= COMPARED_JOBS && self.ns_per_byte.is_some()
    }
}

/// The sides from the fastest to the slowest.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Order {
    sides: Vec<usize>,
    /// For each side, the nanoseconds per byte with which it is compared from now on, if they are
    /// fixed.
    frozen: Vec<Option<f64>>,
}

impl Order {
    /// The order before anything is measured. The host is the last one in the list of sides, so it
    /// counts as the slowest.
    pub(crate) fn new(side_count: usize) -> Order {
        Order {
            sides: (0..side_count).collect(),
            frozen: vec![None; side_count],
        }
    }

    /// The order after another comparison. Sides that are equally fast keep their order. While a
    /// side is not measured, it counts as faster than the others, and the host counts as the
    /// slowest. With `freezes`, the first comparison in which all sides that take part are measured
    /// and differ is final for these sides. The speed of a side that joins later is fixed when it
    /// is measured.
    pub(crate) fn compared(mut self, sides: &[EndSide], freezes: bool) -> Order {
        let frozen = &self.frozen;
        let speed = |side: &usize| match (frozen[*side], &sides[*side]) {
            (Some(frozen), _) => frozen,
            (None, side) if side.is_compared() => side.ns_per_byte.unwrap_or(0.0),
            (None, _) => 0.0,
        };
        self.sides.sort_by(|a, b| speed(a).total_cmp(&speed(b)));
        let parts = (0..sides.len()).filter(|side| sides[*side].takes_part);
        let host = sides.len() - 1;
        if !parts.clone().all(|side| sides[side].is_compared()) {
            if frozen[host].is_none() {
                self.sides.retain(|side| *side != host);
                self.sides.push(host);
            }
            return self;
        }
        let speeds: Vec<(usize, f64)> = parts.map(|side| (side, speed(&side))).collect();
        if freezes && speeds.iter().any(|(_, ns)| *ns != speeds[0].1) {
            for (side, ns) in speeds {
                self.frozen[side] = Some(ns);
            }
        }
        self
    }

    /// The side that takes from the small end: the slowest side that takes part.
    pub(crate) fn small_end(&self, sides: &[EndSide]) -> Option<usize> {
        let mut from_slowest = self.sides.iter().rev();
        from_slowest.find(|side| sides[**side].takes_part).copied()
    }

    /// The sides from the fastest to the slowest.
    pub(crate) fn fastest_first(&self) -> &[usize] {
        &self.sides
    }
}

/// A work in a queue. The works of a queue are sorted by size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queued<'a> {
    /// How often a work that came later was taken before this one.
    pub(crate) passed_count: u32,
    /// The answer of each side.
    pub(crate) answers: &'a [Answer],
}

/// A work that is taken: its position, the side that takes it, and why it was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) queue: usize,
    pub(crate) position: usize,
    pub(crate) side: usize,
    /// Whether it was taken because it had been passed over too often, and not because it is at an
    /// end.
    pub(crate) was_passed: bool,
}

/// Decides which side takes which work. `small` is the side that takes from the small end. `able`
/// says for each side whether the caller can begin a job there now. Of these sides, the fastest
/// chooses first. The queues are in the order of their urgency.
pub(crate) fn take_end(
    order: &Order,
    small: Option<usize>,
    able: &[bool],
    queues: &[Vec<Queued<'_>>],
) -> Option<Taken> {
    let sides = order.fastest_first().iter().filter(|side| able[**side]);
    for &side in sides {
        for (queue, works) in queues.iter().enumerate() {
            let mut accepted = works
                .iter()
                .enumerate()
                .filter(|(_, work)| work.answers[side] == Answer::Accepts);
            let passed = accepted
                .clone()
                .filter(|(_, work)| work.passed_count >= PASSED_MAX)
                .max_by_key(|(position, work)| (work.passed_count, std::cmp::Reverse(*position)));
            let at_end = match small == Some(side) {
                true => accepted.next(),
                false => accepted.next_back(),
            };
            if let Some((position, _)) = passed.or(at_end) {
                return Some(Taken {
                    queue,
                    position,
                    side,
                    was_passed: passed.is_some(),
                });
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const YES: Answer = Answer::Accepts;
    const NO: Answer = Answer::Refuses;

    /// Sides that need these nanoseconds per byte. The last one is the host.
    fn measured(speeds: &[f64]) -> Vec<EndSide> {
        let of = |ns: &f64| EndSide {
            takes_part: true,
            job_count: COMPARED_JOBS,
            ns_per_byte: Some(*ns),
        };
        speeds.iter().map(of).collect()
    }

    fn order_of(sides: &[EndSide]) -> Order {
        Order::new(sides.len()).compared(sides, false)
    }

    fn queue(answers: &[[Answer; 2]]) -> Vec<Queued<'_>> {
        let of = |answers| Queued {
            passed_count: 0,
            answers,
        };
        answers.iter().map(|answers| of(&answers[..])).collect()
    }

    /// The side and the position in the first queue.
    fn taken(sides: &[EndSide], able: [bool; 2], works: &[Queued<'_>]) -> Option<(usize, usize)> {
        let order = order_of(sides);
        let small = order.small_end(sides);
        let taken = take_end(&order, small, &able, &[works.to_vec()])?;
        Some((taken.side, taken.position))
    }

    #[test]
    fn the_slower_side_takes_from_the_small_end() {
        let works = [[YES; 2]; 3];
        let works = queue(&works);
        let slow_host = measured(&[1.0, 4.0]);
        assert_eq!(taken(&slow_host, [false, true], &works), Some((1, 0)));
        assert_eq!(taken(&slow_host, [true, false], &works), Some((0, 2)));
        // If both can begin a job, the faster one chooses first.
        assert_eq!(taken(&slow_host, [true, true], &works), Some((0, 2)));
        let fast_host = measured(&[4.0, 1.0]);
        assert_eq!(taken(&fast_host, [false, true], &works), Some((1, 2)));
        assert_eq!(taken(&fast_host, [true, false], &works), Some((0, 0)));
        assert_eq!(taken(&fast_host, [true, true], &works), Some((1, 2)));
        assert_eq!(taken(&fast_host, [false, false], &works), None);
        assert_eq!(taken(&fast_host, [true, true], &[]), None);
    }

    #[test]
    fn before_five_jobs_the_host_takes_from_the_small_end() {
        let mut sides = measured(&[9.0, 1.0]);
        assert_eq!(order_of(&sides).small_end(&sides), Some(0));
        for few in [0, 1] {
            sides = measured(&[9.0, 1.0]);
            sides[few].job_count = COMPARED_JOBS - 1;
            assert_eq!(order_of(&sides).small_end(&sides), Some(1), "side {few}");
        }
        // A side that has no slots does not keep the others from being compared.
        let mut three = measured(&[2.0, 1.0, 1.5]);
        three[1].job_count = 0;
        assert_eq!(order_of(&three).small_end(&three), Some(2));
        three[1].takes_part = false;
        let order = order_of(&three);
        assert_eq!(order.small_end(&three), Some(0));
        assert_eq!(order.fastest_first(), [1, 2, 0]);
    }

    #[test]
    fn of_many_sides_only_the_slowest_has_the_small_end() {
        let sides = measured(&[2.0, 8.0, 1.0, 4.0]);
        let order = order_of(&sides);
        assert_eq!(order.fastest_first(), [2, 0, 3, 1]);
        assert_eq!(order.small_end(&sides), Some(1));
        // The slowest one is suspended.
        let mut without = sides.clone();
        without[1].takes_part = false;
        assert_eq!(order.small_end(&without), Some(3));
    }

    #[test]
    fn equal_sides_keep_what_they_had() {
        let slow_host = measured(&[1.0, 4.0]);
        let slow_other = measured(&[4.0, 1.0]);
        let equal = measured(&[2.0, 2.0]);
        let small = |order: &Order| order.small_end(&equal);
        let order = order_of(&equal);
        assert_eq!(small(&order), Some(1), "as before anything was measured");
        let order = order.compared(&slow_other, false);
        assert_eq!(small(&order), Some(0));
        let order = order.compared(&equal, false);
        assert_eq!(small(&order), Some(0));
        let order = order.compared(&slow_host, false);
        assert_eq!(small(&order), Some(1));
    }

    #[test]
    fn a_frozen_order_stays() {
        let order = Order::new(2);
        let mut few = measured(&[4.0, 1.0]);
        few[0].job_count = 4;
        let order = order.compared(&few, true);
        let order = order.compared(&measured(&[2.0, 2.0]), true);
        let is_frozen = |order: &Order| order.frozen.iter().all(Option::is_some);
        assert!(!is_frozen(&order), "too few jobs, and then equal sides");
        let order = order.compared(&measured(&[4.0, 1.0]), true);
        assert!(is_frozen(&order));
        let later = order.clone().compared(&measured(&[1.0, 4.0]), true);
        assert_eq!(later, order);
        // Without freezing, each comparison counts.
        let order = Order::new(2).compared(&measured(&[4.0, 1.0]), false);
        let order = order.compared(&measured(&[1.0, 4.0]), false);
        assert_eq!(order.fastest_first(), [0, 1]);
    }

    #[test]
    fn a_side_that_joins_later_is_compared_when_it_is_measured() {
        // The first side was suspended when the others were compared.
        let mut sides = measured(&[9.0, 2.0, 4.0]);
        (sides[0].takes_part, sides[0].job_count) = (false, 0);
        let order = Order::new(3).compared(&sides, true);
        assert_eq!(order.small_end(&sides), Some(2));
        // It takes part now. The other sides keep their order, whatever is measured for them.
        sides = measured(&[9.0, 7.0, 5.0]);
        sides[0].job_count = 0;
        let order = order.compared(&sides, true);
        assert_eq!(order.fastest_first(), [0, 1, 2], "it is not measured");
        let order = order.compared(&measured(&[9.0, 7.0, 5.0]), true);
        assert_eq!(order.fastest_first(), [1, 2, 0]);
        let order = order.compared(&measured(&[1.0, 9.0, 5.0]), true);
        assert_eq!(
            order.fastest_first(),
            [1, 2, 0],
            "this one is frozen as well"
        );
    }

    #[test]
    fn an_end_is_that_of_the_works_that_a_side_accepts() {
        let sides = measured(&[1.0, 4.0]);
        let works = [[NO, YES], [YES, YES], [YES, YES], [NO, YES]];
        let works = queue(&works);
        assert_eq!(taken(&sides, [true, false], &works), Some((0, 2)));
        assert_eq!(taken(&sides, [false, true], &works), Some((1, 0)));
        let works = [[Answer::Failed, YES]];
        let works = queue(&works);
        assert_eq!(taken(&sides, [true, false], &works), None);
        assert_eq!(taken(&sides, [true, true], &works), Some((1, 0)));
    }

    #[test]
    fn the_most_urgent_queue_with_accepted_work_is_served() {
        let sides = measured(&[1.0, 4.0]);
        let order = order_of(&sides);
        let (first, second) = ([[NO, YES]], [[YES, YES], [YES, YES]]);
        let queues = [queue(&first), queue(&second)];
        let at = |able: [bool; 2]| {
            let taken = take_end(&order, Some(1), &able, &queues).unwrap();
            (taken.side, taken.queue, taken.position)
        };
        assert_eq!(at([true, true]), (0, 1, 1));
        assert_eq!(at([false, true]), (1, 0, 0));
    }

    #[test]
    fn a_work_that_was_passed_over_goes_first() {
        let sides = measured(&[1.0, 4.0]);
        let order = order_of(&sides);
        let answers = [[YES, YES], [NO, YES], [YES, YES], [YES, YES]];
        let mut works = queue(&answers);
        works[1].passed_count = PASSED_MAX + 1;
        works[2].passed_count = PASSED_MAX;
        let at = |able: [bool; 2], works: &[Queued<'_>]| {
            let taken = take_end(&order, Some(1), &able, &[works.to_vec()]).unwrap();
            (taken.side, taken.position, taken.was_passed)
        };
        // Side 0 does not accept the work that has waited the longest.
        assert_eq!(at([true, false], &works), (0, 2, true));
        assert_eq!(at([false, true], &works), (1, 1, true));
        works[2].passed_count = PASSED_MAX - 1;
        assert_eq!(at([true, false], &works), (0, 3, false));
    }
}

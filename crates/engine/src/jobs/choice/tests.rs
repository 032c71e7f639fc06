//! The choice of a side, case by case.

use super::*;

const MB: u64 = 1_000_000;

fn job(kind: JobKind, seconds: f64) -> RunningJob {
    RunningJob {
        kind,
        remaining: Duration::from_secs_f64(seconds),
        is_executed: true,
    }
}

/// A side that compacts at `ns` per byte and runs compactions that still need these seconds.
fn side<'a>(name: &'a str, slots: usize, ns: f64, remaining: &[f64]) -> SideView<'a> {
    let running = remaining.iter().map(|s| job(JobKind::Compaction, *s));
    SideView {
        name,
        slots,
        no_slots: "has no slots",
        running: running.collect(),
        costs: Costs::BYTES,
        factor: [Some(ns); JOB_KINDS],
        compaction_ns_per_byte: Some(ns),
        measured_jobs: [5; JOB_KINDS],
        is_on_trial: false,
    }
}

fn of(bytes: u64) -> Ask<'static> {
    Ask {
        kind: JobKind::Compaction,
        size: JobSize::of_bytes(bytes),
        may_wait: true,
        answers: &[Answer::Accepts; 4],
        host_weight: 1.0,
    }
}

/// Places jobs one after the other. Waiting jobs count when later ones are placed.
fn places(sides: &[SideView<'_>], asks: &[Ask<'_>]) -> Vec<(usize, bool)> {
    let mut waiting = Vec::new();
    let place = |ask: &Ask<'_>| {
        let decision = choose(sides, ask, &waiting);
        if decision.is_busy {
            waiting.push(Waiting {
                side: decision.side,
                kind: ask.kind,
                size: ask.size,
            });
        }
        (decision.side, decision.is_busy)
    };
    asks.iter().map(place).collect()
}

/// The example of RFC 7, section 5.
#[test]
fn a_faster_side_does_not_get_every_job() {
    let host = side("host", 1, 4.0, &[]);
    let two = [side("gpu0", 2, 1.0, &[0.10, 0.30]), host.clone()];
    let works = [of(134 * MB); 3];
    assert_eq!(places(&two, &works), [(0, true), (0, true), (1, false)]);
    let words = choose(&two, &works[0], &[]).reason;
    assert_eq!(words, "gpu0 0.234 s, host 0.536 s");
    let one = [side("gpu0", 1, 1.0, &[0.5]), host.clone()];
    assert_eq!(places(&one, &works[..1]), [(1, false)]);
    // The faster side has a free slot, so it gets the job.
    let free = [side("gpu0", 2, 1.0, &[9.0]), host];
    assert_eq!(places(&free, &works[..1]), [(0, false)]);
}

#[test]
fn a_host_that_is_spared_gets_what_others_take_four_times_as_long_for() {
    let host = side("host", 1, 1.0, &[]);
    let spared = Ask {
        host_weight: 4.0,
        ..of(100 * MB)
    };
    let at =
        |other: &SideView<'_>, ask: &Ask<'_>| choose(&[other.clone(), host.clone()], ask, &[]).side;
    for (other, side_unspared, side_spared) in [
        (side("gpu0", 1, 3.9, &[]), 1, 0),
        (side("gpu0", 1, 4.1, &[]), 1, 1),
        // Waiting counts as well.
        (side("gpu0", 1, 0.9, &[0.30]), 1, 0),
        (side("gpu0", 1, 0.9, &[0.32]), 1, 1),
    ] {
        assert_eq!(at(&other, &of(100 * MB)), side_unspared);
        assert_eq!(at(&other, &spared), side_spared);
    }
    let slow = side("gpu0", 1, 1.9, &[]);
    let flush = Ask {
        kind: JobKind::Flush,
        ..spared
    };
    assert_eq!(at(&slow, &flush), 1, "a writer may wait for a flush");
    let words = choose(&[slow, host], &spared, &[]).reason;
    assert_eq!(words, "gpu0 0.190 s, host 0.100 s (counts 4 times)");
}

#[test]
fn equal_sides_are_taken_in_order_and_the_host_last() {
    let sides = [
        side("a", 1, 1.0, &[]),
        side("b", 1, 1.0, &[]),
        side("host", 1, 1.0, &[]),
    ];
    assert_eq!(choose(&sides, &of(MB), &[]).side, 0);
    let only = |answers: &[Answer]| {
        let ask = Ask { answers, ..of(MB) };
        choose(&sides, &ask, &[])
    };
    let (yes, no) = (Answer::Accepts, Answer::Refuses);
    assert_eq!(only(&[no, yes, yes]).side, 1);
    assert_eq!(only(&[no, no, yes]).side, 2);
    let decision = only(&[no, Answer::Failed, no]);
    assert_eq!(decision.side, 2, "the host is always a candidate");
    let reason = "a does not accept it, b has failed with it, host 0.001 s";
    assert_eq!(decision.reason, reason);
}

#[test]
fn what_may_not_wait_gets_a_free_slot_or_the_host() {
    let sides = [side("gpu0", 1, 1.0, &[0.01]), side("host", 1, 9.0, &[])];
    assert_eq!(places(&sides, &[of(100 * MB)]), [(0, true)]);
    let urgent = Ask {
        may_wait: false,
        ..of(100 * MB)
    };
    assert_eq!(places(&sides, &[urgent]), [(1, false)]);
    let free = [side("gpu0", 2, 1.0, &[0.01]), side("host", 1, 9.0, &[])];
    assert_eq!(places(&free, &[urgent]), [(0, false)]);
    // The job waits for the host if no other side is a candidate.
    let busy = [side("gpu0", 1, 1.0, &[5.0]), side("host", 1, 9.0, &[5.0])];
    assert_eq!(places(&busy, &[urgent]), [(1, true)]);
}

#[test]
fn a_side_that_is_not_measured_gets_one_job_of_a_kind() {
    let host = side("host", 1, 1.0, &[]);
    let mut new = side("new", 4, 0.0, &[]);
    new.factor = [None, None];
    let at = |new: &SideView<'_>, ask: Ask<'_>| choose(&[new.clone(), host.clone()], &ask, &[]);
    assert_eq!(at(&new, of(MB)).side, 0);
    new.running.push(job(JobKind::Compaction, 1.0));
    assert_eq!(at(&new, of(MB)).side, 1, "it is being measured");
    let flush = Ask {
        kind: JobKind::Flush,
        may_wait: false,
        ..of(MB)
    };
    assert_eq!(at(&new, flush).side, 0, "but not with flushes");
    // No job waits for a side whose speed is not measured.
    new.slots = 1;
    assert_eq!(
        at(
            &new,
            Ask {
                may_wait: true,
                ..flush
            }
        )
        .side,
        1
    );
    // The host is measured in the same way.
    let slow = side("slow", 1, 50.0, &[]);
    let mut unknown = side("host", 1, 0.0, &[]);
    unknown.factor = [None, None];
    assert_eq!(choose(&[slow, unknown], &of(MB), &[]).side, 1);
}

#[test]
fn the_reason_says_why_a_side_is_no_candidate() {
    let host = side("host", 1, 4.0, &[]);
    let reason = |side: &SideView<'_>, ask: Ask<'_>, waiting: &[Waiting]| {
        let decision = choose(&[side.clone(), host.clone()], &ask, waiting);
        let (gpu, rest) = decision.reason.split_once(", ").unwrap();
        assert!(rest == "host 0.004 s" && decision.side == 1, "{decision:?}");
        gpu.strip_prefix("gpu0 ").unwrap().to_string()
    };
    let free = side("gpu0", 1, 1.0, &[]);
    let busy = side("gpu0", 1, 1.0, &[0.001]);
    let answered = |answers: &'static [Answer]| Ask { answers, ..of(MB) };
    let refuses = answered(&[Answer::Refuses; 2]);
    assert_eq!(reason(&free, refuses, &[]), "does not accept it");
    let failed = answered(&[Answer::Failed; 2]);
    assert_eq!(reason(&free, failed, &[]), "has failed with it");
    let urgent = Ask {
        may_wait: false,
        ..of(MB)
    };
    assert_eq!(reason(&busy, urgent, &[]), "has no free slot");
    let waiting = Waiting {
        side: 0,
        kind: JobKind::Compaction,
        size: JobSize::of_bytes(1),
    };
    let said = "has as many jobs waiting as slots";
    assert_eq!(reason(&busy, of(MB), &[waiting]), said);
    let mut other = busy.clone();
    other.is_on_trial = true;
    let said = "has one job to show that it works again";
    assert_eq!(reason(&other, of(MB), &[]), said);
    other = busy.clone();
    other.factor = [None; JOB_KINDS];
    assert_eq!(reason(&other, of(MB), &[]), "is being measured");
    other = busy.clone();
    (other.slots, other.no_slots) = (0, "is suspended");
    assert_eq!(reason(&other, of(MB), &[]), "is suspended");
    // The side is a candidate, but its time is not known.
    other = free.clone();
    other.factor = [None; JOB_KINDS];
    let decision = choose(&[other, host.clone()], &of(MB), &[]);
    let said = "gpu0 is not measured yet, host 0.004 s";
    assert_eq!((decision.side, &decision.reason[..]), (0, said));
}

#[test]
fn a_side_on_trial_gets_one_job_at_all() {
    let mut sides = [side("gpu0", 4, 1.0, &[]), side("host", 1, 9.0, &[])];
    sides[0].is_on_trial = true;
    assert_eq!(choose(&sides, &of(MB), &[]).side, 0);
    sides[0].running.push(job(JobKind::Flush, 0.001));
    assert_eq!(choose(&sides, &of(MB), &[]).side, 1);
}

#[test]
fn slots_that_went_away_are_not_given_out() {
    let host = side("host", 1, 100.0, &[]);
    let gone = [side("gpu0", 0, 1.0, &[]), host.clone()];
    assert_eq!(choose(&gone, &of(MB), &[]).side, 1);
    // Three jobs run and one slot remains, which is free when the last job ends.
    let fewer = [side("gpu0", 1, 1.0, &[1.0, 2.0, 3.0]), host];
    let decision = choose(&fewer, &of(100 * MB), &[]);
    assert_eq!(decision.reason, "gpu0 3.100 s, host 10.000 s");
    assert_eq!((decision.side, decision.is_busy), (0, true));
}

#[test]
fn the_time_to_go_grows_while_nothing_moves() {
    let s = Duration::from_secs;
    let after = |elapsed, read| Advance {
        elapsed: s(elapsed),
        expected: s(10),
        bytes: 100,
        read,
        still: s(0),
    };
    let left = |elapsed, read| after(elapsed, read).remaining();
    assert_eq!([left(0, 0), left(4, 0), left(8, 0)], [s(10), s(6), s(8)]);
    assert_eq!(left(500, 0), s(500));
    // A quarter was read in two seconds.
    assert_eq!(left(2, 25), s(6));
    assert_eq!([left(2, 100), left(2, 1000)], [s(0), s(0)]);
    let still = |read, still| Advance {
        still: s(still),
        ..after(60, read)
    };
    assert_eq!(still(60, 5).remaining(), s(40));
    assert_eq!(still(60, 50).remaining(), s(50));
    assert_eq!(still(100, 50).remaining(), s(50), "all is read");
    let flush = Advance {
        bytes: 0,
        ..after(3, 7)
    };
    assert_eq!(flush.remaining(), s(7), "a flush reads no table");
}

#[test]
fn as_many_works_wait_for_a_busy_side_as_it_has_slots() {
    let host = side("host", 1, 2.0, &[]);
    let left = |device: SideView<'_>, answers: &[Answer]| {
        let works = [(JobSize::of_bytes(100 * MB), answers); 4].into_iter();
        left_to_others(&[device, host.clone()], works, 4.0, &[])
    };
    let accepts = &[Answer::Accepts; 2][..];
    let busy = |slots| side("device", slots, 1.0, &[0.1, 0.1][..slots]);
    assert_eq!(left(busy(1), accepts), [true, false, false, false]);
    assert_eq!(left(busy(2), accepts), [true, true, false, false]);
    // The device is slower than the host by more than the host's time counts.
    let slow = side("device", 1, 9.0, &[0.1]);
    assert_eq!(left(slow, accepts), [false; 4]);
    let refuses = &[Answer::Refuses, Answer::Accepts][..];
    assert_eq!(left(busy(2), refuses), [false; 4]);
}

/// Two sides that are equally fast on average, and not on what they are made for.
#[test]
fn what_a_job_costs_depends_on_its_entries_and_on_its_codec() {
    let moves_bytes = Costs {
        job_ns: 2_000_000.0,
        byte_ns: 0.5,
        entry_ns: 5.0,
        packed_byte_ns: 0.1,
    };
    let gpu = SideView {
        costs: moves_bytes,
        ..side("gpu0", 1, 2.0, &[])
    };
    let host = SideView {
        costs: Costs::CORE,
        ..side("host", 1, 1.0, &[])
    };
    let chosen = |bytes: u64, entry_bytes: u64, packed: bool| {
        let size = JobSize {
            bytes,
            entries: bytes / entry_bytes,
            packed_bytes: if packed { bytes } else { 0 },
        };
        let ask = Ask { size, ..of(0) };
        choose(&[gpu.clone(), host.clone()], &ask, &[]).reason
    };
    assert_eq!(chosen(100 * MB, 50, false), "gpu0 0.124 s, host 0.224 s");
    assert_eq!(chosen(100 * MB, 1000, false), "gpu0 0.105 s, host 0.059 s");
    assert_eq!(chosen(100 * MB, 1000, true), "gpu0 0.125 s, host 0.139 s");
    assert_eq!(chosen(MB, 50, false), "gpu0 0.005 s, host 0.002 s");
}

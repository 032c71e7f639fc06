use super::*;

fn put(operations: u64) -> Done {
    Done {
        kind: Kind::Put,
        operations,
        written_bytes: 10 * operations,
        read_bytes: 0,
    }
}

/// What the recorders of `meter` have sent, without the beginnings: the second of each tally, and
/// its operations.
fn sent(meter: &Meter) -> Vec<(u64, u64)> {
    let receiver = meter.take_receiver().unwrap();
    receiver
        .try_iter()
        .filter_map(|message| match message {
            Message::Tally { second, tally, .. } => Some((second, tally.operations)),
            _ => None,
        })
        .collect()
}

#[test]
fn kinds_are_numbered_in_the_order_of_the_list() {
    for (number, kind) in Kind::ALL.into_iter().enumerate() {
        assert_eq!(kind as usize, number);
    }
}

#[test]
fn an_operation_belongs_to_the_second_in_which_it_ended() {
    let meter = Meter::new();
    let mut recorder = meter.recorder(Role::Measured);
    recorder.begin();
    let at = |ms| meter.start() + Duration::from_millis(ms);
    recorder.record(&put(1), at(0), at(999));
    recorder.record(&put(2), at(999), at(1000));
    recorder.record(&put(4), at(1000), at(5500));
    assert_eq!(recorder.operations(), 7);
    assert_eq!(meter.operations(), 7);
    drop(recorder);
    assert_eq!(sent(&meter), [(0, 1), (1, 2), (5, 4)]);
}

#[test]
fn a_recorder_that_never_began_sends_nothing() {
    let meter = Meter::new();
    drop(meter.recorder(Role::Measured));
    assert_eq!(meter.take_receiver().unwrap().try_iter().count(), 0);
}

#[test]
fn a_recorder_begins_with_its_first_operation_at_the_latest() {
    let meter = Meter::new();
    let mut recorder = meter.recorder(Role::Measured);
    recorder.lap(&put(1));
    drop(recorder);
    let messages: Vec<Message> = meter.take_receiver().unwrap().try_iter().collect();
    assert!(matches!(messages[0], Message::Begin { second: 0, .. }));
    assert!(matches!(messages[1], Message::Tally { next: None, .. }));
}

#[test]
fn laps_follow_one_another() {
    let meter = Meter::new();
    let mut recorder = meter.recorder(Role::Measured);
    let began = recorder.begin();
    let first = recorder.lap(&put(1));
    let second = recorder.lap(&put(1));
    let restarted = recorder.restart();
    assert!(began <= first && first <= second && second <= restarted);
    let latencies = recorder.tally.latency[Kind::Put as usize].as_ref().unwrap();
    assert_eq!(latencies.count(), 2);
    let sum_us = latencies.summary().unwrap().mean_us * 2.0;
    assert!((sum_us - (second - began).as_secs_f64() * 1e6).abs() < 0.01);
}

#[test]
fn the_latency_of_an_open_loop_counts_from_the_intended_start() {
    let meter = Meter::new();
    let mut recorder = meter.recorder(Role::Measured);
    let begin = recorder.begin();
    let at = |us| begin + Duration::from_micros(us);
    let mut record = |intended, began, ended| {
        let times = Times {
            intended: at(intended),
            began: at(began),
            ended: at(ended),
        };
        recorder.record_open(&put(1), &times);
    };
    record(100, 900, 1000);
    // One that began before it was due was not late.
    record(300, 200, 310);
    let longest = |all: &[Option<Box<Latencies>>; KINDS]| {
        let latencies = all[Kind::Put as usize].as_ref().unwrap();
        (latencies.summary().unwrap().min_us, latencies.longest_us())
    };
    assert_eq!(longest(&recorder.tally.latency), (110.0, Some(900.0)));
    assert_eq!(longest(&recorder.tally.service), (100.0, Some(110.0)));
}

#[test]
fn a_tally_is_used_again_empty() {
    let mut tally = Tally {
        operations: 3,
        errors: 1,
        cpu_s: Some(1.0),
        ..Tally::default()
    };
    latencies_of(&mut tally.latency, Kind::Get).record_ns(5);
    latencies_of(&mut tally.service, Kind::Get).record_ns(5);
    tally.clear();
    assert_eq!((tally.operations, tally.errors, tally.cpu_s), (0, 0, None));
    for kept in [&tally.latency, &tally.service] {
        assert!(kept[Kind::Get as usize].as_ref().unwrap().is_empty());
    }
}

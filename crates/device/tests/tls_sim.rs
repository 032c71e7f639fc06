//! Simulated connections over TLS. Both sides send and receive at the same time from the first call
//! on, while the link is slow, is cut, freezes, or changes a bit. Every receiver gets a prefix of
//! what was sent, no call takes longer than its deadline, and a connection that failed stays over.
//!
//! TLS draws keys from the system's random source, so a seed repeats the faults and the schedule
//! only as long as the signatures have the same lengths.

mod tls_common;

use std::sync::Arc;
use std::time::Duration;

use siltstone_device::{TlsFiles, TlsNetwork};
use siltstone_storage::Runtime;
use siltstone_storage::link::{Connection, LinkFaults, MemoryNetwork, Network, Received};
use siltstone_storage::sim::{self, SimConfig};
use tls_common::{Authority, Tap};

const SEEDS: u64 = 600;

/// The deadline of each call.
const LIMIT: Duration = Duration::from_secs(2);
/// How late a simulated call may return after its deadline.
const SLACK: Duration = Duration::from_millis(200);

fn below(runtime: &Runtime, bound: u64) -> u64 {
    runtime.random_u64() % bound
}

/// The bytes that are sent in one direction.
fn pattern(len: usize, step: usize) -> Vec<u8> {
    (0..len).map(|i| (i * step % 251) as u8).collect()
}

/// Sends all bytes in parts. Returns whether that worked.
fn send_all(runtime: &Runtime, to: &dyn Connection, bytes: &[u8]) -> bool {
    let mut rest = bytes;
    while !rest.is_empty() {
        let len = (1 + below(runtime, 100_000) as usize).min(rest.len());
        let (part, after) = rest.split_at(len);
        let (head, tail) = part.split_at(len / 3);
        let begun = runtime.now();
        let sent = to.send(&[head, &[], tail], begun + LIMIT);
        assert!(runtime.now().since(begun) <= LIMIT + SLACK, "N1");
        if sent.is_err() {
            to.send(&[b"x"], runtime.now() + LIMIT).expect_err("N4");
            return false;
        }
        rest = after;
    }
    true
}

/// Receives until all bytes have arrived, or nothing arrives any more. Returns whether all arrived.
fn receive_all(runtime: &Runtime, from: &dyn Connection, expected: &[u8]) -> bool {
    let mut all = Vec::new();
    let mut buf = vec![0; 1 + below(runtime, 70_000) as usize];
    let mut patience = 3;
    while all.len() < expected.len() && patience > 0 {
        let begun = runtime.now();
        let received = from.receive(&mut buf, begun + LIMIT);
        assert!(runtime.now().since(begun) <= LIMIT + SLACK, "N1");
        match received {
            Ok(Received::Bytes(len)) => all.extend_from_slice(&buf[..len]),
            Ok(Received::Nothing) => patience -= 1,
            Ok(Received::End) => panic!("nobody closed the connection"),
            Err(_) => {
                let again = from.receive(&mut buf, runtime.now() + LIMIT);
                again.expect_err("N4");
                break;
            }
        }
    }
    assert!(expected.starts_with(&all), "N2");
    all.len() == expected.len()
}

fn faults(runtime: &Runtime, is_faulty: bool) -> LinkFaults {
    let ms = |bound| Duration::from_millis(below(runtime, bound));
    let chance = |bound| match is_faulty {
        true => below(runtime, bound) as u16,
        false => 0,
    };
    LinkFaults {
        delay: ms(5),
        jitter: ms(5),
        cut: chance(4000),
        freeze: chance(4000),
        ..LinkFaults::default()
    }
}

fn one(runtime: &Runtime, files: [&TlsFiles; 2]) {
    let memory = MemoryNetwork::new(runtime);
    let inner: Arc<dyn Network> = Arc::new(memory.clone());
    let tap = Tap::new(&inner);
    let of = |inner, files| TlsNetwork::new(runtime, inner, files).unwrap();
    let (device, host) = (of(inner, files[0]), of(Arc::new(tap.clone()), files[1]));
    let address = "memory:device".parse().unwrap();
    let listener = device.listen(&address).unwrap();
    let near = host.connect(&address, runtime.now() + LIMIT).unwrap();
    let accepted = listener.accept(runtime.now() + LIMIT).unwrap();
    let far = accepted.unwrap();
    let kind = below(runtime, 3);
    memory.set_faults(faults(runtime, kind == 1));
    if kind == 2 {
        tap.flip_in(below(runtime, 50_000) as u32);
    }
    let ways = [(&near, &far, 7), (&far, &near, 11)].map(|(from, to, step)| {
        let bytes = Arc::new(pattern(below(runtime, 400_000) as usize, step));
        let task = runtime.spawn("send", {
            let (runtime, from, bytes) = (runtime.clone(), from.clone(), bytes.clone());
            move || send_all(&runtime, &*from, &bytes)
        });
        let sender = task.unwrap();
        let task = runtime.spawn("receive", {
            let (runtime, to) = (runtime.clone(), to.clone());
            move || receive_all(&runtime, &*to, &bytes)
        });
        (sender, task.unwrap())
    });
    for (sender, receiver) in ways {
        let (is_sent, is_received) = (sender.join().unwrap(), receiver.join().unwrap());
        if kind == 0 {
            assert!(is_sent && is_received, "a link without faults carries all");
        }
    }
    near.close();
    if kind == 0 {
        let deadline = runtime.now() + LIMIT;
        let end = far.receive(&mut [0; 8], deadline).unwrap();
        assert_eq!(end, Received::End);
    }
}

#[test]
fn both_directions_at_once_from_the_first_call_on() {
    let authority = Authority::new();
    let files = [authority.files(&["device"]), authority.files(&["host"])];
    for seed in 0..SEEDS {
        let config = SimConfig {
            max_steps: 2_000_000,
            ..SimConfig::new(seed)
        };
        let files = [(*files[0]).clone(), (*files[1]).clone()];
        let outcome = sim::run(config, move |runtime| {
            one(&runtime, [&files[0], &files[1]]);
        });
        if let Err(failure) = outcome.result {
            panic!("seed {seed}: {failure:?}");
        }
    }
}

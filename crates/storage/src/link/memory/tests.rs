use super::*;
use crate::sim::{SimConfig, run};

const MINUTE: Duration = Duration::from_secs(60);

fn address() -> Address {
    Address::Memory("device".into())
}

/// A simulated run with both ends of a connection.
struct World {
    rt: Runtime,
    network: MemoryNetwork,
    listener: Arc<dyn Listener>,
    near: Arc<dyn Connection>,
    far: Arc<dyn Connection>,
}

impl World {
    fn soon(&self) -> Instant {
        self.rt.now() + MINUTE
    }

    fn send(&self, to: &dyn Connection, bytes: &[u8]) -> LinkResult<()> {
        to.send(&[bytes], self.soon())
    }

    fn receive(&self, from: &dyn Connection) -> LinkResult<Received> {
        from.receive(&mut [0; 8], self.soon())
    }

    /// Returns the bytes that arrive before the connection ends, or before nothing arrives for a
    /// minute.
    fn receive_all(&self, from: &dyn Connection) -> (Vec<u8>, LinkResult<Received>) {
        let (mut got, mut buf) = (Vec::new(), [0; 5000]);
        loop {
            match from.receive(&mut buf, self.soon()) {
                Ok(Received::Bytes(n)) => got.extend_from_slice(&buf[..n]),
                end => return (got, end),
            }
        }
    }
}

/// Runs `story`, and returns what it returned and the digest of the run.
fn simulated<T: Send + 'static>(
    seed: u64,
    story: impl FnOnce(&World) -> T + Send + 'static,
) -> (T, u64) {
    let outcome = run(SimConfig::new(seed), |rt| {
        let network = MemoryNetwork::new(&rt);
        let deadline = rt.now() + MINUTE;
        let listener = network.listen(&address()).unwrap();
        let near = network.connect(&address(), deadline).unwrap();
        let far = listener.accept(deadline).unwrap().unwrap();
        let world = World {
            rt,
            network: network.clone(),
            listener,
            near,
            far,
        };
        let value = story(&world);
        drop(world);
        assert_eq!(network.connection_count(), 0, "no end leaks");
        value
    });
    (outcome.result.unwrap(), outcome.digest)
}

fn bytes_of(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 % 251) as u8).collect()
}

fn is_over<T>(result: LinkResult<T>) -> bool {
    result.is_err_and(|error| error.kind == LinkErrorKind::Closed)
}

#[test]
fn bytes_arrive_in_order_and_take_their_time() {
    let story = |world: &World| {
        world.network.set_faults(LinkFaults {
            delay: Duration::from_millis(3),
            jitter: Duration::from_millis(20),
            bytes_per_s: 1 << 20,
            ..LinkFaults::default()
        });
        let bytes = bytes_of(1 << 20);
        let sender = {
            let (near, bytes, deadline) = (world.near.clone(), bytes.clone(), world.soon());
            let send = move || {
                near.send(&[&bytes[..10], &bytes[10..]], deadline).unwrap();
                near.close();
            };
            world.rt.spawn("sender", send).unwrap()
        };
        let (got, end) = world.receive_all(&*world.far);
        assert!(got == bytes);
        assert_eq!(end.unwrap(), Received::End);
        let took_ms = world.rt.now().as_nanos() / 1_000_000;
        assert!((1000..2000).contains(&took_ms), "{took_ms} ms");
        assert!(
            is_over(world.send(&*world.far, b"x")),
            "the peer has closed"
        );
        sender.join().unwrap();
    };
    for seed in 0..20 {
        let ((), digest) = simulated(seed, story);
        assert_eq!(
            digest,
            simulated(seed, story).1,
            "seed {seed} is not replayed"
        );
    }
}

#[test]
fn a_cut_leaves_a_prefix() {
    let mut lengths = std::collections::BTreeSet::new();
    for seed in 0..50 {
        let story = |world: &World| {
            let bytes = bytes_of(100_000);
            world.send(&*world.near, &bytes).unwrap();
            world.network.cut_all();
            assert!(is_over(world.send(&*world.near, b"x")));
            let (got, end) = world.receive_all(&*world.far);
            assert!(is_over(end) && bytes.starts_with(&got));
            assert!(is_over(world.receive(&*world.near)));
            got.len()
        };
        lengths.insert(simulated(seed, story).0);
    }
    assert!(lengths.len() > 20, "{lengths:?}");
}

#[test]
fn a_frozen_connection_shows_itself_by_its_silence_only() {
    simulated(1, |world| {
        world.network.freeze_all();
        world.send(&*world.near, b"lost").unwrap();
        world.far.close();
        let begin = world.rt.now();
        let nothing = world.receive(&*world.near).unwrap();
        assert_eq!(nothing, Received::Nothing);
        assert_eq!(world.rt.now().since(begin), MINUTE);
        let full = world.send(&*world.near, &bytes_of(BUFFER_BYTES));
        assert_eq!(full.unwrap_err().kind, LinkErrorKind::TimedOut);
        assert!(is_over(world.send(&*world.near, b"x")), "a part was sent");
        world.network.set_silent(true);
        let error = world.network.connect(&address(), world.soon());
        assert_eq!(error.err().unwrap().kind, LinkErrorKind::TimedOut);
    });
}

#[test]
fn a_killed_process_ends_its_connections_and_its_listener() {
    let outcome = run(SimConfig::new(3), |rt| {
        let network = MemoryNetwork::new(&rt);
        let listen = |rt: &Runtime| {
            let network = network.clone();
            let device = move |rt: Runtime| {
                let soon = || rt.now() + MINUTE;
                let listener = network.listen(&address()).unwrap();
                let connection = listener.accept(soon()).unwrap().unwrap();
                let _ = connection.send(&[b"hello"], soon());
                let hour = rt.now() + Duration::from_secs(3600);
                let _ = connection.receive(&mut [0; 4], hour);
            };
            rt.spawn_process("device", device).unwrap()
        };
        let soon = || rt.now() + MINUTE;
        let connect = || loop {
            match network.connect(&address(), soon()) {
                Ok(connection) => break connection,
                Err(error) => assert_eq!(error.kind, LinkErrorKind::Refused),
            }
            rt.sleep(Duration::from_millis(1));
        };
        let device = listen(&rt);
        let near = connect();
        let mut buf = [0; 8];
        assert_eq!(near.receive(&mut buf, soon()).unwrap(), Received::Bytes(5));
        device.kill();
        let begin = rt.now();
        assert_eq!(near.receive(&mut buf, soon()).unwrap(), Received::End);
        assert!(rt.now().since(begin) <= LOOK);
        assert!(is_over(near.send(&[b"x"], soon())));
        let refused = network.connect(&address(), soon()).err().unwrap();
        assert_eq!(refused.kind, LinkErrorKind::Refused);
        // The address is free again.
        let device = listen(&rt);
        drop(connect());
        assert_eq!(device.join(), Ok(()));
    });
    outcome.result.unwrap();
}

#[test]
fn faults_by_chance_come_from_the_seed() {
    let story = |world: &World| {
        world.network.set_faults(LinkFaults {
            cut: 1 << 14,
            stall_chance: 1 << 13,
            stall: Duration::from_secs(5),
            ..LinkFaults::default()
        });
        let bytes = bytes_of(200_000);
        let sent = world.send(&*world.near, &bytes);
        world.network.set_faults(LinkFaults::default());
        world.near.close();
        let (got, end) = world.receive_all(&*world.far);
        assert!(bytes.starts_with(&got));
        let is_whole = sent.is_ok() && end.is_ok();
        assert!(!is_whole || got.len() == bytes.len());
        is_whole
    };
    let whole = (0..40).filter(|seed| simulated(*seed, story).0).count();
    assert!((1..30).contains(&whole), "{whole} of 40 were not cut");
}

#[test]
fn a_closed_listener_does_not_end_the_next_one_at_its_address() {
    simulated(5, |world| {
        let listen = || world.network.listen(&address());
        assert!(listen().is_err(), "the first one still listens");
        world.listener.close();
        let next = listen().unwrap();
        assert!(is_over(world.listener.accept(world.soon())));
        // Closing it again, which a drop does too, changes nothing.
        world.listener.close();
        let near = world.network.connect(&address(), world.soon()).unwrap();
        let far = next.accept(world.soon()).unwrap().unwrap();
        world.send(&*near, b"x").unwrap();
        assert_eq!(world.receive(&*far).unwrap(), Received::Bytes(1));
    });
}

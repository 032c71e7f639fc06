//! Sockets over TCP and Unix, with the production runtime.

use super::*;

/// The production runtime, with its network.
#[derive(Clone)]
struct World {
    rt: Runtime,
    network: SocketNetwork,
}

impl World {
    fn new() -> World {
        let rt = Runtime::threads();
        let network = SocketNetwork::new(&rt);
        World { rt, network }
    }

    fn within_ms(&self, ms: u64) -> Instant {
        self.rt.now() + Duration::from_millis(ms)
    }

    fn soon(&self) -> Instant {
        self.within_ms(10_000)
    }

    fn receive(&self, from: &dyn Connection) -> LinkResult<Received> {
        from.receive(&mut [0; 8], self.soon())
    }

    fn receive_all(&self, from: &dyn Connection, len: usize) -> Vec<u8> {
        let (mut got, mut buf) = (Vec::new(), [0; 70_000]);
        while got.len() < len {
            match from.receive(&mut buf, self.soon()).unwrap() {
                Received::Bytes(n) => got.extend_from_slice(&buf[..n]),
                other => panic!("{other:?} after {} bytes", got.len()),
            }
        }
        got
    }
}

type Ends = (Arc<dyn Listener>, Arc<dyn Connection>, Arc<dyn Connection>);

/// Runs the test over TCP and over a Unix socket.
fn both(test: impl Fn(&World, Ends)) {
    let world = World::new();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    for address in [
        "127.0.0.1:0".to_string(),
        format!("unix:{}", path.display()),
    ] {
        let network = &world.network;
        let listener = network.listen(&address.parse().unwrap()).unwrap();
        let near = network.connect(&listener.address(), world.soon()).unwrap();
        let far = listener.accept(world.soon()).unwrap().unwrap();
        assert!(near.is_local() && far.is_local());
        test(&world, (listener, near, far));
    }
    assert!(!path.exists(), "the socket's file is removed");
}

#[test]
fn bytes_arrive_in_order_in_both_directions() {
    both(|world, (_, near, far)| {
        let bytes: Vec<u8> = (0..3_000_000u32).map(|i| (i * 7 % 251) as u8).collect();
        let sender = std::thread::spawn({
            let (world, near, bytes) = (world.clone(), near.clone(), bytes.clone());
            move || near.send(&[&bytes[..5], &[], &bytes[5..]], world.soon())
        });
        assert!(world.receive_all(&*far, bytes.len()) == bytes);
        sender.join().unwrap().unwrap();
        far.send(&[b"answer"], world.soon()).unwrap();
        assert_eq!(world.receive_all(&*near, 6), b"answer");
    });
}

#[test]
fn no_call_waits_longer_than_its_deadline() {
    both(|world, (listener, near, far)| {
        assert!(listener.accept(world.within_ms(1)).unwrap().is_none());
        let nothing = near.receive(&mut [0; 8], world.within_ms(1)).unwrap();
        assert_eq!(nothing, Received::Nothing);
        far.send(&[b"late"], world.soon()).unwrap();
        let late = world.receive_all(&*near, 4);
        assert_eq!(late, b"late", "a deadline ends no connection");
        // Nobody reads, so the buffers fill up.
        let bytes = vec![0; 64 << 20];
        let error = near.send(&[&bytes], world.within_ms(50)).unwrap_err();
        assert_eq!(error.kind, LinkErrorKind::TimedOut);
        let error = near.send(&[b"x"], world.soon()).unwrap_err();
        assert_eq!(error.kind, LinkErrorKind::Closed, "a part was sent");
    });
}

#[test]
fn closing_wakes_both_sides() {
    both(|world, (listener, near, far)| {
        let waiting = std::thread::spawn({
            let (world, near) = (world.clone(), near.clone());
            move || world.receive(&*near)
        });
        far.send(&[b"last"], world.soon()).unwrap();
        far.close();
        assert_eq!(waiting.join().unwrap().unwrap(), Received::Bytes(4));
        assert_eq!(world.receive(&*near).unwrap(), Received::End);
        let over = world.receive(&*far).unwrap_err();
        assert_eq!(over.kind, LinkErrorKind::Closed);
        let closed_here = std::thread::spawn({
            let (world, near) = (world.clone(), near.clone());
            move || {
                near.close();
                world.receive(&*near)
            }
        });
        let over = closed_here.join().unwrap().unwrap_err();
        assert_eq!(over.kind, LinkErrorKind::Closed);
        let accepting = std::thread::spawn({
            let (world, listener) = (world.clone(), listener.clone());
            move || listener.accept(world.soon()).map(|_| ())
        });
        std::thread::sleep(Duration::from_millis(20));
        listener.close();
        let over = accepting.join().unwrap().unwrap_err();
        assert_eq!(over.kind, LinkErrorKind::Closed);
    });
}

#[test]
fn nobody_else_may_listen_and_a_stale_socket_is_replaced() {
    use std::os::unix::fs::PermissionsExt;
    let World { rt, network } = World::new();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let address = Address::Unix(path.clone());
    let nobody = network.connect(&address, rt.now()).err().unwrap();
    assert_eq!(nobody.kind, LinkErrorKind::Refused);
    let listener = network.listen(&address).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let taken = |address: &Address| network.listen(address).err().unwrap().kind;
    assert_eq!(taken(&address), LinkErrorKind::AddressInUse);
    let tcp = network.listen(&"127.0.0.1:0".parse().unwrap()).unwrap();
    assert_eq!(taken(&tcp.address()), LinkErrorKind::AddressInUse);
    drop(listener);
    // A killed process leaves the file of its socket.
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    drop(network.listen(&address).unwrap());
    // A file that is not a socket stays.
    std::fs::write(&path, "data").unwrap();
    assert_eq!(taken(&address), LinkErrorKind::InvalidAddress);
    assert_eq!(std::fs::read(&path).unwrap(), b"data");
}

/// A listener that ends leaves the socket of another one that took its place.
#[test]
fn a_listener_removes_only_its_own_socket() {
    let world = World::new();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let address = Address::Unix(path.clone());
    let first = world.network.listen(&address).unwrap();
    std::fs::remove_file(&path).unwrap();
    let second = world.network.listen(&address).unwrap();
    drop(first);
    assert!(
        path.exists(),
        "the socket of the second listener is still there"
    );
    let near = world.network.connect(&address, world.soon()).unwrap();
    let far = second.accept(world.soon()).unwrap().unwrap();
    near.send(&[b"hello"], world.soon()).unwrap();
    assert_eq!(world.receive_all(&*far, 5), b"hello");
    drop(second);
    assert!(!path.exists());
}

/// While one process finds that a socket is stale, another one may already replace it.
#[test]
fn a_stale_socket_that_was_replaced_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    drop(UnixListener::bind(&path).unwrap());
    let stale = SocketFile::of(&path).unwrap();
    // The old file keeps its inode, so the new one has another.
    std::fs::rename(&path, dir.path().join("moved")).unwrap();
    let _listener = UnixListener::bind(&path).unwrap();
    stale.remove_stale().unwrap();
    stale.remove().unwrap();
    assert!(path.exists());
    SocketFile::of(&path).unwrap().remove_stale().unwrap();
    assert!(!path.exists());
}

/// The first address of a host must not use up the time of the others.
#[test]
fn each_address_of_a_host_gets_a_share_of_the_time() {
    let clock = Clock(Runtime::threads());
    let addresses: Vec<SocketAddr> = ["192.0.2.1:7", "192.0.2.2:7", "192.0.2.3:7"]
        .map(|address| address.parse().unwrap())
        .to_vec();
    let within = |left_ms: u64, first_that_answers: usize| {
        let limits = std::cell::RefCell::new(Vec::new());
        let connect = |_: &SocketAddr, limit: Duration| {
            limits.borrow_mut().push(limit);
            match limits.borrow().len() > first_that_answers {
                true => Ok(()),
                false => Err(io::ErrorKind::TimedOut.into()),
            }
        };
        let deadline = clock.0.now() + Duration::from_millis(left_ms);
        let connected = connect_any(&clock, &addresses, deadline, connect);
        let connected = connected.map(|(_, address)| *address).map_err(|e| e.kind());
        (connected, limits.into_inner())
    };
    // No time passes in the calls, so what the first ones do not need is left to the others.
    let (connected, limits) = within(60_000, 2);
    assert_eq!(connected, Ok(addresses[2]));
    for (limit, share_s) in limits.iter().zip([20, 30, 60]) {
        assert!(*limit <= Duration::from_secs(share_s), "{limits:?}");
    }
    let (connected, limits) = within(60_000, 3);
    assert_eq!((connected, limits.len()), (Err(io::ErrorKind::TimedOut), 3));
    // A share is long enough for an answer, and never longer than what is left.
    let ms = Duration::from_millis;
    assert_eq!(share_of(ms(300), 3), ADDRESS_TIME_MIN);
    assert_eq!(share_of(ms(100), 3), ms(100));
    let (connected, _) = within(0, 0);
    assert_eq!(connected, Err(io::ErrorKind::TimedOut));
}

#[test]
fn other_addresses_are_refused() {
    let world = World::new();
    for text in ["memory:device", "no.such.host.invalid:1"] {
        let address = text.parse().unwrap();
        let error = world.network.connect(&address, world.soon()).err().unwrap();
        assert!(error.to_string().contains(text), "{error}");
    }
}

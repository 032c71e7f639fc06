//! TLS with certificates on both sides, on a network in memory and on real sockets: what works, who
//! is refused and with which message, and how a damaged, cut or stalled connection ends.

mod tls_common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use siltstone::{ErrorKind, Options};
use siltstone_device::{
    ClientOptions, Device, FolderWanted, MemoryFolders, Placement, Server, ServerOptions, TlsFiles,
    TlsNetwork, open,
};
use siltstone_storage::link::{
    Address, Connection, LinkError, LinkErrorKind, LinkResult, MemoryNetwork, Network, Received,
    SocketNetwork,
};
use siltstone_storage::sim::{self, SimConfig};
use siltstone_storage::{Runtime, StorageError, StorageErrorKind};
use tls_common::{Authority, Tap};

/// The certificates of a device and of a host, signed by one authority.
struct World {
    runtime: Runtime,
    authority: Authority,
    inner: Arc<dyn Network>,
    address: Address,
}

impl World {
    fn memory(runtime: &Runtime) -> World {
        World::new(
            runtime,
            Arc::new(MemoryNetwork::new(runtime)),
            "memory:device",
        )
    }

    fn tcp() -> World {
        let runtime = Runtime::threads();
        let network = Arc::new(SocketNetwork::new(&runtime));
        World::new(&runtime, network, "127.0.0.1:0")
    }

    fn new(runtime: &Runtime, inner: Arc<dyn Network>, address: &str) -> World {
        World {
            runtime: runtime.clone(),
            authority: Authority::new(),
            inner,
            address: address.parse().unwrap(),
        }
    }

    /// A network with a certificate that has these names.
    fn network(&self, names: &[&str]) -> Arc<TlsNetwork> {
        self.of(&self.authority, names)
    }

    /// A network with a certificate of this authority, and with its CA file.
    fn of(&self, authority: &Authority, names: &[&str]) -> Arc<TlsNetwork> {
        self.network_of(&authority.files(names))
    }

    fn network_of(&self, files: &TlsFiles) -> Arc<TlsNetwork> {
        let network = TlsNetwork::new(&self.runtime, Arc::clone(&self.inner), files);
        Arc::new(network.unwrap())
    }

    fn device(&self) -> Arc<TlsNetwork> {
        self.network(&["device", "127.0.0.1"])
    }

    fn soon(&self) -> siltstone_storage::Instant {
        self.runtime.now() + Duration::from_secs(60)
    }

    /// The two ends of a connection, before the handshake.
    fn pair(&self, device: &dyn Network, host: &dyn Network) -> Pair {
        let listener = device.listen(&self.address).unwrap();
        let near = host.connect(&listener.address(), self.soon()).unwrap();
        let far = listener.accept(self.soon()).unwrap().unwrap();
        Pair { near, far }
    }

    /// Sends a greeting from `near` to `far`, and an answer. Returns what each side received.
    fn greet(&self, pair: &Pair) -> (LinkResult<Received>, LinkResult<Received>) {
        let (far, deadline) = (Arc::clone(&pair.far), self.soon());
        let answering = self.runtime.spawn("answer", move || {
            let received = far.receive(&mut [0; 64], deadline)?;
            far.send(&[b"answer"], deadline)?;
            Ok(received)
        });
        let answering = answering.unwrap();
        let near = &pair.near;
        let sent = near.send(&[b"greet", b"", b"ing"], deadline);
        let near = sent.and_then(|()| near.receive(&mut [0; 64], deadline));
        (near, answering.join().unwrap())
    }

    fn serve(&self, network: Arc<dyn Network>) -> Server {
        let folders = Arc::new(MemoryFolders::new(&self.runtime));
        let options = ServerOptions::default();
        let addresses = [self.address.clone()];
        Server::start(&self.runtime, &network, &addresses, folders, options).unwrap()
    }

    fn attach(
        &self,
        network: Arc<dyn Network>,
        address: Address,
    ) -> Result<Arc<Device>, StorageError> {
        let folder = FolderWanted::Named {
            name: "db".into(),
            create: true,
        };
        let options = ClientOptions {
            time_limit: Duration::from_millis(300),
            ..ClientOptions::default()
        };
        Device::connect(&self.runtime, network, address, folder, options)
    }
}

struct Pair {
    near: Arc<dyn Connection>,
    far: Arc<dyn Connection>,
}

fn both(test: impl Fn(&World)) {
    test(&World::memory(&Runtime::threads()));
    test(&World::tcp());
}

/// The kind and the text of a refusal.
fn refusal(got: LinkResult<Received>) -> (LinkErrorKind, String) {
    let error: LinkError = got.unwrap_err();
    let text = error.to_string();
    assert!(!text.contains('\n'), "{text}");
    (error.kind, text)
}

#[track_caller]
fn assert_refused(got: LinkResult<Received>, said: &[&str]) {
    let (kind, text) = refusal(got);
    assert_eq!(kind, LinkErrorKind::PermissionDenied, "{text}");
    for said in said {
        assert!(text.contains(said), "`{said}` is missing: {text}");
    }
}

#[test]
fn a_folder_on_a_device_is_used_over_tls() {
    both(|world| {
        let server = world.serve(world.device());
        let address = server.addresses()[0].clone();
        let device = world.attach(world.network(&["host"]), address).unwrap();
        let storage = device.storage();
        let lease = storage.lease("store").unwrap();
        let bytes: Vec<u8> = (0..3_000_000u32).map(|i| (i * 7 % 251) as u8).collect();
        let file = storage.create(lease.epoch(), "file").unwrap();
        file.append(&[&bytes]).unwrap();
        file.sync().unwrap();
        storage.sync_dir(lease.epoch()).unwrap();
        let mut read = vec![0; bytes.len()];
        storage.open("file").unwrap().read_at(0, &mut read).unwrap();
        assert!(read == bytes);
        assert_eq!(storage.list().unwrap().len(), 1);
        drop((file, lease));
        drop(storage);
        device.close();
        server.stop();
    });
}

#[test]
fn a_store_is_opened_over_tls() {
    let world = World::tcp();
    let server = world.serve(world.device());
    let url = format!("silt://{}/birds", server.addresses()[0]);
    let files = world.authority.files(&["host"]);
    let placement = Placement {
        tls: Some((*files).clone()),
        ..Placement::default()
    };
    let store = open(&url, Options::default(), &placement).unwrap();
    store
        .default_keyspace()
        .unwrap()
        .put("wren", "9 g")
        .unwrap();
    store.close().unwrap();
    let store = open(&url, Options::default(), &placement).unwrap();
    let value = store.default_keyspace().unwrap().get("wren").unwrap();
    assert_eq!(value.as_deref(), Some(&b"9 g"[..]));
    store.close().unwrap();
    let stranger = Authority::new().files(&["host"]);
    let stranger = Placement {
        tls: Some((*stranger).clone()),
        ..Placement::default()
    };
    let error = open(&url, Options::default(), &stranger).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    let text = error.to_string();
    assert!(
        text.contains("use the CA file") && text.contains("on both sides"),
        "{text}"
    );
    let missing = Placement {
        tls: Some(TlsFiles {
            ca: "/no/such/file".into(),
            ..(*files).clone()
        }),
        ..Placement::default()
    };
    let error = open(&url, Options::default(), &missing).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    server.stop();
}

#[test]
fn large_transfers_in_both_directions_at_once() {
    both(|world| {
        let Pair { near, far } = world.pair(&*world.device(), &*world.network(&["host"]));
        let bytes = |step: u32| (0..4_000_000u32).map(|i| (i * step % 251) as u8).collect();
        let deadline = world.soon();
        let ways = [(near.clone(), far.clone(), 7), (far, near, 11)];
        let tasks = ways.map(|(from, to, step)| {
            let sent: Vec<u8> = bytes(step);
            let expected = sent.clone();
            let sender = world.runtime.spawn("send", move || {
                for part in sent.chunks(1_000_000) {
                    from.send(&[&part[..3], &part[3..50], &part[50..]], deadline)?;
                }
                LinkResult::Ok(())
            });
            let receiver = world.runtime.spawn("receive", move || {
                let mut all = vec![0; expected.len()];
                let mut at = 0;
                while at < all.len() {
                    match to.receive(&mut all[at..], deadline).unwrap() {
                        Received::Bytes(len) => at += len,
                        other => panic!("{other:?}"),
                    }
                }
                assert!(all == expected);
            });
            (sender.unwrap(), receiver.unwrap())
        });
        for (sender, receiver) in tasks {
            sender.join().unwrap().unwrap();
            receiver.join().unwrap();
        }
    });
}

#[test]
fn each_side_knows_the_name_in_the_certificate_of_the_other() {
    both(|world| {
        let pair = world.pair(&*world.device(), &*world.network(&["host", "other"]));
        assert_eq!(pair.far.certified_name(), None);
        assert!(pair.far.is_local());
        let (near, far) = world.greet(&pair);
        assert_eq!(
            (near.unwrap(), far.unwrap()),
            (Received::Bytes(6), Received::Bytes(8))
        );
        assert_eq!(pair.far.certified_name().as_deref(), Some("host"));
        assert_eq!(pair.near.certified_name().as_deref(), Some("device"));
        // For a certificate without names, the name of its subject counts.
        let host = world.network_of(&world.authority.files_of_subject("wren"));
        let pair = world.pair(&*world.device(), &*host);
        let (near, _) = world.greet(&pair);
        near.unwrap();
        assert_eq!(pair.far.certified_name().as_deref(), Some("wren"));
    });
}

#[test]
fn a_client_of_another_authority_is_refused() {
    both(|world| {
        let files = Authority::new()
            .files(&["host"])
            .with_ca_of(&world.authority);
        let pair = world.pair(&*world.device(), &*world.network_of(&files));
        let (near, far) = world.greet(&pair);
        assert_refused(
            far,
            &[
                "not signed by an authority in the CA file",
                "use the CA file",
            ],
        );
        assert_refused(near, &["does not know the authority", "use a certificate"]);
    });
}

#[test]
fn a_server_of_another_authority_is_refused() {
    both(|world| {
        let stranger = world.of(&Authority::new(), &["device", "127.0.0.1"]);
        let (near, far) = world.greet(&world.pair(&*stranger, &*world.network(&["host"])));
        assert_refused(
            near,
            &[
                "not signed by an authority in the CA file",
                "use the CA file",
            ],
        );
        assert_refused(far, &["does not know the authority"]);
    });
}

#[test]
fn a_server_of_another_name_is_refused() {
    both(|world| {
        let other = world.network(&["other", "127.0.0.2"]);
        let (near, far) = world.greet(&world.pair(&*other, &*world.network(&["host"])));
        assert_refused(near, &["is not for the name", "other", "in the address"]);
        assert_refused(far, &["refused the certificate of this side"]);
    });
}

#[test]
fn expired_certificates_are_refused() {
    both(|world| {
        let expired = world.network_of(&world.authority.expired(&["device", "127.0.0.1"]));
        let valid = world.device();
        let (near, far) = world.greet(&world.pair(&*expired, &*valid));
        assert_refused(near, &["the peer's certificate has expired", "renew it"]);
        assert_refused(
            far,
            &["the certificate of this side has expired", "renew it"],
        );
        let (near, far) = world.greet(&world.pair(&*valid, &*expired));
        assert_refused(far, &["the peer's certificate has expired", "renew it"]);
        assert_refused(
            near,
            &["the certificate of this side has expired", "renew it"],
        );
    });
}

#[test]
fn certificates_in_between_are_sent() {
    both(|world| {
        let files = |name| world.authority.files_through_another(&[name, "127.0.0.1"]);
        let (device, host) = (files("device"), files("host"));
        let (device, host) = (world.network_of(&device), world.network_of(&host));
        let (near, far) = world.greet(&world.pair(&*device, &*host));
        near.unwrap();
        far.unwrap();
    });
}

#[test]
fn certificates_for_the_other_side_only_are_refused() {
    both(|world| {
        let files = world.authority.for_servers_only(&["host"]);
        let host = world.network_of(&files);
        let (near, far) = world.greet(&world.pair(&*world.device(), &*host));
        assert_refused(
            far,
            &["may not be used for this side", "extended key usage"],
        );
        near.unwrap_err();
    });
}

#[test]
fn a_client_without_a_certificate_is_refused() {
    let world = World::tcp();
    let listener = world.device().listen(&world.address).unwrap();
    let stream = TcpStream::connect(listener.address().to_string()).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let far = listener.accept(world.soon()).unwrap().unwrap();
    let deadline = world.soon();
    let serving = move || far.receive(&mut [0; 64], deadline);
    let serving = world.runtime.spawn("serve", serving).unwrap();
    let mut stream = rustls::StreamOwned::new(world.authority.without_certificate(), stream);
    stream.write_all(b"hello").unwrap();
    let told = stream.read(&mut [0; 64]).unwrap_err();
    assert!(told.to_string().contains("CertificateRequired"), "{told}");
    assert_refused(
        serving.join().unwrap(),
        &["sent no certificate", "give it one"],
    );
}

#[test]
fn a_session_that_is_refused_fails_at_once() {
    both(|world| {
        let server = world.serve(world.device());
        let address = server.addresses()[0].clone();
        let stranger = world.of(&Authority::new(), &["host"]);
        let error = world.attach(stranger, address.clone()).err().unwrap();
        assert_eq!(error.kind, StorageErrorKind::PermissionDenied, "{error}");
        let files = Authority::new()
            .files(&["host"])
            .with_ca_of(&world.authority);
        let stranger = world.network_of(&files);
        let error = world.attach(stranger, address).err().unwrap();
        assert_eq!(error.kind, StorageErrorKind::PermissionDenied, "{error}");
        assert!(error.to_string().contains("use a certificate"), "{error}");
        server.stop();
    });
}

#[test]
fn a_side_without_tls_is_told_so() {
    both(|world| {
        let server = world.serve(world.device());
        let address = server.addresses()[0].clone();
        let error = world
            .attach(Arc::clone(&world.inner), address)
            .err()
            .unwrap();
        assert_eq!(error.kind, StorageErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("speaks TLS only"), "{error}");
        server.stop();
        let server = world.serve(Arc::clone(&world.inner));
        let address = server.addresses()[0].clone();
        let host = world.network(&["host"]);
        let error = world.attach(host, address).err().unwrap();
        assert_eq!(error.kind, StorageErrorKind::Unreachable, "{error}");
        assert!(error.to_string().contains("TLS handshake"), "{error}");
        server.stop();
    });
}

#[test]
fn a_handshake_that_stalls_ends_by_its_deadline() {
    both(|world| {
        let device = world.device();
        let listener = device.listen(&world.address).unwrap();
        // Nobody performs the other half of the handshake.
        let address = listener.address();
        let near = world
            .network(&["host"])
            .connect(&address, world.soon())
            .unwrap();
        let soon = world.runtime.now() + Duration::from_millis(50);
        let error = near.send(&[b"greeting"], soon).unwrap_err();
        assert_eq!(error.kind, LinkErrorKind::TimedOut);
        let error = near.receive(&mut [0; 8], world.soon()).unwrap_err();
        assert_eq!(error.kind, LinkErrorKind::Closed, "{error}");
        // This peer says nothing.
        let silent = world.inner.connect(&address, world.soon()).unwrap();
        let first = listener.accept(world.soon()).unwrap().unwrap();
        let (kind, text) = refusal(first.receive(&mut [0; 8], world.soon()));
        assert_eq!(
            kind,
            LinkErrorKind::Closed,
            "the other side gave up: {text}"
        );
        let far = listener.accept(world.soon()).unwrap().unwrap();
        let soon = world.runtime.now() + Duration::from_millis(50);
        assert_eq!(far.receive(&mut [0; 8], soon).unwrap(), Received::Nothing);
        // A task that waits wakes up when its connection is closed.
        let (waiting, deadline) = (Arc::clone(&far), world.soon());
        let waiting = move || waiting.receive(&mut [0; 8], deadline);
        let waiting = world.runtime.spawn("wait", waiting).unwrap();
        far.close();
        let (kind, text) = refusal(waiting.join().unwrap());
        assert_eq!(kind, LinkErrorKind::Closed, "{text}");
        silent.close();
    });
}

#[test]
fn others_are_served_while_handshakes_stall() {
    let config = SimConfig {
        max_steps: 2_000_000,
        ..SimConfig::new(1)
    };
    let outcome = sim::run(config, |runtime| {
        let world = World::memory(&runtime);
        let server = world.serve(world.device());
        let connect = || world.inner.connect(&world.address, world.soon()).unwrap();
        let stalled: Vec<_> = (0..8).map(|_| connect()).collect();
        // This is a record that announces more bytes than arrive.
        stalled[0]
            .send(&[&[0x16, 3, 1, 0x40, 0]], world.soon())
            .unwrap();
        let begun = runtime.now();
        let host = world.network(&["host"]);
        let device = world.attach(host, world.address.clone()).unwrap();
        let storage = device.storage();
        drop(storage.lease("store").unwrap());
        assert!(runtime.now().since(begun) < Duration::from_secs(5));
        // The server ends the stalled connections.
        for connection in stalled {
            let received = connection.receive(&mut [0; 64], world.soon());
            assert!(
                matches!(received, Ok(Received::End) | Err(_)),
                "{received:?}"
            );
            assert!(runtime.now().since(begun) < Duration::from_secs(20));
        }
        drop(storage);
        device.close();
        server.stop();
    });
    outcome.unwrap();
}

#[test]
fn bytes_that_are_no_handshake_end_the_connection() {
    let world = World::memory(&Runtime::threads());
    let listener = world.device().listen(&world.address).unwrap();
    // These are records of a handshake (a message of 16 MiB that never ends, one of an unknown
    // kind, and an empty one), encrypted bytes, an alert, and a record that is too long.
    let record = |kind, body: &[u8]| {
        let mut bytes = vec![kind, 3, 3];
        bytes.extend((body.len() as u16).to_be_bytes());
        bytes.extend(body);
        bytes
    };
    let mut endless = vec![0xa5; 16_000];
    endless[..4].copy_from_slice(&[1, 0xff, 0xff, 0xff]);
    let mut all = vec![
        record(0x16, &endless),
        record(0x16, &[0x77, 0, 0, 2, 1, 1]),
        record(0x16, &[]),
        record(0x17, &[7; 100]),
        record(0x15, &[2, 40]),
        record(0x16, &[1; 40_000]),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
    ];
    all.extend((0..200u64).map(|seed| {
        let mut word = seed;
        let mut next = || {
            word = word
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (word >> 56) as u8
        };
        let body: Vec<u8> = (0..64).map(|_| next()).collect();
        record(0x16, &body)
    }));
    for bytes in all {
        let near = world.inner.connect(&world.address, world.soon()).unwrap();
        let far = listener.accept(world.soon()).unwrap().unwrap();
        // More bytes than a connection without a certificate may have.
        for _ in 0..6 {
            if near.send(&[&bytes], world.soon()).is_err() {
                break;
            }
        }
        near.close();
        far.receive(&mut [0; 64], world.soon()).unwrap_err();
        assert_eq!(far.certified_name(), None);
    }
}

#[test]
fn a_bit_that_is_flipped_ends_the_connection() {
    both(|world| {
        let tap = Tap::new(&world.inner);
        let files = world.authority.files(&["host"]);
        let network: Arc<dyn Network> = Arc::new(tap.clone());
        let host = TlsNetwork::new(&world.runtime, network, &files).unwrap();
        let pair = world.pair(&*world.device(), &host);
        world.greet(&pair).0.unwrap();
        tap.flip_in(10);
        pair.near.send(&[b"pay 1"], world.soon()).unwrap();
        let (kind, text) = refusal(pair.far.receive(&mut [0; 64], world.soon()));
        assert_eq!(kind, LinkErrorKind::Closed);
        assert!(text.contains("bytes were changed"), "{text}");
        let again = refusal(pair.far.receive(&mut [0; 64], world.soon()));
        assert_eq!(again.0, LinkErrorKind::Closed);
        pair.far.send(&[b"x"], world.soon()).unwrap_err();
        let (_, text) = refusal(pair.near.receive(&mut [0; 64], world.soon()));
        assert!(text.contains("BadRecordMac"), "{text}");
    });
}

#[test]
fn only_a_close_is_a_clean_end() {
    both(|world| {
        let pair = world.pair(&*world.device(), &*world.network(&["host"]));
        world.greet(&pair).0.unwrap();
        pair.near.send(&[b"last"], world.soon()).unwrap();
        pair.near.close();
        let receive = || pair.far.receive(&mut [0; 64], world.soon());
        assert_eq!(receive().unwrap(), Received::Bytes(4));
        assert_eq!(receive().unwrap(), Received::End);
        assert_eq!(receive().unwrap(), Received::End);
        let (kind, _) = refusal(pair.near.receive(&mut [0; 64], world.soon()));
        assert_eq!(kind, LinkErrorKind::Closed);
        pair.near.send(&[b"x"], world.soon()).unwrap_err();

        let pair = world.pair(&*world.device(), &*world.network(&["host"]));
        world.greet(&pair).0.unwrap();
        pair.near.send(&[b"last"], world.soon()).unwrap();
        // This is what happens if the process is killed.
        drop(pair.near);
        let receive = || pair.far.receive(&mut [0; 64], world.soon());
        assert_eq!(receive().unwrap(), Received::Bytes(4));
        let (kind, text) = refusal(receive());
        assert_eq!(kind, LinkErrorKind::Closed);
        assert!(text.contains("was cut"), "{text}");
        assert_eq!(refusal(receive()).0, LinkErrorKind::Closed);
    });
}

#[test]
fn closing_wakes_a_call_that_waits() {
    both(|world| {
        let pair = world.pair(&*world.device(), &*world.network(&["host"]));
        world.greet(&pair).0.unwrap();
        let (waiting, deadline) = (Arc::clone(&pair.near), world.soon());
        let waiting = move || waiting.receive(&mut [0; 8], deadline);
        let waiting = world.runtime.spawn("wait", waiting).unwrap();
        pair.near.close();
        assert_eq!(refusal(waiting.join().unwrap()).0, LinkErrorKind::Closed);
    });
}

#[test]
fn files_that_do_not_fit_are_named() {
    let world = World::memory(&Runtime::threads());
    let good = world.authority.files(&["host"]);
    let said = |files: &siltstone_device::TlsFiles| {
        let network = TlsNetwork::new(&world.runtime, Arc::clone(&world.inner), files);
        network.err().unwrap().to_string()
    };
    let mut files = (*good).clone();
    files.ca = "/no/such/file".into();
    assert!(
        said(&files).contains("read /no/such/file"),
        "{}",
        said(&files)
    );
    let mut files = (*good).clone();
    files.certificate = good.key.clone();
    assert!(
        said(&files).contains("has no certificate in PEM"),
        "{}",
        said(&files)
    );
    let mut files = (*good).clone();
    files.key = good.ca.clone();
    assert!(
        said(&files).contains("has no private key in PEM"),
        "{}",
        said(&files)
    );
    let other = world.authority.files(&["host"]);
    let mut files = (*good).clone();
    files.key = other.key.clone();
    assert!(
        said(&files).contains("is not that of the first certificate"),
        "{}",
        said(&files)
    );
    let damaged = other.certificate.clone();
    std::fs::write(
        &damaged,
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    )
    .unwrap();
    let mut files = (*good).clone();
    files.certificate = damaged.clone();
    assert!(said(&files).contains("cannot be used"), "{}", said(&files));
    files.ca = damaged;
    assert!(said(&files).contains("cannot be used"), "{}", said(&files));
}

//! Who may use what on a device with TLS: names in certificates and their folders, tokens that
//! belong to a certificate, and the number of connections of one certificate.

mod tls_common;

use std::sync::Arc;
use std::time::Duration;

use siltstone_device::wire::{ClientHello, FolderWanted, ServerHello};
use siltstone_device::{
    Access, ClientOptions, Device, MemoryFolders, RefusedPeer, RefusedPeers, Server, ServerOptions,
    TlsFiles, TlsNetwork,
};
use siltstone_storage::link::{Address, Connection, MemoryNetwork, Network, Received};
use siltstone_storage::{Runtime, StorageError, StorageErrorKind};
use tls_common::Authority;

const FOLDERS: &str = "wren: birds eggs-*\nrobin: birds\n";

struct World {
    runtime: Runtime,
    authority: Authority,
    inner: Arc<dyn Network>,
    address: Address,
    server: Option<Server>,
}

impl World {
    fn new(options: ServerOptions) -> World {
        let runtime = Runtime::threads();
        let mut world = World {
            authority: Authority::new(),
            inner: Arc::new(MemoryNetwork::new(&runtime)),
            address: "memory:device".parse().unwrap(),
            runtime,
            server: None,
        };
        let network = world.network(&world.authority.files(&["device"]));
        let folders = Arc::new(MemoryFolders::new(&world.runtime));
        let addresses = [world.address.clone()];
        let server = Server::start(&world.runtime, &network, &addresses, folders, options);
        world.server = Some(server.unwrap());
        world
    }

    fn network(&self, files: &TlsFiles) -> Arc<dyn Network> {
        let inner = Arc::clone(&self.inner);
        Arc::new(TlsNetwork::new(&self.runtime, inner, files).unwrap())
    }

    /// A network of a host whose certificate has this name.
    fn host(&self, name: &str) -> Arc<dyn Network> {
        self.network(&self.authority.files(&[name]))
    }

    fn attach(
        &self,
        network: &Arc<dyn Network>,
        folder: FolderWanted,
    ) -> Result<Arc<Device>, StorageError> {
        let options = ClientOptions {
            time_limit: Duration::from_secs(20),
            ..ClientOptions::default()
        };
        let address = self.address.clone();
        Device::connect(&self.runtime, Arc::clone(network), address, folder, options)
    }

    /// The answer to a hello with this token, and the connection.
    fn greet(
        &self,
        network: &Arc<dyn Network>,
        token: [u8; 16],
    ) -> (Arc<dyn Connection>, ServerHello) {
        let deadline = self.runtime.now() + Duration::from_secs(20);
        let connection = network.connect(&self.address, deadline).unwrap();
        let hello = ClientHello {
            token,
            folder: named("birds"),
            host: "a host".into(),
        };
        connection.send(&[&hello.encode()], deadline).unwrap();
        let mut all = Vec::new();
        loop {
            let mut buf = [0; 4096];
            match connection.receive(&mut buf, deadline) {
                Ok(Received::Bytes(len)) => all.extend_from_slice(&buf[..len]),
                other => panic!("{other:?} after {} bytes", all.len()),
            }
            if let Ok((_, answer)) = ServerHello::decode(&all) {
                return (connection, answer);
            }
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}

fn named(name: &str) -> FolderWanted {
    FolderWanted::Named {
        name: name.into(),
        create: true,
    }
}

fn with_access() -> ServerOptions {
    ServerOptions {
        access: Some(Access::parse(FOLDERS).unwrap()),
        keep_bytes: 1 << 20,
        ..ServerOptions::default()
    }
}

#[track_caller]
fn denied(result: Result<Arc<Device>, StorageError>, said: &[&str]) {
    let error = result.err().expect("it is refused");
    assert_eq!(error.kind, StorageErrorKind::PermissionDenied, "{error}");
    let text = error.to_string();
    assert!(!text.contains('\n'), "{text}");
    for said in said {
        assert!(text.contains(said), "`{said}` is missing: {text}");
    }
}

#[test]
fn a_name_uses_the_folders_that_its_line_has() {
    let world = World::new(with_access());
    let (wren, robin) = (world.host("wren"), world.host("robin"));
    for (host, folder) in [(&wren, "birds"), (&wren, "eggs-1"), (&robin, "birds")] {
        world.attach(host, named(folder)).unwrap().close();
    }
    denied(
        world.attach(&robin, named("eggs-1")),
        &["`robin`", "`eggs-1`", "access list"],
    );
    denied(world.attach(&wren, named("eggs")), &["`wren`", "`eggs`"]);
    // Every listed host may do work that needs no folder of the device.
    for folder in [FolderWanted::None, FolderWanted::Scratch] {
        world.attach(&robin, folder.clone()).unwrap().close();
        denied(
            world.attach(&world.host("jay"), folder),
            &["`jay`", "not in the device's access list"],
        );
    }
    // The name of the subject counts if the certificate has no other name.
    let subject = world.network(&world.authority.files_of_subject("robin"));
    world.attach(&subject, named("birds")).unwrap().close();
    denied(world.attach(&subject, named("eggs-1")), &["`robin`"]);
}

/// The operator of a device learns whom it refuses, and why.
#[test]
fn refused_peers_are_noted() {
    let world = World::new(with_access());
    let server = world.server.as_ref().unwrap();
    let wanted = FolderWanted::Named {
        name: "birds".into(),
        create: false,
    };
    let error = world.attach(&world.host("wren"), wanted).err().unwrap();
    assert_eq!(error.kind, StorageErrorKind::NotFound, "{error}");
    assert_eq!(server.take_refused(), RefusedPeers::default());
    denied(world.attach(&world.host("jay"), named("birds")), &["`jay`"]);
    let refused = server.take_refused();
    let jay = |peer: &RefusedPeer| peer.host.is_some() && peer.reason.contains("`jay`");
    assert!(refused.first.iter().any(jay), "{refused:?}");
    // The two sides do not know each other's authority.
    let stranger = world.network(&Authority::new().files(&["wren"]));
    assert!(world.attach(&stranger, named("birds")).is_err());
    let begun = world.runtime.now();
    loop {
        let refused = server.take_refused();
        let is_named = |peer: &RefusedPeer| peer.reason.contains("authority");
        if refused.first.iter().any(is_named) {
            break;
        }
        let waited = world.runtime.now().since(begun);
        assert!(waited < Duration::from_secs(60), "{refused:?}");
        world.runtime.sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_refused_host_creates_no_folder() {
    let world = World::new(with_access());
    denied(
        world.attach(&world.host("robin"), named("eggs-2")),
        &["`eggs-2`"],
    );
    let wanted = FolderWanted::Named {
        name: "eggs-2".into(),
        create: false,
    };
    let error = world.attach(&world.host("wren"), wanted).err().unwrap();
    assert_eq!(error.kind, StorageErrorKind::NotFound, "{error}");
}

#[test]
fn a_token_is_good_for_one_certificate_only() {
    // This also holds without an access list.
    for options in [with_access(), ServerOptions::default()] {
        let world = World::new(options);
        let wren = world.host("wren");
        let (kept, answer) = world.greet(&wren, [9; 16]);
        assert!(matches!(answer, ServerHello::Welcome(_)), "{answer:?}");
        // Another connection of the same host belongs to the same session.
        let (again, second) = world.greet(&wren, [9; 16]);
        match (&answer, &second) {
            (ServerHello::Welcome(a), ServerHello::Welcome(b)) => assert_eq!(a.state, b.state),
            other => panic!("{other:?}"),
        }
        // Another host, and even another certificate with the same name, are refused.
        for name in ["robin", "wren"] {
            let (connection, answer) = world.greet(&world.host(name), [9; 16]);
            let ServerHello::Refused(refusal) = answer else {
                panic!("{name}: {answer:?}");
            };
            assert_eq!(refusal.kind, StorageErrorKind::PermissionDenied);
            assert!(
                refusal.reason.contains("another certificate"),
                "{refusal:?}"
            );
            assert!(!refusal.reason.contains('\n'), "{refusal:?}");
            connection.close();
        }
        kept.close();
        again.close();
    }
}

#[test]
fn connections_of_one_certificate_are_bounded() {
    let world = World::new(ServerOptions {
        certificate_connections_max: 3,
        ..ServerOptions::default()
    });
    let wren = world.host("wren");
    let greeted: Vec<_> = (0..4).map(|n| world.greet(&wren, [n; 16])).collect();
    for (_, answer) in &greeted[..3] {
        assert!(matches!(answer, ServerHello::Welcome(_)), "{answer:?}");
    }
    let ServerHello::Refused(refusal) = &greeted[3].1 else {
        panic!("{:?}", greeted[3].1);
    };
    assert_eq!(refusal.kind, StorageErrorKind::TooManyOpen, "{refusal:?}");
    // Another host has connections of its own.
    let (connection, answer) = world.greet(&world.host("robin"), [77; 16]);
    assert!(matches!(answer, ServerHello::Welcome(_)), "{answer:?}");
    connection.close();
    greeted
        .iter()
        .for_each(|(connection, _)| connection.close());
    // A connection that ended makes room.
    loop {
        let (connection, answer) = world.greet(&wren, [0; 16]);
        connection.close();
        match answer {
            ServerHello::Welcome(_) => break,
            ServerHello::Refused(_) => world.runtime.sleep(Duration::from_millis(10)),
        }
    }
}

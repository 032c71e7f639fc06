//! A peer of a device that may send anything.

use std::sync::Arc;
use std::time::Duration;

use siltstone_device::ServerOptions;
use siltstone_device::wire::answer::{Answer, WORKING};
use siltstone_device::wire::frame::{FrameHeader, HEADER_BYTES, Label, header_of};
use siltstone_device::wire::hello::Welcome;
use siltstone_device::wire::{ClientHello, FolderWanted, Request, ServerHello};
use siltstone_storage::Runtime;
use siltstone_storage::link::{Connection, Network, Received};
use siltstone_storage::sim::{self, SimConfig};

use super::{Setup, address};

/// A connection of a peer that may send anything.
pub struct Peer {
    pub runtime: Runtime,
    pub connection: Arc<dyn Connection>,
}

impl Peer {
    pub fn connect(setup: &Setup) -> Peer {
        Peer::over(&setup.runtime, &setup.network)
    }

    pub fn over(runtime: &Runtime, network: &dyn Network) -> Peer {
        let runtime = runtime.clone();
        let deadline = runtime.now() + Duration::from_secs(5);
        let connection = network.connect(&address(), deadline).unwrap();
        Peer {
            runtime,
            connection,
        }
    }

    /// A peer that has said hello and has the lease of a store. Its next request has number 2.
    pub fn with_lease(setup: &Setup) -> Peer {
        let peer = Peer::connect(setup);
        peer.greet([5; 16]);
        let lease = Request::Lease {
            id: [9; 16],
            name: "store".into(),
            shared: false,
            again: None,
        };
        peer.ask(1, &lease, b"");
        peer.receive(Duration::from_millis(50));
        peer
    }

    pub fn send(&self, bytes: &[u8]) -> bool {
        let deadline = self.runtime.now() + Duration::from_secs(5);
        self.connection.send(&[bytes], deadline).is_ok()
    }

    /// Returns the bytes that arrive within a time, and whether the connection ended.
    pub fn receive(&self, time: Duration) -> (Vec<u8>, bool) {
        let deadline = self.runtime.now() + time;
        let (mut all, mut buf) = (Vec::new(), [0; 4096]);
        loop {
            match self.connection.receive(&mut buf, deadline) {
                Ok(Received::Bytes(len)) => all.extend_from_slice(&buf[..len]),
                Ok(Received::Nothing) => return (all, false),
                Ok(Received::End) | Err(_) => return (all, true),
            }
        }
    }

    /// Says hello, and waits for the welcome.
    pub fn greet(&self, token: [u8; 16]) -> Welcome {
        let hello = ClientHello {
            token,
            folder: FolderWanted::Named {
                name: "db".into(),
                create: true,
            },
            host: "a stranger".into(),
        };
        assert!(self.send(&hello.encode()));
        let (bytes, _) = self.receive(Duration::from_millis(100));
        let (_, answer) = ServerHello::decode(&bytes).unwrap();
        match answer {
            ServerHello::Welcome(welcome) => welcome,
            refused => panic!("{refused:?}"),
        }
    }

    /// The next answer, if one arrives within five seconds.
    pub fn answer(&self) -> Option<Answer> {
        let (bytes, _) = self.receive(Duration::from_secs(5));
        let mut bytes = &bytes[..];
        while let Some(header) = bytes.first_chunk() {
            let header = FrameHeader::decode(header).unwrap();
            let body = &bytes[HEADER_BYTES..HEADER_BYTES + header.body_len()];
            bytes = &bytes[HEADER_BYTES + header.body_len()..];
            if header.kind != WORKING {
                let fields = &body[..header.fields_len as usize];
                return Some(Answer::decode(header.kind, fields).unwrap());
            }
        }
        None
    }

    pub fn ask(&self, number: u64, request: &Request, bulk: &[u8]) -> bool {
        let label = Label {
            number,
            kind: request.kind(),
            flags: 0,
        };
        let fields = request.encode();
        let header = header_of(label, &fields, &[bulk]).encode();
        self.send(&[&header[..], &fields, bulk].concat())
    }
}

/// Runs a test in simulation, with a device.
pub fn with_device(seed: u64, test: impl FnOnce(&mut Setup) + Send + 'static) {
    let config = SimConfig {
        max_steps: 2_000_000,
        ..SimConfig::new(seed)
    };
    let outcome = sim::run(config, move |runtime| {
        let options = ServerOptions {
            connections_max: 20,
            ..ServerOptions::default()
        };
        let mut setup = Setup::new(&runtime, options);
        test(&mut setup);
        // A correct host is served as usual.
        let device = setup.connect("honest");
        let storage = device.storage();
        let lease = storage.lease("store").unwrap();
        let file = storage.create(lease.epoch(), "a").unwrap();
        file.append(&[b"bytes"]).unwrap();
        file.sync().unwrap();
        assert_eq!(storage.read_small("a").unwrap(), b"bytes");
        lease.release().unwrap();
        device.close();
        setup.stop();
    });
    if let Err(failure) = outcome.result {
        panic!("{failure}");
    }
}

/// Makes a request on a connection of its own, and returns the answer.
pub fn ask_alone(setup: &Setup, token: u8, request: &Request, bulk: &[u8]) -> Option<Answer> {
    let peer = Peer::connect(setup);
    peer.greet([token; 16]);
    assert!(peer.ask(1, request, bulk));
    peer.answer()
}

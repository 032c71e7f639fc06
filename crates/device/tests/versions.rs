//! Hosts and devices of different releases. Whichever side is older, the host gets a message of one
//! line that says which versions of the protocol both sides support, and what to do.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{address, simulated};
use siltstone_device::wire::hello::{HELLO_HEAD_BYTES, Refusal, VERSIONS, hello_len};
use siltstone_device::wire::{ClientHello, FolderWanted, ServerHello};
use siltstone_device::{ClientOptions, Device};
use siltstone_storage::link::{Connection, MemoryNetwork, Network, Received};
use siltstone_storage::sim::{self, SimConfig};
use siltstone_storage::{Runtime, StorageError, StorageErrorKind};
use siltstone_table::checksum::crc32c;

/// The versions of a release that does not understand this one.
const OTHERS: (u16, u16) = (VERSIONS.1 + 1, VERSIONS.1 + 3);

/// A hello with other versions, and with a checksum that matches.
fn with_versions(hello: &[u8], versions: (u16, u16)) -> Vec<u8> {
    let mut bytes = hello[..hello.len() - 4].to_vec();
    bytes[8..10].copy_from_slice(&versions.0.to_le_bytes());
    bytes[10..12].copy_from_slice(&versions.1.to_le_bytes());
    let crc = crc32c(&bytes);
    bytes.extend(crc.to_le_bytes());
    bytes
}

/// The hello that arrives on a connection.
fn receive_hello(runtime: &Runtime, connection: &dyn Connection) -> Vec<u8> {
    let deadline = runtime.now() + Duration::from_secs(5);
    let (mut all, mut buf) = (Vec::new(), [0; 4096]);
    loop {
        match connection.receive(&mut buf, deadline).expect("a hello") {
            Received::Bytes(len) => all.extend_from_slice(&buf[..len]),
            _ => panic!("a hello of {} bytes is too short", all.len()),
        }
        let head = all.first_chunk::<HELLO_HEAD_BYTES>();
        let len = head.map(|head| hello_len(head).expect("a hello"));
        if len.is_some_and(|len| all.len() >= len) {
            return all;
        }
    }
}

/// Connects to a device that answers with these bytes, and returns the error.
fn refused_by(seed: u64, answer: Vec<u8>) -> StorageError {
    let config = SimConfig::new(seed);
    let outcome = sim::run(config, move |runtime| {
        let network = MemoryNetwork::new(&runtime);
        let listener = network.listen(&address()).expect("a listener");
        let (rt, until) = (runtime.clone(), runtime.now() + Duration::from_secs(60));
        let device = move || {
            let accepted = listener.accept(until).expect("a listener");
            let connection = accepted.expect("a host");
            let hello = receive_hello(&rt, &*connection);
            assert!(ClientHello::decode(&hello).is_ok());
            connection.send(&[&answer], until).expect("a peer");
            rt.sleep(Duration::from_secs(1));
        };
        let device = runtime.spawn("device", device).expect("a task");
        let folder = FolderWanted::Named {
            name: "db".into(),
            create: true,
        };
        let link: Arc<dyn Network> = Arc::new(network);
        let begun = runtime.now();
        let options = ClientOptions::default();
        let connected = Device::connect(&runtime, link, address(), folder, options);
        // The host does not try again, because that would end in the same way.
        assert!(runtime.now().since(begun) < Duration::from_secs(2));
        device.join().expect("no panic");
        connected.err().expect("another version")
    });
    match outcome.result {
        Ok(error) => error,
        Err(failure) => panic!("seed {seed}: {failure}"),
    }
}

/// Checks that the error is one line, with both versions and advice.
fn names_both_versions(error: &StorageError) {
    assert_eq!(error.kind, StorageErrorKind::Unsupported, "{error}");
    let said = error.to_string();
    let versions = format!(
        "the peer speaks versions {} to {} of the protocol, this program {} to {}",
        OTHERS.0, OTHERS.1, VERSIONS.0, VERSIONS.1
    );
    assert!(said.contains(&versions), "{said}");
    assert!(said.contains("bring both to the same release"), "{said}");
    assert!(!said.contains('\n'), "{said}");
}

#[test]
fn a_host_names_the_versions_of_a_newer_device() {
    let refusal = ServerHello::Refused(Refusal {
        kind: StorageErrorKind::Unsupported,
        reason: "there is no common version of the protocol".into(),
    });
    let refusal = with_versions(&refusal.encode(0), OTHERS);
    names_both_versions(&refused_by(1, refusal));
    // Only the head of a hello is the same in all versions. Its fields may be different.
    let mut head = b"siltlink".to_vec();
    head.extend([0; 4]);
    head.extend(4u32.to_le_bytes());
    let strange = [&head[..], &[9, 9, 9, 9], &[0; 4]].concat();
    names_both_versions(&refused_by(2, with_versions(&strange, OTHERS)));
}

#[test]
fn a_newer_host_hears_the_versions_of_the_device() {
    simulated(3, |setup| {
        let hello = ClientHello {
            token: [7; 16],
            folder: FolderWanted::None,
            host: "a newer one".into(),
        };
        let deadline = setup.runtime.now() + Duration::from_secs(5);
        let connection = setup.network.connect(&address(), deadline);
        let connection = connection.expect("a listener");
        let hello = with_versions(&hello.encode(), OTHERS);
        connection.send(&[&hello], deadline).expect("a peer");
        let answer = receive_hello(&setup.runtime, &*connection);
        // The host learns the range of the device, which is all that a newer host needs for its
        // message.
        let versions = [&answer[8..10], &answer[10..12]];
        let versions = versions.map(|two| u16::from_le_bytes([two[0], two[1]]));
        assert_eq!(versions, [VERSIONS.0, VERSIONS.1]);
        let Ok((_, ServerHello::Refused(refusal))) = ServerHello::decode(&answer) else {
            panic!("a host of another version was welcomed");
        };
        assert_eq!(refusal.kind, StorageErrorKind::Unsupported);
        assert!(refusal.reason.contains("no common version"), "{refusal:?}");
        // The device has ended the connection, and has no session of this host.
        let ended = connection.receive(&mut [0; 1], deadline);
        assert!(matches!(ended, Ok(Received::End) | Err(_)), "{ended:?}");
        let server = setup.server.as_ref().expect("a server");
        assert!(server.sessions().is_empty());
    });
}

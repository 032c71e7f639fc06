//! Peers that ask for too much: what a device keeps for each of them is bounded, and they do not
//! keep others out (row 13 of `docs/reliability.md`, the link's half).

mod common;

use std::time::Duration;

use common::Setup;
use common::peer::{Peer, with_device};
use siltstone_device::wire::Request;
use siltstone_device::wire::answer::Answer;
use siltstone_device::wire::job::put_work;
use siltstone_storage::{Storage, StorageErrorKind};

#[test]
fn connections_are_bounded() {
    with_device(3, |setup| {
        let peers: Vec<Peer> = (0..40).map(|_| Peer::connect(setup)).collect();
        // The connections beyond the limit are closed at once, and the others after they said
        // nothing.
        let ended = |peer: &Peer| peer.receive(Duration::from_millis(200)).1;
        let at_once = peers.iter().filter(|peer| ended(peer)).count();
        assert!(at_once >= 20, "{at_once}");
        let later = |peer: &Peer| peer.receive(Duration::from_secs(20)).1;
        assert!(peers.iter().all(later));
    });
}

/// Hellos alone keep no host out: their sessions make room once they are silent.
#[test]
fn sessions_that_nobody_uses_make_room() {
    with_device(8, |setup| {
        let keeps = setup.connect("db");
        let lease = keeps.storage().lease("store").unwrap();
        for round in 0..8u8 {
            for n in 0..12u8 {
                let peer = Peer::connect(setup);
                peer.greet([round * 12 + n + 1; 16]);
                peer.connection.close();
            }
            setup.runtime.sleep(Duration::from_secs(1));
        }
        setup.runtime.sleep(Duration::from_secs(4));
        let device = setup.connect("another");
        assert!(device.storage().list().unwrap().is_empty());
        device.close();
        // The session with a lease, whose host is alive, was not among those that were ended.
        keeps.storage().sync_dir(lease.epoch()).unwrap();
        lease.release().unwrap();
        keeps.close();
    });
}

#[test]
fn peers_that_say_nothing_do_not_keep_others_out() {
    with_device(8, |setup| {
        setup.stop();
        setup.options.connections_max = 400;
        setup.start();
        let peers: Vec<Peer> = (0..200).map(|_| Peer::connect(setup)).collect();
        let ended = |peer: &Peer| peer.receive(Duration::from_millis(10)).1;
        // The 64 peers that connected last have not been cut off.
        let ended: Vec<bool> = peers.iter().map(ended).collect();
        assert_eq!(ended.iter().filter(|ended| !**ended).count(), 64);
        assert!(ended[..136].iter().all(|ended| *ended));
        // A hello is answered although as many peers as possible have not said hello yet.
        let peer = Peer::connect(setup);
        peer.greet([7; 16]);
    });
}

#[test]
fn objects_of_all_sessions_are_bounded() {
    with_device(9, |setup| {
        setup.stop();
        setup.options.open_objects_all_max = 5;
        setup.start();
        let devices: Vec<_> = ["a", "b"].map(|name| setup.connect(name)).into();
        let mut open = Vec::new();
        for device in &devices {
            let storage = device.storage();
            let lease = storage.lease("store").unwrap();
            let files = (0..3).map(|n| storage.create(lease.epoch(), &format!("file-{n}")));
            open.push((files.collect::<Vec<_>>(), lease));
        }
        let (first, second) = (&open[0].0, &open[1].0);
        assert!(first.iter().all(Result::is_ok));
        let error = second[2].as_ref().err().unwrap();
        assert_eq!(error.kind, StorageErrorKind::TooManyOpen, "{error}");
        assert!(error.to_string().contains("all hosts together"), "{error}");
        assert!(second[..2].iter().all(Result::is_ok));
        // Objects that are closed make room for the other session, and so do sessions that end.
        let storage = devices[1].storage();
        open[0].0.clear();
        setup.runtime.sleep(Duration::from_secs(3));
        let epoch = open[1].1.epoch();
        let more: Vec<_> = (3..6)
            .map(|n| storage.create(epoch, &format!("file-{n}")).unwrap())
            .collect();
        assert!(storage.open("file-3").is_err());
        drop((more, open));
        devices.iter().for_each(|device| device.close());
    });
}

#[test]
fn attempts_of_a_session_are_bounded() {
    with_device(10, |setup| {
        let peer = Peer::with_lease(setup);
        let job = put_work(&common::jobs::a_job().encode(), &[], 1 << 20).0;
        let mut said = Vec::new();
        for number in 1..300 {
            let begin = common::jobs::begin(number);
            peer.ask(number + 1, &begin, &job);
            said = peer.receive(Duration::from_millis(20)).0;
        }
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(said.contains("256 attempts"), "{said}");
    });
}

#[test]
fn a_host_of_this_machine_that_ended_is_not_listed_for_long() {
    with_device(12, |setup| {
        let peer = Peer::connect(setup);
        peer.greet([5; 16]);
        let sessions = |setup: &Setup| setup.server.as_ref().unwrap().sessions();
        assert_eq!(sessions(setup)[0].connections, 1);
        // A host that says nothing and keeps its connection may only be paused.
        setup.runtime.sleep(Duration::from_secs(120));
        assert_eq!(sessions(setup).len(), 1);
        assert!(sessions(setup)[0].silent_for >= Duration::from_secs(119));
        peer.connection.close();
        setup.runtime.sleep(Duration::from_secs(5));
        assert_eq!(sessions(setup), Vec::new());
        // A host whose connections end comes back in time.
        let peer = Peer::connect(setup);
        peer.greet([6; 16]);
        peer.connection.close();
        setup.runtime.sleep(Duration::from_secs(20));
        assert_eq!(sessions(setup)[0].connections, 0);
        let peer = Peer::connect(setup);
        peer.greet([6; 16]);
        setup.runtime.sleep(Duration::from_secs(100));
        assert_eq!(sessions(setup).len(), 1);
    });
}

/// A store has two leases, and each is an open file of the device.
#[test]
fn leases_of_a_session_are_bounded() {
    with_device(15, |setup| {
        let peer = Peer::connect(setup);
        peer.greet([5; 16]);
        let mut refused = None;
        for number in 1..=100u64 {
            let lease = Request::Lease {
                id: [number as u8; 16],
                name: format!("lease-{number}"),
                shared: true,
                again: None,
            };
            peer.ask(number, &lease, b"");
            let (said, _) = peer.receive(Duration::from_millis(50));
            if String::from_utf8_lossy(&said).contains("leases already") {
                refused = Some(number);
                break;
            }
        }
        assert_eq!(refused, Some(65));
    });
}

/// The notes of a lease stay on the device for good, although the lease is given back.
#[test]
fn new_leases_of_a_folder_are_bounded() {
    with_device(18, |setup| {
        let peer = Peer::connect(setup);
        peer.greet([5; 16]);
        let mut asked = 0u64;
        let mut take = |name: String| {
            let id = [asked as u8 + 1; 16];
            let lease = Request::Lease {
                id,
                name,
                shared: false,
                again: None,
            };
            peer.ask(asked + 1, &lease, b"");
            let (said, _) = peer.receive(Duration::from_millis(50));
            peer.ask(asked + 2, &Request::Release { id }, b"");
            peer.receive(Duration::from_millis(50));
            asked += 2;
            String::from_utf8_lossy(&said).contains("64 new leases of this folder")
        };
        let refused = (1..=100).find(|n| take(format!("lease-{n}")));
        assert_eq!(refused, Some(65));
        // The leases that there were before can still be taken.
        assert!(!take("lease-1".into()));
    });
}

/// Nobody can make the device read a large object as a whole for a proof.
#[test]
fn a_proof_reads_little() {
    with_device(16, |setup| {
        setup.stop();
        setup.options.shared = vec!["shared".into()];
        setup.start();
        let folder = setup.folders.folder("shared");
        let lease = folder.lease("other").unwrap();
        for (name, len) in [("small", 16), ("large", 5000)] {
            folder.publish(lease.epoch(), name, &vec![7; len]).unwrap();
        }
        let peer = Peer::connect(setup);
        peer.greet([5; 16]);
        for (number, name) in [(1, "small"), (2, "large")] {
            let prove = Request::ProveFolder {
                name: name.into(),
                salt: [3; 16],
                path: "shared".into(),
            };
            peer.ask(number, &prove, b"");
            match peer.answer() {
                Some(Answer::Proof(_)) => assert_eq!(name, "small"),
                Some(Answer::Failed(error)) => {
                    assert!(name == "large" && error.detail.contains("4096"), "{error}");
                }
                other => panic!("{name}: {other:?}"),
            }
        }
    });
}

/// A session whose state has ended keeps no connection, although its host said nothing.
#[test]
fn connections_of_a_silent_host_end_with_its_session() {
    with_device(17, |setup| {
        let peer = Peer::connect(setup);
        peer.greet([5; 16]);
        assert_eq!(setup.network.connection_count(), 1);
        setup
            .runtime
            .sleep(setup.options.state_silence + Duration::from_secs(5));
        assert!(setup.server.as_ref().unwrap().sessions().is_empty());
        let (_, has_ended) = peer.receive(Duration::from_secs(1));
        assert!(has_ended, "the connection stays");
    });
}

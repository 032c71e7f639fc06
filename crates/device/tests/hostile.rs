//! Peers that break the protocol or say nothing: the device ends their connections, keeps serving
//! others, and never panics (row 13 of `docs/reliability.md`, the link's half).

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::folders::ChangedFolders;
use common::peer::{Peer, ask_alone, with_device};
use common::{Setup, address};
use proptest::prelude::*;
use siltstone_device::wire::answer::Answer;
use siltstone_device::wire::frame::{Label, header_of};
use siltstone_device::wire::request::{FileChange, NamesChange};
use siltstone_device::wire::{FolderWanted, Request};
use siltstone_device::{ClientOptions, Folders, Server};
use siltstone_storage::fault::{Fault, FaultStorage, Rule};
use siltstone_storage::link::{LinkFaults, Network};
use siltstone_storage::{Epoch, OpKind, Storage, StorageErrorKind};

#[test]
fn who_says_nothing_is_cut_off_after_five_seconds() {
    with_device(1, |setup| {
        let silent = Peer::connect(setup);
        let half = Peer::connect(setup);
        assert!(half.send(b"siltlink"));
        let runtime = setup.runtime.clone();
        let begun = runtime.now();
        for peer in [silent, half] {
            assert_eq!(peer.receive(Duration::from_secs(60)), (Vec::new(), true));
        }
        assert!(runtime.now().since(begun) < Duration::from_secs(8));
    });
}

#[test]
fn another_protocol_is_cut_off() {
    with_device(2, |setup| {
        let peer = Peer::connect(setup);
        peer.send(b"GET / HTTP/1.1\r\nHost: device\r\n\r\n");
        assert_eq!(peer.receive(Duration::from_secs(10)), (Vec::new(), true));
    });
}

/// Stops the device, and starts it again with folders in which reads of objects whose names begin
/// with `slow` take three seconds, on a machine whose boot is not known.
fn restart_slow(setup: &mut Setup) {
    setup.stop();
    let runtime = setup.runtime.clone();
    let slow = move |storage: Arc<dyn Storage>| -> Arc<dyn Storage> {
        let folder = FaultStorage::new(storage, &runtime);
        let rule = Rule::on(OpKind::Read, Fault::Delay(Duration::from_secs(3)));
        folder.add(rule.named("slow").for_good());
        Arc::new(folder)
    };
    let folders = ChangedFolders::of(&setup.folders).with_change(slow);
    let slow: Arc<dyn Folders> = Arc::new(folders.with_boot(Vec::new()));
    let link: Arc<dyn Network> = Arc::new(setup.network.clone());
    let options = setup.options.clone();
    let server = Server::start(&setup.runtime, &link, &[address()], slow, options);
    setup.server = Some(server.unwrap());
}

/// If the boot of a device's machine is not known, unsynced bytes may be lost at each start of the
/// device.
#[test]
fn each_start_is_a_boot_if_the_boot_is_not_known() {
    with_device(35, |setup| {
        let mut boots = Vec::new();
        for token in 1..4 {
            restart_slow(setup);
            let welcome = Peer::connect(setup).greet([token; 16]);
            assert_eq!(Peer::connect(setup).greet([token; 16]), welcome);
            assert!(!welcome.boot.is_empty() && !boots.contains(&welcome.boot));
            boots.push(welcome.boot);
        }
    });
}

/// A read that is still under way when the state of its session ends might return what the next
/// host has written.
#[test]
fn a_read_that_ends_after_its_session_returns_nothing() {
    with_device(33, |setup| {
        restart_slow(setup);
        let folder = setup.folders.folder("db");
        let lease = folder.lease("other").unwrap();
        folder.publish(lease.epoch(), "slow", b"bytes").unwrap();
        let read = Request::Read {
            file: 1,
            ranges: vec![(0, 5)],
        };
        let read_small = Request::ReadSmall {
            name: "slow".into(),
        };
        for (token, request, ends) in [
            (1, &read, false),
            (2, &read, true),
            (3, &read_small, false),
            (4, &read_small, true),
        ] {
            let peer = Peer::connect(setup);
            peer.greet([token; 16]);
            let open = Request::Open {
                name: "slow".into(),
                file: 1,
                direct: false,
            };
            peer.ask(1, &open, b"");
            let opened = peer.answer();
            assert!(matches!(opened, Some(Answer::Opened { len: 5 })));
            peer.ask(2, request, b"");
            if ends {
                let said = ask_alone(setup, token, &Request::Goodbye, b"");
                assert!(matches!(said, Some(Answer::Done)), "{said:?}");
            }
            let said = peer.answer();
            let is_right = match ends {
                true => matches!(said, Some(Answer::Ended)),
                false => matches!(said, Some(Answer::Bytes)),
            };
            assert!(is_right, "{token}: {said:?}");
        }
    });
}

/// Creates an object by a call that gives up, because the answer is lost. Returns its name.
fn create_and_give_up(setup: &Setup, storage: &Arc<dyn Storage>, epoch: Epoch) -> String {
    setup.network.set_faults(LinkFaults {
        delay: Duration::from_micros(500),
        ..LinkFaults::default()
    });
    for tries in 1..40 {
        let name = format!("file-{tries}");
        let (storage, of) = (Arc::clone(storage), name.clone());
        let create = move || storage.create(epoch, &of).map(drop);
        let creating = setup.runtime.spawn("create", create).unwrap();
        let wait = Duration::from_micros(1000 + 100 * tries);
        setup.runtime.sleep(wait);
        setup.network.set_silent(true);
        setup.network.freeze_all();
        let created = creating.join().unwrap();
        setup.network.set_silent(false);
        setup.runtime.sleep(Duration::from_secs(5));
        if created.is_err() && setup.folders.folder("db").open(&name).is_ok() {
            return name;
        }
    }
    panic!("no call gave up after it took effect");
}

#[test]
fn an_object_that_nobody_claims_is_closed() {
    with_device(13, |setup| {
        let device = setup.connect_with("db", common::impatient(Duration::from_secs(2)));
        let storage = device.storage();
        let lease = storage.lease("store").unwrap();
        let open = |setup: &Setup| setup.server.as_ref().unwrap().sessions()[0].open_objects;
        let name = create_and_give_up(setup, &storage, lease.epoch());
        // The next change settles the creation.
        storage.sync_dir(lease.epoch()).unwrap();
        setup.runtime.sleep(Duration::from_secs(10));
        let before = open(setup);
        assert!(before > 0);
        setup.runtime.sleep(Duration::from_secs(60));
        assert_eq!(
            open(setup),
            0,
            "{before} were open, and nobody claimed one for a minute"
        );
        // A caller that makes the same call again still gets the object.
        let file = storage.create(lease.epoch(), &name).unwrap();
        file.append(&[b"claimed"]).unwrap();
        file.sync().unwrap();
        assert_eq!(storage.read_small(&name).unwrap(), b"claimed");
        drop(file);
        lease.release().unwrap();
        device.close();
    });
}

/// The object of a creation that gave up was closed, and cannot be opened again for a while. The
/// creation is not forgotten by that: the same call succeeds later.
#[test]
fn a_creation_is_claimed_after_an_attempt_that_failed() {
    with_device(33, |setup| {
        setup.stop();
        setup.options.open_objects_max = 20;
        setup.start();
        let device = setup.connect_with("db", common::impatient(Duration::from_secs(2)));
        let storage = device.storage();
        let lease = storage.lease("store").unwrap();
        storage.create(lease.epoch(), "other").map(drop).unwrap();
        let name = create_and_give_up(setup, &storage, lease.epoch());
        // The next change settles the creation, and nobody claims the object for a minute.
        storage.sync_dir(lease.epoch()).unwrap();
        setup.runtime.sleep(Duration::from_secs(80));
        let mut readers = Vec::new();
        while let Ok(reader) = storage.open("other") {
            readers.push(reader);
        }
        let error = storage.create(lease.epoch(), &name).map(drop).unwrap_err();
        assert_eq!(error.kind, StorageErrorKind::TooManyOpen, "{error}");
        drop(readers);
        setup.runtime.sleep(Duration::from_secs(5));
        let file = storage.create(lease.epoch(), &name).unwrap();
        file.append(&[b"claimed"]).unwrap();
        file.sync().unwrap();
        assert_eq!(storage.read_small(&name).unwrap(), b"claimed");
        drop(file);
        lease.release().unwrap();
        device.close();
    });
}

#[test]
fn a_frame_that_is_too_large_or_damaged_ends_its_connection() {
    with_device(4, |setup| {
        for at in [0usize, 4, 8, 20, 30] {
            let peer = Peer::connect(setup);
            peer.greet([at as u8 + 1; 16]);
            let request = Request::ReadSmall { name: "x".into() };
            let label = Label {
                number: 1,
                kind: request.kind(),
                flags: 0,
            };
            let fields = request.encode();
            let mut bytes = header_of(label, &fields, &[]).encode().to_vec();
            bytes.extend(fields);
            bytes[at] ^= 0x80;
            peer.send(&bytes);
            let (answer, ended) = peer.receive(Duration::from_secs(5));
            assert!(ended && answer.is_empty(), "{at}: {answer:?}");
        }
    });
}

#[test]
fn numbers_that_cannot_come_end_the_connection() {
    with_device(5, |setup| {
        let lease = Request::Lease {
            id: [9; 16],
            name: "store".into(),
            shared: false,
            again: None,
        };
        let create = |number| Request::Names {
            number,
            epoch: 1,
            change: NamesChange::Create {
                name: "x".into(),
                file: 1,
                direct: false,
            },
        };
        // These are a frame out of order, a number in a lane that is too high, a number in a file's
        // lane that is too high, and a position that is not the position of the file.
        let peer = Peer::connect(setup);
        peer.greet([1; 16]);
        peer.ask(2, &Request::KeepAlive, b"");
        assert!(peer.receive(Duration::from_secs(5)).1);
        let peer = Peer::connect(setup);
        peer.greet([1; 16]);
        peer.ask(1, &lease, b"");
        peer.ask(2, &create(7), b"");
        assert!(peer.receive(Duration::from_secs(5)).1);
        for (number, position) in [(2, 0), (1, 5)] {
            let peer = Peer::connect(setup);
            peer.greet([1; 16]);
            peer.ask(1, &create(1), b"");
            let append = Request::File {
                file: 1,
                number,
                change: FileChange::Append { position },
            };
            peer.ask(2, &append, b"bytes");
            assert!(
                peer.receive(Duration::from_secs(5)).1,
                "{number} {position}"
            );
        }
    });
}

#[test]
fn names_do_not_leave_the_folder() {
    with_device(6, |setup| {
        let device = setup.connect_with("db", ClientOptions::default());
        let storage = device.storage();
        let lease = storage.lease("store").unwrap();
        for name in ["../x", "/etc/passwd", ".hidden", "a/b", "", "LOCK.store/.."] {
            let kinds = [
                storage.open(name).map(drop).unwrap_err().kind,
                storage
                    .create(lease.epoch(), name)
                    .map(drop)
                    .unwrap_err()
                    .kind,
                storage.delete(lease.epoch(), name).unwrap_err().kind,
            ];
            assert_eq!(kinds, [StorageErrorKind::InvalidInput; 3], "{name}");
        }
        lease.release().unwrap();
        device.close();
        let folder = FolderWanted::Named {
            name: "../other".into(),
            create: true,
        };
        let network: Arc<dyn Network> = Arc::new(setup.network.clone());
        let refused = siltstone_device::Device::connect(
            &setup.runtime,
            network,
            address(),
            folder,
            ClientOptions::default(),
        );
        let error = refused.err().unwrap();
        assert_eq!(error.kind, StorageErrorKind::InvalidInput, "{error}");
    });
}

#[test]
fn changes_without_a_lease_are_fenced() {
    with_device(7, |setup| {
        let device = setup.connect("db");
        let storage = device.storage();
        let none = siltstone_storage::Epoch(1);
        let error = storage.create(none, "x").map(drop).unwrap_err();
        assert_eq!(error.kind, StorageErrorKind::Fenced, "{error}");
        // The epoch of another session is of no use either.
        let other = setup.connect("db");
        let lease = other.storage().lease("store").unwrap();
        let error = storage.delete(lease.epoch(), "x").unwrap_err();
        assert_eq!(error.kind, StorageErrorKind::Fenced, "{error}");
        lease.release().unwrap();
        device.close();
        other.close();
    });
}

/// A request to open an object may arrive after the object was closed. It has no effect, even if
/// the host has closed newer objects meanwhile.
#[test]
fn a_closed_object_is_not_opened_by_an_old_request() {
    with_device(31, |setup| {
        let device = setup.connect("db");
        let storage = device.storage();
        let lease = storage.lease("store").unwrap();
        storage.create(lease.epoch(), "a").unwrap();
        let peer = Peer::connect(setup);
        peer.greet([8; 16]);
        let open = |file: u64| Request::Open {
            name: "a".into(),
            file,
            direct: false,
        };
        let mut number = 0;
        let mut ask = |request: &Request| {
            number += 1;
            assert!(peer.ask(number, request, &[]));
            peer.answer().unwrap()
        };
        assert!(matches!(ask(&open(1)), Answer::Opened { .. }));
        // Newer objects are closed first. Each closing is remembered, although none was open.
        for file in 1000..1010 {
            assert!(matches!(ask(&Request::Close { file }), Answer::Done));
        }
        assert!(matches!(ask(&Request::Close { file: 1 }), Answer::Done));
        for file in [1, 1000] {
            let said = ask(&open(file));
            let is_refused =
                matches!(&said, Answer::Failed(e) if e.kind == StorageErrorKind::Closed);
            assert!(is_refused, "{said:?}");
        }
        assert!(matches!(ask(&open(2)), Answer::Opened { .. }));
        peer.connection.close();
        lease.release().unwrap();
        device.close();
    });
}

/// A host that gives the number of an open object to another one gets an error. If the object is
/// open for writing, it stays so. Otherwise the end of the session would not wait for its requests.
#[test]
fn the_number_of_an_open_object_is_not_given_to_another_one() {
    with_device(34, |setup| {
        let peer = Peer::connect(setup);
        peer.greet([8; 16]);
        let mut number = 0;
        let mut ask = |request: &Request, bulk: &[u8]| {
            number += 1;
            assert!(peer.ask(number, request, bulk));
            peer.answer().unwrap()
        };
        let lease = Request::Lease {
            id: [9; 16],
            name: "store".into(),
            shared: false,
            again: None,
        };
        let Answer::Leased { epoch } = ask(&lease, b"") else {
            panic!("no lease");
        };
        let create = |number, name: &str, file| Request::Names {
            number,
            epoch,
            change: NamesChange::Create {
                name: name.into(),
                file,
                direct: false,
            },
        };
        let open = |file| Request::Open {
            name: "a".into(),
            file,
            direct: false,
        };
        let reopen = Request::Reopen {
            name: "a".into(),
            file: 2,
            epoch,
            position: 0,
        };
        let finished = Request::OpenFinished {
            name: "a".into(),
            file: 1,
            tail: 10,
            descriptor: false,
        };
        let recycle = Request::Names {
            number: 4,
            epoch,
            change: NamesChange::Recycle {
                old: "a".into(),
                new: "b".into(),
                file: 1,
            },
        };
        let created = ask(&create(1, "a", 1), b"");
        assert!(matches!(created, Answer::Opened { .. }), "{created:?}");
        assert!(matches!(ask(&open(2), b""), Answer::Opened { .. }));
        let (again, other) = (create(2, "b", 1), create(3, "b", 2));
        for request in [again, other, recycle, open(1), finished, reopen] {
            let said = ask(&request, b"");
            let is_refused =
                matches!(&said, Answer::Failed(e) if e.kind == StorageErrorKind::InvalidInput);
            assert!(is_refused, "{request:?}: {said:?}");
        }
        let folder = setup.folders.folder("db");
        let missing = folder.open("b").map(drop).unwrap_err();
        assert_eq!(missing.kind, StorageErrorKind::NotFound, "{missing}");
        let append = Request::File {
            file: 1,
            number: 1,
            change: FileChange::Append { position: 0 },
        };
        assert!(matches!(ask(&append, b"bytes"), Answer::Done));
        assert!(matches!(ask(&open(2), b""), Answer::Opened { .. }));
    });
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 60,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Random requests with matching checksums: the device answers, or ends the connection.
    #[test]
    fn random_requests_are_survived(
        requests in prop::collection::vec(
            (prop_oneof![0u16..20, 30u16..46, 60u16..70],
             prop::collection::vec(any::<u8>(), 0..80),
             prop::collection::vec(any::<u8>(), 0..200)),
            1..12,
        ),
        seed in any::<u64>(),
    ) {
        with_device(seed, move |setup| {
            for (number, (kind, fields, bulk)) in requests.iter().enumerate() {
                let peer = Peer::connect(setup);
                peer.greet([number as u8 + 1; 16]);
                let label = Label { number: 1, kind: *kind, flags: 0 };
                let header = header_of(label, fields, &[bulk]).encode();
                peer.send(&[&header[..], fields, bulk].concat());
                peer.receive(Duration::from_millis(50));
                peer.connection.close();
            }
        });
    }
}

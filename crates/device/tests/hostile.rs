//! Peers that break the protocol, say nothing, or ask for too much: the device ends their
//! connections, keeps serving others, and never panics (row 13 of `docs/reliability.md`, the link's
//! half).

mod common;
#[path = "../../table/tests/common/mod.rs"]
mod jobs;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use common::{Setup, address};
use jobs::{Content, a_job, table_input};
use proptest::prelude::*;
use siltstone_device::wire::answer::{Answer, WORKING};
use siltstone_device::wire::frame::{FrameHeader, HEADER_BYTES, Label, header_of};
use siltstone_device::wire::hello::Welcome;
use siltstone_device::wire::job::{JobEnd, JobOrder, Place, put_work};
use siltstone_device::wire::request::{FileChange, NamesChange};
use siltstone_device::wire::survivors::SurvivorsPiece;
use siltstone_device::wire::{ClientHello, FolderWanted, Request, ServerHello};
use siltstone_device::{ClientOptions, DataFolder, Folders, MemoryFolders, Server, ServerOptions};
use siltstone_storage::fault::{Fault, FaultStorage, Rule};
use siltstone_storage::link::{Connection, LinkFaults, MemoryNetwork, Network, Received};
use siltstone_storage::sim::{self, SimConfig};
use siltstone_storage::{Epoch, MemoryStorage, OpKind, Runtime, Storage, StorageErrorKind};
use siltstone_table::exec::InputMap;
use siltstone_table::exec::part::Part;
use siltstone_table::exec::survivors::{Extent, Survivors};
use siltstone_table::job::Job;
use siltstone_table::job::outcome::Counters;

/// A connection of a peer that may send anything.
struct Peer {
    runtime: Runtime,
    connection: Arc<dyn Connection>,
}

impl Peer {
    fn connect(setup: &Setup) -> Peer {
        Peer::over(&setup.runtime, &setup.network)
    }

    fn over(runtime: &Runtime, network: &dyn Network) -> Peer {
        let runtime = runtime.clone();
        let deadline = runtime.now() + Duration::from_secs(5);
        let connection = network.connect(&address(), deadline).unwrap();
        Peer {
            runtime,
            connection,
        }
    }

    fn send(&self, bytes: &[u8]) -> bool {
        let deadline = self.runtime.now() + Duration::from_secs(5);
        self.connection.send(&[bytes], deadline).is_ok()
    }

    /// Returns the bytes that arrive within a time, and whether the connection ended.
    fn receive(&self, time: Duration) -> (Vec<u8>, bool) {
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
    fn greet(&self, token: [u8; 16]) -> Welcome {
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
    fn answer(&self) -> Option<Answer> {
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

    fn ask(&self, number: u64, request: &Request, bulk: &[u8]) -> bool {
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
fn with_device(seed: u64, test: impl FnOnce(&mut Setup) + Send + 'static) {
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

/// Folders in which reads of objects whose names begin with `slow` take three seconds, on a machine
/// whose boot is not known.
struct SlowReads {
    runtime: Runtime,
    memory: Arc<MemoryFolders>,
}

impl Folders for SlowReads {
    fn root(&self) -> Arc<dyn Storage> {
        self.memory.root()
    }

    fn open(&self, name: &str, create: bool) -> siltstone_storage::Result<Arc<dyn Storage>> {
        let folder = FaultStorage::new(self.memory.open(name, create)?, &self.runtime);
        let rule = Rule::on(OpKind::Read, Fault::Delay(Duration::from_secs(3)));
        folder.add(rule.named("slow").for_good());
        Ok(Arc::new(folder))
    }

    fn open_scratch(&self, name: &str) -> siltstone_storage::Result<Arc<dyn Storage>> {
        self.memory.open_scratch(name)
    }

    fn remove_scratch_folder(&self, name: &str) -> siltstone_storage::Result<()> {
        self.memory.remove_scratch_folder(name)
    }

    fn remove_scratch(&self) -> siltstone_storage::Result<()> {
        self.memory.remove_scratch()
    }

    fn open_shared(&self, path: &str) -> siltstone_storage::Result<(Arc<dyn Storage>, PathBuf)> {
        self.memory.open_shared(path)
    }

    fn boot(&self) -> Vec<u8> {
        Vec::new()
    }
}

/// Stops the device, and starts it again with other folders.
fn restart_slow(setup: &mut Setup) {
    setup.stop();
    let slow: Arc<dyn Folders> = Arc::new(SlowReads {
        runtime: setup.runtime.clone(),
        memory: setup.folders.clone(),
    });
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

#[test]
fn attempts_of_a_session_are_bounded() {
    with_device(10, |setup| {
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

/// A job may only continue after tables that an attempt of its own store made, so it cannot name
/// any other file.
#[test]
fn a_job_does_not_go_on_after_what_it_cannot_have_made() {
    with_device(14, |setup| {
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
        let job = common::jobs::a_job();
        let identity = job.identity();
        let part = |name: &str| common::jobs::a_part(name).encode(identity);
        let cases = [
            (b"no part".to_vec(), "part"),
            (
                common::jobs::a_part("x").encode(identity ^ 1),
                "another job",
            ),
            (Part::new(0).encode(identity), "no tables"),
            (Part::new(7).encode(identity), "subjob 7"),
            (part("CURRENT"), "CURRENT"),
            (part("../../etc/passwd"), "passwd"),
            (part("00000000-00000007-../00000.tbl"), "should be called"),
            (part("00000001-00000007-0000-00000.tbl"), "another writer"),
        ];
        for (at, (bytes, said)) in cases.iter().enumerate() {
            let work = put_work(&job.encode(), std::slice::from_ref(bytes), 1 << 20).0;
            let begin = common::jobs::begin(at as u64 + 1);
            peer.ask(at as u64 + 2, &begin, &work);
            let answer = peer.receive(Duration::from_millis(50)).0;
            let answer = String::from_utf8_lossy(&answer).into_owned();
            assert!(answer.contains(said), "{said}: {answer}");
        }
        // Tables that an earlier attempt made are accepted, and the job fails because of its
        // stream.
        let work = put_work(
            &job.encode(),
            &[part("00000000-00000007-0000-00000.tbl")],
            1 << 20,
        );
        let count = cases.len() as u64;
        peer.ask(count + 2, &common::jobs::begin(count + 1), &work.0);
        let answer = peer.receive(Duration::from_millis(50)).0;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(!answer.contains("attempt"), "{answer}");
    });
}

/// An input at a location that the device does not have is not looked for by its name.
#[test]
fn a_job_with_an_input_elsewhere_is_declined() {
    with_device(17, |setup| {
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
        let mut job = common::jobs::a_job();
        job.inputs[0].location = 3;
        let work = put_work(&job.encode(), &[], 1 << 20).0;
        peer.ask(2, &common::jobs::begin(1), &work);
        peer.receive(Duration::from_millis(50));
        let wait = Request::WaitJob {
            attempt: 1,
            parts_known: 0,
            wait_ms: 100,
            bytes_per_s: 0,
            paid_bytes: 0,
        };
        peer.ask(3, &wait, b"");
        let Some(Answer::Job(status)) = peer.answer() else {
            panic!("no status");
        };
        let Some(JobEnd::Declined(reason)) = status.end else {
            panic!("{:?}", status.end);
        };
        let said = "the input memtable is at location 3, and a device has only location 0";
        assert!(reason.contains(said), "{reason}");
    });
}

/// A device that is set up without subjobs runs jobs with one subjob at a time.
#[test]
fn a_device_without_subjobs_runs_jobs() {
    with_device(36, |setup| {
        setup.stop();
        setup.options.parallelism = 0;
        setup.start();
        let peer = Peer::connect(setup);
        assert_eq!(peer.greet([5; 16]).slots, (1, 1));
        let lease = Request::Lease {
            id: [9; 16],
            name: "store".into(),
            shared: false,
            again: None,
        };
        peer.ask(1, &lease, b"");
        peer.receive(Duration::from_millis(50));
        let work = put_work(&common::jobs::a_job().encode(), &[], 1 << 20).0;
        peer.ask(2, &common::jobs::begin(1), &work);
        peer.receive(Duration::from_millis(50));
        let wait = Request::WaitJob {
            attempt: 1,
            parts_known: 0,
            wait_ms: 100,
            bytes_per_s: 0,
            paid_bytes: 0,
        };
        peer.ask(3, &wait, b"");
        let Some(Answer::Job(status)) = peer.answer() else {
            panic!("no status");
        };
        // It ran, and has failed because of its stream.
        let end = format!("{:?}", status.end);
        assert!(end.contains("stream"), "{end}");
    });
}

#[test]
fn a_shared_folder_is_not_left() {
    with_device(11, |setup| {
        setup.stop();
        setup.options.shared = vec!["/shared".into()];
        setup.start();
        let peer = Peer::connect(setup);
        peer.greet([5; 16]);
        let job = put_work(&common::jobs::a_job().encode(), &[], 1 << 20).0;
        for (at, path) in ["/shared/../db", "/sharedx", "shared", "/"]
            .iter()
            .enumerate()
        {
            let begin = common::jobs::begin_at(at as u64 + 1, path);
            peer.ask(at as u64 + 1, &begin, &job);
            let said = peer.receive(Duration::from_millis(50)).0;
            let said = String::from_utf8_lossy(&said).into_owned();
            assert!(
                said.contains("does not share this folder"),
                "{path}: {said}"
            );
        }
    });
}

/// Anybody who may write in a shared folder can create a symbolic link there.
#[test]
fn a_link_does_not_lead_out_of_a_shared_folder() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap();
    for name in ["share", "share/own", "outside"] {
        std::fs::create_dir(base.join(name)).unwrap();
    }
    std::os::unix::fs::symlink(base.join("outside"), base.join("share/link")).unwrap();
    let runtime = Runtime::threads();
    let network = MemoryNetwork::new(&runtime);
    let link: Arc<dyn Network> = Arc::new(network.clone());
    let folders: Arc<dyn Folders> = Arc::new(DataFolder::open(base.join("data")).unwrap());
    let options = ServerOptions {
        shared: vec![base.join("share")],
        ..ServerOptions::default()
    };
    let server = Server::start(&runtime, &link, &[address()], folders, options).unwrap();
    let peer = Peer::over(&runtime, &network);
    peer.greet([5; 16]);
    let job = put_work(&common::jobs::a_job().encode(), &[], 1 << 20).0;
    let refusals = [("own", false), ("link", true), ("own/../link", true)];
    for (number, (name, is_refused)) in (1..).zip(refusals) {
        let path = base.join("share").join(name);
        let begin = common::jobs::begin_at(number, path.to_str().unwrap());
        peer.ask(number, &begin, &job);
        let (said, _) = peer.receive(Duration::from_millis(300));
        let said = String::from_utf8_lossy(&said).into_owned();
        let refused = said.contains("symbolic link") || said.contains("does not share this folder");
        assert_eq!(refused, is_refused, "{name}: {said}");
    }
    peer.connection.close();
    server.stop();
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

/// Makes a request on a connection of its own, and returns the answer.
fn ask_alone(setup: &Setup, token: u8, request: &Request, bulk: &[u8]) -> Option<Answer> {
    let peer = Peer::connect(setup);
    peer.greet([token; 16]);
    assert!(peer.ask(1, request, bulk));
    peer.answer()
}

/// A rebuild of a table that lies on the device, with survivors that are wrong in many ways. Each
/// is refused by name, the attempt fails, and nothing of it is left.
#[test]
fn wrong_survivors_are_refused() {
    type Wrong = (&'static str, SurvivorsPiece, Vec<u8>);
    let piece = |subjob, number| SurvivorsPiece {
        attempt: 1,
        subjob,
        number,
        ends_chunk: true,
    };
    let job = |storage: &MemoryStorage| {
        let content = Content {
            entries: vec![(b"key".to_vec(), 5 << 8 | 1, b"value".to_vec())],
            ..Content::default()
        };
        let input = table_input(
            &mut InputMap::new(),
            &Arc::new(storage.clone()),
            "in",
            &content,
        );
        Job {
            inputs: vec![input],
            ..a_job(9)
        }
    };
    let of = |extents: Vec<Extent>| Survivors {
        extents,
        end: Some(Counters::default()),
        ..Survivors::default()
    };
    let extent = |block, first| Extent {
        input: 0,
        block,
        first,
        count: 1,
    };
    for case in 0..10u64 {
        with_device(20 + case, move |setup| {
            let folder = setup.folders.folder("db");
            let job = job(&folder);
            let identity = job.identity();
            let sound = of(vec![extent(0, 0)]).encode(identity);
            let wrong: Wrong = match case {
                0 => ("piece 0 of subjob 0", piece(0, 0), sound),
                1 => ("piece 7 of subjob 0", piece(0, 7), sound),
                2 => ("survivors of subjob 1", piece(1, 1), sound),
                3 => ("may have 1 to", piece(0, 1), Vec::new()),
                4 => ("survivors", piece(0, 1), vec![7; 1000]),
                5 => ("another job", piece(0, 1), of(vec![extent(0, 0)]).encode(1)),
                6 => (
                    "block of an extent",
                    piece(0, 1),
                    of(vec![extent(9, 0)]).encode(identity),
                ),
                7 => (
                    "entries of an extent",
                    piece(0, 1),
                    of(vec![extent(0, 9)]).encode(identity),
                ),
                8 => {
                    let twice = of(vec![extent(0, 0), extent(0, 0)]);
                    ("begin of a table", piece(0, 1), twice.encode(identity))
                }
                _ => ("begin of a table", piece(0, 1), sound),
            };
            let (said, piece, bytes) = wrong;
            let lease = Request::Lease {
                id: [9; 16],
                name: "store".into(),
                shared: false,
                again: None,
            };
            let Some(Answer::Leased { epoch }) = ask_alone(setup, 1, &lease, b"") else {
                panic!("no lease");
            };
            let order = JobOrder {
                attempt: 1,
                store: [0; 16],
                place: Place::Session,
                epoch,
                max_parallel: 1,
                bytes_per_s: 0,
                silence_ms: 5000,
            };
            let begin = Request::Names {
                number: 1,
                epoch,
                change: NamesChange::BeginRebuild(order),
            };
            let begun = ask_alone(setup, 1, &begin, &put_work(&job.encode(), &[], 1 << 20).0);
            assert!(matches!(begun, Some(Answer::Done)), "{begun:?}");
            let answer = ask_alone(setup, 1, &Request::Survivors(piece), &bytes);
            let is_refused = matches!(&answer, Some(Answer::Failed(e)) if e.detail.contains(said));
            // An error that is found only by decoding is not refused at once, and makes the job
            // fail instead.
            assert!(is_refused || case > 3, "{answer:?}");
            setup.runtime.sleep(Duration::from_secs(1));
            let wait = Request::WaitJob {
                attempt: 1,
                parts_known: 0,
                wait_ms: 100,
                bytes_per_s: 0,
                paid_bytes: 0,
            };
            let status = ask_alone(setup, 1, &wait, b"");
            let Some(Answer::Job(status)) = status else {
                panic!("{status:?}");
            };
            let end = format!("{:?}", status.end);
            assert!(end.contains(said) && !end.contains("Done"), "{end}");
            // The attempt has ended, and an attempt that nobody began is not known.
            let late = ask_alone(setup, 1, &Request::Survivors(piece), b"x");
            assert!(matches!(late, Some(Answer::Failed(_))), "{late:?}");
            let unknown = SurvivorsPiece {
                attempt: 77,
                ..piece
            };
            let unknown = ask_alone(setup, 1, &Request::Survivors(unknown), b"x");
            let is_unknown = matches!(&unknown, Some(Answer::Failed(e))
                if e.kind == StorageErrorKind::NotFound);
            assert!(is_unknown, "{unknown:?}");
            let names = folder.list().unwrap();
            let outputs = names.iter().filter(|object| object.name.ends_with(".tbl"));
            assert_eq!(outputs.count(), 0, "{names:?}");
            let goodbye = ask_alone(setup, 1, &Request::Goodbye, b"");
            assert!(goodbye.is_some());
        });
    }
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

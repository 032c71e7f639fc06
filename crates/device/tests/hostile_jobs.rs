//! Hosts whose jobs are wrong: they name files that are not theirs, tables that are elsewhere, or
//! survivors that cannot be right. A device refuses them and stays as it is.

mod common;
#[path = "../../table/tests/common/mod.rs"]
mod jobs;

use std::sync::Arc;
use std::time::Duration;

use common::address;
use common::peer::{Peer, ask_alone, with_device};
use jobs::{Content, a_job, table_input};
use siltstone_device::wire::Request;
use siltstone_device::wire::answer::Answer;
use siltstone_device::wire::job::{JobEnd, JobOrder, Place, put_work};
use siltstone_device::wire::request::NamesChange;
use siltstone_device::wire::survivors::SurvivorsPiece;
use siltstone_device::{DataFolder, Folders, Server, ServerOptions};
use siltstone_storage::link::{MemoryNetwork, Network};
use siltstone_storage::{MemoryStorage, Runtime, Storage, StorageErrorKind};
use siltstone_table::exec::InputMap;
use siltstone_table::exec::part::Part;
use siltstone_table::exec::survivors::{Extent, Survivors};
use siltstone_table::job::outcome::Counters;
use siltstone_table::job::{Extension, InputKind, Job};

/// A job may only continue after tables that an attempt of its own store made, so it cannot name
/// any other file.
#[test]
fn a_job_does_not_go_on_after_what_it_cannot_have_made() {
    with_device(14, |setup| {
        let peer = Peer::with_lease(setup);
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
        let peer = Peer::with_lease(setup);
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

type Change = fn(&mut Job);

/// The numbers of RFC 12, section 4, that a job can have. The device understands the request and
/// declines the job, with a reason that names the number, so that the host can run it elsewhere.
#[test]
fn jobs_with_a_reserved_number_are_declined() {
    with_device(44, |setup| {
        let peer = Peer::with_lease(setup);
        let changes: &[(&str, Change)] = &[
            ("at location 1,", |j| j.inputs[0].location = 1),
            ("kind 2", |j| j.inputs[0].kind = InputKind::from_number(2)),
            ("kind 255", |j| {
                j.inputs[0].kind = InputKind::from_number(255)
            }),
            ("layout version 1", |j| j.layout_version = 1),
            ("layout version 3", |j| j.layout_version = 3),
            ("extension merge version 1", |j| {
                j.extensions = vec![Extension {
                    name: "merge".into(),
                    version: 1,
                    params: b"\x01\0\0\0add".to_vec(),
                }]
            }),
        ];
        for (at, (says, change)) in changes.iter().enumerate() {
            let attempt = at as u64 + 1;
            let mut job = common::jobs::a_job();
            change(&mut job);
            let work = put_work(&job.encode(), &[], 1 << 20).0;
            peer.ask(2 * attempt, &common::jobs::begin(attempt), &work);
            peer.receive(Duration::from_millis(50));
            let wait = Request::WaitJob {
                attempt,
                parts_known: 0,
                wait_ms: 100,
                bytes_per_s: 0,
                paid_bytes: 0,
            };
            peer.ask(2 * attempt + 1, &wait, b"");
            let Some(Answer::Job(status)) = peer.answer() else {
                panic!("{says}: no status");
            };
            let Some(JobEnd::Declined(reason)) = status.end else {
                panic!("{says}: {:?}", status.end);
            };
            assert!(reason.contains(says), "{says}: {reason}");
        }
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

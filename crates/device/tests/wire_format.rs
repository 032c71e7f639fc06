//! Compares `docs/format/wire.md` with the code. The code writes and reads exactly the hellos and
//! the frame that are built here by hand as the page says. The tables of the page have exactly the
//! existing fields, in order.

use proptest::prelude::*;
use siltstone_device::wire::answer::{Answer, WORKING};
use siltstone_device::wire::frame::{FrameHeader, HEADER_BYTES, Label, header_of};
use siltstone_device::wire::hello::{ClientHello, FolderWanted, Refusal, ServerHello, Welcome};
use siltstone_device::wire::job::{JobCounts, JobEnd, JobOrder, JobStatus, Place};
use siltstone_device::wire::machine::{Machine, MergeRate};
use siltstone_device::wire::request::{FileChange, NamesChange, Request};
use siltstone_device::wire::survivors::SurvivorsPiece;
use siltstone_storage::{ObjectMeta, StorageError, StorageErrorKind};

const PAGE: &str = include_str!("../../../docs/format/wire.md");

/// The tags in the table below a heading of the page.
fn tags(heading: &str) -> Vec<u16> {
    let section = PAGE.split(heading).nth(1).unwrap();
    let section = section.split("\n##").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| "));
    rows.filter_map(|row| row.split(' ').next()?.parse().ok())
        .collect()
}

/// A hello of version 1 with these fields.
fn by_hand(fields: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (tag, field) in fields {
        body.extend(tag.to_le_bytes());
        body.extend((field.len() as u32).to_le_bytes());
        body.extend(field);
    }
    let mut bytes = b"siltlink\x01\0\x01\0".to_vec();
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(body);
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

/// *Bytes* as the page defines them: a length and the bytes.
fn bytes_of(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_le_bytes()[..], bytes].concat()
}

#[test]
fn the_hello_of_a_host_is_encoded_as_the_page_says() {
    let named = FolderWanted::Named {
        name: "db".into(),
        create: true,
    };
    for (folder, field) in [
        (FolderWanted::None, vec![0]),
        (named, [vec![1, 1], bytes_of(b"db")].concat()),
        (FolderWanted::Scratch, vec![2]),
    ] {
        let hello = ClientHello {
            token: *b"0123456789abcdef",
            folder,
            host: "box".into(),
        };
        let fields = [
            (1, bytes_of(b"0123456789abcdef")),
            (2, field),
            (3, bytes_of(b"box")),
        ];
        assert_eq!(
            fields.each_ref().map(|f| f.0).to_vec(),
            tags("### Of a host")
        );
        let bytes = by_hand(&fields);
        assert_eq!(hello.encode(), bytes);
        assert_eq!(ClientHello::decode(&bytes), Ok((1, hello)));
    }
}

#[test]
fn the_hello_of_a_device_is_encoded_as_the_page_says() {
    let welcome = ServerHello::Welcome(Welcome {
        state: *b"fedcba9876543210",
        boot: vec![4, 5],
        device: *b"another16letters",
        name: "dpu0".into(),
        slots: (2, 3),
        open_objects_max: 258,
        keep_bytes: 7,
        capabilities: 1,
    });
    let mut limits = vec![2, 0, 0, 0, 3, 0, 0, 0];
    limits.extend([2, 1, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
    let fields = [
        (1, vec![0]),
        (2, bytes_of(b"fedcba9876543210")),
        (3, bytes_of(&[4, 5])),
        (4, bytes_of(b"another16letters")),
        (5, bytes_of(b"dpu0")),
        (6, limits),
        (0x8001, vec![1, 0, 0, 0]),
    ];
    assert_eq!(
        fields.each_ref().map(|f| f.0).to_vec(),
        tags("### Of a device")
    );
    let bytes = by_hand(&fields);
    assert_eq!(welcome.encode(1), bytes);
    assert_eq!(ServerHello::decode(&bytes), Ok((1, welcome.clone())));
    // An older device does not report its capabilities.
    let ServerHello::Welcome(welcome) = welcome else {
        panic!("it was made as a welcome");
    };
    let older = ServerHello::Welcome(Welcome {
        capabilities: 0,
        ..welcome
    });
    assert_eq!(ServerHello::decode(&by_hand(&fields[..6])), Ok((1, older)));
    let refused = ServerHello::Refused(Refusal {
        kind: StorageErrorKind::NotFound,
        reason: "no".into(),
    });
    let bytes = by_hand(&[(1, [vec![1], bytes_of(b"no")].concat())]);
    assert_eq!(refused.encode(1), bytes);
    assert_eq!(ServerHello::decode(&bytes), Ok((1, refused)));
}

#[test]
fn a_frame_is_encoded_as_the_page_says() {
    let label = Label {
        number: 0x0102_0304_0506_0708,
        kind: 0x2122,
        flags: 0x3132,
    };
    let header = header_of(label, b"ab", &[b"c", b"de"]);
    let mut bytes = vec![2, 0, 0, 0, 3, 0, 0, 0];
    bytes.extend([8, 7, 6, 5, 4, 3, 2, 1]);
    bytes.extend([0x22, 0x21, 0x32, 0x31]);
    bytes.extend(crc32c::crc32c(b"abcde").to_le_bytes());
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    assert_eq!(bytes.len(), HEADER_BYTES);
    assert_eq!(header.encode()[..], bytes);
    assert_eq!(
        FrameHeader::decode(bytes.first_chunk().unwrap()),
        Ok(header)
    );
}

/// Builds the values of a message from a description such as `u64=5 text=db flag=1`.
fn values(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for value in text.split_whitespace() {
        let (kind, value) = value.split_once('=').unwrap();
        let number = || value.parse::<u64>().unwrap().to_le_bytes();
        match kind {
            "u8" | "flag" => bytes.push(number()[0]),
            "u32" | "count" => bytes.extend(&number()[..4]),
            "u64" => bytes.extend(number()),
            "text" => bytes.extend(bytes_of(value.as_bytes())),
            "id" => bytes.extend(value.as_bytes()),
            other => panic!("{other}"),
        }
    }
    bytes
}

fn names(number: u64, change: NamesChange) -> Request {
    Request::Names {
        number,
        epoch: 9,
        change,
    }
}

fn file(change: FileChange) -> Request {
    Request::File {
        file: 4,
        number: 5,
        change,
    }
}

/// One request of each kind, with its kind and a description of its values.
fn requests() -> Vec<(Request, u16, &'static str)> {
    let id = *b"0123456789abcdef";
    let name = || "db".to_string();
    let order = JobOrder {
        attempt: 1,
        store: id,
        place: Place::Shared { path: name() },
        epoch: 2,
        max_parallel: 3,
        bytes_per_s: 4,
        silence_ms: 5,
    };
    vec![
        (Request::KeepAlive, 1, ""),
        (Request::Goodbye, 2, ""),
        (
            Request::Lease {
                id,
                name: name(),
                shared: true,
                again: Some(7),
            },
            3,
            "id=0123456789abcdef text=db flag=1 flag=1 u64=7",
        ),
        (Request::Release { id }, 4, "id=0123456789abcdef"),
        (
            Request::Reopen {
                name: name(),
                file: 4,
                epoch: 9,
                position: 6,
            },
            5,
            "text=db u64=4 u64=9 u64=6",
        ),
        (Request::Close { file: 4 }, 6, "u64=4"),
        (
            Request::Open {
                name: name(),
                file: 4,
                direct: true,
            },
            7,
            "text=db u64=4 flag=1",
        ),
        (
            Request::Read {
                file: 4,
                ranges: vec![(1, 2), (3, 4)],
            },
            8,
            "u64=4 count=2 u64=1 u32=2 u64=3 u32=4",
        ),
        (Request::ReadSmall { name: name() }, 9, "text=db"),
        (Request::List { after: name() }, 10, "text=db"),
        (Request::FreeBytes, 11, ""),
        (Request::CheckDirect, 12, ""),
        (
            Request::ProveFolder {
                name: name(),
                salt: id,
                path: "/p".into(),
            },
            13,
            "text=db id=0123456789abcdef text=/p",
        ),
        (
            Request::WaitJob {
                attempt: 1,
                parts_known: 2,
                wait_ms: 3,
                bytes_per_s: 4,
                paid_bytes: 5,
            },
            14,
            "u64=1 u32=2 u32=3 u64=4 u64=5",
        ),
        (Request::CancelJob { attempt: 1 }, 15, "u64=1"),
        (
            Request::ReadOutcome {
                attempt: 1,
                offset: 2,
            },
            16,
            "u64=1 u64=2",
        ),
        (Request::ForgetJob { attempt: 1 }, 17, "u64=1"),
        (
            Request::OpenFinished {
                name: name(),
                file: 4,
                tail: 5,
                descriptor: true,
            },
            18,
            "text=db u64=4 u32=5 flag=1",
        ),
        (
            Request::Survivors(SurvivorsPiece {
                attempt: 1,
                subjob: 2,
                number: 3,
                ends_chunk: true,
            }),
            19,
            "u64=1 u32=2 u64=3 flag=1",
        ),
        (
            Request::ReadPart {
                attempt: 1,
                index: 2,
                offset: 3,
            },
            20,
            "u64=1 u32=2 u64=3",
        ),
        (Request::Describe, 24, ""),
        (Request::Echo { len: 5 }, 25, "u32=5"),
        (
            Request::MeasureMerge {
                codec: 2,
                level: 3,
                value_bytes: 4,
            },
            26,
            "u8=2 u8=3 u32=4",
        ),
        (
            names(
                5,
                NamesChange::Create {
                    name: name(),
                    file: 4,
                    direct: false,
                },
            ),
            32,
            "u64=5 u64=9 text=db u64=4 flag=0",
        ),
        (
            names(
                5,
                NamesChange::Recycle {
                    old: name(),
                    new: "x".into(),
                    file: 4,
                },
            ),
            33,
            "u64=5 u64=9 text=db text=x u64=4",
        ),
        (
            names(
                5,
                NamesChange::SyncObject {
                    name: name(),
                    rewrite: true,
                },
            ),
            34,
            "u64=5 u64=9 text=db flag=1",
        ),
        (
            names(5, NamesChange::Delete { name: name() }),
            35,
            "u64=5 u64=9 text=db",
        ),
        (
            names(
                5,
                NamesChange::Rename {
                    old: name(),
                    new: "x".into(),
                },
            ),
            36,
            "u64=5 u64=9 text=db text=x",
        ),
        (
            names(5, NamesChange::Publish { name: name() }),
            37,
            "u64=5 u64=9 text=db",
        ),
        (
            names(5, NamesChange::Replace { name: name() }),
            38,
            "u64=5 u64=9 text=db",
        ),
        (
            names(
                5,
                NamesChange::Import {
                    name: name(),
                    from: id,
                    from_name: "x".into(),
                },
            ),
            39,
            "u64=5 u64=9 text=db id=0123456789abcdef text=x",
        ),
        (names(5, NamesChange::SyncDir), 40, "u64=5 u64=9"),
        (names(5, NamesChange::SyncParents), 41, "u64=5 u64=9"),
        (
            names(5, NamesChange::BeginJob(order.clone())),
            42,
            "u64=5 u64=9 u64=1 id=0123456789abcdef u8=1 text=db u64=2 u32=3 u64=4 u64=5",
        ),
        (
            names(5, NamesChange::BeginRebuild(order)),
            43,
            "u64=5 u64=9 u64=1 id=0123456789abcdef u8=1 text=db u64=2 u32=3 u64=4 u64=5",
        ),
        (
            file(FileChange::Append { position: 6 }),
            64,
            "u64=4 u64=5 u64=6",
        ),
        (
            file(FileChange::Reserve { len: 6 }),
            65,
            "u64=4 u64=5 u64=6",
        ),
        (file(FileChange::Truncate), 66, "u64=4 u64=5"),
        (file(FileChange::Sync), 67, "u64=4 u64=5"),
    ]
}

/// The kinds in the table below a heading of the page.
fn kinds(heading: &str) -> Vec<u16> {
    let section = PAGE.split(heading).nth(1).unwrap();
    let section = section.split("\n##").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| "));
    rows.filter_map(|row| {
        let kind = row.split(' ').next()?;
        match kind.strip_prefix("0x") {
            Some(hex) => u16::from_str_radix(hex, 16).ok(),
            None => kind.parse().ok(),
        }
    })
    .collect()
}

#[test]
fn requests_are_encoded_as_the_page_says() {
    let requests = requests();
    let listed: Vec<u16> = requests.iter().map(|(_, kind, _)| *kind).collect();
    assert_eq!(kinds("## Requests"), listed);
    for (request, kind, text) in requests {
        assert_eq!(request.kind(), kind, "{request:?}");
        let bytes = values(text);
        assert_eq!(request.encode(), bytes, "{request:?}");
        assert_eq!(Request::decode(kind, &bytes), Ok(request.clone()));
        // One byte less or more is damage.
        let longer = [&bytes[..], &[0]].concat();
        assert!(Request::decode(kind, &longer).is_err(), "{request:?}");
        if let Some((_, shorter)) = bytes.split_last() {
            assert!(Request::decode(kind, shorter).is_err() || shorter.len() == bytes.len());
        }
    }
    assert!(Request::decode(999, b"").is_err());
}

/// One answer of each kind, with its kind and a description of its values.
fn answers() -> Vec<(Answer, u16, &'static str)> {
    let error = StorageError::new(StorageErrorKind::NoSpace, "append", "x", "full").at(7);
    let objects = vec![ObjectMeta {
        name: "x".into(),
        len: 5,
    }];
    let status = JobStatus {
        counts: JobCounts {
            entries: 1,
            bytes_in: 2,
            bytes_out: 3,
            tables: 4,
            beats: 5,
            cpu_ns: 6,
            spent_bytes: 7,
        },
        parts: vec![b"p".to_vec()],
        parts_hold: true,
        end: Some(JobEnd::Done { outcome_bytes: 8 }),
    };
    vec![
        (Answer::Done, 0x8001, ""),
        (
            Answer::Failed(error),
            0x8002,
            "u8=3 text=append text=x flag=1 u64=7 text=full",
        ),
        (Answer::Ended, 0x8003, ""),
        (Answer::Leased { epoch: 5 }, 0x8004, "u64=5"),
        (Answer::Opened { len: 5 }, 0x8005, "u64=5"),
        (Answer::Bytes, 0x8006, ""),
        (
            Answer::Objects {
                objects,
                more: true,
            },
            0x8007,
            "count=1 text=x u64=5 flag=1",
        ),
        (Answer::FreeBytes(Some(6)), 0x8008, "flag=1 u64=6"),
        (
            Answer::Job(status),
            0x8009,
            "u64=1 u64=2 u64=3 u64=4 u64=5 u64=6 u64=7 count=1 text=p flag=1 u8=1 u64=8",
        ),
        (
            Answer::Proof(*b"0123456789abcdef"),
            0x800a,
            "id=0123456789abcdef",
        ),
        (Answer::Later, 0x800b, ""),
        (
            Answer::Machine(Machine {
                cores: 1,
                memory_bytes: 2,
                free_bytes: Some(3),
                write_bytes_per_s: 4,
                read_bytes_per_s: 5,
                reads_are_direct: true,
            }),
            0x8010,
            "u32=1 u64=2 flag=1 u64=3 u64=4 u64=5 flag=1",
        ),
        (
            Answer::Merged(MergeRate {
                in_bytes: 1,
                out_bytes: 2,
                ns: 3,
                cpu_ns: 4,
            }),
            0x8011,
            "u64=1 u64=2 u64=3 u64=4",
        ),
    ]
}

#[test]
fn answers_are_encoded_as_the_page_says() {
    let answers = answers();
    let mut listed: Vec<u16> = answers.iter().map(|(_, kind, _)| *kind).collect();
    listed.push(WORKING);
    assert_eq!(kinds("## Answers"), listed);
    for (answer, kind, text) in answers {
        assert_eq!(answer.kind(), kind, "{answer:?}");
        let bytes = values(text);
        assert_eq!(answer.encode(), bytes, "{answer:?}");
        let decoded = Answer::decode(kind, &bytes).unwrap();
        assert_eq!(format!("{decoded:?}"), format!("{answer:?}"));
        assert!(Answer::decode(kind, &[&bytes[..], &[0]].concat()).is_err());
    }
    assert!(Answer::decode(0x8fff, b"").is_err());
}

#[test]
fn all_ends_of_jobs_are_read_as_they_are_written() {
    let storage = StorageError::new(StorageErrorKind::Io, "sync", "x", "bad");
    for end in [
        None,
        Some(JobEnd::Done { outcome_bytes: 1 }),
        Some(JobEnd::Declined("busy".into())),
        Some(JobEnd::Cancelled),
        Some(JobEnd::Storage(storage)),
        Some(JobEnd::Failed("damaged".into())),
    ] {
        let answer = Answer::Job(JobStatus {
            counts: JobCounts::default(),
            parts: Vec::new(),
            parts_hold: false,
            end,
        });
        let decoded = Answer::decode(answer.kind(), &answer.encode()).unwrap();
        assert_eq!(format!("{decoded:?}"), format!("{answer:?}"));
    }
}

proptest! {
    /// Whatever the bytes are, decoding returns. If it succeeds, the encoded value can be decoded
    /// again, and is the same then.
    #[test]
    fn any_bytes_are_decoded_or_refused(
        kind in prop_oneof![0u16..80, 0x8000u16..0x8020],
        bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        if let Ok(request) = Request::decode(kind, &bytes) {
            prop_assert_eq!(Request::decode(kind, &request.encode()), Ok(request));
        }
        if let Ok(answer) = Answer::decode(kind, &bytes) {
            let encoded = answer.encode();
            let again = Answer::decode(kind, &encoded).map(|answer| answer.encode());
            prop_assert_eq!(again, Ok(encoded));
        }
    }
}

//! The data path of a client: joined appends, bytes that are read ahead, and finished objects that
//! are passed as descriptors.

mod common;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use common::{address, simulated};
use siltstone_device::wire::frame::{Label, flag, header_of};
use siltstone_device::wire::hello::capability;
use siltstone_device::wire::{
    Answer, ClientHello, FrameReader, Request, ServerHello, Welcome, hello,
};
use siltstone_device::{ClientOptions, DataFolder, Device, FolderWanted, Server, ServerOptions};
use siltstone_storage::link::{
    Address, Connection, LinkFaults, LinkResult, Listener, Network, Received, SocketNetwork,
};
use siltstone_storage::{
    Access, Epoch, FileStorage, Instant, ReadFile, Runtime, Storage, StorageErrorKind,
};

/// Bytes that differ from position to position.
fn pattern(len: usize, salt: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ salt)
        .collect()
}

fn slow() -> LinkFaults {
    LinkFaults {
        delay: Duration::from_millis(2),
        ..LinkFaults::default()
    }
}

fn create(storage: &dyn Storage, epoch: Epoch, name: &str, bytes: &[u8]) {
    let file = storage.create(epoch, name).unwrap();
    file.append(&[bytes]).unwrap();
    file.sync().unwrap();
}

#[test]
fn small_appends_are_joined_and_arrive_in_their_order() {
    for seed in 0..10 {
        simulated(seed, move |setup| {
            setup.network.set_faults(slow());
            let device = setup.connect("db");
            let storage = device.storage();
            let lease = storage.lease("store").unwrap();
            let file = storage.create(lease.epoch(), "log").unwrap();
            let mut expected = Vec::new();
            let sent_before = device.report().sent_bytes;
            for n in 0..2000u32 {
                let bytes = n.to_be_bytes().repeat(1 + (n as usize * 7) % 30);
                file.append(&[&bytes[..2], &bytes[2..]]).unwrap();
                expected.extend_from_slice(&bytes);
                if n % 701 == 700 {
                    file.sync().unwrap();
                }
            }
            file.sync().unwrap();
            assert_eq!(storage.read_small("log").unwrap(), expected, "seed {seed}");
            let report = device.report();
            assert!(report.joined_count > 1000, "{} joined", report.joined_count);
            let sent = report.sent_bytes - sent_before;
            let most = expected.len() as u64 * 3 / 2;
            assert!(sent < most, "{sent} bytes for {}", expected.len());
            lease.release().unwrap();
            device.close();
        });
    }
}

#[test]
fn an_append_is_sent_at_once_if_nothing_is_under_way() {
    simulated(3, |setup| {
        let device = setup.connect("db");
        let storage = device.storage();
        let lease = storage.lease("store").unwrap();
        let file = storage.create(lease.epoch(), "log").unwrap();
        for n in 0..20u8 {
            file.append(&[&[n]]).unwrap();
            // Nobody asks for the bytes, and the keeper has not run yet.
            setup.runtime.sleep(Duration::from_millis(20));
            let there = setup.folders.folder("db").open("log").unwrap();
            assert_eq!(there.len(), u64::from(n) + 1);
        }
        assert_eq!(device.report().joined_count, 0);
        lease.release().unwrap();
        device.close();
    });
}

#[test]
fn joined_appends_that_fail_fail_the_file() {
    for seed in 0..10 {
        simulated(seed, move |setup| {
            setup.network.set_faults(slow());
            let device = setup.connect("db");
            let storage = device.storage();
            let lease = storage.lease("store").unwrap();
            let folder = setup.folders.folder("db");
            folder.set_capacity(Some(folder.used_bytes() + 20_000));
            let file = storage.create(lease.epoch(), "log").unwrap();
            let mut accepted = Vec::new();
            let mut failed = None;
            for n in 0..3000u32 {
                let bytes = n.to_be_bytes().repeat(8);
                match file.append(&[&bytes]) {
                    Ok(()) => accepted.extend_from_slice(&bytes),
                    Err(error) => {
                        failed = Some(error);
                        break;
                    }
                }
            }
            let error = file.sync().unwrap_err();
            assert_eq!(error.kind, StorageErrorKind::NoSpace);
            assert!(failed.is_none_or(|error| error.kind == StorageErrorKind::NoSpace));
            let later = file.append(&[b"later"]).unwrap_err();
            assert_eq!(later.kind, StorageErrorKind::NoSpace);
            // What the folder contains is a prefix of what was appended.
            let there = folder.read_small("log").unwrap();
            assert!(
                there.len() <= 20_000 && accepted.starts_with(&there),
                "seed {seed}"
            );
            lease.release().unwrap();
            device.close();
        });
    }
}

/// Reads the whole object in pieces.
fn read_in_pieces(file: &dyn ReadFile, piece: usize) -> Vec<u8> {
    let mut all = vec![0; file.len() as usize];
    let mut at = 0;
    for buf in all.chunks_mut(piece) {
        file.read_at(at, buf).unwrap();
        at += buf.len() as u64;
    }
    all
}

#[test]
fn readers_from_front_to_back_are_served_ahead() {
    for seed in 0..10 {
        simulated(seed, move |setup| {
            setup.network.set_faults(slow());
            let device = setup.connect("db");
            let storage = device.storage();
            let lease = storage.lease("store").unwrap();
            let bytes = pattern(5_000_001, seed as u8);
            create(&*storage, lease.epoch(), "table", &bytes);
            for piece in [4096, 10_000, 300_000, 1 << 20, 3 << 20] {
                let file = storage.open_finished("table").unwrap();
                let before = device.report();
                assert!(
                    read_in_pieces(&*file, piece) == bytes,
                    "seed {seed}, {piece}"
                );
                let after = device.report();
                let ahead = after.ahead_bytes - before.ahead_bytes;
                let received = after.received_bytes - before.received_bytes;
                assert!(
                    received < 5_200_000,
                    "{received} bytes in pieces of {piece}"
                );
                let read_before = 3 * piece as u64;
                assert!(
                    ahead + read_before >= 5_000_001 || piece > 1 << 20,
                    "{ahead}"
                );
                if piece == 4096 {
                    // A request has about 60 bytes.
                    let sent = after.sent_bytes - before.sent_bytes;
                    assert!(sent < 60 * 60, "{sent} bytes of requests");
                }
            }
            // There are two readers of one object, one of which announces what it will read.
            let file = storage.open_finished("table").unwrap();
            let (mut a, mut b) = (vec![0; 100_000], vec![0; 100_000]);
            for n in 0..20u64 {
                let at = n * 100_000;
                file.read_at(at, &mut a).unwrap();
                file.read_at(2_500_000 + at, &mut b).unwrap();
                file.advise(Access::WillNeed, 2_600_000 + at, 200_000);
                assert!(a == bytes[at as usize..][..100_000], "seed {seed}");
                assert!(
                    b == bytes[2_500_000 + at as usize..][..100_000],
                    "seed {seed}"
                );
            }
            // Reads at random positions read nothing ahead.
            let file = storage.open("table").unwrap();
            let before = device.report().ahead_bytes;
            let mut buf = [0; 1000];
            for n in 0..50u64 {
                let at = (n * 1_234_577) % 4_900_000;
                file.read_at(at, &mut buf).unwrap();
                assert_eq!(buf, bytes[at as usize..][..1000]);
            }
            assert_eq!(device.report().ahead_bytes, before);
            // A reader that announces such reads may read a while from front to back.
            file.advise(Access::Random, 0, file.len());
            assert!(read_in_pieces(&*file, 100_000) == bytes, "seed {seed}");
            assert_eq!(device.report().ahead_bytes, before);
            file.advise(Access::Sequential, 0, file.len());
            assert!(read_in_pieces(&*file, 100_000) == bytes, "seed {seed}");
            assert!(device.report().ahead_bytes > before);
            lease.release().unwrap();
            device.close();
        });
    }
}

#[test]
fn cut_links_do_not_disturb_readers_ahead() {
    for seed in 0..20 {
        simulated(seed, move |setup| {
            let device = setup.connect_with(
                "db",
                ClientOptions {
                    time_limit: Duration::from_secs(120),
                    ..ClientOptions::default()
                },
            );
            let storage = device.storage();
            let lease = storage.lease("store").unwrap();
            let bytes = pattern(3_000_000, seed as u8);
            create(&*storage, lease.epoch(), "table", &bytes);
            setup.network.set_faults(LinkFaults {
                cut: 1000,
                freeze: 100,
                ..slow()
            });
            let file = storage.open_finished("table").unwrap();
            assert!(read_in_pieces(&*file, 8192) == bytes, "seed {seed}");
            setup.network.set_faults(LinkFaults::default());
            lease.release().unwrap();
            device.close();
        });
    }
}

/// Nothing that was read ahead is older than a change that this host has made before.
#[test]
fn nothing_is_read_ahead_of_an_object_that_is_written() {
    simulated(5, |setup| {
        let device = setup.connect("db");
        let storage = device.storage();
        let lease = storage.lease("store").unwrap();
        let epoch = lease.epoch();
        let (old, new) = (pattern(1 << 20, 1), pattern(1 << 20, 2));
        create(&*storage, epoch, "old", &old);
        let file = storage.open("old").unwrap();
        let mut buf = vec![0; 16 << 10];
        for n in 0..8 {
            file.read_at(n << 14, &mut buf).unwrap();
        }
        assert!(
            device.report().ahead_bytes > 0,
            "the next bytes are there already"
        );
        // The object is overwritten, and the reader continues.
        let written = storage.recycle(epoch, "old", "recycled").unwrap();
        written.append(&[&new]).unwrap();
        file.read_at(8 << 14, &mut buf).unwrap();
        assert_eq!(buf, new[8 << 14..][..16 << 10]);
        // It is not read ahead again either, even by later readers.
        let asked = device.report().ahead_bytes;
        let late = storage.open("recycled").unwrap();
        for n in 0..8 {
            file.read_at(n << 14, &mut buf).unwrap();
            late.read_at(n << 14, &mut buf).unwrap();
        }
        assert_eq!(device.report().ahead_bytes, asked);
        written.truncate_to_position().unwrap();
        written.sync().unwrap();
        drop(written);

        // A name that is given to another object changes nothing: the reader has the old object.
        create(&*storage, epoch, "a", &old);
        create(&*storage, epoch, "b", &new);
        let file = storage.open("a").unwrap();
        for n in 0..4 {
            file.read_at(n << 14, &mut buf).unwrap();
        }
        storage.rename(epoch, "b", "a").unwrap();
        for n in 4..64u64 {
            file.read_at(n << 14, &mut buf).unwrap();
            assert_eq!(buf, old[n as usize * (16 << 10)..][..16 << 10]);
        }
        let file = storage.open_finished("a").unwrap();
        assert!(read_in_pieces(&*file, 16 << 10) == new);
        lease.release().unwrap();
        device.close();
    });
}

#[test]
fn what_is_read_ahead_is_bounded_and_given_back() {
    simulated(6, |setup| {
        let options = ClientOptions {
            ahead_bytes: 3 << 20,
            connections_max: 8,
            ..ClientOptions::default()
        };
        let device = setup.connect_with("db", options);
        let storage = device.storage();
        let lease = storage.lease("store").unwrap();
        let bytes = pattern(4 << 20, 9);
        create(&*storage, lease.epoch(), "table", &bytes);
        let files: Vec<_> = (0..20).map(|_| storage.open("table").unwrap()).collect();
        let mut buf = vec![0; 64 << 10];
        for n in 0..20u64 {
            for file in &files {
                file.read_at(n << 16, &mut buf).unwrap();
                assert_eq!(buf, bytes[n as usize * (64 << 10)..][..64 << 10]);
                file.advise(Access::WillNeed, (n + 1) << 16, 2 << 20);
            }
        }
        let asked = device.report().ahead_bytes;
        assert!(asked > 0);
        // Other calls still get connections, and idle readers give theirs back.
        setup.runtime.sleep(Duration::from_secs(5));
        let other = storage.open("table").unwrap();
        assert!(read_in_pieces(&*other, 32 << 10) == bytes);
        assert!(device.report().ahead_bytes > asked);
        lease.release().unwrap();
        device.close();
    });
}

/// A device at a Unix socket, with files.
struct World {
    dir: tempfile::TempDir,
    runtime: Runtime,
    network: Arc<dyn Network>,
    server: Option<Server>,
}

impl World {
    fn new() -> World {
        let runtime = Runtime::threads();
        let network: Arc<dyn Network> = Arc::new(SocketNetwork::new(&runtime));
        let mut world = World {
            dir: tempfile::tempdir().unwrap(),
            runtime,
            network,
            server: None,
        };
        world.start();
        world
    }

    fn start(&mut self) {
        let folders = Arc::new(DataFolder::open(self.dir.path().join("data")).unwrap());
        let addresses = [self.address()];
        let options = ServerOptions::default();
        let server = Server::start(&self.runtime, &self.network, &addresses, folders, options);
        self.server = Some(server.unwrap());
    }

    fn stop(&mut self) {
        self.server.take().unwrap().stop();
    }

    fn address(&self) -> Address {
        let path = self.dir.path().join("socket");
        format!("unix:{}", path.display()).parse().unwrap()
    }

    fn connect(&self, options: ClientOptions) -> Arc<Device> {
        let folder = FolderWanted::Named {
            name: "db".into(),
            create: true,
        };
        let network = Arc::clone(&self.network);
        Device::connect(&self.runtime, network, self.address(), folder, options).unwrap()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}

fn impatient() -> ClientOptions {
    ClientOptions {
        time_limit: Duration::from_millis(500),
        ..ClientOptions::default()
    }
}

#[test]
fn finished_objects_come_as_descriptors_and_outlive_names_and_devices() {
    let mut world = World::new();
    let device = world.connect(impatient());
    let storage = device.storage();
    let lease = storage.lease("store").unwrap();
    let bytes = pattern(3_000_000, 4);
    create(&*storage, lease.epoch(), "table", &bytes);
    let file = storage.open_finished("table").unwrap();
    assert_eq!((file.name(), file.len()), ("table", 3_000_000));
    assert_eq!(device.report().passed_count, 1);
    let before = device.report().received_bytes;
    assert!(read_in_pieces(&*file, 100_000) == bytes);
    let map = file
        .map()
        .unwrap()
        .expect("a file of this machine has a map");
    let mut copy = vec![0; bytes.len()];
    assert!(map.copy_to(0, &mut copy) && !map.failed() && copy == bytes);
    // The keeper may have sent a sign of life meanwhile.
    assert!(device.report().received_bytes - before < 1000);
    // The descriptor can be read only.
    let descriptor = file.descriptor().unwrap().try_clone_to_owned().unwrap();
    assert!(File::from(descriptor).write(b"x").is_err());

    storage.delete(lease.epoch(), "table").unwrap();
    create(&*storage, lease.epoch(), "table", b"another object");
    assert!(read_in_pieces(&*file, 1 << 20) == bytes);
    let missing = storage.open_finished("none").err().unwrap();
    assert_eq!(missing.kind, StorageErrorKind::NotFound);
    let other = storage.open_finished("table").unwrap();
    assert_eq!(read_in_pieces(&*other, 100), b"another object");

    world.stop();
    assert!(read_in_pieces(&*file, 1 << 20) == bytes);
    let unreachable = storage.open_finished("table").err().unwrap();
    assert_eq!(unreachable.kind, StorageErrorKind::Unreachable);
    device.close();
}

/// D2 of RFC 9: every request of a fenced host fails. A finished object that the host has open
/// needs no request, and its bytes stay right for ever.
#[test]
fn a_fenced_host_reads_what_it_has_open_and_nothing_else() {
    let mut world = World::new();
    let device = world.connect(ClientOptions {
        time_limit: Duration::from_secs(20),
        ..ClientOptions::default()
    });
    let storage = device.storage();
    let lease = storage.lease("store").unwrap();
    let bytes = pattern(300_000, 6);
    create(&*storage, lease.epoch(), "table", &bytes);
    create(&*storage, lease.epoch(), "manifest", b"what is true");
    storage.sync_dir(lease.epoch()).unwrap();
    let table = storage.open_finished("table").unwrap();
    let manifest = storage.open("manifest").unwrap();
    assert_eq!(read_in_pieces(&*manifest, 100), b"what is true");

    // Another host opens the folder while the device is down.
    world.stop();
    let folder = FileStorage::open_existing(world.dir.path().join("data").join("db")).unwrap();
    let other = folder.lease("store").unwrap();
    folder.delete(other.epoch(), "table").unwrap();
    drop(other);
    world.start();

    let fenced = storage.list().unwrap_err();
    assert_eq!(fenced.kind, StorageErrorKind::Fenced, "{fenced}");
    assert!(read_in_pieces(&*table, 50_000) == bytes);
    let mut buf = [0; 4];
    for refused in [
        manifest.read_at(0, &mut buf).err(),
        storage.open("manifest").err(),
        storage.open_finished("table").err(),
        storage.create(lease.epoch(), "more").err(),
    ] {
        let refused = refused.expect("a request of a fenced host");
        assert_eq!(refused.kind, StorageErrorKind::Fenced, "{refused}");
    }
    device.close();
}

#[test]
fn what_may_be_written_crosses_the_link() {
    let world = World::new();
    let device = world.connect(impatient());
    let storage = device.storage();
    let lease = storage.lease("store").unwrap();
    let file = storage.create(lease.epoch(), "log").unwrap();
    file.append(&[b"first"]).unwrap();
    // The object is open for writing, whatever the caller says about it.
    let reader = storage.open_finished("log").unwrap();
    assert_eq!(read_in_pieces(&*reader, 2), b"first");
    assert!(reader.map().unwrap().is_none());
    assert_eq!(device.report().passed_count, 0);
    drop(file);
    // Here the caller does not say that nobody writes to the object.
    assert_eq!(read_in_pieces(&*storage.open("log").unwrap(), 2), b"first");
    assert_eq!(device.report().passed_count, 0);
    // Now the object is finished, even if the keeper has not closed it yet.
    assert_eq!(
        read_in_pieces(&*storage.open_finished("log").unwrap(), 2),
        b"first"
    );
    assert_eq!(device.report().passed_count, 1);
    lease.release().unwrap();
    device.close();

    let without = world.connect(ClientOptions {
        descriptors: false,
        ..impatient()
    });
    let storage = without.storage();
    assert_eq!(
        read_in_pieces(&*storage.open_finished("log").unwrap(), 2),
        b"first"
    );
    assert_eq!(without.report().passed_count, 0);
    without.close();
}

/// A network whose connections only carry bytes, like a limiter or a counter around another
/// network.
struct BytesOnly(Arc<dyn Network>);

struct BytesOnlyConnection(Arc<dyn Connection>);

impl Network for BytesOnly {
    fn connect(&self, to: &Address, until: Instant) -> LinkResult<Arc<dyn Connection>> {
        Ok(Arc::new(BytesOnlyConnection(self.0.connect(to, until)?)))
    }

    fn listen(&self, at: &Address) -> LinkResult<Arc<dyn Listener>> {
        self.0.listen(at)
    }
}

impl Connection for BytesOnlyConnection {
    fn peer(&self) -> String {
        self.0.peer()
    }

    fn is_local(&self) -> bool {
        self.0.is_local()
    }

    fn send(&self, parts: &[&[u8]], until: Instant) -> LinkResult<()> {
        self.0.send(parts, until)
    }

    fn receive(&self, buf: &mut [u8], until: Instant) -> LinkResult<Received> {
        self.0.receive(buf, until)
    }

    fn close(&self) {
        self.0.close();
    }
}

/// The device passes descriptors, but this side cannot receive them.
#[test]
fn a_host_whose_connections_pass_none_asks_for_none() {
    let world = World::new();
    let network: Arc<dyn Network> = Arc::new(BytesOnly(Arc::clone(&world.network)));
    let folder = FolderWanted::Named {
        name: "db".into(),
        create: true,
    };
    let runtime = &world.runtime;
    let device = Device::connect(runtime, network, world.address(), folder, impatient()).unwrap();
    let storage = device.storage();
    let lease = storage.lease("store").unwrap();
    let bytes = pattern(100_000, 8);
    create(&*storage, lease.epoch(), "table", &bytes);
    let file = storage.open_finished("table").unwrap();
    assert!(read_in_pieces(&*file, 5000) == bytes);
    assert_eq!(device.report().passed_count, 0);
    lease.release().unwrap();
    device.close();
}

/// What a hostile device passes instead of the right descriptor.
#[derive(Clone, Copy, Debug)]
enum Passes {
    APipe,
    AFolder,
    AShorterFile,
    Nothing,
    ADescriptorNobodyAskedFor,
}

/// A device that answers every request to open an object in this way, and every other request with
/// `Done`.
fn hostile(connection: &dyn Connection, runtime: &Runtime, passes: Passes, dir: &std::path::Path) {
    let until = || runtime.now() + Duration::from_secs(5);
    let mut head = vec![0; hello::HELLO_HEAD_BYTES];
    let fill = |buf: &mut [u8]| {
        let mut at = 0;
        while at < buf.len() {
            match connection.receive(&mut buf[at..], until()) {
                Ok(Received::Bytes(len)) => at += len,
                _ => return false,
            }
        }
        true
    };
    if !fill(&mut head) {
        return;
    }
    let len = hello::hello_len(head.first_chunk().unwrap()).unwrap();
    head.resize(len, 0);
    assert!(fill(&mut head[hello::HELLO_HEAD_BYTES..]));
    ClientHello::decode(&head).unwrap();
    let welcome = ServerHello::Welcome(Welcome {
        state: [1; 16],
        boot: vec![1],
        device: [2; 16],
        name: "a liar".into(),
        slots: (1, 1),
        open_objects_max: 100,
        keep_bytes: 0,
        capabilities: capability::FINISHED,
    });
    connection.send(&[&welcome.encode(1)], until()).unwrap();
    let mut frames = FrameReader::new();
    loop {
        let frame = match frames.next_frame().unwrap() {
            Some(frame) => frame,
            None => match connection.receive(frames.space(), until()) {
                Ok(Received::Bytes(len)) => {
                    frames.filled(len).unwrap();
                    continue;
                }
                _ => return,
            },
        };
        let request = Request::decode(frame.header.kind, frame.fields()).unwrap();
        let is_open = matches!(request, Request::OpenFinished { .. });
        let answer = match is_open {
            true => Answer::Opened { len: 1 << 20 },
            false => Answer::Done,
        };
        let is_lost = matches!(passes, Passes::Nothing);
        let flags = if is_open { flag::DESCRIPTOR } else { 0 };
        let label = Label {
            number: frame.header.number,
            kind: answer.kind(),
            flags,
        };
        let fields = answer.encode();
        let header = header_of(label, &fields, &[]).encode();
        let parts = [&header[..], &fields];
        let (pipe, _keeps_open) = std::io::pipe().unwrap();
        let folder = File::open(dir).unwrap();
        std::fs::write(dir.join("short"), b"much less").unwrap();
        let short = File::open(dir.join("short")).unwrap();
        let descriptor = match passes {
            Passes::APipe => pipe.as_fd(),
            Passes::AFolder => folder.as_fd(),
            _ => short.as_fd(),
        };
        let passes_here = is_open != matches!(passes, Passes::ADescriptorNobodyAskedFor);
        let sent = match passes_here && !is_lost {
            true => connection.send_with_descriptor(&parts, descriptor, until()),
            false => connection.send(&parts, until()),
        };
        if sent.is_err() {
            return;
        }
    }
}

#[test]
fn descriptors_of_a_hostile_device_are_refused() {
    for (passes, kind, says) in [
        (
            Passes::APipe,
            StorageErrorKind::InvalidInput,
            "not one of a regular file",
        ),
        (
            Passes::AFolder,
            StorageErrorKind::InvalidInput,
            "not one of a regular file",
        ),
        (
            Passes::AShorterFile,
            StorageErrorKind::InvalidInput,
            "has 9 bytes, and 1048576",
        ),
        (
            Passes::Nothing,
            StorageErrorKind::TooManyOpen,
            "could not receive it",
        ),
        (
            Passes::ADescriptorNobodyAskedFor,
            StorageErrorKind::TooManyOpen,
            "could not receive it",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let runtime = Runtime::threads();
        let network: Arc<dyn Network> = Arc::new(SocketNetwork::new(&runtime));
        let address: Address = format!("unix:{}", dir.path().join("socket").display())
            .parse()
            .unwrap();
        let listener = network.listen(&address).unwrap();
        let path = dir.path().to_path_buf();
        let (accepting, rt) = (Arc::clone(&listener), runtime.clone());
        let accept = move || {
            // This ends when the listener is closed.
            while let Ok(accepted) = accepting.accept(rt.now() + Duration::from_secs(20)) {
                let Some(connection) = accepted else { return };
                let (of, path) = (rt.clone(), path.clone());
                let serve = move || hostile(&*connection, &of, passes, &path);
                rt.spawn("a hostile connection", serve).unwrap();
            }
        };
        let accepting = runtime.spawn("a hostile device", accept).unwrap();
        let folder = FolderWanted::Named {
            name: "db".into(),
            create: true,
        };
        let device = Device::connect(&runtime, network, address, folder, impatient()).unwrap();
        let error = device.storage().open_finished("table").err().unwrap();
        assert_eq!(error.kind, kind, "{passes:?}: {error}");
        assert!(error.to_string().contains(says), "{passes:?}: {error}");
        device.close();
        listener.close();
        accepting.join().unwrap();
    }
}

/// Another process makes a file shorter: reads of it fail, but no signal ends this process.
#[test]
fn a_passed_file_that_is_truncated_fails_reads_only() {
    let world = World::new();
    let device = world.connect(impatient());
    let storage = device.storage();
    let lease = storage.lease("store").unwrap();
    create(&*storage, lease.epoch(), "table", &pattern(1 << 20, 3));
    let file = storage.open_finished("table").unwrap();
    let map = file.map().unwrap().unwrap();
    let path = world.dir.path().join("data").join("db").join("table");
    let mut there = Vec::new();
    File::open(&path).unwrap().read_to_end(&mut there).unwrap();
    assert_eq!(there.len(), 1 << 20);
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(5000)
        .unwrap();
    assert!(!map.failed());
    let mut buf = vec![0; 100];
    assert!(map.copy_to(500_000, &mut buf));
    assert!(map.failed(), "the page could not be read");
    let error = file.read_at(500_000, &mut buf).unwrap_err();
    assert_eq!(error.kind, StorageErrorKind::UnexpectedEof);
    lease.release().unwrap();
    device.close();
}

#[test]
fn in_a_simulated_network_no_descriptors_are_passed() {
    simulated(7, |setup| {
        let device = setup.connect("db");
        let storage = device.storage();
        let lease = storage.lease("store").unwrap();
        create(&*storage, lease.epoch(), "table", b"some bytes");
        let deadline = setup.runtime.now() + Duration::from_secs(5);
        let connection = setup.network.connect(&address(), deadline).unwrap();
        assert!(!connection.passes_descriptors());
        assert_eq!(
            read_in_pieces(&*storage.open_finished("table").unwrap(), 3),
            b"some bytes"
        );
        assert_eq!(device.report().passed_count, 0);
        lease.release().unwrap();
        device.close();
    });
}

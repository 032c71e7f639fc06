//! Hostile peers of a real device, without TLS and with it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use siltstone_device::wire::frame::{Label, header_of};
use siltstone_device::wire::{ClientHello, Request};
use siltstone_device::{ClientOptions, Device, FolderWanted, TlsFiles, network};
use siltstone_sim::coverage::Coverage;
use siltstone_sim::rng::Rng;
use siltstone_storage::{Runtime, Storage};

use super::server::ServerProcess;
use super::tls_common::{Authority, Files};

/// The maximum memory that a device may take, no matter who connects to it.
const MEMORY_MAX: u64 = 128 << 20;

/// The number of connections for a seed.
const CONNECTIONS: usize = 100;

/// A device without TLS and one with it.
pub struct Devices {
    plain: ServerProcess,
    tls: ServerProcess,
    authority: Authority,
    stranger: Files,
    _dir: tempfile::TempDir,
}

impl Devices {
    pub fn start() -> Devices {
        let dir = tempfile::tempdir().expect("a folder");
        let authority = Authority::new();
        let files = authority.files(&["127.0.0.1"]);
        let start = |name: &str, tls: Option<&TlsFiles>| {
            ServerProcess::start(&dir.path().join(name), "127.0.0.1:0", tls)
        };
        Devices {
            plain: start("plain", None),
            tls: start("tls", Some(&*files)),
            // The stranger's own certificate is signed by another authority, but it trusts that of
            // the device.
            stranger: Authority::new().files(&["stranger"]).with_ca_of(&authority),
            authority,
            _dir: dir,
        }
    }
}

/// A hello with a token of its own.
fn hello(rng: &mut Rng) -> Vec<u8> {
    let mut token = [0; 16];
    token[..8].copy_from_slice(&rng.draw().to_le_bytes());
    let folder = match rng.below(3) {
        0 => FolderWanted::Scratch,
        1 => FolderWanted::None,
        _ => FolderWanted::Named {
            name: format!("folder-{}", rng.below(20)),
            create: true,
        },
    };
    ClientHello {
        token,
        folder,
        host: "a stranger".into(),
    }
    .encode()
}

fn noise(rng: &mut Rng, most: u64) -> Vec<u8> {
    (0..rng.below(most)).map(|_| rng.draw() as u8).collect()
}

/// What one hostile peer sends, and how long it then keeps the connection.
fn attack(rng: &mut Rng) -> Vec<u8> {
    let mut bytes = Vec::new();
    match rng.below(9) {
        0 => {}
        1 => bytes = noise(rng, 100_000),
        2 => bytes.extend(b"GET / HTTP/1.1\r\nHost: device\r\n\r\n"),
        3 => {
            bytes = hello(rng);
            bytes.truncate(rng.index(bytes.len()));
        }
        4 => {
            // This is a hello that claims to be long.
            bytes.extend(&hello(rng)[..12]);
            bytes.extend((rng.draw() as u32).to_le_bytes());
            bytes.extend(noise(rng, 20_000));
        }
        5 => {
            bytes = hello(rng);
            bytes.extend(noise(rng, 100_000));
        }
        6 => {
            // This is a frame that claims a megabyte that never arrives.
            bytes = hello(rng);
            let request = Request::KeepAlive;
            let label = Label {
                number: 1,
                kind: request.kind(),
                flags: 0,
            };
            let bulk = vec![7; 1 << 20];
            bytes.extend(header_of(label, &request.encode(), &[&bulk]).encode());
        }
        7 => {
            // These are requests of random kinds with matching checksums.
            bytes = hello(rng);
            for number in 1..rng.below(20) {
                let (fields, bulk) = (noise(rng, 100), noise(rng, 1000));
                let kind = rng.below(70) as u16;
                let label = Label {
                    number,
                    kind,
                    flags: 0,
                };
                bytes.extend(header_of(label, &fields, &[&bulk]).encode());
                bytes.extend(fields);
                bytes.extend(bulk);
            }
        }
        // These are the first bytes of a TLS handshake, and then noise.
        _ => {
            bytes.extend([
                0x16,
                0x03,
                0x01,
                rng.below(64) as u8,
                rng.draw() as u8,
                0x01,
            ]);
            bytes.extend(noise(rng, 20_000));
        }
    }
    bytes
}

/// Checks that a correct host is served, at the latest when unused sessions have made room.
fn is_served_soon(address: &str, tls: Option<&TlsFiles>, rng: &mut Rng) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        match is_served(address, tls, rng) {
            Err(why) if begun.elapsed() < Duration::from_secs(20) => {
                let is_full = why.contains("sessions already") || why.contains("does not answer");
                assert!(is_full, "{why}");
                std::thread::sleep(Duration::from_millis(200));
            }
            served => return served,
        }
    }
}

fn is_served(address: &str, tls: Option<&TlsFiles>, rng: &mut Rng) -> Result<(), String> {
    let runtime = Runtime::threads();
    let network = network(&runtime, tls).map_err(|e| e.to_string())?;
    let folder = FolderWanted::Named {
        name: "honest".into(),
        create: true,
    };
    let options = ClientOptions {
        time_limit: Duration::from_secs(30),
        lease_wait: Duration::from_secs(30),
        ..ClientOptions::default()
    };
    let address = address.parse().map_err(|e| format!("{e}"))?;
    let device = Device::connect(&runtime, network, address, folder, options);
    let device = device.map_err(|e| e.to_string())?;
    let mut work = || -> siltstone_storage::Result<()> {
        let storage: Arc<dyn Storage> = device.storage();
        let lease = storage.lease("store")?;
        let name = format!("object-{}", rng.draw());
        let file = storage.create(lease.epoch(), &name)?;
        file.append(&[b"bytes"])?;
        file.sync()?;
        assert_eq!(storage.read_small(&name)?, b"bytes");
        lease.release()
    };
    let worked = work().map_err(|e| e.to_string());
    device.close();
    worked
}

pub fn trial(seed: u64, devices: &Devices) -> Coverage {
    let mut rng = Rng::new(seed ^ 0x4057);
    let mut coverage = Coverage::default();
    let mut kept = Vec::new();
    for _ in 0..CONNECTIONS {
        let address = match rng.chance(50) {
            true => &devices.plain.address,
            false => &devices.tls.address,
        };
        let Ok(mut peer) = TcpStream::connect(address) else {
            continue;
        };
        let _ = peer.set_write_timeout(Some(Duration::from_millis(200)));
        let _ = peer.set_read_timeout(Some(Duration::from_millis(5)));
        let _ = peer.write_all(&attack(&mut rng));
        coverage.add("hostile.connections");
        match rng.below(3) {
            0 => drop(peer),
            1 => drop(peer.read(&mut [0; 4096])),
            _ => kept.push(peer),
        }
    }
    if rng.chance(50) {
        let error = is_served(&devices.tls.address, Some(&devices.stranger), &mut rng);
        let error = error.expect_err("a certificate of another authority was accepted");
        assert!(error.contains("certificate"), "{error}");
        coverage.add("hostile.wrong_certificate");
    }
    drop(kept);
    let certificate = devices.authority.files(&["host"]);
    let honest = [(&devices.plain, None), (&devices.tls, Some(&*certificate))];
    for (device, tls) in honest {
        if let Err(why) = is_served_soon(&device.address, tls, &mut rng) {
            panic!("an honest host is not served: {why}");
        }
        coverage.add("hostile.honest_host_served");
        let most = device.most_memory();
        assert!(most <= MEMORY_MAX, "the device took {most} bytes");
        coverage.add_count("hostile.memory_mib", most >> 20);
    }
    coverage
}

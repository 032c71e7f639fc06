//! A proxy in user space between a host and a device. It cuts connections after some bytes, and
//! freezes others, so that neither side is told.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use siltstone_sim::rng::Rng;

/// What a proxy did.
#[derive(Default)]
pub struct Counts {
    pub cut: AtomicU64,
    pub frozen: AtomicU64,
    is_calm: AtomicBool,
}

/// A proxy. Its threads end with the test's process.
pub struct Proxy {
    pub port: u16,
    pub counts: Arc<Counts>,
}

impl Proxy {
    /// Starts to forward connections to `target`.
    pub fn start(target: &str, seed: u64) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("its port").port();
        let counts = Arc::new(Counts::default());
        let (target, of) = (target.to_string(), Arc::clone(&counts));
        std::thread::spawn(move || {
            let mut rng = Rng::new(seed ^ 0x9707);
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(&target) else {
                    continue;
                };
                forward(near, far, &of, &mut rng);
            }
        });
        Proxy { port, counts }
    }

    /// From now on the proxy does nothing to connections.
    pub fn calm(&self) {
        self.counts.is_calm.store(true, Ordering::SeqCst);
    }

    /// How often the proxy cut or froze a connection.
    pub fn troubles(&self) -> u64 {
        self.counts.cut.load(Ordering::SeqCst) + self.counts.frozen.load(Ordering::SeqCst)
    }
}

/// Forwards both directions of a connection. One of them ends after some bytes.
fn forward(near: TcpStream, far: TcpStream, counts: &Arc<Counts>, rng: &mut Rng) {
    let bytes = match rng.chance(50) {
        true => rng.below(4 << 10),
        false => rng.below(256 << 10),
    };
    let freezes = rng.chance(12);
    let which = rng.below(2);
    for direction in 0..2 {
        let (Ok(near), Ok(far)) = (near.try_clone(), far.try_clone()) else {
            return;
        };
        let (mut from, mut to) = if direction == 0 {
            (near, far)
        } else {
            (far, near)
        };
        let counts = Arc::clone(counts);
        let mut left = if direction == which { bytes } else { u64::MAX };
        std::thread::spawn(move || {
            let mut buf = [0; 16 << 10];
            while let Ok(len @ 1..) = from.read(&mut buf) {
                let is_calm = counts.is_calm.load(Ordering::SeqCst);
                let some = (len as u64).min(left) as usize;
                if !is_calm && some < len {
                    if freezes {
                        counts.frozen.fetch_add(1, Ordering::SeqCst);
                        // The host finds out within three seconds.
                        std::thread::sleep(Duration::from_secs(6));
                    } else {
                        let _ = to.write_all(&buf[..some]);
                        counts.cut.fetch_add(1, Ordering::SeqCst);
                    }
                    break;
                }
                left -= some as u64;
                if to.write_all(&buf[..len]).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Both);
            let _ = from.shutdown(Shutdown::Both);
        });
    }
}

//! A limit on the bytes per second of a client's connections, to simulate a slow link.
//!
//! Each direction has this rate for all connections together. A sender waits until its bytes are
//! paid for. A receiver takes bytes and then waits, so the peer is slowed down by the window of the
//! connection. Unlike a real link, this adds no latency, no headers and no loss.
//!
//! Threading: shared. No task waits while it holds a lock.

use std::sync::Arc;
use std::time::Duration;

use siltstone_storage::link::{Address, Connection, LinkResult, Listener, Network, Received};
use siltstone_storage::token_bucket::TokenBucket;
use siltstone_storage::{Instant, Mutex, Runtime};

/// After a pause, as many bytes can be sent at once as the rate allows in this time.
const BURST: Duration = Duration::from_millis(2);
/// The maximum number of bytes of one piece. A sender waits for each piece separately.
const PIECE_BYTES: usize = 64 << 10;

/// One direction.
struct Lane {
    runtime: Runtime,
    bucket: Mutex<TokenBucket>,
    bytes_per_s: u64,
}

impl Lane {
    fn new(runtime: &Runtime, bytes_per_s: u64) -> Arc<Lane> {
        Arc::new(Lane {
            bucket: runtime.mutex(TokenBucket::new(runtime.now(), BURST)),
            runtime: runtime.clone(),
            bytes_per_s,
        })
    }

    /// Spends bytes, and waits until the lane has no debt.
    fn spend(&self, bytes: usize) {
        self.bucket.lock().spend(bytes as u64);
        loop {
            let wait = {
                let mut bucket = self.bucket.lock();
                bucket.fill(self.runtime.now(), self.bytes_per_s);
                match bucket.is_in_debt() {
                    true => bucket.debt_takes(self.bytes_per_s),
                    false => return,
                }
            };
            self.runtime.sleep(wait);
        }
    }
}

/// A network whose connections share a rate in each direction.
pub(crate) struct LimitedNetwork {
    inner: Arc<dyn Network>,
    sent: Arc<Lane>,
    received: Arc<Lane>,
}

impl LimitedNetwork {
    /// Limits the connections that are made through it.
    pub(crate) fn new(
        runtime: &Runtime,
        inner: Arc<dyn Network>,
        bytes_per_s: u64,
    ) -> LimitedNetwork {
        LimitedNetwork {
            inner,
            sent: Lane::new(runtime, bytes_per_s),
            received: Lane::new(runtime, bytes_per_s),
        }
    }
}

impl Network for LimitedNetwork {
    fn connect(&self, address: &Address, deadline: Instant) -> LinkResult<Arc<dyn Connection>> {
        Ok(Arc::new(Limited {
            inner: self.inner.connect(address, deadline)?,
            sent: Arc::clone(&self.sent),
            received: Arc::clone(&self.received),
        }))
    }

    fn listen(&self, address: &Address) -> LinkResult<Arc<dyn Listener>> {
        self.inner.listen(address)
    }
}

struct Limited {
    inner: Arc<dyn Connection>,
    sent: Arc<Lane>,
    received: Arc<Lane>,
}

impl Connection for Limited {
    fn peer(&self) -> String {
        self.inner.peer()
    }

    fn is_local(&self) -> bool {
        self.inner.is_local()
    }

    fn certified_name(&self) -> Option<String> {
        self.inner.certified_name()
    }

    fn certificate_hash(&self) -> Option<[u8; 32]> {
        self.inner.certificate_hash()
    }

    // A descriptor would let the peer read bytes that cross no link, so none is passed. The default
    // methods of the trait do that.

    fn send(&self, parts: &[&[u8]], deadline: Instant) -> LinkResult<()> {
        for part in parts {
            for piece in part.chunks(PIECE_BYTES) {
                self.sent.spend(piece.len());
                self.inner.send(&[piece], deadline)?;
            }
        }
        Ok(())
    }

    fn receive(&self, buf: &mut [u8], deadline: Instant) -> LinkResult<Received> {
        let received = self.inner.receive(buf, deadline)?;
        if let Received::Bytes(bytes) = received {
            self.received.spend(bytes);
        }
        Ok(received)
    }

    fn close(&self) {
        self.inner.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use siltstone_storage::link::SocketNetwork;

    /// The time is not asserted beyond what the bucket guarantees: bytes above the burst take at
    /// least as long as the rate says.
    #[test]
    fn both_directions_have_the_rate_and_lose_nothing() {
        const RATE: u64 = 10_000_000;
        const BYTES: usize = 1_000_000;
        let runtime = Runtime::threads();
        let sockets: Arc<dyn Network> = Arc::new(SocketNetwork::new(&runtime));
        let network = LimitedNetwork::new(&runtime, Arc::clone(&sockets), RATE);
        let folder = tempfile::tempdir().unwrap();
        let address = Address::Unix(folder.path().join("s"));
        let listener = network.listen(&address).unwrap();
        let far = runtime.now() + Duration::from_secs(60);
        let connection = network.connect(&address, far).unwrap();
        let peer = listener.accept(far).unwrap().unwrap();
        let bytes: Vec<u8> = (0..BYTES).map(|i| (i % 251) as u8).collect();

        let receive = |from: &dyn Connection| {
            let (mut all, mut buffer) = (Vec::new(), vec![0; 50_000]);
            while all.len() < BYTES {
                match from.receive(&mut buffer, far).unwrap() {
                    Received::Bytes(count) => all.extend_from_slice(&buffer[..count]),
                    other => panic!("{other:?}"),
                }
            }
            all
        };
        let least = Duration::from_secs_f64((BYTES as f64 / RATE as f64) * 0.9);
        for to_peer in [true, false] {
            let begun = runtime.now();
            let (from, to) = match to_peer {
                true => (&connection, &peer),
                false => (&peer, &connection),
            };
            let (from, sent) = (Arc::clone(from), bytes.clone());
            let sender = runtime.spawn("sender", move || {
                let (part, rest) = sent.split_at(BYTES / 3);
                from.send(&[part, rest], far).unwrap();
            });
            let got = receive(&**to);
            sender.unwrap().join().unwrap();
            assert!(got == bytes, "to_peer {to_peer}");
            assert!(runtime.now().since(begun) >= least, "to_peer {to_peer}");
        }
        connection.close();
    }
}

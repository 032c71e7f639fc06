//! Two network namespaces with a shaped link between them: the host's and the device's.
//!
//! They are made by `ip` (a pair of virtual Ethernet interfaces, one in each namespace) and `tc`
//! (a token bucket filter on each interface, so each direction has the rate). This needs root.
//!
//! Invariants: the names of the namespaces contain the number of the process that made them. The
//! namespaces are deleted when [`Namespaces`] is dropped. If the process is killed before that, the
//! next process that makes namespaces deletes them. No namespace with another name is touched.
//!
//! Threading: one thread.

use std::ffi::OsString;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// The prefix of the names of all namespaces.
const PREFIX: &str = "siltb-";
/// The addresses of both sides. The namespaces have no other network, so the addresses cannot
/// collide with others.
const HOST: &str = "10.231.7.1";
const DEVICE: &str = "10.231.7.2";
/// The interfaces of both sides. Their names need not be unique, because they are only visible
/// within the namespaces.
const HOST_INTERFACE: &str = "silt-host";
const DEVICE_INTERFACE: &str = "silt-device";
/// Counts the pairs of this process.
static PAIRS: AtomicU32 = AtomicU32::new(0);
/// The number of bytes that may be sent at once beyond the rate. It must be larger than a packet
/// that was not divided yet, which has up to 64 KiB.
const BURST_BYTES: u64 = 128 << 10;
/// How long a packet may wait before it is dropped.
const LATENCY: &str = "50ms";

/// See the module.
#[derive(Debug)]
pub struct Namespaces {
    host: String,
    device: String,
}

/// Why there are no namespaces.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{command}`: {said}")]
pub struct NoNamespaces {
    /// What was called.
    pub command: String,
    /// What it said.
    pub said: String,
}

fn call(program: &str, words: &[&str]) -> Result<String, NoNamespaces> {
    let failed = |said: String| NoNamespaces {
        command: format!("{program} {}", words.join(" ")),
        said,
    };
    let output = Command::new(program).args(words).output();
    let output = output.map_err(|error| failed(error.to_string()))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(failed(
            String::from_utf8_lossy(&output.stderr).trim().to_string(),
        )),
    }
}

/// The process number in the name of a namespace that a benchmark made. `None` for other names.
fn owner(name: &str) -> Option<u32> {
    let mut parts = name.strip_prefix(PREFIX)?.split('-');
    let (pid, number, side) = (parts.next()?, parts.next()?, parts.next()?);
    let is_own = matches!(side, "host" | "device") && parts.next().is_none();
    number.parse::<u32>().ok().filter(|_| is_own)?;
    pid.parse().ok()
}

/// Whether a process exists.
fn exists(pid: u32) -> bool {
    std::path::Path::new("/proc").join(pid.to_string()).exists()
}

/// Deletes the namespaces of processes that were killed.
fn sweep() {
    let Ok(list) = call("ip", &["netns", "list"]) else {
        return;
    };
    let names = list
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    for name in names.filter(|name| owner(name).is_some_and(|pid| !exists(pid))) {
        let _ = call("ip", &["netns", "delete", name]);
    }
}

impl Namespaces {
    /// Makes both namespaces, and a link with this many bits a second in each direction.
    ///
    /// # Errors
    /// The message of `ip` or `tc`, for example that it needs root. In that case, all that was made
    /// is deleted again.
    pub fn make(bits_per_s: u64) -> Result<Namespaces, NoNamespaces> {
        sweep();
        let number = PAIRS.fetch_add(1, Ordering::Relaxed);
        let both = format!("{PREFIX}{}-{number}", std::process::id());
        // When this value is dropped, it deletes both namespaces, whether they were made or not.
        let made = Namespaces {
            host: format!("{both}-host"),
            device: format!("{both}-device"),
        };
        let (host, device) = (&made.host[..], &made.device[..]);
        let (own, other) = (HOST_INTERFACE, DEVICE_INTERFACE);
        call("ip", &["netns", "add", host])?;
        call("ip", &["netns", "add", device])?;
        let pair = [
            "-n", host, "link", "add", own, "type", "veth", "peer", "name", other,
        ];
        call("ip", &[&pair[..], &["netns", device]].concat())?;
        let rate = format!("{bits_per_s}bit");
        let burst = BURST_BYTES.to_string();
        for (space, interface, address) in [(host, own, HOST), (device, other, DEVICE)] {
            let address = format!("{address}/30");
            call(
                "ip",
                &["-n", space, "address", "add", &address, "dev", interface],
            )?;
            call("ip", &["-n", space, "link", "set", "lo", "up"])?;
            call("ip", &["-n", space, "link", "set", interface, "up"])?;
            let shape = ["-n", space, "qdisc", "add", "dev", interface, "root", "tbf"];
            let limits = ["rate", &rate, "burst", &burst, "latency", LATENCY];
            call("tc", &[&shape[..], &limits].concat())?;
        }
        Ok(made)
    }

    /// The words before a command that runs on the host's side.
    pub fn on_host(&self) -> Vec<OsString> {
        within(&self.host)
    }

    /// The words before a command that runs on the device's side.
    pub fn on_device(&self) -> Vec<OsString> {
        within(&self.device)
    }

    /// The IP address of the device.
    pub fn device_address(&self) -> &'static str {
        DEVICE
    }

    /// The interface of the host's side.
    pub fn interface(&self) -> &'static str {
        HOST_INTERFACE
    }
}

fn within(space: &str) -> Vec<OsString> {
    ["ip", "netns", "exec", space].map(OsString::from).to_vec()
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        // The interfaces go with their namespaces.
        let _ = call("ip", &["netns", "delete", &self.host]);
        let _ = call("ip", &["netns", "delete", &self.device]);
    }
}

/// The bytes that an interface of this process's namespace has sent and received.
pub fn bytes_of(interface: &str) -> Option<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").ok()?;
    bytes_in(&text, interface)
}

fn bytes_in(text: &str, interface: &str) -> Option<(u64, u64)> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let (_, rest) = lines.find(|(name, _)| name.trim() == interface)?;
    let numbers: Vec<u64> = rest
        .split_whitespace()
        .map_while(|n| n.parse().ok())
        .collect();
    // The first of eight numbers that were received, and of eight that were sent.
    Some((*numbers.get(8)?, *numbers.first()?))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        let list = call("ip", &["netns", "list"]).unwrap_or_default();
        let first = |line: &str| line.split_whitespace().next().map(String::from);
        list.lines().filter_map(first).collect()
    }

    #[test]
    fn only_namespaces_of_benchmarks_have_an_owner() {
        assert_eq!(owner("siltb-17-0-host"), Some(17));
        assert_eq!(owner("siltb-17-12-device"), Some(17));
        for other in [
            "siltb-x-0-host",
            "siltb-17-x-host",
            "siltb-17-0-other",
            "siltb-17-0-host-x",
            "siltb-17-host",
            "prod-17-0-host",
        ] {
            assert_eq!(owner(other), None, "{other}");
        }
        assert!(exists(std::process::id()));
    }

    #[test]
    fn bytes_of_an_interface_are_those_of_its_line() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes packets\n  \
                    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n\
                    silt-host: 100 2 3 4 5 6 7 8 200 10 11 12 13 14 15 16\n";
        assert_eq!(bytes_in(text, "silt-host"), Some((200, 100)));
        assert_eq!(bytes_in(text, "silt"), None);
        assert!(bytes_of("lo").is_some());
    }

    /// Needs root; without it, the error says so and nothing is left.
    #[test]
    fn namespaces_are_gone_after_use_after_a_failure_and_after_a_kill() {
        let own = || {
            let is_own = |name: &String| owner(name) == Some(std::process::id());
            names().into_iter().filter(is_own).count()
        };
        let before = own();
        let made = match Namespaces::make(1_000_000_000) {
            Ok(made) => made,
            Err(error) => {
                assert!(!error.said.is_empty());
                assert_eq!(own(), before);
                return;
            }
        };
        assert!(names().contains(&made.host) && names().contains(&made.device));
        let (host, device) = (made.host.clone(), made.device.clone());
        drop(made);
        assert!(!names().contains(&host) && !names().contains(&device));

        // `tc` refuses the rate, after the namespaces were made.
        let number = PAIRS.load(Ordering::Relaxed);
        let error = Namespaces::make(0).unwrap_err();
        assert!(error.command.starts_with("tc "), "{error}");
        let is_of =
            |name: &String| name.starts_with(&format!("{PREFIX}{}-{number}-", std::process::id()));
        assert!(!names().iter().any(is_of), "{:?}", names());

        // No process has this number: it is above what Linux gives.
        let left = format!("{PREFIX}4194999-0-host");
        call("ip", &["netns", "add", &left]).unwrap();
        sweep();
        assert!(!names().contains(&left));
    }
}

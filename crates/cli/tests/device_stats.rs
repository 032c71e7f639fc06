//! `silt stats` of a store that a device has a part in.

mod common;
#[allow(dead_code)]
#[path = "common/device.rs"]
mod device;

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use common::{SILT, numbered, silt, silt_with};
use device::{PATIENCE, TestDevice};

/// A file of statistics as a writer leaves it.
fn publish(file: &Path, pid: u32, written_us: u64) {
    let text = serde_json::json!({ "written_us": written_us, "pid": pid, "every_ms": 1000 });
    let new = file.with_extension("new");
    std::fs::write(&new, text.to_string()).unwrap();
    std::fs::rename(&new, file).unwrap();
}

/// A writer whose tables are on a device that is away waits for it, and publishes nothing.
#[test]
fn the_last_figures_of_a_writer_are_shown_while_its_device_is_away() {
    let mut device = TestDevice::start(&[]);
    let (local, tables) = (device.text("local"), device.url("tables"));
    let load = ["load", &local, "-", "--key", "number", "--tables", &tables];
    silt_with(load, &numbered(10)).fine();
    device.kill();
    let file = device.path("local/STATS.json");
    // This process stands for the writer.
    publish(&file, std::process::id(), 1);
    let said = silt(["stats", &local]).fine();
    assert!(
        said.contains("STALE") && said.contains("does not answer"),
        "{said}"
    );
    let mut gone = Command::new(SILT)
        .arg("--version")
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    gone.wait().unwrap();
    publish(&file, gone.id(), 1);
    let said = silt(["stats", &local]).failed(3);
    assert!(said.contains("is `silt device` running?"), "{said}");
}

/// Ends a thread when the test goes on, or fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Whether the writer on another machine is alive does not depend on the clocks of the two.
#[test]
fn a_writer_with_another_clock_is_alive_while_its_figures_change() {
    let device = TestDevice::start(&[]);
    let url = device.url("birds");
    silt(["put", &url, "wren", "9 g"]).fine();
    let file = device.path("data/birds/STATS.json");
    let source = || {
        let shown = silt(["stats", &url, "--json"]).fine();
        let mut shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        shown["source"].take()
    };
    let hour_us = 3_600_000_000;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_us = now.unwrap().as_micros() as u64;
    // The last figures of a writer that was killed are not those of a live one.
    publish(&file, 7, now_us + hour_us);
    let found = source();
    assert_eq!(found["kind"], "opened", "{found}");
    assert_eq!(found["left_behind"]["pid"], 7, "{found}");
    let is_over = AtomicBool::new(false);
    let found = std::thread::scope(|scope| {
        let _end = End(&is_over);
        scope.spawn(|| {
            for n in (0..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                publish(&file, 7, now_us + hour_us + n);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        // On a busy machine, a command may see no change in its time.
        let start = Instant::now();
        loop {
            let found = source();
            if found["kind"] == "written" || start.elapsed() > PATIENCE {
                break found;
            }
        }
    });
    assert_eq!(found["kind"], "written", "{found}");
    assert_eq!(found["stale"], serde_json::Value::Null, "{found}");
    assert!(found["clock"].to_string().contains(" min "), "{found}");
}

//! `silt device probe`, what a device says of its machine, and the figures of links in `silt
//! stats`.

mod common;
#[allow(dead_code)]
#[path = "common/device.rs"]
mod device;

use std::io::{Read, Write};
use std::net::TcpListener;

use common::{numbered, silt, silt_with};
use device::TestDevice;
use rustix::process::Signal;
use serde_json::Value;

#[test]
fn a_device_is_measured_and_each_shape_is_predicted() {
    let mut device = TestDevice::start(&["--keep", "1000000", "--name", "dpu0", "--slots", "3"]);
    let address = device.address();
    let said = silt(["device", "probe", &address, "--json"]).fine();
    let json: Value = serde_json::from_str(&said).unwrap();
    let number = |pointer: &str| {
        let value = json.pointer(pointer);
        let value = value.unwrap_or_else(|| panic!("{pointer} in {json}"));
        value
            .as_f64()
            .unwrap_or_else(|| panic!("{pointer}: {value}"))
    };
    assert_eq!(json.pointer("/device/name").unwrap(), "dpu0");
    assert_eq!(json.pointer("/device/keep_bytes").unwrap(), 1_000_000);
    assert_eq!(json.pointer("/device/slot_count").unwrap(), 3);
    for known in [
        "/device/core_count",
        "/device/memory_bytes",
        "/device/free_bytes",
        "/device/write_bytes_per_s",
        "/device/read_bytes_per_s",
        "/device/job_thread_count",
        "/host/core_count",
        "/host/job_thread_count",
        "/link/round_trip_ns",
        "/link/up_bytes_per_s",
        "/link/down_bytes_per_s",
    ] {
        assert!(number(known) > 0.0, "{known} in {json}");
    }
    let merges = json["merges"].as_array().unwrap();
    assert_eq!(merges.len(), 12);
    for merge in merges {
        for side in ["host", "device"] {
            let bytes = merge[side]["in_bytes"].as_u64().unwrap();
            assert!(
                bytes > 0 && merge[side]["ns"].as_u64().unwrap() > 0,
                "{merge}"
            );
        }
        // Both merge the same bytes.
        assert_eq!(merge["host"]["in_bytes"], merge["device"]["in_bytes"]);
        assert_eq!(merge["host"]["out_bytes"], merge["device"]["out_bytes"]);
    }
    let predictions = json["predictions"].as_array().unwrap();
    assert_eq!(predictions.len(), 36);
    for prediction in predictions {
        let times = prediction["times_faster"].as_f64().unwrap();
        assert!(times.is_finite() && times > 0.0, "{prediction}");
        let is_one_of = |name: &str, words: &[&str]| {
            let word = prediction[name].as_str().unwrap();
            assert!(words.contains(&word), "{prediction}");
        };
        is_one_of("shape", &["held", "shared", "lent"]);
        is_one_of("codec", &["none", "lz4", "zstd:3"]);
        is_one_of("verdict", &["yes", "spares-host", "no"]);
        // What the device keeps is too little for the tables of a job.
        let is_refused = prediction["shape"] == "lent";
        assert_eq!(prediction["refused_because"].is_string(), is_refused);
        let pays = !is_refused && prediction["verdict"] != "no";
        assert_eq!(prediction["pays"].as_bool().unwrap(), pays);
    }
    let text = silt(["device", "probe", &address]).fine();
    for expected in [
        "`dpu0`",
        "round trip",
        "a job      uses ",
        "held:",
        "shared:",
        "lent: tables are sent (this device refuses the job: it keeps 976.6 KiB",
        "refused",
        "zstd:3",
        "4096",
    ] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    // Nothing of it stays, and the device said what it measured when it began.
    let (status, said) = device.end(Signal::TERM);
    assert_eq!(status.code(), Some(0));
    let line = said
        .lines()
        .find(|line| line.starts_with("this machine has "));
    let line = line.unwrap_or_else(|| panic!("no line of the machine in {said}"));
    assert!(
        line.contains("core") && line.contains("storage writes"),
        "{line}"
    );
    assert!(!device.path("data/probe").exists());
}

#[test]
fn what_cannot_be_probed_is_named() {
    let said = silt(["device", "probe", "nowhere"]).failed(2);
    assert!(said.contains("HOST:PORT or unix:PATH"), "{said}");
    let said = silt(["device", "--listen", "127.0.0.1:0", "probe", "127.0.0.1:1"]).failed(2);
    assert!(said.contains("cannot be used"), "{said}");
    let said = silt(["device"]).failed(2);
    assert!(said.contains("--listen"), "{said}");
    let nobody = silt(["device", "probe", "unix:/nonexistent/socket"]).failed(3);
    assert!(nobody.contains("is `silt device` running?"), "{nobody}");
    // Something else listens there.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = std::thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        peer.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        // Until the host has gone.
        let _ = peer.read_to_end(&mut Vec::new());
    });
    let foreign = silt(["device", "probe", &address]).failed(3);
    assert!(foreign.contains("no siltstone device"), "{foreign}");
    server.join().unwrap();
}

#[test]
fn statistics_show_the_bytes_of_the_link() {
    let device = TestDevice::start(&[]);
    let url = device.url("birds");
    silt_with(["load", &url, "-", "--key", "number"], &numbered(3_000)).fine();
    let stats = silt(["stats", &url]).fine();
    let line = stats.lines().find(|line| line.starts_with("link "));
    let line = line.unwrap_or_else(|| panic!("no line of the link in {stats}"));
    assert!(
        line.contains("sent ") && line.contains("session "),
        "{line}"
    );
    let json = silt(["stats", &url, "--json"]).fine();
    let json: Value = serde_json::from_str(&json).unwrap();
    for counter in ["link_session_sent_bytes", "link_manifest_received_bytes"] {
        let bytes = json["counters"][counter].as_u64();
        assert!(
            bytes.is_some_and(|bytes| bytes > 0),
            "{counter}: {}",
            json["counters"]
        );
    }
    // A local store has no link.
    let local = device.path("local");
    common::numbered_store(&local, 100);
    let stats = common::on("stats", &local, &[]).fine();
    assert!(!stats.contains("link"), "{stats}");
}

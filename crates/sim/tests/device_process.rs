//! Rows 9, 10 and 13 with a real process of a device. It is killed or stopped while a host works, a
//! proxy cuts the sockets between them, and hostile peers connect to it. `SILT_SEEDS=N` scales the
//! number of seeds to N percent, and `SILT_SEED=K` runs one seed.

#![cfg(target_os = "linux")]

#[path = "device_process/host.rs"]
mod host;
#[path = "device_process/hostile.rs"]
mod hostile;
#[path = "device_process/proxy.rs"]
mod proxy;
#[path = "device_process/server.rs"]
mod server;
#[path = "device_process/shared.rs"]
mod shared;
#[path = "../../device/tests/tls_common/mod.rs"]
mod tls_common;
#[path = "device_process/work.rs"]
mod work;

use siltstone_sim::trials::{seeds, seeds_in_turn};

/// Each seed is a folder, and five kills of the device while a host writes. (Row 9)
#[test]
fn device_kill_9() {
    let wanted = ["work.synced", "work.device_killed", "work.no_orphans"];
    let coverage = seeds_in_turn("device_kill_9", 1, 6, &wanted, work::killed_trial);
    // A kill in a sync of names may poison the store. About one kill in five does, because the host
    // writes all the time.
    let killed = coverage.of("work.device_killed");
    let poisoned = coverage.of("work.poisoned");
    assert!(
        killed < 20 || poisoned * 2 < killed,
        "{poisoned} of {killed} kills of the device have poisoned the store"
    );
}

/// Each seed is a store in a folder that a device shares. The device is stopped in the middle of a
/// job, and goes on when another host has the store. (Row 9)
#[test]
fn device_shared_stop() {
    let wanted = [
        "shared.given_up",
        "shared.write_meanwhile",
        "shared.late_job",
        "shared.late_at_closed_store",
        "shared.late_beside_host",
        "shared.no_orphans",
    ];
    // A trial mostly waits for time limits, so both seeds run at the same time.
    seeds("device_shared_stop", 1, 2, &wanted, shared::stopped_trial);
}

/// Each seed is a store in a folder that a device shares, and four kills of the device while the
/// host works. (Row 9)
#[test]
fn device_shared_kill() {
    let wanted = [
        "shared.device_killed",
        "shared.used_again",
        "shared.fallback",
        "shared.no_orphans",
    ];
    let test = "device_shared_kill";
    seeds_in_turn(test, 1, 2, &wanted, shared::killed_trial);
}

/// The same, and the host never runs what the device has failed with. (Row 9)
#[test]
fn device_shared_without_fallback() {
    let wanted = [
        "shared.device_killed",
        "shared.lost_without_fallback",
        "shared.no_orphans",
    ];
    let test = "device_shared_without_fallback";
    seeds_in_turn(test, 1, 2, &wanted, shared::without_fallback_trial);
}

/// Each seed is a store in a folder that a device shares, and three kills of the host while the
/// device has a job of it. (Row 9)
#[test]
fn device_shared_host_kill() {
    let wanted = [
        "shared.host_killed",
        "shared.late_job",
        "shared.late_at_closed_store",
        "shared.late_beside_host",
        "shared.two_hosts",
        "shared.no_orphans",
    ];
    let test = "device_shared_host_kill";
    seeds_in_turn(test, 1, 2, &wanted, shared::host_killed_trial);
}

/// Each seed is a folder, and ten connections that a proxy cuts or freezes. (Row 10)
#[test]
fn device_socket_cuts() {
    let wanted = [
        "work.synced",
        "proxy.cut",
        "proxy.frozen",
        "work.no_orphans",
    ];
    seeds_in_turn("device_socket_cuts", 1, 2, &wanted, work::cut_trial);
}

/// Each seed is a hundred hostile connections to a device without TLS and a device with it. The
/// memory of both devices is bounded. (Row 13)
#[test]
fn device_hostile() {
    let wanted = [
        "hostile.connections",
        "hostile.wrong_certificate",
        "hostile.honest_host_served",
    ];
    let devices = hostile::Devices::start();
    seeds_in_turn("device_hostile", 1, 10, &wanted, |seed| {
        hostile::trial(seed, &devices)
    });
}

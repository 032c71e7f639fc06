//! Rows 9, 10 and 13 with a real process of a device. It is killed while a host works, a proxy cuts
//! the sockets between them, and hostile peers connect to it. `SILT_SEEDS=N` scales the number of
//! seeds to N percent, and `SILT_SEED=K` runs one seed.

#![cfg(target_os = "linux")]

#[path = "device_process/hostile.rs"]
mod hostile;
#[path = "device_process/proxy.rs"]
mod proxy;
#[path = "device_process/server.rs"]
mod server;
#[path = "../../device/tests/tls_common/mod.rs"]
mod tls_common;
#[path = "device_process/work.rs"]
mod work;

use siltstone_sim::trials::seeds_in_turn;

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

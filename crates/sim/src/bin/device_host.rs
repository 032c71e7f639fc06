//! A host that trials kill while a device has a job of it: see
//! `siltstone_sim::process::device_host`.

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    std::process::exit(siltstone_sim::process::device_host::main(&words));
}

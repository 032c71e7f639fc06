//! The process of a host that a trial kills while a device runs one of its jobs. The code is in
//! `siltstone_sim::process::device_host`.

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    std::process::exit(siltstone_sim::process::device_host::main(&words));
}

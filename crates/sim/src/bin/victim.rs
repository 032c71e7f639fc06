//! The process that trials kill, starve and lie to: see `siltstone_sim::process`.

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    std::process::exit(siltstone_sim::process::victim::main(&words));
}

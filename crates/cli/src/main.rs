//! The binary `silt`: all of it is in the library beside it.

use std::process::ExitCode;

fn main() -> ExitCode {
    siltstone_cli::main()
}

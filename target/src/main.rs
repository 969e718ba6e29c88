//! Program `feedrail-target`. The code is in `daemon/`.

use std::process::ExitCode;

fn main() -> ExitCode {
    feedrail_target::daemon::main_with_args(std::env::args_os())
}

//! The command `sluicenet`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    sluicenet_cli::main()
}

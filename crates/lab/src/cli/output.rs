//! Printing: results to stdout, the rest to stderr.

use serde::Serialize;
use std::io::{ErrorKind, Write};

/// Prints a result. A reader that has gone (`| head`) is not an error.
pub(super) fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match written {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => note(&format!("error: stdout: cannot write: {e}")),
        _ => {}
    }
}

/// Prints a result as JSON.
pub(super) fn json(value: &impl Serialize) {
    print(&(serde_json::to_string_pretty(value).unwrap_or_default() + "\n"));
}

/// Says something beside the result.
pub(super) fn note(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

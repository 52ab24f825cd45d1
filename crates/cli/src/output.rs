//! Printing: results to stdout, the rest to stderr.

use super::Global;
use super::failure::Failure;
use serde::Serialize;
use sluicenet_scenario::{Warning, printable};
use std::io::{BufWriter, ErrorKind, Write};
use std::sync::atomic::{AtomicU8, Ordering};

/// Whether stdout has accepted all results so far.
static STDOUT: AtomicU8 = AtomicU8::new(TAKES);
const TAKES: u8 = 0;
/// Its reader has closed the pipe (`| head`): the rest is dropped, and this is no error.
const GONE: u8 = 1;
/// A write failed, for example because the disk is full: the result is incomplete.
const FAILED: u8 = 2;

/// Prints a result. After a failed write it prints nothing: the error is noted once, and [`outcome`] returns it. Control
/// characters in names are escaped, so that they cannot affect a terminal.
pub(super) fn print(text: &str) {
    stream(|out| out.write_all(printable::lines(text).as_bytes()));
}

/// As [`print`], piece by piece, for a result that is too long for memory.
pub(super) fn stream(write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) {
    if !is_open() {
        return;
    }
    let mut out = BufWriter::with_capacity(1 << 16, std::io::stdout().lock());
    let Err(e) = write(&mut out).and_then(|()| out.flush()) else { return };
    let gone = e.kind() == ErrorKind::BrokenPipe;
    STDOUT.store(if gone { GONE } else { FAILED }, Ordering::SeqCst);
    if !gone {
        note(&format!("error: stdout: cannot write: {e}"));
    }
}

/// Whether stdout still accepts results. A verb that prints for a long time stops when it does not.
pub(super) fn is_open() -> bool {
    STDOUT.load(Ordering::SeqCst) == TAKES
}

/// The outcome of all printing: a failure if a result could not be printed.
pub(super) fn outcome() -> Result<(), Failure> {
    match STDOUT.load(Ordering::SeqCst) {
        FAILED => Err(Failure::Told),
        _ => Ok(()),
    }
}

/// Prints a result as JSON.
pub(super) fn json(value: &impl Serialize) {
    stream(|out| {
        serde_json::to_writer_pretty(&mut *out, value)?;
        writeln!(out)
    });
}

/// Prints a remark beside the result.
pub(super) fn note(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", printable::lines(text));
}

/// Notes warnings.
pub(super) fn warnings(warnings: &[Warning], global: Global) {
    if !global.quiet {
        for w in warnings {
            note(&w.to_string());
        }
    }
}

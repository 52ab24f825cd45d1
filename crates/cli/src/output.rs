//! Printing: results to stdout, the rest to stderr.

use super::failure::Failure;
use serde::Serialize;
use sluicenet_scenario::printable;
use std::io::{BufWriter, ErrorKind, Write};
use std::sync::atomic::{AtomicU8, Ordering};

/// Whether stdout takes results: as long as it has taken all of them.
static STDOUT: AtomicU8 = AtomicU8::new(TAKES);
const TAKES: u8 = 0;
/// Its reader has gone (`| head`): nobody wants the rest, and that is no error.
const GONE: u8 = 1;
/// A full disk, or the like: what was asked for is not there.
const FAILED: u8 = 2;

/// Prints a result; nothing once stdout has not taken one, which is said once and is [`outcome`]'s. Names of others in it cannot do anything to a terminal.
pub(super) fn print(text: &str) {
    stream(|out| out.write_all(printable::lines(text).as_bytes()));
}

/// As [`print`], piece by piece: what is too long for memory.
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

/// Whether stdout still takes results: what prints for long need not go on where it does not.
pub(super) fn is_open() -> bool {
    STDOUT.load(Ordering::SeqCst) == TAKES
}

/// How printing went, all in all: a failure where results were to be printed and could not be.
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

/// Says something beside the result.
pub(super) fn note(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", printable::lines(text));
}

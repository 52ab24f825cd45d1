//! Open devices as facts and descriptors: one process opens a device, and another one makes a port of it.

use std::io;
use std::os::fd::OwnedFd;

/// An open device of a kind.
#[derive(Debug)]
pub struct Parts<F> {
    /// Its numbers, names and measurements.
    pub facts: F,
    /// Its descriptors, in the order of its kind.
    pub descriptors: Vec<OwnedFd>,
}

/// The descriptors of a device, taken one after the other.
#[derive(Debug)]
pub(super) struct Descriptors(std::vec::IntoIter<OwnedFd>);

impl Descriptors {
    pub fn of(all: Vec<OwnedFd>) -> Descriptors {
        Descriptors(all.into_iter())
    }

    /// The next one.
    ///
    /// # Errors
    /// There are too few.
    pub fn next(&mut self) -> io::Result<OwnedFd> {
        self.0.next().ok_or_else(|| wrong("a descriptor is missing"))
    }

    /// The next one, if there is to be one.
    pub fn next_if(&mut self, there: bool) -> io::Result<Option<OwnedFd>> {
        there.then(|| self.next()).transpose()
    }

    /// All were taken.
    ///
    /// # Errors
    /// There are too many.
    pub fn end(mut self) -> io::Result<()> {
        self.0.next().map_or(Ok(()), |_| Err(wrong("there is a descriptor too many")))
    }
}

fn wrong(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

//! What takes privileges while a port is open: its tenant's queue is shut and opened, and a device that was switched off and on
//! needs other sockets. The process that serves the port may have a keeper in another process do that.

use super::link::{Bucket, TokenBucket};
use super::valve::{Pollers, Polls};
use std::fmt::Debug;
use std::io;

/// Does for an open port what takes privileges. Each call returns once it is done: ports rely on the order.
pub trait Keeper: Debug + Send {
    /// Has the tenant's queue let frames go.
    fn open(&mut self) -> io::Result<()>;

    /// Has it hold them.
    fn shut(&mut self) -> io::Result<()>;

    /// Opens further polling sockets.
    fn pollers(&mut self) -> io::Result<Pollers>;
}

/// A keeper in the process that has the privileges.
#[derive(Debug)]
pub struct OwnKeeper {
    pub(super) bucket: Bucket,
    /// The numbers of the open bucket, and of the shut one.
    pub(super) open: TokenBucket,
    pub(super) shut: TokenBucket,
    /// Bytes that the shut bucket charges for each frame beside its own.
    pub(super) charge: u16,
    /// Where the device is polled, if it is.
    pub(super) polls: Option<Polls>,
}

impl Keeper for OwnKeeper {
    fn open(&mut self) -> io::Result<()> {
        self.bucket.change(self.open)
    }

    fn shut(&mut self) -> io::Result<()> {
        self.bucket.change_charged(self.shut, self.charge)
    }

    fn pollers(&mut self) -> io::Result<Pollers> {
        match &self.polls {
            Some(polls) => Ok(polls.pollers()?),
            None => Err(io::Error::new(io::ErrorKind::Unsupported, "this device is not polled")),
        }
    }
}

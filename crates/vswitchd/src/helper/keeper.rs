//! The keeper of an open port, in the worker: each request waits until it is done.

use super::message::{Ask, Channel, Told};
use super::{Device, Helper, PATIENCE, another};
use sluicenet_dataplane::kernel::keeper::Keeper;
use sluicenet_dataplane::kernel::valve::Pollers;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Asks the worker, and the next one if that has died.
#[derive(Debug)]
pub(super) struct RemoteKeeper {
    helper: Arc<Helper>,
    port: String,
    device: Device,
    channel: Option<Channel>,
}

impl RemoteKeeper {
    /// At the socket by which the port was opened.
    pub fn new(helper: Arc<Helper>, port: String, device: Device, channel: Channel) -> io::Result<RemoteKeeper> {
        Ok(RemoteKeeper { helper, port, device, channel: Some(channel.patient(PATIENCE)?) })
    }

    fn ask(&mut self, ask: &Ask) -> io::Result<(Told, Vec<OwnedFd>)> {
        if let Some(channel) = &self.channel {
            match channel.ask_short(ask) {
                Err(e) if e.kind() == ErrorKind::BrokenPipe => self.channel = None,
                other => return other,
            }
        }
        // The worker died, and perhaps before it did this. Both are done again: they set a state.
        let channel = self.helper.port()?.patient(PATIENCE)?;
        match channel.ask::<Told>(&Ask::Keep { port: self.port.clone(), device: self.device.clone() }, Some(0))?.0 {
            Told::Done => self.channel.insert(channel).ask_short(ask),
            Told::Failed(failure) => Err(io::Error::other(failure.reason)),
            _ => Err(another()),
        }
    }

    fn tell(&mut self, ask: &Ask) -> io::Result<()> {
        match self.ask(ask)?.0 {
            Told::Done => Ok(()),
            Told::Failed(failure) => Err(io::Error::other(failure.reason)),
            _ => Err(another()),
        }
    }
}

impl Keeper for RemoteKeeper {
    fn open(&mut self) -> io::Result<()> {
        self.tell(&Ask::OpenQueue)
    }

    fn shut(&mut self) -> io::Result<()> {
        self.tell(&Ask::ShutQueue)
    }

    fn pollers(&mut self) -> io::Result<Pollers> {
        match self.ask(&Ask::Pollers)? {
            (Told::Pollers(port), sockets) => Ok(Pollers::of(port, sockets.try_into().map_err(|_| another())?)),
            (Told::Failed(failure), _) => Err(io::Error::other(failure.reason)),
            _ => Err(another()),
        }
    }
}

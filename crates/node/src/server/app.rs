//! What applications do and hear.

use crate::guest::{FlowLabel, SocketId};
use crate::packet::{Address, FlowKey};
use alloc::vec::Vec;
use sluicenet_proto::frame::{HostId, Priority};
use sluicenet_proto::time::Instant;
use sluicenet_proto::units::Rate;

/// How a connection comes to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// It was open before the clock started.
    Established,
    /// By a handshake.
    Handshake,
    /// Of TCPlight, it was open before the clock started.
    LightEstablished,
    /// Of TCPlight, by a handshake.
    LightHandshake,
    /// There is none: datagrams, at this rate of payload or as fast as they leave.
    Datagrams(Option<Rate>),
}

/// What an application hears of.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A message has arrived in full.
    Message {
        /// On this socket.
        socket: SocketId,
        /// What its sender called it.
        tag: u64,
        /// Its length.
        bytes: u64,
    },
    /// A message this server sent has arrived in full; known one lookahead later, as fast as metadata can travel.
    Delivered {
        /// What this server called it.
        tag: u64,
        /// On this socket.
        socket: SocketId,
    },
    /// Another application says something.
    Told {
        /// To this VM.
        to: Address,
        /// Who says it.
        from: Address,
        /// What.
        words: [u64; 3],
    },
    /// A time asked for has come.
    Wake {
        /// What was asked.
        token: u64,
    },
}

/// What an application can do at its server, in whichever world it runs.
pub trait Io {
    /// Opens a connection, or finds it open already; of the priority of the second vNICs, between these.
    fn open(&mut self, now: Instant, flow: FlowKey, priority: Priority, how: Open) -> SocketId;
    /// Writes a message of `bytes` to a socket; the receiving application hears of it by `tag` when all has arrived.
    /// Returns the flow's number in the records.
    fn send(&mut self, now: Instant, socket: SocketId, bytes: u64, tag: u64, label: FlowLabel) -> u64;
    /// Closes a connection when everything written has been confirmed.
    fn close(&mut self, now: Instant, socket: SocketId);
    /// Says something to the applications of another VM; it arrives one lookahead later. `words[2]` below 2^50.
    fn tell(&mut self, now: Instant, from: Address, to: Address, words: [u64; 3]);
    /// Asks for [`Event::Wake`] at `at`.
    fn wake_at(&mut self, at: Instant, token: u64);
}

/// The applications of one server.
pub trait App: Send {
    /// Something happened; answers go through `io`.
    fn handle(&mut self, now: Instant, io: &mut dyn Io, event: Event);
    /// Whether the application has seen query `query` end, for records; called when rows are collected.
    fn take_queries(&mut self) -> Vec<QueryRecord> {
        Vec::new()
    }
}

/// A query that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryRecord {
    /// Its number.
    pub id: u64,
    /// The server that answered it.
    pub aggregator: HostId,
    /// When it came in.
    pub start: Instant,
    /// When it was answered.
    pub end: Instant,
    /// Whether it is left out of statistics.
    pub warmup: bool,
}

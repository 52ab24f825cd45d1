//! The operations of applications and the events they receive.

use crate::guest::{FlowLabel, SocketId};
use crate::packet::{Address, FlowKey};
use alloc::vec::Vec;
use sluicenet_proto::frame::{HostId, Priority};
use sluicenet_proto::time::Instant;
use sluicenet_proto::units::Rate;

/// The way in which a connection is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// The connection was open before the clock started.
    Established,
    /// The connection opens by a handshake.
    Handshake,
    /// A TCPlight connection that was open before the clock started.
    LightEstablished,
    /// A TCPlight connection that opens by a handshake.
    LightHandshake,
    /// No connection: datagrams, at this rate of payload or as fast as they leave.
    Datagrams(Option<Rate>),
    /// A queue pair of RoCE, connected before its first packet.
    QueuePair,
}

/// An event for an application.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A message has arrived in full.
    Message {
        /// On this socket.
        socket: SocketId,
        /// The sender's tag.
        tag: u64,
        /// The message's length.
        bytes: u64,
    },
    /// A message of this server has arrived in full; known one lookahead later, as fast as metadata can travel.
    Delivered {
        /// This server's tag.
        tag: u64,
        /// On this socket.
        socket: SocketId,
    },
    /// A message from another application.
    Told {
        /// The receiving VM.
        to: Address,
        /// The sending VM.
        from: Address,
        /// The words of the message.
        words: [u64; 3],
    },
    /// A requested time has come.
    Wake {
        /// The token of the request.
        token: u64,
    },
}

/// An application's operations at its server, in either world.
pub trait Io {
    /// Opens a connection, or finds it already open. Between second vNICs it has their priority.
    fn open(&mut self, now: Instant, flow: FlowKey, priority: Priority, how: Open) -> SocketId;
    /// Writes a message of `bytes` to a socket. The receiving application gets an event with `tag` when all bytes have
    /// arrived.
    /// Returns the flow's number in the records.
    fn send(&mut self, now: Instant, socket: SocketId, bytes: u64, tag: u64, label: FlowLabel) -> u64;
    /// Closes a connection when everything written has been confirmed.
    fn close(&mut self, now: Instant, socket: SocketId);
    /// Sends words to the applications of another VM; they arrive one lookahead later. `words[2]` must be below 2^50.
    fn tell(&mut self, now: Instant, from: Address, to: Address, words: [u64; 3]);
    /// Requests [`Event::Wake`] at `at`.
    fn wake_at(&mut self, at: Instant, token: u64);
}

/// The applications of one server.
pub trait App: Send {
    /// Handles an event; answers go through `io`.
    fn handle(&mut self, now: Instant, io: &mut dyn Io, event: Event);
    /// Takes the records of the queries that the application has seen end; called when rows are collected.
    fn take_queries(&mut self) -> Vec<QueryRecord> {
        Vec::new()
    }
}

/// A query that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryRecord {
    /// The query's number.
    pub id: u64,
    /// The server that answered the query.
    pub aggregator: HostId,
    /// Time at which the query came in.
    pub start: Instant,
    /// Time at which the query was answered.
    pub end: Instant,
    /// Whether the query is left out of statistics.
    pub warmup: bool,
}

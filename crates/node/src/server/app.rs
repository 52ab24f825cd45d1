//! What applications do and hear.

use super::Core;
use crate::guest::SocketId;
use crate::packet::Address;
use alloc::vec::Vec;
use sluicenet_proto::frame::HostId;
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
    /// A message this server sent has arrived in full; known one lookahead later, as fast as news can travel.
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

/// The applications of one server.
pub trait App: Send {
    /// Something happened; answers go through `io`.
    fn handle(&mut self, now: Instant, io: &mut Core, event: Event);
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

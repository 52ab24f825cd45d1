//! The ends: adapter, server, virtual switch, overlay, TCP and UDP.

use serde::Serialize;
use sluicenet_proto::time::Duration;
use sluicenet_proto::transport::zbridge::ChannelConfig;
use sluicenet_proto::units::Rate;

use crate::units::{Bytes, canonical};

/// How an adapter queues what its host sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Queueing {
    /// One virtual output queue a destination, served round robin.
    Voq,
    /// One queue.
    Fifo,
}

/// What a full adapter does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenFull {
    /// It stops its host.
    Stop,
    /// It drops.
    Drop,
}

/// Every server's network adapter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Adapter {
    /// Its transmit buffer, shared by its queues.
    #[serde(serialize_with = "canonical")]
    pub buffer: Bytes,
    /// From host to wire and from wire to host.
    #[serde(serialize_with = "canonical")]
    pub delay: Duration,
    /// How it queues.
    pub queueing: Queueing,
    /// What it does when full.
    pub when_full: WhenFull,
    /// How long it holds frames that overtook others of their flow to put them in order; not at all where absent.
    #[serde(serialize_with = "canonical")]
    pub resequencing: Option<Duration>,
}

/// Every server.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Server {
    /// Virtual machines on each.
    pub vms: u32,
    /// Whether a virtual switch stands between them and the adapter.
    pub virtual_network: bool,
    /// The priority of a second vNIC of each machine, over a lossy stack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lossy_vnic: Option<u8>,
}

/// A virtual machine that is slow to receive.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SlowVm {
    /// Its server.
    pub host: u32,
    /// Its number there.
    pub vm: u32,
    /// The rate at which it takes frames.
    #[serde(serialize_with = "canonical")]
    pub rate: Rate,
}

/// Credits between virtual machines.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ZCredit {
    /// Whether there are any.
    pub enabled: bool,
    /// Frames that a machine's receive queue holds.
    pub rx_queue: u32,
    /// Credits of a turn.
    pub batch: u32,
    /// Frames of a machine that may wait for credits.
    pub tx_queue: u32,
    /// Machines whose turns are longer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub weight: Vec<Weight>,
}

/// A virtual machine that is granted more credits than others where several wait for them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Weight {
    /// Its server.
    pub host: u32,
    /// Its number there.
    pub vm: u32,
    /// How many times as many.
    pub weight: u32,
}

/// Frames between servers, numbered and sent again where they are lost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ZBridge {
    /// Whether they are.
    pub enabled: bool,
    /// An acknowledgement is asked for with every so-many-th frame.
    pub period: u32,
    /// Frames of a pair of machines that are kept until they are acknowledged.
    pub buffer: u32,
    /// How long a sender waits before it asks what has arrived.
    #[serde(serialize_with = "canonical")]
    pub timeout: Duration,
}

impl ZBridge {
    /// How each channel is set up; see [`ChannelConfig::single_path`].
    pub fn channel(&self, single_path: bool) -> ChannelConfig {
        ChannelConfig { buffer: self.buffer, period: self.period, timeout: self.timeout, single_path }
    }
    /// Bytes by which it makes a frame between servers longer.
    pub fn growth(&self) -> u64 {
        if self.enabled { sluicenet_wire::zbridge::GROWTH as u64 } else { 0 }
    }
}

/// Every server's virtual switch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VSwitch {
    /// Frames a port's queue holds.
    pub slots: u32,
    /// Whether a full queue stops the sender instead of dropping.
    pub lossless: bool,
    /// Rate of a virtual machine's port.
    #[serde(serialize_with = "canonical")]
    pub vm_rate: Rate,
    /// Machines that take what they receive more slowly than that.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slow: Vec<SlowVm>,
}

/// The overlay tunnels between virtual switches.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Overlay {
    /// Whether frames between servers are encapsulated.
    pub enabled: bool,
    /// Bytes added to each.
    #[serde(serialize_with = "canonical")]
    pub encapsulation: Bytes,
    /// The largest IP packet of a virtual machine.
    #[serde(serialize_with = "canonical")]
    pub mtu: Bytes,
    /// Whether all between two servers goes through one TCP connection of theirs.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    pub tcp: bool,
}

/// A congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Congestion {
    /// RFC 6582.
    NewReno,
    /// RFC 9438.
    Cubic,
    /// Brakmo and Peterson 1995.
    Vegas,
}

/// The two sets of timeout parameters of Crisan 2014, Table 3.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TcpPreset {
    /// The BSD kernel's own.
    Default,
    /// Matched to datacenter delays.
    Tuned,
}

/// How much a connection may send at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum InitialWindow {
    /// By RFC 3390: min(4 MSS, max(2 MSS, 4380 bytes)).
    Rfc3390,
    /// So many segments.
    Segments(u32),
}

/// Every TCP stack.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tcp {
    /// The congestion control.
    pub congestion: Congestion,
    /// The timeout before there is a measurement.
    #[serde(serialize_with = "canonical")]
    pub rto_base: Duration,
    /// The shortest timeout.
    #[serde(serialize_with = "canonical")]
    pub rto_min: Duration,
    /// Added to every computed timeout.
    #[serde(serialize_with = "canonical")]
    pub rto_slop: Duration,
    /// The longest timeout.
    #[serde(serialize_with = "canonical")]
    pub rto_max: Duration,
    /// The granularity of timers.
    #[serde(serialize_with = "canonical")]
    pub tick: Duration,
    /// Send and receive buffer at the start.
    #[serde(serialize_with = "canonical")]
    pub buffer: Bytes,
    /// The most either grows to.
    #[serde(serialize_with = "canonical")]
    pub max_buffer: Bytes,
    /// Whether they grow.
    pub auto_buffer: bool,
    /// Latency of the stack from socket to wire.
    #[serde(serialize_with = "canonical")]
    pub tx_delay: Duration,
    /// Latency of the stack from wire to socket.
    #[serde(serialize_with = "canonical")]
    pub rx_delay: Duration,
    /// How long an acknowledgement may wait; not at all where absent.
    #[serde(serialize_with = "canonical")]
    pub delayed_ack: Option<Duration>,
    /// Full segments which force an acknowledgement.
    pub ack_every: u32,
    /// Segments the reassembly queue holds.
    pub reassembly_limit: u32,
    /// How much a connection may send at its start.
    pub initial_window: InitialWindow,
    /// Selective acknowledgements (RFC 2018, 6675).
    pub sack: bool,
    /// Timestamps (RFC 7323).
    pub timestamps: bool,
    /// Window scaling (RFC 7323).
    pub window_scaling: bool,
    /// Explicit congestion notification (RFC 3168).
    pub ecn: bool,
    /// Limited transmit (RFC 3042).
    pub limited_transmit: bool,
    /// Proportional rate reduction in recovery (RFC 6937).
    pub prr: bool,
    /// Whether an idle connection starts slowly again (RFC 5681, 4.1).
    pub restart_after_idle: bool,
    /// Nagle's algorithm (RFC 896).
    pub nagle: bool,
    /// Whether a new connection starts from what an earlier one to the same host learned.
    pub connection_cache: bool,
}

/// Every UDP stack.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Udp {
    /// A socket's buffer.
    #[serde(serialize_with = "canonical")]
    pub buffer: Bytes,
    /// Latency of the stack from socket to wire.
    #[serde(serialize_with = "canonical")]
    pub tx_delay: Duration,
    /// Latency of the stack from wire to socket.
    #[serde(serialize_with = "canonical")]
    pub rx_delay: Duration,
}

/// Every TCPlight stack.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TcpLight {
    /// A socket's receive buffer.
    #[serde(serialize_with = "canonical")]
    pub buffer: Bytes,
    /// Latency of the stack from socket to wire.
    #[serde(serialize_with = "canonical")]
    pub tx_delay: Duration,
    /// Latency of the stack from wire to socket.
    #[serde(serialize_with = "canonical")]
    pub rx_delay: Duration,
}

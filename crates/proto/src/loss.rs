//! Loss is explicit: a frame is handed back to the caller, or it is dropped for a named reason and counted.

/// The queue was full: the caller gets the frame back, keeps it and is woken later.
#[derive(Debug, PartialEq, Eq)]
pub struct Full<F>(pub F);

/// The reason for a drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum DropReason {
    /// A lossy queue of a physical switch was full, or its memory for notifications of its own.
    SwitchBuffer,
    /// A lossless class exceeded XOFF plus headroom: a violation, never congestion.
    HeadroomExceeded,
    /// The vSwitch's queue towards its adapter was full.
    VswitchUplink,
    /// The vSwitch's queue towards a VM was full.
    VswitchVm,
    /// The adapter's transmit buffer was full (an adapter that drops instead of stopping its host).
    AdapterTx,
    /// The adapter's receive buffer was full.
    AdapterRx,
    /// A UDP socket's receive buffer was full.
    SocketRx,
    /// The frame check sequence was wrong.
    BadCrc,
    /// No port leads to the destination.
    NoRoute,
    /// A switch marked the outer header although the inner packet's transport does not support ECN (RFC 6040, 4.2).
    BadEcn,
    /// Too short, too long, or without a readable header.
    Malformed,
    /// For a control address that ends at its link (01-80-C2-00-00-0x), such as PAUSE or LLDP from an endpoint.
    Reserved,
    /// The source address belongs to another port, or is none of the sender's; or a tag names another VLAN than the port's.
    ForgedSource,
    /// A copy of a flooded frame for a full port; floods stop no sender.
    FloodNoRoom,
    /// For a port that the watchdog isolated because it accepted no frame for too long.
    Watchdog,
    /// For a removed port, or in the queue or on the link of a port that failed.
    PortGone,
    /// Longer than the receiver or link behind the port accepts.
    TooBig,
    /// From or to a tunnel endpoint that is not a server of this overlay.
    UnknownServer,
    /// From a tunnel, with a network identifier of no tenant of this server.
    UnknownVni,
    /// A tunnel inside a tunnel.
    NestedTunnel,
    /// To or from a station that the controller does not know, or about which it cannot be asked now.
    Unresolved,
    /// For an address without a socket, beyond the rate at which the kernel answers by ICMP.
    NoSocket,
    /// A fragment of a datagram that never became complete.
    StrayFragment,
    /// The receiver's hypervisor has granted no credit for the frame.
    NoCredit,
    /// In a TCP tunnel that ended before the frame was acknowledged (it may have arrived), or for a silent server.
    TunnelEnded,
    /// Between endpoints that may not communicate.
    Denied,
    /// By active queue management, before the queue was full.
    EarlyDrop,
    /// Above the rate to which a bump limits its flow.
    Policed,
    /// By an extension of a bump, or because the extension did not keep up.
    Extension,
    /// From an IP address that its sender may not use.
    ForgedIp,
    /// An ARP message with a sender address that its sender may not use.
    ForgedArp,
    /// A message of neighbour discovery about an address that its sender may not use, or in fragments.
    ForgedNd,
    /// A router advertisement or a redirect from an endpoint that is no router.
    ForgedRa,
    /// A DHCP server's message from an endpoint that is no DHCP server.
    ForgedDhcp,
    /// Of a lossless class that the PFC watchdog of a simulated switch gave up, because the other end paused it for too long.
    PfcStorm,
}

impl DropReason {
    /// Every reason, in the order of the records.
    pub const ALL: [DropReason; 35] = [
        DropReason::SwitchBuffer,
        DropReason::HeadroomExceeded,
        DropReason::VswitchUplink,
        DropReason::VswitchVm,
        DropReason::AdapterTx,
        DropReason::AdapterRx,
        DropReason::SocketRx,
        DropReason::BadCrc,
        DropReason::NoRoute,
        DropReason::BadEcn,
        DropReason::Malformed,
        DropReason::Reserved,
        DropReason::ForgedSource,
        DropReason::FloodNoRoom,
        DropReason::Watchdog,
        DropReason::PortGone,
        DropReason::TooBig,
        DropReason::UnknownServer,
        DropReason::UnknownVni,
        DropReason::NestedTunnel,
        DropReason::Unresolved,
        DropReason::NoSocket,
        DropReason::StrayFragment,
        DropReason::NoCredit,
        DropReason::TunnelEnded,
        DropReason::Denied,
        DropReason::EarlyDrop,
        DropReason::Policed,
        DropReason::Extension,
        DropReason::ForgedIp,
        DropReason::ForgedArp,
        DropReason::ForgedNd,
        DropReason::ForgedRa,
        DropReason::ForgedDhcp,
        DropReason::PfcStorm,
    ];
    /// Number of reasons.
    pub const COUNT: usize = DropReason::ALL.len();

    /// The name in records and tables.
    pub const fn name(self) -> &'static str {
        match self {
            DropReason::SwitchBuffer => "switch_buffer",
            DropReason::HeadroomExceeded => "headroom_exceeded",
            DropReason::VswitchUplink => "vswitch_uplink",
            DropReason::VswitchVm => "vswitch_vm",
            DropReason::AdapterTx => "adapter_tx",
            DropReason::AdapterRx => "adapter_rx",
            DropReason::SocketRx => "socket_rx",
            DropReason::BadCrc => "bad_crc",
            DropReason::NoRoute => "no_route",
            DropReason::BadEcn => "bad_ecn",
            DropReason::Malformed => "malformed",
            DropReason::Reserved => "reserved",
            DropReason::ForgedSource => "forged_source",
            DropReason::FloodNoRoom => "flood_no_room",
            DropReason::Watchdog => "watchdog",
            DropReason::PortGone => "port_gone",
            DropReason::TooBig => "too_big",
            DropReason::UnknownServer => "unknown_server",
            DropReason::UnknownVni => "unknown_vni",
            DropReason::NestedTunnel => "nested_tunnel",
            DropReason::Unresolved => "unresolved",
            DropReason::NoSocket => "no_socket",
            DropReason::StrayFragment => "stray_fragment",
            DropReason::NoCredit => "no_credit",
            DropReason::TunnelEnded => "tunnel_ended",
            DropReason::Denied => "denied",
            DropReason::EarlyDrop => "early_drop",
            DropReason::Policed => "policed",
            DropReason::Extension => "extension",
            DropReason::ForgedIp => "forged_ip",
            DropReason::ForgedArp => "forged_arp",
            DropReason::ForgedNd => "forged_nd",
            DropReason::ForgedRa => "forged_ra",
            DropReason::ForgedDhcp => "forged_dhcp",
            DropReason::PfcStorm => "pfc_storm",
        }
    }

    /// Whether the frame was dropped for lack of space. A lossless class must never have such a drop.
    pub const fn is_congestion(self) -> bool {
        matches!(
            self,
            DropReason::SwitchBuffer
                | DropReason::HeadroomExceeded
                | DropReason::VswitchUplink
                | DropReason::VswitchVm
                | DropReason::AdapterTx
                | DropReason::AdapterRx
                | DropReason::SocketRx
                | DropReason::NoCredit
                | DropReason::EarlyDrop
                | DropReason::Policed
        )
    }
}

/// Frames dropped by a box, by reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drops {
    frames: [u64; DropReason::COUNT],
    bytes: [u64; DropReason::COUNT],
}

impl Default for Drops {
    fn default() -> Drops {
        Drops { frames: [0; DropReason::COUNT], bytes: [0; DropReason::COUNT] }
    }
}

impl Drops {
    /// Counts one frame of `bytes`.
    #[inline]
    pub fn count(&mut self, reason: DropReason, bytes: u64) {
        self.frames[reason as usize] += 1;
        self.bytes[reason as usize] += bytes;
    }
    /// Counts several frames of `bytes` in all.
    pub fn count_many(&mut self, reason: DropReason, frames: u64, bytes: u64) {
        self.frames[reason as usize] += frames;
        self.bytes[reason as usize] += bytes;
    }
    /// Frames dropped for `reason`.
    pub fn frames(&self, reason: DropReason) -> u64 {
        self.frames[reason as usize]
    }
    /// Bytes dropped for `reason`.
    pub fn bytes(&self, reason: DropReason) -> u64 {
        self.bytes[reason as usize]
    }
    /// Frames dropped for any reason.
    pub fn total_frames(&self) -> u64 {
        self.frames.iter().sum()
    }
    /// Adds the counts of another box.
    pub fn add(&mut self, other: &Drops) {
        for i in 0..DropReason::COUNT {
            self.frames[i] += other.frames[i];
            self.bytes[i] += other.bytes[i];
        }
    }
}

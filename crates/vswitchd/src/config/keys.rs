//! The keys of a switch's file, except those of ports, policies and TCP tunnels.

use super::checks::{Address, Device, Folders, Listener, Mac, Name, Namespace, Socket, SocketPath, Word};
use super::policy::POLICY;
use super::port::PortKeys;
use super::qcn::Limiting;
use super::tcp_tunnel::TcpTunnel;
use super::xco::{Coordination, HostKeys};
use super::{LogFormat, PORTS};
use sluicenet_node::vale::{Action, PORTS_MAX, ValeConfig};
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;
use sluicenet_scenario::setting::{Kind, Or, Settings, Spec};
use sluicenet_scenario::units::{BUFFER, LINK_RATE, POSITIVE_TIME};
use sluicenet_scenario::{Bytes, Ets, ZBRIDGE_BUFFER_MAX, ZBRIDGE_TIMEOUT, choices, settings, tables};
use sluicenet_wire::controller::UDP_PORT;

/// Numbers of tenants.
pub(super) const TENANT: core::ops::RangeInclusive<u16> = 0..=4095;
/// The longest time that an end of a link takes to obey a pause: as long as a program waits for a shared processor.
const RESPONSE: Duration = Duration::from_ms(20);

pub(crate) static ROOT: Spec = tables! {
    /// A lossless switch.
    ""
    switch: Kind::Table(SwitchKeys::SPEC),
    watchdog: Kind::Table(WatchdogKeys::SPEC),
    port: Kind::Tables(&[PortKeys::SPEC]),
    uplink: Kind::Table(UplinkKeys::SPEC),
    qcn: Kind::Table(Limiting::SPEC),
    ets: Kind::Table(Ets::SPEC),
    xco: Kind::Table(Coordination::SPEC),
    host: Kind::Tables(&[HostKeys::SPEC]),
    overlay: Kind::Table(OverlayKeys::SPEC),
    network: Kind::Tables(&[NetworkKeys::SPEC]),
    server: Kind::Tables(&[ServerKeys::SPEC]),
    zcredit: Kind::Table(ZCreditKeys::SPEC),
    zbridge: Kind::Table(ZBridgeKeys::SPEC),
    tcp_tunnel: Kind::Table(TcpTunnel::SPEC),
    policy: Kind::Table(&POLICY),
};

settings! {
    /// the switch itself
    pub(super) struct SwitchKeys in "switch" (s, d: &ValeConfig) {
        /// its name; default the file's name without its extension
        name: Option<Name>,
        /// its control socket; default NAME.sock in /run/sluicenet or in the user's run folder
        control: Option<SocketPath>,
        /// ports it may have at once; default 64
        ports: u32 [2..=PORTS_MAX as u32] = PORTS as u32,
        /// frames each queue holds; default 1024
        slots: u32 [1..=1 << 16] = d.slots,
        /// lossless priorities: their frames wait and are never dropped because a buffer is full; default all
        lossless: Option<Vec<u8>> [0..=7],
        /// stations the forwarding table holds; default 8192
        stations: u32 [1..=1 << 20] = d.stations as u32,
        /// stations that it learns behind one port, at most stations / ports; default the smaller of that and 1024
        stations_per_port: Option<u32> [0..=1 << 20],
        /// a learned station that sends nothing for this time is forgotten, at most 10 s later, unless it is a veth tenant's
        /// own device; off: never; default 300 s
        aging_time: Or<Duration, NoAging> [POSITIVE_TIME] = Or::Value(Duration::from_secs(300)),
        /// the user that it becomes, if started as root; default the account sluicenet, or nobody without that; root: none,
        /// it only gives up the capabilities
        user: Option<Word>,
        /// whether the switch limits its system calls and files once its ports are open (seccomp, Landlock); false only
        /// to look for a fault in these limits; default true
        sandbox: bool = true,
        /// vhost-user: folders in which ports that are added later may have their sockets; default those of the file's
        /// own sockets
        socket_folders: Option<Folders>,
        /// vhost-user: the group that may connect to the guests' sockets, beside their owner; their folders have this
        /// group and the set-group-ID bit, and none is that of the control socket; default no group
        socket_group: Option<Word>,
        /// where Prometheus fetches metrics: a port of the loopback address, or ADDRESS:PORT; default nowhere
        metrics: Option<Listener>,
        /// format of the log on stderr, one line for each event; default text
        log: LogFormat = LogFormat::Text,
    }
}

choices! {
    /// No aging time.
    pub(super) enum NoAging {
        /// Stations are never forgotten.
        Off = "off",
    }
}

choices! {
    /// The action of the watchdog.
    pub(super) enum WatchdogAction {
        /// The port receives nothing until it accepts frames again.
        Drop = "drop",
        /// The event is counted, and frames wait.
        Alert = "alert",
        /// Neither.
        Off = "off",
    }
}

impl From<WatchdogAction> for Action {
    fn from(action: WatchdogAction) -> Action {
        match action {
            WatchdogAction::Drop => Action::Drop,
            WatchdogAction::Alert => Action::Alert,
            WatchdogAction::Off => Action::Off,
        }
    }
}

settings! {
    /// the action when a receiver accepts no frames: a port, a socket or a guest. The names are those of SONiC's PFC
    /// watchdog, and of `isolation_time`
    pub(super) struct WatchdogKeys in "watchdog" (s, d: &ValeConfig) {
        /// a receiver that has frames and accepts none for this time is stuck, and the switch reports it; default 200
        /// ms; at the uplink a class that the neighbour pauses for this time, or 50 times its `response` if that is
        /// longer, is in a storm and is given up
        detection_time: Duration [POSITIVE_TIME] = d.watchdog.detection_time,
        /// a receiver that accepts nothing for this time is isolated; a program that pauses for less loses nothing.
        /// Not for a storm at the uplink. At least `detection_time`; default the larger of 10 s and `detection_time`
        isolation_time: Option<Duration> [POSITIVE_TIME],
        /// an isolated port that has had room for this time is restored; default 200 ms
        restoration_time: Duration [POSITIVE_TIME] = d.watchdog.restoration_time,
        /// drop: a stuck receiver is reported, then isolated: it receives nothing until it accepts frames again; alert:
        /// it is reported and frames wait; off: neither; default drop
        action: Option<WatchdogAction>,
    }
}

settings! {
    /// the link to other servers, with priority flow control (802.1Qbb): a trunk, or the link of the overlay with
    /// [overlay]
    pub(super) struct UplinkKeys in "uplink" (s) {
        /// its device
        device: Device,
        /// its namespace, by name or path; default the switch's own
        netns: Option<Namespace>,
        /// its address
        mac: Mac,
        /// its speed, which defines the length of a pause
        rate: Rate [LINK_RATE],
        /// how long either end may take to obey a pause; default 20 ms
        response: Duration [POSITIVE_TIME] = RESPONSE,
        /// priorities under flow control; default those of [switch]
        lossless: Option<Vec<u8>> [0..=7],
        /// receive buffer of a priority; default the headroom for flow control and 64 KB
        buffer: Option<Bytes> [BUFFER],
        /// whether runs of tunnel frames go to the device in one piece, which the device or the kernel cuts; default
        /// true. Set false if a program at the other end of a veth reads raw frames
        segmentation: bool = true,
    }
}

settings! {
    /// tunnels between servers (VXLAN), and the controller that knows the location of endpoints
    pub(super) struct OverlayKeys in "overlay" (s) {
        /// this server's IPv4 address in the physical network
        address: Address,
        /// the controller's address and port
        controller: Socket,
        /// the port at which it receives messages of the controller; default 49789
        listen: u16 [1..=u16::MAX] = UDP_PORT,
        /// the namespace from which the controller is reached; default the switch's own
        controller_netns: Option<Namespace>,
        /// the file of the key shared with the controller: 64 hexadecimal digits
        key: Word,
    }
}

settings! {
    /// a network of the overlay, and its tenant on this server
    pub(super) struct NetworkKeys in "network" (s) {
        /// the tenant's number at ports
        tenant: u16 [TENANT],
        /// the number of the network
        vni: u32 [0..=(1 << 24) - 1],
    }
}

settings! {
    /// another server of the overlay
    pub(super) struct ServerKeys in "server" (s) {
        /// its IPv4 address in the physical network
        address: Address,
        /// the address of the next hop towards it
        mac: Mac,
    }
}

settings! {
    /// credits between endpoints of the overlay: a frame of a lossless class of [switch] is sent once its receiver has
    /// granted room for it. Use it on all servers or on none
    pub(super) struct ZCreditKeys in "zcredit" (s) {
        /// frames in the receive queue of an endpoint, and the most that may be on their way to it; default 512
        rx_queue: u32 [1..=1 << 16] = 512,
        /// credits of a turn, and of a grant if so many are needed; default 8, or `rx_queue` if that is less
        batch: u32 [1..=1 << 16] = rx_queue.min(8),
        /// frames of an endpoint that may wait for credits. One receiver gets at most a quarter, and less if others
        /// have many; default 1024
        tx_queue: u32 [1..=1 << 16] = 1024,
        /// endpoints on any server that get longer turns at the receivers of this server
        let weight as (Kind::Tables(&[WeightKeys::SPEC])),
    }
}

settings! {
    /// endpoints on any server that get longer turns at the receivers of this server
    pub(super) struct WeightKeys in "weight" (s) {
        /// its tenant's number here
        tenant: u16 [TENANT],
        /// its address
        mac: Mac,
        /// length of its turns, relative to an endpoint without an entry
        weight: u32 [1..=1 << 16],
    }
}

settings! {
    /// reliability between endpoints of the overlay: frames of the lossless classes of [switch] are numbered, put in
    /// order, and sent again if lost. Use it on all servers or on none
    pub(super) struct ZBridgeKeys in "zbridge" (s) {
        /// one in this many frames of a pair asks for an acknowledgement; default 1024
        period: u32 [1..=1 << 23] = 1024,
        /// frames of a pair that are kept until they are acknowledged: at least two periods; default the larger of 4096
        /// and four periods
        buffer: u32 [2..=ZBRIDGE_BUFFER_MAX] = (4 * period).clamp(4096, ZBRIDGE_BUFFER_MAX),
        /// how long a sender waits before it asks which frames have arrived; default 27 ms
        timeout: Duration [ZBRIDGE_TIMEOUT] = Duration::from_ms(27),
    }
}

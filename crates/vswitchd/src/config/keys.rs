//! The keys of a switch's file, and what is said of them.

use super::PORTS_MAX;
use sluicenet_scenario::keys::Kind::*;
use sluicenet_scenario::keys::{Spec, k};

pub(crate) static ROOT: Spec = Spec {
    name: "",
    doc: "A lossless switch.",
    keys: &[
        k("switch", Table(&SWITCH), SWITCH.doc),
        k("watchdog", Table(&WATCHDOG), WATCHDOG.doc),
        k("port", Tables(&[&PORT]), PORT.doc),
        k("uplink", Table(&UPLINK), UPLINK.doc),
        k("overlay", Table(&OVERLAY), OVERLAY.doc),
        k("network", Tables(&[&NETWORK]), NETWORK.doc),
        k("server", Tables(&[&SERVER]), SERVER.doc),
        k("zcredit", Table(&ZCREDIT), ZCREDIT.doc),
        k("zbridge", Table(&ZBRIDGE), ZBRIDGE.doc),
        k("tcp_tunnel", Table(&TCP_TUNNEL), TCP_TUNNEL.doc),
        k("policy", Table(&POLICY), POLICY.doc),
    ],
};

pub(super) static SWITCH: Spec = Spec {
    name: "switch",
    doc: "the switch itself",
    keys: &[
        k("name", Text, "its name; the file's without its ending where absent"),
        k("control", Text, "its control socket; NAME.sock in /run/sluicenet or the user's own run folder where absent"),
        k("ports", Count(2, PORTS_MAX as u64), "ports it may have at once; 64 where absent"),
        k("slots", Count(1, 1 << 16), "frames each queue holds; 1024 where absent"),
        k("lossless", Counts, "priorities whose frames wait and are never dropped for want of room; all where absent"),
        k("stations", Count(1, 1 << 20), "stations the forwarding table holds; 8192 where absent"),
        k(
            "stations_per_port",
            Count(0, 1 << 20),
            "stations it learns behind one port, at most stations / ports; as many or 1024, the less, where absent",
        ),
        k(
            "user",
            Text,
            "who it is once its ports are open, when started as root; root without capabilities where absent",
        ),
        k(
            "hotplug",
            Bool,
            "whether ports of kind veth, tap and packet can be added while it runs: it keeps the privileges for that; false where absent",
        ),
        k(
            "metrics",
            Text,
            "where Prometheus fetches them: a port of the loopback address, or ADDRESS:PORT; nowhere where absent",
        ),
        k("log", Choice(&["text", "json"]), "how it says on stderr what happens, a line each; text where absent"),
    ],
};

pub(super) static WATCHDOG: Spec = Spec {
    name: "watchdog",
    doc: "what becomes of a port that takes nothing, with the names and defaults of SONiC's PFC watchdog",
    keys: &[
        k(
            "detection_time",
            Duration,
            "a port that has frames and takes none for so long is stuck; 200 ms where absent; at the uplink 50 times its `response` at least",
        ),
        k("restoration_time", Duration, "one that has had room for so long is not any more; 200 ms where absent"),
        k(
            "action",
            Choice(&["drop", "alert", "off"]),
            "drop: nothing reaches it until it moves again; alert: it is counted and waited for; off: neither. drop where absent",
        ),
    ],
};

pub(super) static PORT: Spec = Spec {
    name: "port",
    doc: "a port and who is at it",
    keys: &[
        k("name", Text, "its name"),
        k(
            "kind",
            Choice(&["shm", "vhost-user", "veth", "tap", "packet"]),
            "over what its frames move: memory that a program attaches to, a QEMU guest's queues, a veth pair to a \
             namespace that is held back without loss, a TAP device that is held by its queue, or any device without that",
        ),
        k(
            "mac",
            Text,
            "the address of the machine at it, which nobody else can use then; learned where absent, but tap has to have it",
        ),
        k("ip", Text, "the only IPv4 address it may send from; any where absent"),
        k("tenant", Count(0, 4095), "the broadcast domain of all its frames; each frame's VLAN where absent"),
        k("priority", Count(0, 7), "the priority of all its frames; each frame's 802.1Q tag where absent"),
        k(
            "rate",
            Rate,
            "how fast the machine at it is given frames, with their check sequences; as fast as it takes them where absent",
        ),
        k("buffers", Count(2, 1 << 16), "shm: buffers, a power of two; 1024 where absent"),
        k("socket", Text, "vhost-user: the socket the switch listens at, `server=off` in QEMU"),
        k("connect", Text, "vhost-user: the socket QEMU listens at, instead"),
        k(
            "device",
            Text,
            "veth, packet: the switch's device; tap: the device to be made; the port's name where absent",
        ),
        k("netns", Text, "veth, packet: the namespace that `device` is in, by name or path; this one where absent"),
        k("tenant_netns", Text, "veth, tap: the namespace of the machine"),
        k("tenant_device", Text, "veth: the machine's end of the pair; eth0 where absent"),
        k("mtu", Count(68, 65_521), "tap: the largest IP packet; 1500 where absent"),
        k(
            "offload",
            Bool,
            "veth, tap: whether TCP segments are made after the switch, and checksums; true where absent",
        ),
        k(
            "agent",
            Bool,
            "vhost-user, tap: whether `sluicenet agent` in the guest says how many frames its sockets take; false where absent",
        ),
    ],
};

pub(super) static UPLINK: Spec = Spec {
    name: "uplink",
    doc: "the link to other servers, with priority flow control (802.1Qbb); a trunk, or the overlay's with [overlay]",
    keys: &[
        k("device", Text, "its device"),
        k("netns", Text, "the namespace that it is in, by name or path; this one where absent"),
        k("mac", Text, "its address"),
        k("rate", Rate, "its speed: what pauses are counted in"),
        k("response", Duration, "how long either end may take to obey a pause; 20 ms where absent"),
        k("lossless", Counts, "priorities under flow control; those of [switch] where absent"),
        k("buffer", Size, "receive buffer of a priority; room for flow control and 64 KB where absent"),
        k(
            "segmentation",
            Bool,
            "whether runs of tunnel frames go to the device in one piece, for it or the kernel to cut; true where absent; false where who is at the other end of a veth reads raw frames",
        ),
    ],
};

pub(super) static OVERLAY: Spec = Spec {
    name: "overlay",
    doc: "tunnels between servers (VXLAN), and who says which machine is where",
    keys: &[
        k("address", Text, "this server's IPv4 address in the physical network"),
        k("controller", Text, "the controller's address and port"),
        k("listen", Count(1, 65_535), "the port at which it hears the controller; 49789 where absent"),
        k("controller_netns", Text, "the namespace through which the controller is reached; this one where absent"),
        k("key", Text, "the file of the key shared with the controller: 64 hexadecimal digits"),
    ],
};

pub(super) static NETWORK: Spec = Spec {
    name: "network",
    doc: "a tenant of this server, and the network of the overlay that it is",
    keys: &[
        k("tenant", Count(0, 4095), "the tenant's number at ports"),
        k("vni", Count(0, (1 << 24) - 1), "the number of the network"),
    ],
};

pub(super) static SERVER: Spec = Spec {
    name: "server",
    doc: "another server of the overlay",
    keys: &[
        k("address", Text, "its IPv4 address in the physical network"),
        k("mac", Text, "the address of the next hop towards it"),
    ],
};

pub(super) static ZCREDIT: Spec = Spec {
    name: "zcredit",
    doc: "credits between machines of the overlay: what is sent in a lossless class of [switch] is sent when its receiver has granted \
          room for it; at all servers or at none",
    keys: &[
        k(
            "rx_queue",
            Count(1, 1 << 16),
            "frames that a machine's receive queue holds: as many may be on their way to it; 512 where absent",
        ),
        k(
            "batch",
            Count(1, 1 << 16),
            "credits of a turn, and of a grant where there is need of so many; 8 where absent, or `rx_queue` where that is less",
        ),
        k(
            "tx_queue",
            Count(1, 1 << 16),
            "frames of a machine that may wait for credits, for one other a quarter at most, and less where others have many; 1024 where absent",
        ),
        k("weight", Tables(&[&WEIGHT]), WEIGHT.doc),
    ],
};

pub(super) static WEIGHT: Spec = Spec {
    name: "weight",
    doc: "a machine, wherever it is, that is granted more by those of this server where several wait",
    keys: &[
        k("tenant", Count(0, 4095), "its tenant's number here"),
        k("mac", Text, "its address"),
        k("weight", Count(1, 1 << 16), "the length of its turns, in those of a machine that is not named"),
    ],
};

pub(super) static ZBRIDGE: Spec = Spec {
    name: "zbridge",
    doc: "reliability between machines of the overlay: what is sent in a lossless class of [switch] is numbered, put in order, and sent \
          again where it is lost; at all servers or at none",
    keys: &[
        k(
            "period",
            Count(1, 1 << 23),
            "an acknowledgement is asked for with every so-many-th frame of a pair of machines; 1024 where absent",
        ),
        k(
            "buffer",
            Count(2, 1 << 24),
            "frames of a pair that are kept until they are acknowledged: two periods at least; 4096 or four periods, the more, where absent",
        ),
        k("timeout", Duration, "how long a sender waits before it asks what has arrived; 27 ms where absent"),
    ],
};

pub(super) static TCP_TUNNEL: Spec = Spec {
    name: "tcp_tunnel",
    doc: "TCP between servers of the overlay in place of datagrams: one connection between two, whose bytes are the frames of their \
          machines in lossless classes of [switch], or all where it has none; at all servers or at none",
    keys: &[
        k("priority", Count(0, 7), "the class of its segments; the first lossless one of [uplink], or 0, where absent"),
        k("congestion", Choice(&["newreno", "cubic", "vegas"]), "the congestion control; newreno where absent"),
        k("buffer", Size, "send and receive buffer of a connection at its start; 128 KB where absent"),
        k("max_buffer", Size, "the most either grows to; 256 KB or `buffer`, the more, where absent"),
        k("rto_base", Duration, "the timeout before there is a measurement; 20 ms where absent"),
        k("rto_min", Duration, "the shortest timeout; 2 ms where absent"),
        k("rto_slop", Duration, "added to every computed timeout; 20 ms where absent"),
        k("rto_max", Duration, "the longest timeout, at least 100 ms; 64 s where absent"),
        k("tick", Duration, "the granularity of timers; 1 us where absent"),
        k(
            "delayed_ack",
            OrWord(&Duration, &["off"]),
            "how long an acknowledgement may wait; half of the shortest timeout where absent",
        ),
        k("ack_every", Count(1, 64), "full segments which force an acknowledgement; 2 where absent"),
        k("reassembly_limit", Count(1, 65_535), "segments that may be out of order; 1024 where absent"),
        k(
            "initial_window",
            OrWord(&Count(1, 255), &["rfc3390"]),
            "how much a connection may send at its start, in segments; rfc3390 where absent",
        ),
        k("sack", Bool, "selective acknowledgements (RFC 2018, 6675); true where absent"),
        k("timestamps", Bool, "timestamps (RFC 7323); true where absent"),
        k("window_scaling", Bool, "window scaling (RFC 7323); true where absent"),
        k("ecn", Bool, "explicit congestion notification (RFC 3168); false where absent"),
        k("limited_transmit", Bool, "limited transmit (RFC 3042); true where absent"),
        k("prr", Bool, "proportional rate reduction in recovery (RFC 6937); false where absent"),
        k("restart_after_idle", Bool, "whether an idle connection starts slowly again; true where absent"),
        k("nagle", Bool, "whether small segments wait while others are on their way; false where absent"),
        k(
            "user_timeout",
            Duration,
            "how long a server may answer nothing before what it has not acknowledged is dropped, at least a second; 5 s where absent",
        ),
    ],
};

pub(super) static POLICY: Spec = Spec {
    name: "policy",
    doc: "who may talk to whom: all to all without it",
    keys: &[k("machine", Tables(&[&MACHINE]), MACHINE.doc), k("rule", Tables(&[&RULE]), RULE.doc)],
};

pub(super) static MACHINE: Spec = Spec {
    name: "machine",
    doc: "a machine, wherever it is, by its addresses",
    keys: &[
        k("mac", Text, "the address of its vNIC, or of the first where it has two"),
        k("lossy_mac", Text, "that of its second vNIC, whose frames are of a lossy priority; this or `mac`, or both"),
        k("tenant", Count(0, 4095), "its tenant's number here; 0 where absent"),
        k("group", Text, "those it may talk to where no rule says otherwise; all who are in none where absent"),
        k("name", Text, "what rules call it"),
        k(
            "outside",
            Bool,
            "whether it is a host outside, or the gateway to them, to which all may talk; false where absent",
        ),
    ],
};

pub(super) static RULE: Spec = Spec {
    name: "rule",
    doc: "what holds between two of them, whichever of the two sends; the first that names both decides",
    keys: &[
        k("party", Text, "a group, a machine by its name, or outside: all hosts outside"),
        k("peer", Text, "the other one"),
        k("allow", Bool, "whether they may talk"),
    ],
};

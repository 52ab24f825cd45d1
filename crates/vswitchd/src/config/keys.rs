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
        k("name", Text, "its name; default the file's name without its extension"),
        k("control", Text, "its control socket; default NAME.sock in /run/sluicenet or in the user's run folder"),
        k("ports", Count(2, PORTS_MAX as u64), "ports it may have at once; default 64"),
        k("slots", Count(1, 1 << 16), "frames each queue holds; default 1024"),
        k(
            "lossless",
            Counts,
            "lossless priorities: their frames wait and are never dropped because a buffer is full; default all",
        ),
        k("stations", Count(1, 1 << 20), "stations the forwarding table holds; default 8192"),
        k(
            "stations_per_port",
            Count(0, 1 << 20),
            "stations that it learns behind one port, at most stations / ports; default the smaller of that and 1024",
        ),
        k(
            "user",
            Text,
            "the user that it becomes once its ports are open, if started as root; default root without capabilities",
        ),
        k(
            "hotplug",
            Bool,
            "whether you can add ports of kind veth, tap and packet at run time; the switch then keeps the \
                privileges for that; default false",
        ),
        k(
            "metrics",
            Text,
            "where Prometheus fetches metrics: a port of the loopback address, or ADDRESS:PORT; default nowhere",
        ),
        k("log", Choice(&["text", "json"]), "format of the log on stderr, one line for each event; default text"),
    ],
};

pub(super) static WATCHDOG: Spec = Spec {
    name: "watchdog",
    doc: "the action when a port accepts no frames, with the names and defaults of SONiC's PFC watchdog",
    keys: &[
        k(
            "detection_time",
            Duration,
            "a port that has frames and accepts none for this time is stuck; default 200 ms; at the uplink at least \
                50 times its `response`",
        ),
        k("restoration_time", Duration, "a stuck port that has had room for this time is restored; default 200 ms"),
        k(
            "action",
            Choice(&["drop", "alert", "off"]),
            "drop: the port receives nothing until it accepts frames again; alert: the event is counted and frames \
                wait; off: neither; default drop",
        ),
    ],
};

pub(super) static PORT: Spec = Spec {
    name: "port",
    doc: "a port and its endpoint",
    keys: &[
        k("name", Text, "its name"),
        k(
            "kind",
            Choice(&["shm", "vhost-user", "veth", "tap", "packet"]),
            "how frames move: memory that a program attaches to, a QEMU guest's queues, a veth pair to a namespace \
                with lossless backpressure, a TAP device with backpressure by its queue, or any device without \
                backpressure",
        ),
        k(
            "mac",
            Text,
            "the address of its endpoint, which no other endpoint can use; default learned; required for tap",
        ),
        k("ip", Text, "the only IPv4 address it may send from; default any"),
        k("tenant", Count(0, 4095), "the broadcast domain of all its frames; default each frame's VLAN"),
        k("priority", Count(0, 7), "the priority of all its frames; default that of each frame's 802.1Q tag"),
        k(
            "rate",
            Rate,
            "the highest rate at which its endpoint receives frames, including their check sequences; default \
                unlimited",
        ),
        k("buffers", Count(2, 1 << 16), "shm: buffers, a power of two; default 1024"),
        k("socket", Text, "vhost-user: the socket at which the switch listens, `server=off` in QEMU"),
        k("connect", Text, "vhost-user: a socket at which QEMU listens, instead of `socket`"),
        k("device", Text, "veth, packet: the switch's device; tap: the device to create; default the port's name"),
        k("netns", Text, "veth, packet: the namespace of `device`, by name or path; default the switch's own"),
        k("tenant_netns", Text, "veth, tap: the namespace of the endpoint"),
        k("tenant_device", Text, "veth: the endpoint's end of the pair; default eth0"),
        k("mtu", Count(68, 65_521), "tap: the largest IP packet; default 1500"),
        k(
            "offload",
            Bool,
            "veth, tap: whether the endpoint leaves checksums and TCP segmentation to be done after the switch; \
                default true",
        ),
        k(
            "agent",
            Bool,
            "vhost-user, tap: whether `sluicenet agent` in the guest reports the room of its sockets; default false",
        ),
    ],
};

pub(super) static UPLINK: Spec = Spec {
    name: "uplink",
    doc: "the link to other servers, with priority flow control (802.1Qbb): a trunk, or the link of the overlay with \
            [overlay]",
    keys: &[
        k("device", Text, "its device"),
        k("netns", Text, "its namespace, by name or path; default the switch's own"),
        k("mac", Text, "its address"),
        k("rate", Rate, "its speed, which defines the length of a pause"),
        k("response", Duration, "how long either end may take to obey a pause; default 20 ms"),
        k("lossless", Counts, "priorities under flow control; default those of [switch]"),
        k("buffer", Size, "receive buffer of a priority; default the headroom for flow control and 64 KB"),
        k(
            "segmentation",
            Bool,
            "whether runs of tunnel frames go to the device in one piece, which the device or the kernel cuts; \
                default true. Set false if a program at the other end of a veth reads raw frames",
        ),
    ],
};

pub(super) static OVERLAY: Spec = Spec {
    name: "overlay",
    doc: "tunnels between servers (VXLAN), and the controller that knows the location of endpoints",
    keys: &[
        k("address", Text, "this server's IPv4 address in the physical network"),
        k("controller", Text, "the controller's address and port"),
        k("listen", Count(1, 65_535), "the port at which it receives messages of the controller; default 49789"),
        k("controller_netns", Text, "the namespace from which the controller is reached; default the switch's own"),
        k("key", Text, "the file of the key shared with the controller: 64 hexadecimal digits"),
    ],
};

pub(super) static NETWORK: Spec = Spec {
    name: "network",
    doc: "a network of the overlay, and its tenant on this server",
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
    doc: "credits between endpoints of the overlay: a frame of a lossless class of [switch] is sent once its \
            receiver has granted room for it. Use it on all servers or on none",
    keys: &[
        k(
            "rx_queue",
            Count(1, 1 << 16),
            "frames in the receive queue of an endpoint, and the most that may be on their way to it; default 512",
        ),
        k(
            "batch",
            Count(1, 1 << 16),
            "credits of a turn, and of a grant if so many are needed; default 8, or `rx_queue` if that is less",
        ),
        k(
            "tx_queue",
            Count(1, 1 << 16),
            "frames of an endpoint that may wait for credits. One receiver gets at most a quarter, and less if \
                others have many; default 1024",
        ),
        k("weight", Tables(&[&WEIGHT]), WEIGHT.doc),
    ],
};

pub(super) static WEIGHT: Spec = Spec {
    name: "weight",
    doc: "endpoints on any server that get longer turns at the receivers of this server",
    keys: &[
        k("tenant", Count(0, 4095), "its tenant's number here"),
        k("mac", Text, "its address"),
        k("weight", Count(1, 1 << 16), "the length of its turns, in those of a machine that is not named"),
    ],
};

pub(super) static ZBRIDGE: Spec = Spec {
    name: "zbridge",
    doc: "reliability between endpoints of the overlay: frames of the lossless classes of [switch] are numbered, put \
            in order, and sent again if lost. Use it on all servers or on none",
    keys: &[
        k("period", Count(1, 1 << 23), "one in this many frames of a pair asks for an acknowledgement; default 1024"),
        k(
            "buffer",
            Count(2, 1 << 24),
            "frames of a pair that are kept until they are acknowledged: at least two periods; default the larger \
                of 4096 and four periods",
        ),
        k("timeout", Duration, "how long a sender waits before it asks which frames have arrived; default 27 ms"),
    ],
};

pub(super) static TCP_TUNNEL: Spec = Spec {
    name: "tcp_tunnel",
    doc: "TCP between servers of the overlay instead of datagrams. One connection between two servers carries the \
            frames of the lossless classes of [switch], or all frames if there is no lossless class. Use it on all \
            servers or on none",
    keys: &[
        k("priority", Count(0, 7), "the class of its segments; default the first lossless one of [uplink], or 0"),
        k("congestion", Choice(&["newreno", "cubic", "vegas"]), "the congestion control; default newreno"),
        k("buffer", Size, "send and receive buffer of a connection at its start; default 128 KB"),
        k("max_buffer", Size, "limit to which either buffer grows; default the larger of 256 KB and `buffer`"),
        k("rto_base", Duration, "the timeout before the first measurement; default 20 ms"),
        k("rto_min", Duration, "the shortest timeout; default 2 ms"),
        k("rto_slop", Duration, "added to every computed timeout; default 20 ms"),
        k("rto_max", Duration, "the longest timeout, at least 100 ms; default 64 s"),
        k("tick", Duration, "the granularity of timers; default 1 us"),
        k(
            "delayed_ack",
            OrWord(&Duration, &["off"]),
            "how long an acknowledgement may wait; default half of the shortest timeout",
        ),
        k("ack_every", Count(1, 64), "full segments which force an acknowledgement; default 2"),
        k("reassembly_limit", Count(1, 65_535), "segments that may be out of order; default 1024"),
        k(
            "initial_window",
            OrWord(&Count(1, 255), &["rfc3390"]),
            "initial window of a connection, in segments; default rfc3390",
        ),
        k("sack", Bool, "selective acknowledgements (RFC 2018, 6675); default true"),
        k("timestamps", Bool, "timestamps (RFC 7323); default true"),
        k("window_scaling", Bool, "window scaling (RFC 7323); default true"),
        k("ecn", Bool, "explicit congestion notification (RFC 3168); default false"),
        k("limited_transmit", Bool, "limited transmit (RFC 3042); default true"),
        k("prr", Bool, "proportional rate reduction in recovery (RFC 6937); default false"),
        k("restart_after_idle", Bool, "whether an idle connection restarts with slow start; default true"),
        k("nagle", Bool, "whether small segments wait while others are on their way; default false"),
        k(
            "user_timeout",
            Duration,
            "how long a server may answer nothing before its unacknowledged frames are dropped, at least a second; \
                default 5 s",
        ),
    ],
};

pub(super) static POLICY: Spec = Spec {
    name: "policy",
    doc: "which endpoints may communicate; without it all may",
    keys: &[k("machine", Tables(&[&MACHINE]), MACHINE.doc), k("rule", Tables(&[&RULE]), RULE.doc)],
};

pub(super) static MACHINE: Spec = Spec {
    name: "machine",
    doc: "an endpoint on any server, by its addresses",
    keys: &[
        k("mac", Text, "the address of its vNIC, or of the first of two"),
        k(
            "lossy_mac",
            Text,
            "the address of its second vNIC, whose frames have a lossy priority; give this or `mac`, or both",
        ),
        k("tenant", Count(0, 4095), "its tenant's number on this server; default 0"),
        k(
            "group",
            Text,
            "endpoints of one group may communicate unless a rule forbids it; endpoints without a group form one group",
        ),
        k("name", Text, "its name in rules"),
        k(
            "outside",
            Bool,
            "whether it is a host outside, or the gateway to such hosts; all may communicate with it; default false",
        ),
    ],
};

pub(super) static RULE: Spec = Spec {
    name: "rule",
    doc: "a permission between two of them, in both directions; the first rule that names both decides",
    keys: &[
        k("party", Text, "a group, an endpoint's name, or outside: all hosts outside"),
        k("peer", Text, "the other side, as `party`"),
        k("allow", Bool, "whether they may communicate"),
    ],
};

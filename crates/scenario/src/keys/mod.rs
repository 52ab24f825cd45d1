//! Every key a scenario may hold: the one table that readers, hints and the JSON schema share.

mod workloads;

pub use workloads::*;

use Kind::*;

/// What a key's value is.
#[derive(Debug)]
pub enum Kind {
    /// Any text.
    Text,
    /// `true` or `false`.
    Bool,
    /// A whole number from, to.
    Count(u64, u64),
    /// A list of whole numbers.
    Counts,
    /// A number from, to.
    Number(f64, f64),
    /// A rate, as `"10 Gb/s"`.
    Rate,
    /// A size, as `"20 KB"`.
    Size,
    /// A duration, as `"5 ms"`.
    Duration,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A count of hosts or a list of them.
    Hosts,
    /// A list of ports by name.
    Ports,
    /// A distribution of sizes.
    SizeDistribution,
    /// A distribution of durations.
    TimeDistribution,
    /// A table.
    Table(&'static Spec),
    /// A list of tables; more than one kind of table is told apart by its key `kind`.
    Tables(&'static [&'static Spec]),
    /// Lists of values by dotted key.
    Axes,
    /// A name, with numbers in parentheses where it takes any.
    Pattern,
    /// Lists of numbers, any of which may be missing.
    Matrix,
    /// A value of this kind, or one of these words.
    OrWord(&'static Kind, &'static [&'static str]),
}

/// A key.
#[derive(Debug)]
pub struct Key {
    /// Its name in the file.
    pub name: &'static str,
    /// The type of its value.
    pub kind: Kind,
    /// One sentence for the reference page and the schema.
    pub doc: &'static str,
}

/// A table and its keys.
#[derive(Debug)]
pub struct Spec {
    /// As in the file; for a workload, its kind.
    pub name: &'static str,
    /// One sentence for the reference page and the schema.
    pub doc: &'static str,
    /// The keys of the table.
    pub keys: &'static [Key],
}

/// A key.
pub const fn k(name: &'static str, kind: Kind, doc: &'static str) -> Key {
    Key { name, kind, doc }
}

/// What leaves the slowest link of 10 Gb/s, 10 kb/s, possible.
pub const SLOWDOWN_MAX: u64 = 1_000_000;
const HOST_MAX: u64 = (super::HOSTS_MAX - 1) as u64;
/// Rounds and the like: what 56 bits of a message's name leave room for.
pub const COUNT_MAX: u64 = 1 << 40;
/// Steps of annealing: a few seconds of them.
pub const ITERATIONS_MAX: u64 = 1 << 22;
/// Queries that are planned before a run, and so held in memory.
pub const PLANNED_MAX: u64 = 1 << 22;
/// Queries of an aggregator in two tiers: 32 bits of their number count them.
pub const QUERIES_MAX: u64 = u32::MAX as u64;

/// The keys of a scenario.
pub static ROOT: Spec = Spec {
    name: "",
    doc: "A scenario of sluicenet.",
    keys: &[
        k("scenario", Table(&SCENARIO), SCENARIO.doc),
        k("topology", Table(&TOPOLOGY), TOPOLOGY.doc),
        k("control", Table(&CONTROL), CONTROL.doc),
        k("failure", Tables(&[&FAILURE]), FAILURE.doc),
        k("switch", Table(&SWITCH), SWITCH.doc),
        k("pfc", Table(&PFC), PFC.doc),
        k("adapter", Table(&ADAPTER), ADAPTER.doc),
        k("server", Table(&SERVER), SERVER.doc),
        k("vswitch", Table(&VSWITCH), VSWITCH.doc),
        k("zcredit", Table(&ZCREDIT), ZCREDIT.doc),
        k("zbridge", Table(&ZBRIDGE), ZBRIDGE.doc),
        k("policy", Table(&POLICY), POLICY.doc),
        k("overlay", Table(&OVERLAY), OVERLAY.doc),
        k("framing", Table(&FRAMING), FRAMING.doc),
        k("tcp", Table(&TCP), TCP.doc),
        k("udp", Table(&UDP), UDP.doc),
        k("tcplight", Table(&TCPLIGHT), TCPLIGHT.doc),
        k("flow_level", Table(&FLOW_LEVEL), FLOW_LEVEL.doc),
        k("workload", Tables(&WORKLOADS), "who sends what to whom"),
        k("record", Table(&RECORD), RECORD.doc),
        k("testbed", Table(&TESTBED), TESTBED.doc),
        k("table", Tables(&[&TABLE]), TABLE.doc),
        k("sweep", Axes, "dotted keys, each with a list of values: all combinations are run"),
    ],
};

pub(crate) static SCENARIO: Spec = Spec {
    name: "scenario",
    doc: "what it is, and which defaults it starts from",
    keys: &[
        k("name", Text, "its name; the file's where absent"),
        k("description", Text, "what it is for"),
        k("seed", Count(0, u64::MAX), "the seed of every random choice; 1 where absent"),
        k("duration", Duration, "when to stop; when every finite workload has ended where absent"),
        k("warmup", Duration, "what is cut from the statistics at the start; 0 where absent"),
        k(
            "parameters",
            Choice(&["crisan2014-ch2", "crisan2014-ch3", "plain"]),
            "the set of defaults of every section; plain where absent",
        ),
        k(
            "flow_control",
            Choice(&["LL", "LZ", "ZL", "ZZ"]),
            "the virtual (first letter) and the physical network lossy (L) or lossless (Z)",
        ),
        k(
            "hypervisor",
            Choice(&["lossy", "pfc", "tcp", "zfabric"]),
            "what the hypervisors put under the machines' transports (Crisan 2014, 5.4.1), in place of flow_control",
        ),
        k(
            "level",
            Choice(&["packet", "flow"]),
            "whether packets or the rates of flows are simulated; packet where absent",
        ),
    ],
};

pub(crate) static FLOW_LEVEL: Spec = Spec {
    name: "flow_level",
    doc: "the rates of flows, where scenario.level is flow",
    keys: &[
        k("rates", Choice(&["max-min", "aimd"]), "max-min fair, or TCP's slow start and AIMD by ticks"),
        k("tick", Duration, "aimd: a round trip, in which a flow's rate grows by a frame of framing.mtu"),
    ],
};

pub(crate) static CONTROL: Spec = Spec {
    name: "control",
    doc: "the control loop, where topology.routing has one",
    keys: &[
        k(
            "period",
            Duration,
            "time between two rounds; 1 s with flow-classifier and flow-scheduler, 5 s with the others where absent",
        ),
        k("iterations", Count(1, ITERATIONS_MAX), "simulated-annealing: steps of a round; 10000 where absent"),
        k("large", Size, "flow-scheduler: bytes from which on a flow is large; 100 KB where absent"),
        k("dies", Duration, "when the central scheduler dies, half of a round entered; never where absent"),
        k("returns", Duration, "when another takes its place, which knows nothing; never where absent"),
    ],
};

pub(crate) static FAILURE: Spec = Spec {
    name: "failure",
    doc: "links and switches of a fat-tree that fail while it runs",
    keys: &[
        k("port", Text, "a switch, or one of its ports: \"switch 2\", \"switch 2 port 5\""),
        k("at", Duration, "from when on it carries nothing"),
        k("until", Duration, "when it does again; never where absent"),
        k("detection", Duration, "how long its neighbours take to notice, either; 30 ms where absent"),
    ],
};

pub(crate) static TABLE: Spec = Spec {
    name: "table",
    doc: "what `run` shows of all variants of the sweep, beside what a source says",
    keys: &[
        k("title", Text, "what stands above it"),
        k(
            "figure",
            Choice(&["bandwidth", "goodput", "mean", "longest"]),
            "what of a run is shown: in percent, GB/s, ms and ms",
        ),
        k("rows", Text, "the swept key of its rows; one row where absent"),
        k("columns", Text, "the swept key of its columns"),
        k("source", Matrix, "what the source has, row by row; \"\" where it has nothing"),
    ],
};

pub(crate) static TOPOLOGY: Spec = Spec {
    name: "topology",
    doc: "the network's shape and its links",
    keys: &[
        k(
            "kind",
            Choice(&["xgft", "k-ary-n-tree", "fat-tree", "single-switch", "hpcc", "htsim"]),
            "the kind of network",
        ),
        k("m", Counts, "xgft: children of a node of level 1, 2, ..."),
        k("w", Counts, "xgft: parents of a node of level 0 (links of a host), 1, ..."),
        k("k", Count(2, 1 << 16), "k-ary-n-tree: children of a switch; fat-tree: ports of a switch"),
        k("n", Count(1, 8), "k-ary-n-tree: levels of switches"),
        k("slimmed", Counts, "k-ary-n-tree: parents of a switch of level 1, 2, ... n-1, where fewer than k"),
        k("hosts", Count(1, HOST_MAX + 1), "single-switch: hosts"),
        k("file", Text, "hpcc, htsim: the file, relative to the scenario's folder"),
        k("link_rate", Rate, "every link's rate"),
        k("link_delay", Duration, "every link's delay"),
        k("bit_error_rate", Number(0.0, 0.5), "the chance that a bit is wrong on arrival; 0 where absent"),
        k("level", Tables(&[&LEVEL]), "links of one level, where they differ"),
        k(
            "oversubscription",
            Number(1.0, 1000.0),
            "fat-tree: what a pod's hosts send over what its link upwards carries, with hierarchical routing; 3.6 where absent",
        ),
        k("external_hosts", Count(0, HOST_MAX), "client ports at the top level's switches; 0 where absent"),
        k(
            "routing",
            Choice(&[
                "d-mod-k",
                "s-mod-k",
                "random",
                "hash",
                "hash-destination",
                "two-level",
                "flow-classifier",
                "flow-scheduler",
                "global-first-fit",
                "simulated-annealing",
                "non-blocking",
                "hierarchical",
            ]),
            "which of several paths a frame takes; d-mod-k in trees, hash in other graphs where absent",
        ),
    ],
};

pub(crate) static LEVEL: Spec = Spec {
    name: "topology.level",
    doc: "links of one level",
    keys: &[
        k("level", Count(1, 8), "1 is between hosts and edge switches"),
        k("rate", Rate, "their rate"),
        k("delay", Duration, "their delay"),
        k("bit_error_rate", Number(0.0, 0.5), "the chance that a bit is wrong on arrival"),
    ],
};

pub(crate) static SWITCH: Spec = Spec {
    name: "switch",
    doc: "every physical switch",
    keys: &[
        k("buffer", Size, "buffer of a port"),
        k("policy", Choice(&["output", "input", "pooled"]), "what the buffer bounds"),
        k("delay", Duration, "from input to output"),
        k("forwarding", Choice(&["cut-through", "store-and-forward"]), "when a frame is forwarded"),
    ],
};

pub(crate) static PFC: Spec = Spec {
    name: "pfc",
    doc: "priority flow control (802.1Qbb) on every physical link",
    keys: &[
        k("enabled", Bool, "whether the physical network is lossless"),
        k("lossless", Counts, "the lossless priorities; all but server.lossy_vnic where absent"),
        k("xoff", Size, "pause when an input's occupancy reaches this"),
        k("xon", Size, "resume when it is back at this"),
        k(
            "headroom",
            OrWord(&Size, &["auto"]),
            "room above xoff for what still arrives; auto: by the link, and by how many pauses in a row it may damage",
        ),
        k("response", Duration, "from a PFC frame's last bit to the peer's standing still"),
        k("quanta", Count(1, 65_535), "pause time asked for, in quanta of 512 bit times"),
        k("deadlock", Choice(&["refuse", "warn", "ignore"]), "what to do about a cyclic buffer dependency"),
    ],
};

pub(crate) static ADAPTER: Spec = Spec {
    name: "adapter",
    doc: "every server's network adapter",
    keys: &[
        k("buffer", Size, "its transmit buffer"),
        k("delay", Duration, "from host to wire and from wire to host"),
        k("queueing", Choice(&["voq", "fifo"]), "one queue a destination, or one in all"),
        k("when_full", Choice(&["stop", "drop"]), "stop the host, or drop"),
        k("resequencing", Bool, "whether frames that overtook others wait for them; true with routing = \"random\""),
        k("resequencing_timeout", Duration, "how long they wait at most; 1 ms where absent"),
    ],
};

pub(crate) static SERVER: Spec = Spec {
    name: "server",
    doc: "every server",
    keys: &[
        k("vms", Count(1, 63), "virtual machines on each"),
        k("virtual_network", Bool, "whether a virtual switch stands between them and the adapter"),
        k(
            "lossy_vnic",
            Count(0, 7),
            "the priority of a second vNIC of each machine, over a lossy stack; machines have one vNIC where absent",
        ),
    ],
};

pub(crate) static VSWITCH: Spec = Spec {
    name: "vswitch",
    doc: "every server's virtual switch",
    keys: &[
        k("slots", Count(1, 1 << 20), "frames a port's queue holds"),
        k("lossless", Bool, "whether a full queue stops the sender instead of dropping"),
        k("vm_rate", Rate, "rate of a virtual machine's port"),
        k("slow", Tables(&[&SLOW]), "machines that take what they receive more slowly than that"),
    ],
};

pub(crate) static SLOW: Spec = Spec {
    name: "slow",
    doc: "a machine that is slow to receive",
    keys: &[
        k("host", Count(0, HOST_MAX), "its server"),
        k("vm", Count(0, 62), "its number there; 0 where absent"),
        k("rate", Rate, "the rate at which it takes frames"),
    ],
};

pub(crate) static ZCREDIT: Spec = Spec {
    name: "zcredit",
    doc: "credits between virtual machines: a frame is sent when its receiver has granted room for it",
    keys: &[
        k("enabled", Bool, "whether there are any"),
        k(
            "rx_queue",
            Count(1, 1 << 16),
            "frames that a machine's receive queue holds: as many may be on their way to it",
        ),
        k("batch", Count(1, 1 << 16), "credits of a turn, and of a grant where there is need of so many"),
        k("tx_queue", Count(1, 1 << 16), "frames of a machine that may wait for credits"),
        k("weight", Tables(&[&WEIGHT]), "machines that are granted more where several wait"),
    ],
};

pub(crate) static WEIGHT: Spec = Spec {
    name: "weight",
    doc: "a machine's share of what a receiver grants",
    keys: &[
        k("tenant", Text, "a tenant, each of whose machines is meant, in place of host and vm"),
        k("host", Count(0, HOST_MAX), "its server"),
        k("vm", Count(0, 62), "its number there; 0 where absent"),
        k("weight", Count(1, 1 << 16), "the length of its turns, in those of a machine that is not named"),
    ],
};

pub(crate) static POLICY: Spec = Spec {
    name: "policy",
    doc: "which machines may talk to each other",
    keys: &[
        k("tenant", Tables(&[&TENANT]), "whose machines are whose"),
        k("rule", Tables(&[&RULE]), "what holds between two of them; the first that names both ends decides"),
    ],
};

pub(crate) static TENANT: Spec = Spec {
    name: "tenant",
    doc: "the machines of a tenant",
    keys: &[
        k("name", Text, "what it is called"),
        k("hosts", Hosts, "servers with machines of it: a count (the first hosts) or a list; all where absent"),
        k("vms", Counts, "the numbers of these machines on each of them; all where absent"),
    ],
};

pub(crate) static RULE: Spec = Spec {
    name: "rule",
    doc: "what holds between two parties, in both directions",
    keys: &[
        k("party", Text, "a tenant's name, a machine as \"host 3 vm 1\", or outside: the hosts outside"),
        k("peer", Text, "the other one"),
        k("allow", Bool, "whether they may talk"),
    ],
};

pub(crate) static ZBRIDGE: Spec = Spec {
    name: "zbridge",
    doc: "reliability between servers: frames are numbered, put in order, and sent again where they are lost",
    keys: &[
        k("enabled", Bool, "whether they are"),
        k(
            "period",
            Count(1, 1 << 23),
            "an acknowledgement is asked for with every so-many-th frame of a pair of machines",
        ),
        k(
            "buffer",
            Count(2, 1 << 24),
            "frames of a pair that are kept until they are acknowledged: two periods at least",
        ),
        k("timeout", Duration, "how long a sender waits before it asks what has arrived"),
    ],
};

pub(crate) static OVERLAY: Spec = Spec {
    name: "overlay",
    doc: "the tunnels between virtual switches",
    keys: &[
        k("enabled", Bool, "whether frames between servers are encapsulated"),
        k(
            "transport",
            Choice(&["udp", "tcp"]),
            "udp: each frame in a datagram; tcp: all between two servers in one connection; udp where absent",
        ),
        k("encapsulation", Size, "bytes added to each"),
        k("mtu", Size, "the largest IP packet of a virtual machine"),
    ],
};

pub(crate) static FRAMING: Spec = Spec {
    name: "framing",
    doc: "what a frame costs on the wire",
    keys: &[
        k("kind", Choice(&["ethernet", "ppp"]), "ethernet: 18 B and 20 B of gap; ppp: 2 B, as ns-3's links"),
        k("mtu", Size, "the largest IP packet of the physical network"),
    ],
};

/// `[tcp]`.
pub static TCP: Spec = Spec {
    name: "tcp",
    doc: "every TCP stack",
    keys: &[
        k("congestion", Choice(&["newreno", "cubic", "vegas"]), "the congestion control"),
        k("preset", Choice(&["default", "tuned"]), "timeouts of Crisan 2014, Table 3.2; tuned where absent"),
        k("rto_base", Duration, "the timeout before there is a measurement"),
        k("rto_min", Duration, "the shortest timeout"),
        k("rto_slop", Duration, "added to every computed timeout"),
        k("rto_max", Duration, "the longest timeout"),
        k("tick", Duration, "the granularity of timers"),
        k("buffer", Size, "send and receive buffer at the start"),
        k("max_buffer", Size, "the most either grows to"),
        k("auto_buffer", Bool, "whether they grow"),
        k("tx_delay", Duration, "latency of the stack from socket to wire"),
        k("rx_delay", Duration, "latency of the stack from wire to socket"),
        k("delayed_ack", OrWord(&Duration, &["off"]), "how long an acknowledgement may wait"),
        k("ack_every", Count(1, 64), "full segments which force an acknowledgement"),
        k("reassembly_limit", Count(1, 65_535), "segments the reassembly queue holds"),
        k("initial_window", OrWord(&Count(1, 255), &["rfc3390"]), "how much a connection may send at its start"),
        k("sack", Bool, "selective acknowledgements"),
        k("timestamps", Bool, "timestamps"),
        k("window_scaling", Bool, "window scaling"),
        k("ecn", Bool, "explicit congestion notification"),
        k("limited_transmit", Bool, "limited transmit (RFC 3042)"),
        k("prr", Bool, "proportional rate reduction in recovery (RFC 6937)"),
        k("restart_after_idle", Bool, "whether an idle connection starts slowly again"),
        k("nagle", Bool, "Nagle's algorithm"),
        k("connection_cache", Bool, "whether a new connection starts from what an earlier one learned"),
    ],
};

pub(crate) static UDP: Spec = Spec {
    name: "udp",
    doc: "every UDP stack",
    keys: &[
        k("buffer", Size, "a socket's buffer"),
        k("tx_delay", Duration, "latency of the stack from socket to wire"),
        k("rx_delay", Duration, "latency of the stack from wire to socket"),
    ],
};

pub(crate) static TCPLIGHT: Spec = Spec {
    name: "tcplight",
    doc: "every TCPlight stack",
    keys: &[
        k("buffer", Size, "a socket's receive buffer: how far ahead of its reader a sender may be"),
        k("tx_delay", Duration, "latency of the stack from socket to wire"),
        k("rx_delay", Duration, "latency of the stack from wire to socket"),
    ],
};

pub(crate) static RECORD: Spec = Spec {
    name: "record",
    doc: "what a run writes down",
    keys: &[
        k("flows", Bool, "one row a flow; true where absent"),
        k("queries", Bool, "one row a query; true where absent"),
        k("ports", Bool, "one row a port; true where absent"),
        k("queues", Duration, "how often queue lengths are sampled; not at all where absent"),
        k("queue_ports", Ports, "whose queues, as [\"host 3\", \"switch 2 port 5\"]; all where absent"),
        k(
            "tcp",
            Duration,
            "how often TCP connections are sampled, at the ends of epochs of 500 us; not at all where absent",
        ),
        k("tcp_hosts", Hosts, "whose connections: a count (the first hosts) or a list; all where absent"),
        k("pauses", Bool, "one row a pause; false where absent"),
        k("csv", Bool, "comma-separated files beside the Parquet ones; false where absent"),
        k("pcapng", Ports, "the ports whose frames are captured"),
        k("part_rows", Count(1, 1 << 30), "rows of a part file at most"),
    ],
};

pub(crate) static TESTBED: Spec = Spec {
    name: "testbed",
    doc: "how the scenario is run between real tenants on one machine; without effect on a simulation",
    keys: &[
        k(
            "slowdown",
            Count(1, SLOWDOWN_MAX),
            "divides every link's rate; multiplies delays, and times between arrivals",
        ),
        k("tenants", Choice(&["namespaces", "guests"]), "what a virtual machine is"),
        k(
            "switch",
            Choice(&["zvale", "bridge"]),
            "a server's virtual switch; a Linux bridge has no overlay and holds nothing back",
        ),
        k("response", Duration, "from a pause frame's being sent to a server to the server's standing still"),
    ],
};

//! The keys of workloads, and of the distributions that some of them draw from.

use super::Kind::*;
use super::{COUNT_MAX, HOST_MAX, Key, PLANNED_MAX, QUERIES_MAX, Spec, k};
use crate::model::Transport;

const PRIORITY: Key = k("priority", Count(0, 7), "the frames' priority, 0 to 7; 0 where absent");
const TCP_NAME: &str = Transport::Tcp.name();
const LIGHT_NAME: &str = Transport::TcpLight.name();
const TRANSPORT: Key =
    k("transport", Choice(&[TCP_NAME, Transport::Udp.name(), LIGHT_NAME]), "what carries the flows; tcp where absent");
const STREAMS: Key = k("transport", Choice(&[TCP_NAME, LIGHT_NAME]), "what carries the messages; tcp where absent");
const START: Key = k("start", Duration, "when the first flow starts; 0 where absent");
const CHASSIS: Key = k("chassis", Count(1, 8), "the level whose subtrees are chassis; 1 where absent");
const UDP_RATE: Key = k("rate", Rate, "at which rate datagrams are offered; as fast as they leave where absent");
const QUERY_CONNECTIONS: Key =
    k("connections", Choice(&["persistent", "per-query"]), "whether messages share connections");
const KIND: Key = k("kind", Text, "the kind of workload");

pub(crate) static WORKLOADS: [&Spec; 10] =
    [&PA, &PA2, &BACKGROUND, &INCAST, &HOTSPOT, &PERMUTATION, &SHUFFLE, &FLOW, &FLOW_FILE, &POISSON];

pub(crate) static PA: Spec = Spec {
    name: "partition-aggregate",
    doc: "three tiers of requests and answers",
    keys: &[
        KIND,
        k("queries", Count(1, PLANNED_MAX), "queries in all; until the run's end where absent"),
        k("warmup_queries", Count(0, PLANNED_MAX), "queries at the start which do not count; 0 where absent"),
        k("message", Size, "bytes of every message; 20 KB where absent"),
        k("inter_arrival", TimeDistribution, "between two queries of the whole network"),
        k("layout", Choice(&["crisan2014-ch4", "crisan2014-ch2"]), "where the roles stand"),
        STREAMS,
        QUERY_CONNECTIONS,
        CHASSIS,
        PRIORITY,
    ],
};

pub(crate) static PA2: Spec = Spec {
    name: "partition-aggregate-2",
    doc: "two tiers of requests and answers",
    keys: &[
        KIND,
        k("aggregators", Hosts, "a count (the first hosts) or a list; 1 where absent"),
        k("workers", Hosts, "a count (the hosts after the aggregators) or a list"),
        k(
            "among",
            Choice(&["hosts", "vms"]),
            "what the two count: hosts, where each role has a VM of its own, or VMs, numbered host by host; hosts where absent",
        ),
        k("request", Size, "bytes of a request; 64 B where absent"),
        k("response", Size, "bytes of a worker's answer"),
        k("queries", Count(1, QUERIES_MAX), "queries of each aggregator; until the run's end where absent"),
        k("warmup_queries", Count(0, QUERIES_MAX), "queries at the start which do not count; 0 where absent"),
        k("inter_arrival", TimeDistribution, "between two queries of an aggregator; upon completion where absent"),
        STREAMS,
        QUERY_CONNECTIONS,
        PRIORITY,
    ],
};

pub(crate) static BACKGROUND: Spec = Spec {
    name: "background",
    doc: "random flows beside the others",
    keys: &[
        KIND,
        TRANSPORT,
        k("flow_size", SizeDistribution, "bytes of a flow"),
        k("inter_arrival", TimeDistribution, "between two flows of a server"),
        k("intra_ratio", Number(0.0, 1e9), "flows within a chassis for each that leaves it; 0.3 where absent"),
        CHASSIS,
        k("vm", Count(0, 255), "the virtual machine that sends and receives them; the last where absent"),
        k("load", Number(1e-6, 1e6), "multiplies the flows; 1 where absent"),
        PRIORITY,
    ],
};

pub(crate) static INCAST: Spec = Spec {
    name: "incast",
    doc: "many to one",
    keys: &[
        KIND,
        k("senders", Hosts, "a count (the first hosts but the receiver) or a list"),
        k("receiver", Count(0, HOST_MAX), "who receives"),
        k("bytes", Size, "bytes from each sender in a round"),
        k("rounds", Count(1, COUNT_MAX), "how often; 1 where absent"),
        k("gap", Duration, "from the end of a round to the start of the next; 0 where absent"),
        START,
        k("connections", Choice(&["persistent", "new"]), "whether rounds share connections; persistent where absent"),
        TRANSPORT,
        PRIORITY,
    ],
};

pub(crate) static HOTSPOT: Spec = Spec {
    name: "hotspot",
    doc: "many to one, at a load that changes over time",
    keys: &[
        KIND,
        k("sources", Hosts, "a count (the first hosts but the destination) or a list"),
        k("destination", Count(0, HOST_MAX), "who receives"),
        k("message", Size, "bytes an application hands over at a time; 10 KB where absent"),
        k("phases", Tables(&[&PHASE]), "the load over time: [{ until = \"100 ms\", rate = \"1 Gb/s\" }, ...]"),
        TRANSPORT,
        PRIORITY,
    ],
};

pub(crate) static PHASE: Spec = Spec {
    name: "phases",
    doc: "a stretch of a hotspot",
    keys: &[k("until", Duration, "when it ends"), k("rate", Rate, "what each source offers during it; 0 for nothing")],
};

pub(crate) static PERMUTATION: Spec = Spec {
    name: "permutation",
    doc: "each host to one other",
    keys: &[
        KIND,
        k("pattern", Pattern, "who sends to whom"),
        k(
            "stride",
            Count(1, HOST_MAX),
            "stride: host i sends to i + stride, less than all hosts; half of them where absent",
        ),
        k("file", Text, "file: lines `src dst`"),
        k("flows", Count(1, PLANNED_MAX), "flows of a host, the pattern drawn anew for each; 1 where absent"),
        k("bytes", Size, "bytes of each flow; endless where absent or 0"),
        START,
        k("stagger", Duration, "from one flow's start to the next one's; 0 where absent"),
        TRANSPORT,
        UDP_RATE,
        k("priority", OrWord(&Count(0, 7), &["per-host"]), "per-host: the sender's number modulo 8"),
        k("per_vm", Bool, "whether a host's flows leave from its machines in turn; from its first where absent"),
        k("first_vm", Count(0, 62), "per_vm: the first of those machines; 0 where absent"),
    ],
};

pub(crate) static SHUFFLE: Spec = Spec {
    name: "shuffle",
    doc: "all to all",
    keys: &[
        KIND,
        k("hosts", Count(2, HOST_MAX + 1), "who takes part: the first hosts; all where absent"),
        k("bytes", Size, "bytes from each host to each other"),
        k("at_a_time", Count(1, HOST_MAX + 1), "transfers of a host under way at once; 1 where absent"),
        k("start", Duration, "when the first begin; 0 where absent"),
        TRANSPORT,
        PRIORITY,
    ],
};

pub(crate) static FLOW: Spec = Spec {
    name: "flow",
    doc: "one to one",
    keys: &[
        KIND,
        k("src", Count(0, HOST_MAX), "who sends"),
        k("src_vm", Count(0, 62), "its machine; 0 where absent"),
        k("dst", Count(0, HOST_MAX), "who receives"),
        k("dst_vm", Count(0, 62), "its machine, another one where dst is src; 0 where absent"),
        k("bytes", Size, "its bytes; endless where absent or 0"),
        START,
        TRANSPORT,
        UDP_RATE,
        PRIORITY,
    ],
};

pub(crate) static FLOW_FILE: Spec = Spec {
    name: "flow-file",
    doc: "the flows of a file",
    keys: &[
        KIND,
        k("format", Choice(&["hpcc", "htsim"]), "hpcc: flows; htsim: a connection matrix"),
        k("file", Text, "the file, relative to the scenario's folder"),
        TRANSPORT,
        k("priority", Count(0, 7), "the frames' priority; the file's own (or 0) where absent"),
    ],
};

pub(crate) static POISSON: Spec = Spec {
    name: "poisson",
    doc: "random flows at a load",
    keys: &[
        KIND,
        k("cdf", Text, "the file of flow sizes: bytes and cumulative percent a line"),
        k("load", Number(1e-6, 1.0), "the share of every host's link that is offered"),
        TRANSPORT,
        k("until", Duration, "when the last flow starts; the scenario's duration where absent"),
        PRIORITY,
    ],
};

pub(crate) static CONSTANT: Spec =
    Spec { name: "constant", doc: "always the same", keys: &[KIND, k("value", Text, "the value, with its unit")] };
pub(crate) static EXPONENTIAL: Spec =
    Spec { name: "exponential", doc: "memoryless", keys: &[KIND, k("mean", Text, "the mean, with its unit")] };
pub(crate) static LOGNORMAL: Spec = Spec {
    name: "lognormal",
    doc: "the logarithm is normal",
    keys: &[
        KIND,
        k("median", Text, "the median, with its unit"),
        k("sigma", Number(0.0, 10.0), "standard deviation of the natural logarithm"),
    ],
};
pub(crate) static EMPIRICAL: Spec = Spec {
    name: "empirical",
    doc: "linear between points",
    keys: &[KIND, k("points", Counts, "[[value, cumulative], ...], ending at 1 or at 100")],
};
pub(crate) static CDF_FILE: Spec = Spec {
    name: "cdf-file",
    doc: "linear between the points of a file",
    keys: &[
        KIND,
        k("file", Text, "the file: a value and its cumulative percent a line"),
        k("unit", Text, "the values' unit, as \"us\"; B for sizes where absent"),
    ],
};
/// The keys of each kind of distribution.
pub static DISTRIBUTIONS: [&Spec; 5] = [&CONSTANT, &EXPONENTIAL, &LOGNORMAL, &EMPIRICAL, &CDF_FILE];

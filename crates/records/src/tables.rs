//! The tables of a result: one struct per table, one field per column, the unit last in the name.

use super::value::{Cell, Kind, Text, Value};

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub struct ColumnSpec {
    /// The column's name: that of the row's field.
    pub name: &'static str,
    /// The column's type.
    pub kind: Kind,
    /// Whether the column may hold nulls.
    pub nullable: bool,
}

/// A table: its name, and its columns in order.
#[derive(Debug)]
pub struct TableSpec {
    /// Name of the table and first part of its files' names.
    pub name: &'static str,
    /// Index in [`TABLES`].
    pub index: usize,
    /// The table's columns, in the order of the row's fields.
    pub columns: &'static [ColumnSpec],
}

/// A row of a table.
pub trait Row: Sized + 'static {
    /// The table the row belongs to.
    const TABLE: &'static TableSpec;
    /// Shows every field to `see`, in order.
    fn visit<'a>(&'a self, see: &mut impl FnMut(usize, Value<'a>));
    /// Makes a row from its values; the error is the index of a column with an invalid value.
    fn from_values<'a>(get: &impl Fn(usize) -> Value<'a>) -> Result<Self, usize>;
}

// One definition gives the struct, the schema and both directions, so that these always agree.
macro_rules! tables {
    ($($(#[$doc:meta])* $table:ident[$index:literal] $row:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug, Default, PartialEq)]
            pub struct $row { $($(#[$field_doc])* pub $field: $type,)* }

            impl Row for $row {
                const TABLE: &'static TableSpec = &TableSpec {
                    name: stringify!($table),
                    index: $index,
                    columns: &[$(ColumnSpec {
                        name: stringify!($field),
                        kind: <$type as Cell>::KIND,
                        nullable: <$type as Cell>::NULLABLE,
                    },)*],
                };

                #[inline]
                fn visit<'a>(&'a self, see: &mut impl FnMut(usize, Value<'a>)) {
                    let mut column = 0;
                    $(see(column, self.$field.value()); column += 1;)*
                    debug_assert_eq!(column, Self::TABLE.columns.len());
                }

                #[inline]
                fn from_values<'a>(get: &impl Fn(usize) -> Value<'a>) -> Result<Self, usize> {
                    let mut columns = 0..;
                    $(
                        let column = columns.next().unwrap_or_default();
                        let $field = <$type as Cell>::from_value(get(column)).ok_or(column)?;
                    )*
                    Ok($row { $($field,)* })
                }
            }
        )*

        /// Every table, in the order of the manifest.
        pub const TABLES: &[&TableSpec] = &[$($row::TABLE,)*];
    };
}

tables! {
    /// One row for each flow: a message from one socket to another, or the delivered part of it when the run ended.
    flows[0] FlowRow {
        /// Number of the flow, unique in the run: the sending server times 2^40, plus the number of the flow on that server,
        /// from 0.
        flow_id: u64,
        /// Purpose of the flow; the names are below.
        kind: Text,
        /// tcp, udp, tcplight or roce.
        transport: Text,
        /// Server that sends.
        src_host: u32,
        /// VM on that server; 0 when there is no virtual layer.
        src_vm: u8,
        /// Server that receives.
        dst_host: u32,
        /// VM on that server.
        dst_vm: u8,
        /// 802.1Q priority.
        priority: u8,
        /// Payload to deliver; null if the flow has no end.
        bytes: Option<u64>,
        /// When the sender handed the first byte to its socket.
        start_ps: u64,
        /// Time from `start_ps` to the last byte at the receiver; null if it did not arrive.
        fct_ps: Option<u64>,
        /// Payload delivered: over TCP the acknowledged bytes, otherwise the received ones.
        delivered_bytes: u64,
        /// `fct_ps` in an empty network on the fastest path; null if the flow has no end.
        ideal_ps: Option<u64>,
        /// `fct_ps / ideal_ps`; null if the flow did not finish.
        slowdown: Option<f64>,
        /// Retransmission timeouts of its connection while this was the first undelivered message.
        timeouts: u32,
        /// Retransmitted segments in the same time.
        retransmissions: u32,
        /// Time spent waiting for the retransmission timer while nothing else could happen.
        timeout_wait_ps: u64,
        /// Mean round-trip time less the smallest one.
        queueing_ps: u64,
        /// Time the sender's adapter was held by PFC during the flow.
        paused_ps: u64,
        /// The query the flow belongs to; null if it belongs to none.
        query_id: Option<u64>,
    }

    /// One row for each query: an aggregator asks and every worker answers. The last byte of the last answer completes it.
    queries[1] QueryRow {
        /// Number of the query, unique in the run: its workload times 2^56, plus a number of the workload's own.
        query_id: u64,
        /// The workload it belongs to, in the order of the scenario, from 0.
        workload: u8,
        /// Server that asks.
        aggregator_host: u32,
        /// When it asked.
        start_ps: u64,
        /// Time from `start_ps` to the last answer; null if unfinished.
        completion_ps: Option<u64>,
        /// Flows that it caused.
        flows: u32,
        /// Retransmission timeouts of all of them.
        timeouts: u32,
        /// Segments sent again by all of them.
        retransmissions: u32,
        /// Whether it began before the measurement.
        warmup: bool,
    }

    /// One row for each port of a switch or server, over the whole run.
    ports[2] PortRow {
        /// The switch or server: "switch 12", "host 3", ...
        node: Text,
        /// Stage of the fabric: 0 the server, 1 the switch next to it, and up.
        level: u8,
        /// Number of the port.
        port: u16,
        /// The switch or server at the other end of the link.
        peer: Text,
        /// Frames sent.
        tx_frames: u64,
        /// Bytes sent.
        tx_bytes: u64,
        /// Frames received.
        rx_frames: u64,
        /// Bytes received.
        rx_bytes: u64,
        /// Frames dropped, for any reason.
        drops: u64,
        /// Bytes dropped.
        drop_bytes: u64,
        /// Time for which the peer held this port's transmitter.
        paused_ps: u64,
        /// PFC frames sent that stopped the peer.
        xoff_sent: u64,
        /// PFC frames received that stopped this port.
        xoff_received: u64,
        /// Longest queue seen at the port.
        max_queue_bytes: u64,
        /// Fraction of the run for which the transmitter was busy, 0 to 1.
        utilisation: f64,
    }

    /// One row for the frames dropped at one port for one reason.
    drops[3] DropRow {
        /// The switch or server.
        node: Text,
        /// Number of the port.
        port: u16,
        /// 802.1Q priority.
        priority: u8,
        /// `DropReason::name`.
        reason: Text,
        /// Frames dropped.
        frames: u64,
        /// Bytes dropped.
        bytes: u64,
    }

    /// One row for each PFC pause, with the pause that caused it. Together the rows are the congestion trees of the run.
    pauses[4] PauseRow {
        /// Number of the pause, in order of XOFF.
        pause_id: u64,
        /// The switch or server that sent the pause.
        node: Text,
        /// The port that sent it.
        port: u16,
        /// The paused priority.
        priority: u8,
        /// When XOFF was sent.
        start_ps: u64,
        /// Time until XON; null if still paused when the run ended.
        duration_ps: Option<u64>,
        /// The switch or server that was paused.
        peer: Text,
        /// The output whose queue filled the buffer; in a server the VM that accepted no frames, or `port` itself.
        cause_port: u16,
        /// The switch or server at the other end of that output, or the VM.
        cause_peer: Text,
        /// The pause that blocked that output; null at the root of a tree.
        parent_pause_id: Option<u64>,
    }

    /// One row for each sample of a queue.
    queues[5] QueueRow {
        /// Time of the sample.
        time_ps: u64,
        /// The box.
        node: Text,
        /// Number of the port.
        port: u16,
        /// Bytes waiting, of all priorities.
        bytes: u64,
    }

    /// One row for each sample of one end of a TCP connection that has sent something.
    tcp[6] TcpRow {
        /// Time of the sample.
        time_ps: u64,
        /// Server of this end, which sends.
        src_host: u32,
        /// VM on that server.
        src_vm: u8,
        /// Its port.
        src_port: u16,
        /// Server of the other end.
        dst_host: u32,
        /// VM on that server.
        dst_vm: u8,
        /// Its port.
        dst_port: u16,
        /// Congestion window.
        cwnd_bytes: u32,
        /// Slow start threshold; null while there is none.
        ssthresh_bytes: Option<u32>,
        /// Bytes in flight.
        flight_bytes: u32,
        /// Send buffer.
        send_buffer_bytes: u32,
        /// Bytes the other end has acknowledged.
        acked_bytes: u64,
        /// Smoothed round-trip time; null before the first sample.
        srtt_ps: Option<u64>,
        /// Retransmission timeout, as it would be armed now.
        rto_ps: u64,
        /// Retransmission timeouts so far.
        timeouts: u32,
        /// Segments sent again so far.
        retransmissions: u32,
    }

    /// One row for each port and priority at which a switch marked frames or sent congestion notifications, over the whole run.
    marks[7] MarkRow {
        /// The switch.
        node: Text,
        /// Number of the port.
        port: u16,
        /// 802.1Q priority.
        priority: u8,
        /// Frames marked with Congestion Experienced.
        frames: u64,
        /// Their bytes.
        bytes: u64,
        /// Congestion notifications (802.1Qau) sent about the queue.
        notifications: u64,
    }

    /// One row for each sample of a rate limiter in an adapter: of QCN, or of a queue pair with DCQCN.
    limiters[8] LimiterRow {
        /// Time of the sample.
        time_ps: u64,
        /// Server of the adapter.
        host: u32,
        /// The adapter's link.
        port: u16,
        /// The limited queue: the destination's server, or a number of the flow with `qcn.limiters = "flow"` and for queue pairs.
        queue: u32,
        /// 802.1Q priority of its frames.
        priority: u8,
        /// The path that is limited, where sources choose paths.
        path: Option<u16>,
        /// Rate at which frames may be sent.
        rate_bps: u64,
        /// Rate to which the limiter recovers.
        target_bps: u64,
    }

    /// One row for each sample of a bump's estimate; the table of queues has the truth at the same times.
    estimates[9] EstimateRow {
        /// Time of the sample.
        time_ps: u64,
        /// The bump.
        bump: Text,
        /// The switch whose queue is estimated.
        node: Text,
        /// Port of the switch.
        port: u16,
        /// Bytes in the virtual queue, with preambles and gaps.
        bytes: u64,
    }

    /// One row for each virtual queue of a bump.
    bumps[10] BumpRow {
        /// The bump.
        bump: Text,
        /// The switch whose queue is estimated.
        node: Text,
        /// Port of the switch.
        port: u16,
        /// Frames that the bump has seen on their way to the port.
        frames: u64,
        /// Frames that the bump marked with Congestion Experienced.
        marked: u64,
        /// Frames that the bump's applications dropped.
        dropped: u64,
        /// Congestion notifications that the bump sent.
        notifications: u64,
        /// Congestion notifications that the bump acted on.
        consumed: u64,
        /// Frames that neighbouring bumps reported.
        reported: u64,
    }

    /// One row for each port and priority in which the PFC watchdog of a switch found storms, over the whole run.
    storms[11] StormRow {
        /// The switch.
        node: Text,
        /// Number of the port whose other end sent the pauses.
        port: u16,
        /// 802.1Q priority.
        priority: u8,
        /// Storms that began.
        detected: u64,
        /// Storms that ended.
        restored: u64,
    }
}

/// The tables before this index have a part in every result, so that their names match a file. Those from here on belong
/// to boxes that few networks have, and have parts only if they have rows.
pub const RARE: usize = EstimateRow::TABLE.index;

const _: () = {
    let mut i = 0;
    while i < TABLES.len() {
        assert!(TABLES[i].index == i, "a table's index is its place");
        i += 1;
    }
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_are_the_published_ones() {
        let columns = |table: &TableSpec| {
            let name = |c: &ColumnSpec| format!("{}:{:?}{}", c.name, c.kind, if c.nullable { "?" } else { "" });
            table.columns.iter().map(name).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            TABLES.iter().map(|t| t.name).collect::<Vec<_>>(),
            [
                "flows",
                "queries",
                "ports",
                "drops",
                "pauses",
                "queues",
                "tcp",
                "marks",
                "limiters",
                "estimates",
                "bumps",
                "storms"
            ]
        );
        assert_eq!(
            columns(FlowRow::TABLE),
            "flow_id:U64 kind:Text transport:Text src_host:U32 src_vm:U8 dst_host:U32 dst_vm:U8 priority:U8 bytes:U64? \
             start_ps:U64 fct_ps:U64? delivered_bytes:U64 ideal_ps:U64? slowdown:F64? timeouts:U32 retransmissions:U32 \
             timeout_wait_ps:U64 queueing_ps:U64 paused_ps:U64 query_id:U64?"
        );
        assert_eq!(
            columns(PauseRow::TABLE),
            "pause_id:U64 node:Text port:U16 priority:U8 start_ps:U64 duration_ps:U64? peer:Text cause_port:U16 \
             cause_peer:Text parent_pause_id:U64?"
        );
    }
}

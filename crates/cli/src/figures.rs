//! The figures of a run as a table and as JSON.

use super::table::{Table, count, percent_change, short, time};
use serde::Serialize;
use sluicenet_experiment::run::{Completion, Figures};
use sluicenet_records::{Profile, RunLog};

/// Flows without an end that the table shows one by one.
const STREAMS_SHOWN: usize = 16;

/// The table of one run.
pub(super) fn table(f: &Figures, log: Option<&RunLog>) -> String {
    let mut out = String::new();
    let mut times = Table::new(1, ["", "finished", "unfinished", "mean", "median", "p95", "p99", "p99.9", "max"]);
    // Flows without an end have rates, not times.
    let endless = f.streams.count > 0;
    let has_times = |c: &&Completion| !endless || c.finished > 0 || c.unfinished > f.streams.count;
    let timed = [(f.unit(), f.queries.as_ref().filter(has_times)), ("flows", f.flows.as_ref().filter(has_times))];
    for (name, c) in timed {
        if let Some(c) = c {
            let of = |us: f64| if c.finished == 0 { "–".into() } else { time(us) };
            let figures = [c.mean_us, c.p50_us, c.p95_us, c.p99_us, c.p999_us, c.max_us].map(of);
            let counts = [name.to_string(), count(c.finished), count(c.unfinished)];
            times.row(counts.into_iter().chain(figures));
        }
    }
    if timed.iter().any(|(_, c)| c.is_some()) {
        out += &times.text();
        out.push('\n');
    }
    let mut facts = Table::new(2, ["", ""]);
    let mut fact = |name: &str, value: String| facts.row([name.to_string(), value]);
    if let (Some(mean), Some(bound)) = (f.mean_round_us.filter(|&mean| mean > 0.0), f.bound_us) {
        let over = percent_change(100.0 * (mean / bound - 1.0));
        fact("line-rate bound", format!("{bound:.2} µs a round; the mean is {mean:.2} µs, {over}"));
    }
    if f.left_out > f.streams.count {
        fact("left out of the times", format!("{}: the warm-up, which what follows counts in", count(f.left_out)));
    }
    for s in f.streams.each.iter().take(STREAMS_SHOWN) {
        let [from, to] = [(s.src_host, s.src_vm), (s.dst_host, s.dst_vm)].map(|(host, vm)| format!("{host}.{vm}"));
        fact(&format!("{} {from} to {to}", s.transport), format!("{:.1} Mb/s", s.mbps));
    }
    if let Some(more @ 1..) = f.streams.count.checked_sub(STREAMS_SHOWN as u64) {
        let all = f.streams.each.len() as u64 == f.streams.count;
        let has = if all { "--json has them" } else { "records have them: -o DIR" };
        fact(&format!("and {} more", count(more)), has.into());
    }
    if f.streams.count > 1 {
        let s = &f.streams;
        let range = format!("{:.1} to {:.1} Mb/s", s.min_mbps, s.max_mbps);
        fact("flows without an end", format!("{}: {range}, Jain's index {:.3}", count(s.count), s.jain));
    }
    if let Some(frames) = f.received_max_frames {
        fact("longest receive queue", format!("{} frames", count(frames.into())));
    }
    if let Some(z) = f.zbridge {
        let again = format!("{} again, {} came twice", count(z.resent), count(z.duplicates));
        fact("frames of zBridge", format!("{}, {again}", count(z.sent)));
    }
    if let Some(x) = f.xco {
        let early = format!("{} given back, {} pre-empted", count(x.returned), count(x.preempted));
        fact("directives of XCo", format!("{} ({} timeslices: {early})", count(x.directives), count(x.slices)));
        let free = format!("{} of small flows, {} without a controller", count(x.small), count(x.uncontrolled));
        fact("frames that XCo let pass", free);
        fact("fullest link", format!("{:.1} % of the time", x.fullest_link_percent));
        if x.starved + x.refused > 0 {
            fact(
                "flows that XCo did not serve",
                format!("{} too late, {} refused", count(x.starved), count(x.refused)),
            );
        }
    }
    // A run of flows without packets counts nothing, and a zero would look like a count.
    let packets = f.packet_hops > 0;
    if packets {
        fact("timeouts", count(f.timeouts));
        fact("segments sent again", count(f.retransmissions));
        let reasons: Vec<String> =
            f.drops_by_reason.iter().map(|(r, n)| format!("{} {}", count(*n), r.replace('_', " "))).collect();
        let reasons = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join(", ")) };
        if f.virtual_network {
            fact("lost in the virtual network", count(f.losses_virtual));
            fact("lost in the physical network", count(f.losses_physical));
        }
        fact("frames dropped", format!("{}{reasons}", count(f.drops)));
        fact("PFC pauses", count(f.pauses));
        if f.marked > 0 {
            fact("frames marked", count(f.marked));
        }
        if f.notifications > 0 {
            fact("congestion notifications", count(f.notifications));
        }
    }
    fact("simulated time", time(f.simulated_us));
    if packets {
        let cost = log.map_or(String::new(), |l| {
            format!(
                " in {:.2} CPU s ({}/CPU s), {:.2} s",
                l.cpu_seconds,
                short(l.per_cpu_s(f.packet_hops)),
                l.wall_seconds
            )
        });
        fact("packet-hops", format!("{}{cost}", count(f.packet_hops)));
        let rate = log.map_or(String::new(), |l| format!(" ({}/CPU s)", short(l.per_cpu_s(f.packets_end_to_end))));
        fact("packets end to end", format!("{}{rate}", count(f.packets_end_to_end)));
    } else if let Some(l) = log {
        fact("took", format!("{:.2} CPU s, {:.2} s", l.cpu_seconds, l.wall_seconds));
    }
    out + &facts.text()
}

/// The figures with the time and memory that this machine took, as `--json` prints them.
#[derive(Debug, Serialize)]
pub(super) struct Printed<'a> {
    #[serde(flatten)]
    pub figures: &'a Figures,
    /// CPU seconds of the run phase.
    pub cpu_s: Option<f64>,
    /// Seconds of the run phase.
    pub wall_s: Option<f64>,
    /// Packet-hops per CPU second.
    pub packet_hops_per_cpu_s: Option<f64>,
    /// Packets from end to end per CPU second.
    pub packets_end_to_end_per_cpu_s: Option<f64>,
    /// How many times sooner than under LL, in a sweep over flow controls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gain: Option<f64>,
    /// The shares of its stages in the CPU time, with `--profile`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<&'a Profile>,
    /// Where its records are.
    pub records: Option<String>,
    /// Where its page is.
    pub report: Option<String>,
}

impl<'a> Printed<'a> {
    pub fn new(figures: &'a Figures, log: Option<&RunLog>) -> Printed<'a> {
        Printed {
            figures,
            cpu_s: log.map(|l| l.cpu_seconds),
            wall_s: log.map(|l| l.wall_seconds),
            packet_hops_per_cpu_s: log.map(|l| l.per_cpu_s(figures.packet_hops)),
            packets_end_to_end_per_cpu_s: log.map(|l| l.per_cpu_s(figures.packets_end_to_end)),
            gain: None,
            profile: None,
            records: None,
            report: None,
        }
    }
}

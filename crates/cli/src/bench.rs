//! `bench`: how fast the simulator and the switch are.

use super::failure::Failure;
use super::faults::FaultsArgs;
use super::files::Scratch;
use super::hedera::HederaArgs;
use super::overload::{OverloadArgs, SweepArgs};
use super::table::{Table, count, short};
use super::values::{buffers, seconds};
use super::xco::XcoArgs;
use super::{Global, interrupt, output};
use sluicenet_bench::bump;
use sluicenet_bench::ft::{self, FatTree};
use sluicenet_bench::local;
use sluicenet_bench::ports::{self, Ports};
use sluicenet_bench::sockets::{
    self, DISTURBED, Guest, Hypervisor, NAP_FRAMES, Pair, Placement, Ratio, Sockets, Spread,
};
use sluicenet_bench::stopped::{self, Stopped};
use sluicenet_bench::tcp::{self, Tcp};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, clap::Args)]
pub(super) struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Long TCP flows of a permutation on a fat tree
    Ft(Ft),
    /// The rate of frames through the switch, between programs that share memory with it or drive virtio queues
    Ports(PortsArgs),
    /// The rate of frames through a bump in the wire, and the latency that it adds, over shared memory
    Bump(BumpArgs),
    /// The round-trip time through the switch, over shared memory
    Latency(Seconds),
    /// The processor time of an idle switch
    Idle(Idle),
    /// The cost of a receiver that has stopped, for the other ports
    Blocked(Seconds),
    /// The cost of a port that sends forged frames, for the other ports
    Spoofed(Seconds),
    /// The cost of programs in namespaces that have stopped reading, for other tenants; and whether they lose anything
    Stopped(StoppedArgs),
    /// Two tenants send as fast as they can to a third: frames lost, and where
    Overload(OverloadArgs),
    /// TCP between two tenants, with and without segmentation offload
    Tcp(TcpArgs),
    /// A long transfer between two machines, on one server and on two, for each kind of sockets and of hypervisor: throughput and
    /// processor time
    Sockets(SocketsArgs),
    /// zFabric and XCo under faults of every kind, by seed: the faults, and any broken rule
    Faults(FaultsArgs),
    /// The computing time of Hedera: demands of elephant flows, and paths for them
    Hedera(HederaArgs),
    /// The computing time of XCo's controller: a decision, in the tree of racks and rows of its source
    Xco(XcoArgs),
    /// `overload` at rising rates: datagrams received and lost, for each switch
    LossSweep(SweepArgs),
    /// Programs that run inside a guest
    #[command(hide = true)]
    Tenant(super::tenant::Tenant),
}

#[derive(Debug, clap::Args)]
struct BumpArgs {
    /// The application of the bump
    #[arg(long, value_enum, default_value = "red")]
    app: bump::App,
    /// A program instead of it: a shared library with the interface of netbump.h
    #[arg(long, value_name = "FILE.so", conflicts_with = "app")]
    program: Option<std::path::PathBuf>,
    /// Call the program in the bump's own process
    #[arg(long, requires = "program")]
    in_process: bool,
    /// Bytes of a frame without its check sequence
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u16).range(60..=2048))]
    size: u16,
    /// Links, each with a thread and hosts of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    links: u8,
    /// Pipelines of each link, each with a thread; they share the link's hosts
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pipelines: u8,
    /// Hosts behind each link, at ports of 1 Gb/s: a virtual queue each
    #[arg(long, value_name = "N", default_value_t = 48, value_parser = clap::value_parser!(u16).range(1..=1024))]
    stations: u16,
    /// Frames a second while the latency is measured
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=20_000_000))]
    rate: u32,
    #[command(flatten)]
    time: Seconds,
}

impl BumpArgs {
    fn main(self, global: Global) -> Result<(), Failure> {
        let read = |path: &std::path::PathBuf| match std::fs::read(path) {
            Ok(bytes) => Ok(bump::Program { bytes, in_process: self.in_process }),
            Err(e) => Err(Failure::Input(format!("{}: {e}", path.display()))),
        };
        let settings = bump::Bump {
            app: if self.program.is_some() { bump::App::None } else { self.app },
            program: self.program.as_ref().map(read).transpose()?,
            size: self.size.into(),
            links: self.links.into(),
            pipelines: self.pipelines.into(),
            stations: self.stations.into(),
            time: self.time.get(),
            rate: self.rate.into(),
        };
        let f = bump::run(&settings, interrupt::flag()).map_err(|e| Failure::Failed(e.to_string()))?;
        if global.json {
            output::json(&f);
        } else {
            let mut t = Table::new(2, ["", ""]);
            let range = format!("{:.1} to {:.1}", f.mpps_worst, f.mpps_best);
            t.row(["frames a second", &format!("{:.1} million ({range} in {} turns)", f.mpps, 5)]);
            t.row(["bits a second", &format!("{:.1} Gb/s", f.gbps)]);
            if let (Some(one), Some(scaling)) = (f.one_mpps, f.scaling) {
                t.row(["one thread", &format!("{one:.1} million: {scaling:.2} times")]);
            }
            t.row(["of a second of one core", &format!("{:.1} million", f.core_mpps)]);
            if let Some(scaling) = f.core_scaling {
                t.row(["by processor time", &format!("{scaling:.2} times one thread")]);
            }
            t.row(["lost", &count(f.lost)]);
            t.row(["dropped by the application", &count(f.dropped)]);
            t.row(["marked by it", &count(f.marked)]);
            t.row(["added latency, median", &format!("{:.3} us", f.added_p50_us)]);
            t.row(["at 99 %", &format!("{:.3} us", f.added_p99_us)]);
            t.row(["at 99.9 %", &format!("{:.3} us", f.added_p999_us)]);
            output::print(&t.text());
        }
        if interrupt::raised() {
            return Err(Failure::Interrupted("the figures are of the part that was run".into()));
        }
        Ok(())
    }
}

#[derive(Debug, clap::Args)]
struct StoppedArgs {
    /// How many programs stop, one measurement for each number
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,12,60",
          value_parser = clap::value_parser!(u32).range(1..=200))]
    receivers: Vec<u32>,
    /// Windows with, and without stopped programs
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    turns: u32,
    #[command(flatten)]
    time: Seconds,
}

impl StoppedArgs {
    fn main(self, global: Global) -> Result<(), Failure> {
        let mut all = Vec::new();
        for receivers in self.receivers {
            let what = Stopped { receivers, time: self.time.get(), turns: self.turns };
            all.push(stopped::run(&what, interrupt::flag()).map_err(|e| Failure::Failed(e.to_string()))?);
            if interrupt::raised() {
                break;
            }
        }
        if global.json {
            output::json(&all);
        } else {
            let mut t = Table::new(
                1,
                ["stopped", "stuck", "others, kpps", "without them", "ratio", "range", "sent to them", "lost"],
            );
            for f in &all {
                t.row([
                    &count(f.receivers.into()),
                    &count(f.stuck),
                    &format!("{:.1}", f.with_kpps),
                    &format!("{:.1}", f.without_kpps),
                    &format!("{:.3}", f.ratio),
                    &format!("{:.2} to {:.2}", f.ratio_least, f.ratio_most),
                    &count(f.sent),
                    &count(f.lost),
                ]);
            }
            output::print(&t.text());
        }
        if interrupt::raised() {
            return Err(Failure::Interrupted("the figures are of the part that was run".into()));
        }
        let lost: u64 = all.iter().map(|f| f.lost).sum();
        if lost > 0 {
            return Err(Failure::Failed(format!("{lost} datagrams were lost")));
        }
        Ok(())
    }
}

#[derive(Debug, clap::Args)]
struct TcpArgs {
    /// How the tenants are connected to the switch
    #[arg(long, value_enum, default_value = "veth")]
    kind: tcp::Kind,
    /// Connections at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    streams: u32,
    /// Turns in which each case is measured
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    turns: u32,
    #[command(flatten)]
    time: Seconds,
}

#[derive(Debug, clap::Args)]
struct SocketsArgs {
    /// Connections at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    streams: u32,
    /// Turns in which each pair is measured
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    turns: u32,
    /// How long the receiver sleeps after every 100 frames; several values, separated by commas, are measured one by one
    #[arg(long, value_name = "US", value_delimiter = ',', default_value = "0",
          value_parser = clap::value_parser!(u64).range(0..=100_000))]
    delay: Vec<u64>,
    /// Only this placement of the machines; several separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Placement::Servers, Placement::Hairpin])]
    placement: Vec<Placement>,
    /// Only programs with these sockets; several separated by commas
    #[arg(long, value_enum, value_delimiter = ',',
          default_values_t = [Guest::Tcp, Guest::TcpOffload, Guest::Tcplight, Guest::Udp])]
    guest: Vec<Guest>,
    /// Only this hypervisor; several separated by commas
    #[arg(long, value_enum, value_delimiter = ',',
          default_values_t = [Hypervisor::Lossy, Hypervisor::Pfc, Hypervisor::Tcp, Hypervisor::Zfabric])]
    hypervisor: Vec<Hypervisor>,
    #[command(flatten)]
    time: Seconds,
}

#[derive(Debug, clap::Args)]
struct Seconds {
    /// Duration in seconds
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = seconds)]
    seconds: f64,
}

#[derive(Debug, clap::Args)]
struct Idle {
    /// Ports, with a program at each
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    ports: u16,
    #[command(flatten)]
    time: Seconds,
}

#[derive(Debug, clap::Args)]
struct PortsArgs {
    /// The kind of the ports
    #[arg(long, value_enum, default_value = "shm")]
    kind: ports::Kind,
    /// Bytes of a frame without its check sequence
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u16).range(14..=2048))]
    size: u16,
    /// Ports; each sends to the next
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=64))]
    ports: u16,
    /// Stations behind each port; source and destination change with every frame
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16384))]
    stations: u16,
    /// Buffers of a port, a power of two
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = buffers)]
    buffers: u32,
    #[command(flatten)]
    time: Seconds,
    /// 1: programs and switch take turns on one core; 2: the switch has a core of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=2))]
    cores: u16,
    /// The addresses to which the ports are locked
    #[arg(long, value_enum, default_value = "none")]
    lock: ports::Lock,
}

#[derive(Debug, clap::Args)]
struct Ft {
    /// Ports of a switch: k^3/4 hosts
    #[arg(long)]
    k: u32,
    /// The flows: a file with a line `source destination` for each
    #[arg(long, value_name = "FILE")]
    perm: PathBuf,
    /// Simulated milliseconds
    #[arg(long)]
    ms: f64,
    /// Flow control on every port instead of drop-tail
    #[arg(long)]
    pfc: bool,
    /// Threads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    threads: u16,
    /// Congestion control
    #[arg(long, default_value = "newreno", value_parser = ["newreno", "cubic", "vegas"])]
    tcp: String,
    /// The seed
    #[arg(long, default_value_t = 1, value_parser = crate::seed, allow_negative_numbers = true)]
    seed: u64,
    /// Where to keep the records; default they are written to a temporary folder and removed
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Bench {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        match self.what {
            What::Ft(ft) => ft.main(global),
            What::Ports(ports) => ports.main(global),
            What::Bump(bump) => bump.main(global),
            What::Overload(overload) => overload.main(global),
            What::Tcp(tcp) => tcp.main(global),
            What::Sockets(sockets) => sockets.main(global),
            What::LossSweep(sweep) => sweep.main(global),
            What::Faults(faults) => faults.main(global),
            What::Hedera(hedera) => hedera.main(global),
            What::Xco(xco) => xco.main(global),
            What::Tenant(tenant) => tenant.main(),
            What::Latency(time) => local(local::latency(time.get(), interrupt::flag()), global),
            What::Idle(idle) => local(local::idle(idle.ports.into(), idle.time.get()), global),
            What::Spoofed(time) => local(local::spoofed(time.get(), interrupt::flag()), global),
            What::Stopped(stopped) => stopped.main(global),
            What::Blocked(time) => local(local::blocked(time.get(), interrupt::flag()), global),
        }
    }
}

impl Seconds {
    fn get(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

/// Prints figures, one a line.
fn local(figures: Result<impl serde::Serialize, ports::PortsError>, global: Global) -> Result<(), Failure> {
    let figures = figures.map_err(|e| Failure::Failed(e.to_string()))?;
    if global.json {
        output::json(&figures);
        return Ok(());
    }
    let mut t = Table::new(2, ["", ""]);
    if let Ok(serde_json::Value::Object(figures)) = serde_json::to_value(&figures) {
        for (name, value) in &figures {
            let value = value.as_f64().map_or(value.to_string(), |v| format!("{v:.3}"));
            t.row([name.as_str(), value.trim_end_matches(".000")]);
        }
    }
    output::print(&t.text());
    Ok(())
}

impl PortsArgs {
    fn main(self, global: Global) -> Result<(), Failure> {
        let scratch = Scratch::new()?;
        let what = Ports {
            kind: self.kind,
            size: self.size.into(),
            ports: self.ports.into(),
            stations: self.stations.into(),
            buffers: self.buffers,
            time: self.time.get(),
            cores: self.cores.into(),
            lock: self.lock,
            scratch: scratch.path().to_owned(),
        };
        let f = ports::run(&what, interrupt::flag()).map_err(|e| Failure::Failed(e.to_string()))?;
        if global.json {
            output::json(&f);
        } else {
            let mut t = Table::new(2, ["", ""]);
            t.row(["rate", &format!("{:.2} M frames/s, {:.2} Gb/s", f.mpps, f.gbps)]);
            if let Some(cycles) = f.cycles_per_packet {
                t.row(["cost", &format!("{cycles:.0} ticks of the time stamp counter a frame")]);
            }
            t.row(["sent", &count(f.sent)]);
            t.row(["received", &count(f.received)]);
            t.row(["lost", &count(f.lost)]);
            output::print(&t.text());
        }
        if f.lost > 0 {
            return Err(Failure::Failed(format!("{} frames were lost", f.lost)));
        }
        if interrupt::raised() {
            return Err(Failure::Interrupted("the figures are of the part that was run".into()));
        }
        Ok(())
    }
}

impl TcpArgs {
    fn main(self, global: Global) -> Result<(), Failure> {
        let what = Tcp { kind: self.kind, time: self.time.get(), turns: self.turns, streams: self.streams };
        let f = tcp::run(&what, interrupt::flag()).map_err(|e| Failure::Failed(e.to_string()))?;
        let results =
            [("one segment a frame", f.plain), ("segments left to be cut", f.offload), ("cut by the switch", f.mixed)];
        if global.json {
            output::json(&f);
        } else {
            let mut t = Table::new(1, ["", "Gb/s", "frames", "sent again", "lost"]);
            for (name, result) in results {
                t.row([
                    name,
                    &format!("{:.2}", result.gbps),
                    &count(result.frames),
                    &count(result.resent),
                    &count(result.lost),
                ]);
            }
            t.row(["ratio", &format!("{:.2}", f.ratio), "", "", ""]);
            output::print(&t.text());
        }
        if results.iter().any(|(_, result)| result.lost > 0) {
            return Err(Failure::Failed("frames were lost".into()));
        }
        if interrupt::raised() {
            return Err(Failure::Interrupted("the figures are of the part that was run".into()));
        }
        Ok(())
    }
}

impl SocketsArgs {
    fn main(self, global: Global) -> Result<(), Failure> {
        let scratch = Scratch::new()?;
        let what = Sockets {
            time: self.time.get(),
            turns: self.turns,
            streams: self.streams,
            delays: self.delay.iter().map(|&us| Duration::from_micros(us)).collect(),
            placements: self.placement,
            guests: self.guest,
            hypervisors: self.hypervisor,
            scratch: scratch.path().to_owned(),
        };
        let f = sockets::run(&what, interrupt::flag()).map_err(|e| Failure::Failed(e.to_string()))?;
        if f.pairs.is_empty() {
            return Err(Failure::Input("TCPlight has nothing against loss: it does not go over lossy switches".into()));
        }
        if global.json {
            output::json(&f);
        } else {
            for &delay in &self.delay {
                for &placement in &what.placements {
                    let pairs = f.pairs.iter().filter(|p| p.placement == placement && p.delay_us == delay);
                    output::print(&placement_title(placement, delay, pairs));
                }
            }
        }
        let lossless = f.pairs.iter().filter(|pair| pair.hypervisor != Hypervisor::Lossy);
        let lost: Vec<String> = lossless
            .flat_map(|pair| pair.lost_at.iter().map(move |(at, frames)| format!("{}: {at} {frames}", stack(pair))))
            .collect();
        if !lost.is_empty() {
            return Err(Failure::Failed(format!("frames were lost in a lossless class: {}", lost.join("; "))));
        }
        if interrupt::raised() {
            return Err(Failure::Interrupted("the figures are of the part that was run".into()));
        }
        Ok(())
    }
}

fn stack(pair: &Pair) -> String {
    let guest = match pair.guest {
        Guest::Tcp => "TCP",
        Guest::TcpOffload => "TCP, offloads",
        Guest::Tcplight => "TCPlight",
        Guest::Udp => "UDP",
    };
    let hypervisor = match pair.hypervisor {
        Hypervisor::Lossy => "Lossy",
        Hypervisor::Pfc => "PFC",
        Hypervisor::Tcp => "TCP",
        Hypervisor::Zfabric => "zFabric",
    };
    format!("{guest} + {hypervisor}")
}

/// The pairs of one place and one delay.
fn placement_title<'a>(placement: Placement, delay: u64, pairs: impl Iterator<Item = &'a Pair>) -> String {
    let titles = [
        match placement {
            Placement::Servers => "between two servers",
            Placement::Hairpin => "within one server",
        },
        "Gb/s",
        "(min max)",
        "CPU s/GB",
        "(min max)",
        "switches",
        "all cores",
        "resent",
        "lost",
        "TCP x",
        "less CPU",
        "offloads x",
        "less CPU",
        "disturbed",
    ];
    let mut t = Table::new(1, titles);
    let turns = |pair: &Pair| match pair.disturbed() {
        0 => String::new(),
        n => format!("{n} of {}", pair.single.len()),
    };
    let range = |s: Spread| format!("{:.2} {:.2}", s.min, s.max);
    let median = |s: Spread| format!("{:.2}", s.median);
    let ratio = |r: Option<Ratio>| r.map_or([String::new(), String::new()], |r| [r.throughput, r.less_cpu].map(median));
    let mut disturbed = 0;
    for pair in pairs {
        disturbed += pair.disturbed();
        let (tcp, offload) = (ratio(pair.over_tcp), ratio(pair.over_tcp_offload));
        t.row([
            &stack(pair),
            &median(pair.gbps),
            &range(pair.gbps),
            &median(pair.cpu_s_per_gb),
            &range(pair.cpu_s_per_gb),
            &median(pair.switch_s_per_gb),
            &median(pair.machine_s_per_gb),
            &count(pair.resent),
            &count(pair.lost),
            &tcp[0],
            &tcp[1],
            &offload[0],
            &offload[1],
            &turns(pair),
        ]);
    }
    let naps = match delay {
        0 => String::new(),
        _ => format!("the receiver sleeps {delay} us after every {NAP_FRAMES} frames\n"),
    };
    let beside = match disturbed {
        0 => String::new(),
        _ => format!("disturbed: turns in which all cores worked more than {DISTURBED} times as long as the pair\n"),
    };
    format!("{naps}{}{beside}", t.text())
}

impl Ft {
    fn main(self, global: Global) -> Result<(), Failure> {
        if !(self.ms > 0.0 && self.ms <= 1e6) {
            return Err(Failure::Input(format!("--ms {}: from more than 0 to 1000000", self.ms)));
        }
        let scratch = if self.out.is_none() { Some(Scratch::new()?) } else { None };
        let out = self.out.or_else(|| scratch.as_ref().map(|s| s.path().to_owned()));
        let permutation = self.perm;
        let tree =
            FatTree { k: self.k, permutation, ms: self.ms, pfc: self.pfc, congestion: self.tcp, seed: self.seed };
        if !global.quiet {
            // What is wrong with the scenario is said below.
            if let Ok(loaded) = ft::scenario(&tree) {
                crate::estimate::tell(&loaded.scenario, self.threads.into(), out.is_some());
            }
        }
        let f = ft::run(&tree, self.threads.into(), out, interrupt::flag())?;
        if global.json {
            output::json(&f);
        } else {
            let mut t = Table::new(2, ["", ""]);
            t.row(["hosts", &count(f.hosts.into())]);
            t.row(["packet-hops", &count(f.packet_hops)]);
            t.row(["CPU", &format!("{:.2} s in {:.2} s on {} threads", f.cpu_s, f.wall_s, f.threads)]);
            t.row(["rate", &format!("{}packet-hops per CPU second", short(f.packet_hops_per_cpu_s))]);
            let rate = short(f.packets_end_to_end_per_cpu_s);
            t.row(["packets end to end", &format!("{} ({rate}/CPU s)", count(f.packets_end_to_end))]);
            t.row(["memory", &format!("{}B at most", short(f.peak_rss_bytes as f64))]);
            t.row(["goodput", &format!("{:.2} Gb/s", f.goodput_gbps)]);
            t.row(["drops", &count(f.drops)]);
            t.row(["timeouts", &count(f.timeouts)]);
            t.row(["PFC pauses", &count(f.pauses)]);
            output::print(&t.text());
        }
        if interrupt::raised() {
            return Err(Failure::Interrupted("the figures are of the part that was run".into()));
        }
        Ok(())
    }
}

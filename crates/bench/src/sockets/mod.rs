//! Cost of a byte from program to program, by the programs' sockets and the layers between their servers. The same
//! transfer runs in turns. Its processor time includes both programs, both switches, and the kernel for any of them
//! (Crisan 2014, 5.4.2).

mod machines;
mod servers;

use super::transfer::{Moved, Naps, transfer};
use machines::Machines;
use serde::Serialize;
use servers::Servers;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Where the two machines are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// At one server
    Hairpin,
    /// At two, joined by a link
    Servers,
}

/// What the machines' programs use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Guest {
    /// The kernel's TCP behind a veth pair, a frame for each segment
    Tcp,
    /// The same, its segments and checksums left to whoever is behind the switch
    TcpOffload,
    /// Light sockets over ports in shared memory
    Tcplight,
    /// The kernel's UDP behind a veth pair, as many bytes in a datagram as fit
    Udp,
}

/// What is below them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Hypervisor {
    /// Switches and link drop what has no room
    Lossy,
    /// It waits, and so does who sends it
    Pfc,
    /// As with `pfc`, and what crosses the link is the bytes of one TCP connection between the servers
    Tcp,
    /// As with `pfc`, and nothing enters the link without a credit, nor leaves it unnumbered
    Zfabric,
}

/// Settings of the measurement.
#[derive(Clone, Debug)]
pub struct Sockets {
    /// How long each pair is measured in each turn.
    pub time: Duration,
    /// Turns.
    pub turns: u32,
    /// Connections at once.
    pub streams: u32,
    /// Sleeps of the receiver after every [`NAP_FRAMES`] frames; each of them is measured.
    pub delays: Vec<Duration>,
    /// Places of the machines in measured pairs.
    pub placements: Vec<Placement>,
    /// Sockets of the programs in measured pairs.
    pub guests: Vec<Guest>,
    /// Layers below the sockets in measured pairs.
    pub hypervisors: Vec<Hypervisor>,
    /// A place for files that only this run uses.
    pub scratch: PathBuf,
}

/// Frames after which a receiver sleeps (Crisan 2014, 5.4.2).
pub const NAP_FRAMES: usize = 100;

/// A figure in all turns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The least.
    pub min: f64,
    /// Half of the turns had no more.
    pub median: f64,
    /// The most.
    pub max: f64,
}

/// Results of a pair beside another pair, turn by turn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// Its throughput over the other's.
    pub throughput: Spread,
    /// The other's processor time for a gigabyte over its own.
    pub less_cpu: Spread,
}

/// Ratio of all cores' time to the turn's own time from which on the machine was disturbed. Work of the kernel in its
/// own threads stays below it, and so does the error of counting cores in ticks of 10 ms.
pub const DISTURBED: f64 = 1.15;

/// Results of one turn of a pair; see [`Pair`].
#[derive(Clone, Debug, Serialize)]
pub struct Single {
    /// Payload received.
    pub gbps: f64,
    /// Processor seconds of programs and switches for each gigabyte received.
    pub cpu_s_per_gb: f64,
    /// Processor seconds of the switches alone, for each gigabyte received.
    pub switch_s_per_gb: f64,
    /// Processor seconds of all cores, for any work, for each gigabyte received.
    pub machine_s_per_gb: f64,
    /// Segments and frames that were sent again.
    pub resent: u64,
    /// Frames lost for good.
    pub lost: u64,
    /// Something else was on the machine.
    pub disturbed: bool,
}

impl Single {
    fn of(turn: &Turn) -> Single {
        let m = &turn.moved;
        Single {
            gbps: m.gbps,
            cpu_s_per_gb: per_gb(m.cpu_s, m),
            switch_s_per_gb: per_gb(m.part_s, m),
            machine_s_per_gb: per_gb(m.machine_s, m),
            resent: turn.resent,
            lost: turn.lost.values().sum(),
            disturbed: m.machine_s > DISTURBED * m.cpu_s,
        }
    }
}

/// Frames by where and why they were lost.
pub type Lost = BTreeMap<String, u64>;

/// Results of one pair.
#[derive(Clone, Debug, Serialize)]
pub struct Pair {
    /// Where the machines were.
    pub placement: Placement,
    /// Sockets of the programs.
    pub guest: Guest,
    /// Layers below the sockets.
    pub hypervisor: Hypervisor,
    /// Sleep of the receiver after every [`NAP_FRAMES`] frames.
    pub delay_us: u64,
    /// Payload received.
    pub gbps: Spread,
    /// Processor seconds of programs and switches, the kernel's for them among these, for each gigabyte received.
    pub cpu_s_per_gb: Spread,
    /// Processor seconds of the switches alone, for each gigabyte received.
    pub switch_s_per_gb: Spread,
    /// Processor seconds of all cores, for any work, for each gigabyte received.
    pub machine_s_per_gb: Spread,
    /// Segments that TCP sent again, in machines and tunnels, and frames that zBridge did.
    pub resent: u64,
    /// Frames lost for good.
    pub lost: u64,
    /// The lost frames by place and reason.
    pub lost_at: Lost,
    /// Beside TCP over lossy switches, in the same place and as slow a receiver; if that was measured.
    pub over_tcp: Option<Ratio>,
    /// Results beside TCP with its offloads.
    pub over_tcp_offload: Option<Ratio>,
    /// Each turn, in their order.
    pub single: Vec<Single>,
}

impl Pair {
    /// Turns beside which something else was on the machine.
    pub fn disturbed(&self) -> usize {
        self.single.iter().filter(|turn| turn.disturbed).count()
    }
}

/// Results of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Connections at once.
    pub streams: u32,
    /// For how long each pair was measured in each turn.
    pub seconds: f64,
    /// Turns.
    pub turns: u32,
    /// Cores that all of them shared.
    pub cores: usize,
    /// One entry for each pair of sockets and layers below, in each place and for each delay.
    pub pairs: Vec<Pair>,
}

/// TCPlight has nothing against loss: over lossy switches it is not there.
const STACKS: [(Guest, Hypervisor); 15] = [
    (Guest::Tcp, Hypervisor::Lossy),
    (Guest::TcpOffload, Hypervisor::Lossy),
    (Guest::Udp, Hypervisor::Lossy),
    (Guest::Tcp, Hypervisor::Pfc),
    (Guest::TcpOffload, Hypervisor::Pfc),
    (Guest::Udp, Hypervisor::Pfc),
    (Guest::Tcplight, Hypervisor::Pfc),
    (Guest::Tcp, Hypervisor::Tcp),
    (Guest::TcpOffload, Hypervisor::Tcp),
    (Guest::Udp, Hypervisor::Tcp),
    (Guest::Tcplight, Hypervisor::Tcp),
    (Guest::Tcp, Hypervisor::Zfabric),
    (Guest::TcpOffload, Hypervisor::Zfabric),
    (Guest::Udp, Hypervisor::Zfabric),
    (Guest::Tcplight, Hypervisor::Zfabric),
];

/// Parameters of one pair.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Case {
    placement: Placement,
    guest: Guest,
    hypervisor: Hypervisor,
    delay: Duration,
}

/// Results of one turn of a pair.
#[derive(Clone, Debug, Default)]
struct Turn {
    moved: Moved,
    resent: u64,
    lost: Lost,
}

/// Measures it; ends early when `stop` is raised.
///
/// # Errors
/// When the kernel lacks a feature that the measurement needs, or a connection fails.
pub fn run(what: &Sockets, stop: &AtomicBool) -> io::Result<Figures> {
    let cases = cases(what);
    let mut turns = vec![Vec::new(); cases.len()];
    // The turns of all pairs are closer together than changes in the machine's other work.
    'turns: for _ in 0..what.turns {
        for (turns, &case) in turns.iter_mut().zip(&cases) {
            let turn = once(what, case, stop)?;
            // A turn that was stopped before any data came has measured nothing.
            if turn.moved.bytes > 0 || !stop.load(Ordering::Relaxed) {
                turns.push(turn);
            }
            if stop.load(Ordering::Relaxed) {
                break 'turns;
            }
        }
    }
    let reached = cases.iter().zip(&turns).filter(|(_, own)| !own.is_empty());
    let pairs = reached.map(|(&case, own)| {
        let beside = |guest| {
            let base = Case { guest, hypervisor: Hypervisor::Lossy, ..case };
            let base = cases.iter().position(|&other| other == base)?;
            (!turns[base].is_empty()).then(|| ratio(own, &turns[base]))
        };
        let per_gb = |of: fn(&Moved) -> f64| spread(own.iter().map(|t| per_gb(of(&t.moved), &t.moved)));
        Pair {
            placement: case.placement,
            guest: case.guest,
            hypervisor: case.hypervisor,
            delay_us: case.delay.as_micros() as u64,
            gbps: spread(own.iter().map(|t| t.moved.gbps)),
            cpu_s_per_gb: per_gb(|m| m.cpu_s),
            switch_s_per_gb: per_gb(|m| m.part_s),
            machine_s_per_gb: per_gb(|m| m.machine_s),
            resent: own.iter().map(|t| t.resent).sum(),
            lost: own.iter().flat_map(|t| t.lost.values()).sum(),
            lost_at: sum(own.iter().map(|t| &t.lost)),
            over_tcp: beside(Guest::Tcp),
            over_tcp_offload: beside(Guest::TcpOffload),
            single: own.iter().map(Single::of).collect(),
        }
    });
    Ok(Figures {
        streams: what.streams,
        seconds: what.time.as_secs_f64(),
        turns: what.turns,
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        pairs: pairs.collect(),
    })
}

fn cases(what: &Sockets) -> Vec<Case> {
    let mut cases = Vec::new();
    for &delay in &what.delays {
        for &placement in &what.placements {
            for (guest, hypervisor) in STACKS {
                if what.guests.contains(&guest) && what.hypervisors.contains(&hypervisor) {
                    cases.push(Case { placement, guest, hypervisor, delay });
                }
            }
        }
    }
    cases
}

fn sum<'a>(turns: impl Iterator<Item = &'a Lost>) -> Lost {
    let mut sum = Lost::new();
    for (at, frames) in turns.flatten() {
        *sum.entry(at.clone()).or_default() += frames;
    }
    sum
}

fn per_gb(seconds: f64, moved: &Moved) -> f64 {
    seconds / (moved.bytes as f64 / 1e9)
}

fn ratio(own: &[Turn], base: &[Turn]) -> Ratio {
    let beside = |of: fn(&Moved, &Moved) -> f64| spread(own.iter().zip(base).map(|(a, b)| of(&a.moved, &b.moved)));
    Ratio {
        throughput: beside(|own, base| own.gbps / base.gbps),
        less_cpu: beside(|own, base| per_gb(base.cpu_s, base) / per_gb(own.cpu_s, own)),
    }
}

fn spread(values: impl Iterator<Item = f64>) -> Spread {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let at = |i: usize| values.get(i).copied().unwrap_or(f64::NAN);
    let last = values.len().saturating_sub(1);
    Spread { min: at(0), median: (at(last / 2) + at(values.len() / 2)) / 2.0, max: at(last) }
}

/// One turn: two servers, two machines, and the streams between their programs.
fn once(what: &Sockets, case: Case, stop: &AtomicBool) -> io::Result<Turn> {
    let mut servers = Servers::new(case.hypervisor, &what.scratch)?;
    let mut machines = Machines::new(&mut servers, case.guest, case.placement)?;
    let naps = (!case.delay.is_zero()).then(|| Naps { every: NAP_FRAMES * machines.payload(), sleep: case.delay });
    let moved = servers.run(|lan, meter| {
        let streams = machines.connect(lan, what.streams)?;
        let moved = transfer(streams, what.time, naps, meter, stop);
        machines.disconnect();
        moved
    })?;
    Ok(Turn { moved, resent: machines.resent(&servers)? + servers.resent(), lost: servers.lost() })
}

#[cfg(test)]
mod tests;

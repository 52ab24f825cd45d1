//! `headroom`: the buffer that a lossless priority needs above XOFF, term by term.

use super::failure::Failure;
use super::table::{Table, count};
use super::{Global, output};
use serde::Serialize;
use sluicenet_proto::cee::headroom::{Headroom, PFC_FRAME_BYTES, peer_response, peer_response_quanta};
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;
use sluicenet_scenario::sonic::template::{self, Asic};
use sluicenet_scenario::{Bytes, DURATION_MAX, Framing, FramingKind, LINK_RATE_MIN, Length, Quantity, RATE_MAX};

/// The highest rate of SONiC's templates.
const SONIC_RATE_MAX: Rate = Rate::gbps(200);

/// The headroom of a lossless priority: the bytes that can still arrive after its buffer has reached XOFF.
///
/// The sum is the one that `pfc.headroom = "auto"` gives the links of a scenario; with --cell it also counts the cells of a
/// switch's buffer.
#[derive(Debug, clap::Args)]
pub(super) struct HeadroomArgs {
    /// Rate of the link, as 100G or "100 Gb/s"
    #[arg(long, value_parser = rate)]
    rate: Rate,
    /// Length of the cable, as 40m or 2km
    #[arg(long, value_parser = Length::parse)]
    cable: Length,
    /// Largest IP packet of the link, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u64).range(128..=65_535))]
    mtu: u64,
    /// Time of light through a metre of cable
    #[arg(long, value_name = "TIME", default_value = "5 ns", value_parser = Duration::parse)]
    per_metre: Duration,
    /// Time from the last bit of a pause until the peer has stopped; default by rate, as in SONiC's script
    #[arg(long, value_name = "TIME", value_parser = Duration::parse)]
    response: Option<Duration>,
    /// Delay of MAC and PHY at each end of the cable and in each direction
    #[arg(long, value_name = "TIME", default_value = "0 ns", value_parser = Duration::parse)]
    phy: Duration,
    /// Delay from this switch's port to its buffer (`switch.delay` of a scenario)
    #[arg(long, value_name = "TIME", default_value = "0 ns", value_parser = Duration::parse)]
    pipeline: Duration,
    /// Bytes of a cell of the buffer, if frames take whole cells; default bytes are counted
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(16..=9_216))]
    cell: Option<u64>,
}

/// A rate; a bare K, M, G or T stands for its bits a second.
fn rate(text: &str) -> Result<Rate, String> {
    let long = match text.trim().chars().last() {
        Some('K' | 'k' | 'M' | 'G' | 'T') => format!("{}b/s", text.trim()),
        _ => text.to_owned(),
    };
    let rate = Rate::parse(&long).map_err(|e| e.to_string())?;
    match rate.as_bps() >= LINK_RATE_MIN.as_bps() {
        true => Ok(rate),
        false => Err(format!("from {} to {} is expected", LINK_RATE_MIN.written(), RATE_MAX.written())),
    }
}

/// A term of the sum.
#[derive(Clone, Debug, Serialize)]
struct Term {
    name: &'static str,
    bytes: u64,
    ns: f64,
    reason: String,
}

/// The sum.
#[derive(Clone, Debug, Serialize)]
struct Sum {
    rate: String,
    cable: String,
    mtu: u64,
    terms: Vec<Term>,
    /// Bytes of a scenario's `pfc.headroom`.
    bytes: u64,
    /// The same in whole cells.
    #[serde(skip_serializing_if = "Option::is_none")]
    cell_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sonic: Vec<Template>,
}

/// SONiC's headroom for such a link.
#[derive(Clone, Debug, Serialize)]
struct Template {
    asic: &'static str,
    /// `xoff` of the table `pg_profile_lookup.ini`.
    table: u64,
    /// `xoff` that `buffer_headroom_mellanox.lua` computes.
    script: u64,
}

impl HeadroomArgs {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        let sum = self.sum()?;
        if global.json {
            output::json(&sum);
        } else {
            output::print(&self.text(&sum));
        }
        Ok(())
    }

    fn response(&self) -> Duration {
        self.response.unwrap_or_else(|| peer_response(self.rate))
    }

    fn framing(&self) -> Framing {
        Framing { kind: FramingKind::Ethernet, mtu: Bytes(self.mtu) }
    }

    /// Bytes of the largest frame.
    fn frame_bytes(&self) -> u64 {
        self.mtu + self.framing().header_bytes()
    }

    /// Bytes of a frame on the wire.
    fn on_wire(&self, frame_bytes: u64) -> u64 {
        frame_bytes + self.framing().gap_bytes()
    }

    fn sum(&self) -> Result<Sum, Failure> {
        let cable = self.cable.delay(self.per_metre);
        let delays = [cable, self.phy, self.response(), self.pipeline];
        if delays.iter().any(|delay| *delay > DURATION_MAX) {
            return Err(Failure::Input("a delay is too long: at most 2400 h".into()));
        }
        let headroom = Headroom {
            rate: self.rate,
            data_delay: cable + self.phy.saturating_mul(2) + self.pipeline,
            pause_delay: cable + self.phy.saturating_mul(2) + self.response(),
            max_frame: self.on_wire(self.frame_bytes()) as u32,
            pfc_frame: self.on_wire(PFC_FRAME_BYTES.into()) as u32,
        };
        let terms = self.terms(cable);
        let bytes = headroom.bytes();
        debug_assert_eq!(terms.iter().map(|term| term.bytes).sum::<u64>(), bytes);
        Ok(Sum {
            rate: self.rate.written(),
            cable: self.cable.written(),
            mtu: self.mtu,
            cell_bytes: self.cell.map(|cell| self.in_cells(bytes, cell)),
            terms,
            bytes,
            sonic: self.templates(),
        })
    }

    /// The terms in the order of time. Their bytes add up to those of [`Headroom::bytes`].
    fn terms(&self, cable: Duration) -> Vec<Term> {
        let (largest, pause) = (self.on_wire(self.frame_bytes()), self.on_wire(PFC_FRAME_BYTES.into()));
        let (header, gap) = (self.framing().header_bytes(), self.framing().gap_bytes());
        let frame = |name: &'static str, bytes: u64, reason: String| {
            let ns = self.rate.time_for(bytes).as_ps() as f64 / 1e3;
            Term { name, bytes, ns, reason }
        };
        let mut passed = Duration::ZERO;
        let mut time = |name: &'static str, delay: Duration, reason: String| {
            let before = self.rate.bytes_in(passed);
            passed += delay;
            Term { name, bytes: self.rate.bytes_in(passed) - before, ns: delay.as_ps() as f64 / 1e3, reason }
        };
        let of_frame = format!("{} B, header {header} B, preamble and gap {gap} B", count(self.mtu));
        let metres = format!("{} at {} a metre", self.cable.written(), self.per_metre.written());
        let response = match self.response {
            Some(_) => "as given".into(),
            None => format!("{} quanta of 64 B at this rate, as SONiC has it", peer_response_quanta(self.rate)),
        };
        let phy = || "two ends (--phy)".to_owned();
        vec![
            frame("frame across XOFF", largest, format!("it counts when it is whole: {of_frame}")),
            frame("frame before the pause", largest, "a largest frame has just begun, and the pause waits".into()),
            frame("pause frame", pause, format!("{PFC_FRAME_BYTES} B, preamble and gap {gap} B")),
            time("cable to the peer", cable, metres.clone()),
            time("MAC and PHY", self.phy.saturating_mul(2), phy()),
            time("response of the peer", self.response(), response),
            frame("frame after the pause", largest, "the peer has just begun it, and does not cut it".into()),
            time("cable back", cable, metres),
            time("MAC and PHY", self.phy.saturating_mul(2), phy()),
            time("pipeline", self.pipeline, "from the port to the buffer (--pipeline)".into()),
        ]
    }

    /// The bytes in whole cells: the frame across XOFF is a largest one, all others are of the length that wastes most.
    fn in_cells(&self, bytes: u64, cell: u64) -> u64 {
        let largest = self.frame_bytes();
        let (memory, wire) = self.worst_frame(cell);
        let others = u128::from(bytes - self.on_wire(largest)) * u128::from(memory);
        let in_flight = u64::try_from(others.div_ceil(u128::from(wire))).unwrap_or(u64::MAX);
        let across = largest.next_multiple_of(cell);
        in_flight.saturating_add(across).div_ceil(cell).saturating_mul(cell)
    }

    /// Memory and wire bytes of the frame that takes most memory for its time on the wire.
    fn worst_frame(&self, cell: u64) -> (u64, u64) {
        // One byte more than whole cells is the worst of each number of cells.
        let lengths = (0..).map(|cells| cells * cell + 1).take_while(|length| *length <= self.frame_bytes());
        let costs = lengths
            .map(|length| length.max(self.framing().min_frame_bytes()))
            .map(|length| (length.next_multiple_of(cell), self.on_wire(length)));
        costs.max_by(|a, b| (a.0 * b.1).cmp(&(b.0 * a.1))).unwrap_or((cell, cell))
    }

    /// SONiC's headroom, for rates and cables in the range of its tables.
    fn templates(&self) -> Vec<Template> {
        if self.rate.as_bps() > SONIC_RATE_MAX.as_bps() || self.rate.as_bps() < Rate::gbps(10).as_bps() {
            return Vec::new();
        }
        let of = |asic: Asic| Template {
            asic: asic.name,
            table: template::looked_up(asic, self.rate, self.cable).xoff,
            script: template::computed(asic, self.rate, self.cable).xoff,
        };
        [template::SPECTRUM, template::SPECTRUM_2].map(of).to_vec()
    }

    fn text(&self, sum: &Sum) -> String {
        let mut t = Table::new(1, ["term", "bytes", "ns", ""]);
        // The last column is a text, which `Table` would move to the right.
        let longest = sum.terms.iter().map(|term| term.reason.chars().count()).max().unwrap_or(0);
        let left = |text: &str| format!("{text:<longest$}");
        for term in sum.terms.iter().filter(|term| term.bytes > 0) {
            t.row([term.name.to_owned(), count(term.bytes), format!("{:.1}", term.ns), left(&term.reason)]);
        }
        t.rule();
        t.row(["headroom", &count(sum.bytes), "", &left("pfc.headroom of a scenario, and xoff of a buffer profile")]);
        if let (Some(cell), Some(bytes)) = (self.cell, sum.cell_bytes) {
            let (memory, wire) = self.worst_frame(cell);
            let frame = wire - self.framing().gap_bytes();
            let reason = format!("cells of {cell} B; a frame of {frame} B takes {memory} B of memory");
            t.row(["headroom in cells", &count(bytes), "", &left(&reason)]);
        }
        let idle: Vec<&str> = [("--phy", self.phy), ("--pipeline", self.pipeline)]
            .iter()
            .filter(|(_, delay)| *delay == Duration::ZERO)
            .map(|(name, _)| *name)
            .collect();
        let idle = match idle.is_empty() {
            true => String::new(),
            false => format!("\n  Not counted, because they are 0: {}.\n", idle.join(" and ")),
        };
        format!(
            "Headroom of one lossless priority at {} over {}:\n\n{}{idle}{}",
            sum.rate,
            sum.cable,
            t.text(),
            self.sonic_text(sum)
        )
    }

    fn sonic_text(&self, sum: &Sum) -> String {
        if sum.sonic.is_empty() {
            return String::new();
        }
        let mut t = Table::new(1, ["SONiC's xoff for this link", "pg_profile_lookup.ini", "dynamic model"]);
        for of in &sum.sonic {
            t.row([of.asic.to_owned(), count(of.table), count(of.script)]);
        }
        let explained = |asic: Asic| {
            let s = template::looked_up(asic, self.rate, self.cable);
            format!(
                "  {}: {:.0} + ({:.0} + {:.0} + {:.0} + {:.0}) x {:.3}, rounded up to 1,024 B: the lossless MTU, the MTU of\n  \
                 ports, {} of cable both ways, MAC and PHY, the response of the peer, and memory for frames that do not fill their\n  \
                 cells. The dynamic model has a response of {} quanta, ports of 9,100 B, and every second frame small.\n",
                asic.name,
                s.lossless_mtu,
                s.port_mtu,
                s.cable,
                s.mac_phy,
                s.peer_response,
                s.occupancy,
                self.cable.written(),
                peer_response_quanta(self.rate)
            )
        };
        format!("\n{}\n{}", t.text(), explained(template::SPECTRUM))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        args: HeadroomArgs,
    }

    fn args(line: &str) -> HeadroomArgs {
        Command::try_parse_from(core::iter::once("headroom").chain(line.split(' '))).unwrap().args
    }

    #[test]
    fn the_terms_are_the_sum_of_a_scenario() {
        // 3 x 1,538 + 84 B, 2 x 40 m x 5 ns and 394 x 64 B at 12.5 B/ns: 4,698 + 5,000 + 25,216.
        let sum = args("--rate 100G --cable 40m").sum().unwrap();
        assert_eq!(sum.bytes, 3 * 1_538 + 84 + 5_000 + 25_216);
        for line in [
            "--rate 100G --cable 300m",
            "--rate 10Gb/s --cable 0m --mtu 9000",
            "--rate 400G --cable 3m --phy 70ns --pipeline 500ns",
            "--rate 333M --cable 7.123m --response 1us --per-metre 4.9ns",
        ] {
            let sum = args(line).sum().unwrap();
            assert_eq!(sum.terms.iter().map(|term| term.bytes).sum::<u64>(), sum.bytes, "{line}");
        }
        // MAC and PHY count four times, the pipeline once.
        let with = args("--rate 100G --cable 40m --phy 10ns --pipeline 100ns").sum().unwrap();
        assert_eq!(with.bytes - sum.bytes, (4 * 10 + 100) * 125 / 10);
    }

    #[test]
    fn cells_count_for_the_frames_that_fill_them_worst() {
        // 97 B in two cells of 96 B: 192 B of memory for 117 B on the wire. 145 B in two cells of 144 B: 288 for 165.
        let worst_frame = |cell| args("--rate 100G --cable 40m").worst_frame(cell);
        assert_eq!((worst_frame(96), worst_frame(144)), ((192, 117), (288, 165)));
        assert_eq!(worst_frame(256), (256, 84), "the shortest frame alone");
        assert_eq!(worst_frame(9_216), (9_216, 84));
        let sum = args("--rate 100G --cable 40m --cell 96").sum().unwrap();
        let in_flight = (sum.bytes - 1_538) * 192;
        assert_eq!(sum.cell_bytes, Some((in_flight.div_ceil(117) + 1_536).next_multiple_of(96)));
    }

    #[test]
    fn bad_options_are_refused() {
        for (line, says) in [
            ("--rate 100 --cable 40m", "needs a unit"),
            ("--rate 100GB --cable 40m", "unknown unit"),
            ("--rate 1K --cable 40m", "from 10 kb/s"),
            ("--rate 100G --cable 40", "needs a unit"),
            ("--rate 100G --cable 99999km", "at most 10000 km"),
            ("--rate 100G --cable=-1m", "cannot be negative"),
            ("--rate 100G --cable 40m --cell 0", "16..=9216"),
            ("--rate 100G --cable 40m --mtu 70000", "128..=65535"),
        ] {
            let line = core::iter::once("headroom").chain(line.split(' '));
            let error = Command::try_parse_from(line).unwrap_err().to_string();
            assert!(error.contains(says), "{says}: {error}");
        }
    }
}

//! The map of a bump, asked from the switch behind it: by SNMP (RFC 4188, RFC 2863) or OpenFlow. The requests are those of
//! `snmpbulkwalk` and `ovs-ofctl`, which speak all versions and security models of their protocols.

use sluicenet_proto::units::Rate;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{self, Read};
use std::process::{Command, Stdio};

/// Tables of the bridge's and of the interfaces' MIB.
const FDB_PORT: &str = ".1.3.6.1.2.1.17.4.3.1.2";
const PORT_INTERFACE: &str = ".1.3.6.1.2.1.17.1.4.1.2";
const SPEED_BPS: &str = ".1.3.6.1.2.1.2.2.1.5";
const SPEED_MBPS: &str = ".1.3.6.1.2.1.31.1.1.1.15";
/// The largest value of `ifSpeed`: a faster interface has only `ifHighSpeed`.
const SPEED_BPS_MAX: u64 = u32::MAX as u64;
/// The longest answer of a program.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Where the map is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A switch with an SNMP agent.
    Snmp {
        /// Its address, as `snmpbulkwalk` takes it.
        agent: String,
        /// The community; default that of `snmp.conf`.
        community: Option<String>,
    },
    /// A switch that speaks OpenFlow, as `ovs-ofctl` takes it: a bridge of this computer, or `tcp:ADDRESS:PORT`.
    OpenFlow(String),
}

/// A port of a switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LearnedPort {
    /// The speed of its link, if the switch says it.
    pub rate: Option<Rate>,
    /// The stations behind it.
    pub macs: BTreeSet<[u8; 6]>,
}

/// The ports of a switch, by number.
pub type Learned = BTreeMap<u16, LearnedPort>;

/// Asks a switch for its ports and the stations behind them.
///
/// # Errors
/// The program is not installed or fails, or the switch knows no stations.
pub fn ask(source: &Source) -> io::Result<Learned> {
    let learned = match source {
        Source::Snmp { agent, community } => {
            let walk = |table: &str| {
                let mut command = Command::new("snmpbulkwalk");
                command.args(["-v2c", "-OnqeU"]);
                if let Some(community) = community {
                    command.args(["-c", community]);
                }
                answer(command.args([agent, table]))
            };
            of_snmp(&walk(FDB_PORT)?, &walk(PORT_INTERFACE)?, &walk(SPEED_MBPS)?, &walk(SPEED_BPS)?)
        }
        Source::OpenFlow(switch) => {
            let ask = |what: &str| {
                answer(Command::new("ovs-ofctl").args(["-O", "OpenFlow10,OpenFlow13", "--no-names", what, switch]))
            };
            of_openflow(&ask("dump-flows")?, &ask("dump-ports-desc")?)
        }
    };
    if learned.is_empty() {
        return Err(io::Error::other("the switch names no station and its port"));
    }
    Ok(learned)
}

/// The output of a program.
fn answer(command: &mut Command) -> io::Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let context = |e: io::Error| io::Error::new(e.kind(), format!("{program}: {e}"));
    let mut running = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(context)?;
    let mut text = Vec::new();
    if let Some(out) = running.stdout.take() {
        out.take(ANSWER_BYTES_MAX).read_to_end(&mut text).map_err(context)?;
    }
    let ended = running.wait().map_err(context)?;
    if !ended.success() {
        return Err(io::Error::other(format!("{program}: {ended}")));
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The rows of a walk below a table: the index, and the value.
fn rows<'a>(walk: &'a str, table: &'a str) -> impl Iterator<Item = (Vec<u64>, u64)> + 'a {
    walk.lines().filter_map(move |line| {
        let (oid, value) = line.split_once(' ')?;
        let index = oid.strip_prefix(table)?.strip_prefix('.')?;
        let index = index.split('.').map(str::parse).collect::<Result<Vec<u64>, _>>().ok()?;
        Some((index, value.trim().parse().ok()?))
    })
}

fn of_snmp(fdb: &str, interfaces: &str, mbps: &str, bps: &str) -> Learned {
    let one = |walk: &str, table: &str| -> BTreeMap<u64, u64> {
        rows(walk, table).filter_map(|(index, value)| Some((*index.first()?, value))).collect()
    };
    let interface = one(interfaces, PORT_INTERFACE);
    let (fast, slow) = (one(mbps, SPEED_MBPS), one(bps, SPEED_BPS));
    let mut learned = Learned::new();
    for (index, port) in rows(fdb, FDB_PORT) {
        let mac: Option<Vec<u8>> = index.iter().map(|&b| u8::try_from(b).ok()).collect();
        let mac = mac.and_then(|mac| <[u8; 6]>::try_from(mac).ok());
        // Port 0: learned at a port that is not known. A group has no port of its own.
        let (Some(mac), Ok(port @ 1..)) = (mac.filter(|mac| mac[0] & 1 == 0), u16::try_from(port)) else { continue };
        let entry = learned.entry(port).or_default();
        entry.macs.insert(mac);
        let at = interface.get(&port.into()).copied().unwrap_or(port.into());
        let of_fast = fast.get(&at).copied().filter(|&n| n > 0).map(|n| Rate::mbps(n.min(1_000_000)));
        let of_slow = slow.get(&at).copied().filter(|&n| n > 0 && n < SPEED_BPS_MAX).map(Rate);
        entry.rate = of_fast.or(of_slow);
    }
    learned
}

fn of_openflow(flows: &str, ports: &str) -> Learned {
    let mut speeds: BTreeMap<u16, Rate> = BTreeMap::new();
    let mut current = None;
    for line in ports.lines() {
        let line = line.trim();
        if let Some((number, _)) = line.split_once('(')
            && !line.starts_with("OFPST")
        {
            current = number.parse::<u16>().ok();
        }
        if let (Some(port), Some(rest)) = (current, line.strip_prefix("speed: "))
            && let Some(mbps) = rest.split(' ').next().and_then(|n| n.parse::<u64>().ok()).filter(|&n| n > 0)
        {
            speeds.insert(port, Rate::mbps(mbps.min(1_000_000)));
        }
    }
    // The flow with the highest priority decides, as in the switch.
    let mut best: BTreeMap<[u8; 6], (u32, u16)> = BTreeMap::new();
    for line in flows.lines() {
        let Some((matches, actions)) = line.split_once(" actions=") else { continue };
        let fields = || matches.split([',', ' ']);
        let Some(mac) = fields().find_map(|field| mac_of(field.strip_prefix("dl_dst=")?)) else { continue };
        let output = actions.split(',').find_map(|action| action.trim().strip_prefix("output:")?.parse().ok());
        let priority = fields().find_map(|f| f.strip_prefix("priority=")?.parse().ok()).unwrap_or(0x8000);
        let Some(port) = output.filter(|_| mac[0] & 1 == 0) else { continue };
        if best.get(&mac).is_none_or(|known| known.0 < priority) {
            best.insert(mac, (priority, port));
        }
    }
    let mut learned = Learned::new();
    for (mac, (_, port)) in best {
        let entry = learned.entry(port).or_default();
        entry.macs.insert(mac);
        entry.rate = speeds.get(&port).copied();
    }
    learned
}

/// An address without a mask.
fn mac_of(text: &str) -> Option<[u8; 6]> {
    let bytes: Option<Vec<u8>> = text.split(':').map(|b| u8::from_str_radix(b, 16).ok()).collect();
    bytes?.try_into().ok()
}

/// The map as tables of a file; `rate` is the speed of ports whose speed the switch does not say.
///
/// # Errors
/// Ports have no speed; all of them are named.
pub fn toml(learned: &Learned, rate: Option<Rate>) -> Result<String, String> {
    let mut text = String::new();
    let mut holes = Vec::new();
    for (number, port) in learned {
        let Some(rate) = port.rate.or(rate) else {
            holes.push(number.to_string());
            continue;
        };
        let macs = port.macs.iter().map(|mac| format!("\"{}\"", mac.map(|b| format!("{b:02x}")).join(":")));
        let macs: Vec<String> = macs.collect();
        let bps = rate.as_bps();
        let _ = writeln!(text, "[[map]]\nport = {number}\nrate = \"{bps} b/s\"\nmacs = [{}]\n", macs.join(", "));
    }
    match holes.is_empty() {
        true => Ok(text),
        false => {
            Err(format!("the switch does not say how fast these ports are: {}; say it with --rate", holes.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: [u8; 6] = [2, 0, 0, 0, 0, 10];
    const B: [u8; 6] = [2, 0, 0, 0, 0, 11];

    #[test]
    fn a_bridge_tells_its_stations_and_speeds_by_snmp() {
        let fdb = "\
.1.3.6.1.2.1.17.4.3.1.2.2.0.0.0.0.10 3
.1.3.6.1.2.1.17.4.3.1.2.2.0.0.0.0.11 4
.1.3.6.1.2.1.17.4.3.1.2.2.0.0.0.0.12 0
.1.3.6.1.2.1.17.4.3.1.2.1.0.94.0.0.1 4
.1.3.6.1.2.1.17.4.3.1.2.2.0.0.0.0.999 4
.1.3.6.1.2.1.17.4.3.1.2 No Such Object
nonsense
";
        let interfaces = ".1.3.6.1.2.1.17.1.4.1.2.3 103\n.1.3.6.1.2.1.17.1.4.1.2.4 104\n";
        let mbps = ".1.3.6.1.2.1.31.1.1.1.15.103 10000\n.1.3.6.1.2.1.31.1.1.1.15.104 0\n";
        let bps = ".1.3.6.1.2.1.2.2.1.5.103 4294967295\n.1.3.6.1.2.1.2.2.1.5.104 100000000\n";
        let learned = of_snmp(fdb, interfaces, mbps, bps);
        let port = |rate, mac| LearnedPort { rate: Some(rate), macs: [mac].into() };
        assert_eq!(learned, Learned::from([(3, port(Rate::gbps(10), A)), (4, port(Rate::mbps(100), B))]));
        let text = toml(&learned, None).unwrap();
        assert!(text.contains("port = 3\nrate = \"10000000000 b/s\"\nmacs = [\"02:00:00:00:00:0a\"]"), "{text}");
        // A port without a speed.
        let holes = toml(&of_snmp(fdb, interfaces, "", ""), None).unwrap_err();
        assert!(holes.contains("3, 4"), "{holes}");
        assert!(toml(&of_snmp(fdb, "", "", ""), Some(Rate::gbps(1))).is_ok());
    }

    #[test]
    fn a_switch_tells_its_flows_and_speeds_by_openflow() {
        let flows = "\
 cookie=0x0, duration=5.1s, table=0, n_packets=0, n_bytes=0, priority=100,dl_dst=02:00:00:00:00:0a actions=output:3
 cookie=0x0, duration=5.1s, table=0, n_packets=0, n_bytes=0, priority=10,dl_dst=02:00:00:00:00:0a actions=output:9
 cookie=0x0, duration=5.1s, table=0, n_packets=0, n_bytes=0, ip,dl_dst=02:00:00:00:00:0b actions=mod_vlan_vid:2,output:4
 cookie=0x0, duration=5.1s, table=0, n_packets=0, n_bytes=0, dl_dst=01:00:00:00:00:00/01:00:00:00:00:00 actions=FLOOD
 cookie=0x0, duration=5.1s, table=0, n_packets=0, n_bytes=0, priority=0 actions=NORMAL
";
        let ports = "\
OFPST_PORT_DESC reply (OF1.3) (xid=0x2):
 3(p3): addr:aa:bb:cc:dd:ee:ff
     config:     0
     speed: 10000 Mbps now, 0 Mbps max
 4(p4): addr:aa:bb:cc:dd:ee:fe
     speed: 0 Mbps now, 0 Mbps max
 LOCAL(br0): addr:aa:bb:cc:dd:ee:fd
     speed: 1000 Mbps now, 0 Mbps max
";
        let learned = of_openflow(flows, ports);
        assert_eq!(learned[&3], LearnedPort { rate: Some(Rate::gbps(10)), macs: [A].into() });
        assert_eq!(learned[&4], LearnedPort { rate: None, macs: [B].into() });
        assert_eq!(learned.len(), 2);
    }

    #[test]
    fn what_was_learned_is_a_map() {
        let port = LearnedPort { rate: Some(Rate::mbps(100)), macs: [A, B].into() };
        let text = toml(&Learned::from([(7, port)]), None).unwrap();
        let file = format!(
            "[[port]]\nname = \"a\"\nkind = \"shm\"\n[[port]]\nname = \"b\"\nkind = \"shm\"\n[[link]]\na = \"a\"\nb = \"b\"\n{text}"
        );
        let config = super::super::Config::parse(std::path::Path::new("b.toml"), &file).unwrap();
        assert_eq!(config.map.destinations.len(), 2);
        assert_eq!(config.map.ports[0].port.rate, Rate::mbps(100));
    }
}

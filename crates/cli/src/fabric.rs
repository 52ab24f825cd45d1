//! `fabric`: a k-ary fat-tree from its number: counts, tables, cost, cables, and the same for other tools.

use super::failure::Failure;
use super::table::{NONE, Table, count};
use super::{Global, output};
use clap::{Subcommand, ValueEnum};
use sluicenet_planner::cables::{Cables, Floor, Run};
use sluicenet_planner::cost::{Comparison, Size};
use sluicenet_planner::describe::Description;
use sluicenet_planner::export::{self, Containerlab};
use sluicenet_planner::prices::Prices;
use sluicenet_planner::tables::{Kind, SwitchTable};
use sluicenet_planner::vlans::{VlanPort, Vlans};
use sluicenet_proto::routing::fat_tree::{FatTree, Switch};
use std::net::Ipv4Addr;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(super) struct Fabric {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Counts of switches, hosts, links and paths, and the addresses
    Describe(Of),
    /// Two-level routing tables in TCAM order
    Tables(Tables),
    /// Cost, power and heat, beside hierarchical trees
    Cost(Cost),
    /// Racks, cables, bundles and their length
    Cables(CablesArgs),
    /// The network for containerlab or Open vSwitch
    Export(Export),
}

/// Which fat-tree.
#[derive(Clone, Copy, Debug, clap::Args)]
struct Of {
    /// Ports of a switch, an even number up to 254
    #[arg(long, value_parser = tree)]
    k: FatTree,
}

#[derive(Debug, clap::Args)]
struct Tables {
    #[command(flatten)]
    of: Of,
    /// Only the switch with this address
    #[arg(long, value_name = "ADDRESS")]
    switch: Option<Ipv4Addr>,
    /// The format: for people, for programs, or for `ovs-ofctl -O OpenFlow13 add-flows BRIDGE -`
    #[arg(long, value_enum, default_value = "text")]
    format: TableFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TableFormat {
    Text,
    Json,
    Ovs,
}

#[derive(Debug, clap::Args)]
struct Cost {
    /// For this number of hosts
    #[arg(long, value_name = "N", required_unless_present = "k", conflicts_with = "k")]
    hosts: Option<u64>,
    /// For a whole fat-tree of switches with this number of ports
    #[arg(long, value_parser = tree)]
    k: Option<FatTree>,
    /// The price list: TOML, as scenarios/alfares2012/prices-2008.toml
    #[arg(long, value_name = "FILE")]
    prices: PathBuf,
    /// Oversubscription of the hierarchical trees: 3 means 3:1
    #[arg(long, value_name = "RATIO", value_delimiter = ',', default_value = "1,3", value_parser = ratio)]
    oversubscription: Vec<f64>,
}

#[derive(Debug, clap::Args)]
struct CablesArgs {
    #[command(flatten)]
    of: Of,
    /// Side of the square for a rack and its part of the aisles
    #[arg(long, value_name = "M", default_value_t = Floor::default().rack_m, value_parser = metres)]
    rack: f64,
    /// Distance between two pods
    #[arg(long, value_name = "M", default_value_t = Floor::default().aisle_m, value_parser = metres)]
    aisle: f64,
    /// Height from a rack to the cable tray
    #[arg(long, value_name = "M", default_value_t = Floor::default().rise_m, value_parser = metres)]
    rise: f64,
}

#[derive(Debug, clap::Args)]
struct Export {
    #[command(flatten)]
    of: Of,
    /// A containerlab topology, the commands of Open vSwitch, or the VLANs of source routing as CSV
    #[arg(long, value_enum)]
    format: ExportFormat,
    /// containerlab: the hosts' image
    #[arg(long, default_value = export::HOST_IMAGE, value_parser = image)]
    image: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ExportFormat {
    Containerlab,
    Ovs,
    Vlan,
}

fn tree(text: &str) -> Result<FatTree, String> {
    let k: u64 = text.parse().map_err(|_| "an even number of ports from 2 to 254 is expected".to_string())?;
    let k = u32::try_from(k).map_err(|_| "at most 254 ports are expected".to_string())?;
    FatTree::new(k).map_err(|e| e.to_string())
}

fn ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse::<f64>().ok().filter(|r| (1.0..=1_000.0).contains(r));
    ratio.ok_or_else(|| "a number from 1 to 1000 is expected".into())
}

fn metres(text: &str) -> Result<f64, String> {
    let metres = text.parse::<f64>().ok().filter(|m| (0.0..=1_000.0).contains(m));
    metres.ok_or_else(|| "metres from 0 to 1000 are expected".into())
}

fn image(text: &str) -> Result<String, String> {
    match export::image_is_plain(text) {
        true => Ok(text.into()),
        false => Err("an image is letters, digits and ._-/:@".into()),
    }
}

impl Fabric {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        match self.what {
            What::Describe(of) => describe(of.k, global),
            What::Tables(v) => v.main(global)?,
            What::Cost(v) => v.main(global)?,
            What::Cables(v) => v.main(global),
            What::Export(v) => v.main(global)?,
        }
        Ok(())
    }
}

fn describe(tree: FatTree, global: Global) {
    let d = Description::new(tree);
    if global.json {
        return output::json(&d);
    }
    let number = |n: u32| count(n.into());
    let mut t = Table::new(1, ["", "number", "first", "last"]);
    let none = String::new;
    let mut row = |name: &str, n: u32, ends: Option<&[String; 2]>| {
        let [first, last] = ends.cloned().unwrap_or_else(|| [none(), none()]);
        t.row([name.to_string(), number(n), first, last]);
    };
    row("pods", d.pods, None);
    row("hosts", d.hosts, Some(&d.addresses.hosts));
    row("subnets", d.subnets, None);
    row("hosts of a subnet", d.subnet_hosts, None);
    row("edge switches", d.switches.edge, Some(&d.addresses.edge));
    row("aggregation switches", d.switches.aggregation, Some(&d.addresses.aggregation));
    row("core switches", d.switches.core, Some(&d.addresses.core));
    row("switches", d.switches.total, None);
    row("links of hosts", d.links.hosts, None);
    row("links in pods", d.links.pods, None);
    row("links of cores", d.links.cores, None);
    row("links", d.links.total, None);
    row("equal-cost paths between pods", d.paths_between_pods, None);
    row("equal-cost paths in a pod", d.paths_in_pod, None);
    row("prefixes of a table, at most", d.prefixes_max, None);
    row("suffixes of a table, at most", d.suffixes_max, None);
    output::print(&t.text());
}

impl Tables {
    fn main(self, global: Global) -> Result<(), Failure> {
        let tree = self.of.k;
        let one = match self.switch {
            None => None,
            Some(address) => Some(tree.switch_at(address).ok_or_else(|| {
                Failure::Input(format!(
                    "--switch {address}: the fat-tree of {}-port switches has no such switch",
                    tree.k()
                ))
            })?),
        };
        let switches =
            || tree.switches().filter(|s| one.is_none_or(|only| *s == only)).take_while(|_| output::is_open());
        match self.format {
            TableFormat::Ovs if one.is_none() => {
                let why = "--format ovs is one bridge's flows: name it with --switch; `fabric export --format ovs` has all of them";
                return Err(Failure::Input(why.into()));
            }
            TableFormat::Ovs if global.json => {
                let flows: Vec<String> = switches().flat_map(|s| SwitchTable::new(tree, s).flows()).collect();
                output::json(&flows);
            }
            TableFormat::Ovs => switches().for_each(|s| lines(&SwitchTable::new(tree, s).flows())),
            TableFormat::Text if !global.json => {
                switches().for_each(|s| output::print(&text(&SwitchTable::new(tree, s))))
            }
            // One after the other: all tables of a large network do not have to fit into memory.
            TableFormat::Text | TableFormat::Json => list(switches().map(|s| SwitchTable::new(tree, s))),
        }
        Ok(())
    }
}

/// A JSON list, an element at a time.
fn list(elements: impl Iterator<Item = impl serde::Serialize>) {
    let mut before = "[";
    for e in elements.take_while(|_| output::is_open()) {
        output::stream(|out| {
            writeln!(out, "{before}")?;
            Ok(serde_json::to_writer_pretty(out, &e)?)
        });
        before = ",";
    }
    output::print(if before == "[" { "[]\n" } else { "\n]\n" });
}

/// Prints lines that contain no foreign text.
fn lines(lines: &[String]) {
    output::stream(|out| out.write_all((lines.join("\n") + "\n").as_bytes()));
}

fn text(table: &SwitchTable) -> String {
    let mut t = Table::new(2, ["address", "entry", "port", "to"]);
    for e in &table.entries {
        let entry = match e.kind {
            Kind::Switched => format!("{} (switched)", e.value),
            Kind::Prefix => format!("{}/{}", e.value, e.mask.to_bits().leading_ones()),
            // As the source writes it: 0.0.0.2/8 are the last eight bits.
            Kind::Suffix => format!("{}/{} (suffix)", e.value, e.mask.to_bits().trailing_ones()),
        };
        t.row([e.address.to_string(), entry, e.port.to_string(), e.to.to_string()]);
    }
    format!("\n  {}, {}\n\n{}", table.switch, table.layer, t.text())
}

impl Cost {
    fn main(self, global: Global) -> Result<(), Failure> {
        let prices = Prices::load(&self.prices)?;
        let size = match (self.hosts, self.k) {
            (Some(hosts), _) => Size::Hosts(hosts),
            (None, Some(tree)) => Size::Ports(tree),
            (None, None) => return Err(Failure::Input("--hosts or --k is needed".into())),
        };
        let c = Comparison::new(&prices, size, &self.oversubscription).map_err(Failure::Input)?;
        if global.json {
            output::json(&c);
            return Ok(());
        }
        let head =
            ["network", "is", "edge", "aggregation", "core", "cost", "a host", "power", "heat, BTU/h", "power less"];
        let mut t = Table::new(1, head);
        let fat = c.networks[0].power;
        // Half empty switches at the price, and with the watts, of whole ones.
        let is_part = self.k.is_some() && c.k < c.switch_ports;
        for n in &c.networks {
            let name = match n.kind {
                "fat-tree" => format!("fat-tree, k = {}", c.k),
                kind => format!("{kind}, {}:1", n.oversubscription),
            };
            let less =
                fat.zip(n.power).filter(|_| n.kind != "fat-tree").map(|(fat, tree)| 1.0 - fat.watts / tree.watts);
            let less = match less {
                Some(_) if is_part => NONE.into(),
                less => less.map_or(String::new(), |l| format!("{:.1} %", 100.0 * l)),
            };
            t.row([
                name,
                format!("{}:1", n.oversubscription_actual),
                count(n.edge),
                count(n.aggregation),
                count(n.core),
                format!("${}", count(n.dollars.round() as u64)),
                format!("${:.2}", n.dollars_per_host),
                n.power.map_or("-".into(), |p| format!("{:.1} kW", p.watts / 1e3)),
                n.power.map_or("-".into(), |p| count(p.heat_btu_h.round() as u64)),
                less,
            ]);
        }
        output::print(&format!("\n  {} hosts at prices of {}\n\n{}", count(c.hosts), c.year, t.text()));
        output::print(&format!(
            "\n  Of these switches a fat-tree has {} hosts at most, a hierarchical tree at 1:1 {}. \"Power less\" is what the\n  \
             fat-tree saves.\n",
            count(c.fat_tree_hosts_max),
            count(c.hierarchical_hosts_max)
        ));
        if is_part {
            output::print(&format!(
                "\n  Not a comparison: a fat-tree of k = {} uses {} of the {} ports of the list's switch, and it costs and takes \
                 what the\n  whole switch does. --hosts uses all of its ports.\n",
                c.k, c.k, c.switch_ports
            ));
        }
        Ok(())
    }
}

impl CablesArgs {
    fn main(self, global: Global) {
        let c = Cables::new(self.of.k, Floor { rack_m: self.rack, aisle_m: self.aisle, rise_m: self.rise });
        if global.json {
            return output::json(&c);
        }
        let number = |n: u32| count(n.into());
        let mut t = Table::new(2, ["", ""]);
        t.row(["pods", &format!("{}, in a grid of {} x {}, {} empty", c.k, c.grid[0], c.grid[1], c.grid_empty)]);
        let racks = format!("{} of machines and one of switches; {} in all", c.pod_racks, number(c.racks));
        t.row(["racks of a pod", &racks]);
        let switch = format!(
            "{} switches with {} ports: {} to machines and cores, {} cables inside",
            c.pod_switches,
            number(c.total_ports),
            number(c.user_ports),
            number(c.internal_cables)
        );
        t.row(["pod switch", &switch]);
        t.row(["cores in a pod", &format!("{} at most", c.pod_cores)]);
        let mut r = Table::new(1, ["cables", "number", "bundles", "in sets of", "length, m", "longest, m"]);
        let mut row = |name: &str, run: &Run| {
            r.row([
                name.to_string(),
                count(run.cables),
                count(run.bundles),
                run.bundle_cables.to_string(),
                count(run.length_m.round() as u64),
                format!("{:.1}", run.longest_m),
            ]);
        };
        row("machines to their pod switch", &c.machines);
        row("pod switch to cores beside it", &c.cores_near);
        row("pod switch to cores of other pods", &c.cores_far);
        let (total, one_row) = (count(c.total_length_m.round() as u64), count(c.row_length_m.round() as u64));
        output::print(&format!(
            "\n{}\n{}\n  {total} m in all; {one_row} m with racks and pods in a row each. Along the grid, a rack in a square of {} m, {} m\n  \
             between pods, {} m up and down at each end.\n",
            t.text(),
            r.text(),
            c.floor.rack_m,
            c.floor.aisle_m,
            c.floor.rise_m
        ));
    }
}

impl Export {
    fn main(self, global: Global) -> Result<(), Failure> {
        let tree = self.of.k;
        let commands = |s: Switch| export::ovs(tree, s);
        match self.format {
            ExportFormat::Containerlab if global.json => output::json(&Containerlab { tree, image: &self.image }),
            ExportFormat::Containerlab => {
                output::stream(|out| Containerlab { tree, image: &self.image }.write_yaml(out))
            }
            ExportFormat::Ovs if global.json => list(tree.switches().flat_map(commands)),
            ExportFormat::Ovs => tree.switches().take_while(|_| output::is_open()).for_each(|s| lines(&commands(s))),
            ExportFormat::Vlan => {
                let vlans = Vlans::new(tree).ok_or_else(|| {
                    let k = tree.k();
                    Failure::Input(format!(
                        "VLANs cannot name the {} cores of {k}-port switches: at most 4093",
                        tree.cores()
                    ))
                })?;
                match global.json {
                    true => list(tree.switches().flat_map(|s| vlans.of(s))),
                    false => {
                        output::print("switch,port,device,vids\n");
                        tree.switches().take_while(|_| output::is_open()).for_each(|s| lines(&csv(&vlans.of(s))));
                    }
                }
            }
        }
        Ok(())
    }
}

/// The ports as lines; several ranges of VLANs are a quoted field.
fn csv(ports: &[VlanPort]) -> Vec<String> {
    let of = |p: &VlanPort| {
        let quote = if p.vids.contains(',') { "\"" } else { "" };
        format!("{},{},{},{quote}{}{quote}", p.switch, p.port, p.device, p.vids)
    };
    ports.iter().map(of).collect()
}

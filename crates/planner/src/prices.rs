//! A price list: the price, power and heat of switches, as TOML.

use serde::Serialize;
use sluicenet_proto::units::Rate;
use sluicenet_scenario::formats::read_bounded;
use sluicenet_scenario::setting::{Kind, Section, Settings};
use sluicenet_scenario::tree::Document;
use sluicenet_scenario::units::LINK_RATE;
use sluicenet_scenario::{Error, Result, choices, settings};
use std::path::Path;

/// The size of the largest list.
const BYTES_MAX: u64 = 1 << 20;
/// The largest price, in dollars.
const DOLLARS_MAX: f64 = 1e12;
/// The most power of a switch.
const WATTS_MAX: f64 = 1e7;
/// The most ports of a switch.
const PORTS_MAX: u32 = 1 << 16;

choices! {
    /// The use of a model.
    pub enum Usage {
        /// Everywhere in a fat-tree.
        FatTree = "fat-tree",
        /// At the edge of a hierarchical tree.
        Edge = "edge",
        /// In its aggregation and core layers.
        Upper = "upper",
    }
}

settings! {
    /// a list of prices
    struct ListKeys in "" (s) {
        /// the year of the prices
        year: u32 [1900..=2200],
        /// the models: one for each place
        let switch as (Kind::Tables(&[ModelKeys::SPEC])),
    }
}

settings! {
    /// a model
    struct ModelKeys in "switch" (s) {
        /// the model
        name: String,
        /// everywhere in the fat-tree, at the edge of the hierarchical tree, or above that edge
        place: Usage,
        /// ports, without uplinks
        ports: u32 [2..=PORTS_MAX],
        /// the rate of a port, as "1 Gb/s"
        rate: Rate [LINK_RATE],
        /// edge: ports to the layers above
        uplinks: Option<u32> [1..=PORTS_MAX],
        /// edge: the rate of such a port
        uplink_rate: Option<Rate> [LINK_RATE],
        /// price of a switch, in dollars
        price: f64 [0.0..=DOLLARS_MAX],
        /// power of a switch; with it `heat_btu_h`
        watts: Option<f64> [0.0..=WATTS_MAX],
        /// heat of a switch, in BTU an hour; with it `watts`
        heat_btu_h: Option<f64> [0.0..=10.0 * WATTS_MAX],
    }
}

/// Power and heat.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Power {
    /// Watts.
    pub watts: f64,
    /// BTU an hour.
    pub heat_btu_h: f64,
}

/// A model of a switch.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// The model's name.
    pub name: String,
    /// Ports, without uplinks.
    pub ports: u32,
    /// The rate of each port.
    pub rate: Rate,
    /// The number and rate of an edge switch's uplinks.
    pub uplinks: Option<(u32, Rate)>,
    /// Price in dollars.
    pub price: f64,
    /// Power and heat, if the list has them.
    pub power: Option<Power>,
}

/// A list with a model for every use.
#[derive(Clone, Debug, PartialEq)]
pub struct Prices {
    /// The year of the prices.
    pub year: u32,
    /// The switch of fat-trees.
    pub fat_tree: Model,
    /// The edge switch of hierarchical trees.
    pub edge: Model,
    /// The switch above the edge of hierarchical trees.
    pub upper: Model,
}

impl Prices {
    /// Reads a list from a file.
    ///
    /// # Errors
    /// A file that cannot be read, or a missing or invalid setting with its line.
    pub fn load(path: &Path) -> Result<Prices> {
        let name = path.display().to_string();
        let bytes = read_bounded(path, &name, BYTES_MAX)?;
        let text =
            String::from_utf8(bytes).map_err(|e| Error::not_text(&name, e.as_bytes(), e.utf8_error().valid_up_to()))?;
        Prices::parse(&name, &text)
    }

    /// Reads a list from text; errors call it `name`.
    ///
    /// # Errors
    /// As [`Prices::load`].
    pub fn parse(name: &str, text: &str) -> Result<Prices> {
        let doc = Document::parse(name, text)?;
        let root = Section::root(&doc, ListKeys::SPEC)?;
        let ListKeys { year } = ListKeys::read(&root)?;
        let (mut fat_tree, mut edge, mut upper) = (None, None, None);
        for s in root.tables("switch")? {
            let keys = ModelKeys::read(&s)?;
            let slot = match keys.place {
                Usage::FatTree => &mut fat_tree,
                Usage::Edge => &mut edge,
                Usage::Upper => &mut upper,
            };
            if slot.replace(model(&s, keys)?).is_some() {
                return Err(s.error("place", "this place has a model already"));
            }
        }
        let of = |model: Option<Model>, place: &str| {
            model.ok_or_else(|| {
                root.error("switch", format!("there is no model with place = \"{place}\""))
                    .hint("one for each of fat-tree, edge and upper")
            })
        };
        let prices =
            Prices { year, fat_tree: of(fat_tree, "fat-tree")?, edge: of(edge, "edge")?, upper: of(upper, "upper")? };
        if prices.fat_tree.rate != prices.edge.rate {
            return Err(root
                .error("switch", "hosts of both trees have to have the same rate: that of `fat-tree` and of `edge`"));
        }
        if prices.edge.uplinks.map(|u| u.1) != Some(prices.upper.rate) {
            return Err(
                root.error("switch", "`uplink_rate` of `edge` and `rate` of `upper` are of the same links, and differ")
            );
        }
        Ok(prices)
    }
}

fn model(s: &Section<'_>, keys: ModelKeys) -> Result<Model> {
    let uplinks = match keys.place {
        Usage::Edge => {
            let count = keys.uplinks.ok_or_else(|| s.missing("uplinks"))?;
            Some((count, keys.uplink_rate.ok_or_else(|| s.missing("uplink_rate"))?))
        }
        Usage::FatTree | Usage::Upper => {
            if let Some(name) = ["uplinks", "uplink_rate"].into_iter().find(|n| s.has(n)) {
                return Err(s.error(name, format!("`{name}` is an edge switch's")));
            }
            None
        }
    };
    let power = match (keys.watts, keys.heat_btu_h) {
        (Some(watts), Some(heat_btu_h)) => Some(Power { watts, heat_btu_h }),
        (None, None) => None,
        (Some(_), None) => return Err(s.missing("heat_btu_h")),
        (None, Some(_)) => return Err(s.missing("watts")),
    };
    let ModelKeys { name, ports, rate, price, .. } = keys;
    Ok(Model { name, ports, rate, uplinks, price, power })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = r#"
year = 2008
[[switch]]
name = "A"
place = "fat-tree"
ports = 48
rate = "1 Gb/s"
price = 3000
[[switch]]
name = "B"
place = "edge"
ports = 48
rate = "1 Gb/s"
uplinks = 4
uplink_rate = "10 Gb/s"
price = 20000
[[switch]]
name = "C"
place = "upper"
ports = 128
rate = "10 Gb/s"
price = 600000
"#;

    #[test]
    fn a_list_with_holes_is_refused_with_the_line() {
        let p = Prices::parse("p.toml", LIST).unwrap();
        assert_eq!(
            (p.year, p.fat_tree.price, p.edge.uplinks, p.upper.ports),
            (2008, 3e3, Some((4, Rate::gbps(10))), 128)
        );
        for (what, with, line, message) in [
            ("price = 3000\n", "", 3, "`price` is missing in `A`"),
            ("price = 20000\n", "price = -1\n", 16, "out of range"),
            ("price = 20000\n", "price = nan\n", 16, "out of range"),
            ("ports = 128\n", "ports = 0\n", 20, "out of range"),
            ("uplinks = 4\n", "", 9, "`uplinks` is missing"),
            ("place = \"upper\"\n", "", 17, "`place` is missing"),
            (
                "place = \"upper\"\n",
                "place = \"edge\"\nuplinks = 1\nuplink_rate = \"1 Gb/s\"\n",
                19,
                "has a model already",
            ),
            ("price = 600000\n", "price = 600000\nwatts = 5\n", 17, "`heat_btu_h` is missing"),
            ("price = 600000\n", "price = 600000\nprise = 5\n", 23, "unknown key `prise`"),
            ("ports = 128\nrate = \"10 Gb/s\"", "ports = 128\nrate = \"10\"", 21, "needs a unit"),
            ("year = 2008\n", "", 1, "`year` is missing"),
        ] {
            let text = LIST.replacen(what, with, 1);
            assert_ne!(text, LIST, "{what}");
            let e = Prices::parse("p.toml", &text).unwrap_err();
            let d = e.diagnostic();
            assert!(d.message.contains(message) && (d.line, d.file.as_str()) == (line, "p.toml"), "{what}: {e}");
        }
        let two = LIST.split("[[switch]]\nname = \"C\"").next().unwrap();
        assert!(Prices::parse("p.toml", two).unwrap_err().to_string().contains("place = \"upper\""));
        let slow = LIST.replace("uplink_rate = \"10 Gb/s\"", "uplink_rate = \"40 Gb/s\"");
        assert!(Prices::parse("p.toml", &slow).unwrap_err().to_string().contains("differ"));
    }
}

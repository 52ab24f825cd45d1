//! Results: of an ADD, of a delegated plugin, and the previous one of a chain.

use super::error::{DECODE, Error};
use super::version::Version;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sluicenet_vswitchd::attach::Prefix;
use std::net::IpAddr;

/// What an attachment consists of. Results of all versions are read; a version's own form is written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcome {
    /// The devices.
    pub interfaces: Vec<Interface>,
    /// Their addresses.
    pub ips: Vec<Ip>,
    /// The routes of the container.
    pub routes: Vec<Route>,
    /// Its name servers.
    pub dns: Dns,
}

/// A device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// The longest payload of its frames; since 1.1.0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The path of its namespace; empty for the host's.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sandbox: String,
    /// A socket of the device; since 1.1.0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket_path: Option<String>,
    /// A PCI device; since 1.1.0.
    #[serde(rename = "pciID", skip_serializing_if = "Option::is_none")]
    pub pci_id: Option<String>,
}

/// An address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ip {
    /// The number of its device among the interfaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<usize>,
    /// The address and the bits of its network.
    #[serde(with = "text")]
    pub address: Prefix,
    /// The router of this network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Its destinations.
    #[serde(with = "text")]
    pub dst: Prefix,
    /// The next hop; without one, a gateway of the addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gw: Option<IpAddr>,
    /// The MTU of the path; since 1.1.0, as all that follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The largest TCP segment to announce.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advmss: Option<u32>,
    /// Its priority; the lowest one counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// Its table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    /// How far its destinations are: 0 anywhere, 253 on the link, 254 the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<u8>,
}

/// Name servers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dns {
    /// Their addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    /// The local domain.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Domains to search.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    /// Options of the resolver.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

/// Values that are written as text.
mod text {
    use serde::{Deserialize, Deserializer, Serializer};
    use std::fmt::Display;
    use std::str::FromStr;

    pub fn serialize<T: Display, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Outcome {
    /// Reads the result of another plugin, of any version. `whose` is for the error.
    pub fn read(value: Value, whose: &str) -> Result<Outcome, Error> {
        let wrong = |why: String| Error::new(DECODE, "invalid result", format!("{whose}: {why}"));
        let Value::Object(map) = value else { return Err(wrong("this is no JSON object".into())) };
        // Go writes an empty list as null.
        let map = map.into_iter().filter(|(_, value)| !value.is_null()).collect();
        serde_json::from_value(Value::Object(map)).map_err(|e| wrong(e.to_string()))
    }

    /// The result in the form of a version.
    pub fn json(&self, version: Version) -> Value {
        let mut value = serde_json::to_value(self).expect("a result has no keys but texts");
        let mut list = |name: &str, change: &dyn Fn(&mut Map<String, Value>)| {
            let items = value[name].as_array_mut().into_iter().flatten();
            items.filter_map(Value::as_object_mut).for_each(change);
        };
        if version < Version::V110 {
            list("interfaces", &|it| ["mtu", "socketPath", "pciID"].iter().for_each(|key| drop(it.remove(*key))));
            let attributes = ["mtu", "advmss", "priority", "table", "scope"];
            list("routes", &|it| attributes.iter().for_each(|key| drop(it.remove(*key))));
        }
        if version < Version::V100 {
            list("ips", &|it| {
                let v6 = it["address"].as_str().is_some_and(|address| address.contains(':'));
                it.insert("version".into(), if v6 { "6" } else { "4" }.into());
            });
        }
        if let Some(map) = value.as_object_mut() {
            map.retain(|_, value| value.as_array().is_none_or(|list| !list.is_empty()));
            map.insert("cniVersion".into(), version.name().into());
        }
        value
    }

    /// Adds the parts of a further attachment.
    pub fn add(&mut self, more: Outcome) {
        let before = self.interfaces.len();
        self.interfaces.extend(more.interfaces);
        let moved = |ip: Ip| Ip { interface: ip.interface.map(|number| number + before), ..ip };
        self.ips.extend(more.ips.into_iter().map(moved));
        self.routes.extend(more.routes);
        if more.dns != Dns::default() {
            self.dns = more.dns;
        }
    }

    /// The number and the entry of a container's device.
    pub fn interface(&self, name: &str, sandbox: &str) -> Option<(usize, &Interface)> {
        self.interfaces.iter().enumerate().find(|(_, it)| it.name == name && it.sandbox == sandbox)
    }

    /// The next hop of a route: its own, or the first gateway of its family. `None` if its destinations are on the link.
    pub fn next_hop(&self, route: &Route) -> Option<IpAddr> {
        let gateways = self.ips.iter().filter_map(|ip| ip.gateway);
        let same_family = |gateway: &IpAddr| gateway.is_ipv4() == route.dst.address.is_ipv4();
        route.gw.or_else(|| gateways.into_iter().find(same_family))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A result with everything in it.
    fn full() -> Value {
        json!({
            "cniVersion": "1.1.0",
            "interfaces": [
                {"name": "web-1", "mac": "02:00:00:00:00:01", "mtu": 1450, "sandbox": "/run/netns/sluicenet"},
                {"name": "eth0", "mac": "02:00:00:00:00:02", "mtu": 1450, "sandbox": "/run/netns/a",
                 "socketPath": "/run/a.sock", "pciID": "0000:00:1f.6"},
            ],
            "ips": [
                {"address": "10.1.0.5/16", "gateway": "10.1.0.1", "interface": 1},
                {"address": "fd00::5/64", "interface": 1},
            ],
            "routes": [
                {"dst": "0.0.0.0/0"},
                {"dst": "10.9.0.0/16", "gw": "10.1.0.9", "mtu": 1400, "advmss": 1360, "priority": 7, "table": 100, "scope": 253},
            ],
            "dns": {"nameservers": ["10.1.0.1"], "domain": "a.b", "search": ["a.b", "b"], "options": ["ndots:5"]},
        })
    }

    #[test]
    fn each_version_has_its_form() {
        let outcome = Outcome::read(full(), "a result").unwrap();
        assert_eq!(outcome.json(Version::V110), full());
        let v100 = json!({
            "cniVersion": "1.0.0",
            "interfaces": [
                {"name": "web-1", "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/sluicenet"},
                {"name": "eth0", "mac": "02:00:00:00:00:02", "sandbox": "/run/netns/a"},
            ],
            "ips": [
                {"address": "10.1.0.5/16", "gateway": "10.1.0.1", "interface": 1},
                {"address": "fd00::5/64", "interface": 1},
            ],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.9.0.0/16", "gw": "10.1.0.9"}],
            "dns": {"nameservers": ["10.1.0.1"], "domain": "a.b", "search": ["a.b", "b"], "options": ["ndots:5"]},
        });
        assert_eq!(outcome.json(Version::V100), v100);
        let mut v040 = v100;
        v040["cniVersion"] = "0.4.0".into();
        v040["ips"][0]["version"] = "4".into();
        v040["ips"][1]["version"] = "6".into();
        assert_eq!(outcome.json(Version::V040), v040);
        // Each form is read again, without what it cannot say.
        let read = Outcome::read(v040, "a result").unwrap();
        assert_eq!((read.ips, read.dns), (outcome.ips, outcome.dns));
        assert_eq!(Outcome::default().json(Version::V100), json!({"cniVersion": "1.0.0", "dns": {}}));
    }

    #[test]
    fn results_of_other_plugins_are_read_or_refused() {
        // As host-local of Debian's package prints it.
        let host_local = json!({
            "cniVersion": "0.4.0",
            "ips": [{"version": "4", "address": "10.1.0.2/24", "gateway": "10.1.0.1"}],
            "routes": null,
            "dns": {},
        });
        let outcome = Outcome::read(host_local, "ipam").unwrap();
        assert_eq!((outcome.ips.len(), outcome.ips[0].interface), (1, None));
        for (wrong, words) in [
            (json!({"ips": [{"address": "10.1.0.2"}]}), "10.1.0.2: the bits of the network are missing"),
            (json!({"ips": [{}]}), "missing field `address`"),
            (json!({"ips": [{"address": "10.1.0.2/24", "interface": -1}]}), "invalid value"),
            (json!({"routes": [{"dst": "0.0.0.0/0", "gw": "x"}]}), "invalid IP address"),
            (json!([]), "this is no JSON object"),
            (json!("x"), "this is no JSON object"),
        ] {
            let error = Outcome::read(wrong, "ipam").unwrap_err();
            assert!(error.code == DECODE && error.details.contains(words), "{error:?}");
        }
    }

    #[test]
    fn a_further_attachment_keeps_its_numbers() {
        let mut outcome = Outcome::read(full(), "a result").unwrap();
        let mut more = outcome.clone();
        more.dns = Dns::default();
        outcome.add(more);
        assert_eq!(outcome.ips.iter().map(|ip| ip.interface.unwrap()).collect::<Vec<_>>(), [1, 1, 3, 3]);
        assert_eq!((outcome.interfaces.len(), outcome.routes.len()), (4, 4));
        assert_eq!(outcome.dns.domain, "a.b");
    }

    #[test]
    fn a_route_without_a_next_hop_goes_to_the_gateway_of_its_family() {
        let outcome = Outcome::read(full(), "a result").unwrap();
        let hop = |dst: &str| {
            let route: Route = serde_json::from_value(json!({ "dst": dst })).unwrap();
            outcome.next_hop(&route)
        };
        assert_eq!(hop("0.0.0.0/0"), Some([10, 1, 0, 1].into()));
        assert_eq!(hop("::/0"), None);
        assert_eq!(outcome.next_hop(&outcome.routes[1]), Some([10, 1, 0, 9].into()));
    }
}

//! The configuration of a call, from standard input.

use super::environment::is_identifier;
use super::error::{DECODE, Error, INVALID_CONFIG, UNSUPPORTED_FIELD};
use super::ipam::is_plugin;
use super::outcome::{Dns, Outcome};
use super::version::Version;
use serde_json::{Map, Value};
use sluicenet_scenario::units::closest;
use sluicenet_vswitchd::attach::port_keys;
use sluicenet_vswitchd::config::port_from_words;
use std::ops::RangeInclusive;

/// Limits of a device's MTU.
const MTU: RangeInclusive<u64> = 68..=65_535;

/// Keys of the specification that say nothing to this plugin, or that are read elsewhere.
const COMMON: [&str; 12] = [
    "cniVersion",
    "cniVersions",
    "name",
    "type",
    "plugins",
    "capabilities",
    "runtimeConfig",
    "args",
    "prevResult",
    "disableCheck",
    "disableGC",
    "loadOnlyInlinedPlugins",
];
/// Keys of the specification that this plugin reads, and its own ones. Those of a port follow.
const OWN: [&str; 6] = ["ipam", "dns", "ipMasq", "switch", "mtu", "unlocked"];
/// Capabilities that a plugin of `ipam` reads.
const OF_IPAM: [&str; 3] = ["ips", "ipRanges", "cgroupPath"];

/// The part of a configuration that every command needs. An attachment is undone with it, even if the rest is invalid.
#[derive(Clone, Debug)]
pub struct Network {
    /// The version of the specification.
    pub version: Version,
    /// The network's name.
    pub name: String,
    /// The switch, by its name or the path of its control socket; default the only one that runs.
    pub switch: Option<String>,
    /// The plugin that manages addresses.
    pub ipam: Option<String>,
    /// All of it.
    object: Map<String, Value>,
}

/// What an attachment needs.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The MTU of the container's device; default that of the switch.
    pub mtu: Option<u32>,
    /// Whether the container may send from other addresses than its own.
    pub unlocked: bool,
    /// Settings of the port, `key=value`.
    pub settings: Vec<String>,
    /// The address of the container's device, as text.
    pub mac: Option<String>,
    /// Name servers, which replace those of the plugin that manages addresses.
    pub dns: Dns,
    /// The result of the plugin before this one, or of the ADD.
    pub previous: Option<Outcome>,
}

/// An attachment, as a runtime names it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Attachment {
    /// The container.
    #[serde(rename = "containerID")]
    pub container: String,
    /// The name of the device in it.
    pub ifname: String,
}

/// Reads a text that is one JSON object.
pub fn object(text: &[u8]) -> Result<Map<String, Value>, Error> {
    let wrong = |why: String| Error::new(DECODE, "invalid network configuration", format!("standard input: {why}"));
    match serde_json::from_slice(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(wrong("this is no JSON object".into())),
        Err(_) if text.is_empty() => Err(wrong("it is empty; expected: a network configuration in JSON".into())),
        Err(e) => Err(wrong(format!("this is no JSON: {e}"))),
    }
}

impl Network {
    /// Reads the common part of a configuration.
    pub fn read(version: Version, object: Map<String, Value>) -> Result<Network, Error> {
        let name = match object.get("name") {
            Some(Value::String(name)) if is_identifier(name) => name.clone(),
            Some(other) => {
                let why =
                    format!("{other} is no name; expected: letters, digits, and after the first `_`, `.` and `-`");
                return Err(Error::key("name", why));
            }
            None => return Err(Error::key("name", "it is missing")),
        };
        let text =
            |value: Option<&Value>| value.and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned);
        let switch = text(object.get("switch"));
        let ipam = text(object.get("ipam").and_then(|ipam| ipam.get("type"))).filter(|kind| is_plugin(kind));
        Ok(Network { version, name, switch, ipam, object })
    }

    /// Reads what an attachment needs, and refuses what this plugin does not know.
    pub fn config(&self) -> Result<Config, Error> {
        let mut config = Config::default();
        let keys = port_keys();
        let mut of_port = Vec::new();
        for (key, value) in &self.object {
            match key.as_str() {
                "switch" if self.switch.is_none() => {
                    return Err(Error::key(
                        key,
                        format!("{value} is no switch; expected: its name, or the path of its control socket"),
                    ));
                }
                "ipam" if self.ipam.is_none() && value.as_object().is_none_or(|ipam| !ipam.is_empty()) => {
                    return Err(Error::key(key, format!("{value}: `type` is missing, or is no name of a plugin")));
                }
                "mtu" => {
                    let fits = value.as_u64().filter(|mtu| MTU.contains(mtu)).and_then(|mtu| u32::try_from(mtu).ok());
                    let wrong = || format!("{value} is no MTU; expected: {} to {}", MTU.start(), MTU.end());
                    config.mtu = Some(fits.ok_or_else(|| Error::key(key, wrong()))?);
                }
                "unlocked" => {
                    let wrong = || Error::key(key, format!("{value}; expected: true or false"));
                    config.unlocked = value.as_bool().ok_or_else(wrong)?;
                }
                "ipMasq" if *value == Value::Bool(false) => {}
                "ipMasq" => return Err(unsupported(key, value, "this plugin translates no addresses")),
                "dns" => config.dns = dns(key, value)?,
                "runtimeConfig" => self.runtime(value, &mut config, &mut of_port)?,
                "args" => {
                    let mac = value.pointer("/cni/mac").and_then(Value::as_str);
                    config.mac = config.mac.or(mac.map(str::to_owned));
                }
                "prevResult" => config.previous = Some(Outcome::read(value.clone(), "key \"prevResult\"")?),
                "switch" | "ipam" => {}
                key if COMMON.contains(&key) || key.starts_with("cni.dev/") => {}
                key if keys.contains(&key) => of_port.push((key.to_owned(), value.clone())),
                key => {
                    let near = closest(key, OWN.iter().chain(&keys).copied());
                    let why = match near {
                        Some(near) => format!("this plugin has no such key; did you mean {near:?}?"),
                        None => format!(
                            "this plugin has no such key; its own are {}",
                            [&OWN[3..], &keys[..]].concat().join(", ")
                        ),
                    };
                    return Err(unsupported(key, value, &why));
                }
            }
        }
        for (key, value) in of_port {
            let word = format!("{key}={value}");
            let port = ["kind=veth", "tenant_netns=any"].map(str::to_owned).into_iter().chain([word.clone()]);
            port_from_words("any", &port.collect::<Vec<_>>()).map_err(|e| Error::key(&key, e.sentence()))?;
            config.settings.push(word);
        }
        Ok(config)
    }

    /// Reads what the runtime adds for an attachment.
    fn runtime(&self, value: &Value, config: &mut Config, of_port: &mut Vec<(String, Value)>) -> Result<(), Error> {
        for (key, value) in value.as_object().into_iter().flatten() {
            let path = format!("runtimeConfig.{key}");
            let empty = match value {
                Value::Null => true,
                Value::Array(list) => list.is_empty(),
                Value::Object(object) => object.is_empty(),
                Value::String(text) => text.is_empty(),
                _ => false,
            };
            match key.as_str() {
                _ if empty => {}
                "mac" => {
                    let wrong = || Error::key(&path, format!("{value} is no MAC address"));
                    config.mac = Some(value.as_str().ok_or_else(wrong)?.to_owned());
                }
                "dns" => {
                    // The capability has its own names for two of the lists.
                    let mut value = value.clone();
                    for (from, to) in [("servers", "nameservers"), ("searches", "search")] {
                        if let Some(list) = value.as_object_mut().and_then(|dns| dns.remove(from)) {
                            value[to] = list;
                        }
                    }
                    config.dns = dns(&path, &value)?;
                }
                "bandwidth" => {
                    for (key, value) in value.as_object().into_iter().flatten() {
                        let path = format!("{path}.{key}");
                        match (key.as_str(), value.as_u64()) {
                            (_, Some(0)) | ("ingressBurst" | "egressBurst", Some(_)) => {}
                            ("ingressRate", Some(rate)) => of_port.push(("rate".into(), format!("{rate} b/s").into())),
                            ("egressRate", Some(_)) => {
                                return Err(unsupported(
                                    &path,
                                    value,
                                    "a port limits only the frames that its container receives",
                                ));
                            }
                            _ => return Err(unsupported(&path, value, "this is no bandwidth")),
                        }
                    }
                }
                "portMappings" => {
                    let why = "this plugin publishes no ports of the host; add the plugin portmap, with this capability, after it";
                    return Err(unsupported(&path, value, why));
                }
                key if OF_IPAM.contains(&key) && self.ipam.is_some() => {}
                key if OF_IPAM.contains(&key) => {
                    return Err(unsupported(&path, value, "there is no `ipam` to read it"));
                }
                _ => return Err(unsupported(&path, value, "this plugin has no such capability")),
            }
        }
        Ok(())
    }

    /// The attachments that GC leaves. Without the list nothing is collected.
    pub fn valid(&self) -> Result<Vec<Attachment>, Error> {
        // Runtimes with the library of CNI 1.2 use the second name.
        const KEY: &str = "cni.dev/valid-attachments";
        let value = self.object.get(KEY).or_else(|| self.object.get("cni.dev/attachments"));
        match value {
            None => Err(Error::key(KEY, "it is missing, and without it nothing is collected")),
            Some(Value::Null) => Ok(Vec::new()),
            Some(value) => serde_json::from_value(value.clone()).map_err(|e| Error::key(KEY, e)),
        }
    }
}

fn dns(key: &str, value: &Value) -> Result<Dns, Error> {
    serde_json::from_value(value.clone())
        .map_err(|e| Error::new(INVALID_CONFIG, "invalid network configuration", format!("key {key:?}: {e}")))
}

fn unsupported(key: &str, value: &Value, why: &str) -> Error {
    Error::new(
        UNSUPPORTED_FIELD,
        "unsupported field in the network configuration",
        format!("key {key:?}, value {value}: {why}"),
    )
}

#[cfg(test)]
mod tests {
    use super::super::error::ALL;
    use super::*;
    use serde_json::json;

    /// A configuration with further keys.
    fn network(more: Value) -> Network {
        let mut object = json!({
            "cniVersion": "1.0.0", "name": "net", "type": "sluicenet-cni", "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"},
        });
        object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let Value::Object(object) = object else { unreachable!() };
        Network::read(Version::V100, object).unwrap()
    }

    fn config(more: Value) -> Result<Config, Error> {
        network(more).config()
    }

    #[test]
    fn keys_are_read() {
        let all = json!({
            "switch": "vs", "mtu": 1450, "tenant": 7, "priority": 3, "rate": "1 Gb/s", "offload": false, "unlocked": true,
            "dns": {"nameservers": ["10.1.0.1"], "domain": "a.b"},
            "runtimeConfig": {"mac": "02:00:00:00:00:01", "ips": ["10.1.0.9/24"], "portMappings": []},
            "args": {"cni": {"mac": "02:00:00:00:00:02", "labels": [{"key": "a", "value": "b"}]}},
            "capabilities": {"mac": true}, "disableCheck": false, "disableGC": true, "ipMasq": false,
            "cniVersions": ["1.0.0"], "cni.dev/valid-attachments": [], "cni.dev/other": 1,
        });
        let network = network(all);
        assert_eq!((network.switch.as_deref(), network.ipam.as_deref()), (Some("vs"), Some("host-local")));
        let config = network.config().unwrap();
        assert_eq!((config.mtu, config.unlocked, config.mac.as_deref()), (Some(1450), true, Some("02:00:00:00:00:01")));
        let mut settings = config.settings;
        settings.sort();
        assert_eq!(settings, ["offload=false", "priority=3", r#"rate="1 Gb/s""#, "tenant=7"]);
        assert_eq!(config.dns.nameservers, ["10.1.0.1"]);
    }

    #[test]
    fn capabilities_are_read() {
        let runtime = |runtime: Value| config(json!({ "runtimeConfig": runtime }));
        let limited =
            runtime(json!({"bandwidth": {"ingressRate": 1_000_000, "ingressBurst": 8000, "egressRate": 0}})).unwrap();
        assert_eq!(limited.settings, [r#"rate="1000000 b/s""#]);
        let dns =
            runtime(json!({"dns": {"servers": ["10.0.0.10"], "searches": ["a"], "options": ["ndots:5"]}})).unwrap().dns;
        assert_eq!(
            (dns.nameservers, dns.search, dns.options),
            (vec!["10.0.0.10".into()], vec!["a".into()], vec!["ndots:5".into()])
        );
        for (wrong, words) in [
            (
                json!({"portMappings": [{"hostPort": 80}]}),
                r#"key "runtimeConfig.portMappings", value [{"hostPort":80}]"#,
            ),
            (json!({"portMappings": [{"hostPort": 80}]}), "add the plugin portmap"),
            (json!({"bandwidth": {"egressRate": 5}}), r#"key "runtimeConfig.bandwidth.egressRate", value 5"#),
            (json!({"deviceID": "0000:04:00.5"}), r#"key "runtimeConfig.deviceID", value "0000:04:00.5""#),
        ] {
            let error = runtime(wrong).unwrap_err();
            assert!(error.code == UNSUPPORTED_FIELD && error.details.contains(words), "{error:?}");
        }
    }

    #[test]
    fn what_is_unknown_or_wrong_is_named() {
        for (wrong, code, words) in [
            (
                json!({"swich": "vs"}),
                UNSUPPORTED_FIELD,
                r#"key "swich", value "vs": this plugin has no such key; did you mean "switch"?"#,
            ),
            (json!({"bridge": "cni0"}), UNSUPPORTED_FIELD, r#"key "bridge", value "cni0""#),
            (json!({"socket": "x"}), UNSUPPORTED_FIELD, r#"key "socket", value "x""#),
            (json!({"tenant_netns": "x"}), UNSUPPORTED_FIELD, r#"key "tenant_netns", value "x""#),
            (json!({"ipMasq": true}), UNSUPPORTED_FIELD, r#"key "ipMasq", value true"#),
            (json!({"switch": 3}), INVALID_CONFIG, r#"key "switch": 3 is no switch"#),
            (json!({"mtu": 67}), INVALID_CONFIG, r#"key "mtu": 67 is no MTU; expected: 68 to 65535"#),
            (json!({"mtu": "1500"}), INVALID_CONFIG, r#"key "mtu": "1500" is no MTU"#),
            (json!({"unlocked": "yes"}), INVALID_CONFIG, r#"key "unlocked": "yes"; expected: true or false"#),
            (json!({"rate": "fast"}), INVALID_CONFIG, r#"key "rate": "#),
            (json!({"tenant": 4096}), INVALID_CONFIG, r#"key "tenant": "#),
            (json!({"tenant": {"a": 1}}), INVALID_CONFIG, r#"key "tenant": "#),
            (json!({"priority": null}), INVALID_CONFIG, r#"key "priority": "#),
            (json!({"ipam": {"subnet": "10.1.0.0/24"}}), INVALID_CONFIG, r#"key "ipam": "#),
            (json!({"ipam": {"type": "../host-local"}}), INVALID_CONFIG, r#"key "ipam": "#),
            (json!({"dns": {"nameservers": "10.1.0.1"}}), INVALID_CONFIG, r#"key "dns": "#),
            (json!({"prevResult": {"ips": 3}}), DECODE, r#"key "prevResult": "#),
        ] {
            let error = config(wrong).unwrap_err();
            assert!(error.code == code && error.details.contains(words), "{words}: {error:?}");
        }
        assert!(config(json!({"ipam": {}})).is_ok(), "no addresses");
    }

    #[test]
    fn what_is_no_configuration_is_refused() {
        for (text, code, words) in [
            ("", DECODE, "it is empty"),
            ("{", DECODE, "this is no JSON: "),
            ("[]", DECODE, "this is no JSON object"),
            (r#"{"name": "../x"}"#, INVALID_CONFIG, r#"key "name": "../x" is no name"#),
            (r#"{"name": 3}"#, INVALID_CONFIG, r#"key "name": 3 is no name"#),
            ("{}", INVALID_CONFIG, r#"key "name": it is missing"#),
        ] {
            let error = object(text.as_bytes()).and_then(|object| Network::read(Version::V100, object)).unwrap_err();
            assert!(error.code == code && error.details.contains(words), "{text}: {error:?}");
        }
    }

    #[test]
    fn a_list_of_valid_attachments_is_needed_for_gc() {
        let one = json!([{"containerID": "a", "ifname": "eth0"}]);
        let valid = |more: Value| network(more).valid();
        let expected = [Attachment { container: "a".into(), ifname: "eth0".into() }];
        assert_eq!(valid(json!({"cni.dev/valid-attachments": one})).unwrap(), expected);
        assert_eq!(valid(json!({"cni.dev/attachments": one})).unwrap(), expected);
        assert_eq!(valid(json!({"cni.dev/valid-attachments": null})).unwrap(), []);
        for wrong in [json!({}), json!({"cni.dev/valid-attachments": [{"ifname": "eth0"}]})] {
            assert_eq!(valid(wrong).unwrap_err().code, INVALID_CONFIG);
        }
    }

    #[test]
    fn the_guide_lists_own_keys_and_all_errors() {
        let guide = std::fs::read_to_string(sluicenet_testkit::repository("docs/cni.md")).unwrap();
        for key in &OWN[3..] {
            assert!(guide.contains(&format!("\n| `{key}` |")), "the key {key}");
        }
        for code in ALL {
            assert!(guide.contains(&format!("\n| {code} |")), "the error {code}");
        }
    }
}

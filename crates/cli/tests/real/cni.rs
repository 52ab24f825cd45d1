//! The CNI plugin between a runtime, which is the test, and a switch: containers come and go, and nothing of them stays.

use crate::attach::{Empty, reaches};
use crate::built;
use serde_json::{Value, json};
use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_testkit::netns::{missing, system};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Where Debian's package has its plugins.
const PLUGINS: &str = "/usr/lib/cni";

/// The reason to skip a test that needs the plugin host-local.
fn lacks() -> Option<String> {
    let file = format!("{PLUGINS}/host-local");
    let there = Path::new(&file).exists();
    missing().or_else(|| (!there).then(|| format!("{file} is missing (apt-get install containernetworking-plugins)")))
}

/// A switch, and a network of containers at it.
struct Net {
    switch: Empty,
    name: String,
    config: Value,
}

impl Net {
    fn new(test: &str, version: &str) -> Net {
        Net::at(Empty::new(&format!("cni{test}")), version)
    }

    fn at(switch: Empty, version: &str) -> Net {
        let name = format!("sluice-{}", switch.name);
        let config = json!({
            "cniVersion": version,
            "name": name,
            "type": "sluicenet-cni",
            "switch": switch.control(),
            "ipam": {
                "type": "host-local",
                "dataDir": switch.dir.path("addresses"),
                "ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00::/64"}]],
                "routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.9.0.0/16", "gw": "10.1.0.9"}],
            },
            "dns": {"nameservers": ["10.1.0.1"]},
        });
        Net { switch, name, config }
    }

    /// A container's namespace, deleted with this value.
    fn container(&mut self, n: usize) -> String {
        let name = self.switch.namespace(n);
        system(&format!("ip netns add {name}")).unwrap();
        name
    }

    fn with(&self, more: Value) -> Value {
        let mut config = self.config.clone();
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        config
    }

    /// A plugin of `ipam` in shell, in a folder of its own; the folder.
    fn fake(&self, text: &str) -> String {
        let folder = self.switch.dir.0.join("plugins");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("fake"), format!("#!/bin/sh\ncat >/dev/null\n{text}\n")).unwrap();
        std::fs::set_permissions(folder.join("fake"), std::fs::Permissions::from_mode(0o755)).unwrap();
        folder.display().to_string()
    }

    fn is_clean(&self) {
        self.switch.is_clean();
        assert_eq!(self.reserved(), Vec::<String>::new(), "addresses");
    }

    /// Addresses that host-local has given away.
    fn reserved(&self) -> Vec<String> {
        let folder = self.switch.dir.0.join("addresses").join(&self.name);
        let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let names = names.map(|entry| entry.file_name().into_string().unwrap());
        names.filter(|name| !name.starts_with("last_reserved_ip") && name != "lock").collect()
    }
}

/// Starts the plugin as a runtime does.
fn start(command: &str, netns: &str, config: &Value, more: &[(&str, &str)]) -> Child {
    let mut plugin = Command::new(built("sluicenet-cni", "sluicenet-cni", "SLUICENET_CNI"));
    let path = if netns.is_empty() { String::new() } else { format!("/run/netns/{netns}") };
    plugin.env("CNI_COMMAND", command).env("CNI_CONTAINERID", netns).env("CNI_NETNS", path).env("CNI_IFNAME", "eth0");
    plugin.env("CNI_PATH", PLUGINS).envs(more.iter().copied());
    let mut child = plugin.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // A plugin that refuses its environment ends before it reads its configuration.
    let _ = child.stdin.take().unwrap().write_all(config.to_string().as_bytes());
    child
}

/// Its result, or its error.
fn finish(child: Child) -> Result<Value, Value> {
    let out = child.wait_with_output().unwrap();
    let value = || serde_json::from_slice(&out.stdout).unwrap_or(Value::Null);
    if out.status.success() { Ok(value()) } else { Err(value()) }
}

fn call(command: &str, netns: &str, config: &Value) -> Result<Value, Value> {
    finish(start(command, netns, config, &[]))
}

#[track_caller]
fn refused(outcome: Result<Value, Value>, code: u32, words: &str) {
    let error = outcome.unwrap_err();
    assert!(error["code"] == code && error["details"].as_str().unwrap_or_default().contains(words), "{error:#}");
}

#[test]
fn a_container_is_attached_checked_and_detached() {
    if let Some(what) = lacks() {
        return println!("skipped: {what}");
    }
    for version in ["0.4.0", "1.0.0"] {
        let mut net = Net::new("one", version);
        let [a, b] = [1, 2].map(|n| net.container(n));
        let result = call("ADD", &a, &net.config).unwrap();
        assert_eq!(result["cniVersion"], version);
        assert_eq!(result["interfaces"][0]["name"], "eth0");
        assert_eq!(result["interfaces"][0]["sandbox"], format!("/run/netns/{a}"));
        assert_eq!(result["ips"][0]["address"], "10.1.0.2/16");
        assert_eq!(result["ips"][1]["address"], "fd00::2/64");
        assert_eq!(result["ips"][0]["interface"], 0);
        assert_eq!(result["ips"][0].get("version").is_some(), version == "0.4.0", "{result:#}");
        assert_eq!(result["dns"], json!({"nameservers": ["10.1.0.1"]}));
        call("ADD", &b, &net.config).unwrap();
        reaches(&a, &b, "10.1.0.3");
        reaches(&b, &a, "[fd00::2]");
        // A second ADD without DEL takes nothing away from the first one.
        refused(call("ADD", &a, &net.config), 101, "DEL comes first");
        let check = || call("CHECK", &a, &net.with(json!({ "prevResult": result })));
        assert_eq!(check(), Ok(Value::Null));
        refused(call("CHECK", &a, &net.config), 7, "prevResult");
        // What CHECK finds, and what is repaired.
        for (breaks, words, repairs) in [
            (
                "addr del 10.1.0.2/16 dev eth0",
                "no address 10.1.0.2/16",
                &[
                    "addr add 10.1.0.2/16 dev eth0",
                    "route add default via 10.1.0.1",
                    "route add 10.9.0.0/16 via 10.1.0.9",
                ][..],
            ),
            ("route del default", "no route to 0.0.0.0/0 through 10.1.0.1", &["route add default via 10.1.0.1"]),
            (
                "link set eth0 address 02:00:00:00:00:77",
                "02:00:00:00:00:77",
                &[&format!("link set eth0 address {}", result["interfaces"][0]["mac"].as_str().unwrap())],
            ),
            ("link set eth0 name other", "no device eth0", &["link set other name eth0"]),
            (
                "link set eth0 down",
                "is down",
                &[
                    "link set eth0 up",
                    "-6 addr add fd00::2/64 dev eth0",
                    "route add default via 10.1.0.1",
                    "route add 10.9.0.0/16 via 10.1.0.9",
                ],
            ),
        ] {
            system(&format!("ip -n {a} {breaks}")).unwrap();
            refused(check(), 103, words);
            for repair in repairs {
                // Some of it may have come back by itself.
                let _ = system(&format!("ip -n {a} {repair}"));
            }
            assert_eq!(check(), Ok(Value::Null), "{breaks}");
        }
        net.switch.done(&format!("detach {}", net.switch.ports()[0]));
        refused(check(), 103, "no attachment of this container is recorded");
        for _ in 0..2 {
            assert_eq!(call("DEL", &a, &net.config), Ok(Value::Null));
        }
        // The container has ended, and its runtime knows no namespace.
        Namespace::delete(&b).unwrap();
        assert_eq!(finish(start("DEL", &b, &net.config, &[("CNI_NETNS", "")])), Ok(Value::Null));
        net.is_clean();
        assert_eq!(call("DEL", &b, &net.config), Ok(Value::Null));
    }
}

#[test]
fn settings_and_arguments_reach_the_device_and_the_port() {
    if let Some(what) = lacks() {
        return println!("skipped: {what}");
    }
    let mut net = Net::new("set", "1.0.0");
    let a = net.container(1);
    let config = net.with(json!({
        "mtu": 1400, "tenant": 7, "rate": "1 Gb/s",
        "runtimeConfig": {"mac": "02:00:00:00:00:0a", "ips": ["10.1.7.7/16", "fd00::7/64"]},
        // A chain: this plugin adds to the result of the one before it.
        "prevResult": {"interfaces": [{"name": "lo", "sandbox": format!("/run/netns/{a}")}], "ips": [{"address": "127.0.0.1/8", "interface": 0}]},
    }));
    let arguments = [("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAME=web-0;MAC=02:00:00:00:00:0b")];
    let result = finish(start("ADD", &a, &config, &arguments)).unwrap();
    assert_eq!(result["interfaces"][1]["mac"], "02:00:00:00:00:0a");
    assert_eq!(result["ips"][0], json!({"address": "127.0.0.1/8", "interface": 0}));
    assert_eq!(
        (result["ips"][1]["interface"].as_u64(), &result["ips"][1]["address"]),
        (Some(1), &json!("10.1.7.7/16"))
    );
    let port = net.switch.status().ports.remove(0);
    assert!(port.name.starts_with("web-0-"), "{}", port.name);
    assert_eq!(
        (port.tenant, port.mac.as_deref(), port.rate_bps),
        (Some(7), Some("02:00:00:00:00:0a"), Some(1_000_000_000))
    );
    let link = Namespace::open(&a).unwrap().enter(|| {
        let mut links = sluicenet_dataplane::kernel::link::Links::open().unwrap();
        links.get("eth0").unwrap()
    });
    assert_eq!((link.as_ref().unwrap().mtu, link.unwrap().mac), (1400, [2, 0, 0, 0, 0, 10]));
    assert_eq!(call("CHECK", &a, &net.with(json!({ "prevResult": result }))), Ok(Value::Null));
    assert_eq!(call("DEL", &a, &config), Ok(Value::Null));
    net.is_clean();
}

#[test]
fn what_fails_leaves_nothing() {
    if let Some(what) = lacks() {
        return println!("skipped: {what}");
    }
    let mut net = Net::new("fails", "1.0.0");
    let [a, busy] = [1, 2].map(|n| net.container(n));
    for (config, code, words) in [
        (
            net.with(json!({"swich": "vs"})),
            2,
            r#"key "swich", value "vs": this plugin has no such key; did you mean "switch"?"#,
        ),
        (net.with(json!({"rate": "fast"})), 7, r#"key "rate""#),
        (net.with(json!({"cniVersion": "0.3.1"})), 1, "0.3.1"),
        (net.with(json!({"name": ""})), 7, r#"key "name""#),
        (net.with(json!({"switch": "nobody"})), 11, "nobody.sock"),
        (net.with(json!({"ipam": {"type": "no-such-plugin"}})), 7, "no-such-plugin"),
        // Refused by the kernel, and by the checks of an attachment.
        (net.with(json!({"mtu": 1000})), 102, "of eth0: Invalid argument"),
        (net.with(json!({"runtimeConfig": {"mac": "03:00:00:00:00:01"}})), 7, "03:00:00:00:00:01"),
    ] {
        refused(call("ADD", &a, &config), code, words);
        net.is_clean();
        // A runtime deletes what it could not add.
        if code != 1 && config["name"] != "" && words != "no-such-plugin" {
            assert_eq!(call("DEL", &a, &config), Ok(Value::Null), "{words}");
        }
    }
    // What host-local refuses it refuses for DEL, too.
    let small = net.with(json!({"ipam": {"type": "host-local", "subnet": "10.1.0.0/31"}}));
    refused(
        call("ADD", &a, &small),
        999,
        "too small to allocate from; not all of it could be undone: DEL of the plugin",
    );
    // The address is given back.
    system(&format!("ip -n {busy} tuntap add eth0 mode tap")).unwrap();
    refused(call("ADD", &busy, &net.config), 7, "has a device eth0 already");
    net.is_clean();
    refused(call("ADD", "sluice-nobody", &net.config), 3, "sluice-nobody");
    refused(finish(start("ADD", &a, &net.config, &[("CNI_NETNS", "/proc/self/ns/net")])), 4, "CNI_NETNS");
    refused(finish(start("ADD", &a, &net.config, &[("CNI_IFNAME", "")])), 4, "CNI_IFNAME");
    refused(finish(start("ADD", &a, &net.config, &[("CNI_PATH", "")])), 4, "CNI_PATH");
    // Addresses of a plugin that knows none.
    let folder = net.fake(r#"[ $CNI_COMMAND = DEL ] || echo '{"cniVersion": "1.0.0", "ips": []}'"#);
    let config = net.with(json!({"ipam": {"type": "fake"}}));
    refused(finish(start("ADD", &a, &config, &[("CNI_PATH", &folder)])), 100, "no `ips`");
    net.is_clean();
    // Without `ipam` a container has a device without addresses.
    let config = net.with(json!({"ipam": {}}));
    assert_eq!(call("ADD", &a, &config).unwrap().get("ips"), None);
    assert_eq!(call("DEL", &a, &config), Ok(Value::Null));
    net.is_clean();
}

#[test]
fn stale_attachments_are_collected_and_the_status_is_told() {
    if let Some(what) = lacks() {
        return println!("skipped: {what}");
    }
    let mut net = Net::new("stale", "1.1.0");
    let [a, b, c] = [1, 2, 3].map(|n| net.container(n));
    // Debian's host-local knows no 1.1.
    let folder = net.fake(&format!(
        r#"echo $CNI_COMMAND $CNI_CONTAINERID >> {}
        case $CNI_COMMAND in
        ADD) n=$(cat {dir}/n 2>/dev/null || echo 1); n=$((n + 1)); echo $n > {dir}/n
            echo "{{\"cniVersion\": \"1.1.0\", \"ips\": [{{\"address\": \"10.1.0.$n/24\"}}],
                \"routes\": [{{\"dst\": \"10.8.0.0/16\", \"gw\": \"10.1.0.1\", \"mtu\": 1300, \"advmss\": 1200, \"priority\": 5, \"table\": 100}}]}}" ;;
        STATUS) [ ! -e {dir}/full ] || {{ echo '{{"code": 50, "msg": "no addresses left"}}'; exit 1; }} ;;
        esac"#,
        net.switch.dir.path("told"),
        dir = net.switch.dir.0.display(),
    ));
    let config = net.with(json!({"ipam": {"type": "fake"}}));
    let path = [("CNI_PATH", folder.as_str())];
    let call = |command: &str, netns: &str, config: &Value| finish(start(command, netns, config, &path));
    assert_eq!(call("STATUS", "", &config), Ok(Value::Null));
    let mut results = Vec::new();
    for netns in [&a, &b, &c] {
        results.push(call("ADD", netns, &config).unwrap());
    }
    assert_eq!(results[0]["interfaces"][0]["mtu"], 1500);
    assert_eq!(results[0]["routes"][0]["advmss"], 1200);
    let shown = Command::new("ip").args(["-n", &a, "route", "show", "table", "100"]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(
        ["10.8.0.0/16 via 10.1.0.1", "metric 5", "mtu 1300", "advmss 1200"].iter().all(|part| shown.contains(part)),
        "{shown}"
    );
    let mut checked = config.clone();
    checked["prevResult"] = results[0].clone();
    assert_eq!(call("CHECK", &a, &checked), Ok(Value::Null));
    // Only one of them is valid; one of the others has gone.
    Namespace::delete(&c).unwrap();
    refused(call("GC", "", &config), 7, "cni.dev/valid-attachments");
    assert_eq!(net.switch.status().ports.len(), 3);
    let mut collected = config.clone();
    collected["cni.dev/valid-attachments"] = json!([{"containerID": b, "ifname": "eth0"}]);
    assert_eq!(call("GC", "", &collected), Ok(Value::Null));
    assert_eq!(net.switch.ports().len(), 1);
    checked["prevResult"] = results[1].clone();
    assert_eq!(call("CHECK", &b, &checked), Ok(Value::Null));
    // Another network's attachments stay.
    let other = json!({"name": "other", "cni.dev/valid-attachments": []});
    let mut config_of_other = config.clone();
    config_of_other.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
    assert_eq!(call("GC", "", &config_of_other), Ok(Value::Null));
    assert_eq!(net.switch.ports().len(), 1);
    let told = std::fs::read_to_string(net.switch.dir.path("told")).unwrap();
    assert_eq!(told.lines().filter(|line| line.starts_with("GC")).count(), 2, "{told}");
    // What is not ready says so.
    std::fs::write(net.switch.dir.path("full"), "").unwrap();
    assert_eq!(call("STATUS", "", &config).unwrap_err()["code"], 50);
    net.switch.done("stop");
    net.switch.child.wait().unwrap();
    assert_eq!(call("STATUS", "", &config).unwrap_err()["code"], 51);
    refused(call("CHECK", &b, &checked), 11, "nothing runs there");
    assert_eq!(call("DEL", &b, &config), Ok(Value::Null));
    assert_eq!(call("STATUS", "", &config).unwrap_err()["code"], 50);
    for command in ["STATUS", "GC"] {
        let mut old = collected.clone();
        old["cniVersion"] = "1.0.0".into();
        refused(call(command, "", &old), 1, "needs version 1.1.0 at least");
    }
}

#[test]
fn many_containers_at_once_leave_nothing() {
    if let Some(what) = lacks() {
        return println!("skipped: {what}");
    }
    const MANY: usize = 100;
    let mut net = Net::at(Empty::for_ports("cnimany", MANY), "1.0.0");
    let all: Vec<String> = (0..MANY).map(|n| net.container(n)).collect();
    let at_once = |command: &str| {
        let children: Vec<Child> = all.iter().map(|netns| start(command, netns, &net.config, &[])).collect();
        children.into_iter().for_each(|child| drop(finish(child).unwrap()));
    };
    at_once("ADD");
    assert_eq!((net.switch.ports().len(), net.reserved().len()), (MANY, 2 * MANY));
    let address = net.reserved().into_iter().find(|name| name.starts_with("10.1.0.")).unwrap();
    let holder = std::fs::read_to_string(net.switch.dir.0.join("addresses").join(&net.name).join(&address)).unwrap();
    let holder = holder.lines().next().unwrap().trim().to_owned();
    reaches(all.iter().find(|netns| **netns != holder).unwrap(), &holder, &address);
    at_once("DEL");
    net.is_clean();
    // Each one is added and deleted at its own pace.
    std::thread::scope(|scope| {
        for netns in &all {
            let net = &net;
            scope.spawn(move || {
                call("ADD", netns, &net.config).unwrap();
                call("DEL", netns, &net.config).unwrap();
            });
        }
    });
    net.is_clean();
}

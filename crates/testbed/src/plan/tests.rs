//! Plans of scenarios, and refused scenarios.

use super::*;
use crate::files;
use sluicenet_proto::cee::qcn::ReactionPointConfig;
use sluicenet_proto::units::Rate;
use sluicenet_vswitchd::config::{Config, LimitersOf, Limiting};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;

fn plan(text: &str) -> Result<Plan> {
    let text = format!("[scenario]\nparameters = \"crisan2014-ch3\"\n{text}");
    Plan::new(&Scenario::parse(&text, "t.toml").unwrap().scenario)
}

const TREE: &str = "flow_control = \"ZZ\"\n[topology]\nkind = \"xgft\"\nm = [4, 2]\nw = [1, 2]\n";
const PA: &str = "[[workload]]\nkind = \"partition-aggregate-2\"\nworkers = 7\nresponse = \"20 KB\"\nqueries = 9\n\
                  inter_arrival = \"1 ms\"\n";

#[test]
fn every_name_and_address_is_there_once() {
    let p = plan(&format!("{TREE}{PA}[testbed]\nslowdown = 100\n")).unwrap();
    assert_eq!((p.servers.len(), p.tenant_mtu, p.flow_control), (8, 1446, FlowControl::Zz));
    let names: Vec<&str> = p.namespaces().collect();
    assert_eq!(names.len(), 1 + 8 + 8 * 4);
    assert!(names.iter().all(|n| n.starts_with(PREFIX)));
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    let t = p.tenant(5, 3).unwrap();
    assert_eq!((t.namespace.as_str(), t.address), ("sluice-s5-t3", Ipv4Addr::new(10, 0, 5, 4)));
    let stations = p.servers.iter().flat_map(|s| s.tenants.iter().map(|t| t.mac).chain([s.mac]));
    assert_eq!(stations.collect::<BTreeSet<_>>().len(), 8 * 5);
    let addresses = p.servers.iter().flat_map(|s| s.tenants.iter().map(|t| t.address).chain([s.address]));
    assert_eq!(addresses.collect::<BTreeSet<_>>().len(), 8 * 5);
    // Names of devices have at most 15 characters.
    assert!(p.servers.iter().all(|s| s.edge.len() <= 15 && s.rate == Rate::mbps(100)));
    assert!(p.tenant(8, 0).is_none() && p.tenant(0, 4).is_none());
}

fn table_5_2(settings: &[&str]) -> Result<Plan> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/crisan2014/table-5-2.toml");
    let settings: Vec<String> = settings.iter().map(|s| s.to_string()).collect();
    Plan::new(&Scenario::load_with(file, &settings).unwrap().scenario)
}

#[test]
fn a_machine_with_two_vnics_is_one_namespace_with_a_port_for_each() {
    let p = table_5_2(&[]).unwrap();
    // Two machines of four servers, two vNICs each, and a remote host with one.
    assert_eq!((p.tenants().count(), p.machines().count(), p.servers.len()), (4 * 4 + 1, 4 * 2 + 1, 5));
    let [first, second] = [0, 2].map(|vm| p.tenant(2, vm).unwrap());
    assert_eq!((first.namespace.as_str(), first.device, first.lossy), ("sluice-s2-t0", "eth0", false));
    assert_eq!((second.namespace.as_str(), second.device, second.lossy), ("sluice-s2-t0", "eth1", true));
    assert_eq!(second.address, Ipv4Addr::new(198, 18, 2, 3));
    let outside = p.tenant(4, 0).unwrap();
    assert_eq!((outside.device, outside.lossy, outside.machine), ("eth0", true, None));
    let names: Vec<&str> = p.namespaces().collect();
    assert_eq!(names.len(), names.iter().collect::<BTreeSet<_>>().len());
    // The fabric, servers, and each machine. A machine whose first vNIC has only light sockets has a namespace for its
    // second vNIC.
    assert_eq!(names.len(), 1 + 5 + 4 * 2 + 1);
    let flows = crate::flows::flows(&p.scenario).unwrap();
    let ends: Vec<_> = flows.iter().map(|f| (f.from, f.to, f.rate)).collect();
    let vnic = Some(p.scenario.vswitch.vm_rate);
    assert_eq!(ends[0], ((0, 0), (2, 0), None));
    assert_eq!((ends[2], ends[4], ends[5]), (((1, 2), (2, 2), vnic), ((4, 0), (2, 2), vnic), ((2, 2), (4, 0), None)));
    // In slow motion, as all else: the first link's rate is 10 Gb/s.
    assert_eq!(ends[1].2.map(|rate| rate.as_bps() * 10), Some(p.servers[0].rate.as_bps()));
}

#[test]
fn every_switch_knows_all_machines_and_which_vnics_are_lossy() {
    let p = table_5_2(&[]).unwrap();
    for server in &p.servers {
        let file = files::switch(&p, server, &files::TestbedDir::of_the_machine());
        assert!(file.contains("slots = 1024\nlossless = [0, 2, 3, 4, 5, 6, 7]\n"), "{file}");
        // The receiver of TCPlight and UDP has a port for each.
        assert_eq!(file.matches("[[policy.machine]]").count(), 10, "{file}");
        assert_eq!((file.matches("lossy_mac = ").count(), file.matches("outside = true").count()), (9, 1), "{file}");
        let ports = if server.host == 4 { 1 } else { 2 };
        assert_eq!(file.matches("kind = \"packet\"").count(), ports, "{file}");
        assert_eq!(file.matches("priority = 1\n").count(), ports, "{file}");
    }
    let rule = |party: &str| {
        let rule = format!("policy.rule=[{{ party = \"{party}\", peer = \"outside\", allow = false }}]");
        let p = table_5_2(&[&rule, "workload.5.src=3"]).unwrap();
        files::switch(&p, &p.servers[0], &files::TestbedDir::of_the_machine())
    };
    assert!(rule("blue").contains("[[policy.rule]]\nparty = \"tenant-1\"\npeer = \"outside\"\nallow = false\n"));
    assert!(rule("host 1 vm 1").contains("party = \"s1-t1\"\npeer = \"outside\""));
}

#[test]
fn what_two_vnics_cannot_be_on_a_testbed_is_refused() {
    let refused = |settings: &[&str], words: &str| {
        let Err(e) = table_5_2(settings) else { panic!("{settings:?}") };
        assert!(e.to_string().contains(words), "{settings:?}: {e}");
    };
    refused(&["testbed.tenants=guests"], "guests have one vNIC");
    let bridge = ["testbed.switch=bridge", "scenario.hypervisor=lossy", "server.lossy_vnic=1"];
    assert!(
        Scenario::load_with(
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/crisan2014/table-5-2.toml"),
            &bridge.map(str::to_owned)
        )
        .is_err()
    );
    refused(&["workload.0.src_vm=1"], "never connect");
    let priorities: Vec<String> = (2..6).map(|n| format!("workload.{n}.priority=0")).collect();
    let mut zero: Vec<&str> = priorities.iter().map(String::as_str).collect();
    zero.extend(["server.lossy_vnic=0", "workload.0.priority=2", "workload.0.transport=udp", "workload.1.priority=2"]);
    refused(&zero, "is of priority 0");
}

#[test]
fn guests_have_names_and_addresses_and_no_namespaces() {
    let p = plan(&format!("{TREE}{PA}[testbed]\ntenants = \"guests\"\nslowdown = 100\n")).unwrap();
    assert_eq!((p.namespaces().count(), p.tenants().count(), p.has_guests()), (1 + 8, 8 * 4, true));
    assert_eq!(p.tenants().last().map(|t| t.namespace.as_str()), Some("sluice-s7-t3"));
}

#[test]
fn what_a_testbed_cannot_have_is_refused_with_its_line() {
    let slow = "[[vswitch.slow]]\nhost = 1\nrate = \"100 Mb/s\"\n";
    let credits = "[zcredit]\nenabled = true\n";
    assert!(plan(&format!("{TREE}{PA}{credits}")).is_ok());
    let lossy = TREE.replace("ZZ", "LL");
    let bridge = "[testbed]\nswitch = \"bridge\"\n";
    for (text, line, expected) in [
        (
            format!("{lossy}{PA}{slow}{bridge}"),
            "[[vswitch.slow]]",
            "testbed.switch = \"zvale\", or no [[vswitch.slow]]",
        ),
        (format!("{lossy}{PA}{credits}{bridge}"), "enabled = true", "testbed.switch = \"zvale\", or no [zcredit]"),
        (
            format!("{lossy}{PA}{credits}"),
            "enabled = true",
            "scenario.flow_control = \"ZZ\" or \"ZL\", or no [zcredit]",
        ),
    ] {
        let e = plan(&text).unwrap_err();
        let d = e.diagnostic();
        // The scenario has two lines before `text`.
        let at = 3 + text[..text.find(line).unwrap()].matches('\n').count();
        assert_eq!((d.file.as_str(), d.line as usize), ("t.toml", at), "{d:#?}");
        assert_eq!(d.expected, expected, "{d:#?}");
    }
}

/// The settings of a scenario reach the switches of its servers, in slow motion like the links.
#[test]
fn servers_have_the_limiters_and_the_bandwidths_of_the_scenario() {
    let qcn = "[qcn]\nenabled = true\nlimiters = \"flow\"\nmin_rate = \"2 Mb/s\"\nai_rate = \"5 Mb/s\"\ngd = 8\n";
    let ets = "[ets]\nstrict = [7]\n[[ets.group]]\npriorities = [0, 1, 2]\nbandwidth = 60\n\
               [[ets.group]]\npriorities = [3, 4, 5, 6]\nbandwidth = 40\n";
    let plan_of = |more: &str| plan(&format!("{TREE}{PA}{more}[testbed]\nslowdown = 100\n")).unwrap();
    let dir = files::TestbedDir::of_the_machine();
    let uplink = |p: &Plan| {
        let text = files::switch(p, &p.servers[0], &dir);
        // The key is written with the file.
        let (above, overlay) = text.split_once("[overlay]").unwrap();
        let own = overlay.find("[qcn]").or(overlay.find("[ets]")).map_or("", |at| &overlay[at..]);
        let own = own.split_once("[[server]]").map_or(own, |(own, _)| own);
        Config::parse("s0.toml".as_ref(), &format!("{above}{own}")).unwrap().uplink.unwrap()
    };
    let p = plan_of(&format!("{qcn}{ets}"));
    let found = uplink(&p);
    let limiter = ReactionPointConfig {
        min_rate: Rate(20_000),
        ai_rate: Rate(50_000),
        hai_rate: Rate(500_000),
        time_reset: Some(Duration::from_ms(1_500)),
        gd: 8,
        ..ReactionPointConfig::crisan2014(Rate::mbps(100))
    };
    assert_eq!(found.limiting, Some(Limiting { limiters: LimitersOf::Flow, limiter }));
    assert_eq!(found.ets, p.scenario.ets.config);
    // A CN-TAG takes no room from the tenants' packets.
    let bare = plan_of("");
    assert_eq!((p.mtu, p.tenant_mtu), (bare.mtu + 4, bare.tenant_mtu));
    assert_eq!((uplink(&bare).limiting, uplink(&bare).ets), (None, None));
    let off = plan_of(&qcn.replace("flow", "off"));
    assert_eq!((uplink(&off).limiting, off.mtu), (None, bare.mtu));
    let bridge = format!("{}{PA}{qcn}[testbed]\nswitch = \"bridge\"\n", TREE.replace("ZZ", "LL"));
    let refused = plan(&bridge).map(|_| ()).unwrap_err().to_string();
    assert!(refused.contains("a Linux bridge has no rate limiters"), "{refused}");
}

#[test]
fn machines_have_the_sockets_that_their_flows_need() {
    let stride = |transport: &str| {
        format!("[[workload]]\nkind = \"permutation\"\npattern = \"stride\"\ntransport = \"{transport}\"\n")
    };
    let head = "flow_control = \"ZZ\"\nduration = \"1 s\"\n[topology]\nkind = \"single-switch\"\nhosts = 3\n[server]\nvms = 2\n";
    let light = plan(&format!("{head}{}", stride("tcplight"))).unwrap();
    let of = |p: &Plan, vm| p.tenant(1, vm).unwrap().sockets;
    // No workload uses the second machines.
    assert_eq!((of(&light, 0), of(&light, 1)), (Sockets::Light, Sockets::Kernel));
    assert_eq!(light.namespaces().count(), 1 + 3 + 3);
    let own = light.tenant(1, 0).unwrap();
    assert_eq!(own.light().map(|l| (l.address, l.mac)), Some((own.address, own.mac)));
    let both = plan(&format!("{head}{}{}", stride("tcplight"), stride("udp"))).unwrap();
    assert_eq!(of(&both, 0), Sockets::Both);
    let all = both.tenants().flat_map(|t| [Some((t.address, t.mac)), t.light().map(|l| (l.address, l.mac))]).flatten();
    let (addresses, stations): (BTreeSet<_>, BTreeSet<_>) = all.unzip();
    assert_eq!((addresses.len(), stations.len()), (9, 9));
    // Both stations of a machine get its weight.
    let weight = "[zcredit]\nenabled = true\n[[zcredit.weight]]\nhost = 1\nweight = 4\n";
    let p = plan(&format!("{head}{}{}{weight}", stride("tcplight"), stride("udp"))).unwrap();
    let file = files::switch(&p, &p.servers[1], &files::TestbedDir::of_the_machine());
    let own = p.tenant(1, 0).unwrap();
    for mac in [own.mac, own.light().unwrap().mac].map(|mac| mac.0.map(|b| format!("{b:02x}")).join(":")) {
        assert!(file.contains(&format!("mac = \"{mac}\"\nweight = 4\n")), "{mac} in\n{file}");
    }
    let slow = "[[vswitch.slow]]\nhost = 1\nrate = \"100 Mb/s\"\n";
    let e = plan(&format!("{head}{}{}{slow}", stride("tcplight"), stride("udp"))).unwrap_err().to_string();
    assert!(e.contains("VM 0 of server 1") && e.contains("do not share a rate"), "{e}");
    assert!(plan(&format!("{head}{}{slow}", stride("tcplight"))).is_ok());
    let e = plan(&format!("{head}{}priority = 3\n", stride("tcplight"))).unwrap_err().to_string();
    assert!(e.contains("light sockets send at priority 0"), "{e}");
    let e = plan(&format!("{head}[overlay]\nmtu = \"2035 B\"\n[framing]\nmtu = \"9000 B\"\n{}", stride("tcplight")))
        .unwrap_err()
        .to_string();
    assert!(e.contains("those of light sockets have at most 2034"), "{e}");
    let query = PA.replace("workers = 7", "workers = 2") + "transport = \"tcplight\"\n";
    let queries = plan(&format!("{head}{query}")).unwrap();
    assert!(queries.tenants().filter(|t| t.sockets == Sockets::Light).count() == 3);
    let e = plan(&format!("{head}{query}[testbed]\ntenants = \"guests\"\n")).unwrap_err().to_string();
    assert!(e.contains("which guests have none of"), "{e}");
}

/// Frames within a server meet no link: their receivers' ports have the rate that simulated ones have, slowed down like links.
#[test]
fn who_hears_machines_of_his_own_server_is_as_slow_as_the_network() {
    let head = "flow_control = \"ZZ\"\nduration = \"1 s\"\n[topology]\nkind = \"single-switch\"\nhosts = 3\n[server]\nvms = 2\n\
                [testbed]\nslowdown = 100\n";
    let rate = |p: &Plan, host, vm| p.tenant(host, vm).unwrap().rate;
    let flow = "[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 0\ndst_vm = 1\n[[workload]]\nkind = \"flow\"\nsrc = 1\ndst = 2\n";
    let p = plan(&format!("{head}{flow}")).unwrap();
    assert_eq!((rate(&p, 0, 0), rate(&p, 0, 1)), (Some(Rate::mbps(100)), Some(Rate::mbps(100))));
    assert_eq!((rate(&p, 1, 0), rate(&p, 2, 0)), (None, None));
    let file = files::switch(&p, &p.servers[0], &files::TestbedDir::of_the_machine());
    assert_eq!(file.matches("rate = \"100000000 b/s\"").count(), 1 + 2, "{file}");
    let slow = "[[vswitch.slow]]\nhost = 0\nvm = 1\nrate = \"1 Gb/s\"\n";
    assert_eq!(rate(&plan(&format!("{head}{flow}{slow}")).unwrap(), 0, 1), Some(Rate::mbps(10)));
    let query = "[[workload]]\nkind = \"partition-aggregate-2\"\namong = \"vms\"\nworkers = 3\nresponse = \"20 KB\"\nqueries = 1\n";
    let p = plan(&format!("{head}{query}")).unwrap();
    let [asks, beside] = [0, 1].map(|vm| rate(&p, 0, vm));
    assert_eq!((asks, beside, rate(&p, 1, 0)), (Some(Rate::mbps(100)), Some(Rate::mbps(100)), None));
}

/// The switches' TCP tunnels have the simulator's parameters from the scenario, except for the time limits for giving
/// up.
#[test]
fn a_real_tunnel_has_the_tcp_of_the_simulated_one() {
    use sluicenet_proto::tcp;
    use sluicenet_vswitchd::config::Config;
    let folder = std::env::temp_dir().join(format!("sluicenet-tunnel-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let key = folder.join("s0.key");
    std::fs::write(&key, "0".repeat(64)).unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let all = "congestion = \"vegas\"\nrto_base = \"300 ms\"\nrto_min = \"40 ms\"\nrto_slop = \"7 ms\"\nrto_max = \"9 s\"\n\
               tick = \"3 us\"\nbuffer = \"90 KB\"\nmax_buffer = \"1 MB\"\ndelayed_ack = \"off\"\nack_every = 3\n\
               reassembly_limit = 77\ninitial_window = 9\nssthresh = \"64 KB\"\nsack = false\ntimestamps = false\nwindow_scaling = false\necn = true\n\
               limited_transmit = false\nprr = true\nrestart_after_idle = false\nnagle = true\n";
    for set in ["plain", "crisan2014-ch2", "crisan2014-ch3"] {
        for keys in ["", all, "auto_buffer = false\nbuffer = \"64 KB\"\ndelayed_ack = \"1 ms\"\n"] {
            let text = format!(
                "[scenario]\nparameters = \"{set}\"\nhypervisor = \"tcp\"\nduration = \"1 s\"\n[server]\nvirtual_network = true\n[overlay]\nmtu = \"1400 B\"\n\
                 [topology]\nkind = \"single-switch\"\nhosts = 2\n[tcp]\n{keys}\
                 [[workload]]\nkind = \"permutation\"\npattern = \"stride\"\ntransport = \"udp\"\n"
            );
            let plan = Plan::new(&Scenario::parse(&text, "t.toml").unwrap_or_else(|e| panic!("{e}")).scenario);
            let plan = plan.unwrap_or_else(|e| panic!("{e}"));
            let file = files::switch(&plan, &plan.servers[0], &files::TestbedDir::of_the_machine());
            let config = Config::parse(&folder.join("s0.toml"), &file).unwrap_or_else(|e| panic!("{e}\n{file}"));
            let tunnel = config.uplink.unwrap().overlay.unwrap().tcp_tunnel.unwrap();
            let real = tunnel.tcp(plan.mtu as u16).unwrap();
            let simulated = plan.scenario.tcp_config(plan.mtu as u16);
            let max_buffer = if simulated.auto_buffer { simulated.max_buffer } else { simulated.send_buffer };
            let wanted = tcp::Config {
                max_buffer,
                auto_buffer: true,
                connection_cache: real.connection_cache,
                syn_retries: real.syn_retries,
                max_retries: real.max_retries,
                time_wait: real.time_wait,
                ..simulated
            };
            assert_eq!(real, wanted, "{set}, {keys}");
            assert!(plan.warnings.is_empty(), "{:?}", plan.warnings);
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
    let odd = |tcp: &str| {
        plan(&format!("hypervisor = \"tcp\"\n{}[tcp]\n{tcp}{PA}", &TREE[TREE.find("[topology]").unwrap()..]))
    };
    let e = odd("rto_max = \"50 ms\"\n").unwrap_err();
    assert!(e.to_string().contains("t.toml") && e.to_string().contains("at least 100 ms"), "{e}");
    assert!(e.diagnostic().line > 0, "{e}");
}

#[test]
fn slow_motion_keeps_bytes_in_flight_and_load() {
    let text = format!("{TREE}link_delay = \"50 ns\"\n{PA}[testbed]\nslowdown = 100\n");
    let p = plan(&text).unwrap();
    let fast = plan(&text.replace("slowdown = 100", "")).unwrap();
    let (s, f) = (&p.scenario, &fast.scenario);
    assert_eq!(s.topology.levels[1].rate, Rate::mbps(100));
    assert_eq!(s.topology.levels[1].delay.0, 100 * f.topology.levels[1].delay.0);
    assert_eq!((s.switch.delay.0, s.switch.buffer), (100 * f.switch.delay.0, f.switch.buffer));
    assert_eq!((&s.tcp, s.testbed.slowdown), (&f.tcp, 1));
    let [Workload::PartitionAggregate2(slow)] = &s.workloads[..] else { panic!() };
    assert_eq!(slow.inter_arrival.as_ref().unwrap().mean(), 1e11);
    // Slowing down a slowed network again changes nothing.
    assert_eq!(slowed(s), *s);
}

#[test]
fn what_only_a_simulation_can_be_is_refused_with_its_place() {
    let refused = |text: &str| plan(text).unwrap_err().to_string();
    let background = "[[workload]]\nkind = \"background\"\nflow_size = \"1 KB\"\ninter_arrival = \"1 ms\"\n";
    let e = refused(&format!("{TREE}{PA}{background}transport = \"udp\"\n"));
    assert!(e.contains("t.toml") && e.contains("background flows are streams"), "{e}");
    let e = refused(&format!("{TREE}{PA}[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\nbytes = \"1 KB\"\n"));
    assert!(e.contains("no real application for workload `flow`") && e.contains("partition-aggregate-2"), "{e}");
    let e = refused(&format!("{TREE}{PA}[framing]\nkind = \"ppp\"\n"));
    assert!(e.contains("Ethernet"), "{e}");
    let e = refused(&format!("{TREE}link_rate = \"1 Mb/s\"\n{PA}[testbed]\nslowdown = 1000\n"));
    assert!(e.contains("rate is out of range") && e.contains("10000 b/s"), "{e}");
    let e = refused(&format!("{TREE}link_delay = \"1 h\"\n{PA}[testbed]\nslowdown = 2\n"));
    assert!(e.contains("delay is out of range"), "{e}");
    let e = refused(&format!("[topology]\nkind = \"xgft\"\nm = [4]\nw = [2]\n{}", PA.replace('7', "3")));
    assert!(e.contains("has 2 links"), "{e}");
    let e = refused(&format!("{TREE}{PA}[testbed]\ntenants = \"guests\"\nswitch = \"bridge\"\n"));
    assert!(e.contains("at a switch of this project"), "{e}");
    let e = refused(&format!("{TREE}{PA}[server]\nvms = 9\n[testbed]\ntenants = \"guests\"\n"));
    assert!(e.contains("72 guests: at most 64"), "{e}");
    let e = refused(&format!("{TREE}{PA}[testbed]\nswitch = \"bridge\"\n"));
    assert!(e.contains("holds nobody back") && e.contains("\"LL\""), "{e}");
    let e = refused(&format!("[topology]\nkind = \"single-switch\"\nhosts = 300\n{PA}"));
    assert!(e.contains("at most 256"), "{e}");
}

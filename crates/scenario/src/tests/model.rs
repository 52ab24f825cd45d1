//! Meaning of valid scenarios.

use super::*;
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;
use sluicenet_testkit::Dir;

#[test]
fn the_full_scenario_is_what_it_says() {
    let loaded = parse(FULL).unwrap();
    assert_eq!(loaded.warnings, vec![]);
    let s = &loaded.scenario;
    assert_eq!((s.name.as_str(), s.seed, s.flow_control()), ("full", 7, FlowControl::Zz));
    assert_eq!(s.topology.counts(), Counts { hosts: 16, external: 4, switches: 6, ports: 4 * 8 + 2 * 8 + 16 + 2 * 4 });
    assert_eq!(s.topology.levels[0].rate, Rate::gbps(10));
    assert_eq!(s.topology.levels[1].rate, Rate::gbps(40));
    assert_eq!(s.pfc.lossless, 0b1001);
    assert_eq!(s.pfc.response, Duration(614_400));
    assert_eq!(s.host_mtu(), Bytes(1446));
    let kinds: Vec<_> = s.workloads.iter().map(Workload::kind).collect();
    let want = ["partition-aggregate", "partition-aggregate-2", "background", "incast", "permutation", "flow"];
    assert_eq!(kinds, want);
    let Workload::Flow(f) = &s.workloads[5] else { panic!() };
    assert_eq!((f.bytes, f.rate), (None, Some(Rate::gbps(1))));
    let Workload::Background(b) = &s.workloads[2] else { panic!() };
    assert!((b.intra_probability() - 0.3 / 1.3).abs() < 1e-12);
}

#[test]
fn the_parameter_sets_are_the_tables() {
    let with = |set: &str| {
        let text = format!("[scenario]\nparameters = \"{set}\"\n{MINIMAL}");
        parse(&text).unwrap().scenario
    };
    let (two, three, plain) = (with("crisan2014-ch2"), with("crisan2014-ch3"), with("plain"));
    let ms = Duration::from_ms;
    assert_eq!((two.tcp.rto_base, two.tcp.rto_min, two.tcp.rto_slop), (ms(10), ms(2), ms(20)));
    assert_eq!((three.tcp.rto_base, three.tcp.rto_min, three.tcp.rto_slop), (ms(20), ms(2), ms(20)));
    assert_eq!((two.switch.delay, three.switch.delay), (Duration::from_ns(100), Duration::from_ns(500)));
    assert_eq!((two.pfc.xon, two.pfc.xoff), (Bytes(80_000), Bytes(97_000)));
    assert_eq!((two.framing.mtu, three.framing.mtu), (Bytes(1482), Bytes(1500)));
    assert_eq!((two.overlay.enabled, three.overlay.enabled), (false, true));
    assert_eq!(three.tcp.tx_delay, Duration::from_ns(9_500));
    assert_eq!(plain.switch.forwarding, Forwarding::StoreAndForward);
    assert_eq!(plain.topology.link.delay, Duration::from_us(1));
    let default = MINIMAL.to_string() + "\n[scenario]\nparameters = \"crisan2014-ch3\"\n[tcp]\npreset = \"default\"\n";
    let t = parse(&default).unwrap().scenario.tcp;
    assert_eq!((t.rto_base, t.rto_min, t.rto_slop), (ms(3000), ms(30), ms(200)));
}

#[test]
fn congestion_management_without_effect_is_told() {
    let of_7 = MINIMAL.replace("dst = 1\n", "dst = 1\npriority = 7\n");
    let roce = MINIMAL.replace("dst = 1\n", "dst = 1\ntransport = \"roce\"\n");
    let wred = "[[wred]]\npriorities = [3]\ngreen_min_threshold = \"5 KB\"\ngreen_max_threshold = \"200 KB\"\n";
    for (text, keys, message) in [
        (of_7.as_str(), "[qcn]\nenabled = true\n", "which is that of notifications and has no congestion point"),
        (MINIMAL, wred, "no workload sends frames of these priorities"),
        (&roce, "", "priority 0, which is lossy"),
        (MINIMAL, "[tcp]\ncongestion = \"dctcp\"\n", "no switch marks frames"),
        (MINIMAL, "[record]\nlimiters = \"1 ms\"\n", "there are no rate limiters"),
    ] {
        let warnings = parse(&format!("{text}{keys}")).unwrap().warnings;
        assert!(warnings.len() == 1 && warnings[0].message.contains(message), "{keys}: {warnings:?}");
    }
    let none = parse(&format!("{MINIMAL}[qcn]\nenabled = true\n[record]\nlimiters = \"1 ms\"\n")).unwrap().warnings;
    assert_eq!(none, vec![]);
}

#[test]
fn queue_pairs_have_the_papers_parameters() {
    let text = |keys: &str| MINIMAL.replace("dst = 1\n", "dst = 1\ntransport = \"roce\"\n") + keys;
    let marks = "[[wred]]\npriorities = [0]\ngreen_min_threshold = \"5 KB\"\ngreen_max_threshold = \"200 KB\"\n\
                 green_drop_probability = 1\nwred_green_enable = false\necn = \"ecn_all\"\n";
    let on = parse(&text(&format!("[pfc]\nenabled = true\n[dcqcn]\nenabled = true\n{marks}"))).unwrap();
    assert_eq!(on.warnings, vec![]);
    let config = on.scenario.roce_config();
    assert_eq!(config.dcqcn, Some(sluicenet_proto::transport::roce::dcqcn::Config::ZHU_2015));
    assert_eq!((config.mtu, config.ack_every, config.timeout), (1024, 64, Duration::from_ns(67_108_864)));
    assert_eq!(on.scenario.adapter.buffer, Bytes(2 * 1518), "an adapter fetches one packet ahead");
    assert_eq!(parse(&text("")).unwrap().scenario.roce_config().dcqcn, None);
    // Every key reaches the protocol.
    let keys = "[dcqcn]\nenabled = true\ndce_tcp_g = 1019\ndce_tcp_rtt = \"1 us\"\ninitial_alpha_value = 1023\n\
                rate_to_set_on_first_cnp = \"5 Gb/s\"\nrpg_min_dec_fac = 40\nrpg_min_rate = \"2 Mb/s\"\nrpg_gd = 10\n\
                clamp_tgt_rate = false\nrpg_time_reset = \"300 us\"\nrpg_byte_reset = \"32767 B\"\nrpg_threshold = 1\n\
                rpg_ai_rate = \"5 Mb/s\"\nrpg_hai_rate = \"50 Mb/s\"\nmin_time_between_cnps = \"4 us\"\n\
                cnp_802p_prio = 7\n[roce]\nmtu = \"512 B\"\nack_every = 8\ntimeout = \"1 ms\"\n";
    let config = parse(&text(&format!("{keys}{marks}"))).unwrap().scenario.roce_config();
    let dcqcn = sluicenet_proto::transport::roce::dcqcn::Config {
        dce_tcp_g: 1019,
        dce_tcp_rtt: Duration::from_us(1),
        initial_alpha_value: 1023,
        rate_to_set_on_first_cnp: Some(Rate::gbps(5)),
        rpg_min_dec_fac: 40,
        rpg_min_rate: Rate::mbps(2),
        rpg_gd: 10,
        clamp_tgt_rate: false,
        rpg_time_reset: Duration::from_us(300),
        rpg_byte_reset: 32_767,
        rpg_threshold: 1,
        rpg_ai_rate: Rate::mbps(5),
        rpg_hai_rate: Rate::mbps(50),
        min_time_between_cnps: Duration::from_us(4),
        cnp_802p_prio: 7,
    };
    assert_eq!(config.dcqcn, Some(dcqcn));
    assert_eq!((config.mtu, config.ack_every, config.timeout), (512, 8, Duration::from_ms(1)));
    // Without marks nothing slows a sender; without queue pairs the sections have no effect.
    let unmarked = parse(&text("[dcqcn]\nenabled = true\n")).unwrap();
    assert!(unmarked.warnings[0].message.contains("no switch marks frames"), "{:?}", unmarked.warnings);
    let plain = parse(&format!("{MINIMAL}[dcqcn]\nenabled = true\n")).unwrap().scenario;
    assert_eq!((plain.dcqcn, plain.roce, plain.adapter.buffer), (None, None, Bytes(512_000)));
}

#[test]
fn every_shape_counts_its_parts() {
    let counts = |shape: &str| {
        let text = MINIMAL.replace("kind = \"single-switch\"\nhosts = 4", shape);
        parse(&text).unwrap().scenario.topology.counts()
    };
    let of = |hosts, switches, switch_ports| Counts { hosts, external: 0, switches, ports: switch_ports + hosts };
    assert_eq!(counts("kind = \"single-switch\"\nhosts = 4"), of(4, 1, 4));
    assert_eq!(counts("kind = \"fat-tree\"\nk = 4"), of(16, 20, 80));
    assert_eq!(counts("kind = \"fat-tree\"\nk = 48"), of(27_648, 2_880, 138_240));
    // n k^(n-1) switches of arity 2k, but k at the top.
    assert_eq!(counts("kind = \"k-ary-n-tree\"\nk = 4\nn = 3"), of(64, 48, 32 * 8 + 16 * 4));
    assert_eq!(
        counts("kind = \"k-ary-n-tree\"\nk = 4\nn = 3\nslimmed = [2, 1]"),
        of(64, 16 + 8 + 2, 16 * 6 + 8 * 5 + 2 * 4)
    );
    assert_eq!(counts("kind = \"xgft\"\nm = [16, 4]\nw = [1, 2]"), of(64, 6, 4 * 18 + 2 * 4));
}

#[test]
fn equal_scenarios_have_equal_canonical_forms() {
    let a = parse(MINIMAL).unwrap().scenario;
    let b = parse(&MINIMAL.replace("\"1 MB\"", "\"1000 kB\"  # the same")).unwrap().scenario;
    assert_eq!(a.canonical_json().unwrap(), b.canonical_json().unwrap());
    let c = parse(&MINIMAL.replace("\"1 MB\"", "\"1001 kB\"")).unwrap().scenario;
    assert_ne!(a.canonical_json().unwrap(), c.canonical_json().unwrap());
    let json = a.canonical_json().unwrap();
    assert!(json.contains(r#""rate":"10000000000 b/s""#), "{json}");
    assert!(json.contains(r#""duration":null"#), "{json}");
}

#[test]
fn settings_have_the_keys_of_a_file() {
    let settings = |text: &str| parse(text).unwrap().scenario.settings().unwrap();
    let tree = MINIMAL.replace("kind = \"single-switch\"\nhosts = 4", "kind = \"xgft\"\nm = [2, 2]\nw = [1, 1]");
    let all = settings(&tree);
    for (section, key, value) in [("topology", "link_rate", "10000000000 b/s"), ("switch", "buffer", "150000 B")] {
        assert_eq!(all[section][key], value);
    }
    assert_eq!((&all["scenario"]["seed"], &all["workload"][0]["bytes"]), (&1.into(), &"1000000 B".into()));
    // Levels are named where their links differ.
    assert!(all["topology"].get("level").is_none());
    let all = settings(&format!("{tree}[[topology.level]]\nlevel = 2\nrate = \"40 Gb/s\"\n"));
    assert_eq!(all["topology"]["level"][1]["rate"], "40000000000 b/s");
}

#[test]
fn frames_are_routed_by_a_hash_of_the_flow_except_in_the_sources_sets() {
    let read = |set: &str, keys: &str| {
        let network = format!("[topology]\nkind = \"xgft\"\nm = [4, 2]\nw = [1, 2]\n{keys}");
        let flow = "[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\nbytes = \"1 KB\"\n";
        let loaded = parse(&format!("[scenario]\nparameters = \"{set}\"\n{network}{flow}")).unwrap();
        (loaded.scenario.topology.routing, loaded.warnings.len())
    };
    assert_eq!(read("plain", ""), (Routing::Hash, 1), "the changed default is told");
    assert_eq!(read("crisan2014-ch2", ""), (Routing::DModK, 0));
    assert_eq!(read("crisan2014-ch3", ""), (Routing::DModK, 0));
    // The field's words.
    assert_eq!(read("plain", "routing = \"ecmp\"\n"), (Routing::Hash, 0));
    assert_eq!(read("crisan2014-ch3", "routing = \"spray\"\n"), (Routing::Random, 0));
    let error = parse(&MINIMAL.replace("[topology]", "[topology]\nrouting = \"ecpm\"")).unwrap_err().to_string();
    assert!(error.ends_with("did you mean `ecmp`?"), "{error}");
}

#[test]
fn resequencing_follows_the_routing() {
    assert_eq!(parse(MINIMAL).unwrap().scenario.adapter.resequencing, None);
    let random = MINIMAL.replace("hosts = 4", "hosts = 4\nrouting = \"random\"");
    assert_eq!(parse(&random).unwrap().scenario.adapter.resequencing, Some(Duration::from_ms(1)));
    let odd = format!("{MINIMAL}\n[adapter]\nresequencing_timeout = \"2 ms\"\n");
    let loaded = parse(&odd).unwrap();
    assert_eq!(loaded.warnings[0].line, 13);
    assert!(loaded.warnings[0].message.contains("no effect"));
}

#[test]
fn input_files_are_relative_to_the_scenario_and_kept() {
    let loaded = Scenario::load(data().join("files.toml")).unwrap();
    let names: Vec<String> = loaded.inputs().into_iter().map(|i| i.path).collect();
    assert_eq!(names, ["small.cm", "small.pairs", "small_cdf.txt", "small_flows.txt", "small_topology.txt"]);
    assert_eq!(loaded.scenario.topology.counts(), Counts { hosts: 4, external: 0, switches: 2, ports: 10 });
    let missing = Scenario::load(data().join("no-such.toml")).unwrap_err();
    assert!(missing.to_string().contains("there is no such file"), "{missing}");
    let text = std::fs::read_to_string(data().join("files.toml")).unwrap();
    let text = text.replace("small.cm", "gone.cm");
    let e = Scenario::parse_in(&text, "files.toml", Some(&data()), &[]).unwrap_err();
    assert!(e.diagnostic().line > 1 && e.to_string().contains("gone.cm: there is no such file"), "{e}");
    let text = text.replace("gone.cm", "bad.cm");
    let e = Scenario::parse_in(&text, "files.toml", Some(&data()), &[]).unwrap_err();
    assert_eq!((e.diagnostic().file.as_str(), e.diagnostic().line), ("bad.cm", 4), "{e}");
}

#[test]
fn a_scenario_of_17_mib_is_refused_before_reading() {
    let dir = Dir::new("large-toml");
    let path = dir.0.join("large.toml");
    std::fs::File::create(&path).unwrap().set_len(17 << 20).unwrap();
    let e = Scenario::load(&path).unwrap_err();
    assert!(e.to_string().contains("too large: 17825792 bytes"), "{e}");
}

#[test]
fn the_schema_has_every_key() {
    let schema = json_schema();
    assert_eq!(schema["properties"]["tcp"]["additionalProperties"], false);
    assert_eq!(schema["properties"]["switch"]["properties"]["policy"]["enum"][1], "input");
    let workloads = schema["properties"]["workload"]["items"]["oneOf"].as_array().unwrap();
    assert_eq!(workloads.len(), 11);
    assert!(schema.to_string().len() > 10_000);
    for section in ["scenario", "topology", "pfc", "record"] {
        for (key, value) in schema["properties"][section]["properties"].as_object().unwrap() {
            assert!(value["description"].as_str().is_some_and(|d| !d.is_empty()), "{section}.{key}");
        }
    }
}

#[test]
fn the_memory_of_each_level_is_part_of_the_configuration() {
    let json = |size: &str| {
        let text = format!("{MINIMAL}[buffer]\nsize = \"12 MB\"\n[[buffer.level]]\nlevel = 2\nsize = \"{size}\"\n");
        parse(&text).unwrap().scenario.canonical_json().unwrap()
    };
    assert_eq!(json("20 MB"), json("20000 KB"));
    assert_ne!(json("20 MB"), json("30 MB"));
}

#[test]
fn cables_have_the_delay_of_their_length() {
    use sluicenet_proto::time::Duration;
    let delays = |keys: &str| {
        let text = format!(
            "[topology]\nkind = \"xgft\"\nm = [2, 2]\nw = [1, 1]\n{keys}\n[[workload]]\nkind = \"flow\"\nsrc = 0\n\
             dst = 3\nbytes = \"1 B\"\n"
        );
        let levels = parse(&text).unwrap_or_else(|e| panic!("{e}")).scenario.topology.levels;
        levels.iter().map(|link| link.delay.as_ps()).collect::<Vec<_>>()
    };
    let level = "[[topology.level]]\nlevel = 2\n";
    assert_eq!(delays("cable = \"40 m\""), [200_000, 200_000]);
    assert_eq!(delays(&format!("cable = \"2.5m\"\n{level}cable = \"0.3 km\"")), [12_500, 1_500_000]);
    assert_eq!(delays(&format!("cable = \"40 m\"\n{level}delay = \"1 us\"")), [200_000, 1_000_000]);
    assert_eq!(
        delays(&format!("link_delay = \"7 ns\"\ndelay_per_metre = \"4.9 ns\"\n{level}cable = \"10 m\"")),
        [7_000, 49_000]
    );
    assert_eq!(Length::parse("12 cm").unwrap().delay(Duration::from_ns(5)), Duration::from_ps(600));
}

#[test]
fn early_packets_of_queue_pairs_wait_for_less_than_a_timeout_and_need_no_buffer() {
    let read = |routing: &str, keys: &str| {
        let text = MINIMAL.replace("hosts = 4", &format!("hosts = 4\nrouting = \"{routing}\""));
        let text = text.replace("dst = 1\n", "dst = 1\ntransport = \"roce\"\n");
        parse(&format!("{text}{keys}")).unwrap_or_else(|e| panic!("{e}"))
    };
    let adapter = |routing: &str, keys: &str| read(routing, keys).scenario.adapter;
    let warned = |keys: &str, of: &str| read("spray", keys).warnings.into_iter().find(|w| w.message.contains(of));
    // 4.096 us x 2^14 / 4.
    let spray = adapter("spray", "");
    assert_eq!(spray.resequencing, Some(Duration::from_ms(1)));
    assert_eq!(spray.reordering, Some(Duration::from_ns(16_777_216)));
    assert_eq!(adapter("ecmp", "").reordering, None);
    assert_eq!(adapter("spray", "[roce]\ntimeout = \"1 ms\"\n").reordering, Some(Duration::from_us(250)));
    let given = "[adapter]\nresequencing_timeout = \"2 ms\"\n";
    assert_eq!(adapter("spray", given).reordering, adapter("spray", given).resequencing);
    assert_eq!(warned(given, "that are sent again wait"), None);
    let long = warned("[adapter]\nresequencing_timeout = \"1 s\"\n", "that are sent again wait");
    assert!(long.is_some_and(|w| w.line > 5));
    // Frames of other transports wait in the buffer, whose default is for queue pairs.
    let other = "[[workload]]\nkind = \"flow\"\nsrc = 2\ndst = 3\n";
    assert_eq!(warned("", "give adapter.buffer"), None);
    assert_eq!(warned(other, "give adapter.buffer").map(|w| w.line), Some(5));
    assert_eq!(warned(&format!("{other}[adapter]\nbuffer = \"4 MB\"\n"), "give adapter.buffer"), None);
    assert_eq!(warned(&format!("{other}[adapter]\nresequencing = false\n"), "give adapter.buffer"), None);
}

#[test]
fn settings_of_pauses_that_help_little_are_told() {
    let spray = MINIMAL.replace("[topology]", "[topology]\nrouting = \"spray\"");
    let warned = |keys: &str, of: &str| {
        let loaded = parse(&format!("{spray}{keys}")).unwrap_or_else(|e| panic!("{e}"));
        loaded.warnings.iter().any(|w| w.message.contains(of))
    };
    let early = "TCP sends again";
    assert!(warned("[pfc]\nenabled = true\n", early));
    assert!(!warned("", early));
    assert!(!warned("[pfc]\nenabled = true\n[adapter]\nbuffer = \"4 MB\"\n", early));
    let idle = "`[pfc.watchdog]` has no effect";
    assert!(warned("[pfc.watchdog]\n", idle));
    assert!(!warned("[pfc]\nenabled = true\n[pfc.watchdog]\n", idle));
    assert!(!warned("[pfc.watchdog]\n[sweep]\npfc.enabled = [false, true]\n", idle));
    assert!(!warned("[pfc.watchdog]\n[sweep]\npfc = [{ enabled = true }, { enabled = false }]\n", idle));
    assert!(!warned("[pfc.watchdog]\n[sweep]\nscenario.flow_control = [\"LL\", \"LZ\"]\n", idle));
    assert!(warned("[pfc.watchdog]\n[sweep]\nscenario.seed = [1, 2]\n", idle));
    let lossy = "set pfc.enabled = true";
    assert!(warned("transport = \"roce\"\n", lossy));
}

#[test]
fn a_dscp_is_a_priority_by_the_map() {
    let map: Vec<String> = (0..64).map(|dscp| (dscp / 8).to_string()).collect();
    let text = format!("{MINIMAL}dscp = 26\n[switch]\ndscp_to_tc = [{}]\n", map.join(", "));
    let with_priority = text.replace("dscp = 26", "priority = 3");
    let json = |text: &str| parse(text).unwrap().scenario.canonical_json().unwrap();
    assert_eq!(json(&text), json(&with_priority));
}

//! Tests of reading and writing `config_db.json`.

use super::*;
use crate::tests::data;
use crate::{Error, Scenario};
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;
use sluicenet_testkit::mutated;

const SAMPLE: &str = include_str!("../../tests/data/config_db.json");

fn read(text: &str, port: Option<&str>) -> Result<Settings> {
    let (db, _) = parse_config_db("c.json", text.as_bytes())?;
    settings(&db, port, &|_, _| false)
}

fn toml(text: &str) -> String {
    toml_text(&read(text, None).unwrap_or_else(|e| panic!("{e}")).keys)
}

/// The sample with a part replaced.
fn with(from: &str, to: &str) -> String {
    assert!(SAMPLE.contains(from), "{from}");
    SAMPLE.replacen(from, to, 1)
}

/// The error of a file: file and line, the text there, message, expected input, hint.
fn refused(text: &str) -> (String, u32, String, String, String, String) {
    let Err(e) = read(text, None) else { panic!("accepted:\n{text}") };
    let d = e.diagnostic().clone();
    let marked = d.excerpt.chars().skip(d.column.saturating_sub(1) as usize).take(d.width as usize).collect();
    (d.file, d.line, marked, d.message, d.expected, d.hint)
}

fn line_of(text: &str, needle: &str) -> u32 {
    text[..text.find(needle).unwrap_or_else(|| panic!("{needle}"))].matches('\n').count() as u32 + 1
}

/// A two-level tree of 100 Gb/s with 40 m and 300 m of cable, and other keys.
fn scenario(keys: &str) -> Scenario {
    let text = format!(
        "[topology]\nkind = \"xgft\"\nm = [4, 2]\nw = [1, 1]\nlink_rate = \"100 Gb/s\"\ncable = \"40 m\"\n\
         [[topology.level]]\nlevel = 2\ncable = \"300 m\"\n{keys}\n[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 7\n\
         bytes = \"1 MB\"\npriority = 3\n"
    );
    Scenario::parse_in(&text, "t.toml", Some(&data()), &[]).unwrap_or_else(|e| panic!("{e}")).scenario
}

#[test]
fn every_table_gives_its_keys() {
    let text = toml(SAMPLE);
    for part in [
        // 2^0 of the free bytes; size is without the headroom, because the pool has a headroom pool.
        "shared = \"8000000 B\"\nheadroom_pool = \"2000000 B\"\nlossless_dynamic_th = 0\nreserved = \"1248 B\"\n",
        "xon_offset = \"2496 B\"\nxon = \"18432 B\"\nlossy_dynamic_th = 3\nlossy_reserved = \"0 B\"\n",
        "egress_dynamic_th = -1\negress_reserved = \"1518 B\"\n",
        "[[wred]]\npriorities = [3, 4]\ngreen_min_threshold = \"1048576 B\"\ngreen_max_threshold = \"2097152 B\"\n",
        "green_drop_probability = 5\nwred_green_enable = false\necn = \"ecn_all\"\n",
        // Traffic class 7 is in queue 6, which is strict.
        "[ets]\nstrict = [6, 7]\n",
        "[[ets.group]]\npriorities = [3]\nweight = 21\n",
        "[pfc]\nenabled = true\nlossless = [3, 4]\n",
        "[pfc.watchdog]\ndetection_time = \"200 ms\"\nrestoration_time = \"400 ms\"\naction = \"drop\"\n",
        "[[pfc.link]]\nrate = \"100 Gb/s\"\ncable = \"40 m\"\nheadroom = \"45056 B\"\n",
        "[[pfc.link]]\nrate = \"100 Gb/s\"\ncable = \"300 m\"\nheadroom = \"110592 B\"\n",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    // DSCP 0 has class 1, DSCP 26 class 3; a DSCP without an entry has class 0.
    let map: Vec<&str> = text.split_once('[').unwrap().1.split_once('[').unwrap().1.split(", ").take(27).collect();
    assert_eq!((map[0], map[1], map[26]), ("1", "0", "3"));
}

#[test]
fn each_key_without_a_counterpart_is_named_once() {
    let warnings = read(SAMPLE, None).unwrap().warnings;
    let named = &warnings.last().unwrap().message;
    assert_eq!(
        *named,
        "without a counterpart in a scenario, and ignored: PFC_WD (POLL_INTERVAL); PORT (alias, lanes, mtu); \
         SCHEDULER (meter_type, pir); WRED_PROFILE (red_max_threshold); BGP_NEIGHBOR"
    );
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(
        warnings[0].message.contains("would drop frames of the lossless traffic classes [3, 4]"),
        "{}",
        warnings[0]
    );
    assert_eq!(warnings[0].line, line_of(SAMPLE, "\"green_min_threshold\""));
}

#[test]
fn a_scenario_has_the_keys_of_its_file_unless_it_gives_them() {
    let of_file = scenario("[switch]\nsonic = \"config_db.json\"");
    assert_eq!((of_file.pfc.enabled, of_file.pfc.lossless), (true, 0b1_1000));
    assert_eq!(of_file.pfc.links[1].delay, Duration::from_ns(1_500));
    assert_eq!((of_file.buffer.shared, of_file.buffer.size), (Some(crate::Bytes(8_000_000)), None));
    let own = scenario(
        "[switch]\nsonic = \"config_db.json\"\n[pfc]\nlossless = [3]\n[buffer]\nsize = \"9 MB\"\nlossless_dynamic_th = 2\n\
         [ets]\nstrict = [0, 1, 2, 3, 4, 5, 6, 7]\n",
    );
    assert_eq!((own.pfc.enabled, own.pfc.lossless, own.pfc.links.len()), (true, 0b1000, 2));
    assert_eq!((own.buffer.shared, own.buffer.size), (None, Some(crate::Bytes(9_000_000))));
    assert_eq!((own.buffer.lossless_dynamic_th, own.buffer.lossy_dynamic_th), (2.0, 3.0));
    assert!(own.ets.config.unwrap().groups().is_empty());
    // One headroom for all links replaces the rows of the file.
    let own = scenario("[switch]\nsonic = \"config_db.json\"\n[pfc]\nheadroom = \"20 KB\"\n");
    assert_eq!((own.pfc.headroom, own.pfc.links.len()), (Some(crate::Bytes(20_000)), 0));
    // [scenario] says whether the network is lossless.
    assert!(!scenario("[switch]\nsonic = \"config_db.json\"\n[scenario]\nflow_control = \"LL\"").pfc.enabled);
}

#[test]
fn what_was_written_is_read_again() {
    let ports = [(40, 41_000), (300, 90_000)].map(|(metres, headroom)| Port {
        rate: Rate::gbps(100),
        delay: Duration::from_ns(5 * metres),
        headroom,
    });
    let links = "[[pfc.link]]\nrate = \"100 Gb/s\"\ncable = \"40 m\"\nheadroom = \"41 KB\"\n\
                 [[pfc.link]]\nrate = \"100 Gb/s\"\ncable = \"300 m\"\nheadroom = \"90 KB\"\n";
    let map: Vec<String> = (0..64).map(|dscp| (dscp % 8).to_string()).collect();
    let lossless = format!("[pfc]\nenabled = true\nlossless = [3, 4]\n{links}");
    let memory = "[buffer]\nshared = \"8 MB\"\nreserved = \"2 KB\"\nlossy_reserved = \"1 KB\"\negress_reserved = \"1518 B\"\n\
                  lossless_dynamic_th = -3\nlossy_dynamic_th = 1\negress_dynamic_th = 3\nxon = \"18 KB\"\nxon_offset = \"3 KB\"\n";
    let pool = Some(SwitchMemory { size: 9_000_000, shared: 8_000_000 });
    let cases = [
        (format!("{lossless}[switch]\nbuffer = \"200 KB\"\npolicy = \"output\"\ndscp_to_tc = [{}]\n", map.join(", ")), None),
        (lossless.replace("lossless =", "xoff = \"120 KB\"\nxon = \"90 KB\"\nlossless ="), None),
        ("[pfc]\nenabled = false\n".into(), None),
        (
            format!(
                "{lossless}[pfc.watchdog]\ndetection_time = \"5 s\"\nrestoration_time = \"100 ms\"\naction = \"forward\"\n"
            ),
            None,
        ),
        (format!("{lossless}[pfc.watchdog]\naction = \"alert\"\n"), None),
        (format!("{lossless}{memory}"), pool),
        (format!("{lossless}{memory}headroom_pool = \"1 MB\"\n"), pool),
        (
            format!(
                "{lossless}[[wred]]\npriorities = [3, 4]\ngreen_min_threshold = \"50 KB\"\ngreen_max_threshold = \"90 KB\"\n\
                 green_drop_probability = 5\nwred_green_enable = false\necn = \"ecn_all\"\n[[wred]]\npriorities = [0]\n\
                 green_min_threshold = \"50 KB\"\ngreen_max_threshold = \"60 KB\"\necn = \"ecn_green\"\n"
            ),
            None,
        ),
        (
            format!(
                "{lossless}[ets]\nstrict = [6, 7]\n[[ets.group]]\npriorities = [0, 1, 2, 5]\nbandwidth = 30\n\
                 [[ets.group]]\npriorities = [3, 4]\nbandwidth = 70\n"
            ),
            None,
        ),
        (
            "[[ets.group]]\npriorities = [0, 2]\nweight = 7\n[[ets.group]]\npriorities = [1, 3, 4, 5, 6, 7]\nweight = 1\n".into(),
            None,
        ),
        // Groups take turns in their order, which is no order of priorities.
        (
            format!(
                "{lossless}{memory}[ets]\nstrict = [7]\n[[ets.group]]\npriorities = [3, 4]\nbandwidth = 70\n[[ets.group]]\n\
                 priorities = [5, 6]\nbandwidth = 10\n[[ets.group]]\npriorities = [0, 1, 2]\nbandwidth = 20\n"
            ),
            pool,
        ),
    ];
    for (keys, memory) in cases {
        let first = scenario(&keys);
        let written = write(&first, &ports, memory).unwrap_or_else(|e| panic!("{keys}\n{e}"));
        let text = serde_json::to_string_pretty(&written.json).unwrap();
        let keys_again = toml(&text);
        let second = scenario(&keys_again);
        // The names of keys that give only default values may differ.
        assert_eq!(first.canonical_json().unwrap(), second.canonical_json().unwrap(), "{keys}\n{text}\n{keys_again}");
        let again = write(&second, &ports, memory).unwrap();
        assert_eq!(serde_json::to_string_pretty(&again.json).unwrap(), text);
    }
}

#[test]
fn what_sonic_cannot_have_is_refused_or_named() {
    let port = Port { rate: Rate::gbps(100), delay: Duration::from_ns(1), headroom: 1_000 };
    let pool = Some(SwitchMemory { size: 2_000_000, shared: 1_000_000 });
    let refused = |keys: &str, memory| write(&scenario(keys), &[port], memory).unwrap_err().to_string();
    for (keys, memory, says) in [
        ("[buffer]\nsize = \"2 MB\"\nlossy_dynamic_th = 0.5\n", pool, "an exponent of 0.5"),
        ("[buffer]\nsize = \"2 MB\"\nlossless_dynamic_th = 8\n", pool, "from -8 to 7"),
        ("[switch]\npolicy = \"pooled\"\n", None, "no counterpart of this policy"),
        ("[pfc]\nenabled = true\n[pfc.watchdog]\ndetection_time = \"99 ms\"\n", None, "from 100 to 5000"),
        ("[pfc]\nenabled = true\n[pfc.watchdog]\nrestoration_time = \"100.5 ms\"\n", None, "from 100 to 60000"),
        ("[switch]\nbuffer = \"100 packets\"\n", None, "queues are limited in bytes"),
        (
            "[pfc]\nenabled = true\nlossless = [3]\n[[ets.group]]\npriorities = [0, 1, 2, 3, 4, 5, 6, 7]\nbandwidth = 100\n",
            None,
            "priorities 0 and 3 share a group",
        ),
    ] {
        let error = refused(keys, memory);
        assert!(error.contains(says) && error.contains("t.toml:"), "{error}");
    }
    let notes = write(&scenario("[switch]\ndelay = \"500 ns\"\n[red]\nenabled = true\n"), &[port], None).unwrap().notes;
    assert_eq!(notes[1], "without a counterpart in SONiC, and left out: red, switch.delay");
    assert!(notes[0].contains("rounded up to whole metres"), "{notes:?}");
}

#[test]
fn faults_have_a_line_the_range_and_a_hint() {
    let cases: &[(&str, &str, &str, &str, &str, &str)] = &[
        // From, to, the marked text, message, expected, hint.
        (
            "|AZURE]\",",
            "|AZUR]\",",
            "\"[MAP_PFC_PRIORITY_TO_QUEUE|AZUR]\"",
            "there is no MAP_PFC_PRIORITY_TO_QUEUE|AZUR",
            "",
            "`AZURE`",
        ),
        (
            "[BUFFER_PROFILE|pg_",
            "[BUFFER_POOL|pg_",
            "\"[BUFFER_POOL|pg_lossless_100000_40m_profile]\"",
            "a row of `BUFFER_POOL`",
            "a row of BUFFER_PROFILE",
            "",
        ),
        (
            "\"pg_lossless_100000_300m_profile\" }",
            "\"pg_lossless\" }",
            "\"pg_lossless\"",
            "there is no BUFFER_PROFILE|pg_lossless",
            "",
            "it has egress_lossless_profile",
        ),
        (
            "\"scheduler\": \"scheduler.0\"",
            "\"scheduler\": \"schedular.0\"",
            "\"schedular.0\"",
            "there is no SCHEDULER|schedular.0",
            "",
            "did you mean `scheduler.0`?",
        ),
        (
            "\"dynamic_th\": \"3\"",
            "\"dynamic_th\": \"8\"",
            "\"8\"",
            "dynamic_th of 8 is out of range",
            "from -8 to 7",
            "",
        ),
        ("\"weight\": \"14\"", "\"weight\": \"0\"", "\"0\"", "weight of 0 is out of range", "from 1 to 100", ""),
        (
            "\"detection_time\": \"200\"",
            "\"detection_time\": \"99\"",
            "\"99\"",
            "detection_time of 99 is out of range",
            "from 100 to 5000",
            "",
        ),
        (
            "\"restoration_time\": \"400\"",
            "\"restoration_time\": \"60001\"",
            "\"60001\"",
            "restoration_time of 60001 is out of range",
            "from 100 to 60000",
            "",
        ),
        (
            "\"action\": \"drop\"",
            "\"action\": \"shut\"",
            "\"shut\"",
            "unknown action `shut`",
            "drop, forward, alert",
            "",
        ),
        (
            "\"xoff\": \"110592\"",
            "\"xoff\": \"108K\"",
            "\"108K\"",
            "`108K` is not xoff",
            "a whole number, from 0 to",
            "",
        ),
        (
            "\"speed\": \"100000\" },",
            "\"speed\": \"0\" },",
            "\"0\"",
            "speed of 0 is out of range",
            "from 1 to 100000000",
            "",
        ),
        (
            "\"Ethernet4\": \"300m\"",
            "\"Ethernet4\": \"300\"",
            "\"300\"",
            "a length needs a unit",
            "a length in metres, as \"40m\"",
            "write it as",
        ),
        (
            "Ethernet4|3-4\": { \"profile\": \"pg",
            "Ethernet8|3-4\": { \"profile\": \"pg",
            "\"Ethernet8|3-4\"",
            "there is no port `Ethernet8` in PORT",
            "",
            "did you mean",
        ),
        (
            "\"GLOBAL\": {",
            "\"Ethernet999\": { \"detection_time\": \"200\" },\n\"GLOBAL\": {",
            "\"Ethernet999\"",
            "there is no port `Ethernet999` in PORT",
            "",
            "",
        ),
        (
            "Ethernet4|3-4\": { \"profile\": \"pg",
            "Ethernet4|3-99\": { \"profile\": \"pg",
            "\"Ethernet4|3-99\"",
            "a number of this row of 99 is out of range",
            "from 3 to 63",
            "",
        ),
        (
            "Ethernet4|3-4\": { \"profile\": \"pg",
            "Ethernet4|2-4\": { \"profile\": \"pg",
            "\"Ethernet4|2-4\"",
            "2 of Ethernet4 has another row in line 4",
            "",
            "do not overlap",
        ),
        (
            "Ethernet4|3-4\": { \"profile\": \"pg",
            "Ethernet4\": { \"profile\": \"pg",
            "\"Ethernet4\"",
            "without numbers",
            "\"Ethernet0|3-4\"",
            "",
        ),
        (
            "\"pfc_enable\": \"3,4\"",
            "\"pfc_enable\": \"3,9\"",
            "\"3,9\"",
            "a priority of 9 is out of range",
            "from 0 to 7",
            "",
        ),
        ("\"26\": \"3\"", "\"64\": \"3\"", "\"64\"", "a DSCP of 64 is out of range", "from 0 to 63", ""),
        ("\"26\": \"3\"", "\"26\": \"8\"", "\"8\"", "a traffic class of 8 is out of range", "from 0 to 7", ""),
        ("\"ecn_all\"", "\"ecn_al\"", "\"ecn_al\"", "unknown ecn `ecn_al`", "ecn_none, ecn_green, ecn_all", ""),
        ("\"DWRR\"", "\"WFQ\"", "\"WFQ\"", "unknown type `WFQ`", "DWRR, WRR or STRICT", ""),
        (
            "\"green_min_threshold\": \"1048576\", \"red",
            "\"red",
            "\"AZURE_LOSSLESS\"",
            "has no green_min_threshold",
            "",
            "in bytes",
        ),
        (
            "\"mode\": \"dynamic\", \"size\": \"8000000\", \"type\": \"ingress\"",
            "\"type\": \"ingress\"",
            "\"ingress_lossless_pool\"",
            "has no size",
            "",
            "give buffer.shared",
        ),
        (
            "\"8\": \"0\", \"26\"",
            "\"8\": \"0\", \"8\": \"1\", \"26\"",
            "\"8\"",
            "`8` stands twice in DSCP_TO_TC_MAP|AZURE",
            "",
            "remove one",
        ),
        ("\"QUEUE\": {", "\"PORT\": {", "\"PORT\"", "`PORT` stands twice in the file", "", ""),
        (
            "\"AZURE\": { \"Ethernet0\": \"40m\", \"Ethernet4\": \"300m\" }",
            "\"AZURE\": [1]",
            "[",
            "CABLE_LENGTH|AZURE is no JSON object",
            "an object",
            "",
        ),
    ];
    for (from, to, marked, message, expected, hint) in cases {
        let text = with(from, to);
        let (file, line, at, says, wants, advice) = refused(&text);
        assert_eq!((file.as_str(), at.as_str()), ("c.json", *marked), "{says}");
        assert!(
            line > 0 && says.contains(message) && wants.contains(expected) && advice.contains(hint),
            "{says}; {wants}; {advice}"
        );
    }
}

#[test]
fn text_that_is_no_json_has_its_place() {
    let half = &SAMPLE[..SAMPLE.len() / 2];
    let (_, line, _, message, _, hint) = refused(half);
    assert_eq!(line as usize, half.matches('\n').count() + 1, "{message}");
    assert!(message.contains("this is not JSON: EOF") && hint == "the file is cut short", "{message}; {hint}");
    for (text, line, says) in [
        ("", 1, "EOF"),
        ("[]", 1, "the file is no JSON object"),
        ("{ \"PORT\": 5 }", 1, "the table PORT is no JSON object"),
        ("{\n \"PORT\": {\n  \"Ethernet0\": { \"speed\": }\n }\n}", 3, "expected value"),
        ("{\n \"PORT\": {},\n}", 3, "trailing comma"),
        ("{} x", 1, "trailing characters"),
    ] {
        let (_, at, _, message, ..) = refused(text);
        assert!(at == line && message.contains(says), "{text}: {at} {message}");
    }
    let e = parse_config_db("c.json", b"{\n\xff}").unwrap_err();
    assert_eq!((e.diagnostic().line, e.diagnostic().message.as_str()), (2, "this is not text in UTF-8"));
}

#[test]
fn ports_that_differ_need_a_choice() {
    let other = "\"Ethernet4\": { \"pfc_enable\": \"3,4\", \"tc_to_pg_map\": \"AZURE\" },\n        \"Ethernet0\": {\n";
    let text = with("\"Ethernet0,Ethernet4\": {\n", other);
    let (_, _, at, message, _, hint) = refused(&text);
    let says = "Ethernet4 and Ethernet0 differ in the queue (tc_to_queue_map) of traffic class 7";
    assert_eq!((at.as_str(), message.as_str()), ("\"Ethernet0\"", says));
    assert!(hint.contains("switch.sonic_port = \"Ethernet4\""), "{hint}");
    let of = |port| toml_text(&read(&text, Some(port)).unwrap().keys);
    // Queue 7 of Ethernet4 has no scheduler: DWRR with a weight of 1.
    assert!(of("Ethernet0").contains("strict = [6, 7]\n"), "{}", of("Ethernet0"));
    assert!(of("Ethernet4").contains("strict = [6]\n") && of("Ethernet4").contains("[7]\nweight = 1\n"));
    // The headroom of all ports stays known.
    assert!(["45056 B", "110592 B"].iter().all(|bytes| of("Ethernet4").contains(bytes)));
    let error = read(&text, Some("Ethernet9")).unwrap_err();
    assert!(error.to_string().contains("it has Ethernet4, Ethernet0"), "{error}");
}

#[test]
fn lossless_groups_with_two_headrooms_need_one_of_the_scenario() {
    let two = "\"Ethernet4|3\": { \"profile\": \"pg_lossless_100000_300m_profile\" },\n        \"Ethernet4|4\": { \"profile\": \"pg";
    let text = with("\"Ethernet4|3-4\": { \"profile\": \"pg", two).replacen(
        "4|4\": { \"profile\": \"pg_lossless_100000_300m",
        "4|4\": { \"profile\": \"pg_lossless_100000_40m",
        1,
    );
    let (_, _, at, message, _, hint) = refused(&text);
    assert_eq!(message, "ports of 100000 Mb/s with 300 m of cable have headrooms of 110592 B and 45056 B");
    assert_eq!((at.as_str(), hint.as_str()), ("\"45056\"", "give pfc.headroom in the scenario"));
    let (db, _) = parse_config_db("c.json", text.as_bytes()).unwrap();
    let given = |section: &str, key: &str| (section, key) == ("pfc", "headroom");
    assert!(settings(&db, None, &given).is_ok());
}

#[test]
fn ports_have_one_watchdog() {
    let row = "\"Ethernet4\": { \"action\": \"drop\", \"detection_time\": \"200\", \"restoration_time\": \"400\" },\n";
    for (to, marked) in [
        (
            "\"Ethernet4\": { \"action\": \"alert\", \"detection_time\": \"200\", \"restoration_time\": \"400\" },\n",
            "\"Ethernet4\"",
        ),
        ("", "\"Ethernet0\""),
    ] {
        let text = with(row, to);
        let (_, _, at, message, _, hint) = refused(&text);
        assert_eq!((at.as_str(), message.as_str()), (marked, "Ethernet0 and Ethernet4 differ in the PFC watchdog"));
        assert!(hint.contains("switch.sonic_port = \"Ethernet0\""), "{hint}");
        let of = |port| toml_text(&read(&text, Some(port)).unwrap().keys);
        assert!(of("Ethernet0").contains("[pfc.watchdog]\n") && !of("Ethernet4").contains("action = \"drop\""));
    }
    // `pfcwd start` takes twice the detection time; the action is `drop`.
    let text = SAMPLE.replace(
        "\"action\": \"drop\", \"detection_time\": \"200\", \"restoration_time\": \"400\"",
        "\"detection_time\": \"300\"",
    );
    assert!(toml(&text).contains("detection_time = \"300 ms\"\nrestoration_time = \"600 ms\"\naction = \"drop\"\n"));
    let text = with("\"pfcwd_sw_enable\": \"3,4\"", "\"pfcwd_sw_enable\": \"3\"");
    let warnings = read(&text, None).unwrap().warnings;
    assert!(warnings[0].message.contains("other priorities than those of pfc_enable"), "{warnings:?}");
    assert_eq!(warnings[0].line, line_of(&text, "\"pfcwd_sw_enable\""));
}

#[test]
fn headroom_that_the_switch_computes_is_computed_here() {
    let text = with("\"[BUFFER_PROFILE|pg_lossless_100000_40m_profile]\"", "\"NULL\"")
        .replacen("\"pg_lossless_100000_300m_profile\" }", "\"NULL\" }", 1)
        .replacen("\"BUFFER_QUEUE\"", "\"DEFAULT_LOSSLESS_BUFFER_PARAMETER\": { \"AZURE\": { \"default_dynamic_th\": \"-2\" } },\n    \"BUFFER_QUEUE\"", 1);
    let keys = toml(&text);
    assert!(keys.contains("lossless_dynamic_th = -2\n") && !keys.contains("pfc.link"), "{keys}");
    // A pool without a size needs one from the scenario.
    let text = text.replacen("\"size\": \"8000000\", \"type\": \"ingress\"", "\"type\": \"ingress\"", 1);
    assert!(read(&text, None).is_err());
    let (db, _) = parse_config_db("c.json", text.as_bytes()).unwrap();
    let given = |section: &str, key: &str| (section, key) == ("buffer", "shared");
    let keys = toml_text(&settings(&db, None, &given).unwrap().keys);
    assert!(keys.contains("[buffer]\nheadroom_pool"), "{keys}");
}

#[test]
fn a_size_that_counts_the_headroom_does_so_here() {
    // Spectrum: no shared headroom pool, and size = xon + xoff.
    let text = with(", \"type\": \"ingress\", \"xoff\": \"2000000\"", ", \"type\": \"ingress\"")
        .replace("\"size\": \"1248\", \"xoff\": \"110592\"", "\"size\": \"130048\", \"xoff\": \"110592\"")
        .replace("\"size\": \"1248\", \"xoff\": \"45056\"", "\"size\": \"64512\", \"xoff\": \"45056\"");
    let keys = toml(&text);
    assert!(keys.contains("reserved = \"19456 B\"\n") && !keys.contains("headroom_pool"), "{keys}");
}

#[test]
fn thresholds_in_bytes_are_those_of_ports() {
    let text = with(
        "\"dynamic_th\": \"0\", \"pool\": \"ingress_lossless_pool\", \"size\": \"1248\", \"xoff\": \"110592\"",
        "\"static_th\": \"100000\", \"pool\": \"ingress_lossless_pool\", \"size\": \"1248\", \"xoff\": \"110592\"",
    )
    .replacen("\"dynamic_th\": \"0\"", "\"static_th\": \"100000\"", 1)
    .replacen("\"dynamic_th\": \"-1\"", "\"static_th\": \"150000\"", 1);
    let keys = toml(&text);
    assert!(keys.contains("xoff = \"101248 B\"\nxon = \"98752 B\"\n"), "{keys}");
    assert!(keys.contains("buffer = \"151518 B\"\npolicy = \"output\"\n") && !keys.contains("[buffer]"), "{keys}");
}

#[test]
fn a_pause_of_another_queue_is_said() {
    let text = with("\"AZURE\": { \"3\": \"3\", \"4\": \"4\" }", "\"AZURE\": { \"3\": \"4\", \"4\": \"4\" }");
    let said = read(&text, None).unwrap().warnings;
    assert!(
        said[0].message.starts_with("a pause of traffic class 3 stops queue 4, and its frames are in queue 3"),
        "{said:?}"
    );
}

#[test]
fn errors_of_keys_point_into_the_file() {
    let folder = sluicenet_testkit::Dir::new("sonic-errors");
    // Within SONiC's limits, and beyond those of a scenario.
    let text = with("\"green_max_threshold\": \"2097152\"", "\"green_max_threshold\": \"99999999999\"");
    std::fs::write(folder.0.join("c.json"), &text).unwrap();
    let scenario = "[topology]\nkind = \"single-switch\"\nhosts = 2\n[switch]\nsonic = \"c.json\"\n[[workload]]\nkind = \"flow\"\n\
                    src = 0\ndst = 1\nbytes = \"1 B\"\n";
    let e = Scenario::parse_in(scenario, "t.toml", Some(&folder.0), &[]).unwrap_err();
    let d = e.diagnostic();
    assert_eq!((d.file.as_str(), d.line), ("c.json", line_of(&text, "99999999999")), "{e}");
    assert!(d.message.contains("`green_max_threshold` of 99999999999 B is out of range"), "{e}");
    let e = Scenario::parse_in(&scenario.replace("c.json", "d.json"), "t.toml", Some(&folder.0), &[]).unwrap_err();
    assert!(e.to_string().contains("there is no such file") && e.diagnostic().line == 5, "{e}");
}

#[test]
fn any_damage_is_refused_with_a_place_or_read() {
    let mut rng = sluicenet_proto::rng::Rng::from_words(&[5]);
    for _ in 0..2_000 {
        let bytes = mutated(SAMPLE.as_bytes(), &["\"", "|", "-", "NULL", "[SCHEDULER|x]"], &mut rng);
        let outcome = parse_config_db("c.json", &bytes).and_then(|(db, _)| settings(&db, None, &|_, _| false));
        if let Err(e) = outcome {
            let shown = Error::to_string(&e);
            assert!(shown.contains("--> c.json:"), "{shown}");
        }
    }
}

#[test]
fn a_file_of_ten_megabytes_is_read_at_once() {
    let rows: Vec<String> = (0..60_000)
        .map(|i| {
            format!(
                "\"Ethernet0|rule{i}\": {{ \"priority\": \"{i}\", \"src\": \"10.0.0.0/8\", \"text\": \"{:060}\" }}",
                i
            )
        })
        .collect();
    let text = SAMPLE.replacen(
        "\"BGP_NEIGHBOR\"",
        &format!("\"ACL_RULE\": {{ {} }},\n    \"BGP_NEIGHBOR\"", rows.join(",\n")),
        1,
    );
    assert!(text.len() > 8_000_000 && toml(&text) == toml(SAMPLE), "{}", text.len());
    let e = parse_config_db("c.json", &vec![b' '; (64 << 20) + 1]).unwrap_err();
    assert!(e.to_string().contains("at most 64 MiB are read"), "{e}");
}

//! Sweeps: order, labels, limits.

use super::*;

const SWEEP: &str = r#"
[server]
virtual_network = true

[sweep]
"scenario.flow_control" = ["LL", "LZ", "ZL", "ZZ"]
tcp.congestion = ["newreno", "cubic"]
scenario.seed = [1, 2, 3]
"#;

#[test]
fn variants_come_in_the_order_of_the_file() {
    let loaded = parse(&format!("{MINIMAL}{SWEEP}")).unwrap();
    let variants = loaded.expand_sweep().unwrap();
    assert_eq!(variants.len(), 24);
    let labels: Vec<&str> = variants.iter().map(|v| v.label.as_str()).collect();
    assert_eq!(labels[0], "flow_control=LL congestion=newreno seed=1");
    assert_eq!(labels[1], "flow_control=LL congestion=newreno seed=2");
    assert_eq!(labels[3], "flow_control=LL congestion=cubic seed=1");
    assert_eq!(labels[23], "flow_control=ZZ congestion=cubic seed=3");
    let v = &variants[9];
    assert_eq!(v.settings[0], ("scenario.flow_control".to_string(), "LZ".to_string()));
    assert_eq!((v.scenario.flow_control(), v.scenario.seed), (FlowControl::Lz, 1));
    assert_eq!(v.scenario.tcp.congestion, Congestion::Cubic);
    let again: Vec<String> = loaded.expand_sweep().unwrap().into_iter().map(|v| v.label).collect();
    assert_eq!(again, labels);
}

#[test]
fn folders_have_plain_names() {
    let folder = |settings: &[&str]| folder_name(&settings.iter().map(|s| s.to_string()).collect::<Vec<_>>());
    assert_eq!(folder(&["flow_control=LZ", "seed=2"]), "flow_control=LZ,seed=2");
    // A comma stands between settings and nowhere else.
    assert_eq!(folder(&["link_rate=10 Gb/s", "hosts=[1,2]"]), "link_rate=10_Gb_s,hosts=_1_2_");
    assert_eq!(folder(&["../../x"]), ".._.._x");
    assert_eq!(folder(&[]), "run");
    assert_eq!(folder(&[&"é".repeat(1000)]).len(), 120);
}

#[test]
fn axes_are_short_where_that_is_enough() {
    let axes = |sweep: &str| {
        let text = format!("{MINIMAL}{}[sweep]\n{sweep}\n", &MINIMAL[MINIMAL.find("[[").unwrap()..]);
        let variants = parse(&text).unwrap().expand_sweep().unwrap();
        variants[0].axes().into_iter().map(|a| a.0).collect::<Vec<_>>()
    };
    // Runs that differ in the seed alone are one configuration.
    assert_eq!(axes("scenario.seed = [1]\ntcp.congestion = [\"vegas\"]"), ["congestion"]);
    let two = "\"workload.0.dst\" = [2]\n\"workload.1.dst\" = [2]";
    assert_eq!(axes(two), ["workload.0.dst", "workload.1.dst"]);
}

#[test]
fn no_sweep_is_one_variant() {
    let loaded = parse(MINIMAL).unwrap();
    let variants = loaded.expand_sweep().unwrap();
    assert_eq!((variants.len(), variants[0].label.as_str()), (1, ""));
    assert_eq!(variants[0].scenario, loaded.scenario);
}

#[test]
fn a_list_of_one_value_is_a_setting_of_the_base() {
    let text = format!("{MINIMAL}{SWEEP}");
    let overrides = ["sweep.\"scenario.flow_control\"=[\"ZZ\"]".to_owned(), "sweep.scenario.seed=[3]".to_owned()];
    let loaded = Scenario::parse_in(&text, "t.toml", None, &overrides).unwrap();
    assert_eq!((loaded.scenario.flow_control(), loaded.scenario.seed), (FlowControl::Zz, 3));
    // The list of several varies, and the base has its own value.
    assert_eq!(loaded.scenario.tcp.congestion, Congestion::Cubic);
    let variants = loaded.expand_sweep().unwrap();
    let labels: Vec<&str> = variants.iter().map(|v| v.label.as_str()).collect();
    assert_eq!(labels, ["flow_control=ZZ congestion=newreno seed=3", "flow_control=ZZ congestion=cubic seed=3"]);
    assert_eq!(variants[1].scenario, loaded.scenario);
}

#[test]
fn a_value_that_stands_twice_is_refused() {
    let text = format!("{MINIMAL}[sweep]\nscenario.seed = [1, 2, 1]\n");
    let error = parse(&text).unwrap_err();
    assert_eq!(error.diagnostic().message, "`scenario.seed` has this value twice");
    assert_eq!((error.diagnostic().line, error.diagnostic().column), (12, 24));
}

#[test]
fn a_sweep_reaches_into_workloads_and_whole_tables() {
    let text = format!("{MINIMAL}[sweep]\n\"workload.0.bytes\" = [\"1 KB\", \"2 KB\"]\nworkload.0.dst = [2, 3]\n");
    let variants = parse(&text).unwrap().expand_sweep().unwrap();
    assert_eq!(variants[3].label, "bytes=2 KB dst=3");
    assert_eq!(variants[3].folder, "bytes=2_KB,dst=3");
    let Workload::Flow(f) = &variants[3].scenario.workloads[0] else { panic!() };
    assert_eq!((f.bytes, f.dst), (Some(Bytes(2000)), 3));
    let text = format!("{MINIMAL}[sweep]\nswitch.buffer = [\"100 KB\"]\nadapter.buffer = [\"200 KB\"]\n");
    assert_eq!(parse(&text).unwrap().expand_sweep().unwrap()[0].label, "switch.buffer=100 KB adapter.buffer=200 KB");
}

#[test]
fn a_bad_sweep_says_where() {
    let sweep = |text: &str| format!("{MINIMAL}[sweep]\n{text}\n");
    let expanded = |text: &str| match parse(&sweep(text)) {
        Err(e) => e.diagnostic().clone(),
        Ok(loaded) => loaded.expand_sweep().unwrap_err().diagnostic().clone(),
    };
    let d = expanded("tcp.congestion = [\"cubic\", \"reno2\"]");
    assert_eq!((d.line, d.column), (12, 28), "{d:#?}");
    assert!(d.hint.contains("in the variant congestion=reno2"), "{d:#?}");
    let d = expanded("tcp.congestoin = [\"cubic\"]");
    assert_eq!((d.line, d.column), (12, 5), "{d:#?}");
    assert!(expanded("scenario.seed = []").message.contains("no values"));
    assert!(expanded("scenario.seed = 3").message.contains("where a list of values"));
    assert!(expanded("sweep.x = [3]").message.contains("cannot vary a sweep"));
    assert!(expanded("\"tcp.nagle\" = [true]\ntcp.nagle = [false]").message.contains("swept twice"));
    let long = (0..300).map(|i| i.to_string()).collect::<Vec<_>>().join(",");
    let d = expanded(&format!("scenario.seed = [{long}]\ntcp.ack_every = [{long}]"));
    assert!(d.message.contains("more than 65536 variants"), "{d:#?}");
}

#[test]
fn seeds_are_given_once() {
    let text = format!("{MINIMAL}[sweep]\n\"scenario.seed\" = [1, 2]\nworkload.0.bytes = [\"1 KB\", \"2 KB\"]\n");
    let checked = |text: &str, overrides: &[&str]| {
        let overrides: Vec<String> = overrides.iter().map(|o| o.to_string()).collect();
        let e = Scenario::parse_in(text, "t.toml", None, &overrides).unwrap().check_seeds().err()?;
        let d = e.diagnostic();
        Some((d.file.clone(), d.message.clone()))
    };
    let (file, message) = checked(&text, &[]).unwrap();
    assert!(file == "t.toml" && message.contains("seeds are given as well"), "{message}");
    assert_eq!(checked(MINIMAL, &["workload.0.dst=2", "topology.hosts=5"]), None);
    assert_eq!(checked(MINIMAL, &["scenario.seed=7"]).unwrap().0, "--set");
}

#[test]
fn what_is_set_on_top_wins_over_the_sweep() {
    let text = format!("{MINIMAL}[sweep]\n\"scenario.seed\" = [1, 2]\nworkload.0.bytes = [\"1 KB\", \"2 KB\"]\n");
    let labels = |overrides: &[&str]| {
        let overrides: Vec<String> = overrides.iter().map(|o| o.to_string()).collect();
        let loaded = Scenario::parse_in(&text, "t.toml", None, &overrides).unwrap();
        let variants = loaded.expand_sweep().unwrap();
        variants.into_iter().map(|v| (v.label, v.scenario.seed)).collect::<Vec<_>>()
    };
    let pair = |label: &str, seed| (label.to_owned(), seed);
    // A value fixes the key, in every variant.
    assert_eq!(labels(&["scenario.seed=7"]), [pair("bytes=1 KB", 7), pair("bytes=2 KB", 7)]);
    assert_eq!(labels(&["scenario.seed=7", "workload.0.bytes=3 KB"]), [pair("", 7)]);
    // A list takes the place of the list, where it stood; one of another key comes last.
    let three = labels(&["sweep.\"scenario.seed\"=[8]", "sweep.tcp.ack_every=[1, 2]", "workload.0.bytes=1 KB"]);
    assert_eq!(three, [pair("seed=8 ack_every=1", 8), pair("seed=8 ack_every=2", 8)]);
    let first = labels(&["sweep.scenario.seed=[8, 9]", "workload.0.bytes=1 KB"]);
    assert_eq!(first, [pair("seed=8", 8), pair("seed=9", 9)]);
}

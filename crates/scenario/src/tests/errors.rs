//! Every kind of refusal: its place, its message, its advice.

use super::*;
use sluicenet_proto::rng::Rng;
use sluicenet_testkit::{Dir, mutated};

/// Replaces `from` in the full scenario and expects an error at `needle` with `message`.
fn expect(text: &str, needle: &str, message: &str) {
    let d = refused(text);
    let at = text.find(needle).unwrap_or_else(|| panic!("{needle} is not in the text"));
    let line = text[..at].matches('\n').count() + 1;
    let column = at - text[..at].rfind('\n').map_or(0, |i| i + 1) + 1;
    assert!(d.message.contains(message), "{d:#?}");
    assert_eq!((d.line as usize, d.column as usize), (line, column), "{d:#?}");
    assert_eq!(d.file, "t.toml");
}

fn with(from: &str, to: &str) -> String {
    assert!(FULL.contains(from), "{from}");
    FULL.replacen(from, to, 1)
}

#[test]
fn a_tunnel_fits_the_physical_mtu() {
    // The physical MTU bounds a guest's packet with the tunnel's bytes around it: 1446 + 54 = 1500.
    let text = |keys: &str| {
        format!(
            "[scenario]\nparameters = \"crisan2014-ch3\"\n{keys}[topology]\nkind = \"single-switch\"\nhosts = 2\n\
             [[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\nbytes = \"1 KB\"\n"
        )
    };
    let hint = |text: &str| Scenario::parse(text, "t.toml").unwrap_err().diagnostic().hint.clone();
    assert!(Scenario::parse(&text("[overlay]\nmtu = \"1446 B\"\n"), "t.toml").is_ok());
    for (keys, needle, largest) in [
        ("[overlay]\nmtu = \"1464 B\"\n", "\"1464 B", "overlay.mtu is at most 1446 B"),
        ("[overlay]\nmtu = \"1447 B\"\n", "\"1447 B", "overlay.mtu is at most 1446 B"),
        ("[overlay]\nencapsulation = \"72 B\"\n", "\"72 B", "overlay.mtu is at most 1428 B"),
        ("[framing]\nmtu = \"1499 B\"\n", "\"1499 B", "overlay.mtu is at most 1445 B"),
        ("[overlay]\nencapsulation = \"1490 B\"\n", "\"1490 B", "overlay.encapsulation is at most "),
    ] {
        expect(&text(keys), needle, "do not fit the physical MTU");
        assert!(hint(&text(keys)).starts_with(largest), "{keys}: {}", hint(&text(keys)));
    }
}

#[test]
fn toml_itself() {
    expect("[topology\nkind = 1\n", "\nkind", "this is not TOML");
    assert!(refused("a = \n").message.contains("this is not TOML"));
    assert!(refused(&MINIMAL.replace("hosts = 4", "hosts = 4\nhosts = 5")).message.contains("not TOML: duplicate key"));
    assert!(refused(&format!("a = {}", "[".repeat(100_000))).message.contains("not TOML"));
}

#[test]
fn a_hint_is_given_where_it_fits() {
    let hint = |name: &str, text: &str| Scenario::parse(text, name).unwrap_err().diagnostic().hint.clone();
    for text in ["kind = single-switch\n", "link_rate = 10 Gb/s\n", "m = [4, x]\n", "d = { kind = fixed }\n"] {
        assert!(hint("t.toml", &format!("[topology]\n{text}")).contains("needs quotes"), "{text}");
    }
    for text in ["kind = \"a\"\nkind = \"b\"\n", "hosts =\n", "m = \"abc\n", "m: 3\n", "[x\n"] {
        assert_eq!(hint("t.toml", &format!("[topology]\n{text}")), "", "{text}");
    }
    for (name, text) in [("README.md", "# A\n\nA gate that holds.\n"), ("a.json", "{\"a\": 1}"), ("a", " {\"a\": 1}")] {
        assert!(hint(name, text).contains("a scenario is a TOML file"), "{name}");
    }
}

#[test]
fn unknown_keys_find_their_neighbours() {
    let text = with("link_rate", "link_rat");
    expect(&text, "link_rat ", "unknown key `link_rat` in [topology]");
    assert_eq!(refused(&text).hint, "did you mean `link_rate`?");
    let text = with("[switch]", "[swich]");
    expect(&text, "swich]", "unknown key `swich` at the top");
    let text = with("pattern = \"stride\"", "patern = \"stride\"");
    expect(&text, "patern", "unknown key `patern` in [permutation]");
    let text = with("kind = \"incast\"", "kind = \"in-cast\"");
    expect(&text, "\"in-cast\"", "unknown kind of workload `in-cast`");
    assert_eq!(refused(&text).hint, "did you mean `incast`?");
    let text = with("median", "medain");
    expect(&text, "medain", "unknown key `medain` in [lognormal]");
}

#[test]
fn the_values_of_a_key_are_listed_once() {
    let listed = |text: &str, value: &str| {
        let shown = parse(text).unwrap_err().to_string();
        assert_eq!(shown.matches(value).count(), 1, "{shown}");
    };
    listed(&with("routing = \"random\"", "routing = \"shortest\""), "hash-destination");
    listed(&with("pattern = \"stride\"", "pattern = \"every-other\""), "same-id-outgoing");
    listed(&with("kind = \"incast\"", "kind = \"everybody\""), "partition-aggregate-2");
    // Also where the key is not given.
    listed(&with("pattern = \"stride\"\n", ""), "same-id-outgoing");
}

#[test]
fn slow_machines_and_credits() {
    for (from, to, needle, message) in [
        ("host = 1, vm", "host = 16, vm", "16, vm", "there are 16 servers, counted from 0"),
        ("vm = 0, rate", "vm = 4, rate", "4, rate", "a server has 4 virtual machines, counted from 0"),
        ("\"1 Gb/s\" }", "\"11 Gb/s\" }", "\"11 Gb", "faster than the machine's port"),
        ("\"1 Gb/s\" }", "\"1 Gb/s\" }, { host = 1, rate = \"2 Gb/s\" }", "1, rate", "stands here twice"),
        ("rx_queue = 512", "rx_queue = 0", "0\nbatch", "`rx_queue` of 0 is out of range"),
        ("batch = 8", "batch = 513", "513", "a batch of 513 credits does not fit a receive queue of 512"),
        ("batch = 8", "bathc = 8", "bathc", "unknown key `bathc` in [zcredit]"),
        ("enabled = false\nrx", "enabled = true\nrx", "true\nrx", "4 hosts are external: they have no hypervisor"),
    ] {
        expect(&with(from, to), needle, message);
    }
    assert!(refused(&with(", rate = \"1 Gb/s\" }", " }")).message.contains("rate"));
    for keys in ["[zcredit]\nenabled = true\n", "[[vswitch.slow]]\nhost = 0\nrate = \"1 Gb/s\"\n"] {
        let d = refused(&format!("{MINIMAL}{keys}"));
        assert!(d.message.contains("there is no virtual network"), "{d:#?}");
        assert_eq!(d.hint, "set server.virtual_network = true");
    }
}

#[test]
fn quantities() {
    let text = with("link_rate = \"10 Gb/s\"", "link_rate = \"10 Gbit/s\"");
    expect(&text, "\"10 Gbit/s\"", "unknown unit `Gbit/s`");
    let text = with("link_rate = \"10 Gb/s\"", "link_rate = 10");
    expect(&text, "10\nlink_delay", "a rate needs a unit");
    for (value, message) in [
        ("\"-5 ns\"", "negative"),
        ("nan", "needs a unit"),
        ("\"5\"", "needs a unit"),
        ("true", "true or false where a duration should be"),
        ("1979-05-27", "a date where a duration"),
        ("\"999999999 s\"", "`link_delay` of 999999999 s is out of range"),
    ] {
        expect(&with("link_delay = \"50 ns\"", &format!("link_delay = {value}")), value, message);
    }
    expect(&with("\"10 Gb/s\"", "\"0 b/s\""), "\"0 b/s\"", "`link_rate` of 0 is out of range");
    expect(&with("bit_error_rate = 1e-12", "bit_error_rate = nan"), "nan", "out of range");
    expect(&with("bit_error_rate = 1e-12", "bit_error_rate = -1e-9"), "-1e-9", "out of range");
    expect(&with("seed = 7", "seed = -7"), "-7", "`seed` of -7 is out of range");
    expect(&with("seed = 7", "seed = 18446744073709551616"), "18446744073709551616", "out of range");
}

#[test]
fn topologies_beyond_the_limits_are_refused_by_arithmetic() {
    for (m, w, message) in [
        ("[1000, 1000, 1000]", "[1, 1, 1]", "a network of 1000000004 hosts is too large"),
        (
            "[1048576, 1048576, 1048576, 1048576, 1048576, 1048576, 1048576, 1048576]",
            "[1, 1, 1, 1, 1, 1, 1, 1]",
            "too large",
        ),
        ("[2, 2]", "[1, 1048576]", "ports is too large"),
        ("[4, 4]", "[1]", "`m` has 2 levels and `w` has 1"),
        ("[4, 4]", "[4095, 1]", "a host of 4095 links is too large"),
        ("[4000, 2000]", "[9, 1]", "ports is too large"),
        ("[]", "[]", "1 to 8 levels"),
        ("[4, 4095]", "[1, 1]", "a switch of 4099 ports is too large"),
        ("[2, 1, 1, 1, 1, 1, 1, 1, 2]", "[1, 1, 1, 1, 1, 1, 1, 1, 1]", "1 to 8 levels, not 9"),
        ("[4, 0]", "[1, 1]", "`m` of 0 is out of range"),
        ("[4, 9999999999]", "[1, 1]", "out of range"),
    ] {
        let text = with("m = [4, 4]\nw = [1, 2]", &format!("m = {m}\nw = {w}")).replacen("links = 2\n", "", 1);
        let d = refused(&text);
        assert!(d.message.contains(message), "{m} {w}: {d:#?}");
        assert!(d.line == 13 || d.line == 14, "{d:#?}");
    }
    let other = |shape: &str| MINIMAL.replace("kind = \"single-switch\"\nhosts = 4", shape);
    expect(&other("kind = \"single-switch\"\nhosts = 8388609"), "8388609", "out of range");
    expect(&other("kind = \"single-switch\""), "topology", "`hosts` is missing");
    expect(&other("kind = \"fat-tree\"\nk = 5"), "5", "needs an even number");
    expect(&other("kind = \"fat-tree\"\nk = 1000"), "1000", "too large");
    expect(&other("kind = \"fat-tree\"\nhosts = 4"), "4", "`hosts` means nothing to a topology of kind \"fat-tree\"");
    expect(&other("kind = \"k-ary-n-tree\"\nk = 4\nn = 3\nslimmed = [2]"), "[2]", "2 levels of switches");
    expect(&other("kind = \"hpcc\"\nfile = \"x.txt\""), "\"x.txt\"", "no folder to read files from");
    let many = "external_hosts = 9000";
    expect(&with("external_hosts = 4", many), "9000", "a switch of 4508 ports is too large");
    expect(&with("level = 2", "level = 3"), "3\nrate", "there is no level 3: the tree has 2");
}

#[test]
fn contradictions() {
    expect(&with("xon = \"70 KB\"", "xon = \"91 KB\""), "\"91 KB\"", "xon (91000 B) is above xoff (90000 B)");
    expect(&with("xoff = \"90 KB\"", "xoff = \"101 KB\""), "\"101 KB\"", "beyond the switch's buffer");
    expect(&with("enabled = true\nlossless", "enabled = false\nlossless"), "false\nlossless", "flow_control says");
    expect(&with("lossless = true", "lossless = false"), "false\nvm_rate", "the virtual network is lossless");
    expect(&with("virtual_network = true", "virtual_network = false"), "\"ZZ\"", "there is none");
    expect(
        &with("delayed_ack = \"10 ms\"", "delayed_ack = \"20 ms\""),
        "\"20 ms\"\nack_every",
        "not below the shortest timeout",
    );
    expect(
        &with("rto_max = \"64 s\"", "rto_max = \"10 ms\""),
        "\"20 ms\"\nrto_min",
        "rto_base (20000 us) is above rto_max",
    );
    let small = with("buffer = \"128 KB\"\nmax", "buffer = \"1 KB\"\nmax");
    expect(&small, "\"1 KB\"\nmax", "must hold two segments");
    expect(&with("max_buffer = \"256 KB\"", "max_buffer = \"1 KB\""), "\"128 KB\"\nmax_buffer", "above max_buffer");
    expect(
        &with("mtu = \"1446 B\"", "mtu = \"1500 B\""),
        "\"1500 B\"\n\n[framing]",
        "do not fit the physical MTU of 1500 B",
    );
    expect(&with("warmup = \"100 ms\"", "warmup = \"2 s\""), "\"2 s\"\nparameters", "not shorter than the run");
    expect(&with("lossless = [0, 3]", "lossless = [0, 8]"), "8]", "out of range");
    expect(&with("buffer = \"512 KB\"", "buffer = \"1 KB\""), "\"1 KB\"", "does not hold a frame of 1518 B");
    expect(&with("crisan2014-ch3", "crisan2014-ch2"), "\"tuned\"", "Table 3.2");
    expect(&with("\"switch 2 port 1\"", "\"switch 99\""), "\"switch 99\"", "there is no switch 99");
    expect(&with("\"host 3\"", "\"hosts 3\""), "\"hosts 3\"", "names no port");
}

#[test]
fn workloads() {
    assert!(refused("[topology]\nkind = \"single-switch\"\nhosts = 4\n").message.contains("no workload"));
    expect(&with("receiver = 15", "receiver = 20"), "20\nbytes", "there is no host 20: the network has 20");
    expect(&with("senders = 8", "senders = [1, 15]"), "[1, 15]", "host 15 sends to itself");
    expect(&with("senders = 8", "senders = [1, 1]"), "1]\nreceiver", "listed twice");
    expect(&with("senders = 8", "senders = []"), "[]", "empty");
    expect(&with("senders = 8", "senders = 16"), "16\nreceiver", "the network has 15 hosts but the receiver");
    expect(&with("dst = 16", "dst = 0"), "0\nbytes = 0", "host 0 sends to itself");
    expect(&with("stride = 4", "stride = 32"), "32\nbytes", "send to themselves");
    expect(&with("vm = 3", "vm = 4"), "4\nload", "there is no virtual machine 4");
    expect(&with("chassis = 1\npriority = 3", "chassis = 3\npriority = 3"), "3\npriority", "there is no level 3");
    expect(&with("vms = 4", "vms = 2"), "\"crisan2014-ch4\"", "puts three virtual machines");
    expect(&with("warmup_queries = 10", "warmup_queries = 100"), "100\nmessage", "every query is warm-up");
    expect(&with("workers = [1, 2, 3]", "workers = [0]"), "[0]\nrequest", "an aggregator and a worker");
    let text = MINIMAL.replace("bytes = \"1 MB\"", "");
    expect(&text, "[[workload]]", "no workload of this scenario ends, and it has no duration");
    let endless = "[[workload]]\nkind = \"flow\"\nsrc = 1\ndst = 0\n";
    assert!(Scenario::parse(&format!("{MINIMAL}{endless}"), "t.toml").is_ok(), "it ends with the finite flow");
    for (value, message) in [
        ("\"16-79\"", "there is no host 79: the last one is 19"),
        ("\"7-3\"", "the range 7-3 ends before it begins"),
        ("\"0-3, 2\"", "host 2 is listed twice"),
        ("\"all\"", "`all` is not a host"),
        ("true", ""),
    ] {
        let e = refused(&with("senders = 8", &format!("senders = {value}")));
        assert!(e.message.contains(message), "{e:?}");
        assert!(
            value == "\"0-3, 2\"" || e.expected.contains("a count as 16, a list as [0, 2, 5], or ranges as"),
            "{e:?}"
        );
    }
    let text = MINIMAL.replace("bytes", "rate = \"1 Gb/s\"\nbytes");
    expect(&text, "\"1 Gb/s\"", "a stream finds its own rate");
    expect(&MINIMAL.replace("[[workload]]", "[workload]"), "[workload]", "a table where a list of tables should be");
}

#[test]
fn patterns() {
    const PATTERN: &str = "[topology]\nkind = \"fat-tree\"\nk = 4\n[[workload]]\nkind = \"permutation\"\n\
        pattern = \"staggered(0.5, 0.3)\"\nbytes = \"1 KB\"\n";
    parse(PATTERN).unwrap();
    for (pattern, message) in [
        ("staggred(0.5, 0.3)", "unknown pattern `staggred`"),
        ("staggered", "needs two chances"),
        ("staggered(0.5)", "takes 2 numbers, not 1"),
        ("staggered(0.5, 0.6)", "more than 1 together"),
        ("staggered(nan, 0.3)", "`nan` in a pattern"),
        ("staggered(-0.5, 0.3)", "`-0.5` in a pattern"),
        ("staggered(0.5, 0.3", "not closed"),
        ("stride(0)", "`0` in a pattern"),
        ("stride(16)", "send to themselves"),
        ("stride(99)", "as with one of 3"),
        ("stride(1, 2)", "takes 1 numbers, not 2"),
        ("random(1)", "takes 0 numbers, not 1"),
        ("hotspot(16)", "`16` in a pattern"),
        ("hotspot()", "`` in a pattern"),
        ("file", "`file` is missing"),
    ] {
        let needle = if pattern == "file" { "[[workload]]".into() } else { format!("\"{pattern}\"") };
        expect(&PATTERN.replace("staggered(0.5, 0.3)", pattern), &needle, message);
    }
    for pattern in
        ["stride", "stride(3)", "random", "non-bijective", "inter-pod-incoming", "same-id-outgoing", "hotspot"]
    {
        parse(&PATTERN.replace("staggered(0.5, 0.3)", pattern)).unwrap();
    }
    let on = |shape: &str| PATTERN.replace("kind = \"fat-tree\"\nk = 4", shape);
    expect(&on("kind = \"single-switch\"\nhosts = 8"), "\"staggered", "this network has none");
    let tree = on("kind = \"xgft\"\nm = [4, 4]\nw = [1, 1]");
    parse(&tree).unwrap();
    expect(&tree.replace("staggered(0.5, 0.3)", "same-id-outgoing"), "\"same-id", "two-level tables of a fat-tree");
    let stride = PATTERN.replace("staggered(0.5, 0.3)\"", "stride(3)\"\nstride = 3");
    expect(&stride, "3\nbytes", "means nothing to this pattern");
    let no_file = refused(&PATTERN.replace("staggered(0.5, 0.3)", "file"));
    assert_eq!((&*no_file.message, &*no_file.hint), ("`file` is missing", "file: lines `src dst`"));
    let many = |flows: &str| PATTERN.replace("bytes", &format!("flows = {flows}\nbytes"));
    let datagrams = |flows: &str| many(flows) + "transport = \"udp\"\n";
    parse(&datagrams("262144")).unwrap();
    expect(&many("0"), "0\nbytes", "out of range");
    expect(&datagrams("262145"), "262145", "flows are too many");
    let shuffle =
        "[topology]\nkind = \"fat-tree\"\nk = 4\n[[workload]]\nkind = \"shuffle\"\nhosts = 8\nbytes = \"1 KB\"\n";
    parse(shuffle).unwrap();
    expect(&shuffle.replace("= 8", "= 17"), "17\n", "out of range");
    expect(&shuffle.replace("= 8", "= 1"), "1\nbytes", "out of range");
    expect(&shuffle.replace("\"1 KB\"", "0"), "0\n", "`bytes` of 0 is out of range");
    expect(&shuffle.replace("k = 4", "k = 32").replace("hosts = 8\n", ""), "[[workload]]", "transfers are too many");
}

#[test]
fn control_loops_and_what_stands_for_a_fat_tree() {
    const CONTROL: &str = "[scenario]\nduration = \"1 s\"\n[topology]\nkind = \"fat-tree\"\nk = 4\nrouting = \"global-first-fit\"\n\
        [control]\nperiod = \"1 ms\"\niterations = 5\nlarge = \"1 KB\"\n[[workload]]\nkind = \"permutation\"\npattern = \"random\"\n";
    let s = parse(CONTROL).unwrap().scenario;
    assert_eq!(s.control.map(|c| c.period), Some(sluicenet_proto::time::Duration::from_ms(1)));
    let without = parse(&CONTROL.replace("global-first-fit", "two-level")).unwrap().scenario;
    assert!(without.control.is_none() && !without.canonical_json().unwrap().contains("control"));
    for (from, to, needle, message) in [
        ("\"1 ms\"", "\"1 us\"", "\"1 us\"", "`period` of 1 us is out of range in [control]"),
        ("= 5", "= 0", "0\nlarge", "out of range"),
        ("\"1 KB\"", "0", "0\n[[", "`large` of 0 is out of range in [control]"),
        ("= 5\n", "= 5\nreturns = \"1 s\"\n", "\"1 s\"\nlarge", "returns before it dies"),
        ("= 5\n", "= 5\ndies = \"2 s\"\nreturns = \"1 s\"\n", "\"1 s\"\nlarge", "returns before it dies"),
        ("k = 4", "k = 92", "92", "has more hosts than its control loop can schedule"),
        ("k = 4", "k = 4\nexternal_hosts = 1", "1\nrouting", "has no external hosts"),
        (
            "kind = \"fat-tree\"\nk = 4",
            "kind = \"single-switch\"\nhosts = 4",
            "\"global",
            "this routing is a fat-tree's",
        ),
        (
            "kind = \"fat-tree\"\nk = 4",
            "kind = \"single-switch\"\nhosts = 4\noversubscription = 2",
            "2\n",
            "means nothing",
        ),
        ("k = 4", "k = 4\noversubscription = 0.5", "0.5", "out of range"),
    ] {
        assert!(CONTROL.contains(from), "{from}");
        expect(&CONTROL.replacen(from, to, 1), needle, message);
    }
    let warnings = |text: &str, sets: &[&str]| {
        let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
        let loaded = Scenario::parse_in(text, "t.toml", None, &sets).unwrap();
        loaded.warnings.iter().map(|w| w.to_string()).collect::<String>()
    };
    let idle = CONTROL.replace("k = 4", "k = 4\noversubscription = 4");
    let warned = warnings(&idle, &[]);
    assert!(warned.contains("t.toml:6") && warned.contains("`oversubscription` changes nothing"), "{warned}");
    assert_eq!(warnings(&idle, &["topology.routing=hierarchical"]), "");
    assert_eq!(warnings(&idle, &["sweep.topology.routing=[\"two-level\", \"hierarchical\"]"]), "");
    assert!(!warnings(CONTROL, &["sweep.topology.oversubscription=[2, 4]"]).is_empty());
    let idle = format!("{CONTROL}\n[xco]\nslice = \"2 ms\"\n");
    assert!(warnings(&idle, &[]).contains("without `enabled = true`"), "{}", warnings(&idle, &[]));
    assert_eq!(warnings(&idle, &["xco.enabled=false"]), "");
    let link = |routing: &str, level: usize| {
        parse(&CONTROL.replace("global-first-fit", routing)).unwrap().scenario.topology.levels[level].rate.as_bps()
    };
    assert_eq!([0, 1, 2].map(|l| link("non-blocking", l)), [10_000_000_000, 20_000_000_000, 40_000_000_000]);
    assert_eq!(link("hierarchical", 2), 11_111_111_111);
    let huge = CONTROL.replace("k = 4", "k = 128").replace("global-first-fit", "non-blocking");
    parse(&huge).unwrap();
    expect(
        &huge.replace("k = 128", "k = 128\nlink_rate = \"100 Gb/s\""),
        "\"non-blocking\"",
        "would have 409600000000000 b/s",
    );
}

#[test]
fn failures() {
    const FAILURE: &str = "[scenario]\nduration = \"1 s\"\n[topology]\nkind = \"fat-tree\"\nk = 4\nrouting = \"two-level\"\n\
        [[failure]]\nport = \"switch 0 port 2\"\nat = \"1 ms\"\nuntil = \"5 ms\"\n[[workload]]\nkind = \"permutation\"\npattern = \"random\"\n";
    let f = &parse(FAILURE).unwrap().scenario.failures[0];
    assert_eq!(
        (f.at, f.detection),
        (sluicenet_proto::time::Duration::from_ms(1), sluicenet_proto::time::Duration::from_ms(30))
    );
    for (from, to, needle, message) in [
        ("switch 0 port 2", "switch 20", "\"switch 20\"", "there is no switch 20"),
        ("switch 0 port 2", "switch 0 port 4", "\"switch 0 port 4\"", "has ports 0 to 3"),
        ("switch 0 port 2", "switch 7 port 1", "\"switch 7 port 1\"", "leads to a host"),
        ("switch 0 port 2", "host 3", "\"host 3\"", "a host has one link"),
        ("switch 0 port 2", "port 3", "\"port 3\"", "names no port"),
        ("\"5 ms\"", "\"1 ms\"", "\"1 ms\"\n[[work", "back before it fails"),
        ("at = \"1 ms\"\n", "", "[[failure]]", "`at` is missing"),
        ("two-level", "random", "[[failure]]", "go around nothing"),
        ("two-level", "non-blocking", "[[failure]]", "this network is none"),
        (
            "kind = \"fat-tree\"\nk = 4",
            "kind = \"xgft\"\nm = [4, 4]\nw = [1, 2]",
            "[[failure]]",
            "this network is none",
        ),
    ] {
        assert!(FAILURE.contains(from), "{from}");
        expect(&FAILURE.replacen(from, to, 1), needle, message);
    }
    parse(&FAILURE.replace("switch 0 port 2", "switch 19")).unwrap();
}

#[test]
fn tables() {
    const TABLE: &str = "[scenario]\nduration = \"1 s\"\n[topology]\nkind = \"fat-tree\"\nk = 4\n[[workload]]\nkind = \"permutation\"\n\
        pattern = \"random\"\n[sweep]\n\"workload.0.pattern\" = [\"stride(1)\", \"random\"]\n\"scenario.seed\" = [1, 2]\n\
        \"topology.routing\" = [\"hash\", \"two-level\", \"random\"]\n[[table]]\ntitle = \"T\"\nfigure = \"bandwidth\"\n\
        rows = \"workload.0.pattern\"\ncolumns = \"topology.routing\"\nsource = [[1, 2.5, \"\"], [3, 4, 5]]\n";
    let t = &parse(TABLE).unwrap().scenario.tables[0];
    // With fewer values, the source's are cut, in the order of the remaining values; a new value has none.
    const PATTERNS: &str = "sweep.workload.0.pattern=[\"random\", \"stride(1)\"]";
    const ROUTINGS: &str = "sweep.\"topology.routing\"=[\"two-level\", \"d-mod-k\"]";
    let (n, x) = (None::<f64>, Some::<f64>);
    type Source = Vec<Vec<Option<f64>>>;
    let cut: [(&[&str], usize, Source); 8] = [
        (&["topology.routing=hash"], 4, vec![vec![x(1.0)], vec![x(3.0)]]),
        (&["workload.0.pattern=random"], 6, vec![vec![x(3.0), x(4.0), x(5.0)]]),
        (&["sweep.topology.routing=[\"two-level\"]"], 4, vec![vec![x(2.5)], vec![x(4.0)]]),
        (&[PATTERNS, ROUTINGS], 8, vec![vec![x(4.0), n], vec![x(2.5), n]]),
        (&["workload.0.pattern=stride(2)", ROUTINGS], 4, vec![vec![n, n]]),
        (&[ROUTINGS, "table.0.source=[[6, 7], [8, 9]]"], 8, vec![vec![x(6.0), x(7.0)], vec![x(8.0), x(9.0)]]),
        (&["topology.routing=hash", "table.0.source=[[6], [8]]"], 4, vec![vec![x(6.0)], vec![x(8.0)]]),
        (&["scenario.seed=3"], 6, t.source.clone()),
    ];
    for (sets, runs, source) in cut {
        let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
        let loaded = Scenario::parse_in(TABLE, "t.toml", None, &sets).unwrap();
        let variants = loaded.expand_sweep().unwrap();
        assert_eq!((variants.len(), &loaded.scenario.tables[0].source), (runs, &source), "{sets:?}");
        assert!(loaded.is_varied() && variants.iter().all(|v| v.scenario.tables == loaded.scenario.tables));
    }
    let fixed = ["topology.routing=hash", "workload.0.pattern=random", "scenario.seed=1"].map(String::from);
    assert!(!Scenario::parse_in(TABLE, "t.toml", None, &fixed).unwrap().is_varied());
    let wrong = [ROUTINGS.into(), "table.0.source=[[1, 2, 3], [4, 5, 6]]".to_string()];
    let e = Scenario::parse_in(TABLE, "t.toml", None, &wrong).unwrap_err().to_string();
    assert!(e.contains("--set") && e.contains("3 numbers where the sweep has 2 columns"), "{e}");
    assert_eq!(t.source, [[Some(1.0), Some(2.5), None], [Some(3.0), Some(4.0), Some(5.0)]]);
    for (from, to, needle, message) in [
        ("figure = \"bandwidth\"", "figure = \"speed\"", "\"speed\"", "unknown figure"),
        ("columns = \"topology.routing\"", "columns = \"tcp.sack\"", "\"tcp.sack\"", "is not varied"),
        ("columns = \"topology.routing\"\n", "", "[[table]]", "`columns` is missing"),
        ("rows = \"workload.0.pattern\"", "rows = \"topology.routing\"", "\"topology.routing\"\ncol", "the same axis"),
        ("[3, 4, 5]]", "[3, 4]]", "[3, 4]", "2 numbers where the sweep has 3 columns"),
        (", [3, 4, 5]]", "]", "[[1, 2.5", "1 rows where the sweep has 2"),
        ("[3, 4, 5]]", "[3, nan, 5]]", "nan", "out of range"),
        ("[3, 4, 5]]", "[3, \"x\", 5]]", "\"x\"", "a number"),
    ] {
        assert!(TABLE.contains(from), "{from}");
        expect(&TABLE.replacen(from, to, 1), needle, message);
    }
}

#[test]
fn hotspots() {
    const HOTSPOT: &str = "[topology]\nkind = \"single-switch\"\nhosts = 4\n[[workload]]\nkind = \"hotspot\"\n\
        sources = [0, 1]\ndestination = 3\nmessage = \"10 KB\"\n\
        phases = [{ until = \"1 ms\", rate = \"1 Gb/s\" }, { until = \"2 ms\", rate = 0 }]\ntransport = \"tcp\"\n";
    parse(HOTSPOT).unwrap();
    let phases = &HOTSPOT[HOTSPOT.find("[{").unwrap()..HOTSPOT.find("]\ntransport").unwrap() + 1];
    for (from, to, needle, message) in [
        ("[0, 1]", "[0, 3]", "[0, 3]", "host 3 sends to itself"),
        ("[0, 1]", "[0, 4]", "4]", "`sources` of 4 is out of range"),
        ("[0, 1]", "[1, 1]", "1]\ndest", "listed twice"),
        ("[0, 1]", "-1", "-1", "out of range"),
        ("[0, 1]", "nan", "nan", "a count as 16, a list as"),
        ("[0, 1]", "4", "4\ndest", "4 sources: the network has 3 hosts but the receiver"),
        ("sources = [0, 1]\n", "", "[[workload]]", "`sources` is missing"),
        ("destination = 3", "destination = 4", "4\nmess", "there is no host 4"),
        ("destination = 3", "destination = -3", "-3", "out of range"),
        ("\"10 KB\"", "\"0 B\"", "\"0 B\"", "`message` of 0 is out of range"),
        ("\"10 KB\"", "10", "10\n", "a size needs a unit"),
        ("\"10 KB\"", "\"2 TB\"", "\"2 TB\"", "`message` of 2 TB is out of range"),
        (phases, "[]", "[[workload]]", "`phases` is missing"),
        (phases, "3", "3\ntrans", "a list of tables"),
        (phases, "[{ rate = \"1 b/s\" }]", "{ rate", "`until` is missing"),
        (phases, "[{ until = \"1 s\" }]", "{ until", "`rate` is missing"),
        ("\"2 ms\"", "\"1 ms\"", "\"1 ms\", rate = 0", "does not end after the one before it"),
        ("\"2 ms\"", "\"-2 ms\"", "\"-2 ms\"", "negative"),
        ("\"1 Gb/s\"", "\"1 GB/s\"", "\"1 GB/s\"", "unknown unit"),
        ("\"1 Gb/s\"", "nan", "nan", "a rate needs a unit"),
        ("rate = 0 }", "rat = 0 }", "rat = 0", "unknown key `rat`"),
        (phases, "[{ until = \"2400 h\", rate = \"100 Tb/s\" }]", "[{ until", "each source would offer"),
        ("\"tcp\"", "\"sctp\"", "\"sctp\"", "unknown transport"),
    ] {
        assert!(HOTSPOT.contains(from), "{from}");
        expect(&HOTSPOT.replacen(from, to, 1), needle, message);
    }
}

#[test]
fn a_buffer_of_packets_is_one_of_a_lossy_output() {
    let minimal = |switch: &str| format!("{MINIMAL}[switch]\n{switch}\n");
    let buffer = |text: &str| parse(text).map(|loaded| loaded.scenario.switch.buffer);
    for (value, packets) in [("200 packets", 200), ("1 packet", 1), ("1_000 packets", 1_000), ("200packets", 200)] {
        let of = buffer(&minimal(&format!("buffer = \"{value}\""))).unwrap();
        assert_eq!(of, PortBuffer::Packets(Packets(packets)), "{value}");
        assert_eq!(buffer(&minimal(&format!("buffer = \"{}\"", of.written()))).unwrap(), of);
    }
    for (value, message, hint) in [
        ("0 packets", "`buffer` of 0 is out of range in [switch]", ""),
        ("1000001 packets", "`buffer` of 1000001 packets is out of range in [switch]", "at most 1000000 packets"),
        ("1.5 packets", "not a whole number of packets", "write 1 packet or 2 packets"),
        ("200 paket", "unknown unit `paket` for a number of packets", "did you mean `packet`?"),
        ("200", "a size needs a unit", "or \"1446 B\"; a number of packets as \"200 packets\""),
        ("200 frames", "unknown unit `frames` for a size", "KiB, MiB, GiB; a number of packets as \"200 packets\""),
        ("5 GB", "`buffer` of 5 GB is out of range in [switch]", ""),
    ] {
        let d = refused(&minimal(&format!("buffer = \"{value}\"")));
        assert!(d.message.contains(message) && d.hint.contains(hint), "{value}: {d:#?}");
    }
    let bare = refused(&minimal("buffer = 200"));
    assert_eq!(bare.hint, "write it in quotes, as \"20 KB\" or \"1446 B\"; a number of packets as \"200 packets\"");
    assert_eq!(bare.expected, "a size or a number of packets");
    for policy in ["input", "pooled"] {
        let text = minimal(&format!("buffer = \"9 packets\"\npolicy = \"{policy}\""));
        expect(&text, &format!("\"{policy}\""), "a buffer that counts packets is one of an output's queue");
    }
    let text = format!("{MINIMAL}[switch]\nbuffer = \"9 packets\"\n[pfc]\nenabled = true\n");
    expect(&text, "true", "a lossless priority waits in bytes, and switch.buffer counts packets");
}

#[test]
fn what_would_not_fit_into_memory_or_into_a_counter() {
    let buffer = "buffer = \"100 KB\"";
    expect(&with(buffer, "buffer = \"5 GB\""), "\"5 GB\"", "`buffer` of 5 GB is out of range in [switch]");
    expect(&with("headroom = \"auto\"", "headroom = \"5 GB\""), "\"5 GB\"", "`headroom` of 5 GB is out of range");
    let quick =
        with("response = \"614.4 ns\"\npeer_response = \"614.4 ns\"", "response = \"2 us\"\npeer_response = \"1 us\"");
    expect(&quick, "\"1 us\"", "peer_response (1 us) is shorter than response (2 us)");
    expect(
        &with("link_rate = \"10 Gb/s\"", "link_rate = \"9 kb/s\""),
        "\"9 kb/s\"",
        "`link_rate` of 9 kb/s is out of range in [topology]",
    );
    expect(&with("queues = \"10 us\"", "queues = \"1 ps\""), "\"1 ps\"", "samples in every 500 us are too many");
    expect(&with("stagger = \"1 us\"", "stagger = \"2000 h\""), "\"2000 h\"", "after 2400 h");
    expect(&with("initial_window = \"rfc3390\"", "initial_window = 256"), "256\nsack", "out of range");
    expect(&with("reassembly_limit = 200", "reassembly_limit = 65536"), "65536\ninitial", "out of range");
    let often = "{ kind = \"constant\", value = \"1 ns\" }";
    let text = with("{ kind = \"constant\", value = \"1 ms\" }", often);
    expect(&text, often, "between two arrivals on average");
    let text = with("queries = 100\nwarmup_queries = 10\n", "").replacen("mean = \"1 ms\"", "mean = \"1 ns\"", 1);
    expect(&text, "{ kind = \"exponential\"", "about 2.0e9 queries are too many");
    let text = format!("{MINIMAL}{}", "[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\nbytes = \"1 B\"\n".repeat(256));
    assert!(refused(&text).message.contains("257 workloads: at most 256"));
}

/// A scenario with a queue pair, and more keys.
fn roce(keys: &str) -> String {
    MINIMAL.replace("dst = 1\n", "dst = 1\ntransport = \"roce\"\n") + keys
}

#[test]
fn queue_pairs() {
    let behind = roce("[server]\nvirtual_network = true\n");
    expect(&behind, "\"roce\"", "here VMs are behind a virtual switch");
    expect(&roce("[adapter]\nwhen_full = \"drop\"\n"), "\"roce\"", "adapter.when_full is \"drop\"");
    expect(&roce("[roce]\nmtu = \"1000 B\"\n"), "\"1000 B", "is not a power of two");
    expect(&roce("[roce]\nmtu = \"2048 B\"\n"), "\"2048 B", "does not fit into framing.mtu (1500 B)");
    expect(&roce("[roce]\nmtu = \"128 B\"\n"), "\"128 B", "out of range");
    expect(&roce("[framing]\nmtu = \"1000 B\"\n"), "\n", "does not fit into framing.mtu (1000 B)");
    expect(&roce("[roce]\nack_every = 70000\n"), "70000", "out of range");
    for (key, value) in [
        ("dce_tcp_g", "1024"),
        ("dce_tcp_rtt", "\"100 ns\""),
        ("initial_alpha_value", "1025"),
        ("rpg_min_dec_fac", "101"),
        ("rpg_min_rate", "\"1 Kb/s\""),
        ("rpg_gd", "12"),
        ("rpg_time_reset", "\"500 ns\""),
        ("rpg_byte_reset", "\"0 B\""),
        ("rpg_threshold", "103"),
        ("rpg_ai_rate", "\"0 b/s\""),
        ("rpg_hai_rate", "\"10 b/s\""),
        ("cnp_802p_prio", "19"),
    ] {
        let text = roce(&format!("[dcqcn]\n{key} = {value}\n"));
        expect(&text, value, "out of range");
    }
    // A stream of a queue pair finds its own rate.
    let paced = roce("").replace("dst = 1\n", "dst = 1\nrate = \"1 Gb/s\"\n");
    expect(&paced, "\"1 Gb/s", "a stream finds its own rate");
}

#[test]
fn distributions() {
    let points = "[[\"1 KB\", 0], [\"100 KB\", 0.9], [\"1 MB\", 1]]";
    expect(&with(points, "[[\"1 KB\", 0], [\"100 KB\", 0.9]]"), "[[\"1 KB\"", "the distribution ends at 0.9");
    expect(&with(points, "[[\"2 KB\", 0], [\"1 KB\", 1]]"), "\"1 KB\", 1", "the values descend");
    expect(&with(points, "[[\"1 KB\", 0.5], [\"2 KB\", 0.4], [\"3 KB\", 1]]"), "0.4]", "descends");
    expect(&with(points, "[]"), "[] }", "no points");
    expect(&with(points, "[[\"0 B\", 1]]"), "{ kind = \"empirical\"", "the mean of `flow_size` is not above 0");
    expect(&with("mean = \"1 ms\"", "mean = \"0 s\""), "{ kind = \"exponential\"", "not above 0");
    expect(&with("sigma = 1", "sigma = inf"), "inf", "out of range");
    expect(&with("\"lognormal\"", "\"weibull\""), "\"weibull\"", "unknown kind of distribution");
    expect(&with("kind = \"constant\", ", ""), "{ value", "no `kind`");
}

#[test]
fn overrides_point_into_themselves() {
    let set = |o: &str| Scenario::parse_in(MINIMAL, "t.toml", None, &[o.to_string()]);
    assert_eq!(set("tcp.congestion=vegas").unwrap().scenario.tcp.congestion, Congestion::Vegas);
    assert_eq!(set("topology.link_rate=40 Gb/s").unwrap().scenario.topology.link.rate.as_bps(), 40_000_000_000);
    assert_eq!(set("workload.0.dst=3").unwrap().scenario.workloads.len(), 1);
    assert_eq!(set("scenario.seed = 0x10").unwrap().scenario.seed, 16);
    // One of two that exclude each other takes the other's place.
    let stack = |of_file: &str, overrides: &[&str]| {
        let text = format!("[scenario]\n{of_file}\n[server]\nvirtual_network = true\n{MINIMAL}");
        let overrides: Vec<String> = overrides.iter().map(|&o| o.to_owned()).collect();
        Scenario::parse_in(&text, "t.toml", None, &overrides)
    };
    let changed = stack("flow_control = \"LL\"", &["scenario.hypervisor=pfc"]).unwrap().scenario;
    assert_eq!(changed.flow_control(), FlowControl::Zz);
    let changed = stack("hypervisor = \"pfc\"", &["scenario.flow_control=LL"]).unwrap().scenario;
    assert_eq!(changed.flow_control(), FlowControl::Ll);
    assert!(stack("", &["scenario.hypervisor=pfc", "scenario.flow_control=LL"]).is_err());
    for (o, column, message) in [
        ("tcp.congestion=reno2", 16, "unknown congestion `reno2`"),
        ("tcp.congestoin=vegas", 5, "unknown key `congestoin` in [tcp]"),
        ("workload.1.dst=3", 10, "`workload` has 1 tables, counted from 0: not `1`"),
        ("workload.dst=3", 1, ""),
        ("topology.link_rate=40", 20, "needs a unit"),
        ("nonsense", 1, "an override is a key"),
        ("a..b=1", 3, "not a dotted key"),
        ("topology.kind.x=1", 10, "`kind` is not a table"),
    ] {
        let e = set(o).unwrap_err();
        let d = e.diagnostic();
        assert_eq!((d.file.as_str(), d.line), ("--set", 1), "{o}: {e}");
        assert!(d.message.contains(message), "{o}: {e}");
        assert_eq!(d.column, column, "{o}: {e}");
    }
}

/// Every key of every section is read: with a value of a wrong kind, the scenario is refused at that very value.
#[test]
fn no_key_is_read_and_ignored() {
    let lines: Vec<&str> = FULL.lines().collect();
    let mut checked = 0;
    for (i, line) in lines.iter().enumerate() {
        let Some((key, value)) = line.split_once(" = ") else { continue };
        let wrong = "1979-05-27";
        let mut changed = lines.clone();
        let replaced = format!("{key} = {wrong}");
        changed[i] = &replaced;
        let d = refused(&changed.join("\n"));
        assert_eq!(d.line as usize, i + 1, "{line}: {d:#?}");
        assert!(!value.is_empty());
        checked += 1;
    }
    assert!(checked > 100, "{checked}");
}

/// Mutated scenarios give a scenario or an error, never a panic.
#[test]
fn mutated_scenarios_never_panic() {
    let mut rng = Rng::from_words(&[0x5eed]);
    let words =
        ["\"", "[", "]", "{", "}", "=", "\n", "nan", "-1", "99999999999999999999", "\"\u{1F600}\"", ".", "inf", "0"];
    for _ in 0..4000 {
        let bytes = mutated(FULL.as_bytes(), &words, &mut rng);
        let text = String::from_utf8_lossy(&bytes);
        match parse(&text) {
            Ok(loaded) => drop(loaded.scenario.canonical_json().unwrap()),
            Err(e) => assert!(e.diagnostic().line > 0 && !e.to_string().is_empty()),
        }
    }
}

#[test]
fn cables_and_classes() {
    let cable = |keys: &str| MINIMAL.replace("hosts = 4", &format!("hosts = 4\n{keys}"));
    expect(&cable("cable = \"40 m\"\nlink_delay = \"1 us\""), "\"40 m\"", "`cable` and `link_delay` both say");
    expect(
        &cable("[[topology.level]]\nlevel = 1\ndelay = \"1 us\"\ncable = \"1 m\""),
        "\"1 m\"",
        "`cable` and `delay` both",
    );
    expect(&cable("cable = \"40\""), "\"40\"", "a length needs a unit");
    expect(&cable("cable = 40"), "40", "a length needs a unit");
    expect(&cable("cable = \"10001 km\""), "\"10001 km\"", "`cable` of 10001 km is out of range");
    expect(&cable("delay_per_metre = \"5 ns\""), "\"5 ns\"", "changes nothing: no cable is given");
    expect(&cable("cable = \"1 m\"\ndelay_per_metre = \"3 ns\""), "\"3 ns\"", "out of range");
    let map = "[switch]\ndscp_to_tc = [1, 2]\n";
    expect(&format!("{MINIMAL}{map}"), "[1, 2]", "2 priorities, where each DSCP has one");
    expect(&format!("{MINIMAL}dscp = 26\n"), "26", "no map gives the priority of a DSCP");
    expect(&format!("{MINIMAL}dscp = 26\npriority = 1\n"), "26", "`dscp` and `priority` both give the priority");
    expect(&format!("{MINIMAL}[switch]\nsonic_port = \"Ethernet0\"\n"), "\"Ethernet0\"", "no file of SONiC is given");
    expect(&format!("{MINIMAL}[switch]\nsonic = 5\n"), "5\n", "an integer where a string should be");
    expect(&format!("{MINIMAL}[switch]\nsonic = \"c.json\"\n"), "\"c.json\"", "this scenario has no folder");
    let links = "[[pfc.link]]\nrate = \"1 Gb/s\"\ncable = \"1 m\"\nheadroom = \"1 KB\"\n";
    expect(
        &format!("{MINIMAL}{links}{}", links.replace("1 KB", "2 KB").replace("\"1 Gb/s\"", "\"1.0 Gb/s\"")),
        "\"1.0 Gb/s\"",
        "stand here twice",
    );
    expect(&format!("{MINIMAL}{}", links.replace("cable = \"1 m\"\n", "")), "[[pfc.link]]", "`cable` is missing");
    let memory = "[buffer]\nsize = \"9 MB\"\nshared = \"8 MB\"\n";
    expect(&format!("{MINIMAL}{memory}"), "\"8 MB\"", "exclude each other");
    let groups = "[[ets.group]]\npriorities = [0, 1, 2, 3]\nweight = 9\n[[ets.group]]\npriorities = [4, 5, 6, 7]\n";
    expect(&format!("{MINIMAL}{groups}bandwidth = 50\n"), "50\n", "`bandwidth` beside `weight`");
    expect(&format!("{MINIMAL}{groups}"), "[[ets.group]]\npriorities = [4", "`weight` is missing");
}

#[test]
fn the_longest_frame_and_the_smallest_segment_bound_the_mtu() {
    let text = |mtu: u64, keys: &str| {
        format!(
            "{MINIMAL}[framing]\nmtu = \"{mtu} B\"\n{keys}\n[switch]\nbuffer = \"1 MB\"\n[tcp]\nbuffer = \"1 MB\"\n"
        )
    };
    let bumps = "[[bump]]\nlinks = [\"host 0\"]\nneighbours = [1]\n[[bump]]\nlinks = [\"host 1\"]\n";
    let unmanaged = "[qcn]\nenabled = true\n";
    let tagged = "[qcn]\nenabled = true\nlimiters = \"flow\"\n";
    let tunnel = "[server]\nvirtual_network = true\n[overlay]\nmtu = \"65463 B\"\n";
    let bridge = "[server]\nvirtual_network = true\n[overlay]\nenabled = false\n[zbridge]\nenabled = true\n";
    for (keys, least, most) in [
        ("", 256, 65_517),
        ("kind = \"ppp\"", 256, 65_533),
        (unmanaged, 256, 65_517),
        (tagged, 256, 65_513),
        (bumps, 256, 65_497),
        (tunnel, 65_517, 65_517),
        (bridge, 278, 65_517),
    ] {
        for mtu in [least, most] {
            parse(&text(mtu, keys)).unwrap_or_else(|e| panic!("{mtu} {keys}: {e}"));
        }
        let above = text(most + 1, keys);
        expect(&above, &format!("\"{}", most + 1), "of the longest frame");
        assert_eq!(refused(&above).hint, format!("framing.mtu is at most {most} B here"));
        assert!(refused(&above).expected.ends_with(&format!(" to {most} B")), "{keys}");
    }
    expect(&text(255, ""), "\"255", "`mtu` of 255 B is out of range in [framing]");
    let below = text(277, bridge);
    expect(&below, "\"277", "does not hold TCP's smallest segment");
    assert_eq!(
        (&*refused(&below).expected, &*refused(&below).hint),
        ("from 278 B to 65517 B", "framing.mtu is at least 278 B here")
    );
}

#[test]
fn delays_of_a_path_fit_the_clock() {
    for (from, key, section) in [
        ("link_delay = \"50 ns\"", "link_delay", "topology"),
        ("tx_delay = \"9.5 us\"", "tx_delay", "tcp"),
        ("rx_delay = \"24 us\"", "rx_delay", "tcp"),
    ] {
        assert!(parse(&with(from, &format!("{key} = \"60 min\""))).is_ok(), "{key}");
        for value in ["\"61 min\"", "\"2400 h\"", "\"5000 h\""] {
            let text = with(from, &format!("{key} = {value}"));
            expect(&text, value, &format!("is out of range in [{section}]"));
            assert_eq!((&*refused(&text).expected, &*refused(&text).hint), ("from 0 to 1 h", ""), "{key}");
        }
    }
    let graph = |delay: &str| {
        crate::formats::parse_hpcc_topology(
            "t",
            format!("3 1 2\n2\n0 2 10Gbps {delay} 0\n1 2 10Gbps 1us 0\n").as_bytes(),
        )
    };
    graph("1h").unwrap();
    let e = graph("61min").unwrap_err();
    assert_eq!((e.diagnostic().line, &*e.diagnostic().hint), (3, "at most 1 h"), "{e}");
}

#[test]
fn senders_of_a_permutation_are_hosts_and_have_ports() {
    let text = |k: u32, keys: &str| {
        format!(
            "[topology]\nkind = \"fat-tree\"\nk = {k}\n[[workload]]\nkind = \"permutation\"\npattern = \"random\"\n\
             bytes = \"1 KB\"\n{keys}\n"
        )
    };
    parse(&text(4, "senders = 16")).unwrap();
    expect(&text(4, "senders = 17"), "17", "17 senders: the network has 16 hosts");
    assert_eq!(refused(&text(4, "senders = 17")).expected, "from 1 to 16");
    // 4.3 million hosts, of which few send.
    parse(&text(258, "senders = 10000")).unwrap();
    expect(&text(258, ""), "[[workload]]", "about 4.3e6 flows are too many");
    expect(&text(258, "senders = 1\nflows = 63"), "63", "the pattern would be drawn for");
    for transport in ["udp", "roce"] {
        parse(&text(4, &format!("flows = 55537\ntransport = \"{transport}\""))).unwrap();
    }
    parse(&text(4, "flows = 55536")).unwrap();
    let beyond = text(4, "flows = 55537");
    expect(&beyond, "55537", "a host would begin 55537 flows at once, and has 55536 ports");
    assert!(refused(&beyond).hint.contains("several workloads"));

    let folder = Dir::new("ports");
    folder.file("two.pairs", "0 1\n0 2\n3 1\n");
    let of_file = |flows: u32| {
        let keys = format!("flows = {flows}\nfile = \"two.pairs\"");
        Scenario::parse_in(&text(4, &keys).replace("\"random\"", "\"file\""), "t.toml", Some(&folder.0), &[])
    };
    of_file(27_768).unwrap();
    assert!(of_file(27_769).unwrap_err().to_string().contains("a host would begin 55538 flows at once"));
}

#[test]
fn flows_of_a_file_have_ports() {
    let folder = Dir::new("ports-of-files");
    let load = |format: &str, keys: &str| {
        let text = format!(
            "[topology]\nkind = \"single-switch\"\nhosts = 4\n[[workload]]\nkind = \"flow-file\"\nformat = \"{format}\"\n\
             file = \"flows\"\n{keys}\n"
        );
        Scenario::parse_in(&text, "t.toml", Some(&folder.0), &[])
    };
    let hpcc = |count: u32, later: u32| {
        let line =
            |i: u32| format!("{} 1 3 100 1000 {}\n", if i % 2 == 0 { 0 } else { 2 }, u32::from(i >= count - later));
        folder.file("flows", &format!("{count}\n{}", (0..count).map(line).collect::<String>()));
    };
    // Two hosts begin as many each.
    hpcc(2 * 55_536, 0);
    load("hpcc", "").unwrap();
    hpcc(2 * 55_536 + 1, 0);
    let e = load("hpcc", "").unwrap_err();
    let d = e.diagnostic();
    assert_eq!(
        (&*d.file, d.line, &*d.expected),
        ("flows", 2 * 55_536 + 2, "at most 55536 flows of a host at one time"),
        "{e}"
    );
    load("hpcc", "transport = \"udp\"").unwrap();
    hpcc(2 * 55_536 + 1, 1);
    load("hpcc", "").unwrap();

    // 55,537 flows of host 0, on connections of their own, on one, or when a trigger says so.
    let htsim = |keys: &dyn Fn(u32) -> String, trigger: &str| {
        let all: String = (2..55_539).map(|id| format!("0->1 {} size 1000\n", keys(id))).collect();
        let first = "2->3 id 1 start 0 size 1000 send_done_trigger 1\n";
        folder.file("flows", &format!("Nodes 4\nConnections 55538\nTriggers 1\n{first}{all}trigger id 1 {trigger}\n"));
        load("htsim", "")
    };
    for (begins, trigger, is_refused) in [
        ("start 0", "oneshot", true),
        ("trigger 1", "oneshot", true),
        ("trigger 1", "barrier count 1", true),
        ("trigger 1", "multishot", false),
    ] {
        // A multishot that its trigger activates once is refused for that.
        let e = htsim(&|id| format!("id {id} {begins}"), trigger).unwrap_err();
        let is_of_ports = (e.diagnostic().line, e.to_string().contains("55536 flows")) == (55_541, true);
        assert_eq!(is_of_ports, is_refused, "{begins} {trigger}: {e}");
    }
    htsim(&|_| "id 2 msg start 0".into(), "oneshot").unwrap();
    htsim(&|id| format!("id {id} start {}", id % 2), "oneshot").unwrap();
}

//! One scenario at both levels: every packet, and the rates of flows alone.

use crate::worlds::{bytes_of, execute, flows};
use sluicenet_experiment::run::Outcome;
use sluicenet_records::{FlowRow, read};
use sluicenet_testkit::Dir;

const FLOW: &str = "[scenario]\nlevel = \"flow\"\n";
const PACKET: &str = "[scenario]\nlevel = \"packet\"\n";

/// Both levels, the packet level first.
fn both(text: &str) -> [Outcome; 2] {
    [PACKET, FLOW].map(|level| execute(&format!("{level}{text}"), 1, None))
}

fn fat_tree(routing: &str, workload: &str) -> String {
    format!(
        "duration = \"20 ms\"\nwarmup = \"5 ms\"\n[topology]\nkind = \"fat-tree\"\nk = 4\nrouting = \"{routing}\"\n[[workload]]\n{workload}"
    )
}

#[test]
fn a_message_that_nobody_disturbs_takes_as_long_at_both() {
    for (i, (vms, transport, bytes)) in [
        ("", "udp", "1 MB"),
        ("", "tcplight", "200 KB"),
        ("[server]\nvms = 2\nvirtual_network = true\n", "udp", "1 KB"),
    ]
    .into_iter()
    .enumerate()
    {
        let workload = format!(
            "[topology]\nkind = \"fat-tree\"\nk = 4\n{vms}[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 9\n\
             transport = \"{transport}\"\nbytes = \"{bytes}\"\n[vswitch]\nlossless = {}\n[pfc]\nenabled = true\n",
            !vms.is_empty()
        );
        let fct = [PACKET, FLOW].map(|level| {
            let rows = flows(&format!("{level}{workload}"), &format!("alone-{i}-{}", level.len()));
            assert_eq!(rows.len(), 1);
            rows[0].fct_ps.expect("it ended") as f64
        });
        assert!((fct[1] / fct[0] - 1.0).abs() < 0.01, "{transport} {bytes}: {fct:?}");
    }
}

#[test]
fn rates_over_ways_that_are_shared_are_those_of_lossless_packets() {
    // Where a host's flow meets others is a matter of the routing: both levels ask the same routers.
    for routing in ["d-mod-k", "hash", "two-level"] {
        let workload = "kind = \"permutation\"\npattern = \"random\"\ntransport = \"tcp\"\n";
        let [packets, flows] = both(&fat_tree(routing, workload));
        assert_eq!((packets.streams.count, flows.streams.count), (16, 16));
        let total = [&packets, &flows].map(|o| o.streams.total_mbps);
        assert!((total[1] / total[0] - 1.0).abs() < 0.08, "{routing}: {total:?}");
        assert!(flows.hops == 0 && packets.hops > 0);
    }
}

#[test]
fn a_flow_whose_frames_take_all_ways_has_a_part_of_each() {
    let stride = "kind = \"permutation\"\npattern = \"stride\"\nstride = 4\ntransport = \"udp\"\n";
    let [hash, random] =
        ["hash", "random"].map(|routing| execute(&format!("{FLOW}{}", fat_tree(routing, stride)), 1, None));
    // Payload in 10 Gb/s: 1472 of every 1538 bytes.
    let full = 16.0 * 10_000.0 * 1472.0 / 1538.0;
    assert!((random.streams.total_mbps / full - 1.0).abs() < 1e-3, "{}", random.streams.total_mbps);
    assert!(hash.streams.total_mbps < 0.9 * full, "{}", hash.streams.total_mbps);
}

#[test]
fn additive_increase_has_less_than_fair_rates_and_something_of_every_link() {
    let workload = "kind = \"permutation\"\npattern = \"random\"\n[flow_level]\nrates = \"aimd\"\n";
    let aimd = execute(&format!("{FLOW}{}", fat_tree("hash", workload)), 1, None);
    let fair = execute(&format!("{FLOW}{}", fat_tree("hash", workload).replace("aimd", "max-min")), 1, None);
    let ratio = aimd.streams.total_mbps / fair.streams.total_mbps;
    assert!((0.7..1.0).contains(&ratio), "{ratio}");
}

/// Al-Fares 2012, 4.4.3: all messages of a host are a query, and the longest query is the shuffle's time.
#[test]
fn a_shuffle_sends_all_to_all_and_as_many_at_a_time_as_it_says() {
    for at_a_time in [1, 4] {
        let text = format!(
            "[topology]\nkind = \"fat-tree\"\nk = 4\nrouting = \"hash\"\n[[workload]]\nkind = \"shuffle\"\n\
             bytes = \"200 KB\"\nat_a_time = {at_a_time}\n"
        );
        let [packets, flows] = both(&text);
        // TCP waits for its timer where a window is lost.
        for (o, most) in [(&packets, 2e12), (&flows, 20e9)] {
            assert_eq!((o.flows.started, o.flows.finished, o.queries.len()), (240, 240, 16));
            let longest = o.queries.iter().filter_map(|q| q.completion_ps).max().expect("they ended") as f64;
            // 15 transfers over a link of 10 Gb/s, frames and all.
            assert!(longest > 0.99 * 15.0 * 200e3 * 8.0 / 10e9 * 1e12 && longest < most, "{at_a_time}: {longest}");
        }
    }
}

#[test]
fn all_kinds_of_workloads_end_as_they_do_with_packets() {
    let applications = "flow_control = \"ZZ\"\n[topology]\nkind = \"xgft\"\nm = [4, 4]\nw = [1, 2]\nexternal_hosts = 1\n\
        [server]\nvms = 4\nvirtual_network = true\n\
        [[workload]]\nkind = \"partition-aggregate\"\nlayout = \"crisan2014-ch4\"\nqueries = 20\ninter_arrival = { kind = \
        \"exponential\", mean = \"100 us\" }\n\
        [[workload]]\nkind = \"partition-aggregate-2\"\nworkers = 7\nresponse = \"10 KB\"\nqueries = 10\n\
        [[workload]]\nkind = \"incast\"\nsenders = 8\nreceiver = 15\nbytes = \"50 KB\"\nrounds = 5\nconnections = \"new\"\n\
        [[workload]]\nkind = \"hotspot\"\nsources = 3\ndestination = 12\nphases = [{ until = \"2 ms\", rate = \"1 Gb/s\" }]\n\
        [[workload]]\nkind = \"flow\"\nsrc = 1\ndst = 16\nbytes = \"1 MB\"\n";
    let [packets, flows] = both(applications);
    let ended = |o: &Outcome| {
        let queries = o.queries.iter().filter(|q| q.completion_ps.is_some()).count();
        (o.queries.len(), queries, o.flows.started, o.flows.finished)
    };
    assert_eq!(ended(&packets), ended(&flows));
    assert_eq!(packets.queries.len(), 20 + 10 + 5);
    let mean =
        |o: &Outcome| o.queries.iter().filter_map(|q| q.completion_ps).sum::<u64>() as f64 / o.queries.len() as f64;
    let ratio = mean(&flows) / mean(&packets);
    assert!((0.4..1.1).contains(&ratio), "{ratio}");
}

#[test]
fn the_same_scenario_gives_the_same_bytes_and_its_rows_say_what_was_delivered() {
    let text = format!(
        "{FLOW}{}",
        fat_tree(
            "hash",
            "kind = \"background\"\nflow_size = \"100 KB\"\ninter_arrival = { kind = \"exponential\", mean = \"300 us\" }\n"
        )
    );
    let results = [1, 3].map(|threads| {
        let dir = Dir::new(&format!("flow-level-{threads}"));
        execute(&text, threads, Some(dir.0.clone()));
        let rows: Vec<FlowRow> = read(&dir.0).expect("flows");
        assert!(rows.len() > 500);
        for f in &rows {
            let bytes = f.bytes.expect("it has an end");
            assert_eq!(f.fct_ps.is_some(), f.delivered_bytes == bytes && f.slowdown.is_some(), "{f:?}");
            // A picosecond a hop is lost to rounding.
            assert!(f.slowdown.is_none_or(|s| s > 0.999), "{f:?}");
        }
        bytes_of(&dir.0)
    });
    assert!(results[0] == results[1]);
}

#[test]
fn what_cannot_be_is_refused_with_its_place() {
    let wide = "level = \"flow\"\n[topology]\nkind = \"fat-tree\"\nk = 128\nrouting = \"random\"\n[[workload]]\nkind = \"flow\"\nsrc = \
                0\ndst = 9\nbytes = \"1 MB\"\n";
    let loaded = crate::worlds::load(&format!("[scenario]\n{wide}"), "wide.toml", std::path::Path::new(".")).unwrap();
    let error = crate::worlds::attempt(&loaded, 1, None).expect_err("too wide").to_string();
    assert!(error.contains("wide.toml:6") && error.contains("spread over 8") && error.contains("4096"), "{error}");
    let closed = format!(
        "{FLOW}{}",
        &fat_tree(
            "hash",
            "kind = \"flow\"\nsrc = 0\ndst = 1\n[server]\nvirtual_network = true\n[[policy.tenant]]\nname = \"red\"\n"
        )
    );
    let error = crate::worlds::attempt(
        &crate::worlds::load(&closed, "closed.toml", std::path::Path::new(".")).unwrap(),
        1,
        None,
    );
    assert!(error.expect_err("a policy").to_string().contains("closed.toml:15"));
    let short = "[flow_level]\ntick = \"1 ns\"\n";
    let error = crate::worlds::load(&format!("{FLOW}{short}{}", &wide[15..]), "short.toml", std::path::Path::new("."));
    assert!(error.expect_err("too short").to_string().contains("short.toml:4"));
}

//! Partition/Aggregate over the kernel's own TCP: on loopback, and between namespaces joined by a Linux bridge.

use sluicenet_records::{QueryRow, read};
use sluicenet_scenario::Scenario;
use sluicenet_testbed::pa::{Cues, Endpoint, Endpoints, Outcome, PaError, Part, run, run_part, together};
use sluicenet_testkit::Dir;
use sluicenet_testkit::netns::{Namespaces, missing, system};
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

fn attempt(text: &str, endpoints: &Endpoints) -> Result<Outcome, PaError> {
    let scenario = Scenario::parse(text, "t.toml").unwrap_or_else(|e| panic!("{e}\n{text}")).scenario;
    run(&scenario, endpoints, &AtomicBool::new(false))
}

/// Tenants with their own addresses on loopback; each test has its own `net`.
fn loopback(net: u8, hosts: u32) -> Endpoints {
    let endpoint = |h| Endpoint { namespace: None, address: Ipv4Addr::new(127, 7, net, h as u8 + 1) };
    (0..hosts).map(|h| ((h, 0), endpoint(h))).collect()
}

fn network(hosts: u32, tcp: &str) -> String {
    format!("[topology]\nkind = \"single-switch\"\nhosts = {hosts}\n[tcp]\ncongestion = \"{tcp}\"\n")
}

const PA: &str = "[[workload]]\nkind = \"partition-aggregate-2\"\n";

#[test]
fn every_query_is_answered_by_all_over_connections_kept_or_anew() {
    for (net, connections) in [(1, "persistent"), (2, "per-query")] {
        let text = format!(
            "{}{PA}aggregators = 2\nworkers = 3\nresponse = \"100 KB\"\nqueries = 30\nwarmup_queries = 5\n\
             connections = \"{connections}\"\n",
            network(5, "newreno")
        );
        let outcome = attempt(&text, &loopback(net, 5)).unwrap();
        assert_eq!((outcome.queries.len(), outcome.unfinished, outcome.congestion), (60, 0, "reno"));
        for aggregator in 0..2u64 {
            // Each query begins after the end of the last one.
            let own: Vec<_> = outcome.queries.iter().filter(|q| u64::from(q.aggregator) == aggregator).collect();
            assert!(own.iter().enumerate().all(|(i, q)| q.id == aggregator << 32 | i as u64), "{own:?}");
            assert!(own.windows(2).all(|w| w[1].start >= w[0].start + w[0].took));
        }
        let figures = outcome.figures();
        assert_eq!(figures.queries, 50);
        assert!(figures.mean_ms > Some(0.0) && figures.median_ms <= figures.p99_ms);
    }
}

#[test]
fn the_same_questions_at_the_same_times_as_in_the_simulated_world() {
    let text = format!(
        "[scenario]\nseed = 9\n{}{PA}aggregators = 2\nworkers = 2\nresponse = \"2 KB\"\nqueries = 20\n\
         inter_arrival = {{ kind = \"exponential\", mean = \"5 ms\" }}\n",
        network(4, "cubic")
    );
    let dir = Dir::new("pa-draws");
    crate::worlds::execute(&text, 1, Some(dir.0.clone()));
    let simulated: Vec<QueryRow> = read(&dir.0).unwrap();
    let outcome = attempt(&text, &loopback(3, 4)).unwrap();
    assert_eq!((simulated.len(), outcome.queries.len()), (40, 40));
    for q in &outcome.queries {
        let s = simulated.iter().find(|s| s.query_id == q.id).unwrap_or_else(|| panic!("no query {}", q.id));
        // The kernel's clock ticks in nanoseconds, and threads wake late.
        assert!(q.start.as_nanos() + 1 >= u128::from(s.start_ps / 1_000), "{q:?} {s:?}");
        assert_eq!(q.aggregator, s.aggregator_host);
    }
}

/// Runs the applications in one part per machine, as guests do, synchronised through files.
fn in_parts(test: &str, text: &str, endpoints: &Endpoints, lasts: Option<Duration>) -> Outcome {
    let scenario = Scenario::parse(text, "t.toml").unwrap_or_else(|e| panic!("{e}\n{text}")).scenario;
    let dir = Dir::new(test);
    let folder = |vm: &(u32, u8)| dir.0.join(format!("{}-{}", vm.0, vm.1));
    for vm in endpoints.kernel.keys() {
        std::fs::create_dir_all(folder(vm)).unwrap();
        system(&format!("mkfifo {}", folder(vm).join(Cues::WAKE).display())).unwrap();
    }
    std::thread::scope(|threads| {
        let part = |&vm| {
            let (scenario, cues) = (&scenario, Cues::new(&folder(&vm), "lo"));
            threads.spawn(move || run_part(scenario, endpoints, vm, &cues).unwrap_or_else(|e| panic!("{vm:?}: {e}")))
        };
        let parts: Vec<_> = endpoints.kernel.keys().map(part).collect();
        let tell =
            |word: &str| endpoints.kernel.keys().for_each(|vm| std::fs::write(folder(vm).join(word), "").unwrap());
        let wait = |word: &str| {
            while !endpoints.kernel.keys().all(|vm| folder(vm).join(word).exists()) {
                assert!(!parts.iter().any(|part| part.is_finished()), "a part ended before it was told to");
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        wait(Cues::LISTENS);
        tell(Cues::CONNECT);
        wait(Cues::CONNECTED);
        tell(Cues::BEGIN);
        match lasts {
            None => wait(Cues::DONE),
            Some(time) => std::thread::sleep(time),
        }
        tell(Cues::END);
        wait(Cues::TOLD);
        tell(Cues::LEAVE);
        let parts: Vec<Part> = parts.into_iter().map(|part| part.join().unwrap()).collect();
        // A result in the form in which a guest returns it.
        let result = std::fs::read_to_string(folder(&(0, 0)).join(Cues::RESULT)).unwrap();
        assert_eq!(serde_json::from_str::<Part>(&result).unwrap(), parts[0]);
        assert!(parts.iter().all(|part| part.congestion == "cubic"));
        together("cubic", &parts)
    })
}

#[test]
fn the_same_questions_when_every_machine_is_on_its_own() {
    for (net, connections) in [(11, "persistent"), (12, "per-query")] {
        let text = format!(
            "[scenario]\nseed = 9\n{}{PA}aggregators = 2\nworkers = 3\nresponse = \"100 KB\"\nqueries = 20\n\
             warmup_queries = 5\nconnections = \"{connections}\"\n\
             inter_arrival = {{ kind = \"exponential\", mean = \"5 ms\" }}\n\
             [[workload]]\nkind = \"background\"\nflow_size = \"300 KB\"\ninter_arrival = \"7 ms\"\n",
            network(5, "cubic")
        );
        let (whole, parts) =
            (attempt(&text, &loopback(net, 5)).unwrap(), in_parts(connections, &text, &loopback(net + 10, 5), None));
        let asked = |outcome: &Outcome| {
            let mut all: Vec<_> = outcome.queries.iter().map(|q| (q.id, q.aggregator, q.warmup)).collect();
            all.sort_unstable();
            all
        };
        assert_eq!(asked(&whole), asked(&parts));
        assert_eq!((parts.queries.len(), parts.unfinished, parts.figures().queries), (40, 0, 30));
        // 100 ms of five servers with a flow every 7 ms, except for unfinished flows.
        assert!(parts.flows.len() > 10 && parts.flows.iter().all(|f| f.0 == 300_000), "{}", parts.flows.len());
    }
}

#[test]
fn what_was_asked_and_not_answered_adds_up() {
    // A query every 10 ms; each takes longer than the run.
    let text = format!(
        "{}{PA}aggregators = 2\nworkers = 2\nresponse = \"8 MB\"\ninter_arrival = \"10 ms\"\n[scenario]\nduration = \"300 ms\"\n",
        network(4, "cubic")
    );
    let outcome = in_parts("adds-up", &text, &loopback(31, 4), None);
    let asked = outcome.queries.len() as u64 + outcome.unfinished;
    // Both aggregators ask every 10 ms from 10 ms on, though a busy machine may wake too late for the last queries.
    assert!((2..=2 * 30).contains(&asked), "{asked}");
    assert!(outcome.time >= Duration::from_millis(300), "{:?}", outcome.time);
    // The same applications, stopped from outside long before their end.
    let text = text.replace("300 ms", "1 h");
    let outcome = in_parts("stopped", &text, &loopback(32, 4), Some(Duration::from_millis(300)));
    assert!(outcome.queries.len() as u64 + outcome.unfinished >= 2, "{outcome:?}");
}

#[test]
fn background_flows_run_beside_queries_and_reach_their_sinks_whole() {
    let text = format!(
        "{}{PA}workers = 3\nresponse = \"20 KB\"\nqueries = 60\ninter_arrival = \"5 ms\"\n\
         [[workload]]\nkind = \"background\"\nflow_size = \"300 KB\"\ninter_arrival = \"7 ms\"\n",
        network(4, "cubic")
    );
    let outcome = attempt(&text, &loopback(4, 4)).unwrap();
    assert_eq!(outcome.queries.len(), 60);
    // 300 ms of four servers with a flow every 7 ms, except for unfinished flows.
    assert!(outcome.flows.len() > 40, "{}", outcome.flows.len());
    assert!(outcome.flows.iter().all(|f| f.0 == 300_000));
}

#[test]
fn what_cannot_run_is_an_error_that_says_why() {
    let pa = |more: &str| format!("{}{PA}workers = 1\nresponse = \"20 KB\"\nqueries = 3\n{more}", network(2, "cubic"));
    let endpoints = loopback(5, 2);
    let error = |text: &str, endpoints: &Endpoints| attempt(text, endpoints).unwrap_err().to_string();
    let nobody = Endpoints::from_iter([((0, 0), endpoints.kernel[&(0, 0)].clone())]);
    assert!(error(&pa(""), &nobody).contains("VM 0 of server 1 has no endpoint"));
    assert!(error(&pa("request = \"7 B\"\n"), &endpoints).contains("at least 8 B"));
    let flow = "[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\nbytes = \"1 KB\"\n";
    assert!(error(&pa(flow), &endpoints).contains("no real application for workload `flow`"));
    let mut elsewhere = endpoints.clone();
    elsewhere
        .kernel
        .insert((1, 0), Endpoint { namespace: Some("sluice-not-there".into()), address: Ipv4Addr::LOCALHOST });
    assert!(error(&pa(""), &elsewhere).contains("sluice-not-there"));
}

/// Namespaces joined by a Linux bridge in the last one.
fn bridge(test: &str, hosts: u32) -> (Namespaces, Endpoints) {
    let all = Namespaces::new(test, hosts as usize + 1);
    let bridge = &all.0[hosts as usize];
    system(&format!("ip -n {bridge} link add br0 type bridge")).unwrap();
    system(&format!("ip -n {bridge} link set br0 up")).unwrap();
    let mut endpoints = Endpoints::default();
    for (h, name) in (0..hosts).zip(&all.0) {
        for line in [
            format!("ip -n {bridge} link add p{h} type veth peer name eth0 netns {name}"),
            format!("ip -n {bridge} link set p{h} master br0 up"),
            format!("ip -n {name} addr add 10.77.0.{}/24 dev eth0", h + 1),
            format!("ip -n {name} link set eth0 up"),
        ] {
            system(&line).unwrap();
        }
        let address = Ipv4Addr::new(10, 77, 0, h as u8 + 1);
        endpoints.kernel.insert((h, 0), Endpoint { namespace: Some(name.clone()), address });
    }
    (all, endpoints)
}

/// Bytes received over a device of a namespace.
fn received(namespace: &str, device: &str) -> u64 {
    let shown = Command::new("ip").args(["-n", namespace, "-json", "-stats", "link", "show", device]).output().unwrap();
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    shown[0]["stats64"]["rx"]["bytes"].as_u64().unwrap_or_else(|| panic!("{shown}"))
}

#[test]
fn between_namespaces_queries_cross_the_bridge() {
    if let Some(what) = missing() {
        println!("SKIPPED: {what}");
        return;
    }
    let (_namespaces, endpoints) = bridge("br", 6);
    for tcp in ["newreno", "cubic"] {
        let text = format!(
            "{}{PA}workers = 5\nresponse = \"20 KB\"\nqueries = 40\n\
             [[workload]]\nkind = \"background\"\nflow_size = \"50 KB\"\ninter_arrival = \"20 ms\"\n",
            network(6, tcp)
        );
        let outcome = attempt(&text, &endpoints).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((outcome.queries.len(), outcome.unfinished), (40, 0));
        let figures = outcome.figures();
        println!("{}", serde_json::to_string(&figures).unwrap());
        // The kernel's counters of the namespaces are at least the timeouts of the queries' own connections.
        let seen: u64 = outcome.queries.iter().map(|q| u64::from(q.timeouts.unwrap_or(0))).sum();
        assert!(figures.run_timeouts >= seen, "{figures:?}");
    }
}

#[test]
fn a_link_that_fails_for_a_while_costs_timeouts_that_are_told_of_the_queries_they_held_up() {
    if let Some(what) = missing() {
        println!("SKIPPED: {what}");
        return;
    }
    let (namespaces, endpoints) = bridge("cut", 3);
    let text = format!(
        "{}{PA}workers = 2\nresponse = \"20 KB\"\nqueries = 200\ninter_arrival = \"20 ms\"\n",
        network(3, "newreno")
    );
    let outcome = std::thread::scope(|threads| {
        let running = threads.spawn(|| attempt(&text, &endpoints));
        let bridge = namespaces.0.last().unwrap();
        // Cut the link after ten answers have crossed it: before the first query there is nothing to delay.
        while received(bridge, "p1") < 200_000 && !running.is_finished() {
            std::thread::sleep(Duration::from_millis(10));
        }
        system(&format!("ip -n {bridge} link set p1 nomaster")).unwrap();
        std::thread::sleep(Duration::from_millis(700));
        system(&format!("ip -n {bridge} link set p1 master br0")).unwrap();
        running.join().unwrap().unwrap_or_else(|e| panic!("{e}"))
    });
    let figures = outcome.figures();
    assert_eq!((figures.queries, outcome.unfinished), (200, 0));
    assert!(figures.run_timeouts > 0 && figures.retransmitted > 0, "{figures:?}");
    // The link was down for longer than two of the kernel's shortest timeouts.
    let held = outcome.queries.iter().filter(|q| !q.is_timeout_free());
    assert!(held.clone().any(|q| q.took.as_millis() >= 200), "{:?}", held.collect::<Vec<_>>());
    assert!(figures.timeout_free < 200 && figures.timeout_free_median_ms <= figures.max_ms);
}

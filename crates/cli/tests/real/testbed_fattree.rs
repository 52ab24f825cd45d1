//! A real fat-tree of Open vSwitches under the Python package's controller: it carries traffic, through faults, and is
//! gone afterwards.

use crate::command::{expect, json, repository};
use serde_json::Value;
use sluicenet_dataplane::kernel::netns::named;
use sluicenet_dataplane::leftovers;
use sluicenet_testkit::netns;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A Python with the controller; prints the reason where there is none.
fn python() -> Option<String> {
    let python = std::env::var("SLUICENET_PYTHON").unwrap_or_else(|_| repository(".venv/bin/python"));
    let lacks = netns::missing().or_else(|| {
        let tools = ["ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovs-ofctl"];
        tools.iter().find_map(|tool| netns::system(&format!("{tool} -V")).err())
    });
    let lacks = lacks.or_else(|| (!Path::new("/dev/net/tun").exists()).then(|| "no /dev/net/tun".to_owned()));
    let lacks = lacks.or_else(|| {
        let check = Command::new(&python).args(["-m", "sluicenet.fattree", "--check"]).output();
        let works = check.is_ok_and(|out| out.status.success());
        (!works).then(|| format!("{python} has no sluicenet[fattree]: `make wheel` makes one"))
    });
    match lacks {
        None => Some(python),
        Some(lacks) => {
            eprintln!("SKIPPED: a fat-tree of Open vSwitches: {lacks}");
            None
        }
    }
}

/// Lines of the controller about an event.
fn said<'a>(run: &'a Value, event: &str) -> Vec<&'a Value> {
    run["controller"].as_array().unwrap().iter().filter(|line| line["event"] == event).collect()
}

/// Senders of data that arrived in an interval of seconds: a host for each flow.
fn living(run: &Value, from: f64, to: f64) -> Vec<u64> {
    let at: Vec<f64> = run["course"]["at_s"].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
    let within = |k: usize| at[k] > from && at[k] <= to;
    let arrives = |flow: &&Value| {
        let rates = flow["course_mbps"].as_array().unwrap();
        rates.iter().enumerate().any(|(k, rate)| within(k) && rate.as_f64() > Some(0.0))
    };
    run["flows"].as_array().unwrap().iter().filter(arrives).filter_map(|flow| flow["src"].as_u64()).collect()
}

/// How many flows.
fn alive(run: &Value, from: f64, to: f64) -> usize {
    living(run, from, to).len()
}

/// The runs come one after the other, because there are two cores. Colliding flows use TCP, which leaves each of them
/// some throughput.
#[test]
fn a_fat_tree_of_open_vswitches_through_all_that_may_happen() {
    let Some(python) = python() else { return };
    let base = ["--quiet", "testbed", "fattree", "--python", &python, "--rate", "2Mb/s"];
    let run = |more: &[&str]| json(0, &[&base[..], more].concat());
    let at =
        |faults: &str| faults.split(' ').flat_map(|fault| ["--at".to_owned(), fault.to_owned()]).collect::<Vec<_>>();

    // Every routing carries every flow, and the schedulers give each a path of its own.
    let routings = "two-level,ecmp,flow-classifier,flow-scheduler,hedera-gff,hedera-sa,hierarchical";
    let carried = |seconds: &str, routing: &str| {
        run(&["--seconds", seconds, "--warm-up", "1", "--routing", routing]).as_array().unwrap().clone()
    };
    let assigns = |routing: &str| matches!(routing, "flow-classifier" | "flow-scheduler");
    let places = |routing: &str| matches!(routing, "flow-scheduler" | "hedera-gff" | "hedera-sa");
    let mut runs = carried("5", routings);
    for run in &mut runs {
        let routing = run["routing"].as_str().unwrap();
        // A controller with little of the processor needs more time.
        if assigns(routing) && said(run, "assigned").is_empty() || places(routing) && said(run, "placed").is_empty() {
            *run = carried("30", routing).remove(0);
        }
    }
    for run in &runs {
        let (routing, placed) = (run["routing"].as_str().unwrap(), said(run, "placed"));
        assert_eq!(alive(run, 0.0, 5.5), 16, "{routing}");
        assert_eq!(said(run, "error"), Vec::<&Value>::new(), "{routing}: a switch refused something");
        assert_eq!(placed.is_empty(), !places(routing), "{routing}");
        let assigned = said(run, "assigned");
        assert_eq!(assigned.is_empty(), !assigns(routing), "{routing}");
        for line in assigned {
            // A switch counts only flows of its own hosts, or of its own pod.
            let (switch, src) = (line["switch"].as_str().unwrap(), line["src"].as_str().unwrap());
            let below = src.replacen("10.", "", 1).replace('.', "-");
            let own = switch.strip_prefix('e').unwrap_or(&switch[1..2]);
            assert!(below.starts_with(own), "{switch}: {line}");
        }
    }

    // Same-ID outgoing takes the tables by twos to a link; a flow classifier spreads the flows at its switch.
    let options = ["--seconds", "6", "--transport", "udp", "--pattern", "same-id-outgoing"];
    let runs = run(&[&options[..], &["--routing", "flow-classifier"]].concat());
    let mut ports: BTreeMap<(&str, &str), &Value> = BTreeMap::new();
    for line in said(&runs[0], "assigned").into_iter().filter(|line| line["ports"][1] == 5_001) {
        ports.insert((line["switch"].as_str().unwrap(), line["flow"].as_str().unwrap()), &line["port"]);
    }
    for edge in ["e0-0", "e0-1", "e1-0", "e1-1", "e2-0", "e2-1", "e3-0", "e3-1"] {
        let own: Vec<&Value> = ports.iter().filter(|((s, _), _)| *s == edge).map(|(_, port)| *port).collect();
        assert!(own.len() == 2 && own[0] != own[1], "{edge}: {own:?}");
    }

    // A core dies and comes back; a link fails; all are reached again, by the controller's word.
    // Datagrams: a connection that waits for its retransmission timer says nothing about the network.
    let lives = |repair: u32| {
        let seconds = (repair + 6).to_string();
        let options = ["--seconds", &seconds, "--warm-up", "1", "--routing", "hedera-gff", "--transport", "udp"];
        let faults = at(&format!("3:kill:c1-1 3:down:a1-1:0 {repair}:start:c1-1 {repair}:up:a1-1:0"));
        let faults: Vec<&str> = faults.iter().map(String::as_str).collect();
        let one = run(&[&options[..], &faults].concat()).as_array().unwrap()[0].clone();
        let repair = f64::from(repair);
        let alive = (alive(&one, 0.0, 3.0), alive(&one, 5.0, repair), alive(&one, repair + 2.0, repair + 6.5));
        (one, alive)
    };
    let (mut one, mut living_flows) = lives(12);
    if living_flows != (16, 16, 16) {
        // Controller and switches with little of the processor need more time to go around the failures.
        (one, living_flows) = lives(60);
    }
    let one = &one;
    assert_eq!(one["faults"].as_array().unwrap().len(), 4);
    assert_eq!(living_flows, (16, 16, 16));
    let downs = said(one, "link").iter().filter(|line| line["up"] == false).count();
    assert_eq!(downs, 5, "four links of the core, and one: {:?}", said(one, "link"));
    assert!(said(one, "connected").iter().any(|line| line["switch"] == "c1-1" && line["added"].as_u64() > Some(0)));

    // A switch loses its entries and does not know it; a link flaps; the controller dies, a link fails meanwhile,
    // another controller comes.
    let course = |apart: f64| {
        let [up, down, up_again] = [1.0, 2.0, 3.0].map(|n| 4.0 + n * apart);
        let faults = at(&format!(
            "2:flush:e0-0 4:down:a3-0:3 {up}:up:a3-0:3 {down}:down:a3-0:3 {up_again}:up:a3-0:3 6:stop-controller 7:down:e2-0:2 \
             10:start-controller 10.5:up:e2-0:2"
        ));
        let faults: Vec<&str> = faults.iter().map(String::as_str).collect();
        // A slow machine takes its time to begin the controller.
        let options = ["--seconds", "32", "--warm-up", "1", "--routing", "hedera-gff", "--transport", "udp"];
        run(&[&options[..], &faults].concat()).as_array().unwrap()[0].clone()
    };
    let flaps_in = |one: &Value| -> Vec<bool> {
        let flaps = said(one, "link").into_iter().filter(|line| {
            [("a3-0", 3), ("c2-1", 3)].contains(&(line["switch"].as_str().unwrap(), line["port"].as_u64().unwrap()))
        });
        flaps.map(|line| line["up"] == true).collect()
    };
    let mut one = course(0.2);
    if flaps_in(&one).is_empty() {
        // With little of the processor nobody looked while the link was down.
        one = course(0.6);
    }
    let (one, flaps) = (&one, flaps_in(&one));
    assert!(said(one, "restored").iter().any(|line| line["switch"] == "e0-0"), "{:?}", one["controller"]);
    assert_eq!((alive(one, 4.0, 6.0), alive(one, 26.0, 32.5)), (16, 16));
    // By either end, it is down until it has stayed up.
    assert!(flaps.first() == Some(&false) && flaps.windows(2).all(|w| w[0] != w[1]), "{flaps:?}");
    assert!(flaps.len() <= 4, "no more than there was to say: {flaps:?}");
    // Without a controller switches keep their entries: hosts of e2-0 send by its other port, which they share.
    let ends: Vec<f64> = one["course"]["at_s"].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
    let meanwhile = |flow: &Value| {
        let rates = flow["course_mbps"].as_array().unwrap().iter().zip(&ends);
        rates.filter(|(_, at)| (8.0..10.0).contains(*at)).filter_map(|(rate, _)| rate.as_f64()).sum::<f64>()
    };
    let senders = one["flows"].as_array().unwrap().iter().filter(|flow| flow["src"] == 8 || flow["src"] == 9);
    assert!(senders.map(meanwhile).sum::<f64>() > 0.0, "{:?}", one["flows"]);
    let again = said(one, "connected").iter().filter(|line| line["found"].as_u64() > Some(0)).count();
    assert_eq!(again, 20, "the second controller finds what the first one installed");

    // A pod's one link to the top carries 1/3.6 of the rate of its hosts. The link, and a pod's switch, are gone for a
    // while: two seconds, so that a controller on a busy machine hears of it.
    let options = ["--transport", "udp", "--routing", "hierarchical", "--pattern", "stride:4"];
    // On a busy machine one host of a pod may take all of the uplink, because a switch serves one port after the other.
    let pods =
        |one: &Value, from, to| living(one, from, to).into_iter().map(|src| src / 4).collect::<BTreeSet<u64>>().len();
    let served = |seconds: u32, up: u32| {
        let faults = at(&format!("3:kill:p1 3.5:start:p1 4:down:top:0 {up}:up:top:0"));
        let faults: Vec<&str> = faults.iter().map(String::as_str).collect();
        let runs = run(&[&options[..], &["--seconds", &seconds.to_string()], &faults].concat());
        let one = runs[0].clone();
        let served = (pods(&one, 0.0, 3.0), pods(&one, f64::from(up) + 3.0, f64::from(seconds) + 0.5));
        (one, served)
    };
    let is_heard = |one: &Value| said(one, "link").iter().any(|line| line["up"] == false);
    let (mut one, mut served_pods) = served(15, 6);
    if served_pods != (4, 4) || !is_heard(&one) {
        // Controller and switches with little of the processor need more time to hear of the link, and to serve all again.
        (one, served_pods) = served(60, 16);
    }
    let one = &one;
    assert!(one["percent"].as_f64() < Some(1.1 * 100.0 / 3.6), "{}", one["percent"]);
    assert_eq!(served_pods, (4, 4));
    assert!(is_heard(one), "{:?}", one["controller"]);
    assert!(said(one, "connected").iter().any(|line| line["switch"] == "p1" && line["added"].as_u64() > Some(0)));

    // Transfers that end, one after the other.
    let runs = run(&["--seconds", "120", "--pattern", "shuffle", "--bytes", "4KB", "--routing", "ecmp"]);
    let flows = runs[0]["flows"].as_array().unwrap();
    assert_eq!((flows.len(), flows.iter().filter(|flow| flow["seconds"].is_number()).count()), (240, 240));

    killed_and_cleaned(&python);
}

fn killed_and_cleaned(python: &str) {
    let _alone = crate::testbed_lock();
    let mut run = Command::new(env!("CARGO_BIN_EXE_sluicenet"));
    run.args(["--quiet", "testbed", "fattree", "--seconds", "600", "--rate", "1Mb/s", "--python", python]);
    let mut run = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let pid = i32::try_from(run.id()).unwrap();
    let own = || named().unwrap().into_iter().filter(|name| name.contains(&format!("-ft{pid}-"))).count();
    let folder = format!("/run/sluicenet/fattree-{pid}");
    let until = Instant::now() + Duration::from_secs(120);
    while !Path::new(&folder).join("controller.sock").exists() {
        assert!(run.try_wait().unwrap().is_none() && Instant::now() < until, "it did not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(own(), 36);
    run.kill().unwrap();
    run.wait().unwrap();
    let out = Command::new(env!("CARGO_BIN_EXE_sluicenet")).arg("clean").output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!((own(), Path::new(&folder).exists()), (0, false));
    assert_eq!(leftovers::started(pid), None);
}

#[test]
fn what_it_does_not_take_and_what_it_misses_are_told() {
    let base = ["testbed", "fattree"];
    for (more, why) in [
        (["--k", "5"], "even"),
        (["--k", "8"], "at most 6"),
        (["--k", "2"], "two hosts have one path"),
        (["--rate", "10"], "a rate"),
        (["--pattern", "stride:16"], "send to themselves"),
        (["--pattern", "shuffle"], "--bytes"),
        (["--pattern", "file"], "there is no such pattern; expected: random"),
        (["--at=300:kill:c1-1", "--seconds=5"], "the run is over by then"),
        (["--control-loop=2", "--routing=ecmp"], "expected: flow-scheduler, hedera-gff"),
        (["--routing", "best"], "hedera-gff"),
        (["--at", "5:kill:c9-9"], "no switch"),
        (["--at=5:kill:c1-1", "--routing=ecmp,hierarchical"], "there are p0"),
        (["--seconds", "1"], "--warm-up"),
    ] {
        let (_, err) = expect(2, &[&base[..], &more].concat());
        assert!(err.contains(why), "{more:?}: {err}");
    }
    let (_, err) = expect(2, &[&base[..], &["--python", "/nonexistent/python"]].concat());
    assert!(err.contains("--python") && err.contains("/nonexistent/python"), "{err}");
    let (_, err) = expect(2, &[&base[..], &["--python", "/bin/true"]].concat());
    assert!(err.contains("this is no Python with that package"), "{err}");
}

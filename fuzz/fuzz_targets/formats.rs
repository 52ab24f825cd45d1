//! Files of other simulators and switches: whatever the bytes, a reader gives a value or an error with a message, and what it accepts is
//! within its limits.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluicenet_scenario::formats::{
    parse_cdf, parse_connection_matrix, parse_hpcc_flows, parse_hpcc_topology, parse_htsim_topology, parse_pairs,
};
use sluicenet_scenario::sonic::{parse_config_db, settings, toml_text};
use sluicenet_scenario::{Error, Hosts, PORTS_MAX, Result, SWITCH_PORTS_MAX, Scenario, Warning, Workload};

fn read<T>(outcome: Result<(T, Vec<Warning>)>) -> Option<T> {
    match outcome {
        Ok((value, warnings)) => {
            assert!(warnings.iter().all(|w| !w.message.is_empty()));
            Some(value)
        }
        Err(e) => {
            let shown = Error::to_string(&e);
            assert!(shown.starts_with("error: ") && shown.contains("--> f"), "{shown}");
            None
        }
    }
}

/// Ranges of hosts, as a scenario has them.
fn ranges(bytes: &[u8]) {
    let is_plain = |b: &u8| (b' '..=b'~').contains(b) && !b"\"\\".contains(b);
    let Some(text) = core::str::from_utf8(bytes).ok().filter(|_| bytes.iter().all(is_plain)) else { return };
    let scenario = format!(
        "[topology]\nkind = \"single-switch\"\nhosts = 64\n[[workload]]\nkind = \"incast\"\nreceiver = 63\nbytes = \"1 B\"\n\
         senders = \"{text}\"\n"
    );
    let Ok(loaded) = Scenario::parse(&scenario, "f") else { return };
    let Workload::Incast(incast) = &loaded.scenario.workloads[0] else { unreachable!() };
    let Hosts::List(senders) = &incast.senders else { unreachable!() };
    assert!(!senders.is_empty() && senders.iter().all(|&host| host < 63));
}

/// SONiC's `config_db.json`: its keys are those of a scenario, whose reader takes or refuses them with a place.
fn config_db(bytes: &[u8]) {
    let Some(db) = read(parse_config_db("f", bytes)) else { return };
    let of_file = match settings(&db, None, &|_, _| false) {
        Ok(of_file) => of_file,
        Err(e) => {
            let shown = Error::to_string(&e);
            return assert!(shown.starts_with("error: ") && shown.contains("--> f"), "{shown}");
        }
    };
    assert!(of_file.warnings.iter().all(|w| w.file == "f" && !w.message.is_empty()));
    let scenario = format!(
        "{}\n[topology]\nkind = \"single-switch\"\nhosts = 2\n[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\n\
         bytes = \"1 B\"\n",
        toml_text(&of_file.keys)
    );
    if let Err(e) = Scenario::parse(&scenario, "f") {
        assert!(e.diagnostic().line > 0 && !e.diagnostic().message.contains("not TOML"), "{e}");
    }
}

fuzz_target!(|input: (u8, &[u8])| {
    let (format, bytes) = input;
    match format % 8 {
        0 => {
            let Some(t) = read(parse_hpcc_topology("f", bytes)) else { return };
            assert!(t.hosts() >= 1 && t.links.iter().all(|l| l.a < t.nodes && l.b < t.nodes && l.a != l.b));
            assert!(t.nvswitches.iter().all(|id| t.switch_of(*id).is_some()));
            let mut ports = vec![0u32; t.nodes as usize];
            t.links.iter().flat_map(|l| [l.a, l.b]).for_each(|node| ports[node as usize] += 1);
            assert!(ports.iter().all(|&n| (1..=SWITCH_PORTS_MAX).contains(&n)) || t.nodes == 1);
        }
        1 => {
            let Some(t) = read(parse_htsim_topology("f", bytes)) else { return };
            let (m, w, links) = t.as_pgft();
            assert_eq!(m.iter().map(|&m| u64::from(m)).product::<u64>(), u64::from(t.hosts));
            // A radix is what the neighbours and the links to each make.
            for (level, tier) in t.tiers.iter().enumerate() {
                assert_eq!(u64::from(tier.radix_down), u64::from(m[level]) * u64::from(links[level]));
                let up = w.get(level + 1).map_or(0, |&w| u64::from(w) * u64::from(links[level + 1]));
                assert_eq!(u64::from(tier.radix_up), up);
            }
            assert!(u64::from(t.hosts) <= u64::from(PORTS_MAX));
        }
        2 => {
            let Some(m) = read(parse_connection_matrix("f", bytes)) else { return };
            assert!(m.connections.iter().all(|c| c.src < m.nodes && c.dst < m.nodes && c.src != c.dst));
            let messages = m.connections.iter().filter(|c| c.is_message);
            let mut ends = std::collections::BTreeMap::new();
            for c in messages {
                assert!(c.id > 0 && c.bytes.is_some());
                assert_eq!(*ends.entry(c.id).or_insert((c.src, c.dst)), (c.src, c.dst));
            }
        }
        3 => _ = read(parse_hpcc_flows("f", bytes)),
        4 => _ = read(parse_cdf("f", bytes)),
        5 => _ = read(parse_pairs("f", bytes, 4)),
        6 => config_db(bytes),
        _ => ranges(bytes),
    }
});

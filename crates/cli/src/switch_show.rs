//! `sluicenet switch show`: the state of a switch, for people.

use super::table::{Table, count};
use super::{Global, output};
use sluicenet_vswitchd::status::{HelperStatus, LOST_BESIDE, MacTable, PortStatus, Status, counted};
use sluicenet_vswitchd::watch::queued;
use std::collections::BTreeMap;

pub(super) fn show(status: &Status, global: Global) {
    if global.json {
        output::json(status);
        return;
    }
    let l = status.ledger;
    if let Some(xco) = &status.xco {
        return output::print(&super::xco_program::text(status, xco));
    }
    let what = if status.bump.is_some() { "bump" } else { "switch" };
    let mut text = format!(
        "{what} {} (process {}, up {:.0} s): {} accepted = {} delivered + {} dropped + {} queued\n",
        status.name,
        status.pid,
        status.uptime_s,
        frames(l.accepted),
        count(l.delivered),
        count(l.dropped),
        count(l.queued)
    );
    if let Some(HelperStatus { pid, ended: Some(how) }) = &status.helper {
        let process = pid.map(|pid| format!(" (process {pid})")).unwrap_or_default();
        text += &format!("the helper{process} has ended, {how}: no device is opened until the next start\n");
    }
    text += &ports(status);
    if !status.refused_calls.is_empty() {
        text += &format!("  system calls that the sandbox refused: {}\n", by_reason(&status.refused_calls));
    }
    if let Some(bump) = &status.bump {
        text += &super::bump::text(bump);
    }
    output::print(&text);
}

/// The ports as a table of a terminal's width, and below it what is longer: reasons.
fn ports(status: &Status) -> String {
    let columns =
        ["port", "kind", "from it", "to it", "queued", "held back", "lost for it", "refused", "waits for", ""];
    let mut t = Table::new(2, columns);
    let mut below = String::new();
    for port in &status.ports {
        let waits_for = match &port.waits_for[..] {
            [one] => one.clone(),
            [] => String::new(),
            several => format!("{} ports", several.len()),
        };
        t.row([
            port.name.as_str(),
            &port.kind,
            &count(port.accepted),
            &count(port.delivered),
            &count(queued(port)),
            &count(port.held_back),
            &count(port.dropped.values().sum()),
            &count(port.refused.values().sum()),
            &waits_for,
            remark(port),
        ]);
        below += &details(port);
    }
    let gone = &status.gone;
    if gone.accepted + gone.delivered > 0 || !gone.refused.is_empty() || !gone.dropped.is_empty() {
        let [from, to] = [gone.accepted, gone.delivered].map(count);
        let [lost, refused] = [&gone.dropped, &gone.refused].map(|drops| count(drops.values().sum()));
        t.row(["(gone)", "", &from, &to, "0", "", &lost, &refused, "", "ports that are gone"]);
        below += &drops("(gone)", &gone.dropped, &gone.refused);
    }
    t.text() + &below
}

/// Lines about a port that have no room in the table.
fn details(port: &PortStatus) -> String {
    let name = &port.name;
    let mut text = drops(name, &port.dropped, &port.refused);
    if port.waits_for.len() > 1 {
        text += &format!("  {name} waits for: {}\n", port.waits_for.join(" "));
    }
    if let (false, Some(absent)) = (port.is_present(), &port.absent) {
        text += &format!("  {name}, nobody there: {absent}\n");
    }
    match port.counters.get("sockets_stuck_now") {
        None | Some(0) => {}
        Some(1) => text += &format!("  {name}: 1 socket stuck: nobody reads it\n"),
        Some(n) => text += &format!("  {name}: {n} sockets stuck: nobody reads them\n"),
    }
    let lost = |place: &&str| port.counters.get(*place).is_some_and(|&n| n > 0);
    let places: Vec<String> =
        LOST_BESIDE.into_iter().filter(lost).map(|place| format!("{} {place}", count(port.counters[place]))).collect();
    if !places.is_empty() {
        text += &format!("  lost beside the switch, by the kernel, at {name}: {}\n", places.join(", "));
    }
    text
}

/// The reasons for which frames of a port, or for it, were dropped.
fn drops(name: &str, dropped: &BTreeMap<String, u64>, refused: &BTreeMap<String, u64>) -> String {
    let line = |what: &str, drops: &BTreeMap<String, u64>| match drops.is_empty() {
        true => String::new(),
        false => format!("  {what} {name}: {}\n", by_reason(drops)),
    };
    line("lost for", dropped) + &line("refused of", refused)
}

pub(super) fn show_macs(table: &MacTable, global: Global) {
    if global.json {
        return output::json(table);
    }
    let mut t = Table::new(3, ["address", "tenant", "port", "last frame"]);
    for entry in &table.entries {
        let age = match entry.age_s {
            Some(age) => format!("{} s ago", count(age)),
            None => "given".into(),
        };
        let port = entry.port.as_deref().unwrap_or("(nobody there)");
        t.row([entry.mac.as_str(), &entry.tenant.to_string(), port, &age]);
    }
    let mut text = t.text();
    let more = table.total - table.entries.len();
    if more > 0 {
        text += &format!("  and {}\n", counted(more as u64, "more address", "more addresses"));
    }
    output::print(&text);
}

pub(super) fn frames(n: u64) -> String {
    format!("{} {}", count(n), if n == 1 { "frame" } else { "frames" })
}

fn by_reason(drops: &BTreeMap<String, u64>) -> String {
    let parts: Vec<String> = drops.iter().map(|(reason, n)| format!("{} {reason}", count(*n))).collect();
    parts.join(", ")
}

fn remark(port: &PortStatus) -> &'static str {
    match port.is_present() {
        false => "nobody there",
        true if port.isolated => "isolated",
        true if port.stuck_now => "stuck",
        true if port.counters.get("sockets_stuck_now").is_some_and(|&n| n > 0) => "sockets stuck",
        true => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_vswitchd::status::{Absent, Again};

    #[test]
    fn a_table_of_ports_is_no_wider_than_a_terminal() {
        let reasons = ["forged_source", "forged_arp", "forged_ip", "forged_nd", "no_route", "watchdog", "port_gone"];
        let drops: BTreeMap<String, u64> = reasons.iter().map(|reason| ((*reason).to_owned(), 1_234_567)).collect();
        let port = |name: &str| PortStatus {
            name: name.to_owned(),
            kind: "veth".into(),
            number: Some(1),
            accepted: 12_345_678,
            delivered: 12_345_678,
            held_back: 12_345,
            waits_for: ["web-519efe88", "db-0021ba77"].map(str::to_owned).to_vec(),
            dropped: drops.clone(),
            refused: drops.clone(),
            ..PortStatus::default()
        };
        let why = "the network namespace /run/netns/red1: No such file or directory (os error 2)";
        let absent = Some(Absent { reason: why.into(), again: Again::EverySecond });
        let mut status = Status { ports: vec![port("web-519efe88")], ..Status::default() };
        status.ports.push(PortStatus { number: None, absent, ..port("red1") });
        let text = ports(&status);
        let table: Vec<&str> = text.lines().take(4).collect();
        assert!(table.iter().all(|row| row.chars().count() <= 120), "{text}");
        assert!(table[2].contains("8,641,969") && table[3].ends_with("nobody there"), "{text}");
        let words = [
            "  lost for red1: 1,234,567 forged_arp, ",
            "  refused of web-519efe88: 1,234,567 forged_arp, ",
            "  web-519efe88 waits for: web-519efe88 db-0021ba77\n",
            "  red1, nobody there: the network namespace /run/netns/red1: No such file",
        ];
        words.iter().for_each(|words| assert!(text.contains(words), "{words}: {text}"));
    }
}

//! Content of the display, independent of its renderer.

use super::super::table::{Table, count, short};
use serde::Serialize;
use sluicenet_vswitchd::bump::status::QueueStatus;
use sluicenet_vswitchd::status::{PortStatus, Status};
use sluicenet_vswitchd::watch::{Rates, Waiting, held, lost, queued, who_waits};
use std::time::Instant;

/// All switches, of one moment; or why one does not answer.
pub struct Look {
    pub at: Instant,
    pub switches: Vec<Result<Status, String>>,
}

/// By what the ports are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    Name,
    In,
    Out,
    Queue,
    Held,
    Drops,
}

impl Sort {
    pub fn of_key(key: char) -> Option<Sort> {
        Some(match key {
            'n' => Sort::Name,
            'i' => Sort::In,
            'o' => Sort::Out,
            'u' => Sort::Queue,
            'h' => Sort::Held,
            'd' => Sort::Drops,
            _ => return None,
        })
    }
    pub fn name(self) -> &'static str {
        match self {
            Sort::Name => "name",
            Sort::In => "frames in",
            Sort::Out => "frames out",
            Sort::Queue => "queue",
            Sort::Held => "held back",
            Sort::Drops => "drops",
        }
    }
}

/// A port and how fast it goes.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub switch: String,
    /// Frames each of its queues holds.
    #[serde(skip)]
    pub slots: u32,
    #[serde(flatten)]
    pub port: PortStatus,
    pub rates: Rates,
}

impl Row {
    /// State of the port, in a word.
    pub fn state(&self) -> &'static str {
        match &self.port {
            p if p.number.is_none() => "absent",
            p if p.isolated => "ISOLATED",
            p if p.stuck_now => "STUCK",
            p if !p.waits_for.is_empty() => "waits",
            p if has_no_grant(p) => "agent",
            p if p.output.iter().any(|&n| n >= self.slots) => "full",
            _ => "",
        }
    }

    /// Times that the port paused its other end, or was paused; none where its kind knows no pauses.
    pub fn pauses(&self) -> Option<u64> {
        let mut pauses = self.port.counters.iter().filter(|(name, _)| name.contains("pause")).peekable();
        pauses.peek()?;
        Some(pauses.map(|(_, n)| n).sum())
    }

    fn key(&self, sort: Sort) -> f64 {
        match sort {
            Sort::Name => 0.0,
            Sort::In => self.rates.frames_from,
            Sort::Out => self.rates.frames_to,
            Sort::Queue => queued(&self.port) as f64,
            Sort::Held => held(&self.port) as f64,
            Sort::Drops => lost(&self.port) as f64,
        }
    }

    /// Its drops, by reason.
    pub fn drops(&self) -> Vec<String> {
        let (from, to) = (self.port.refused.iter(), self.port.dropped.iter());
        let from = from.map(|(reason, n)| format!("{} {reason} from it", count(*n)));
        from.chain(to.map(|(reason, n)| format!("{} {reason}", count(*n)))).collect()
    }
}

/// A switch as a whole.
#[derive(Clone, Debug, Serialize)]
pub struct Overview {
    pub name: String,
    pub uptime_s: f64,
    pub ledger: sluicenet_vswitchd::status::Ledger,
    /// Waiting ports under the ports that they wait for, from those that hold others up.
    pub waiting: Vec<Waiting>,
    /// Ports of which each waits for the next and the last for the first.
    pub cycles: Vec<Vec<String>>,
    /// The virtual queues of a bump that packets have entered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub virtual_queues: Vec<QueueStatus>,
}

/// Content of the display.
#[derive(Clone, Debug, Serialize)]
pub struct View {
    pub switches: Vec<Overview>,
    #[serde(rename = "ports")]
    pub rows: Vec<Row>,
    /// Switches that do not answer.
    pub errors: Vec<String>,
}

impl View {
    pub fn new(before: Option<&Look>, now: &Look, sort: Sort) -> View {
        let mut view = View { switches: Vec::new(), rows: Vec::new(), errors: Vec::new() };
        let seconds = before.map_or(0.0, |b| now.at.duration_since(b.at).as_secs_f64());
        for status in &now.switches {
            let status = match status {
                Ok(status) => status,
                Err(error) => {
                    view.errors.push(error.clone());
                    continue;
                }
            };
            let same = |s: &&Status| s.name == status.name && s.pid == status.pid;
            let old = before.and_then(|b| b.switches.iter().flatten().find(same));
            for port in &status.ports {
                let was = old.and_then(|s| s.ports.iter().find(|p| p.name == port.name));
                let rates = was.map_or(Rates::default(), |was| Rates::between(was, port, seconds));
                view.rows.push(Row { switch: status.name.clone(), slots: status.slots, port: port.clone(), rates });
            }
            let (waiting, cycles) = who_waits(status);
            let Status { name, uptime_s, ledger, .. } = status.clone();
            let queues = status.bump.iter().flat_map(|bump| &bump.queues);
            let virtual_queues = queues.filter(|queue| queue.packets + queue.reported > 0).cloned().collect();
            view.switches.push(Overview { name, uptime_s, ledger, waiting, cycles, virtual_queues });
        }
        view.rows.sort_by(|a, b| b.key(sort).total_cmp(&a.key(sort)));
        view
    }

    /// A port's name, with its switch's where there are several.
    pub fn name(&self, row: &Row) -> String {
        if self.switches.len() > 1 { format!("{}/{}", row.switch, row.port.name) } else { row.port.name.clone() }
    }

    /// The ports that could not be opened, or broke, a line each.
    pub fn absent(&self) -> Vec<String> {
        let absent = |row: &Row| row.port.absent.as_ref().map(|why| format!("nobody at {}: {why}", self.name(row)));
        self.rows.iter().filter_map(absent).collect()
    }

    /// Lines about waiting ports, one for each.
    pub fn waits(&self, ascii: bool) -> Vec<String> {
        let mut lines = Vec::new();
        for head in &self.switches {
            let prefix = if self.switches.len() > 1 { format!("{}: ", head.name) } else { String::new() };
            for cycle in &head.cycles {
                let arrow = if ascii { " -> " } else { " → " };
                lines.push(format!("{prefix}cycle: {}{arrow}{}", cycle.join(arrow), cycle[0]));
            }
            for root in &head.waiting {
                let port = self.rows.iter().find(|r| r.switch == head.name && r.port.name == root.port);
                let frames = port.map_or(0, |r| queued(&r.port));
                lines.push(format!("{prefix}{} holds others up: {} frames wait for it", root.port, count(frames)));
                branches(root, "", ascii, &mut lines);
            }
        }
        lines
    }

    /// Lines about the virtual queues of bumps, the fullest first.
    pub fn virtual_queues(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for head in &self.switches {
            let mut queues: Vec<&QueueStatus> = head.virtual_queues.iter().collect();
            queues.sort_by_key(|queue| std::cmp::Reverse(queue.bytes));
            lines.extend(queues.iter().map(|q| {
                format!(
                    "{}: port {}: {} bytes, {} packets, {} marked, {} dropped",
                    head.name,
                    q.port,
                    count(q.bytes),
                    count(q.packets),
                    count(q.marked),
                    count(q.dropped)
                )
            }));
        }
        lines
    }

    /// A plain table.
    pub fn text(&self) -> String {
        let columns =
            ["port", "kind", "in/s", "in b/s", "out/s", "out b/s", "queued", "held", "pauses", "drops", "state"];
        let mut t = Table::new(2, columns);
        for row in &self.rows {
            t.row([
                self.name(row),
                row.port.kind.clone(),
                number(row.rates.frames_from),
                number(row.rates.bits_from),
                number(row.rates.frames_to),
                number(row.rates.bits_to),
                count(queued(&row.port)),
                count(held(&row.port)),
                row.pauses().map_or("-".into(), count),
                count(lost(&row.port)),
                row.state().into(),
            ]);
        }
        let mut text: String = self.switches.iter().map(|head| headline(head) + "\n").collect();
        text += &t.text();
        for row in self.rows.iter().filter(|r| lost(&r.port) > 0) {
            text += &format!("dropped at {}: {}\n", self.name(row), row.drops().join(", "));
        }
        self.absent().iter().for_each(|line| text += &format!("{line}\n"));
        self.waits(false).iter().for_each(|line| text += &format!("{line}\n"));
        self.virtual_queues().iter().for_each(|line| text += &format!("{line}\n"));
        self.errors.iter().for_each(|error| text += &format!("{error}\n"));
        text
    }
}

fn branches(of: &Waiting, indent: &str, ascii: bool, lines: &mut Vec<String>) {
    for (i, waiter) in of.waiters.iter().enumerate() {
        let last = i + 1 == of.waiters.len();
        let (fork, bar) = match (ascii, last) {
            (false, false) => ("├─ ", "│  "),
            (false, true) => ("└─ ", "   "),
            (true, false) => ("|- ", "|  "),
            (true, true) => ("`- ", "   "),
        };
        let again = if waiter.again { " (see above)" } else { "" };
        lines.push(format!("{indent}{fork}{} waits for {}{again}", waiter.port, of.port));
        branches(waiter, &format!("{indent}{bar}"), ascii, lines);
    }
}

/// A switch in a line.
pub fn headline(head: &Overview) -> String {
    let l = head.ledger;
    format!(
        "{} up {} s: {} accepted = {} delivered + {} dropped + {} queued",
        head.name,
        count(head.uptime_s as u64),
        count(l.accepted),
        count(l.delivered),
        count(l.dropped),
        count(l.queued)
    )
}

/// Whether the agent in the guest behind it has granted nothing more.
fn has_no_grant(port: &PortStatus) -> bool {
    ["agent", "agent_granted"].map(|name| port.counters.get(name).copied()) == [Some(1), Some(0)]
}

/// A rate in up to six characters.
pub fn number(x: f64) -> String {
    short(x).replace(' ', "")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use sluicenet_vswitchd::status::{Absent, Again};
    use std::time::Duration;

    fn port(name: &str) -> PortStatus {
        PortStatus { name: name.into(), kind: "shm".into(), number: Some(0), ..PortStatus::default() }
    }

    /// Two looks a second apart: a and b send to c, which takes little; d is isolated.
    pub fn congestion() -> (Look, Look) {
        let mut status = Status { name: "vs".into(), slots: 100, uptime_s: 12.3, ..Status::default() };
        status.ports = ["a", "b", "c", "d"].map(port).to_vec();
        let start = Instant::now();
        let before = Look { at: start, switches: vec![Ok(status.clone())] };
        for (n, frames) in [(0, 1_500_000), (1, 20_000)] {
            let p = &mut status.ports[n];
            (p.accepted, p.bytes_from, p.held_back) = (frames, frames * 1_500, 9_000);
            (p.waits_for, p.input[3]) = (vec!["c".into()], 90 - 10 * n as u32);
        }
        status.ports[2].output = [100, 0, 0, 50, 0, 0, 0, 1];
        status.ports[2].delivered = 1_000;
        status.ports[3].isolated = true;
        status.ports[3].dropped.insert("watchdog".into(), 1234);
        status.ledger.accepted = 1_520_000;
        (before, Look { at: start + Duration::from_secs(1), switches: vec![Ok(status)] })
    }

    #[test]
    fn the_table_says_it_in_plain_text() {
        let (before, now) = congestion();
        let text = View::new(Some(&before), &now, Sort::Name).text();
        for words in [
            "vs up 12 s: 1,520,000 accepted = 0 delivered",
            "a     shm    1.5M   18.0G      0        0       0    90       -      0     waits",
            "d     shm       0       0      0        0       0     0       -  1,234  ISOLATED",
            "dropped at d: 1,234 watchdog",
            "c holds others up: 151 frames wait for it\n├─ a waits for c\n└─ b waits for c\n",
        ] {
            assert!(text.contains(words), "{words}\n{text}");
        }
    }

    #[test]
    fn a_port_whose_agent_grants_nothing_says_so() {
        let row = |granted| {
            let mut port = port("a");
            port.counters.extend([("agent".to_owned(), 1), ("agent_granted".to_owned(), granted)]);
            Row { switch: "vs".into(), slots: 100, port, rates: Rates::default() }
        };
        assert_eq!((row(0).state(), row(3).state()), ("agent", ""));
    }

    #[test]
    fn why_nobody_is_at_a_port_is_said() {
        let (_, mut now) = congestion();
        let port = &mut now.switches[0].as_mut().unwrap().ports[3];
        let reason = "the device eth0 of d: it is switched off".to_owned();
        (port.number, port.absent) = (None, Some(Absent { reason, again: Again::NextStart }));
        let text = View::new(None, &now, Sort::Name).text();
        let line =
            "nobody at d: the device eth0 of d: it is switched off (tried again when the switch is started again)\n";
        assert!(text.contains(line) && text.contains("absent"), "{text}");
    }

    #[test]
    fn ports_are_sorted_by_what_was_asked_for() {
        let (before, now) = congestion();
        for (key, first) in [('n', "a"), ('i', "a"), ('o', "c"), ('u', "c"), ('h', "a"), ('d', "d")] {
            let view = View::new(Some(&before), &now, Sort::of_key(key).unwrap());
            assert_eq!(view.rows[0].port.name, first, "{key}");
        }
        assert_eq!(Sort::of_key('x'), None);
    }

    #[test]
    fn one_object_says_the_same() {
        let (before, now) = congestion();
        let view = serde_json::to_value(View::new(Some(&before), &now, Sort::Name)).unwrap();
        assert_eq!(view["ports"][0]["name"], "a");
        assert_eq!(view["ports"][0]["rates"]["frames_from"], 1_500_000.0);
        assert_eq!(view["switches"][0]["waiting"][0]["port"], "c");
        assert_eq!(view["switches"][0]["waiting"][0]["waiters"][1]["port"], "b");
    }
}

//! Metrics for Prometheus: its text format 0.0.4 over HTTP. Clients, however slow or frequent, use a limited number of
//! threads for a few seconds. They make the switch read its counters only once in a while.

use super::bump::status::QueueStatus;
use super::served::Served;
use super::status::{PortStatus, Status};
use super::xco::status::XcoStatus;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The most connections served at once.
const CONNECTIONS_MAX: usize = 8;
/// The most bytes of a request's head.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// The longest duration of a connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// The greatest age of an answer.
const FRESH: Duration = Duration::from_millis(100);

/// The HTTP server for metrics.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Listens at an address.
    ///
    /// # Errors
    /// The address is not available.
    pub fn bind(address: SocketAddr) -> io::Result<Server> {
        let context = |e: io::Error| io::Error::new(e.kind(), format!("metrics at {address}: {e}"));
        let listener = TcpListener::bind(address).map_err(context)?;
        let address = listener.local_addr().map_err(context)?;
        Ok(Server { listener, address })
    }

    /// The server's address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves requests until the process ends.
    pub(crate) fn serve<D: Served>(&self, daemon: &Arc<D>) {
        let open = Arc::new(AtomicUsize::new(0));
        let last: Arc<Mutex<Last>> = Arc::default();
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) => {
                    daemon.life().log.count("metrics", &e.to_string());
                    std::thread::sleep(Duration::from_millis(100));
                    continue;
                }
            };
            if open.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
                open.fetch_sub(1, Ordering::Relaxed);
                daemon.life().log.count("metrics", "too many connections");
                continue;
            }
            let (daemon, last, open) = (daemon.clone(), last.clone(), open.clone());
            let is_local = self.address.ip().is_loopback();
            std::thread::spawn(move || {
                let page = || page(&*daemon, &last);
                // A client that disconnects early is no error of the switch.
                let _ = converse(&stream, is_local, page);
                open.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }
}

/// The last page, and its time.
type Last = Option<(Instant, Arc<str>)>;

/// The page of metrics, at most [`FRESH`] old.
fn page(daemon: &impl Served, last: &Mutex<Last>) -> Option<Arc<str>> {
    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((at, text)) = &*last
        && at.elapsed() < FRESH
    {
        return Some(text.clone());
    }
    let text: Arc<str> = text(&daemon.status().ok()?).into();
    *last = Some((Instant::now(), text.clone()));
    Some(text)
}

fn converse(stream: &TcpStream, is_local: bool, page: impl FnOnce() -> Option<Arc<str>>) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let head = read_head(stream, deadline)?;
    let (status, body) = answer(&head, is_local, page);
    let kind = if status.starts_with("200") { "text/plain; version=0.0.4; charset=utf-8" } else { "text/plain" };
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        stream.set_write_timeout(Some(left(deadline)?))?;
        let written = (&mut &*stream).write(rest)?;
        rest = &rest[written..];
    }
    Ok(())
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Reads the request line and the headers.
fn read_head(stream: &TcpStream, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut chunk = [0; 1024];
    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
        stream.set_read_timeout(Some(left(deadline)?))?;
        let read = (&mut &*stream).read(&mut chunk)?;
        if read == 0 || head.len() + read > HEAD_BYTES_MAX {
            return Err(ErrorKind::InvalidData.into());
        }
        head.extend_from_slice(&chunk[..read]);
    }
    Ok(head)
}

/// The HTTP status and body of an answer.
fn answer(head: &[u8], is_local: bool, page: impl FnOnce() -> Option<Arc<str>>) -> (&'static str, Arc<str>) {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.split("\r\n");
    let mut words = lines.next().unwrap_or("").split(' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    let host = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("host").then(|| value.trim().to_owned())
    });
    if !version.is_some_and(|v| v.starts_with("HTTP/1.")) {
        return ("400 Bad Request", "this is no HTTP/1\n".into());
    }
    // A web page whose host name resolves to this machine must not read the metrics.
    if is_local && host.is_some_and(|host| !is_of_this_machine(&host)) {
        return ("403 Forbidden", "not by that name\n".into());
    }
    match (method, target.map(|t| t.split('?').next().unwrap_or(t))) {
        (Some("GET"), Some("/metrics")) => match page() {
            Some(text) => ("200 OK", text),
            None => ("503 Service Unavailable", "the switch stops\n".into()),
        },
        (Some("GET"), Some("/")) => ("404 Not Found", "metrics are at /metrics\n".into()),
        (Some("GET"), _) => ("404 Not Found", "there is nothing but /metrics\n".into()),
        _ => ("405 Method Not Allowed", "only GET\n".into()),
    }
}

fn is_of_this_machine(host: &str) -> bool {
    let is_local = |ip: IpAddr| ip.is_loopback();
    if let Ok(address) = host.parse::<SocketAddr>() {
        return is_local(address.ip());
    }
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || bare.parse().is_ok_and(is_local)
}

/// A metric and its meaning. `docs/switch.md` has the same list.
#[derive(Debug)]
pub struct Metric {
    /// The metric's name.
    pub name: &'static str,
    /// `counter` or `gauge`.
    pub kind: &'static str,
    /// The metric's labels besides `switch`.
    pub labels: &'static str,
    /// The metric's meaning, with its unit.
    pub help: &'static str,
    write: fn(&mut Samples<'_>, &Status),
}

/// All metrics.
pub static METRICS: &[Metric] = &[
    m("sluicenet_switch_info", "gauge", "version", "1", |s, status| {
        s.add(&[("version", &status.version)], 1);
    }),
    m("sluicenet_switch_uptime_seconds", "gauge", "", "seconds since it started", |s, status| {
        s.add(&[], format_args!("{:.3}", status.uptime_s));
    }),
    m(
        "sluicenet_switch_sleeps_total",
        "counter",
        "",
        "times that it slept because there was nothing to do",
        |s, status| {
            s.add(&[], status.sleeps);
        },
    ),
    m(
        "sluicenet_switch_refused_calls_total",
        "counter",
        "call",
        "system calls that the sandbox refused. A switch needs none of them: a fault of it was exploited, or its list of \
            calls is incomplete",
        |s, status| {
            for (call, n) in &status.refused_calls {
                s.add(&[("call", call)], n);
            }
        },
    ),
    m(
        "sluicenet_switch_frames_total",
        "counter",
        "fate",
        "frames accepted, delivered and dropped; a frame counts once for each port. accepted = delivered + dropped \
            + queued",
        |s, status| {
            let l = status.ledger;
            for (fate, frames) in [("accepted", l.accepted), ("delivered", l.delivered), ("dropped", l.dropped)] {
                s.add(&[("fate", fate)], frames);
            }
        },
    ),
    m("sluicenet_switch_queue_frames", "gauge", "", "frames that wait in the switch", |s, status| {
        s.add(&[], status.ledger.queued)
    }),
    m(
        "sluicenet_switch_drops_total",
        "counter",
        "direction, reason",
        "frames dropped at all ports, including removed ones: refused on arrival (in), or dropped on the way out \
            (out)",
        |s, status| {
            for ((direction, reason), frames) in status.drops() {
                s.add(&[("direction", direction), ("reason", reason)], frames);
            }
        },
    ),
    m("sluicenet_port_up", "gauge", "port", "1 while an endpoint is attached to the port", |s, status| {
        s.of_ports(status, |p| u64::from(p.is_present()));
    }),
    m(
        "sluicenet_port_frames_total",
        "counter",
        "port, direction",
        "frames from the port (in) and to it (out); a flooded frame counts once for each destination port",
        |s, status| {
            s.both_directions(status, |p| [p.accepted, p.delivered]);
        },
    ),
    m(
        "sluicenet_port_bytes_total",
        "counter",
        "port, direction",
        "bytes of frames from the port and to it",
        |s, status| {
            s.both_directions(status, |p| [p.bytes_from, p.bytes_to]);
        },
    ),
    m(
        "sluicenet_port_drops_total",
        "counter",
        "port, direction, reason",
        "frames from the port that were refused (in), and frames for it that were dropped (out)",
        |s, status| {
            for p in &status.ports {
                for (direction, reasons) in [("in", &p.refused), ("out", &p.dropped)] {
                    for (reason, frames) in reasons {
                        s.add(&[("port", &p.name), ("direction", direction), ("reason", reason)], frames);
                    }
                }
            }
        },
    ),
    m(
        "sluicenet_port_queue_frames",
        "gauge",
        "port, queue, priority",
        "frames that wait for the port (output), and frames of the port that wait for a full output (input)",
        |s, status| {
            for p in &status.ports {
                for (queue, lengths) in [("input", &p.input), ("output", &p.output)] {
                    for (priority, frames) in lengths.iter().enumerate() {
                        let priority = priority.to_string();
                        s.add(&[("port", &p.name), ("queue", queue), ("priority", &priority)], frames);
                    }
                }
            }
        },
    ),
    m(
        "sluicenet_port_inside_frames",
        "gauge",
        "port",
        "frames that the port holds for its endpoint: for a socket, a device or the neighbour",
        |s, status| {
            s.of_ports(status, |p| p.inside.into());
        },
    ),
    m(
        "sluicenet_port_lent_frames",
        "gauge",
        "port",
        "frames in the port's buffers that the switch holds",
        |s, status| {
            s.of_ports(status, |p| p.lent.into());
        },
    ),
    m("sluicenet_port_held_back_total", "counter", "port", "times the port found its input queue full", |s, status| {
        s.of_ports(status, |p| p.held_back);
    }),
    m("sluicenet_port_stuck_total", "counter", "port", "times the watchdog found the port stuck", |s, status| {
        s.of_ports(status, |p| p.stuck);
    }),
    m(
        "sluicenet_port_isolations_total",
        "counter",
        "port",
        "times that the watchdog isolated the port",
        |s, status| {
            s.of_ports(status, |p| p.isolations);
        },
    ),
    m(
        "sluicenet_port_stuck",
        "gauge",
        "port",
        "1 while the port has frames and has accepted none for the detection time",
        |s, status| {
            s.of_ports(status, |p| p.stuck_now.into());
        },
    ),
    m("sluicenet_port_isolated", "gauge", "port", "1 while the watchdog isolates the port", |s, status| {
        s.of_ports(status, |p| p.isolated.into());
    }),
    m(
        "sluicenet_port_waits_for",
        "gauge",
        "port, for",
        "1 while frames of the port wait for a full output",
        |s, status| {
            for p in &status.ports {
                p.waits_for.iter().for_each(|other| s.add(&[("port", &p.name), ("for", other)], 1));
            }
        },
    ),
    m("sluicenet_port_events_total", "counter", "port, counter", "events that the port counts itself", |s, status| {
        for p in &status.ports {
            p.counters.iter().for_each(|(counter, n)| s.add(&[("port", &p.name), ("counter", counter)], n));
        }
    }),
    m(
        "sluicenet_bump_frames_total",
        "counter",
        "fate",
        "frames of a bump: for itself (consumed), of its own (own), of its own without room (own_lost), and to destinations \
            without a virtual queue (unmapped)",
        |s, status| {
            if let Some(b) = &status.bump {
                let fates = [("consumed", b.consumed), ("own", b.own), ("own_lost", b.own_lost)];
                for (fate, frames) in fates.into_iter().chain([("unmapped", b.unmapped)]) {
                    s.add(&[("fate", fate)], frames);
                }
            }
        },
    ),
    m(
        "sluicenet_bump_queue_bytes",
        "gauge",
        "downstream",
        "estimated bytes in the queue of a downstream port",
        |s, status| s.of_queues(status, |q| q.bytes),
    ),
    m(
        "sluicenet_bump_queue_rate_bps",
        "gauge",
        "downstream",
        "the speed of the downstream port, in bits per second",
        |s, status| s.of_queues(status, |q| q.rate_bps),
    ),
    m(
        "sluicenet_bump_queue_packets_total",
        "counter",
        "downstream, fate",
        "packets that entered a virtual queue; those of them that were marked and dropped; notifications that were \
            consumed and sent; packets that other bumps reported",
        |s, status| {
            for q in status.bump.iter().flat_map(|b| &b.queues) {
                let fates = [("entered", q.packets), ("marked", q.marked), ("dropped", q.dropped)];
                let more = [("consumed", q.consumed), ("notices", q.notices), ("reported", q.reported)];
                for (fate, packets) in fates.into_iter().chain(more) {
                    s.add(&[("downstream", &q.port), ("fate", fate)], packets);
                }
            }
        },
    ),
    m(
        "sluicenet_bump_application",
        "gauge",
        "downstream, name",
        "averages and rates of the applications at a virtual queue; of several limiters the sum",
        |s, status| {
            for q in status.bump.iter().flat_map(|b| &b.queues) {
                q.gauges.iter().for_each(|(name, value)| s.add(&[("downstream", &q.port), ("name", name)], value));
            }
        },
    ),
    m(
        "sluicenet_bump_program_runs",
        "gauge",
        "downstream",
        "1 while the program of a downstream port runs",
        |s, status| {
            for lane in status.bump.iter().flat_map(|b| &b.lanes) {
                s.add(&[("downstream", &lane.port)], u8::from(lane.runs));
            }
        },
    ),
    m(
        "sluicenet_bump_program_total",
        "counter",
        "downstream, event",
        "events of the program of a downstream port: frames that it was called with, starts, faults (crashes, timeouts, \
            broke_rules), and frames that it did not see or that its faults dropped",
        |s, status| {
            for lane in status.bump.iter().flat_map(|b| &b.lanes) {
                lane.counters.iter().for_each(|(event, n)| s.add(&[("downstream", &lane.port), ("event", event)], n));
            }
        },
    ),
    m(
        "sluicenet_bump_updates_total",
        "counter",
        "fate",
        "updates to other bumps (sent) and from them: merged, lost, stale (repeated or late), forged, damaged, of strangers",
        |s, status| {
            if let Some(u) = status.bump.as_ref().and_then(|b| b.updates.as_ref()) {
                let sum = |at: usize| u.neighbours.values().map(|counts| counts[at]).sum::<u64>();
                let own = [("sent", u.sent), ("forged", u.forged), ("damaged", u.damaged), ("strangers", u.strangers)];
                for (fate, updates) in own.into_iter().chain([("merged", sum(0)), ("lost", sum(1)), ("stale", sum(2))])
                {
                    s.add(&[("fate", fate)], updates);
                }
            }
        },
    ),
    m(
        "sluicenet_xco_active",
        "gauge",
        "",
        "1 while a controller of XCo gives directives, 0 while it is the standby",
        |s, status| s.of_xco(status, |x| (x.role != "agent").then(|| u64::from(x.role == "active"))),
    ),
    m("sluicenet_xco_waiting_bytes", "gauge", "", "bytes that wait at an agent of XCo", |s, status| {
        s.of_xco(status, |x| x.waiting_bytes);
    }),
    m("sluicenet_xco_members", "gauge", "", "hosts that have joined a controller of XCo", |s, status| {
        s.of_xco(status, |x| Some(x.members as u64));
    }),
    m("sluicenet_xco_flows", "gauge", "", "flows whose frames wait, as their hosts reported", |s, status| {
        s.of_xco(status, |x| Some(x.flows as u64));
    }),
    m(
        "sluicenet_xco_events_total",
        "counter",
        "event",
        "events at a controller of XCo or its agent, and messages that were refused by their reasons",
        |s, status| {
            for (event, n) in status.xco.iter().flat_map(|x| &x.events) {
                s.add(&[("event", event)], n);
            }
        },
    ),
    m(
        "sluicenet_xco_messages_total",
        "counter",
        "fate",
        "messages of XCo at the device: received, sent, malformed, for another address (elsewhere), without room (unsent), \
            and frames that are none (other_frames)",
        |s, status| {
            for (fate, n) in status.xco.iter().flat_map(|x| &x.messages) {
                s.add(&[("fate", fate)], n);
            }
        },
    ),
];

const fn m(
    name: &'static str,
    kind: &'static str,
    labels: &'static str,
    help: &'static str,
    write: fn(&mut Samples<'_>, &Status),
) -> Metric {
    Metric { name, kind, labels, help, write }
}

/// The samples of one metric.
struct Samples<'a> {
    name: &'static str,
    switch: &'a str,
    text: &'a mut String,
}

impl Samples<'_> {
    fn add(&mut self, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let escaped = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let _ = write!(self.text, "{}{{switch=\"{}\"", self.name, escaped(self.switch));
        for (label, text) in labels {
            let _ = write!(self.text, ",{label}=\"{}\"", escaped(text));
        }
        let _ = writeln!(self.text, "}} {value}");
    }

    fn of_ports(&mut self, status: &Status, value: fn(&PortStatus) -> u64) {
        status.ports.iter().for_each(|p| self.add(&[("port", &p.name)], value(p)));
    }

    fn of_queues(&mut self, status: &Status, value: fn(&QueueStatus) -> u64) {
        for q in status.bump.iter().flat_map(|b| &b.queues) {
            self.add(&[("downstream", &q.port)], value(q));
        }
    }

    fn of_xco(&mut self, status: &Status, value: fn(&XcoStatus) -> Option<u64>) {
        status.xco.iter().filter_map(|x| value(x)).for_each(|n| self.add(&[], n));
    }

    fn both_directions(&mut self, status: &Status, values: fn(&PortStatus) -> [u64; 2]) {
        for p in &status.ports {
            for (direction, value) in ["in", "out"].into_iter().zip(values(p)) {
                self.add(&[("port", &p.name), ("direction", direction)], value);
            }
        }
    }
}

/// All metrics in the format of Prometheus.
fn text(status: &Status) -> String {
    let mut text = String::new();
    for metric in METRICS {
        let _ = writeln!(text, "# HELP {} {}\n# TYPE {} {}", metric.name, metric.help, metric.name, metric.kind);
        (metric.write)(&mut Samples { name: metric.name, switch: &status.name, text: &mut text }, status);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::tests::status;

    #[test]
    fn samples_stand_under_their_metric_with_their_labels() {
        let mut status = status(&["a", "b"]);
        status.name = "v\"s\\".into();
        status.ports[0].waits_for = vec!["b".into()];
        status.ports[1].output[3] = 7;
        status.ports[1].dropped.insert("watchdog".into(), 5);
        let text = text(&status);
        for line in [
            r#"sluicenet_port_queue_frames{switch="v\"s\\",port="b",queue="output",priority="3"} 7"#,
            r#"sluicenet_port_drops_total{switch="v\"s\\",port="b",direction="out",reason="watchdog"} 5"#,
            r#"sluicenet_port_waits_for{switch="v\"s\\",port="a",for="b"} 1"#,
            "# TYPE sluicenet_port_drops_total counter",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
        for metric in METRICS {
            assert_eq!(metric.kind == "counter", metric.name.ends_with("_total"), "{}", metric.name);
        }
    }

    #[test]
    fn only_metrics_are_served_and_only_by_our_name() {
        let ask = |text: &str| answer(text.as_bytes(), true, || Some("m 1\n".into())).0;
        assert_eq!(ask("GET /metrics HTTP/1.1\r\nHost: localhost:9464\r\n\r\n"), "200 OK");
        assert_eq!(ask("GET /metrics?x=1 HTTP/1.0\r\n\r\n"), "200 OK");
        for host in ["127.0.0.1", "127.0.0.1:9464", "[::1]:9464", "LOCALHOST"] {
            assert_eq!(ask(&format!("GET /metrics HTTP/1.1\r\nhOsT: {host}\r\n\r\n")), "200 OK");
        }
        assert_eq!(ask("GET /metrics HTTP/1.1\r\nHost: evil.example:9464\r\n\r\n"), "403 Forbidden");
        assert_eq!(ask("GET /../etc/passwd HTTP/1.1\r\n\r\n"), "404 Not Found");
        assert_eq!(ask("POST /metrics HTTP/1.1\r\n\r\n"), "405 Method Not Allowed");
        assert_eq!(ask("\u{0}\r\n\r\n"), "400 Bad Request");
    }
}

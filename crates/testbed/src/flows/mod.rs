//! Flows without an end between real sockets, and their rates. Senders and receivers are those of the simulated
//! permutation, and all send at full speed.

pub(crate) mod ends;

use super::light::Hosts;
use super::pa::{Endpoints, Namespaces, PaError, Style, kernel_name};
use super::plan::no_priority;
use super::stack::kernel_buffer;
use ends::Ends;
use sluicenet_experiment::build::server::access;
use sluicenet_experiment::run::{INTERVALS, Stream, Streams, mbps};
use sluicenet_experiment::workload::permutation_pairs;
use sluicenet_node::packet::Address;
use sluicenet_proto::frame::HostId;
use sluicenet_proto::units::Rate;
use sluicenet_scenario::{Scenario, Transport, Workload};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often the run checks for a stop.
const NAP: Duration = Duration::from_millis(50);
/// The port of the first flow's receiver.
const FIRST_PORT: u16 = 5001;
/// The most flows of one program: each has two threads, two sockets and a port.
pub const FLOWS_MAX: usize = 1024;
const _: () = assert!(FIRST_PORT as usize + FLOWS_MAX <= u16::MAX as usize);

/// A flow between two vNICs. Flows with the priority of `server.lossy_vnic` are between second vNICs, whose numbers
/// follow those of the machines.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// The sender's server and machine.
    pub from: (HostId, u8),
    /// The receiver's server and machine.
    pub to: (HostId, u8),
    /// The transport protocol.
    pub transport: Transport,
    /// The rate at which the sender offers datagrams; default full speed.
    pub rate: Option<Rate>,
    /// The priority of the flow's frames.
    pub priority: u8,
    /// Time from the start of the run to the flow's first bytes.
    pub start: Duration,
}

/// The results of the flows.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Each flow's rate after the warm-up.
    pub streams: Streams,
    /// Sent and received datagrams in the whole run.
    pub datagrams: [u64; 2],
    /// Duration of the measurement; zero if stopped in the warm-up.
    pub measured: Duration,
}

/// The flows of a scenario for real sockets, in the order of their numbers.
///
/// # Errors
/// A flow that the testbed cannot run, with its location in the file.
pub fn flows(scenario: &Scenario) -> sluicenet_scenario::Result<Vec<Flow>> {
    let mut all = Vec::new();
    for (number, workload) in scenario.workloads.iter().enumerate() {
        let refuse = |why: String| Err(scenario.locations.error(&format!("workload.{number}"), why));
        let (own, finite, later) = match workload {
            Workload::Permutation(w) => {
                let flow = |(host, vm, to)| Flow {
                    from: (host, vm),
                    to: (to, 0),
                    transport: w.transport,
                    rate: w.rate,
                    priority: w.priority_of(host),
                    start: Duration::ZERO,
                };
                let pairs = permutation_pairs(scenario, number as u8, w);
                let own: Vec<Flow> = pairs.into_iter().map(flow).collect();
                (own, w.bytes.is_some(), w.start.as_ps() != 0 || w.stagger.as_ps() != 0)
            }
            Workload::Flow(w) => {
                let (from, to) = ((w.src, w.src_vm as u8), (w.dst, w.dst_vm as u8));
                let start = real(w.start);
                let own = Flow { from, to, transport: w.transport, rate: w.rate, priority: w.priority, start };
                (vec![own], w.bytes.is_some(), false)
            }
            other => return refuse(format!("workload `{}` is no set of flows without an end", other.kind())),
        };
        if finite || later {
            return refuse(
                "the testbed's flows have no end, and those of a permutation begin at once: no `bytes`, `start` or `stagger`"
                    .into(),
            );
        }
        let sum = all.len() + own.len();
        if sum > FLOWS_MAX {
            return refuse(format!("{sum} flows between real sockets: at most {FLOWS_MAX}"));
        }
        for flow in own {
            no_priority(scenario, number, flow.transport, flow.priority)?;
            connects(scenario, number, &flow)?;
            all.push(by_vnics(scenario, flow));
        }
    }
    Ok(all)
}

/// A time of the scenario on a real clock.
pub(crate) fn real(time: sluicenet_proto::time::Duration) -> Duration {
    Duration::from_nanos(time.as_ps() / 1000)
}

/// Refuses a connection that the policy forbids: it would never open, and the run would not begin.
fn connects(scenario: &Scenario, number: usize, flow: &Flow) -> sluicenet_scenario::Result<()> {
    if scenario.policy.is_empty() || flow.transport == Transport::Udp {
        return Ok(());
    }
    let outside = scenario.topology.counts().hosts;
    let access = access(scenario, outside);
    let machine = |(host, vm)| (host < outside).then(|| Address::new(host, vm));
    match access.policy.allows(machine(flow.from), machine(flow.to)) {
        true => Ok(()),
        false => {
            let message = "these machines may not talk to each other, so that their sockets never connect";
            Err(scenario.locations.error(&format!("workload.{number}"), message).expected("transport = \"udp\""))
        }
    }
}

/// Moves a flow to the vNICs that its priority selects. Datagrams without backpressure get the rate at which a vNIC
/// sends.
fn by_vnics(scenario: &Scenario, flow: Flow) -> Flow {
    if scenario.server.lossy_vnic != Some(flow.priority) {
        return flow;
    }
    let outside = scenario.topology.counts().hosts;
    let second = |(host, vm)| if host < outside { (host, vm + scenario.server.vms as u8) } else { (host, vm) };
    let is_datagrams = flow.transport == Transport::Udp;
    let rate = flow.rate.or(is_datagrams.then_some(scenario.vswitch.vm_rate));
    Flow { from: second(flow.from), to: second(flow.to), rate, ..flow }
}

/// Runs the flows of a scenario, as written (see [`super::slowed`]), for its duration, with packets of at most `mtu` bytes.
/// Calls `warm` at the end of the warm-up.
///
/// # Errors
/// A request that the system refused.
pub fn run(
    scenario: &Scenario,
    mtu: u32,
    endpoints: &Endpoints,
    stop: &AtomicBool,
    warm: &mut dyn FnMut() -> Result<(), PaError>,
) -> Result<Outcome, PaError> {
    let flows = flows(scenario).map_err(|e| PaError::Workload(e.to_string()))?;
    let enough = AtomicBool::new(false);
    drive(&Driven { scenario, flows: &flows, endpoints, mtu, stop, enough: &enough }, Vec::new(), warm)
}

/// Flows that are to be run.
pub(crate) struct Driven<'a> {
    /// The scenario, whose duration it is.
    pub scenario: &'a Scenario,
    pub flows: &'a [Flow],
    pub endpoints: &'a Endpoints,
    /// Bytes of the IP packet of a datagram.
    pub mtu: u32,
    pub stop: &'a AtomicBool,
    /// Ends the run before its time, when all that was to be measured has been.
    pub enough: &'a AtomicBool,
}

/// Work beside flows without an end: it ends by itself, or when its flag is raised.
pub(crate) type Beside<'a> = Box<dyn FnOnce(&AtomicBool) -> Result<(), PaError> + Send + 'a>;

/// The sockets of a scenario.
pub(crate) fn style(scenario: &Scenario, priority: u8) -> Style {
    let congestion = kernel_name(scenario.tcp.congestion);
    Style { congestion, nagle: scenario.tcp.nagle, buffer: kernel_buffer(scenario), priority }
}

/// Runs flows, and the work beside them, for the duration of the scenario. Calls `warm` at the end of the warm-up.
///
/// # Errors
/// As [`run`], and those of the work beside the flows, which end the run.
pub(crate) fn drive(
    run: &Driven<'_>,
    beside: Vec<Beside<'_>>,
    warm: &mut dyn FnMut() -> Result<(), PaError>,
) -> Result<Outcome, PaError> {
    let Driven { scenario, flows, endpoints, mtu, stop, enough } = *run;
    let Some(duration) = scenario.duration else {
        return Err(PaError::Workload("flows without an end need scenario.duration".into()));
    };
    let [warmup, duration] = [scenario.warmup, duration].map(real);
    let (over, broken) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|threads| {
        // Another thread makes the sockets: it changes its namespace, and the caller's must stay.
        let opened = threads
            .spawn(|| {
                let (mut namespaces, mut hosts) = (Namespaces::new()?, Hosts::new(&endpoints.light));
                flows
                    .iter()
                    .enumerate()
                    .map(|(i, flow)| {
                        let port = FIRST_PORT + i as u16;
                        let style = style(scenario, flow.priority);
                        if flow.transport == Transport::TcpLight {
                            return Ends::open_light(&mut hosts, flow, port);
                        }
                        let (from, to) = (endpoints.kernel(flow.from)?, endpoints.kernel(flow.to)?);
                        Ends::open(&mut namespaces, flow, from, to, port, style)
                    })
                    .collect::<Result<Vec<Ends>, PaError>>()
            })
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let counts: Vec<_> = opened.iter().map(|ends| ends.counts()).collect();
        let start = Instant::now();
        let workers: Vec<_> = opened
            .into_iter()
            .zip(flows)
            .flat_map(|(ends, flow)| {
                let (ends, begin) = (ends.split(flow, mtu), start + flow.start);
                ends.map(|end| (end, &over)).map(|(end, over)| threads.spawn(move || end.run(begin, over)))
            })
            .collect();
        let (over, broken) = (&over, &broken);
        let others: Vec<_> = beside
            .into_iter()
            .map(|work| threads.spawn(move || work(over).inspect_err(|_| broken.store(true, Ordering::Relaxed))))
            .collect();
        let received = || -> Vec<u64> { counts.iter().map(|c| c.received.load(Ordering::Relaxed)).collect() };
        let wait = |until: Instant| {
            let goes_on = || [stop, enough, broken].iter().all(|ends| !ends.load(Ordering::Relaxed));
            while Instant::now() < until && goes_on() && workers.iter().all(|w| !w.is_finished()) {
                std::thread::sleep(NAP.min(until.saturating_duration_since(Instant::now())));
            }
        };
        let interval = duration / INTERVALS;
        let (mut courses, mut mark) = (vec![Vec::new(); flows.len()], None);
        let (mut last, mut seen) = (start, vec![0; flows.len()]);
        for end in (1..=INTERVALS).map(|n| start + interval * n) {
            if mark.is_none() && start + warmup < end {
                wait(start + warmup);
                mark = Some((Instant::now(), received()));
                if let Err(e) = warm() {
                    over.store(true, Ordering::SeqCst);
                    return Err(e);
                }
            }
            wait(end);
            let (now, all) = (Instant::now(), received());
            for ((course, all), seen) in courses.iter_mut().zip(&all).zip(&seen) {
                course.push(mbps(all - seen, now.duration_since(last).as_secs_f64().max(1e-9)));
            }
            (last, seen) = (now, all);
            if now < end {
                break;
            }
        }
        // A run that was stopped before the end of the warm-up has no results.
        let (marked, before) = mark.filter(|(at, _)| *at >= start + warmup).unwrap_or((last, seen.clone()));
        let (measured, after) = (last.duration_since(marked), seen);
        over.store(true, Ordering::SeqCst);
        for worker in workers.into_iter().chain(others) {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        let seconds = measured.as_secs_f64().max(1e-9);
        let rates = before.iter().zip(after).zip(courses);
        let each = flows.iter().zip(rates).map(|(flow, ((before, after), course_mbps))| Stream {
            src_host: flow.from.0,
            src_vm: flow.from.1,
            dst_host: flow.to.0,
            dst_vm: flow.to.1,
            transport: flow.transport.name().into(),
            mbps: mbps(after - before, seconds),
            course_mbps,
        });
        let sum = |of: &dyn Fn(&ends::Counts) -> u64| counts.iter().map(|c| of(c)).sum();
        Ok(Outcome {
            streams: Streams::new(each.collect(), Some(interval.as_secs_f64() * 1e3)),
            datagrams: [
                sum(&|c| c.datagrams_sent.load(Ordering::Relaxed)),
                sum(&|c| c.datagrams_received.load(Ordering::Relaxed)),
            ],
            measured,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Plan;
    use crate::pa::Endpoint;
    use std::net::Ipv4Addr;

    fn plan(text: &str) -> sluicenet_scenario::Result<Plan> {
        let text = format!(
            "[scenario]\nparameters = \"crisan2014-ch3\"\nflow_control = \"ZZ\"\nduration = \"600 ms\"\nwarmup = \"200 ms\"\n\
             [topology]\nkind = \"xgft\"\nm = [2, 2]\nw = [1, 1]\n[server]\nvms = 1\n[testbed]\nslowdown = 1\n{text}"
        );
        Plan::new(&Scenario::parse(&text, "t.toml").unwrap().scenario)
    }

    /// Over loopback, with all machines in one namespace and without backpressure.
    #[test]
    fn each_flow_is_measured() {
        for transport in ["udp", "tcp"] {
            let plan = plan(&format!(
                "[[workload]]\nkind = \"permutation\"\npattern = \"stride\"\nstride = 1\ntransport = \"{transport}\"\n"
            ))
            .unwrap();
            let endpoint = |n: u32| Endpoint { namespace: None, address: Ipv4Addr::new(127, 0, 9, n as u8 + 1) };
            let endpoints: Endpoints = (0..4).map(|host| ((host, 0), endpoint(host))).collect();
            // On a machine that does something else meanwhile, a flow may stand still for all of one run.
            let outcome = (0..20)
                .map(|_| {
                    let never = AtomicBool::new(false);
                    run(&plan.scenario, plan.tenant_mtu, &endpoints, &never, &mut || Ok(())).unwrap()
                })
                .find(|outcome| outcome.streams.each.iter().all(|f| f.mbps > 0.0))
                .expect("each flow gets through");
            let s = &outcome.streams;
            assert_eq!((s.count, s.each.len()), (4, 4));
            assert_eq!((s.each[1].src_host, s.each[1].dst_host, s.each[1].transport.as_str()), (1, 2, transport));
            assert!(s.each.iter().all(|f| f.course_mbps.len() == 50), "{s:?}");
            assert_eq!(s.interval_ms, Some(12.0));
            assert_eq!(outcome.datagrams[1] > 0, transport == "udp");
        }
    }

    #[test]
    fn a_flow_by_itself_is_one_beside_those_of_a_permutation() {
        let all = plan(
            "[[workload]]\nkind = \"flow\"\nsrc = 3\ndst = 1\ntransport = \"udp\"\nrate = \"1 Mb/s\"\n\
             start = \"20 ms\"\n[[workload]]\nkind = \"permutation\"\npattern = \"stride\"\nstride = 1\n",
        );
        let all = flows(&all.unwrap().scenario).unwrap();
        let one = Flow {
            from: (3, 0),
            to: (1, 0),
            transport: Transport::Udp,
            rate: Some(Rate::mbps(1)),
            priority: 0,
            start: Duration::from_millis(20),
        };
        assert_eq!((all.len(), &all[0]), (5, &one));
    }

    #[test]
    fn more_flows_than_a_program_can_have_are_refused_before_there_are_sockets() {
        let workload = "[[workload]]\nkind = \"permutation\"\npattern = \"stride\"\nstride = 1\n";
        let hosts = |n: usize| {
            let text = format!(
                "[scenario]\nduration = \"1 s\"\n[topology]\nkind = \"single-switch\"\nhosts = {n}\n{workload}"
            );
            flows(&Scenario::parse(&text, "t.toml").unwrap().scenario)
        };
        assert_eq!(hosts(FLOWS_MAX).unwrap().len(), FLOWS_MAX);
        let refused = hosts(FLOWS_MAX + 1).unwrap_err();
        assert!(refused.to_string().contains("1025 flows between real sockets: at most 1024"), "{refused}");
        assert_eq!((refused.diagnostic().file.as_str(), refused.diagnostic().line), ("t.toml", 6));
    }

    #[test]
    fn what_real_sockets_cannot_be_is_refused_with_its_place() {
        for (text, why) in [
            ("[[workload]]\nkind = \"permutation\"\npattern = \"stride\"\nbytes = \"1 MB\"\n", "have no end"),
            (
                "[[workload]]\nkind = \"incast\"\nsenders = 3\nreceiver = 3\nbytes = \"1 KB\"\nrounds = 1\n",
                "no real application for workload `incast`",
            ),
        ] {
            let refused = plan(text).map(|_| ()).unwrap_err();
            assert!(refused.to_string().contains(why), "{refused}");
            assert_eq!(refused.diagnostic().file, "t.toml");
        }
    }
}

//! Flows without an end between real sockets: who sends to whom as the simulated permutation says it, at full speed, and how fast each
//! of them is. A machine that is slow to receive is one whose programs read slowly.

mod ends;

use super::Plan;
use super::pa::{PaError, Place, Places, kernel_name};
use crate::run::{Stream, Streams};
use crate::scenario::{Scenario, Transport, Workload};
use crate::workload::permutation_pairs;
use ends::{Ends, Pace};
use sluicenet_proto::frame::HostId;
use sluicenet_proto::units::Rate;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often it is looked whether somebody wants to stop.
const NAP: Duration = Duration::from_millis(50);
/// The port of the first flow's receiver.
const FIRST_PORT: u16 = 5001;

/// A flow.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// The server and the machine that send.
    pub from: (HostId, u8),
    /// Those that receive.
    pub to: (HostId, u8),
    /// What carries it.
    pub transport: Transport,
    /// At which rate datagrams are offered; as fast as they leave where absent.
    pub rate: Option<Rate>,
    /// Its priority.
    pub priority: u8,
}

/// What came of them.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Each flow's rate after the warm-up.
    pub streams: Streams,
    /// Datagrams that were sent, and received, in the whole run.
    pub datagrams: [u64; 2],
    /// How long was measured.
    pub measured: Duration,
}

/// The flows of a scenario that real sockets can be, in the order of their numbers.
///
/// # Errors
/// What they cannot be, with its place.
pub fn flows(scenario: &Scenario) -> crate::scenario::Result<Vec<Flow>> {
    let mut all = Vec::new();
    for (number, workload) in scenario.workloads.iter().enumerate() {
        let refuse = |why: String| Err(scenario.places.error(&format!("workload.{number}"), why));
        let Workload::Permutation(w) = workload else {
            return refuse(format!("workload `{}` is no set of flows without an end", workload.kind()));
        };
        if w.bytes.is_some() || w.start.as_ps() != 0 || w.stagger.as_ps() != 0 {
            return refuse(
                "the testbed's flows begin at once and have no end: no `bytes`, `start` or `stagger`".into(),
            );
        }
        if !matches!(w.transport, Transport::Tcp | Transport::Udp) {
            return refuse("the testbed's flows are TCP's or datagrams".into());
        }
        let pairs = permutation_pairs(scenario, number as u8, w);
        all.extend(pairs.into_iter().map(|(host, vm, to)| Flow {
            from: (host, vm),
            to: (to, 0),
            transport: w.transport,
            rate: w.rate,
            priority: w.priority_of(host),
        }));
    }
    Ok(all)
}

/// Runs the flows of a plan for as long as its scenario says.
///
/// # Errors
/// What the system refused.
pub fn run(plan: &Plan, places: &Places, stop: &AtomicBool) -> Result<Outcome, PaError> {
    let scenario = &plan.scenario;
    let flows = flows(scenario).map_err(|e| PaError::Workload(e.to_string()))?;
    let Some(duration) = scenario.duration else {
        return Err(PaError::Workload("flows without an end need scenario.duration".into()));
    };
    let [warmup, duration] = [scenario.warmup, duration].map(|d| Duration::from_nanos(d.as_ps() / 1000));
    let slow: BTreeMap<(HostId, u8), Arc<Pace>> =
        scenario.vswitch.slow.iter().map(|slow| ((slow.host, slow.vm as u8), Arc::new(Pace::new(slow.rate)))).collect();
    let place = |vm: (HostId, u8)| -> Result<&Place, PaError> {
        places.get(&vm).ok_or_else(|| PaError::Workload(format!("VM {} of server {} has no place", vm.1, vm.0)))
    };
    let over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        // A thread of its own makes the sockets: it goes through namespaces, which its maker must not find itself in.
        let opened = threads
            .spawn(|| {
                let style = |flow: &Flow| ends::style(kernel_name(scenario.tcp.congestion), scenario.tcp.nagle, flow);
                let mut makers = ends::Makers::new()?;
                flows
                    .iter()
                    .enumerate()
                    .map(|(i, flow)| {
                        let port = FIRST_PORT + i as u16;
                        makers.open(flow, place(flow.from)?, place(flow.to)?, port, style(flow))
                    })
                    .collect::<Result<Vec<Ends>, PaError>>()
            })
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let counts: Vec<_> = opened.iter().map(|ends| ends.counts()).collect();
        let workers: Vec<_> = opened
            .into_iter()
            .zip(&flows)
            .flat_map(|(ends, flow)| {
                let [sender, receiver] = ends.split(flow, slow.get(&flow.to).cloned(), plan.tenant_mtu);
                [(sender, &over), (receiver, &over)].map(|(end, over)| threads.spawn(move || end.run(over)))
            })
            .collect();
        let received = || -> Vec<u64> { counts.iter().map(|c| c.received.load(Ordering::Relaxed)).collect() };
        let wait = |until: Instant| {
            while Instant::now() < until && !stop.load(Ordering::Relaxed) && workers.iter().all(|w| !w.is_finished()) {
                std::thread::sleep(NAP.min(until.saturating_duration_since(Instant::now())));
            }
        };
        let start = Instant::now();
        wait(start + warmup);
        let (marked, before) = (Instant::now(), received());
        wait(start + duration);
        let (measured, after) = (marked.elapsed(), received());
        over.store(true, Ordering::SeqCst);
        for worker in workers {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        let each = flows.iter().zip(before.iter().zip(after)).map(|(flow, (before, after))| Stream {
            src_host: flow.from.0,
            src_vm: flow.from.1,
            dst_host: flow.to.0,
            dst_vm: flow.to.1,
            transport: if flow.transport == Transport::Tcp { "tcp" } else { "udp" }.into(),
            mbps: ((after - before) as f64 * 8.0 / measured.as_secs_f64()).round() / 1e6,
        });
        let sum = |of: &dyn Fn(&ends::Counts) -> u64| counts.iter().map(|c| of(c)).sum();
        Ok(Outcome {
            streams: Streams::new(each.collect()),
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
    use crate::testbed::pa::Place;
    use std::net::Ipv4Addr;

    fn plan(text: &str) -> crate::scenario::Result<Plan> {
        let text = format!(
            "[scenario]\nparameters = \"crisan2014-ch3\"\nflow_control = \"ZZ\"\nduration = \"600 ms\"\nwarmup = \"200 ms\"\n\
             [topology]\nkind = \"xgft\"\nm = [2, 2]\nw = [1, 1]\n[server]\nvms = 1\n[testbed]\nslowdown = 1\n{text}"
        );
        Plan::new(&Scenario::parse(&text, "t.toml").unwrap().scenario)
    }

    /// Over loopback, all machines in one namespace: nobody is held back, and a slow one is as slow as it is said to be.
    #[test]
    fn each_flow_is_measured_and_a_slow_machine_reads_slowly() {
        for transport in ["udp", "tcp"] {
            let plan = plan(&format!(
                "[[vswitch.slow]]\nhost = 1\nrate = \"2 Mb/s\"\n\
                 [[workload]]\nkind = \"permutation\"\npattern = \"stride\"\nstride = 1\ntransport = \"{transport}\"\n"
            ))
            .unwrap();
            let place = |n: u32| Place { namespace: None, address: Ipv4Addr::new(127, 0, 9, n as u8 + 1) };
            let places: Places = (0..4).map(|host| ((host, 0), place(host))).collect();
            let outcome = run(&plan, &places, &AtomicBool::new(false)).unwrap();
            let s = &outcome.streams;
            assert_eq!((s.count, s.each.len()), (4, 4));
            assert_eq!((s.each[1].src_host, s.each[1].dst_host, s.each[1].transport.as_str()), (1, 2, transport));
            let slow = s.each[0].mbps;
            assert!(slow > 0.0 && slow < 2.5, "{slow} of the slow machine, {transport}");
            assert!(s.each[1..].iter().all(|f| f.mbps > 2.5), "{s:?}");
            assert_eq!(outcome.datagrams[1] > 0, transport == "udp");
        }
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

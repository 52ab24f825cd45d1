//! The switches of the network in real time, on a thread, with a record of the compared queues.

use super::network::Network;
use super::plan::Plan;
use super::trace::Trace;
use sluicenet_dataplane::clock::monotonic_ns;
use sluicenet_dataplane::fabric::{Fabric, Report, Runner};
use sluicenet_dataplane::kernel::packet::PacketDevice;
use sluicenet_proto::frame::PRIORITIES;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Frames that the device of an edge has room for in each direction.
const EDGE_BUFFERS: u32 = 1_024;

/// The end of a run: its outcome, its report, and the compared queues.
type Ended = (io::Result<()>, Report, Vec<Trace>);

/// A fabric that runs; stopped when dropped.
#[derive(Debug)]
pub struct Running {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Ended>>,
    epoch_ns: u64,
}

impl Running {
    /// Starts the switches of a plan between the devices of its network.
    ///
    /// # Errors
    /// A device cannot be opened.
    pub fn start(plan: &Plan, network: &Network) -> io::Result<Running> {
        let fabric = Fabric::new(&plan.fabric).map_err(io::Error::other)?;
        let open = |edge| PacketDevice::open(network.fabric(), &network.edge(edge), EDGE_BUFFERS);
        let devices = (0..plan.fabric.edges.len()).map(open).collect::<Result<Vec<_>, _>>()?;
        let edges = plan.fabric.edges.len() as u32;
        // Only switches have queues: a bump estimates no port of a host.
        let ports: Vec<(usize, u16)> =
            plan.compared.iter().map(|(port, _)| ((plan.node(port.0) - edges) as usize, port.1)).collect();
        let mut runner = Runner::new(fabric, devices);
        let epoch_ns = monotonic_ns() - runner.epoch().elapsed().as_nanos() as u64;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let run = move || {
            let mut traces = vec![Trace::default(); ports.len()];
            let mut watch = |fabric: &Fabric| {
                for (trace, &(switch, port)) in traces.iter_mut().zip(&ports) {
                    let Some(switch) = fabric.switch(switch) else { continue };
                    let bytes = (0..PRIORITIES as u8).map(|class| u64::from(switch.queue_bytes(port, class))).sum();
                    trace.record(fabric.now().0 / 1_000, bytes);
                }
            };
            let outcome = runner.run_watched(&stopped, &mut watch);
            (outcome, runner.report(), traces)
        };
        let thread = std::thread::Builder::new().name("fabric".into()).spawn(run)?;
        Ok(Running { stop, thread: Some(thread), epoch_ns })
    }

    /// An instant of the monotonic clock on the clock of the traces.
    pub fn on_its_clock(&self, at_ns: u64) -> u64 {
        at_ns.saturating_sub(self.epoch_ns)
    }

    /// Stops the fabric; its report, and the traces of the compared queues.
    ///
    /// # Errors
    /// A device was gone.
    pub fn end(mut self) -> io::Result<(Report, Vec<Trace>)> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("ended once");
        let (outcome, report, traces) = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        outcome.map(|()| (report, traces))
    }

    /// Whether the fabric still runs.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

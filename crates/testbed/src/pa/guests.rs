//! The applications in guests. Each guest runs its own part. This process controls all parts through the guests'
//! consoles, as the source did through a network of their own (Crisan 2014, 4.5.3).

use super::part::{Cues, Part, sum_of, together};
use super::{Outcome, PaError, kernel_name};
use crate::guest::supervisor::Supervisor;
use crate::live::TENANT_PROGRAM;
use crate::{Plan, Tenant};
use sluicenet_experiment::workload::two_tier::{Vm, roles};
use sluicenet_scenario::Workload;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The folder of a guest's cues.
const FOLDER: &str = "/tmp/pa";
/// The time limit for a guest's steps outside the measurement.
const PATIENCE: Duration = Duration::from_secs(180);

struct Stage<'a> {
    tenants: Vec<&'a Tenant>,
    supervisor: &'a Supervisor,
}

/// Runs the applications of a testbed with guests until every finite one has ended, its duration is over, or `stop`.
/// Also returns the guests' kernel drops meanwhile, by place.
///
/// # Errors
/// The error of the first guest whose part failed.
pub fn run_in_guests(
    plan: &Plan,
    supervisor: &Supervisor,
    stop: &AtomicBool,
) -> Result<(Outcome, BTreeMap<String, u64>), PaError> {
    let stage = Stage { tenants: plan.tenants().collect(), supervisor };
    stage.all(|_| true, |t| {
        let (server, vm) = (t.host, t.vm);
        let start = format!(
            "rm -rf {FOLDER}; mkdir {FOLDER}; cd {FOLDER}; mkfifo {}; {{ {TENANT_PROGRAM} --server {server} --vm {vm} \
             --cues {FOLDER} >/dev/null 2>error; echo $? >ended; }} & {}",
            Cues::WAKE,
            until(Cues::LISTENS)
        );
        stage.said(t, &start)
    })?;
    stage
        .all(|_| true, |t| stage.said(t, &format!("cd {FOLDER}; : >{}; {}", Cues::CONNECT, until(Cues::CONNECTED))))?;
    // Workers begin before aggregators.
    let asking = aggregators(plan);
    let asks = |t: &Tenant| asking.contains(&(t.host, t.vm));
    let begin = |t: &Tenant| stage.said(t, &format!(": >{FOLDER}/{}", Cues::BEGIN));
    stage.all(|t| !asks(t), begin)?;
    stage.all(asks, begin)?;
    // Guests without queries are asked last, so that the question does not disturb the others.
    let in_order = stage.tenants.iter().filter(|t| asks(t)).chain(stage.tenants.iter().filter(|t| !asks(t)));
    for tenant in in_order {
        while !stop.load(Ordering::Relaxed) && !stage.is_done(tenant)? {}
    }
    let end = format!("cd {FOLDER}; : >{}; {} && cat {}", Cues::END, until(Cues::TOLD), Cues::RESULT);
    let parts: Vec<Part> = stage.all(
        |_| true,
        |t| {
            let text = stage.said(t, &end)?;
            let wrong = |e: serde_json::Error| PaError::Io {
                what: format!("what {} came to", t.namespace),
                why: e.to_string(),
            };
            serde_json::from_str(text.trim()).map_err(wrong)
        },
    )?;
    let leave =
        format!("cd {FOLDER}; : >{}; until [ -e ended ]; do usleep 20000; done; [ \"$(cat ended)\" = 0 ]", Cues::LEAVE);
    stage.all(|_| true, |t| stage.said(t, &leave))?;
    let congestion = kernel_name(plan.scenario.tcp.congestion);
    if let Some(other) = parts.iter().find(|p| p.congestion != congestion) {
        let (ran, namespace) = (other.congestion.clone(), "of a guest".into());
        return Err(PaError::Congestion { wanted: congestion, ran, namespace, allowed: String::new() });
    }
    Ok((together(congestion, &parts), sum_of(parts.iter().map(|p| &p.edges))))
}

/// A shell command that waits for a cue of the application, or prints the application's error.
fn until(word: &str) -> String {
    format!("until [ -e {word} ]; do [ ! -e ended ] || {{ cat error; exit 1; }}; usleep 20000; done")
}

/// The aggregators.
fn aggregators(plan: &Plan) -> BTreeSet<Vm> {
    let hosts = plan.scenario.topology.counts().hosts;
    let of = |w: &Workload| match w {
        Workload::PartitionAggregate2(w) => roles(&plan.scenario, w, hosts).0,
        _ => Vec::new(),
    };
    plan.scenario.workloads.iter().flat_map(of).collect()
}

impl Stage<'_> {
    fn said(&self, tenant: &Tenant, command: &str) -> Result<String, PaError> {
        let said = self.supervisor.must(&tenant.namespace, command, PATIENCE);
        said.map_err(|e| PaError::io("the application in a guest", &e))
    }

    /// Whether a guest has no more queries. Waits briefly for that, at no cost to the guest.
    fn is_done(&self, tenant: &Tenant) -> Result<bool, PaError> {
        let (done, wake) = (Cues::DONE, Cues::WAKE);
        let command = format!(
            "cd {FOLDER}; [ -e {done} ] || [ -e ended ] || read -t 2 x <>{wake}; \
             [ ! -e ended ] || {{ cat error; exit 1; }}; [ ! -e {done} ] || echo {done}"
        );
        Ok(self.said(tenant, &command)?.contains(done))
    }

    /// Runs `what` for the chosen guests at the same time.
    fn all<T: Send>(
        &self,
        which: impl Fn(&Tenant) -> bool,
        what: impl Fn(&Tenant) -> Result<T, PaError> + Sync,
    ) -> Result<Vec<T>, PaError> {
        std::thread::scope(|scope| {
            let doing = |t| {
                let what = &what;
                scope.spawn(move || what(t))
            };
            let doing: Vec<_> = self.tenants.iter().copied().filter(|t| which(t)).map(doing).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            doing.into_iter().map(join).collect()
        })
    }
}

//! `agent`: a program inside a guest that tells the guest's switch how many frames the guest's sockets take.

use super::failure::Failure;
use super::table::{Table, count};
use super::{Global, interrupt, output};
use serde::Serialize;
use sluicenet_dataplane::kernel::agent::{Agent, AgentConfig, Notice};
use sluicenet_proto::agent::room::Deadlines;
use sluicenet_proto::time::Duration;
use sluicenet_scenario::units::Quantity;

const ABOUT: &str = "\
What a program in a guest does not read in time, the guest's own kernel throws away, and no switch outside sees it. This looks \
at the UDP sockets of the system (or namespace) it runs in and tells the switch how many more frames they take; a port with \
`agent = true` holds back what is beyond that, and so does the sender. It takes CAP_NET_RAW.

The socket with the least room rules for all of the guest. One that is full and takes nothing for the isolation time is left \
out, so that a program that has stopped reading does not stop the others for ever; what is for it is lost then.";

#[derive(Debug, clap::Args)]
#[command(after_help = ABOUT)]
pub(super) struct AgentVerb {
    /// The guest's interface to the switch
    #[arg(long, value_name = "DEVICE", default_value = "eth0")]
    interface: String,
    /// A full socket that takes nothing for this time is reported, as "200 ms"; or off
    #[arg(long, value_name = "TIME", default_value = "200 ms", value_parser = deadline)]
    detection_time: Deadline,
    /// A full socket that takes nothing for this time no longer holds its senders back, as "8 s"; or off
    #[arg(long, value_name = "TIME", default_value = "8 s", value_parser = deadline)]
    isolation_time: Deadline,
}

/// A time, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Deadline(Option<Duration>);

fn deadline(text: &str) -> Result<Deadline, String> {
    if text == "off" {
        return Ok(Deadline(None));
    }
    match Duration::parse(text) {
        Ok(time) if time > Duration::ZERO => Ok(Deadline(Some(time))),
        Ok(_) => Err("a time above 0, or off, is expected".into()),
        Err(e) => Err(e.to_string()),
    }
}

/// Counts of the agent's work.
#[derive(Serialize)]
struct Did {
    looks: u64,
    marks: u64,
    grants: u64,
    unsent: u64,
}

impl AgentVerb {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        let interface = self.interface.clone();
        let deadlines = Deadlines { detection: self.detection_time.0, isolation: self.isolation_time.0 };
        let config = AgentConfig { interface: self.interface, deadlines };
        let mut agent = Agent::open(config).map_err(Failure::input)?;
        let say = |text: &str| {
            if !global.quiet {
                output::note(text);
            }
        };
        say(&format!("agent at {interface}"));
        let mut tell = |notice| match notice {
            Notice::Stuck(n) => {
                output::note(&format!("{n} sockets are full and nobody reads them: all frames for this system wait"))
            }
            Notice::Isolated(n) => {
                output::note(&format!("{n} sockets are full and nobody reads them: their datagrams are lost"))
            }
            Notice::Small(n) => {
                say(&format!("{n} sockets are too small to be waited for: what they have no room for is lost"))
            }
            Notice::Gone => output::note(&format!("{interface} is gone")),
            Notice::Back => say(&format!("{interface} is back")),
        };
        agent.run(interrupt::flag(), &mut tell).map_err(|e| Failure::Failed(e.to_string()))?;
        let c = agent.counters;
        let did = Did { looks: c.looks, marks: c.marks, grants: c.grants, unsent: c.unsent };
        if global.json {
            output::json(&did);
            return Ok(());
        }
        let mut t = Table::new(2, ["", ""]);
        t.row(["looks at sockets", &count(did.looks)]);
        t.row(["marks seen", &count(did.marks)]);
        t.row(["grants sent", &count(did.grants)]);
        t.row(["grants unsent", &count(did.unsent)]);
        output::print(&t.text());
        Ok(())
    }
}

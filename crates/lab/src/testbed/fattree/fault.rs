//! What may happen to a network while it carries traffic.

use super::network::Network;
use crate::fabric::export::bridge;
use sluicenet_proto::routing::fat_tree::{FatTree, Switch};
use std::fmt;
use std::io;
use std::time::Duration;

/// Something that happens, so long after traffic began.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// When.
    pub after: Duration,
    /// What.
    pub what: What,
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A switch's process is killed, and its ports lose their carrier.
    Kill(Switch),
    /// It is started again, with empty tables.
    Start(Switch),
    /// A switch loses its entries and knows nothing of it.
    Flush(Switch),
    /// A link fails, at a port.
    Down(Switch, u16),
    /// It is back.
    Up(Switch, u16),
    /// The controller is killed.
    StopController,
    /// Another one is started.
    StartController,
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Kill(s) => write!(f, "kill:{}", bridge(*s)),
            What::Start(s) => write!(f, "start:{}", bridge(*s)),
            What::Flush(s) => write!(f, "flush:{}", bridge(*s)),
            What::Down(s, port) => write!(f, "down:{}:{port}", bridge(*s)),
            What::Up(s, port) => write!(f, "up:{}:{port}", bridge(*s)),
            What::StopController => write!(f, "stop-controller"),
            What::StartController => write!(f, "start-controller"),
        }
    }
}

impl Fault {
    /// Reads one: seconds, what, of which switch, at which port (from 0), as `5:kill:c1-1`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str, tree: FatTree) -> Result<Fault, String> {
        let wrong = || {
            format!(
                "{text:?}: SECONDS:kill:SWITCH, start:SWITCH, flush:SWITCH, down:SWITCH:PORT, up:SWITCH:PORT, stop-controller or start-controller, \
                 as 5:kill:c1-1"
            )
        };
        let words: Vec<&str> = text.split(':').collect();
        let after = words.first().and_then(|s| s.parse::<f64>().ok()).filter(|s| (0.0..=86_400.0).contains(s));
        let after = Duration::from_secs_f64(after.ok_or_else(wrong)?);
        let switch = |name: &str| {
            let found = tree.switches().find(|&s| bridge(s) == name);
            found.ok_or_else(|| format!("{text:?}: no switch is called {name:?}; e0-0, a0-0 and c1-1 are"))
        };
        let port = |text: &str| text.parse::<u16>().ok().filter(|&p| u32::from(p) < tree.k()).ok_or_else(wrong);
        let what = match words[1..] {
            ["kill", s] => What::Kill(switch(s)?),
            ["start", s] => What::Start(switch(s)?),
            ["flush", s] => What::Flush(switch(s)?),
            ["down", s, p] => What::Down(switch(s)?, port(p)?),
            ["up", s, p] => What::Up(switch(s)?, port(p)?),
            ["stop-controller"] => What::StopController,
            ["start-controller"] => What::StartController,
            _ => return Err(wrong()),
        };
        Ok(Fault { after, what })
    }

    /// Has it happen.
    pub(super) fn happen(&self, network: &mut Network, routing: &str, seed: u64) -> io::Result<()> {
        match self.what {
            What::Kill(s) => network.kill(s),
            What::Start(s) => network.revive(s),
            What::Flush(s) => network.switch(s).flush(),
            What::Down(s, port) => network.set_link(s, port, false),
            What::Up(s, port) => network.set_link(s, port, true),
            What::StopController => {
                network.controller = None;
                Ok(())
            }
            What::StartController => network.launch_controller(routing, seed).map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_read_as_it_is_written() {
        let tree = FatTree::new(4).unwrap();
        for text in
            ["kill:c1-1", "start:c2-2", "flush:e0-1", "down:a3-1:2", "up:a3-1:3", "stop-controller", "start-controller"]
        {
            let fault = Fault::parse(&format!("2.5:{text}"), tree).unwrap();
            assert_eq!((fault.after, fault.what.to_string().as_str()), (Duration::from_millis(2_500), text));
        }
        for text in
            ["", "kill:c1-1", "5:kill", "5:kill:c3-1", "5:down:a0-0:4", "-1:kill:c1-1", "nan:kill:c1-1", "5:burn:c1-1"]
        {
            assert!(Fault::parse(text, tree).is_err(), "{text}");
        }
    }
}

//! Faults of a network while it carries traffic.

use super::network::Network;
use super::shape::Node;
use std::fmt;
use std::io;
use std::time::Duration;

/// A fault, and its time after the start of traffic.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// Time from the start of traffic.
    pub after: Duration,
    /// The kind of fault.
    pub what: What,
}

/// A kind of fault, with switches by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A switch's process is killed, and its ports lose their carrier.
    Kill(String),
    /// A killed switch is started again, with empty tables.
    Start(String),
    /// A switch loses its entries and does not notice it.
    Flush(String),
    /// A link fails, at a port.
    Down(String, usize),
    /// A failed link, at a port, works again.
    Up(String, usize),
    /// The controller is killed.
    StopController,
    /// A new controller is started.
    StartController,
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Kill(s) => write!(f, "kill:{s}"),
            What::Start(s) => write!(f, "start:{s}"),
            What::Flush(s) => write!(f, "flush:{s}"),
            What::Down(s, port) => write!(f, "down:{s}:{port}"),
            What::Up(s, port) => write!(f, "up:{s}:{port}"),
            What::StopController => write!(f, "stop-controller"),
            What::StartController => write!(f, "start-controller"),
        }
    }
}

impl Fault {
    /// Parses a fault: seconds, kind, one of the switches in `nodes`, and port (from 0), as `5:kill:c1-1`.
    ///
    /// # Errors
    /// Invalid syntax, an unknown switch or an unknown port.
    pub fn parse(text: &str, nodes: &[Node]) -> Result<Fault, String> {
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
            let found = nodes.iter().find(|node| node.name == name);
            found.ok_or_else(|| {
                let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
                format!("{text:?}: no switch is called {name:?}; there are {}", names.join(", "))
            })
        };
        let name = |text: &str| Ok::<_, String>(switch(text)?.name.clone());
        let port = |name: &str, number: &str| {
            let node = switch(name)?;
            let number = number.parse::<usize>().map_err(|_| wrong())?;
            match number < node.ports.len() {
                true => Ok((node.name.clone(), number)),
                false => Err(format!("{text:?}: {:?} has ports 0 to {}", node.name, node.ports.len() - 1)),
            }
        };
        let what = match words[1..] {
            ["kill", s] => What::Kill(name(s)?),
            ["start", s] => What::Start(name(s)?),
            ["flush", s] => What::Flush(name(s)?),
            ["down", s, p] => port(s, p).map(|(s, p)| What::Down(s, p))?,
            ["up", s, p] => port(s, p).map(|(s, p)| What::Up(s, p))?,
            ["stop-controller"] => What::StopController,
            ["start-controller"] => What::StartController,
            _ => return Err(wrong()),
        };
        Ok(Fault { after, what })
    }

    /// Applies the fault to the network.
    pub(super) fn happen(&self, network: &mut Network, routing: &str, seed: u64) -> io::Result<()> {
        match &self.what {
            What::Kill(s) => network.kill(s),
            What::Start(s) => network.revive(s),
            What::Flush(s) => network.flush(s),
            What::Down(s, port) => network.set_link(s, *port, false),
            What::Up(s, port) => network.set_link(s, *port, true),
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
    use super::super::shape::Shape;
    use super::*;
    use sluicenet_proto::routing::fat_tree::FatTree;

    #[test]
    fn each_is_read_as_it_is_written() {
        let tree = FatTree::new(4).unwrap();
        let nodes = &Shape::FatTree.nodes(tree, 1_000_000);
        for text in
            ["kill:c1-1", "start:c2-2", "flush:e0-1", "down:a3-1:2", "up:a3-1:3", "stop-controller", "start-controller"]
        {
            let fault = Fault::parse(&format!("2.5:{text}"), nodes).unwrap();
            assert_eq!((fault.after, fault.what.to_string().as_str()), (Duration::from_millis(2_500), text));
        }
        for text in
            ["", "kill:c1-1", "5:kill", "5:kill:c3-1", "5:down:a0-0:4", "-1:kill:c1-1", "nan:kill:c1-1", "5:burn:c1-1"]
        {
            assert!(Fault::parse(text, nodes).is_err(), "{text}");
        }
        assert_eq!(Fault::parse("5:down:a0-0:4", nodes).unwrap_err(), "\"5:down:a0-0:4\": \"a0-0\" has ports 0 to 3");
        let nodes = &Shape::Hierarchical.nodes(tree, 1_000_000);
        assert!(Fault::parse("1:down:p3:4", nodes).is_ok() && Fault::parse("1:down:top:4", nodes).is_err());
        let why = Fault::parse("5:kill:c1-1", nodes).unwrap_err();
        assert!(why.contains("there are p0, p1, p2, p3, top"), "{why}");
    }
}

//! DCTCP's marking as a program for a bump: `cargo build --example netbump_dctcp` makes `libnetbump_dctcp.so`.

use sluicenet_netbump::{Packet, Program, VQueue, Verdict};

/// Marks packets that find more than a threshold.
struct Dctcp {
    /// The threshold K in bytes.
    threshold: u64,
}

impl Program for Dctcp {
    type Queue = ();

    fn open(arguments: &[&str]) -> Result<Dctcp, String> {
        let threshold = match arguments {
            [] => 30_360,
            [bytes] => bytes.parse().map_err(|_| format!("`{bytes}` is no threshold in bytes"))?,
            _ => return Err("one argument: the threshold in bytes".into()),
        };
        Ok(Dctcp { threshold })
    }

    fn process(&self, packet: &mut Packet, queue: &mut VQueue, _own: &mut ()) -> Verdict {
        if queue.tokens > self.threshold {
            packet.mark();
        }
        Verdict::Forward
    }
}

sluicenet_netbump::program!(Dctcp);

//! `bench tenant`: commands for a guest of `bench overload`. Prints one object.

use super::failure::Failure;
use super::output;
use super::values::{payload, rate, seconds};
use sluicenet_bench::overload::load::{self, Load, Stack};
use sluicenet_dataplane::kernel::edge;
use sluicenet_dataplane::kernel::load::{Sender, Sink};
use sluicenet_dataplane::kernel::netns::Namespace;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, clap::Args)]
pub(super) struct Tenant {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Send datagrams
    Send(Send),
    /// Receive them
    Receive(Receive),
    /// Print the kernel's counters
    Counters(Counters),
}

#[derive(Debug, clap::Args)]
struct Send {
    /// The receiver's address
    #[arg(long)]
    to: SocketAddr,
    /// The sender's number
    #[arg(long)]
    number: u16,
    /// Bytes of a datagram
    #[arg(long, value_parser = payload)]
    payload: usize,
    /// Duration in seconds
    #[arg(long, value_parser = seconds)]
    seconds: f64,
    /// Mb/s; default as fast as possible
    #[arg(long, value_parser = rate)]
    rate: Option<f64>,
}

#[derive(Debug, clap::Args)]
struct Receive {
    /// The address to receive at
    #[arg(long)]
    at: SocketAddr,
    /// Bytes of the longest datagram
    #[arg(long, value_parser = payload)]
    payload: usize,
    /// The number of senders
    #[arg(long)]
    senders: u16,
    /// Datagrams that are missing after this time without a datagram are lost
    #[arg(long, value_parser = seconds)]
    quiet_seconds: f64,
    /// The file to create when datagrams can be received
    #[arg(long)]
    bound: PathBuf,
    /// The file with the numbers of sent datagrams, written when the senders end
    #[arg(long)]
    sent: PathBuf,
}

#[derive(Debug, clap::Args)]
struct Counters {
    /// The device
    #[arg(long)]
    device: String,
}

impl Tenant {
    pub fn main(self) -> Result<(), Failure> {
        let failed = |e: &dyn std::fmt::Display| Failure::Failed(e.to_string());
        let here = Namespace::current().map_err(|e| failed(&e))?;
        match self.what {
            What::Send(s) => {
                let mut sender = Sender::new(&here, s.number, s.to, s.payload).map_err(|e| failed(&e))?;
                let load = Load { payload: s.payload, time: Duration::from_secs_f64(s.seconds), rate: s.rate };
                output::json(&load::send(&mut sender, &load, || false).map_err(|e| failed(&e))?);
            }
            What::Receive(r) => {
                let mut sink = Sink::bind(&here, r.at, r.payload, r.senders).map_err(|e| failed(&e))?;
                std::fs::write(&r.bound, "").map_err(|e| failed(&format!("{}: {e}", r.bound.display())))?;
                let told = || std::fs::read_to_string(&r.sent).ok()?.trim().parse().ok();
                let quiet = Duration::from_secs_f64(r.quiet_seconds);
                output::json(&load::receive(&mut sink, quiet, told).map_err(|e| failed(&e))?);
            }
            What::Counters(c) => {
                let mut stack = edge::Stack::open(&here, &c.device).map_err(|e| failed(&e))?;
                output::json(&Stack::from(stack.read().map_err(|e| failed(&e))?));
            }
        }
        Ok(())
    }
}

//! The command in the real world: switches, testbeds and guests as processes, most of them as root.

#[path = "../command/command.rs"]
mod command;
mod guests;
mod overload;
mod sockets;
mod switch;
mod switch_restart;
mod switch_start;
mod switch_tcp;
mod switch_uplink;
mod switch_watched;
mod switching;
mod testbed;
mod testbed_fattree;
mod testbed_flows;
mod testbed_guests;

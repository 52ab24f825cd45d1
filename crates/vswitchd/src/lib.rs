//! `sluicenet switch`: the lossless switch as a program, for guests, containers and processes. A line belongs here when
//! it knows the switch's file, its control socket or one of its metrics.
//!
//! | module | knows |
//! |---|---|
//! | `bump` | a bump in the wire as a program: its file and its loops |
//! | `xco` | the controller of XCo as a program: its file, its network and its loop |
//! | `supervisor` | the process that starts a dead bump or agent again |
//! | `served` | what a switch and a bump have in common for the modules below |
//! | `config` | the configuration file and the meaning of its keys |
//! | `daemon` | start, reload and stop; the ports of the file and those of the engine |
//! | `attach` | namespaces: attached to a running switch by one command, and detached |
//! | `here` | what a start would find on this machine |
//! | `opened` | how each kind of port is opened |
//! | `helper` | the process with the privileges to open devices |
//! | `failure` | why a port could not be opened, and whether that can pass |
//! | `reload` | the settings that may change at run time |
//! | `sandbox` | the files and system calls that the switch can use once its ports are open |
//! | `privileges` | the privileges that the switch and its helper drop |
//! | `notify` | what the service manager hears |
//! | `control` | the control socket: one JSON object per line, for the owner only |
//! | `controller` | the overlay's controller, a program of its own |
//! | `uplink` | how the link to other servers is opened |
//! | `mtu` | tenants whose packets can be too large for the overlay |
//! | `capture` | captures of the frames at a port, as pcapng |
//! | `status` | the state and the counters of the switch |
//! | `log` | log messages |
//! | `metrics` | metrics for Prometheus |
//! | `watch` | rates, and ports that wait for each other |
#![forbid(unsafe_code)]

pub mod attach;
pub mod bump;
pub mod capture;
pub mod config;
pub mod control;
pub mod controller;
pub mod daemon;
mod failure;
pub mod helper;
pub mod here;
pub mod log;
pub mod metrics;
pub mod mtu;
mod notify;
mod opened;
pub mod privileges;
mod reload;
mod sandbox;
mod served;
pub mod status;
pub mod supervisor;
pub mod uplink;
pub mod watch;
pub mod xco;

//! The running switch. A line belongs here when it knows its file, its control socket or one of its metrics.
//!
//! `sluicenet switch`: the lossless switch as a program that runs beside guests, containers and processes.
//!
//! | module | knows |
//! |---|---|
//! | `config` | its file: what may stand in it, and what that means |
//! | `daemon` | how it starts, reloads and stops; which port of the file is which of the switch |
//! | `opened` | what is behind each kind of port |
//! | `reload` | what may change of it while it runs |
//! | `privileges` | what it gives up once its ports are open |
//! | `control` | its socket: one JSON object a line, for its owner only |
//! | `controller` | the overlay's controller, a program of its own |
//! | `uplink` | what its link to other servers is made of |
//! | `capture` | the frames that pass a port, as pcapng |
//! | `status` | what it says of itself |
//! | `log` | what it says unasked |
//! | `metrics` | what it says to Prometheus |
//! | `watch` | what two looks at it tell: rates, who waits for whom |
#![forbid(unsafe_code)]

pub mod capture;
pub mod config;
pub mod control;
pub mod controller;
pub mod daemon;
pub mod log;
pub mod metrics;
mod opened;
pub mod privileges;
mod reload;
pub mod status;
pub mod uplink;
pub mod watch;

//! `sluicenet switch`: the lossless switch as a program that runs beside guests, containers and processes.
//!
//! | module | knows |
//! |---|---|
//! | `config` | its file: what may stand in it, and what that means |
//! | `daemon` | how it starts, reloads and stops; which port of the file is which of the switch |
//! | `control` | its socket: one JSON object a line, for its owner only |
//! | `controller` | the overlay's controller, a program of its own |
//! | `uplink` | what its link to other servers is made of |
//! | `status` | what it says of itself |

pub mod config;
pub mod control;
pub mod controller;
pub mod daemon;
pub mod status;
mod uplink;

//! A scenario between real tenants on one machine: namespaces or guests behind virtual switches, joined by the scenario's
//! fabric in real time. This is where the simulated and the real world are paired.
//!
//! [`Plan`] says, from the scenario alone, what there is to be: servers, tenants, names and addresses. [`fabric`] is the
//! scenario's physical network as the data plane runs it, [`pa`] its applications over real sockets, [`guest`] a virtual
//! machine.

pub mod fabric;
pub mod guest;
pub mod pa;
mod plan;
mod slowed;

pub use plan::{Plan, Server, Tenant};
pub use slowed::slowed;

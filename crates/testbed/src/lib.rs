//! The testbed. A line belongs here when it knows a namespace, a guest or a program of the testbed.
//!
//! A scenario between real tenants on one machine: namespaces or guests behind virtual switches, joined by the scenario's
//! fabric in real time. This is where the simulated and the real world are paired.
//! [`Plan`] derives servers, tenants, names and addresses from the scenario. [`fabric`] is the scenario's physical
//! network in the data plane, [`pa`] its queries over real sockets, [`flows`] its endless flows, [`guest`] a virtual
//! machine. [`live`] starts and removes a testbed, with the [`files`] of its programs. [`measure`] runs each variant of
//! a scenario on a testbed. [`leftovers`] removes the leftovers of killed runs.
//! [`fattree`] is independent of scenarios: real switches in a fat-tree. [`bump`] has real bumps in the links of a scenario.
//! [`xco`] has hosts without virtual switches, and the programs of XCo.
#![forbid(unsafe_code)]

mod bridge;
pub mod bump;
pub mod fabric;
pub mod fattree;
pub mod files;
pub mod flows;
pub mod guest;
pub mod iperf;
pub mod leftovers;
mod light;
pub mod live;
pub mod machine;
pub mod measure;
mod namespaces;
mod origin;
pub mod pa;
mod plan;
mod program;
mod slowed;
mod stack;
pub mod xco;

pub use light::LightEndpoint;
pub use origin::Origin;
pub use plan::{Application, LightPort, PREFIX, Plan, Server, Sockets, Tenant};
pub use program::Program;
pub use slowed::slowed;
pub use stack::stack;

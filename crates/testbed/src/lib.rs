//! The testbed. A line belongs here when it knows a namespace, a guest or a program of the testbed.
//!
//! A scenario between real tenants on one machine: namespaces or guests behind virtual switches, joined by the scenario's
//! fabric in real time. This is where the simulated and the real world are paired.
//!
//! [`Plan`] says, from the scenario alone, what there is to be: servers, tenants, names and addresses. [`fabric`] is the
//! scenario's physical network as the data plane runs it, [`pa`] its queries over real sockets, [`flows`] its flows without an end,
//! [`guest`] a virtual machine. [`live`] brings a testbed up and down, with the [`files`] of its programs; [`measure`] does all of that for each
//! variant of a scenario; [`leftovers`] is what killed runs left.
//!
//! [`fattree`] is another world: real switches in a fat-tree, and no scenario.
#![forbid(unsafe_code)]

mod bridge;
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
mod origin;
pub mod pa;
mod plan;
mod program;
mod slowed;
mod stack;

pub use light::LightEndpoint;
pub use origin::Origin;
pub use plan::{Application, LightPort, PREFIX, Plan, Server, Sockets, Tenant};
pub use program::Program;
pub use slowed::slowed;
pub use stack::stack;

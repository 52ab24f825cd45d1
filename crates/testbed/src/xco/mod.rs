//! XCo on real frames: the hosts of a scenario as namespaces, its network as the fabric in real time, a controller, and an
//! agent at each host with traffic, as programs.
//!
//! | module | knows |
//! |---|---|
//! | `plan` | hosts, links and traffic, from the scenario alone |
//! | `files` | the files of the controller and of the agents |
//! | `network` | namespaces, the fabric and the programs, and their removal |
//! | `rounds` | rounds in which several hosts send to one |
//! | `finite` | flows with an end |
//! | `blocks` | rounds as reads of striped blocks, by `fio` and `nbdkit` |
//! | `migration` | flows with an end as migrations of QEMU guests |
//! | `measure` | a run, and the simulation of the same scenario |

mod blocks;
mod files;
mod finite;
mod measure;
mod migration;
mod network;
mod plan;
mod rounds;

pub use blocks::missing as missing_for_blocks;
pub use measure::{Cell, Lost, Programs, RoundFigures, Settings, Simulated, Times, measure};
pub use migration::missing as missing_for_guests;
pub use network::missing;
pub use plan::{Finite, Host, Plan, Rounds, Traffic};

/// The prefix of the namespaces of these testbeds, of which several can be up at once.
const PREFIX: &str = "sluice-xco";

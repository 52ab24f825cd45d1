//! The number of frames that a port may hand to a guest whose sockets only the guest itself can see.
//!
//! An agent in the guest reports how much room its sockets have, and the switch's port holds back all frames beyond that.
//! Marks synchronise the two sides: the port sends a mark behind the frames it has handed over, and the agent reports its
//! room *behind the last mark it saw*. So neither side counts the frames in flight, and a loss or a restart on either side
//! needs no resynchronisation.
//!
//! [`lease`] is the switch's side; [`room`] and [`talk`] are the guest's.

pub mod lease;
pub mod room;
pub mod talk;

#[cfg(test)]
mod tests;

//! How many frames a port may hand to a guest whose sockets only the guest itself can see.
//!
//! An agent in the guest says what its sockets have room for; the switch's port holds back what is beyond that. They agree on what
//! is already there by marks: a mark goes to the guest behind the frames that were handed over before it, and the agent says how
//! many frames it has room for *behind the last mark it saw*. So nobody has to count what is on its way, and there is
//! nothing to bring back in step after a loss or a restart on either side.
//!
//! [`lease`] is the switch's side; [`room`] and [`talk`] are the guest's.

pub mod lease;
pub mod room;
pub mod talk;

#[cfg(test)]
mod tests;

//! A test frame for routers: its two ends, and hashes of its flow and of itself.

use crate::cee::qcn::Message;
use crate::frame::{Frame, HostId, Pause, Priority};

#[derive(Clone, Copy)]
pub struct Probe {
    pub src: HostId,
    pub dst: HostId,
    pub flow: u64,
    pub frame: u64,
}

impl Frame for Probe {
    fn len(&self) -> u32 {
        64
    }
    fn priority(&self) -> Priority {
        0
    }
    fn source(&self) -> HostId {
        self.src
    }
    fn destination(&self) -> HostId {
        self.dst
    }
    fn flow_hash(&self) -> u64 {
        self.flow
    }
    fn frame_hash(&self) -> u64 {
        self.frame
    }
    fn is_corrupt(&self) -> bool {
        false
    }
    fn is_pause(&self) -> bool {
        false
    }
    fn as_pause(&self) -> Option<Pause> {
        None
    }
    fn from_pause(_: Pause) -> Probe {
        unreachable!()
    }
    fn notification(&self, _: &Message, _: Priority) -> Probe {
        unreachable!("no switch samples a probe")
    }
    fn as_notification(&self) -> Option<Message> {
        None
    }
    fn mark(&mut self) -> bool {
        false
    }
}

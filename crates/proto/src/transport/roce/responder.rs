//! The responder of a queue pair: takes packets in order only, and answers (InfiniBand specification, volume 1, 9.7.5).

use super::{Data, Reply, ahead, wire};

/// The receiving half of a queue pair.
#[derive(Clone, Debug, Default)]
pub struct Responder {
    /// The packet that it expects.
    expected: u64,
    /// Completed messages.
    messages: u64,
    /// Whether the expected packet has been reported missing.
    is_reported: bool,
    due: Due,
}

/// The answer that is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Due {
    #[default]
    Nothing,
    Acknowledgment,
    SequenceError,
}

impl Responder {
    /// A packet came in. Returns its new bytes: none, if it is not the expected one.
    pub fn receive(&mut self, data: &Data) -> u16 {
        match ahead(self.expected, data.psn) {
            0 => self.accept(data),
            1.. => {
                // Once for each gap: the requester sends everything behind it again (9.7.5.2.8).
                if !self.is_reported {
                    (self.is_reported, self.due) = (true, Due::SequenceError);
                }
                0
            }
            _ => {
                // A packet that came before is acknowledged again: the acknowledgment may have been lost.
                if data.ack_request && self.due == Due::Nothing {
                    self.due = Due::Acknowledgment;
                }
                0
            }
        }
    }

    fn accept(&mut self, data: &Data) -> u16 {
        self.expected += 1;
        self.messages += u64::from(data.is_last);
        self.is_reported = false;
        // A report that was not sent yet would be about the packet after this one.
        let is_due = data.ack_request || self.due != Due::Nothing;
        self.due = if is_due { Due::Acknowledgment } else { Due::Nothing };
        data.len
    }

    /// Whether an answer is due.
    pub fn wants_transmit(&self) -> bool {
        self.due != Due::Nothing
    }

    /// The answer that is due. Several requests since the last answer get one acknowledgment.
    pub fn poll_transmit(&mut self) -> Option<Reply> {
        let is_sequence_error = match core::mem::take(&mut self.due) {
            Due::Nothing => return None,
            Due::Acknowledgment => false,
            Due::SequenceError => true,
        };
        let psn = if is_sequence_error { self.expected } else { self.expected.wrapping_sub(1) };
        Some(Reply { psn: wire(psn), is_sequence_error, msn: wire(self.messages) })
    }
}

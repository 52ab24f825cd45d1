//! Messages of known lengths over a connection. Each begins with the number of its query.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};

/// The size of a message's number.
pub(super) const NUMBER_BYTES: u64 = 8;
/// The most bytes read or written at a time.
const CHUNK: usize = 1 << 16;

/// Messages to be sent.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    messages: VecDeque<Message>,
}

#[derive(Debug)]
struct Message {
    number: u64,
    sent: u64,
    len: u64,
}

impl Outgoing {
    /// Adds a message of `len` bytes, its number included.
    pub fn push(&mut self, number: u64, len: u64) {
        self.messages.push_back(Message { number, sent: 0, len });
    }

    /// Whether all messages are sent.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Sends as many bytes as the connection takes now.
    pub fn send(&mut self, to: &mut impl Write) -> io::Result<()> {
        let mut bytes = [0u8; CHUNK];
        while let Some(m) = self.messages.front_mut() {
            let number = m.number.to_be_bytes();
            let rest = number.get(m.sent as usize..).unwrap_or(&[]);
            bytes[..NUMBER_BYTES as usize].fill(0);
            bytes[..rest.len()].copy_from_slice(rest);
            let len = (m.len - m.sent).min(CHUNK as u64) as usize;
            match to.write(&bytes[..len]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => m.sent += n as u64,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            }
            if m.sent == m.len {
                self.messages.pop_front();
            }
        }
        Ok(())
    }
}

/// The message that is being received.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    got: u64,
    number: [u8; NUMBER_BYTES as usize],
}

/// Data read from a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Brought {
    /// The numbers of the messages that are now complete.
    pub numbers: Vec<u64>,
    /// Whether the other side has closed.
    pub closed: bool,
}

impl Incoming {
    /// Reads the available bytes; messages have `len` bytes.
    pub fn receive(&mut self, from: &mut impl Read, len: u64) -> io::Result<Brought> {
        let mut bytes = [0u8; CHUNK];
        let mut brought = Brought { numbers: Vec::new(), closed: false };
        loop {
            let n = match from.read(&mut bytes) {
                Ok(0) => {
                    brought.closed = true;
                    return Ok(brought);
                }
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(brought),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            let mut rest = &bytes[..n];
            while !rest.is_empty() {
                let here = (rest.len() as u64).min(len - self.got) as usize;
                for (i, &byte) in (self.got as usize..).zip(&rest[..here.min(NUMBER_BYTES as usize)]) {
                    if let Some(b) = self.number.get_mut(i) {
                        *b = byte;
                    }
                }
                self.got += here as u64;
                rest = &rest[here..];
                if self.got == len {
                    brought.numbers.push(u64::from_be_bytes(self.number));
                    self.got = 0;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_proto::rng::Rng;

    /// A connection that takes and gives a few bytes at a time.
    struct Drip(VecDeque<u8>, Rng);

    impl Write for Drip {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let n = (1 + self.1.below(20) as usize).min(bytes.len());
            if self.1.below(3) == 0 {
                return Err(ErrorKind::WouldBlock.into());
            }
            self.0.extend(&bytes[..n]);
            Ok(n)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Read for Drip {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            let n = (1 + self.1.below(20) as usize).min(bytes.len()).min(self.0.len());
            if n == 0 {
                return Err(ErrorKind::WouldBlock.into());
            }
            for b in &mut bytes[..n] {
                *b = self.0.pop_front().unwrap();
            }
            Ok(n)
        }
    }

    #[test]
    fn messages_arrive_whole_and_in_order_however_they_are_cut() {
        for len in [8, 9, 15, 16, 17, 100] {
            let mut wire = Drip(VecDeque::new(), Rng::from_words(&[len]));
            let (mut out, mut into) = (Outgoing::default(), Incoming::default());
            let numbers: Vec<u64> = (0..50).map(|n| n * 0x0101_0203_0405_0607).collect();
            numbers.iter().for_each(|&n| out.push(n, len));
            let mut got = Vec::new();
            while got.len() < 50 {
                out.send(&mut wire).unwrap();
                got.extend(into.receive(&mut wire, len).unwrap().numbers);
            }
            assert!(out.is_empty());
            assert_eq!(got, numbers);
        }
    }
}

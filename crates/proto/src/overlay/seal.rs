//! The tag that authenticates a message: HMAC-SHA-256 cut to 128 bits (RFC 2104, RFC 4868).
//!
//! Messages to and from the overlay's controller have one. Each server shares a key of its own with the controller, so that
//! a compromised server can forge only its own messages.

use core::fmt;
use hmac::{Hmac, Mac};
use sha2::Sha256;
use sluicenet_wire::Error;
use sluicenet_wire::controller::{LEN, Repr, SIGNED_LEN, TAG_LEN};

/// Bytes of a key.
pub const KEY_LEN: usize = 32;

/// Reason for refusing bytes as a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The bytes have a wrong size or format.
    Malformed(Error),
    /// The tag is wrong: the message was made or changed without the key.
    Forged,
}

/// A key that a server shares with the controller.
#[derive(Clone)]
pub struct Key(Hmac<Sha256>);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// A key from its bytes, which should be random.
    pub fn new(bytes: &[u8; KEY_LEN]) -> Key {
        Key(Hmac::new_from_slice(bytes).expect("HMAC takes keys of any length"))
    }

    /// The tag of these bytes.
    pub fn tag(&self, bytes: &[u8]) -> [u8; TAG_LEN] {
        let mut mac = self.0.clone();
        mac.update(bytes);
        core::array::from_fn({
            let tag = mac.finalize().into_bytes();
            move |i| tag[i]
        })
    }

    /// Whether `tag` is the tag of these bytes; the comparison takes constant time.
    pub fn verifies(&self, bytes: &[u8], tag: &[u8; TAG_LEN]) -> bool {
        let mut mac = self.0.clone();
        mac.update(bytes);
        mac.verify_truncated_left(tag).is_ok()
    }

    /// The bytes of a message with its tag.
    pub fn seal(&self, message: &Repr) -> [u8; LEN] {
        let mut bytes = message.emit();
        let tag = self.tag(&bytes[..SIGNED_LEN]);
        bytes[SIGNED_LEN..].copy_from_slice(&tag);
        bytes
    }

    /// Checks the tag and returns the message; the comparison takes constant time.
    pub fn open(&self, bytes: &[u8]) -> Result<Repr, Refused> {
        let message: &[u8; LEN] = match bytes.len() {
            ..LEN => return Err(Refused::Malformed(Error::Truncated)),
            _ => bytes.try_into().map_err(|_| Refused::Malformed(Error::Length))?,
        };
        let Some((signed, tag)) = message.split_last_chunk::<TAG_LEN>() else { unreachable!("shorter than a message") };
        if !self.verifies(signed, tag) {
            return Err(Refused::Forged);
        }
        Repr::parse(message).map_err(Refused::Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use core::net::Ipv4Addr;
    use sluicenet_wire::controller::{Kind, Status};
    use sluicenet_wire::ethernet::MacAddress;

    fn message() -> Repr {
        Repr {
            kind: Kind::Answer,
            status: Status::Done,
            mac: MacAddress::local(1),
            ip: Ipv4Addr::new(10, 0, 0, 1).into(),
            server: Ipv4Addr::new(192, 0, 2, 1),
            location: Ipv4Addr::new(192, 0, 2, 2),
            epoch: 1,
            vni: 7,
            version: 3,
            request: 4,
        }
    }

    #[test]
    fn the_tag_is_hmac_sha_256() {
        // RFC 4231, 4.3: key "Jefe", "what do ya want for nothing?".
        let mut mac = Hmac::<Sha256>::new_from_slice(b"Jefe").unwrap();
        mac.update(b"what do ya want for nothing?");
        assert_eq!(mac.finalize().into_bytes()[..4], [0x5b, 0xdc, 0xc1, 0x46]);
    }

    #[test]
    fn what_was_changed_or_made_without_the_key_is_forged() {
        let key = Key::new(&[7; KEY_LEN]);
        let bytes = key.seal(&message());
        assert_eq!(key.open(&bytes), Ok(message()));
        assert_eq!(Key::new(&[8; KEY_LEN]).open(&bytes), Err(Refused::Forged));
        for bit in 0..LEN * 8 {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(key.open(&changed), Err(Refused::Forged), "bit {bit}");
        }
        for len in 0..LEN {
            assert_eq!(key.open(&bytes[..len]), Err(Refused::Malformed(Error::Truncated)));
        }
        assert_eq!(key.open(&[0; LEN + 1]), Err(Refused::Malformed(Error::Length)));
        let mut rng = Rng::from_words(&[5]);
        for _ in 0..20_000 {
            let random: [u8; LEN] = core::array::from_fn(|_| rng.next_u64() as u8);
            assert_eq!(key.open(&random), Err(Refused::Forged));
        }
    }
}

//! The reasons why bytes are not a valid frame.

use core::fmt;

/// Reason why bytes could not be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Fewer bytes than the header needs.
    Truncated,
    /// A length field that contradicts the number of bytes, or its own header.
    Length,
    /// A wrong checksum.
    Checksum,
    /// A well-formed header of a kind that this project does not support: another version, opcode or hardware type.
    Unsupported,
    /// A fragment of an IPv4 datagram, whose payload does not begin with a header; or a datagram that must not be fragmented.
    Fragment,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::Truncated => "fewer bytes than the header takes",
            Error::Length => "a length field contradicts the bytes there are",
            Error::Checksum => "the checksum does not add up",
            Error::Unsupported => "a version, opcode or type that is not spoken here",
            Error::Fragment => "a fragment of an IPv4 datagram, or one that must not be fragmented",
        })
    }
}

impl core::error::Error for Error {}

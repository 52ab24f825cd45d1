//! The tunnel bridge between a vSwitch and its adapter: the overhead of encapsulation and the handling of the ECN bits.

use sluicenet_wire::ipv4::Ecn;

/// The outer headers: 18 B Ethernet with its 802.1Q tag, 20 B IP, 8 B UDP, 8 B VXLAN (Crisan 2014, 3.2.3.1).
pub const ENCAPSULATION_BYTES: u16 = 18 + 20 + 8 + 8;

/// The outer field at the tunnel's entry: a copy of the inner one (RFC 6040, 4.1, normal mode).
#[inline(always)]
pub const fn ecn_in(inner: Ecn) -> Ecn {
    inner
}

/// The inner field at the tunnel's exit. `None` means that the packet must be dropped (RFC 6040, 4.2): a switch marked it,
/// but its transport does not support ECN.
#[inline(always)]
pub const fn ecn_out(outer: Ecn, inner: Ecn) -> Option<Ecn> {
    match (inner, outer) {
        (Ecn::NotEct, Ecn::Ce) => None,
        (Ecn::NotEct, _) => Some(Ecn::NotEct),
        (_, Ecn::Ce) => Some(Ecn::Ce),
        (Ecn::Ect0, Ecn::Ect1) => Some(Ecn::Ect1),
        (inner, _) => Some(inner),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ecn_crosses_the_tunnel() {
        // The table of RFC 6040, figure 4, row by row.
        use Ecn::*;
        let out = |inner| [NotEct, Ect0, Ect1, Ce].map(|outer| ecn_out(outer, inner));
        assert_eq!(out(NotEct), [Some(NotEct), Some(NotEct), Some(NotEct), None]);
        assert_eq!(out(Ect0), [Some(Ect0), Some(Ect0), Some(Ect1), Some(Ce)]);
        assert_eq!(out(Ect1), [Some(Ect1), Some(Ect1), Some(Ect1), Some(Ce)]);
        assert_eq!(out(Ce), [Some(Ce); 4]);
        assert!([NotEct, Ect0, Ect1, Ce].iter().all(|&e| ecn_in(e) == e));
    }
}

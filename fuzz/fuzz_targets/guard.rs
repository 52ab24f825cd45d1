//! Frames of an endpoint with a guard: whatever the frame, nothing panics, and fewer of its bytes never allow what all of them forbid.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluicenet_proto::guard::{Guard, HEAD_LEN};
use sluicenet_proto::loss::DropReason;
use sluicenet_wire::ethernet::MacAddress;

fuzz_target!(|input: (u8, &[u8])| {
    let (settings, frame) = input;
    let addresses = ["10.0.0.1", "10.0.1.0/24", "2001:db8::/64"].map(|text| text.parse().unwrap());
    let guard = Guard {
        macs: vec![MacAddress([2, 0, 0, 0, 0, 1]); usize::from(settings & 1)],
        addresses: (settings & 2 != 0).then(|| addresses.to_vec()),
        router: settings & 4 != 0,
        dhcp_server: settings & 8 != 0,
    };
    let head = &frame[..frame.len().min(HEAD_LEN)];
    let verdict = guard.check(head);
    for len in 0..head.len() {
        let of_fewer = guard.check(&head[..len]);
        assert!(
            of_fewer == Err(DropReason::Malformed) || of_fewer == verdict,
            "{len} bytes: {of_fewer:?}, all: {verdict:?}"
        );
    }
    // A stricter guard allows nothing more.
    let host = Guard { router: false, dhcp_server: false, ..guard };
    assert!(host.check(head).is_err() || verdict.is_ok());
    // What was checked is in the bytes that the caller keeps, or there is nothing behind them.
    assert!(verdict.is_err() || verdict.is_ok_and(|checked| checked.len <= HEAD_LEN || head.len() < checked.len));
});

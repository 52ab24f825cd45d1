//! A frame of XCo from anybody: it is an error, or it can be written again and is the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluicenet_wire::xco::{Entry, Frame, Message, Repr};

fuzz_target!(|bytes: &[u8]| {
    let Ok(repr) = Repr::parse(bytes) else { return };
    let frame = match repr.message {
        Message::Report(entries) => {
            let entries: Vec<Entry> = entries.iter().collect();
            Frame::report(repr.destination, repr.source, &repr.head, &entries)
        }
        message => Frame::emit(repr.destination, repr.source, &repr.head, &message),
    };
    assert_eq!(Repr::parse(frame.as_bytes()).map(|again| again.head), Ok(repr.head));
});

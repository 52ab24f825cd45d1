//! A virtio-net header and the frame behind it, from a guest to one that takes no offloads: parsed, cut, finished.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluicenet_dataplane::port::Segmentation;
use sluicenet_dataplane::vhost::header::{OFFERED, emit, parse};
use sluicenet_wire::offload::{Cutter, Network, finish_checksum};

fuzz_target!(|bytes: &[u8]| {
    let Some((header, frame)) = bytes.split_first_chunk::<12>() else { return };
    let byte = |at: u32| frame.get(at as usize).copied().unwrap_or(0);
    let Ok(offload) = parse(header, frame.len() as u32, OFFERED, byte) else { return };
    assert_eq!(parse(&emit(&offload, 1), frame.len() as u32, OFFERED, byte), Ok(offload));
    let Some((start, offset)) = offload.checksum else { return };
    let network = match offload.segmentation {
        Segmentation::None => {
            let finished = finish_checksum(&mut frame.to_vec(), start.into(), offset.into());
            return assert!(finished.is_ok());
        }
        Segmentation::Tcp4 => Network::V4,
        Segmentation::Tcp6 => Network::V6,
    };
    let Ok(cutter) = Cutter::new(frame, network, start.into(), offload.segment.into()) else { return };
    let mut into = vec![0; frame.len()];
    let payload: usize = (0..cutter.count()).map(|k| cutter.emit(k, false, &mut into) - cutter.headers()).sum();
    assert_eq!(payload, frame.len() - cutter.headers());
});

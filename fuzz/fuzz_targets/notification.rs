//! Congestion notifications and tags of any bytes, and a rate limiter that obeys what can be read: whatever comes, its rate
//! stays between the lowest and the highest one, and time goes forward.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluicenet_proto::cee::qcn::{ReactionPoint, ReactionPointConfig};
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::units::Rate;
use sluicenet_wire::qcn::{Frame, Repr, Tag};

fuzz_target!(|bytes: &[u8]| {
    let config = ReactionPointConfig::crisan2014(Rate::gbps(10));
    let mut now = Instant::ZERO;
    let mut limiter = ReactionPoint::new(&config, now, config.max_rate, Rng::from_words(&[1]));
    for chunk in bytes.chunks(64) {
        if let Ok((tag, rest)) = Tag::parse(chunk) {
            let mut again = [0; 4];
            tag.emit(&mut again);
            assert_eq!(Tag::parse(&again), Ok((tag, &[][..])));
            assert!(rest.len() < chunk.len());
        }
        let message = Frame::parse(chunk).map(|frame| {
            let mut again = vec![0; frame.emitted_len()];
            frame.emit(&mut again);
            assert_eq!(Frame::parse(&again), Ok(frame));
            frame.message
        });
        // The content alone, too: random bytes seldom have the type.
        if let Ok(message) = message.or_else(|_| Repr::parse(chunk)) {
            limiter.on_notification(&config, now, message.feedback);
        }
        limiter.on_transmit(&config, now, 64 + u32::from(chunk[0]) * 36);
        assert!(limiter.current_rate() >= config.min_rate && limiter.current_rate() <= config.max_rate);
        assert!(limiter.next_transmit() > now);
        now = limiter.next_transmit().min(limiter.poll_timeout()).max(now + Duration(1));
        limiter.handle_timeout(&config, now);
    }
});

//! Congestion notifications and tags of any bytes, and a rate limiter that obeys what can be read: whatever comes, its rate
//! stays between the lowest and the highest one, and time goes forward. An uplink that gets the same bytes limits only what
//! it sent, and loses no frame.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluicenet_node::uplink::{Limits, Link, Managed, Uplink};
use sluicenet_proto::cee::qcn::{ReactionPoint, ReactionPointConfig};
use sluicenet_proto::cee::source_control::RateLimiters;
use sluicenet_proto::frame::PrioritySet;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::units::Rate;
use sluicenet_wire::ethernet::MacAddress;
use sluicenet_wire::qcn::{Frame, Repr, Tag};
use std::sync::Arc;

/// An uplink with limiters for each destination or flow, and the frames that it took and sent.
struct Notified {
    uplink: Uplink<u32, Vec<u8>, Managed<Vec<u8>>>,
    taken: usize,
    sent: usize,
}

impl Notified {
    fn new(by_flow: bool) -> Notified {
        let rate = Rate::gbps(10);
        let limiters = RateLimiters { limiter: ReactionPointConfig::crisan2014(rate), by_flow, seed: 1 };
        let response = Duration::from_us(20);
        let link = Link::new(MacAddress::local(1), rate, 1518, response, PrioritySet::ALL, 1_000_000).unwrap();
        let limits = Limits::new(Arc::new(limiters), rate, 1);
        Notified { uplink: Uplink::with(link, Managed::new(Some(limits), None)), taken: 0, sent: 0 }
    }

    fn step(&mut self, now: Instant, bytes: &[u8]) {
        self.uplink.notify(now, bytes, None);
        // Frames to the stations and of the classes that the bytes name.
        let mut frame = vec![0; 60];
        frame.iter_mut().zip(bytes.get(38..).unwrap_or(bytes)).for_each(|(to, from)| *to = *from);
        self.uplink.enqueue(now, bytes[0] & 7, 60, frame);
        self.taken += 1;
        self.uplink.handle_timeout(now);
        while self.uplink.front(now).is_some() {
            self.uplink.sent(now);
            self.sent += 1;
        }
        let (limiters, waiting, _) = self.uplink.queues().limits().unwrap().state();
        assert!(limiters <= self.sent && waiting <= self.uplink.inside().1);
        assert_eq!(self.sent + self.uplink.inside().1, self.taken);
    }
}

fuzz_target!(|bytes: &[u8]| {
    let config = ReactionPointConfig::crisan2014(Rate::gbps(10));
    let mut now = Instant::ZERO;
    let mut limiter = ReactionPoint::new(&config, now, config.max_rate, Rng::from_words(&[1]));
    let mut uplinks = [false, true].map(Notified::new);
    for chunk in bytes.chunks(64) {
        uplinks.iter_mut().for_each(|uplink| uplink.step(now, chunk));
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

//! The three kinds of uplinks: with queues for the classes, which take turns, with [`Managed`] queues, and with those of a
//! [gate](Gated). The code of an uplink is compiled for its kind: without rate limiters, transmission selection and gate it
//! contains none of them.

use crate::clock::Clock;
use sluicenet_node::uplink::{self, Gated, Limits, Managed, Outgoing, Queues};
use sluicenet_proto::frame::Priority;
use sluicenet_proto::time::Instant;
use sluicenet_wire::ethernet::MacAddress;
use sluicenet_wire::{qcn, xco};

/// The flow-controlled link of an uplink of this kind.
pub(super) type Link<K> = uplink::Uplink<u32, Vec<u8>, K>;

/// A kind of uplink.
pub trait UplinkKind: Outgoing<Vec<u8>> + Send + Sized {
    /// Handles a frame from the link that controls these queues: a congestion notification, or a message of XCo. Returns
    /// whether it is one. `own` is the station that a notification must be for. `now` is the
    /// start of the round; afterwards, the time of the frame.
    fn notify(
        _link: &mut uplink::Uplink<u32, Vec<u8>, Self>,
        _clock: Option<Clock>,
        _now: &mut Instant,
        _frame: &[u8],
        _own: Option<MacAddress>,
    ) -> bool {
        false
    }
    /// The rate limiters.
    fn limits(&self) -> Option<&Limits<Vec<u8>>> {
        None
    }
    /// The gate.
    fn gate(&self) -> Option<&Gated> {
        None
    }
    /// The gate, to be changed.
    fn gate_mut(&mut self) -> Option<&mut Gated> {
        None
    }
    /// Whether the queues have room for a frame of a pair of stations.
    fn has_room_for(&self, _class: Priority, _domain: u16, _to: MacAddress, _from: MacAddress) -> bool {
        true
    }
    /// Bytes by which a frame grows on its way to the link.
    fn growth(&self) -> u32 {
        if self.limits().is_some_and(Limits::by_flow) { qcn::TAG_LEN as u32 } else { 0 }
    }
}

impl UplinkKind for Queues<Vec<u8>> {}

impl UplinkKind for Managed<Vec<u8>> {
    fn notify(
        link: &mut uplink::Uplink<u32, Vec<u8>, Self>,
        _clock: Option<Clock>,
        now: &mut Instant,
        frame: &[u8],
        own: Option<MacAddress>,
    ) -> bool {
        let is_one = link.queues().limits().is_some() && qcn::is_notification(frame);
        if is_one {
            link.notify(*now, frame, own);
        }
        is_one
    }
    fn limits(&self) -> Option<&Limits<Vec<u8>>> {
        Managed::limits(self)
    }
}

impl UplinkKind for Gated {
    fn notify(
        link: &mut uplink::Uplink<u32, Vec<u8>, Self>,
        clock: Option<Clock>,
        now: &mut Instant,
        frame: &[u8],
        _own: Option<MacAddress>,
    ) -> bool {
        if !xco::is_message(frame) {
            return false;
        }
        // The frame may have arrived long after the start of the round, if another program ran meanwhile. With that earlier time
        // the controller's clock would seem to be ahead for good, and all its directives would seem to be over.
        *now = clock.map_or(*now, |clock| clock.now());
        let own = link.link().address;
        link.queues_mut().handle_message(*now, frame, own)
    }
    fn gate(&self) -> Option<&Gated> {
        Some(self)
    }
    fn gate_mut(&mut self) -> Option<&mut Gated> {
        Some(self)
    }
    fn has_room_for(&self, class: Priority, domain: u16, to: MacAddress, from: MacAddress) -> bool {
        Gated::has_room_for(self, class, domain, to, from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_node::uplink::GateConfig;
    use sluicenet_proto::frame::PrioritySet;
    use sluicenet_proto::time::Duration;
    use sluicenet_proto::units::Rate;
    use sluicenet_proto::xco::coordinator::{CoordinatorConfig, LATE};
    use sluicenet_wire::xco::{Frame, Head, Message};

    #[test]
    fn a_message_has_the_time_of_its_arrival_and_not_that_of_the_round() {
        let (own, controller) = (MacAddress::local(1), MacAddress::local(2));
        let link = uplink::Link::new(own, Rate::gbps(1), 1518, Duration::from_us(20), PrioritySet(1 << 3), 150_000);
        let coordinator = CoordinatorConfig {
            node: 0,
            rate_kbps: 1_000_000,
            controllers: vec![controller],
            lease: Duration::from_ms(40),
            hysteresis: None,
            small_kbps: 0,
            entries: 8,
            flows: 16,
            late: LATE,
            nonce: 7,
        };
        let config = GateConfig { coordinator, stations: Default::default(), queue: 16_000, priority: 7 };
        let mut link = uplink::Uplink::with(link.unwrap(), Gated::new(Instant::ZERO, config));
        let (clock, round) = (Clock::start(), Instant::ZERO + Duration::from_ns(1));
        std::thread::sleep(std::time::Duration::from_micros(1));
        let mut now = round;
        assert!(!Gated::notify(&mut link, Some(clock), &mut now, &[0; 60], None));
        assert_eq!(now, round);
        let message = Frame::emit(own, controller, &Head::default(), &Message::Leave);
        assert!(Gated::notify(&mut link, Some(clock), &mut now, message.as_bytes(), None));
        assert!(round < now && now <= clock.now(), "{now:?}");
    }
}

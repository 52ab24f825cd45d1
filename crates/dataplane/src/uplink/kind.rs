//! The three kinds of uplinks: with queues for the classes, which take turns, with [`Managed`] queues, and with those of a
//! [gate](Gated). The code of an uplink is compiled for its kind: without rate limiters, transmission selection and gate it
//! contains none of them.

use sluicenet_node::uplink::{self, Gated, Limits, Managed, Outgoing, Queues};
use sluicenet_proto::frame::Priority;
use sluicenet_proto::time::Instant;
use sluicenet_wire::ethernet::MacAddress;
use sluicenet_wire::qcn;

/// The flow-controlled link of an uplink of this kind.
pub(super) type Link<K> = uplink::Uplink<u32, Vec<u8>, K>;

/// A kind of uplink.
pub trait UplinkKind: Outgoing<Vec<u8>> + Send + Sized {
    /// Handles a frame from the link that controls these queues: a congestion notification, or a message of XCo. Returns
    /// whether it is one. `own` is the station that a notification must be for.
    fn notify(
        _link: &mut uplink::Uplink<u32, Vec<u8>, Self>,
        _now: Instant,
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
        now: Instant,
        frame: &[u8],
        own: Option<MacAddress>,
    ) -> bool {
        let is_one = link.queues().limits().is_some() && qcn::is_notification(frame);
        if is_one {
            link.notify(now, frame, own);
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
        now: Instant,
        frame: &[u8],
        _own: Option<MacAddress>,
    ) -> bool {
        let own = link.link().address;
        link.queues_mut().handle_message(now, frame, own)
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

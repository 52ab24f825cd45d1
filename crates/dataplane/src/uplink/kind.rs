//! The two kinds of uplinks: with queues for the classes, which take turns, and with [`Managed`] queues. The code of an
//! uplink is compiled for its kind: without rate limiters and transmission selection it contains neither.

use sluicenet_node::uplink::{self, Limits, Managed, Outgoing, Queues};
use sluicenet_proto::time::Instant;
use sluicenet_wire::ethernet::MacAddress;
use sluicenet_wire::qcn;

/// The flow-controlled link of an uplink of this kind.
pub(super) type Link<K> = uplink::Uplink<u32, Vec<u8>, K>;

/// A kind of uplink.
pub trait UplinkKind: Outgoing<Vec<u8>> + Send + Sized {
    /// Handles a frame from the link that is a congestion notification; returns whether it is one. `own` is the station that
    /// it must be for.
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

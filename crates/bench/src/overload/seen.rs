//! Counters between a sender and the sink, and the places of losses that follow from them.

use super::load::Stack;
use super::{OverloadError, Passed, Points, SENDERS, SINK, Switch};
use sluicenet_dataplane::engine::PortReport;
use sluicenet_dataplane::kernel::link::Links;
use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_proto::loss::DropReason;

/// At the switch's end of a tenant's device.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceSeen {
    /// Frames from the tenant.
    from: u64,
    /// Frames to it.
    to: u64,
    /// Thrown away.
    dropped: u64,
}

/// Counts of the device `name` in a switch's namespace.
pub fn device(namespace: &Namespace, name: &str) -> Result<DeviceSeen, OverloadError> {
    namespace.enter(|| {
        let mut links = Links::open()?;
        let link = links.get(name)?;
        let stats = link.stats;
        let dropped = stats.rx_dropped + stats.tx_dropped + links.queue_drops(link.index)?;
        Ok(DeviceSeen { from: stats.rx_packets, to: stats.tx_packets, dropped })
    })?
}

/// Counters between a tenant and the switch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    stack: Stack,
    /// Frames from the tenant, and to it, at the switch's port.
    from: u64,
    to: u64,
    /// Thrown away at the switch's end of its device.
    device: u64,
    /// Thrown away by our switch, on the way to the tenant.
    switch: u64,
}

impl Counted {
    /// From the tenant's kernel, the switch's device if there is one, and the port of our switch if it is that.
    pub fn new(stack: Stack, device: Option<DeviceSeen>, port: Option<&PortReport>) -> Counted {
        let device = device.unwrap_or_default();
        let mut counted = Counted { stack, from: device.from, to: device.to, device: device.dropped, switch: 0 };
        if let Some(port) = port {
            let c = &port.counters;
            // Broadcast copies that did not reach every port are no part of the experiment.
            counted.switch = c.dropped.total_frames() - c.dropped.frames(DropReason::FloodNoRoom);
            (counted.from, counted.to) = (c.accepted, c.delivered);
            // Frames that the device did not take were kept, and are not lost.
            let full = port.own.iter().find(|(name, _)| *name == "device_full").map_or(0, |&(_, n)| n);
            counted.device = counted.device.saturating_sub(full);
        }
        counted
    }

    fn since(self, before: Counted) -> Counted {
        Counted {
            stack: self.stack.since(before.stack),
            from: self.from.wrapping_sub(before.from),
            to: self.to.wrapping_sub(before.to),
            device: self.device.saturating_sub(before.device),
            switch: self.switch.wrapping_sub(before.switch),
        }
    }
}

/// Counters, tenant by tenant.
#[derive(Clone, Debug, Default)]
pub struct Seen(pub Vec<Counted>);

impl Seen {
    /// Counts since `before`.
    pub fn since(&self, before: &Seen) -> Seen {
        Seen(self.0.iter().zip(&before.0).map(|(now, before)| now.since(*before)).collect())
    }

    fn senders(&self, of: impl Fn(&Counted) -> u64) -> u64 {
        self.0[..SENDERS].iter().map(of).sum()
    }

    /// Counts at the six points of measurement.
    pub fn passed(&self, sent: u64, received: u64) -> Passed {
        let sink = &self.0[SINK];
        Passed {
            sent,
            sender_device: self.senders(|c| c.stack.sent),
            switch_in: self.senders(|c| c.from),
            switch_out: sink.to,
            sink_device: sink.stack.received,
            received,
        }
    }

    /// Where `lost` datagrams were lost.
    pub fn points(&self, switch: Switch, guests: bool, lost: u64) -> Points {
        let sink = &self.0[SINK];
        let passed = self.passed(0, 0);
        let mut points = Points {
            sender_qdisc: self.senders(|c| c.stack.qdisc),
            sender_device: self.senders(|c| c.stack.device + c.device),
            switch: 0,
            sink_device: sink.stack.device + sink.device,
            softnet: sink.stack.softnet,
            socket: sink.stack.sockets,
        };
        // A device's counter includes frames that were dropped between the device and the stack.
        points.sink_device = points.sink_device.saturating_sub(points.softnet);
        if guests {
            // QEMU counts nothing. So its losses are frames that left a guest and came to no port, and frames that left
            // a port and came to no guest.
            let left = passed.sender_device.saturating_sub(passed.switch_in);
            points.sender_device = points.sender_device.max(left);
            points.sink_device += passed.switch_out.saturating_sub(passed.sink_device);
        }
        if switch == Switch::Ours {
            points.switch = sink.switch;
        } else {
            let known =
                points.sender_qdisc + points.sender_device + points.sink_device + points.softnet + points.socket;
            points.switch = lost.saturating_sub(known);
        }
        points
    }
}
